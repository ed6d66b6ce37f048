"""The report of a run as a page of HTML."""

from hookflow.report.contents import RunReport
from hookflow.report.pages import render_page


def render_report(report: RunReport) -> str:
    """Return the page of a report."""
    values = {"report": report, "made": report.made, "command": "hookflow export"}
    return render_page("run.html", report.curves, values)
