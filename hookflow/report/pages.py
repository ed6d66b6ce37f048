"""Pages of HTML from templates.

Each is one file, which needs no network, and a script only to show values of curves.
"""

from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hookflow.numbers import format_percent, number, strict_json
from hookflow.report.chart_drawing import MARK_CLASSES, draw_charts
from hookflow.report.curves import CurveSheet
from hookflow.text import make_lines_printable, make_printable

MAX_NAMES = 20
"""The names of curves without a chart that are listed."""


@cache
def _make_environment() -> Environment:
    """Return the templates. Their values are escaped, and control characters are replaced."""
    environment = Environment(
        loader=PackageLoader("hookflow.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["lines"] = lambda text: Markup("{}").format(make_lines_printable(text))
    environment.filters["percent"] = format_percent
    environment.filters["anchor"] = lambda title: title.lower().replace(" ", "-")
    environment.filters["grouped"] = lambda count: f"{count:,}"
    return environment


def _finalize(value: object) -> object:
    """Return a value as it is put into a page.

    It is on one line, unless it is a part of a page already.
    """
    if isinstance(value, Markup):
        return value
    return make_printable(str(value))


def render_page(template: str, sheet: CurveSheet, values: Mapping[str, Any]) -> str:
    """Return a page from a template, with the charts of a sheet."""
    page = _make_environment().get_template(template)
    return page.render(
        charts=draw_charts(sheet),
        curve_note=_describe_curves(sheet),
        curve_data=_make_curve_data(sheet),
        **values,
    )


def _describe_curves(sheet: CurveSheet) -> str:
    """Return what explains the charts, and which curves have none."""
    signs = ""
    if sheet.marks:
        signs = "".join(f"; {sign} {word}" for sign, word in MARK_CLASSES.items())
    note = f"Below the axes: iterations{signs}. A band is from the least to the greatest value."
    if not sheet.left_out:
        return note
    names = ", ".join(sheet.left_out[:MAX_NAMES])
    if len(sheet.left_out) > MAX_NAMES:
        names += ", …"
    return f"{note} {len(sheet.left_out):,} more have no chart here: {names}"


def _make_curve_data(sheet: CurveSheet) -> Markup:
    """Return what the script reads: the points of the curves.

    No character in it could end its element.
    """
    curves = []
    for curve in sheet.curves:
        curves.append([asdict(line) for line in curve.lines])
    facts = {"x": [sheet.first, sheet.last], "per_epoch": sheet.per_epoch, "curves": curves}
    text = strict_json(facts, number, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704  # JSON, whose one dangerous character is replaced
