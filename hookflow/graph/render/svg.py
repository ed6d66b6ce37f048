"""A plan as a picture that stands alone: its text as SVG, without fonts, scripts or styles from elsewhere; and a page.

The picture is for light and dark. All lengths are in pixels.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape as escape_html
from types import MappingProxyType

from rich.cells import cell_len

from hookflow.errors import Problem
from hookflow.graph.plan import Plan
from hookflow.graph.render.text import (
    KINDS,
    STYLES,
    as_text,
    edges_that_gave_way,
    marks,
    place_of,
    plain,
    slots,
    title_of,
)

WIDTH = 120
"""Columns of the text."""

CELL, LINE, MARGIN = 8.4, 17, 16

_FORBIDDEN = re.compile(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot represent, not even escaped."""

_LOOKS = """\
.plan { font: 14px 'DejaVu Sans Mono', Menlo, Consolas, monospace; fill: #1b1f24; }
.plan .bold { font-weight: bold; } .plan .dim { fill: #59616b; } .plan .cyan { fill: #0b6e99; } .page { fill: #ffffff; }
@media screen and (prefers-color-scheme: dark) {
  .plan { fill: #e8eaed; } .plan .dim { fill: #a6adb7; } .plan .cyan { fill: #6cc7ec; } .page { fill: #15181c; }
}"""


def as_svg(plan: Plan, title: str = "", times: Mapping[int, str] = MappingProxyType({})) -> str:
    """Draw every point that has bindings; of a run, with what they took, by their ids."""
    title = title or title_of(plan)
    lines = as_text(plan, title, WIDTH, True, times).split("\n")
    width = max(cell_len(_STYLED.sub("", line)) for line in lines) * CELL + 2 * MARGIN
    height = len(lines) * LINE + 2 * MARGIN
    size = f'width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}" xml:space="preserve"'
    order = (f"{point}: {', '.join(hooks)}." for point, hooks in plan.order.items())
    described = "The points of the run from top to bottom, each with its hooks as they fire."
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="title desc" {size} class="plan">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="desc">{escape(" ".join([described, *order]))}</desc>',
            f"<style>\n{_LOOKS}\n</style>",
            '<rect class="page" width="100%" height="100%"/>',
            *(part for k, line in enumerate(lines) for part in _texts(line, MARGIN + (k + 0.8) * LINE)),
            "</svg>",
        ]
    )


_STYLED = re.compile("\x1b\\[\\d*m")


def _texts(line: str, y: float) -> Iterator[str]:
    """Yield the texts of a line, each where it stands and as wide as its columns, whatever the font."""
    column, looks = 0, ""
    for text in re.split("(\x1b\\[\\d*m)", line):
        if _STYLED.fullmatch(text):
            looks = STYLES.get(text, "")
            continue
        shown = text.strip()
        x = MARGIN + (column + cell_len(text) - cell_len(text.lstrip())) * CELL
        column += cell_len(text)
        if shown:
            at = f'x="{x:.1f}" y="{y:.1f}" textLength="{cell_len(shown) * CELL:.1f}"'
            yield f'<text class="{looks}" {at}>{escape(shown)}</text>'


def escape(text: str) -> str:
    """Return a text as it may stand in XML and HTML, between tags or in an attribute."""
    return escape_html(_FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text), quote=True)


_STYLE = """\
:root { --page: #ffffff; --ink: #1b1f24; --edge: #c9cdd4; color-scheme: light dark; }
@media screen and (prefers-color-scheme: dark) { :root { --page: #15181c; --ink: #e8eaed; --edge: #444b55; } }
@page { margin: 14mm; }
body { margin: 24px; background: var(--page); color: var(--ink); font: 14px/1.45 system-ui, "DejaVu Sans", sans-serif; }
.picture { margin: 0 -16px; overflow-x: auto; }
h2 { margin: 28px 0 8px; font-size: 15px; }
table { border-collapse: collapse; }
th, td { padding: 4px 18px 4px 0; border-bottom: 1px solid var(--edge); text-align: left; vertical-align: top; }
th { font-weight: 600; white-space: nowrap; }
td { overflow-wrap: break-word; }
@media print {
  .picture svg { max-width: 100%; height: auto; }
  h2 { break-after: avoid; } tr { break-inside: avoid; }
}"""


def as_html(plan: Plan, title: str = "", times: Mapping[int, str] = MappingProxyType({})) -> str:
    """Draw every point that has bindings, of a run with what they took, and list hooks, firings and edges."""
    title = title or title_of(plan)
    hooks = (
        [hook.name, hook.about, f"{hook.use}({hook.written_args})", hook.phase, hook.on_error, hook.where]
        for hook in plan.hooks
    )
    firings = (
        [b.point, b.hook, f"{b.method}({', '.join(b.takes)})", ", ".join(marks(plan, b)), ", ".join(slots(b))]
        for b in plan.bindings
    )
    edges = ([edge.point, edge.first, edge.then, KINDS[edge.kind], place_of(edge)] for edge in plan.edges)
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">',
            f'<head><meta charset="utf-8"/><title>{escape(title)}</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
            f"<style>\n{_STYLE}\n</style></head>",
            f'<body>\n<figure class="picture">\n{as_svg(plan, title, times)}\n</figure>',
            *_table("Hooks", "hook, what it is, made of, phase, on error, declared", hooks),
            *_table("Firings, in their order", "point, hook, method, when, slots", firings),
            *_table("Edges", "point, first, then, why, source", edges),
            *_list("Edges that gave way", edges_that_gave_way(plan)),
            *_list("Warnings", map(_warning, plan.warnings)),
            *_list("Notes", map(_warning, plan.notes)),
            "</body></html>",
        ]
    )


def _warning(warning: Problem) -> str:
    parts = (f"{warning.where}:" if warning.where else "", warning.message, f"({warning.hint})" if warning.hint else "")
    return plain(" ".join(parts))


def _table(name: str, heads: str, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table, if it has rows."""
    body = [f"<tr>{''.join(f'<td>{escape(plain(cell))}</td>' for cell in row)}</tr>" for row in rows]
    if body:
        yield f"<h2>{name}</h2>"
        yield f"<table><thead><tr>{''.join(f'<th>{head}</th>' for head in heads.split(', '))}</tr></thead>"
        yield from ("<tbody>", *body, "</tbody></table>")


def _list(name: str, texts: Iterable[str]) -> Iterator[str]:
    body = [f"<li>{escape(text)}</li>" for text in texts]
    if body:
        yield from (f"<h2>{name}</h2>", "<ul>", *body, "</ul>")
