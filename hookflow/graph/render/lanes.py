"""Where everything of a picture stands: a lane for each point, a box for each binding, a way for each edge.

A point with more boxes than find room side by side has a lane for each row of them. All in pixels, from the upper left
corner.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hookflow.graph.links import bound_points
from hookflow.graph.plan import Binding, Plan
from hookflow.graph.points import Point
from hookflow.graph.render.rails import pairs
from hookflow.graph.render.row import (
    GAP,
    NAME_CELL,
    NAME_LINE,
    NOTE_CELL,
    NOTE_LINE,
    PAD,
    XY,
    Arrow,
    Box,
    Firings,
    Label,
    Net,
    Row,
    is_free,
)
from hookflow.graph.render.words import cells

MARGIN, INDENT = 16, 16
WIDTH = 1400  # of the lanes: a screen, or a landscape page on which the notes can still be read
RAILS = 200  # beside them, at the least


@dataclass(frozen=True, slots=True)
class Lane:
    """A point, or the `row`th of its `rows`: its notes at (`x`, middle), its boxes and its arrows."""

    point: Point
    row: int
    rows: int
    notes: tuple[str, ...]
    x: float
    y: float
    width: float
    height: float
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    labels: tuple[Label, ...]


@dataclass(frozen=True, slots=True)
class Rail:
    """An `around`: a line at `x` from the lane where it is entered down to the one where it is left."""

    binding: Binding
    x: float
    top: float
    bottom: float


@dataclass(frozen=True, slots=True)
class Picture:
    """Lanes from top to bottom, and beside them the rails, but for `hidden` ones that find no room."""

    lanes: tuple[Lane, ...]
    rails: tuple[Rail, ...]
    hidden: int
    width: float
    bottom: float

    @property
    def goes_on(self) -> bool:
        """Whether a point has more than one row."""
        return any(lane.rows > 1 for lane in self.lanes)


def lay_out(plan: Plan, top: float) -> Picture:
    """Place every point that has bindings, from `top` down."""
    points = bound_points(plan)
    outermost = min((point.depth for point in points), default=0)
    indents = [MARGIN + INDENT * (point.depth - outermost) for point in points]
    firings = [Firings(plan, point) for point in points]
    widest = _label_end(zip(points, indents, (len(found.bound) for found in firings), strict=True))
    places = [_wrapped(found, WIDTH - widest - 2 * PAD) for found in firings]
    start = _label_end(zip(points, indents, map(len, places), strict=True))
    blocks = [_rows(found, ranges, start) for found, ranges in zip(firings, places, strict=True)]
    right = max((row.right for rows in blocks for row in rows), default=start) + PAD
    if any(len(rows) > 1 for rows in blocks):
        right += PAD  # for the mark that a row goes on
    lanes: list[Lane] = []
    for rows, point, x in zip(blocks, points, indents, strict=True):
        found = [*_stacked(rows, point, x, right, top)]
        lanes += found
        top = found[-1].y + found[-1].height + 5
    rails, hidden = _rails(lanes, right)
    return Picture(tuple(lanes), rails, hidden, max([right, *(rail.x for rail in rails)]) + MARGIN, top - 5)


def _label_end(points: Iterable[tuple[Point, float, int]]) -> float:
    """Return where the boxes begin, right of the labels of the points, each with its indent and its number of rows."""
    ends = (x + PAD + _label_width(point, label_notes(point, rows, rows)) for point, x, rows in points)
    return max(ends, default=MARGIN) + 2 * PAD


def _label_width(point: Point, notes: Iterable[str]) -> float:
    return max([cells(point.name) * NAME_CELL, *(cells(note) * NOTE_CELL for note in notes)])


def label_notes(point: Point, row: int, rows: int) -> tuple[str, ...]:
    """Return which row of the point it is, if not the only one, and its kind, if not one that every trainer has."""
    kind = {
        "own": "own point",
        "module": "in the network",
        "state": "in the network",
        "global": "at every module",
        "parameter": "on parameters",
        "comm": "in DDP",
    }.get(point.kind, "")
    return (*([kind] if kind else ()), *([f"row {row} of {rows}"] if rows > 1 else ()))


def _rows(firings: Firings, places: Sequence[range], x: float) -> list[Row]:
    row_of = {place: number for number, members in enumerate(places, 1) for place in members}
    return [Row(firings, members, row_of.__getitem__, x) for members in places]


def _stacked(rows: Sequence[Row], point: Point, x: float, right: float, top: float) -> Iterator[Lane]:
    """Yield the lanes of a point, the first one at `top`."""
    starts: dict[Net, tuple[XY, ...]] = {}
    for number, row in enumerate(rows, 1):
        notes = label_notes(point, number, len(rows))
        label_height = 2 * 5 + NAME_LINE + len(notes) * NOTE_LINE
        height = row.top_height + max(row.box_height, label_height) + 2 * PAD
        y = top + PAD + row.top_height
        arrows = tuple(row.arrows(y, starts))
        starts |= row.starts(y)
        boxes, labels = tuple(row.boxes(y)), tuple(row.labels(y))
        yield Lane(point, number, len(rows), notes, x, top, right - x, height, boxes, arrows, labels)
        top += height + 2


def _wrapped(firings: Firings, room: float) -> list[range]:
    """Return the places of each row: as many boxes as find room, at least one."""
    rows: list[range] = []
    count = len(firings.bound)
    while (begin := rows[-1].stop if rows else 0) < count:
        end, right = begin + 1, firings.text_width(begin)
        while end < count and right + GAP + firings.text_width(end) <= room:
            right += GAP + firings.text_width(end)
            end += 1
        # a stub names a row, which is not known yet: its number has no more digits than there are boxes
        while end > begin + 1 and Row(firings, range(begin, end), lambda _: count, 0).right > room:
            end -= 1
        rows.append(range(begin, end))
    return rows


def _rails(lanes: Sequence[Lane], right: float) -> tuple[tuple[Rail, ...], int]:
    """Return a rail for each pair, the short ones nearest, and how many find no room.

    Those that do not overlap may share a column.
    """
    stands = [(k, box.binding) for k, lane in enumerate(lanes) for box in lane.boxes]
    found = pairs([binding for _, binding in stands])
    spans = [(stands[enter][0], stands[exit_][0] + 1, stands[enter][1]) for enter, exit_ in reversed(found)]
    columns: list[list[tuple[int, int]]] = []
    members: list[list[tuple[Binding, float, float]]] = []
    for upper, lower, binding in sorted(spans, key=lambda span: span[1] - span[0]):
        at = next((k for k, taken in enumerate(columns) if is_free(taken, (upper, lower))), len(columns))
        if at == len(columns):
            columns.append([])
            members.append([])
        columns[at].insert(bisect(columns[at], (upper, lower)), (upper, lower))
        top, bottom = (lane.y + lane.height / 2 for lane in (lanes[upper], lanes[lower - 1]))
        members[at].append((binding, top, bottom))
    rails: list[Rail] = []
    for column in members:
        right += max(cells(binding.hook) for binding, _, _ in column) * NOTE_CELL + 2 * PAD
        if right > WIDTH + RAILS:
            break
        rails += [Rail(binding, right, top, bottom) for binding, top, bottom in column]
    return tuple(rails), len(spans) - len(rails)
