"""A plan as a picture that stands alone: SVG without fonts, scripts or styles from elsewhere, for light and dark.

It has the columns of the plan as text: points as the loop nests them, edges, hooks in the order of firing, notes, and
a rail for each `around`. Strokes distinguish the kinds of edges: solid, double, dashed, dotted. A tooltip shows the
source of an edge. All lengths are in pixels. `as_html` puts it on a page.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape as escape_html
from itertools import pairwise
from types import MappingProxyType
from typing import Literal, NamedTuple

from rich.cells import cell_len

from hookflow.errors import Problem
from hookflow.graph.offload import threads
from hookflow.graph.plan import Binding, Edge, EdgeKind, Plan
from hookflow.graph.points import Kind
from hookflow.graph.render.text import (
    KINDS,
    columns,
    edges_that_gave_way,
    marks,
    pairs,
    place_of,
    plain,
    slots,
    title_of,
    with_commas,
)
from hookflow.text import wrapped, wrapped_phrases

NAME_CELL, NOTE_CELL, TITLE_CELL = 7.4, 6.2, 9.5
"""Width of a sign: monospaced at 12 and at 10 pixels, bold at 15. It is wider than that of any common font."""
NAME_LINE, NOTE_LINE = 16, 13
PAD, MARGIN, INDENT = 8, 16, 16
BOX = 22  # the height of a hook with up to two arrows
PORT = 8  # between two arrows at a box
TRACK = 8  # between two arrows that run downwards, or two rails
NOTE_CELLS = 72
LEAST_WIDTH = 680  # of the legend

LIGHT = {"PAGE": "#ffffff", "LANE": "#f4f5f7", "EDGE": "#c9cdd4", "BOX": "#ffffff", "INK": "#1b1f24", "DIM": "#59616b"}
DARK = {"PAGE": "#15181c", "LANE": "#1e2228", "EDGE": "#444b55", "BOX": "#2a2f37", "INK": "#e8eaed", "DIM": "#a6adb7"}

_SHAPES = """\
.plan { font: 12px 'DejaVu Sans Mono', Menlo, Consolas, monospace; }
.plan .title { font: bold 15px system-ui, 'DejaVu Sans', Helvetica, Arial, sans-serif; }
.plan .name { font-weight: bold; }
.plan .note { font-size: 10px; }
.plan .line, .plan .rail { fill: none; stroke-width: 1.2; }
.plan .line.class { stroke-width: 3.6; }
.plan .line.flow { stroke-dasharray: 6 3; }
.plan .line.pair { stroke-dasharray: 1.5 2.5; }
.plan .hollow { fill: none; stroke-width: 1.4; }
.plan .grab { fill: none; stroke-width: 8; pointer-events: stroke; }"""

_COLOURS = """\
svg.plan { fill: INK; } .plan .note { fill: DIM; } .plan .page { fill: PAGE; }
.plan .lane { fill: LANE; stroke: EDGE; } .plan .box { fill: BOX; stroke: INK; }
.plan .line { stroke: INK; } .plan .rail { stroke: DIM; }
.plan .hollow { stroke: LANE; } .plan .hollow.below { stroke: PAGE; }"""


def style_sheet() -> str:
    """Return the style sheet, with the dark colours on a screen where the system is dark."""
    return f"{_SHAPES}\n{_coloured(LIGHT)}\n@media screen and (prefers-color-scheme: dark) {{\n{_coloured(DARK)}\n}}"


def _coloured(colours: Mapping[str, str]) -> str:
    return re.sub("[A-Z]{3,}", lambda name: colours[name[0]], _COLOURS)


_FORBIDDEN = re.compile(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot represent, not even escaped."""

_KINDS: dict[Kind, str] = {
    "own": "own point",
    "module": "in the network",
    "state": "in the network",
    "global": "at every module",
    "parameter": "on parameters",
    "comm": "in DDP",
}
"""The line below the name of a point that not every trainer has."""

XY = tuple[float, float]
Net = tuple[int, EdgeKind]
"""The edges of one kind that leave one row."""


@dataclass(slots=True)
class Row:
    """A binding, its notes, and the nets whose arrows end and begin at its box."""

    binding: Binding
    notes: list[str]
    ins: list[Net] = field(default_factory=list)
    outs: list[Net] = field(default_factory=list)
    y: float = 0

    @property
    def width(self) -> float:
        return cell_len(self.binding.hook) * NAME_CELL + 2 * PAD

    @property
    def box_height(self) -> float:
        return max(BOX, (len(self.ins) + len(self.outs) + 1) * PORT)

    @property
    def height(self) -> float:
        return max(self.box_height, len(self.notes) * NOTE_LINE + PAD)

    def port(self, net: Net, begins: bool) -> float:
        """Return where an arrow ends, or begins, at the left of the box: those that end are above."""
        place = len(self.ins) + self.outs.index(net) if begins else self.ins.index(net)
        return self.y + self.box_height * (place + 1) / (len(self.ins) + len(self.outs) + 1)


class Rail(NamedTuple):
    """A line on the right, from row to row: that of an around, or of the thread of an offloaded hook."""

    first: int
    last: int
    title: str
    is_thread: bool = False
    joins: bool = True


class Picture:
    """Where everything stands: the rows of each point, the arrows with their tracks, the rails of the arounds."""

    def __init__(self, plan: Plan, top: float, times: Mapping[int, str] = MappingProxyType({})) -> None:
        every = [binding for point in plan.bound_points for binding in plan.at(point.name)]
        self.points = plan.bound_points
        self.rows = {binding.id: Row(binding, []) for binding in every}
        place = {id_: k for k, id_ in enumerate(self.rows)}
        nets: dict[Net, list[Edge]] = {}
        for edge in plan.edges:
            nets.setdefault((edge.first_id, edge.kind), []).append(edge)
        spans = {net: (place[net[0]], max(place[edge.then_id] for edge in edges)) for net, edges in nets.items()}
        ordered = sorted(spans, key=lambda net: (spans[net][0], -spans[net][1]))
        self._tracks = dict(zip(ordered, columns(spans[net] for net in ordered), strict=True))
        self.edges = {net: nets[net] for net in ordered}
        for net, edges in self.edges.items():
            self.rows[net[0]].outs.append(net)
            for edge in edges:
                self.rows[edge.then_id].ins.append(net)
        for row in self.rows.values():
            notes = with_commas([*marks(plan, row.binding), *slots(row.binding)])
            row.notes = [*filter(None, [times.get(row.binding.id)]), *wrapped_phrases(notes, NOTE_CELLS)]
        self._place_columns(plan)
        self._place_rows(plan, top)
        rails = [Rail(first, last, f"{every[first].hook}: {every[first].method}") for first, last in pairs(every)]
        beside = "at work beside the training until the run waits for it"
        rails += [Rail(*each[:2], f"{each.hook}: {beside}", True, each.joins) for each in threads(plan, every)]
        rails.sort()
        self.every = every
        self.rails = [*zip(rails, columns(rail[:2] for rail in rails), strict=True)]
        self.right = self.rails_x + (max((track for _, track in self.rails), default=-1) + 2) * TRACK
        self._ends = {net: every[spans[net][1]].id for net in self.edges}

    def _place_columns(self, plan: Plan) -> None:
        outermost = min((point.depth for point in self.points), default=0)
        self.indents = {point.name: MARGIN + INDENT * (point.depth - outermost) for point in self.points}
        labels = [
            self.indents[point.name]
            + max(cell_len(point.name) * NAME_CELL, cell_len(_KINDS.get(point.kind, "")) * NOTE_CELL)
            for point in self.points
        ]
        self._used = {point.name: 0 for point in self.points}  # how many tracks each point has
        for net, edges in self.edges.items():
            self._used[edges[0].point] = max(self._used[edges[0].point], self._tracks[net] + 1)
        tracks = max(self._used.values(), default=0) * TRACK
        self.boxes_x = max(labels, default=MARGIN) + 2 * PAD + (tracks + 2 * PAD if tracks else 0)
        self.notes_x = self.boxes_x + max((row.width for row in self.rows.values()), default=0) + PAD
        notes = max((cell_len(note) for row in self.rows.values() for note in row.notes), default=0)
        self.rails_x = self.notes_x + notes * NOTE_CELL + PAD

    def _place_rows(self, plan: Plan, top: float) -> None:
        """Give each row its place, and each point the lane behind its rows: from where to where it is."""
        self.lanes: dict[str, tuple[float, float]] = {}
        for point in self.points:
            y = top + PAD / 2
            for binding in plan.at(point.name):
                row = self.rows[binding.id]
                row.y = y
                y += row.height + PAD / 2
            bottom = max(y, top + PAD / 2 + BOX + NOTE_LINE) if point.kind in _KINDS else y
            self.lanes[point.name] = top, bottom
            top = bottom + 4
        self.bottom = top

    def corners(self, net: Net, edge: Edge) -> list[XY]:
        """Return the way of an arrow: from its box to its track, down, and to the box where it ends."""
        begin, end = self.rows[edge.first_id].port(net, True), self.rows[edge.then_id].port(net, False)
        x = self.boxes_x - 2 * PAD - TRACK * (self._used[edge.point] - 1 - self._tracks[net])
        return [(self.boxes_x, begin), (x, begin), (x, end), (self.boxes_x, end)]

    def goes_on(self, net: Net, edge: Edge) -> bool:
        """Say whether the track of an arrow leads on to a box further down."""
        return edge.then_id != self._ends[net]


def as_svg(plan: Plan, title: str = "", times: Mapping[int, str] = MappingProxyType({})) -> str:
    """Draw every point that has bindings; of a run, with what they took, by their ids."""
    return "\n".join(_Drawing(plan, title or title_of(plan), times).lines())


class _Drawing:
    def __init__(self, plan: Plan, title: str, times: Mapping[int, str]) -> None:
        self.plan = plan
        self.title = title
        self.picture = Picture(plan, MARGIN + 32, times)
        self.width = max(self.picture.right + MARGIN, cell_len(title) * TITLE_CELL + 2 * MARGIN, LEAST_WIDTH)

    def lines(self) -> Iterator[str]:
        picture = self.picture
        height = picture.bottom + 2 * PAD + len([*self._explanations()]) * NAME_LINE + MARGIN
        size = f'width="{_n(self.width)}" height="{_n(height)}" viewBox="0 0 {_n(self.width)} {_n(height)}"'
        name = 'role="img" aria-labelledby="title desc"'
        yield f'<svg xmlns="http://www.w3.org/2000/svg" {name} {size} class="plan">'
        yield f'<title id="title">{escape(self.title)}</title>'
        order = (f"{point}: {', '.join(hooks)}." for point, hooks in self.plan.order.items())
        described = "The points of the run from top to bottom, each with its hooks as they fire"
        yield f'<desc id="desc">{escape(" ".join([f"{described}.", *order]))}</desc>'
        yield f"<style>\n{style_sheet()}\n</style>"
        yield '<rect class="page" width="100%" height="100%"/>'
        yield _text(MARGIN, MARGIN + 14, self.title, "title")
        for point in picture.points:
            yield from self._point(point.name)
        for rail, track in picture.rails:
            yield self._rail(rail, picture.rails_x + (track + 1) * TRACK)
        yield from self._legend(picture.bottom + 2 * PAD)
        yield "</svg>"

    def _point(self, name: str) -> Iterator[str]:
        picture, point = self.picture, self.plan.points[name]
        x, (top, bottom) = picture.indents[name], picture.lanes[name]
        yield f'<g class="point" data-point="{escape(name)}">'
        yield f"<title>{escape(f'{name}: {point.about}')}</title>"
        yield _rect("lane", x, top, self.width - MARGIN - x, bottom - top, 5)
        yield _text(x + PAD, top + PAD / 2 + 15, name)
        if kind := _KINDS.get(point.kind):
            yield _text(x + PAD, top + PAD / 2 + 15 + NOTE_LINE, kind, "note")
        rows = [picture.rows[binding.id] for binding in self.plan.at(name)]
        for row in rows:
            for net in row.outs:
                for edge in picture.edges[net]:
                    yield from self._arrow(net, edge)
        for row in rows:
            yield from self._row(row)
        yield "</g>"

    def _row(self, row: Row) -> Iterator[str]:
        binding, x = row.binding, self.picture.boxes_x
        hook = self.plan.hook(binding.hook)
        call = f"{plain(hook.use)}({plain(hook.written_args)})"
        about = [hook.name, plain(hook.about), call, f"{binding.method}({', '.join(binding.takes)})"]
        about += [*marks(self.plan, binding), *slots(binding), plain(hook.where)]
        yield f'<g class="hook" data-hook="{escape(binding.hook)}">'
        tooltip = "\n".join(line for line in about if line)
        yield f"<title>{escape(tooltip)}</title>"
        yield _rect("box", x, row.y, row.width, row.box_height, 4)
        if binding.half != "whole":
            y = row.y if binding.half == "enter" else row.y + row.box_height - 3
            yield _rect("half", x, y, row.width, 3, 2)
        yield _text(x + PAD, row.y + 15, binding.hook, "name")
        for k, note in enumerate(row.notes):
            yield _text(self.picture.notes_x, row.y + 15 + k * NOTE_LINE, note, "note")
        yield "</g>"

    def _arrow(self, net: Net, edge: Edge) -> Iterator[str]:
        corners = self.picture.corners(net, edge)
        yield f'<g class="edge" data-first="{escape(edge.first)}" data-then="{escape(edge.then)}">'
        yield f"<title>{escape(f'{edge.first} before {edge.then}: {KINDS[edge.kind]} ({place_of(edge)})')}</title>"
        yield _stroke(edge.kind, corners)
        if self.picture.goes_on(net, edge):
            x, y = corners[2]
            yield f'<circle class="knot" cx="{_n(x)}" cy="{_n(y)}" r="2.2"/>'
        yield "</g>"

    def _rail(self, rail: Rail, x: float) -> str:
        bindings = [self.picture.every[row] for row in rail[:2]]
        top, bottom = (self.picture.rows[binding.id].y + BOX / 2 for binding in bindings)
        look, back = ' style="stroke-width: 3"' * rail.is_thread, f"H{_n(x - 6)}" if rail.joins else ""
        path = f'<path class="rail"{look} d="M{_n(x - 6)} {_n(top)}H{_n(x)}V{_n(bottom)}{back}"/>'
        title = f"<title>{escape(rail.title)}</title>"
        return f'<g class="around" data-hook="{escape(bindings[0].hook)}">\n{title}\n{path}\n</g>'

    def _explanations(self) -> Iterator[tuple[EdgeKind | Literal["halves", ""], str]]:
        """Yield what stands below the picture, with the sign that it explains: then, which edges gave way."""
        yield "", "from top to bottom: the order of firing"
        kinds = {edge.kind for edge in self.plan.edges}
        yield from ((kind, text) for kind, text in KINDS.items() if kind in kinds)
        if any(binding.half != "whole" for binding in self.plan.bindings):
            yield "halves", "enters an around, leaves it: the lines on the right join the two"
        if any(rail.is_thread for rail, _ in self.picture.rails):
            yield "", "thick lines on the right: beside the training, until the run waits for the hook"
        width = int((self.width - 2 * MARGIN) / NOTE_CELL) - 2
        yield from (("", line) for sentence in edges_that_gave_way(self.plan) for line in wrapped(sentence, width))

    def _legend(self, y: float) -> Iterator[str]:
        for k, (sign, text) in enumerate(self._explanations()):
            middle = y + 8 + k * NAME_LINE
            if sign == "halves":
                yield _rect("half", MARGIN, middle - 6, 16, 3, 2)
                yield _rect("half", MARGIN + 20, middle + 2, 16, 3, 2)
            elif sign:
                yield _stroke(sign, [(MARGIN, middle), (MARGIN + 36, middle)], hollow="hollow below")
            yield _text(MARGIN + 46 if sign else MARGIN, middle + 4, text, "note")


def _stroke(kind: EdgeKind, corners: list[XY], hollow: str = "hollow") -> str:
    """Return a line with an arrowhead at its right end, drawn as the kind of edge is; `hollow` is the gap in it."""
    x, y = corners[-1]
    path = _path([*corners[:-1], (x - 6, y)])
    look = "line" if kind == "file" else f"line {kind}"
    line = f'<path class="grab" d="{path}"/><path class="{look}" d="{path}"/>'
    line += f'<path class="{hollow}" d="{path}"/>' if kind == "class" else ""
    tip = f'<path class="tip" d="M{_n(x - 6)} {_n(y - 3.5)}L{_n(x)} {_n(y)}L{_n(x - 6)} {_n(y + 3.5)}Z"/>'
    return f'<g class="{kind}">{line}{tip}</g>'


def _path(corners: list[XY], radius: float = 3) -> str:
    """Return a way with rounded corners; its parts run straight across or straight down."""
    path = f"M{_n(corners[0][0])} {_n(corners[0][1])}"
    for (before, corner), (_, after) in pairwise(pairwise(corners)):
        near, far = _toward(corner, before, radius), _toward(corner, after, radius)
        path += f"L{_n(near[0])} {_n(near[1])}Q{_n(corner[0])} {_n(corner[1])} {_n(far[0])} {_n(far[1])}"
    return path + f"L{_n(corners[-1][0])} {_n(corners[-1][1])}"


def _toward(start: XY, goal: XY, length: float) -> XY:
    x, y = (a + max(-length, min(length, b - a)) for a, b in zip(start, goal, strict=True))
    return x, y


def _rect(look: str, x: float, y: float, width: float, height: float, radius: float) -> str:
    box = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
    return f'<rect class="{look}" {box} rx="{_n(radius)}"/>'


def _text(x: float, y: float, text: str, look: str = "") -> str:
    kind = f' class="{look}"' if look else ""
    return f'<text{kind} x="{_n(x)}" y="{_n(y)}">{escape(text)}</text>'


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
  .picture svg { max-width: 100%; height: auto; }
  body { margin: 0; font-size: 11px; }
  .picture { margin: 0; }
  h2 { break-after: avoid; } tr { break-inside: avoid; }
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
            *_table("Hooks", "hook, what it is, made of, phase, on error, declared", {"hook": 0}, hooks),
            *_table("Firings, in their order", "point, hook, method, when, slots", {"hook": 1}, firings),
            *_table("Edges", "point, first, then, why, source", {"first": 1, "then": 2}, edges),
            *_list("Edges that gave way", edges_that_gave_way(plan)),
            *_list("Warnings", map(_warning, plan.warnings)),
            *_list("Notes", map(_warning, plan.notes)),
            f"<script>\n{_SCRIPT}\n</script>\n</body></html>",
        ]
    )


def _warning(warning: Problem) -> str:
    parts = (f"{warning.where}:" if warning.where else "", warning.message, f"({warning.hint})" if warning.hint else "")
    return plain(" ".join(parts))


def _table(name: str, heads: str, data: Mapping[str, int], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table, if it has rows; `data` are the columns that are attributes of a row, too, by their names."""
    body = []
    for row in rows:
        facts = "".join(f' data-{key}="{escape(row[column])}"' for key, column in data.items())
        body.append(f"<tr{facts}>{''.join(f'<td>{escape(plain(cell))}</td>' for cell in row)}</tr>")
    if body:
        yield f"<h2>{name}</h2>"
        yield f"<table><thead><tr>{''.join(f'<th>{head}</th>' for head in heads.split(', '))}</tr></thead>"
        yield from ("<tbody>", *body, "</tbody></table>")


def _list(name: str, texts: Iterable[str]) -> Iterator[str]:
    body = [f"<li>{escape(text)}</li>" for text in texts]
    if body:
        yield from (f"<h2>{name}</h2>", "<ul>", *body, "</ul>")
