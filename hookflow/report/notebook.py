"""Runs as a table of HTML, for notebooks."""

import math
import time
from collections.abc import Iterable, Sequence
from html import escape

from hookflow.monitor.index import Row
from hookflow.monitor.selection import (
    default_columns,
    find_differing_keys,
    make_cells,
    make_headings,
)

CURVE_WIDTH = 80
CURVE_HEIGHT = 20
CURVE_MARGIN = 2
"""Pixels of a curve, and of what is left free above and below it."""


def html_table(rows: Sequence[Row]) -> str:
    """Return the runs as a table of HTML, with the curve of each one's metric."""
    keys = default_columns(rows, find_differing_keys(rows))
    now = time.time()
    columns = []
    for key in keys:
        columns.append([escape(cell) for cell in make_cells(rows, key, now)])
    columns.append([draw_curve_svg(row.curve) for row in rows])
    return html_of([*make_headings(keys), "curve"], zip(*columns, strict=True))


def html_of(names: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Return a table of HTML with these headings; its cells are HTML."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = ""
    for line in lines:
        cells = "".join(f"<td>{cell}</td>" for cell in line)
        body += f"<tr>{cells}</tr>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def draw_curve_svg(values: Sequence[float]) -> str:
    """Return a curve as SVG, which needs no library and no network."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2:
        return ""
    low = min(finite)
    extent = (max(finite) - low) or 1.0
    bottom = CURVE_HEIGHT - CURVE_MARGIN
    height = CURVE_HEIGHT - 2 * CURVE_MARGIN
    points = []
    for place, value in enumerate(values):
        if math.isfinite(value):
            x = CURVE_WIDTH * place / (len(values) - 1)
            y = bottom - height * (value - low) / extent
            points.append(f"{x:.1f},{y:.1f}")
    polyline = " ".join(points)
    line = f'<polyline points="{polyline}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
    return f'<svg width="{CURVE_WIDTH}" height="{CURVE_HEIGHT}" role="img">{line}</svg>'
