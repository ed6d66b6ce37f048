"""Where everything of a picture stands: a lane for each point, a box for each binding, a way for each edge.

In a lane the boxes stand side by side in the order of firing. An edge to the next box is a straight arrow; the others
rise from the box, run along a track above the lane's boxes and come down on the box that waits. Edges of one kind that
leave one box share its track. All in pixels, from the upper left corner.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hookflow.graph.links import Link, bound_points, stated
from hookflow.graph.plan import Binding, EdgeKind, Plan
from hookflow.graph.points import Point
from hookflow.graph.render.rails import pairs
from hookflow.graph.render.words import cells, marks, slots, wrapped

NAME_CELL, NOTE_CELL = 7.4, 6.2
"""Width of a sign of a monospaced font, at 12 and at 10 pixels: wider than that of any common one."""
NAME_LINE, NOTE_LINE = 16, 13
MARGIN, INDENT, PAD = 16, 16, 8
GAP = 26  # between two boxes: room for an arrow
PORT = 9  # between two arrows at the top of a box
TRACK = 8
NOTE_CELLS = 24

XY = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Box:
    """A binding: its name, and `notes` below it, one a line."""

    binding: Binding
    notes: tuple[str, ...]
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Arrow:
    """An edge: its corners, and where it leaves a track that runs on, if it does."""

    link: Link
    kind: EdgeKind
    corners: tuple[XY, ...]
    branch: XY | None = None


@dataclass(frozen=True, slots=True)
class Lane:
    """A point with its label at (`x`, middle), its boxes and its arrows."""

    point: Point
    x: float
    y: float
    width: float
    height: float
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


@dataclass(frozen=True, slots=True)
class Rail:
    """An `around`: a line at `x` from the lane where it is entered down to the one where it is left."""

    binding: Binding
    x: float
    top: float
    bottom: float


@dataclass(frozen=True, slots=True)
class Picture:
    """Lanes from top to bottom, and beside them the rails."""

    lanes: tuple[Lane, ...]
    rails: tuple[Rail, ...]
    width: float
    bottom: float


def lay_out(plan: Plan, top: float) -> Picture:
    """Place every point that has bindings, from `top` down."""
    points = bound_points(plan)
    outermost = min((point.depth for point in points), default=0)
    indents = [MARGIN + INDENT * (point.depth - outermost) for point in points]
    label_ends = [x + PAD + label_width(point) for x, point in zip(indents, points, strict=True)]
    start = max(label_ends, default=MARGIN) + 2 * PAD
    rows = [_Row(plan, point, start) for point in points]
    right = max((row.right for row in rows), default=start) + PAD
    lanes = []
    for row, point, x in zip(rows, points, indents, strict=True):
        boxes, arrows = row.placed(top + PAD)
        lanes.append(Lane(point, x, top, right - x, row.height + 2 * PAD, boxes, arrows))
        top += row.height + 2 * PAD + 5
    rails = _rails(lanes, right)
    return Picture(tuple(lanes), rails, max([right, *(rail.x for rail in rails)]) + MARGIN, top - 5)


def label_width(point: Point) -> float:
    return max(cells(point.name) * NAME_CELL, cells(label_note(point)) * NOTE_CELL)


def label_note(point: Point) -> str:
    """Return what kind of point it is, if it is not one that every trainer has."""
    return {
        "own": "own point",
        "module": "in the network",
        "state": "in the network",
        "global": "at every module",
        "parameter": "on parameters",
        "comm": "in DDP",
    }.get(point.kind, "")


class _Row:
    """The boxes of one point, and the nets between them: (row of the source, kind) to the links that leave there."""

    def __init__(self, plan: Plan, point: Point, x: float) -> None:
        bound = plan.at(point.name)
        self.bound = bound
        place = {binding.id: k for k, binding in enumerate(bound)}
        self.straight: list[tuple[int, Link]] = []
        self.nets: dict[tuple[int, EdgeKind], list[tuple[int, Link]]] = {}
        for link in stated(plan, point.name):
            if link.edge is not None:
                first, then = place[link.first.id], place[link.then.id]
                if then == first + 1:
                    self.straight.append((first, link))
                else:
                    self.nets.setdefault((first, link.edge.kind), []).append((then, link))
        self.notes = [_notes(plan, binding) for binding in bound]
        self.ins, self.outs = self._ports()
        self.xs, self.widths = self._columns(x)
        self.right = self.xs[-1] + self.widths[-1]
        self.tracks = self._tracks()
        self.above = (max(self.tracks.values(), default=-1) + 1) * TRACK + (PAD if self.tracks else 0)
        self.box_height = max(map(_height, self.notes))
        label_height = 2 * 5 + NAME_LINE + (NOTE_LINE if label_note(point) else 0)
        self.height = self.above + max(self.box_height, label_height)

    def placed(self, top: float) -> tuple[tuple[Box, ...], tuple[Arrow, ...]]:
        y = top + self.above
        boxes = tuple(
            Box(binding, notes, x, y, width, _height(notes))
            for binding, notes, x, width in zip(self.bound, self.notes, self.xs, self.widths, strict=True)
        )
        return boxes, (*self._straight_arrows(y + 5 + NAME_LINE / 2), *self._tracked_arrows(y))

    def _ports(self) -> tuple[dict[int, list[tuple[int, EdgeKind]]], dict[int, list[tuple[int, EdgeKind]]]]:
        """Return the nets that come down on each box, from the left, and those that rise from it, from the right.

        The nearest first, so that long arrows arch over short ones.
        """
        ins: dict[int, list[tuple[int, EdgeKind]]] = {}
        outs: dict[int, list[tuple[int, EdgeKind]]] = {}
        for net in sorted(self.nets, reverse=True):
            for then, _ in self.nets[net]:
                ins.setdefault(then, []).append(net)
        for net in sorted(self.nets, key=self._end):
            outs.setdefault(net[0], []).append(net)
        return ins, outs

    def _end(self, net: tuple[int, EdgeKind]) -> int:
        return max(then for then, _ in self.nets[net])

    def _columns(self, x: float) -> tuple[list[float], list[float]]:
        xs, widths = [], []
        for k, binding in enumerate(self.bound):
            text = max([cells(binding.hook) * NAME_CELL, *(cells(note) * NOTE_CELL for note in self.notes[k])])
            ports = len(self.ins.get(k, ())) + len(self.outs.get(k, ()))
            widths.append(max(text + 2 * PAD + 4, (ports + 2) * PORT))
            xs.append(x)
            x += widths[-1] + GAP
        return xs, widths

    def _tracks(self) -> dict[tuple[int, EdgeKind], int]:
        """Give each net the lowest track that is free over its length, the short ones first."""
        busy: list[list[tuple[int, int]]] = []
        tracks = {}
        for net in sorted(self.nets, key=lambda net: (self._end(net) - net[0], net)):
            # two nets may share a track when one ends at the box where the other begins: ins are left of outs
            span = net[0], self._end(net)
            at = next((k for k, taken in enumerate(busy) if _is_free(taken, span)), len(busy))
            if at == len(busy):
                busy.append([])
            busy[at].insert(bisect(busy[at], span), span)
            tracks[net] = at
        return tracks

    def _straight_arrows(self, y: float) -> Iterable[Arrow]:
        for first, link in self.straight:
            ends = ((self.xs[first] + self.widths[first], y), (self.xs[first + 1], y))
            yield Arrow(link, link.edge.kind, ends)  # type: ignore[union-attr]

    def _tracked_arrows(self, y: float) -> Iterable[Arrow]:
        ins = {(k, net): place for k, nets in self.ins.items() for place, net in enumerate(nets, 1)}
        outs = {net: place for nets in self.outs.values() for place, net in enumerate(nets, 1)}
        for net, members in self.nets.items():
            start = self.xs[net[0]] + self.widths[net[0]] - PORT * outs[net]
            level = y - PAD - self.tracks[net] * TRACK
            last = self._end(net)
            for then, link in members:
                x = self.xs[then] + PORT * ins[then, net]
                corners = ((start, y), (start, level), (x, level), (x, y))
                yield Arrow(link, net[1], corners, None if then == last else (x, level))


def _notes(plan: Plan, binding: Binding) -> tuple[str, ...]:
    said = [*marks(plan, binding), *slots(binding)]
    return tuple(line for phrase in said for line in wrapped([phrase], NOTE_CELLS))


def _height(notes: Sequence[str]) -> float:
    return 2 * 5 + NAME_LINE + len(notes) * NOTE_LINE


def _is_free(taken: Sequence[tuple[int, int]], span: tuple[int, int]) -> bool:
    at = bisect(taken, span)
    before = at == 0 or taken[at - 1][1] <= span[0]
    return before and (at == len(taken) or span[1] <= taken[at][0])


def _rails(lanes: Sequence[Lane], right: float) -> tuple[Rail, ...]:
    """Return a rail for each pair, the short ones nearest; those that do not overlap may share a column."""
    stands = [(k, box.binding) for k, lane in enumerate(lanes) for box in lane.boxes]
    found = pairs([binding for _, binding in stands])
    spans = [(stands[enter][0], stands[exit_][0] + 1, stands[enter][1]) for enter, exit_ in reversed(found)]
    columns: list[list[tuple[int, int]]] = []
    members: list[list[Rail]] = []
    for upper, lower, binding in sorted(spans, key=lambda span: span[1] - span[0]):
        at = next((k for k, taken in enumerate(columns) if _is_free(taken, (upper, lower))), len(columns))
        if at == len(columns):
            columns.append([])
            members.append([])
        columns[at].insert(bisect(columns[at], (upper, lower)), (upper, lower))
        ends = [lane.y + lane.height / 2 for lane in (lanes[upper], lanes[lower - 1])]
        members[at].append(Rail(binding, 0, *ends))
    rails = []
    for column in members:
        right += max(cells(rail.binding.hook) for rail in column) * NOTE_CELL + 2 * PAD
        rails += [replace(rail, x=right) for rail in column]
    return tuple(rails)
