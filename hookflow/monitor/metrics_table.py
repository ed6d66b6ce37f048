"""The metrics of a run as a table for a terminal: the latest value of each, and the best one."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from hookflow.graph.plan import Plan
from hookflow.monitor.formatting import number
from hookflow.monitor.monitored import in_order
from hookflow.monitor.state import RunState
from hookflow.monitor.style import clean


def metrics_table(state: RunState, plan: Plan) -> Table | None:
    """Return the table; None of a run that has not been validated or tested."""
    metrics = state.metrics.by_name
    names = [name for name in in_order(metrics, plan) if metrics[name]]
    if not names:
        return None
    table = Table("metric", box=SIMPLE_HEAD, header_style="bold")
    for heading in ("last", "best", "at epoch", "iteration"):
        table.add_column(heading, justify="right")
    for name in names:
        best = state.metrics.best.get(name)
        where = (number(best.value), str(best.ep), str(best.it)) if best else ("", "", "")
        table.add_row(Text(clean(name)), number(metrics[name][-1][1]), *where)
    return table
