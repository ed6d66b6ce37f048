"""Where everything of a picture stands: a lane for each point, a box for each binding, a way for each edge.

A point with more boxes than find room side by side has a lane for each row of them. All in pixels, from the upper left
corner.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len

from hookflow.graph.plan import Binding, EdgeKind, Plan
from hookflow.graph.points import Point
from hookflow.graph.render.text import KINDS, marks, pairs, slots
from hookflow.graph.why import Link, bound_points, stated
from hookflow.text import wrapped

NAME_CELL, NOTE_CELL = 7.4, 6.2
"""Width of a sign of a monospaced font, at 12 and at 10 pixels: wider than that of any common one."""
NAME_LINE, NOTE_LINE = 16, 13
PAD = 8
GAP = 26  # between two boxes: room for an arrow
PORT = 9  # between two arrows at the top of a box
TRACK = 8
NOTE_CELLS = 24
NAMED = 2  # hooks that a stub names; of more it says how many

XY = tuple[float, float]
Net = tuple[int, EdgeKind]
"""The edges of one kind that leave one box, or come to it, by its place at the point."""


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
    """An edge: its corners, and where it leaves a track that runs on, if it does.

    `start` is its first part, in a row above, if it is broken off.
    """

    link: Link
    kind: EdgeKind
    corners: tuple[XY, ...]
    branch: XY | None = None
    start: tuple[XY, ...] = ()


@dataclass(frozen=True, slots=True)
class Stub:
    """The visible part, at a box, of its edges of one kind to other rows.

    It is the box's `port`th arrow, counted from that side, and as high as `rise` lines of labels.
    """

    kind: EdgeKind
    comes: bool
    port: int
    lines: tuple[str, ...]
    rise: int


@dataclass(frozen=True, slots=True)
class Label:
    """A line beside a stub: where it comes from, or leads to. `x` is where the text begins, or ends."""

    text: str
    x: float
    y: float
    anchor: Literal["start", "end"]


class Firings:
    """The bindings of a point, what is written into their boxes, and the links by the places of their ends."""

    def __init__(self, plan: Plan, point: Point) -> None:
        self.bound = plan.at(point.name)
        self.notes = [_notes(plan, binding) for binding in self.bound]
        place = {binding.id: k for k, binding in enumerate(self.bound)}
        self.links = [
            (place[link.first.id], place[link.then.id], link) for link in stated(plan, point.name) if link.edge
        ]
        self.leaving: list[list[tuple[int, int, Link]]] = [[] for _ in self.bound]
        self.coming: list[list[tuple[int, int, Link]]] = [[] for _ in self.bound]
        for result in self.links:
            self.leaving[result[0]].append(result)
            self.coming[result[1]].append(result)

    def text_width(self, place: int) -> float:
        name = cell_len(self.bound[place].hook) * NAME_CELL
        return max([name, *(cell_len(note) * NOTE_CELL for note in self.notes[place])]) + 2 * PAD + 4


class Row:
    """Some boxes of one point, and the nets between them: (place of the source, kind) to the links that leave there.

    `row_of` tells in which row of the point a place is, for the stubs.
    """

    def __init__(self, firings: Firings, places: range, row_of: Callable[[int], int], x: float) -> None:
        self.firings = firings
        self.places = places
        self.row_of = row_of
        self.straight: list[tuple[int, Link]] = []
        self.nets: dict[Net, list[tuple[int, Link]]] = {}
        self.above: dict[Net, list[tuple[int, Link]]] = {}
        self.below: dict[Net, list[tuple[int, Link]]] = {}
        self._sort_links()
        self.ins, self.outs = self._ports()
        self.stubs = {place: self._stubs_of(place) for place in places}
        self.xs, self.widths = self._columns(x)
        self.right = self.xs[places[-1]] + self.widths[places[-1]]
        self.tracks = self._tracks()
        self.tracks_height = (max(self.tracks.values(), default=-1) + 1) * TRACK + (PAD if self.tracks else 0)
        lines = max((stub.rise for stubs in self.stubs.values() for stub in stubs), default=0)
        self.top_height = self.tracks_height + (lines * NOTE_LINE + PAD / 2 if lines else 0)
        self.box_height = max(_height(firings.notes[place]) for place in places)

    def _sort_links(self) -> None:
        for place in self.places:
            for first, then, link in self.firings.leaving[place]:
                kind = link.edge.kind  # type: ignore[union-attr]
                if then not in self.places:
                    self.below.setdefault((first, kind), []).append((then, link))
                elif then == first + 1:
                    self.straight.append((first, link))
                else:
                    self.nets.setdefault((first, kind), []).append((then, link))
            for first, then, link in self.firings.coming[place]:
                if first not in self.places:
                    self.above.setdefault((then, link.edge.kind), []).append((first, link))  # type: ignore[union-attr]

    def boxes(self, y: float) -> Iterator[Box]:
        """Yield the boxes, their upper edges at `y`."""
        for k in self.places:
            notes = self.firings.notes[k]
            yield Box(self.firings.bound[k], notes, self.xs[k], y, self.widths[k], _height(notes))

    def starts(self, y: float) -> Iterator[tuple[Net, tuple[XY, ...]]]:
        """Yield what edges to other rows rise by, as far as it can be seen here."""
        for place, stubs in self.stubs.items():
            for stub in stubs:
                if not stub.comes:
                    x = self._stub_x(place, stub)
                    yield (place, stub.kind), ((x, y), (x, self._level(y, stub.rise)))

    def arrows(self, y: float, starts: Mapping[Net, tuple[XY, ...]]) -> Iterator[Arrow]:
        """Yield the arrows that end in this row; `starts` is where those of the rows above begin."""
        yield from self._straight_arrows(y + 5 + NAME_LINE / 2)
        yield from self._tracked_arrows(y)
        for place, stubs in self.stubs.items():
            for stub in stubs:
                x = self._stub_x(place, stub)
                for first, link in self.above[place, stub.kind] if stub.comes else ():
                    corners = (x, self._level(y, stub.rise)), (x, y)
                    yield Arrow(link, stub.kind, corners, start=starts[first, stub.kind])

    def labels(self, y: float) -> Iterator[Label]:
        """Yield the texts beside the stubs, one a line."""
        for place, stubs in self.stubs.items():
            for stub in stubs:
                x = self._stub_x(place, stub) + (5 if stub.comes else -5)
                for k, line in enumerate(stub.lines):
                    yield Label(line, x, self._level(y, stub.rise - k) + 10, "start" if stub.comes else "end")

    def _level(self, y: float, lines: int) -> float:
        """Return the upper edge of a line of a label, counted from the tracks upwards."""
        return y - self.tracks_height - PAD / 2 - lines * NOTE_LINE

    def _stub_x(self, place: int, stub: Stub) -> float:
        """Return where a stub is: outside the other arrows of its box, so that no track crosses a label."""
        return self.xs[place] + (PORT * stub.port if stub.comes else self.widths[place] - PORT * stub.port)

    def _stubs_of(self, place: int) -> list[Stub]:
        """Return the stubs of a box, the lowest first. The outermost are the highest: they pass by other labels."""
        stubs: list[Stub] = []
        rise = 0
        for comes, word, nets in ((False, "before", self.below), (True, "after", self.above)):
            kinds = [kind for kind in KINDS if (place, kind) in nets]
            for port, kind in sorted(enumerate(kinds, 1), reverse=True):
                lines = tuple(self._bounds(place, word, [other for other, _ in nets[place, kind]]))
                rise += len(lines)
                stubs.append(Stub(kind, comes, port, lines, rise))
        return stubs

    def _bounds(self, place: int, word: str, others: Sequence[int]) -> Iterator[str]:
        """Say where the other ends of a stub are, nearest first."""
        near = sorted(others, key=lambda other: abs(other - place))
        named = near if len(near) <= NAMED + 1 else near[:NAMED]
        yield from (f"{word} {self.firings.bound[other].hook} (row {self.row_of(other)})" for other in named)
        if len(named) < len(near):
            yield f"and {len(near) - len(named)} more"

    def _ports(self) -> tuple[dict[int, list[Net]], dict[int, list[Net]]]:
        """Return the nets that come down on each box, from the left, and those that rise from it, from the right.

        The nearest first, so that long arrows arch over short ones.
        """
        ins: dict[int, list[Net]] = {}
        outs: dict[int, list[Net]] = {}
        for net in sorted(self.nets, reverse=True):
            for then, _ in self.nets[net]:
                ins.setdefault(then, []).append(net)
        for net in sorted(self.nets, key=self._end):
            outs.setdefault(net[0], []).append(net)
        return ins, outs

    def _end(self, net: Net) -> int:
        return max(then for then, _ in self.nets[net])

    def _columns(self, x: float) -> tuple[dict[int, float], dict[int, float]]:
        xs, widths = {}, {}
        for k in self.places:
            stubs = self.stubs[k]
            ports = len(self.ins.get(k, ())) + len(self.outs.get(k, ())) + len(stubs)
            labels = max((cell_len(line) for stub in stubs for line in stub.lines), default=0) * NOTE_CELL
            label = labels + (len(stubs) + 1) * PORT if stubs else 0
            widths[k] = max(self.firings.text_width(k), (ports + 2) * PORT, label)
            xs[k] = x
            x += widths[k] + GAP
        return xs, widths

    def _tracks(self) -> dict[Net, int]:
        """Give each net the lowest track that is free over its length, the short ones first."""
        busy: list[list[tuple[int, int]]] = []
        tracks = {}
        for net in sorted(self.nets, key=lambda net: (self._end(net) - net[0], net)):
            # two nets may share a track when one ends at the box where the other begins: ins are left of outs
            span = net[0], self._end(net)
            at = next((k for k, used in enumerate(busy) if is_free(used, span)), len(busy))
            if at == len(busy):
                busy.append([])
            busy[at].insert(bisect(busy[at], span), span)
            tracks[net] = at
        return tracks

    def _straight_arrows(self, y: float) -> Iterator[Arrow]:
        for first, link in self.straight:
            bounds = ((self.xs[first] + self.widths[first], y), (self.xs[first + 1], y))
            yield Arrow(link, link.edge.kind, bounds)  # type: ignore[union-attr]

    def _tracked_arrows(self, y: float) -> Iterator[Arrow]:
        left = {k: 1 + sum(stub.comes for stub in stubs) for k, stubs in self.stubs.items()}
        right = {k: 1 + sum(not stub.comes for stub in stubs) for k, stubs in self.stubs.items()}
        ins = {(k, net): place for k, nets in self.ins.items() for place, net in enumerate(nets, left[k])}
        outs = {net: place for k, nets in self.outs.items() for place, net in enumerate(nets, right[k])}
        for net, members in self.nets.items():
            start = self.xs[net[0]] + self.widths[net[0]] - PORT * outs[net]
            level = y - PAD - self.tracks[net] * TRACK
            last = self._end(net)
            for then, link in members:
                x = self.xs[then] + PORT * ins[then, net]
                corners = ((start, y), (start, level), (x, level), (x, y))
                yield Arrow(link, net[1], corners, None if then == last else (x, level))


def is_free(used: Sequence[tuple[int, int]], span: tuple[int, int]) -> bool:
    at = bisect(used, span)
    before = at == 0 or used[at - 1][1] <= span[0]
    return before and (at == len(used) or span[1] <= used[at][0])


def _notes(plan: Plan, binding: Binding) -> tuple[str, ...]:
    notes = [*marks(plan, binding), *slots(binding)]
    return tuple(line for phrase in notes for line in wrapped(phrase, NOTE_CELLS))


def _height(notes: Sequence[str]) -> float:
    return 2 * 5 + NAME_LINE + len(notes) * NOTE_LINE


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
    widest = _label_end(zip(points, indents, (len(firing.bound) for firing in firings), strict=True))
    places = [_wrapped(firing, WIDTH - widest - 2 * PAD) for firing in firings]
    start = _label_end(zip(points, indents, map(len, places), strict=True))
    blocks = [_rows(result, ranges, start) for result, ranges in zip(firings, places, strict=True)]
    right = max((row.right for rows in blocks for row in rows), default=start) + PAD
    if any(len(rows) > 1 for rows in blocks):
        right += PAD  # for the mark that a row goes on
    lanes: list[Lane] = []
    for rows, point, x in zip(blocks, points, indents, strict=True):
        result = [*_stacked(rows, point, x, right, top)]
        lanes += result
        top = result[-1].y + result[-1].height + 5
    rails, hidden = _rails(lanes, right)
    return Picture(tuple(lanes), rails, hidden, max([right, *(rail.x for rail in rails)]) + MARGIN, top - 5)


def _label_end(points: Iterable[tuple[Point, float, int]]) -> float:
    """Return where the boxes begin, right of the labels of the points, each with its indent and its number of rows."""
    bounds = (x + PAD + _label_width(point, label_notes(point, rows, rows)) for point, x, rows in points)
    return max(bounds, default=MARGIN) + 2 * PAD


def _label_width(point: Point, notes: Iterable[str]) -> float:
    return max([cell_len(point.name) * NAME_CELL, *(cell_len(note) * NOTE_CELL for note in notes)])


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

    Edges without overlap may share a column.
    """
    stands = [(k, box.binding) for k, lane in enumerate(lanes) for box in lane.boxes]
    result = pairs([binding for _, binding in stands])
    spans = [(stands[enter][0], stands[exit_][0] + 1, stands[enter][1]) for enter, exit_ in reversed(result)]
    columns: list[list[tuple[int, int]]] = []
    members: list[list[tuple[Binding, float, float]]] = []
    for upper, lower, binding in sorted(spans, key=lambda span: span[1] - span[0]):
        at = next((k for k, used in enumerate(columns) if is_free(used, (upper, lower))), len(columns))
        if at == len(columns):
            columns.append([])
            members.append([])
        columns[at].insert(bisect(columns[at], (upper, lower)), (upper, lower))
        top, bottom = (lane.y + lane.height / 2 for lane in (lanes[upper], lanes[lower - 1]))
        members[at].append((binding, top, bottom))
    rails: list[Rail] = []
    for column in members:
        right += max(cell_len(binding.hook) for binding, _, _ in column) * NOTE_CELL + 2 * PAD
        if right > WIDTH + RAILS:
            break
        rails += [Rail(binding, right, top, bottom) for binding, top, bottom in column]
    return tuple(rails), len(spans) - len(rails)
