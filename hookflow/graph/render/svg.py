"""A plan as a picture that stands alone, for light and dark.

It is an SVG without fonts, scripts or styles from elsewhere. It has the columns of the plan as
text: points as the loop nests them, edges, hooks in the order of firing, notes, and a rail for each
`around`. Strokes distinguish the kinds of edges: solid, double, dashed, dotted. A tooltip shows the
source of an edge. All lengths are in pixels.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape as escape_html
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

from rich.cells import cell_len

from hookflow.graph.plan import Binding, Edge, EdgeKind, Plan
from hookflow.graph.render.svg_layout import (
    BOX_HEIGHT,
    MARGIN,
    NAME_LINE,
    NOTE_CELL,
    NOTE_LINE,
    PAD,
    POINT_KINDS,
    TITLE_CELL,
    TRACK_SPACING,
    BindingRow,
    EdgeBundle,
    PictureLayout,
    Position,
    RailSpan,
)
from hookflow.graph.render.text import (
    EDGE_KIND_TEXTS,
    edges_that_gave_way,
    format_edge_place,
    list_marks,
    list_slots,
    plain,
    title_of,
)
from hookflow.text import wrapped

MIN_WIDTH = 680
"""The width of the legend."""

LIGHT_COLOURS = {
    "PAGE": "#ffffff",
    "LANE": "#f4f5f7",
    "EDGE": "#c9cdd4",
    "BOX": "#ffffff",
    "INK": "#1b1f24",
    "DIM": "#59616b",
}
DARK_COLOURS = {
    "PAGE": "#15181c",
    "LANE": "#1e2228",
    "EDGE": "#444b55",
    "BOX": "#2a2f37",
    "INK": "#e8eaed",
    "DIM": "#a6adb7",
}

_SHAPE_STYLE = """\
.plan { font: 12px 'DejaVu Sans Mono', Menlo, Consolas, monospace; }
.plan .title { font: bold 15px system-ui, 'DejaVu Sans', Helvetica, Arial, sans-serif; }
.plan .name { font-weight: bold; }
.plan .note { font-size: 10px; }
.plan .line, .plan .rail { fill: none; stroke-width: 1.2; }
.plan .line.class { stroke-width: 3.6; }
.plan .line.flow { stroke-dasharray: 6 3; }
.plan .line.nesting { stroke-dasharray: 1.5 2.5; }
.plan .hollow { fill: none; stroke-width: 1.4; }
.plan .grab { fill: none; stroke-width: 8; pointer-events: stroke; }"""

_COLOUR_STYLE = """\
svg.plan { fill: INK; } .plan .note { fill: DIM; } .plan .page { fill: PAGE; }
.plan .lane { fill: LANE; stroke: EDGE; } .plan .box { fill: BOX; stroke: INK; }
.plan .line { stroke: INK; } .plan .rail { stroke: DIM; }
.plan .hollow { stroke: LANE; } .plan .hollow.below { stroke: PAGE; }"""


def style_sheet() -> str:
    """Return the style sheet, with the dark colours on a screen where the system is dark."""
    light = _fill_colours(LIGHT_COLOURS)
    dark = _fill_colours(DARK_COLOURS)
    return f"{_SHAPE_STYLE}\n{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}"


def _fill_colours(colours: Mapping[str, str]) -> str:
    return re.sub("[A-Z]{3,}", lambda name: colours[name[0]], _COLOUR_STYLE)


_FORBIDDEN_CHARACTERS = re.compile(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot represent, not even escaped."""


def as_svg(plan: Plan, title: str = "", times: Mapping[int, str] = MappingProxyType({})) -> str:
    """Draw every point that has bindings; of a run, with what they took, by their ids."""
    drawing = _SvgDrawing(plan, title or title_of(plan), times)
    return "\n".join(drawing.lines())


@dataclass(frozen=True, slots=True)
class LegendLine:
    """A line below the picture, with the sign that it explains, if it does."""

    text: str
    sign: EdgeKind | Literal["halves", ""] = ""


class _SvgDrawing:
    """Writes a picture, line by line."""

    def __init__(self, plan: Plan, title: str, times: Mapping[int, str]) -> None:
        self.plan = plan
        self.title = title
        self.layout = PictureLayout(plan, MARGIN + 32, times)
        title_width = cell_len(title) * TITLE_CELL + 2 * MARGIN
        self.width = max(self.layout.right + MARGIN, title_width, MIN_WIDTH)
        self.legend = list(self._iter_legend_lines())

    def lines(self) -> Iterator[str]:
        legend_y = self.layout.bottom + 2 * PAD
        height = legend_y + len(self.legend) * NAME_LINE + MARGIN
        width = _number(self.width)
        size = f'width="{width}" height="{_number(height)}" viewBox="0 0 {width} {_number(height)}"'
        name = 'role="img" aria-labelledby="title desc"'
        yield f'<svg xmlns="http://www.w3.org/2000/svg" {name} {size} class="plan">'
        yield f'<title id="title">{escape(self.title)}</title>'
        yield f'<desc id="desc">{escape(self._description())}</desc>'
        yield f"<style>\n{style_sheet()}\n</style>"
        yield '<rect class="page" width="100%" height="100%"/>'
        yield _text(MARGIN, MARGIN + 14, self.title, "title")
        for point in self.layout.points:
            yield from self._point(point.name)
        for rail, column in self.layout.rails:
            yield self._draw_rail(rail, self.layout.rails_x + (column + 1) * TRACK_SPACING)
        yield from self._draw_legend(legend_y)
        yield "</svg>"

    def _description(self) -> str:
        """Return the picture in words, for those who cannot see it."""
        sentences = ["The points of the run from top to bottom, each with its hooks as they fire."]
        for point, hooks in self.plan.order.items():
            sentences.append(f"{point}: {', '.join(hooks)}.")
        return " ".join(sentences)

    def _point(self, name: str) -> Iterator[str]:
        point = self.plan.points[name]
        x = self.layout.indents[name]
        top, bottom = self.layout.lanes[name]
        baseline = top + PAD / 2 + 15
        yield f'<g class="point" data-point="{escape(name)}">'
        yield _title(f"{name}: {point.about}")
        yield _draw_rect("lane", x, top, self.width - MARGIN - x, bottom - top, 5)
        yield _text(x + PAD, baseline, name)
        kind = POINT_KINDS.get(point.kind)
        if kind:
            yield _text(x + PAD, baseline + NOTE_LINE, kind, "note")
        rows = [self.layout.rows[binding.id] for binding in self.plan.at(name)]
        for row in rows:
            for bundle in row.outs:
                for edge in self.layout.edges[bundle]:
                    yield from self._draw_arrow(bundle, edge)
        for row in rows:
            yield from self._row(row)
        yield "</g>"

    def _row(self, row: BindingRow) -> Iterator[str]:
        binding = row.binding
        x = self.layout.boxes_x
        baseline = row.y + 15
        yield f'<g class="hook" data-hook="{escape(binding.hook)}">'
        yield _title(self._format_tooltip(binding))
        yield _draw_rect("box", x, row.y, row.width, row.box_height, 4)
        if binding.half == "enter":
            yield _draw_rect("half", x, row.y, row.width, 3, 2)
        elif binding.half == "exit":
            yield _draw_rect("half", x, row.y + row.box_height - 3, row.width, 3, 2)
        yield _text(x + PAD, baseline, binding.hook, "name")
        for number, note in enumerate(row.notes):
            yield _text(self.layout.notes_x, baseline + number * NOTE_LINE, note, "note")
        yield "</g>"

    def _format_tooltip(self, binding: Binding) -> str:
        hook = self.plan.hook(binding.hook)
        about = [hook.name, plain(hook.about)]
        about.append(f"{plain(hook.use)}({plain(hook.written_args)})")
        about.append(f"{binding.method}({', '.join(binding.takes)})")
        about += list_marks(self.plan, binding)
        about += list_slots(binding)
        about.append(plain(hook.where))
        return "\n".join(line for line in about if line)

    def _draw_arrow(self, bundle: EdgeBundle, edge: Edge) -> Iterator[str]:
        corners = self.layout.corners(bundle, edge)
        yield f'<g class="edge" data-first="{escape(edge.first)}" data-then="{escape(edge.then)}">'
        yield _title(
            f"{edge.first} before {edge.then}: {EDGE_KIND_TEXTS[edge.kind]}"
            f" ({format_edge_place(edge)})"
        )
        yield _stroke(edge.kind, corners)
        if self.layout.is_continued(bundle, edge):
            x, y = corners[2]
            yield f'<circle class="knot" cx="{_number(x)}" cy="{_number(y)}" r="2.2"/>'
        yield "</g>"

    def _draw_rail(self, rail: RailSpan, x: float) -> str:
        first = self.layout.bindings[rail.first]
        last = self.layout.bindings[rail.last]
        top = _number(self.layout.rows[first.id].y + BOX_HEIGHT / 2)
        bottom = _number(self.layout.rows[last.id].y + BOX_HEIGHT / 2)
        left = _number(x - 6)
        style = ""
        if rail.is_thread:
            style = ' style="stroke-width: 3"'
        back = ""
        if rail.joins:
            back = f"H{left}"
        path = f'<path class="rail"{style} d="M{left} {top}H{_number(x)}V{bottom}{back}"/>'
        return (
            '<g class="around"'
            f' data-hook="{escape(first.hook)}">\n{_title(rail.title)}\n{path}\n</g>'
        )

    def _iter_legend_lines(self) -> Iterator[LegendLine]:
        """Yield what stands below the picture: what its signs mean, then which edges gave way."""
        yield LegendLine("from top to bottom: the order of firing")
        kinds = {edge.kind for edge in self.plan.edges}
        for kind, text in EDGE_KIND_TEXTS.items():
            if kind in kinds:
                yield LegendLine(text, kind)
        if any(binding.half != "whole" for binding in self.plan.bindings):
            yield LegendLine(
                "enters an around, leaves it: the lines on the right join the two", "halves"
            )
        if any(rail.is_thread for rail, _ in self.layout.rails):
            yield LegendLine(
                "thick lines on the right: beside the training, until the run waits for the hook"
            )
        width = int((self.width - 2 * MARGIN) / NOTE_CELL) - 2
        for sentence in edges_that_gave_way(self.plan):
            for line in wrapped(sentence, width):
                yield LegendLine(line)

    def _draw_legend(self, y: float) -> Iterator[str]:
        for number, line in enumerate(self.legend):
            middle = y + 8 + number * NAME_LINE
            text_x = MARGIN
            if line.sign == "halves":
                yield _draw_rect("half", MARGIN, middle - 6, 16, 3, 2)
                yield _draw_rect("half", MARGIN + 20, middle + 2, 16, 3, 2)
                text_x += 46
            elif line.sign:
                yield _stroke(
                    line.sign, [(MARGIN, middle), (MARGIN + 36, middle)], hollow="hollow below"
                )
                text_x += 46
            yield _text(text_x, middle + 4, line.text, "note")


def _stroke(kind: EdgeKind, corners: list[Position], hollow: str = "hollow") -> str:
    """Return a line with an arrowhead at its right end, drawn as the kind of edge is.

    `hollow` is the gap in it.
    """
    x, y = corners[-1]
    path = _path([*corners[:-1], (x - 6, y)])
    if kind == "file":
        look = "line"
    else:
        look = f"line {kind}"
    parts = [f'<path class="grab" d="{path}"/>', f'<path class="{look}" d="{path}"/>']
    if kind == "class":
        parts.append(f'<path class="{hollow}" d="{path}"/>')
    back = _number(x - 6)
    tip = f"M{back} {_number(y - 3.5)}L{_number(x)} {_number(y)}L{back} {_number(y + 3.5)}Z"
    parts.append(f'<path class="tip" d="{tip}"/>')
    return f'<g class="{kind}">{"".join(parts)}</g>'


def _path(corners: list[Position], radius: float = 3) -> str:
    """Return a way with rounded corners; its parts run straight across or straight down."""
    path = f"M{_format_position(corners[0])}"
    for (before, corner), (_, after) in pairwise(pairwise(corners)):
        near = _move_towards(corner, before, radius)
        far = _move_towards(corner, after, radius)
        path += f"L{_format_position(near)}Q{_format_position(corner)} {_format_position(far)}"
    return f"{path}L{_format_position(corners[-1])}"


def _move_towards(start: Position, goal: Position, length: float) -> Position:
    """Return the position that is `length` from the start towards the goal, along each axis."""
    x = start[0] + _limit(goal[0] - start[0], length)
    y = start[1] + _limit(goal[1] - start[1], length)
    return x, y


def _limit(distance: float, length: float) -> float:
    return max(-length, min(length, distance))


def _draw_rect(look: str, x: float, y: float, width: float, height: float, radius: float) -> str:
    box = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
    return f'<rect class="{look}" {box} rx="{_number(radius)}"/>'


def _text(x: float, y: float, text: str, look: str = "") -> str:
    kind = ""
    if look:
        kind = f' class="{look}"'
    return f'<text{kind} x="{_number(x)}" y="{_number(y)}">{escape(text)}</text>'


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def escape(text: str) -> str:
    """Return a text as it may stand in XML and HTML, between tags or in an attribute."""
    return escape_html(_FORBIDDEN_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", text), quote=True)


def _format_position(position: Position) -> str:
    x, y = position
    return f"{_number(x)} {_number(y)}"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
