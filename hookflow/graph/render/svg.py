"""A plan as a picture that stands alone: SVG without fonts, scripts or styles from elsewhere, for light and dark.

Strokes distinguish the kinds of edges: solid, double, dashed, dotted. A tooltip shows the source of an edge.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape as escape_html
from itertools import groupby, pairwise

from rich.cells import cell_len

from hookflow.errors import Problem
from hookflow.graph.plan import Binding, EdgeKind, Plan, PlannedHook
from hookflow.graph.render.lanes import (
    INDENT,
    MARGIN,
    NAME_LINE,
    NOTE_CELL,
    NOTE_LINE,
    PAD,
    XY,
    Arrow,
    Box,
    Lane,
    Picture,
    Rail,
    lay_out,
)
from hookflow.graph.render.text import (
    KINDS,
    edges_that_gave_way,
    marks,
    place_of,
    plain,
    slots,
    title_of,
)
from hookflow.text import wrapped

LIGHT = {"page": "#ffffff", "lane": "#f4f5f7", "edge": "#c9cdd4", "box": "#ffffff", "ink": "#1b1f24", "dim": "#59616b"}
DARK = {"page": "#15181c", "lane": "#1e2228", "edge": "#444b55", "box": "#2a2f37", "ink": "#e8eaed", "dim": "#a6adb7"}

MONO = "'DejaVu Sans Mono', Menlo, Consolas, monospace"
SANS = "system-ui, 'DejaVu Sans', Helvetica, Arial, sans-serif"

LOOKS: dict[str, dict[str, str]] = {
    "plan": {"fill": "ink", "font-family": MONO, "font-size": "12"},
    "title": {"font-family": SANS, "font-size": "15", "font-weight": "bold"},
    "name": {"font-weight": "bold"},
    "note": {"fill": "dim", "font-size": "10"},
    "page": {"fill": "page"},
    "lane": {"fill": "lane", "stroke": "edge"},
    "box": {"fill": "box", "stroke": "ink"},
    "half": {},
    "tip": {},
    "knot": {},
    "line": {"fill": "none", "stroke": "ink", "stroke-width": "1.2"},
    "line class": {"fill": "none", "stroke": "ink", "stroke-width": "3.6"},
    "line flow": {"fill": "none", "stroke": "ink", "stroke-width": "1.2", "stroke-dasharray": "6 3"},
    "line pair": {"fill": "none", "stroke": "ink", "stroke-width": "1.2", "stroke-dasharray": "1.5 2.5"},
    "hollow": {"fill": "none", "stroke": "lane", "stroke-width": "1.4"},
    "hollow below": {"fill": "none", "stroke": "page", "stroke-width": "1.4"},
    "rail": {"fill": "none", "stroke": "dim", "stroke-width": "1.2"},
    "grab": {"fill": "none", "stroke-width": "8", "pointer-events": "stroke"},
}
"""Colours are named as in LIGHT and DARK. Elements without a fill are filled with ink."""


def styled(look: str) -> str:
    """Return the class and its attributes, to be put into a tag."""
    facts = {"class": look} | {name: LIGHT.get(value, value) for name, value in LOOKS[look].items()}
    return "".join(f' {name}="{value}"' for name, value in facts.items())


def dark_sheet() -> str:
    """Return the style sheet: the dark colours, on a screen where the system is dark."""
    rules = []
    for look, facts in LOOKS.items():
        result = "; ".join(f"{name}: {DARK[value]}" for name, value in facts.items() if value in DARK)
        selector = "svg.plan" if look == "plan" else f".plan .{look.replace(' ', '.')}"
        rules += [f"  {selector} {{ {result}; }}"] if result else []
    return "\n".join(["@media screen and (prefers-color-scheme: dark) {", *rules, "}"])


_FORBIDDEN = re.compile(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot represent, not even escaped."""


def as_svg(plan: Plan, title: str = "") -> str:
    """Draw every point that has bindings, a lane each."""
    return "\n".join(_Drawing(plan, title or title_of(plan)).lines())


class _Drawing:
    """A plan, where everything stands, and the notes below the lanes."""

    def __init__(self, plan: Plan, title: str) -> None:
        self.plan = plan
        self.title = title
        self.picture = lay_out(plan, top=MARGIN + 32)
        self.kinds = [kind for kind in KINDS if kind in plan.edge_kinds]
        self.width = max(self.picture.width, cell_len(title) * 9.5 + 2 * MARGIN, 480)
        columns = int((self.width - 2 * MARGIN) / NOTE_CELL) - 2
        self.gave_way = [line for sentence in edges_that_gave_way(plan) for line in wrapped(sentence, columns)]
        self.halves = any(binding.half != "whole" for binding in plan.bindings)
        legend = 1 + self.picture.goes_on + len(self.kinds) + self.halves
        self.height = self.picture.bottom + 2 * PAD + (legend + len(self.gave_way)) * NAME_LINE + MARGIN

    def lines(self) -> Iterator[str]:
        size = f'width="{_n(self.width)}" height="{_n(self.height)}" viewBox="0 0 {_n(self.width)} {_n(self.height)}"'
        name = 'role="img" aria-labelledby="title desc"'
        yield f'<svg xmlns="http://www.w3.org/2000/svg" {name} {size}{styled("plan")}>'
        yield f'<title id="title">{escape(self.title)}</title>'
        yield f'<desc id="desc">{escape(self._description())}</desc>'
        yield f"<style>\n{dark_sheet()}\n</style>"
        yield f'<rect{styled("page")} width="100%" height="100%"/>'
        yield _text(MARGIN, MARGIN + 14, self.title, "title")
        yield from self._guides(self.picture)
        for lane in self.picture.lanes:
            yield from self._lane(lane)
        yield from (line for rail in self.picture.rails for line in _rail(rail))
        yield from self._legend(self.picture.bottom + 2 * PAD + 8)
        yield "</svg>"

    def _description(self) -> str:
        lines = [
            "A lane for each point of the run, from top to bottom; in it the hooks from left to right as they fire"
        ]
        for point, lanes in groupby(self.picture.lanes, lambda lane: lane.point.name):
            lines.append(f"{point}: {', '.join(box.binding.hook for lane in lanes for box in lane.boxes)}")
        return ". ".join(lines) + "."

    def _guides(self, picture: Picture) -> Iterator[str]:
        """Yield a line from each lane down the lanes that are nested in it."""
        for k, lane in enumerate(picture.lanes):
            inner = None
            for other in picture.lanes[k + 1 :]:
                if other.x <= lane.x:
                    break
                inner = other
            if inner is not None:
                x = lane.x + INDENT / 2
                yield f'<path{styled("rail")} d="M{_n(x)} {_n(lane.y + lane.height)}V{_n(inner.y + inner.height)}"/>'

    def _lane(self, lane: Lane) -> Iterator[str]:
        yield f'<g class="point" data-point="{escape(lane.point.name)}">'
        yield f"<title>{escape(f'{lane.point.name}: {lane.point.about}')}</title>"
        yield _rect("lane", lane.x, lane.y, lane.width, lane.height, 5)
        y = lane.boxes[0].y + 5 + 12
        yield _text(lane.x + PAD, y, lane.point.name)
        for k, note in enumerate(lane.notes, 1):
            yield _text(lane.x + PAD, y + k * NOTE_LINE, note, "note")
        if lane.row > 1:
            yield _text(lane.boxes[0].x - 10, y, "…", "name")
        if lane.row < lane.rows:
            yield _text(lane.boxes[-1].x + lane.boxes[-1].width + 4, y, "…", "name")
        for arrow in sorted(lane.arrows, key=lambda arrow: len(arrow.corners), reverse=True):
            yield from _arrow(arrow)
        for label in lane.labels:
            yield _text(label.x, label.y, label.text, "note", f' text-anchor="{label.anchor}"')
        for box in lane.boxes:
            yield from self._box(box)
        yield "</g>"

    def _box(self, box: Box) -> Iterator[str]:
        half = box.binding.half
        yield f'<g class="hook" data-hook="{escape(box.binding.hook)}">'
        yield f"<title>{escape(self._about(box.binding))}</title>"
        yield _rect("box", box.x, box.y, box.width, box.height, 4)
        if half != "whole":
            yield _rect("half", box.x if half == "enter" else box.x + box.width - 4, box.y, 4, box.height, 2)
        yield _text(box.x + PAD + 2, box.y + 5 + 12, box.binding.hook, "name")
        for k, note in enumerate(box.notes):
            yield _text(box.x + PAD + 2, box.y + 5 + NAME_LINE + 9 + k * NOTE_LINE, note, "note")
        yield "</g>"

    def _about(self, binding: Binding) -> str:
        """Return what is shown below the pointer: what the hook is, when it fires, its slots, where it stands."""
        hook = self.plan.hook(binding.hook)
        call = f"{plain(hook.use)}({plain(hook.written_args)})"
        lines = [hook.name, plain(hook.about), call, f"{binding.method}({', '.join(binding.takes)})"]
        lines += [*marks(self.plan, binding), *slots(binding), plain(hook.where)]
        return "\n".join(line for line in lines if line)

    def _legend(self, y: float) -> Iterator[str]:
        yield _text(MARGIN, y + 4, "left to right: the order of firing", "note")
        if self.picture.goes_on:
            y += NAME_LINE
            goes_on = "goes on in the next row; an edge between two rows is broken off, and says where its other end is"
            yield _text(MARGIN + 14, y + 4, "…", "name")
            yield _text(MARGIN + 46, y + 4, goes_on, "note")
        for kind in self.kinds:
            y += NAME_LINE
            yield from _stroke(kind, ((MARGIN, y), (MARGIN + 36, y)), hollow="hollow below")
            yield _text(MARGIN + 46, y + 4, KINDS[kind], "note")
        if self.halves:
            y += NAME_LINE
            yield _rect("half", MARGIN + 8, y - 6, 4, 12, 2)
            yield _rect("half", MARGIN + 24, y - 6, 4, 12, 2)
            joined = "the lines on the right join the two"
            joined += f", but for {hidden} that find no room" if (hidden := self.picture.hidden) else ""
            yield _text(MARGIN + 46, y + 4, f"enters an around, leaves it: {joined}", "note")
        for line in self.gave_way:
            y += NAME_LINE
            yield _text(MARGIN, y + 4, line, "note")


def _arrow(arrow: Arrow) -> Iterator[str]:
    edge = arrow.link.edge
    assert edge is not None
    yield f'<g class="edge" data-first="{escape(edge.first)}" data-then="{escape(edge.then)}">'
    yield f"<title>{escape(f'{edge.first} before {edge.then}: {KINDS[edge.kind]} ({place_of(edge)})')}</title>"
    if arrow.start:
        yield f'<g class="{arrow.kind}">{_line(arrow.kind, _path(arrow.start))}</g>'
    yield from _stroke(arrow.kind, arrow.corners)
    if arrow.branch:
        yield f'<circle{styled("knot")} cx="{_n(arrow.branch[0])}" cy="{_n(arrow.branch[1])}" r="2.2"/>'
    yield "</g>"


def _stroke(kind: EdgeKind, corners: tuple[XY, ...], hollow: str = "hollow") -> Iterator[str]:
    """Yield a line with an arrowhead at its end, drawn as the kind of edge is; `hollow` is the look of a gap in it."""
    (_, above), (x, y) = corners[-2:]
    along = (1, 0) if above == y else (0, 1)
    back = x - 6 * along[0], y - 6 * along[1]
    path = _path((*corners[:-1], back))
    yield f'<g class="{kind}">{_line(kind, path, hollow)}'
    wing = 3.5 * along[1], 3.5 * along[0]
    sides = [(back[0] - wing[0], back[1] - wing[1]), (x, y), (back[0] + wing[0], back[1] + wing[1])]
    yield f'<path{styled("tip")} d="M{"L".join(f"{_n(a)} {_n(b)}" for a, b in sides)}Z"/></g>'


def _line(kind: EdgeKind, path: str, hollow: str = "hollow") -> str:
    look = "line" if kind == "file" else f"line {kind}"
    line = f'<path{styled("grab")} d="{path}"/><path{styled(look)} d="{path}"/>'
    return f'{line}\n<path{styled(hollow)} d="{path}"/>' if kind == "class" else line


def _path(corners: Iterable[XY], radius: float = 3) -> str:
    """Return a way with rounded corners; its parts run straight across or straight down."""
    points = list(corners)
    path = f"M{_n(points[0][0])} {_n(points[0][1])}"
    for (before, corner), (_, after) in pairwise(pairwise(points)):
        near, far = _toward(corner, before, radius), _toward(corner, after, radius)
        path += f"L{_n(near[0])} {_n(near[1])}Q{_n(corner[0])} {_n(corner[1])} {_n(far[0])} {_n(far[1])}"
    return path + f"L{_n(points[-1][0])} {_n(points[-1][1])}"


def _toward(start: XY, goal: XY, length: float) -> XY:
    def step(a: float, b: float) -> float:
        return a + max(-length, min(length, b - a))

    return step(start[0], goal[0]), step(start[1], goal[1])


def _rail(rail: Rail) -> Iterator[str]:
    binding = rail.binding
    yield f'<g class="around" data-hook="{escape(binding.hook)}">'
    yield f"<title>{escape(f'{binding.hook}: {binding.method}')}</title>"
    near, far = _n(rail.x - 6), _n(rail.x)
    yield f'<path{styled("rail")} d="M{near} {_n(rail.top)}H{far}V{_n(rail.bottom)}H{near}"/>'
    for y in (rail.top, rail.bottom):
        yield _text(rail.x - 9, y + 3.5, binding.hook, "note", ' text-anchor="end"')
    yield "</g>"


def _rect(look: str, x: float, y: float, width: float, height: float, radius: float) -> str:
    box = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
    return f'<rect{styled(look)} {box} rx="{_n(radius)}"/>'


def _text(x: float, y: float, text: str, look: str = "", more: str = "") -> str:
    return f'<text{styled(look) if look else ""} x="{_n(x)}" y="{_n(y)}"{more}>{escape(text)}</text>'


def escape(text: str) -> str:
    """Return a text as it may stand in XML and HTML, between tags or in an attribute."""
    return escape_html(_FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text), quote=True)


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


_STYLE = """\
:root { --page: #ffffff; --ink: #1b1f24; --dim: #59616b; --edge: #c9cdd4; --mark: #fff1c2; color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --page: #15181c; --ink: #e8eaed; --dim: #a6adb7; --edge: #444b55; --mark: #4a3f1a; }
}
@page { margin: 14mm; }
body { margin: 24px; background: var(--page); color: var(--ink); font: 14px/1.45 system-ui, "DejaVu Sans", sans-serif; }
.picture { margin: 0 -16px; overflow-x: auto; }
h2 { margin: 28px 0 8px; font-size: 15px; }
table { border-collapse: collapse; }
th, td { padding: 4px 18px 4px 0; border-bottom: 1px solid var(--edge); text-align: left; vertical-align: top; }
th { font-weight: 600; white-space: nowrap; }
td { overflow-wrap: break-word; }
.plan .hook, .plan .around, tr[data-hook] { cursor: pointer; }
.plan.picked .edge { opacity: .12; }
.plan.picked .edge.on { opacity: 1; }
.plan .on .box { stroke-width: 2.6; }
.plan .on .line { stroke-width: 2.2; } .plan .on .line.class { stroke-width: 4.6; }
tr.on { background: var(--mark); }
@media print {
  :root { --page: #ffffff; --ink: #1b1f24; --dim: #59616b; --edge: #c9cdd4; color-scheme: light; }
  .picture { overflow: visible !important; }
  .picture svg { max-width: 100%; height: auto; max-height: 95vh; }
  body { margin: 0; font-size: 11px; }
  h2 { break-after: avoid; } tr, figure { break-inside: avoid; }
  .picture.long { margin: 0; break-inside: auto; } .picture.long svg { max-height: none; }
}"""

_SCRIPT = """\
const plan = document.querySelector("svg.plan");
let kept = null;
function show(hook) {
  plan.classList.toggle("picked", hook !== null);
  for (const part of document.querySelectorAll("[data-hook]"))
    part.classList.toggle("on", part.dataset.hook === hook);
  for (const edge of document.querySelectorAll("[data-first]"))
    edge.classList.toggle("on", [edge.dataset.first, edge.dataset.then].includes(hook));
}
for (const part of document.querySelectorAll("[data-hook]")) {
  part.addEventListener("mouseenter", () => show(part.dataset.hook));
  part.addEventListener("mouseleave", () => show(kept));
}
document.addEventListener("click", (event) => {
  const part = event.target.closest("[data-hook]");
  kept = part === null || part.dataset.hook === kept ? null : part.dataset.hook;
  show(kept);
});"""


def as_html(plan: Plan, title: str = "") -> str:
    """Draw every point that has bindings, and list hooks, firings and edges."""
    title = title or title_of(plan)
    look = "picture long" if lay_out(plan, top=0).goes_on else "picture"
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">',
            f'<head><meta charset="utf-8"/><title>{escape(title)}</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
            f"<style>\n{_STYLE}\n</style></head>",
            f'<body>\n<figure class="{look}">\n{as_svg(plan, title)}\n</figure>',
            *_hooks(plan),
            *_firings(plan),
            *_edges(plan),
            *_list("Edges that gave way", edges_that_gave_way(plan)),
            *_list("Warnings", map(_warning, plan.warnings)),
            *_list("Notes", map(_warning, plan.notes)),
            f"<script>\n{_SCRIPT}\n</script>\n</body></html>",
        ]
    )


def _hooks(plan: Plan) -> Iterator[str]:
    rows = (_row(_hook(hook), {"hook": hook.name}) for hook in plan.hooks)
    yield from _table("Hooks", ("hook", "what it is", "made of", "phase", "on error", "declared"), rows)


def _hook(hook: PlannedHook) -> Sequence[str]:
    made = f"{plain(hook.use)}({plain(hook.written_args)})"
    return hook.name, plain(hook.about), made, hook.phase, hook.on_error, plain(hook.where)


def _firings(plan: Plan) -> Iterator[str]:
    rows = (_row(_firing(plan, binding), {"hook": binding.hook}) for binding in plan.bindings)
    yield from _table("Firings, in their order", ("point", "hook", "method", "when", "slots"), rows)


def _firing(plan: Plan, binding: Binding) -> Sequence[str]:
    call = f"{binding.method}({', '.join(binding.takes)})"
    return binding.point, binding.hook, call, ", ".join(marks(plan, binding)), ", ".join(slots(binding))


def _edges(plan: Plan) -> Iterator[str]:
    rows = (
        _row(
            (edge.point, edge.first, edge.then, KINDS[edge.kind], place_of(edge)),
            {"first": edge.first, "then": edge.then},
        )
        for edge in plan.every_edge()
    )
    yield from _table("Edges", ("point", "first", "then", "why", "source"), rows)


def _warning(warning: Problem) -> str:
    parts = (f"{warning.where}:" if warning.where else "", warning.message, f"({warning.hint})" if warning.hint else "")
    return plain(" ".join(parts))


def _table(name: str, heads: Iterable[str], rows: Iterable[str]) -> Iterator[str]:
    body = [*rows]
    if body:
        yield f"<h2>{name}</h2>"
        yield f"<table><thead><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr></thead>"
        yield from ("<tbody>", *body, "</tbody></table>")


def _row(texts: Iterable[str], data: dict[str, str]) -> str:
    facts = "".join(f' data-{key}="{escape(value)}"' for key, value in data.items())
    return f"<tr{facts}>{''.join(f'<td>{escape(text)}</td>' for text in texts)}</tr>"


def _list(name: str, message: Iterable[str]) -> Iterator[str]:
    body = [f"<li>{escape(text)}</li>" for text in message]
    if body:
        yield from (f"<h2>{name}</h2>", "<ul>", *body, "</ul>")
