"""A plan as boxes and arrows in a terminal: for each point its hooks, in the order of firing, as one reads.

Hooks that stand in one row have no edge between them. What a hook leads to leaves it below, runs between the rows and
past the boxes, and comes down on those that wait; where a line is interrupted, another one passes over it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hookflow.graph.plan import Binding, EdgeKind, Plan
from hookflow.graph.points import Point
from hookflow.graph.render.text import KINDS, cells, edges_that_gave_way, marks, padded, reduced, title_of, wrapped
from hookflow.graph.why import Link, bound_points, stated

NOTE_CELLS = 24
GAP = 2

_LIGHT = "─│╭╮╰╯├┤┬┴┼"
_STROKES: dict[EdgeKind, str] = {
    "file": _LIGHT,
    "class": "═║╔╗╚╝╠╣╦╩╬",
    "flow": "╌╎" + _LIGHT[2:],
    "pair": "┈┊" + _LIGHT[2:],
}
_LEFT, _RIGHT, _UP, _DOWN = 1, 2, 4, 8
_JOINTS = {
    _RIGHT | _DOWN: 2,
    _LEFT | _DOWN: 3,
    _RIGHT | _UP: 4,
    _LEFT | _UP: 5,
    _UP | _DOWN | _RIGHT: 6,
    _UP | _DOWN | _LEFT: 7,
    _LEFT | _RIGHT | _DOWN: 8,
    _LEFT | _RIGHT | _UP: 9,
    _LEFT | _RIGHT | _UP | _DOWN: 10,
}

Net = tuple[int, EdgeKind]
"""The edges of one kind that leave one hook, by its place: they share a line until they part."""


def as_boxes(plan: Plan, title: str = "", width: int = 80) -> str:
    """Draw every point that has bindings, about `width` columns wide."""
    points = bound_points(plan)
    outermost = min((point.depth for point in points), default=0)
    lines = [title or title_of(plan)]
    for point in points:
        indent = "  " * (point.depth - outermost)
        lines += ["", f"{indent}{point.name} ".ljust(width, "─")]
        lines += (f"{indent}{line}".rstrip() for line in _Drawing(plan, point, width - len(indent)).lines())
    return "\n".join([*lines, *_legend(plan, width)])


def _legend(plan: Plan, width: int) -> Iterator[str]:
    kinds = [kind for kind in KINDS if kind in plan.edge_kinds]
    if kinds:
        yield ""
        yield from (f"{_STROKES[kind][0] * 2}▶ {KINDS[kind]}" for kind in kinds)
        yield "    what follows from other arrows has none of its own"
    for sentence in edges_that_gave_way(plan):
        yield from ("", *wrapped([sentence], width))


@dataclass(frozen=True, slots=True)
class Row:
    """Boxes side by side, by their places, with the column where each begins, and the lines that pass between them."""

    boxes: Mapping[int, int]
    passing: Mapping[Net, int]


class _Drawing:
    """The boxes of one point."""

    def __init__(self, plan: Plan, point: Point, width: int) -> None:
        bound = plan.at(point.name)
        self.width = width
        self.nets = _nets(bound, [link for link in stated(plan, point.name) if link.edge])
        self.outs: dict[int, list[Net]] = {}
        self.ins: dict[int, list[Net]] = {}
        for net, targets in self.nets.items():
            self.outs.setdefault(net[0], []).append(net)
            for then in targets:
                self.ins.setdefault(then, []).append(net)
        self.boxes = [_box(plan, binding, self._room(place)) for place, binding in enumerate(bound)]
        self.widths = [cells(box[0]) for box in self.boxes]

    def lines(self) -> Iterator[str]:
        leaving: dict[Net, int] = {}  # the nets that leave the row above, and at which column
        for members in self._rows():
            row = self._placed(members, leaving)
            arriving = self._arriving(row, leaving)
            yield from _channel(leaving, arriving, row)
            leaving = {net: self._out(row, net) for place in row.boxes for net in self.outs.get(place, ())}
            leaving |= row.passing
            yield from self._drawn(row, leaving)

    def _room(self, place: int) -> int:
        """Return how wide a box must be for each arrow to find a column of its own, whatever else runs above it."""
        return 5 + 2 * len(self.ins.get(place, ())) + 2 * len(self.outs.get(place, ()))

    def _rows(self) -> Iterator[list[int]]:
        """Yield the hooks that stand side by side: as many as have no edge between them and find room."""
        row: list[int] = []
        room = 0
        for place, wide in enumerate(self.widths):
            need = wide + GAP
            if row and (need > room or any(net[0] >= row[0] for net in self.ins.get(place, ()))):
                yield row
                row = []
            if not row:
                passing = sum(1 for net, targets in self.nets.items() if net[0] < place < targets[-1])
                room = self.width - 2 - 2 * passing
            row.append(place)
            room -= need
        if row:
            yield row

    def _placed(self, members: Sequence[int], leaving: Mapping[Net, int]) -> Row:
        """Give each box its column, and so each line that passes: where it comes down if that is free."""
        above = {x: net for net, x in leaving.items()}
        waiting = deque(sorted((x, net) for x, net in above.items() if self.nets[net][-1] > members[-1]))
        boxes, passing = {}, {}
        cursor = 2
        for place in members:
            wide = self.widths[place]
            while waiting and waiting[0][0] < cursor + wide // 2:
                x, net = waiting.popleft()
                passing[net] = _free(max(x, cursor), net, above)
                cursor = passing[net] + GAP
            boxes[place] = cursor
            cursor += wide + GAP
        for x, net in waiting:
            passing[net] = _free(max(x, cursor), net, above)
            cursor = passing[net] + GAP
        return Row(boxes, passing)

    def _arriving(self, row: Row, leaving: Mapping[Net, int]) -> dict[Net, list[int]]:
        """Return the columns at which each net comes down on the row: on boxes that wait, and past them."""
        found = {net: [x] for net, x in row.passing.items()}
        for place, left in row.boxes.items():
            nets = sorted(self.ins.get(place, ()), key=lambda net: leaving[net])
            wide = self.widths[place]
            foreign = {x for net, x in leaving.items() if net not in nets}
            inner = [x for x in range(left + 1, left + wide - 1) if x not in foreign]
            spare = [x for x in inner if x not in {leaving[net] for net in nets}]
            for k, net in enumerate(nets, 1):
                x = leaving[net]
                if x not in inner:  # columns are two apart at least, here and above: each net finds one of its own
                    x = min(spare, key=lambda x: abs(x - (left + wide * k // (len(nets) + 1))))
                found.setdefault(net, []).append(x)
        return found

    def _out(self, row: Row, net: Net) -> int:
        """Return the column at which a net leaves its box."""
        nets = self.outs[net[0]]
        wide = self.widths[net[0]]
        return row.boxes[net[0]] + wide * (nets.index(net) + 1) // (len(nets) + 1)

    def _drawn(self, row: Row, leaving: Mapping[Net, int]) -> Iterator[str]:
        height = max(len(self.boxes[place]) for place in row.boxes)
        for y in range(height):
            line = {x: _STROKES[net[1]][1] for net, x in leaving.items()}
            for place, left in row.boxes.items():
                box = self.boxes[place]
                if y < len(box):
                    line |= _spread(left, box[y])
                if y == len(box) - 1:
                    line |= {leaving[net]: "╥" if net[1] == "class" else "┬" for net in self.outs.get(place, ())}
            yield _joined(line)


def _nets(bound: Sequence[Binding], links: Sequence[Link]) -> dict[Net, list[int]]:
    """Return the places that each net leads to, without those that follow from others."""
    place = {binding.id: k for k, binding in enumerate(bound)}
    kinds = {(place[link.first.id], place[link.then.id]): link.edge.kind for link in links if link.edge}
    targets: dict[int, list[int]] = {}
    for first, then in kinds:
        targets.setdefault(first, []).append(then)
    nets: dict[Net, list[int]] = {}
    for first, thens in sorted(reduced(targets).items()):
        for then in thens:
            nets.setdefault((first, kinds[first, then]), []).append(then)
    return nets


def _box(plan: Plan, binding: Binding, room: int) -> list[str]:
    """Return the lines of a box; the half of an `around` has a double side, where it opens or closes."""
    said = [binding.hook, *(line for mark in marks(plan, binding) for line in wrapped([mark], NOTE_CELLS))]
    wide = max(room, *map(cells, said))
    left = "║" if binding.half == "enter" else "│"
    right = "║" if binding.half == "exit" else "│"
    body = [f"{left} {padded(line, wide)} {right}" for line in said]
    return [f"╭{'─' * (wide + 2)}╮", *body, f"╰{'─' * (wide + 2)}╯"]


def _free(x: int, net: Net, above: Mapping[int, Net]) -> int:
    """Return the first column from `x` on at which no other net comes from above."""
    while above.get(x, net) != net:
        x += 1
    return x


def _channel(leaving: Mapping[Net, int], arriving: Mapping[Net, Sequence[int]], row: Row) -> Iterator[str]:
    """Yield the lines between two rows: each net turns on a level of its own, or of nets that it does not meet."""
    spans = {net: (min([leaving[net], *xs]), max([leaving[net], *xs])) for net, xs in arriving.items()}
    levels: list[list[Net]] = []
    for net in sorted(spans, key=lambda net: spans[net]):
        left, right = spans[net]
        if left == right:
            continue
        at = next((k for k, nets in enumerate(levels) if spans[nets[-1]][1] < left), len(levels))
        if at == len(levels):
            levels.append([])
        levels[at].append(net)
    upright = {leaving[net]: _STROKES[net[1]][1] for net in arriving}
    for nets in levels:
        line: dict[int, str] = {}
        for net in nets:
            line |= _turn(net[1], leaving[net], arriving[net], spans[net])
            del upright[leaving[net]]
        yield _joined(line | upright)
        upright |= {x: _STROKES[net[1]][1] for net in nets for x in arriving[net]}
    if arriving:
        tips = {x: "▼" for net, xs in arriving.items() for x in xs}
        yield _joined(tips | {x: _STROKES[net[1]][1] for net, x in row.passing.items()})


def _turn(kind: EdgeKind, above: int, below: Sequence[int], span: tuple[int, int]) -> dict[int, str]:
    """Return the part of a level that one net takes."""
    strokes = _STROKES[kind]
    line = dict.fromkeys(range(span[0], span[1] + 1), strokes[0])
    for x in (above, *below):
        ways = _LEFT * (x > span[0]) | _RIGHT * (x < span[1]) | _UP * (x == above) | _DOWN * (x in below)
        line[x] = strokes[_JOINTS[ways]]
    return line


def _spread(left: int, text: str) -> dict[int, str]:
    """Return a text by columns; a wide sign fills two of them, an accent none: it goes with the sign before it."""
    line: dict[int, str] = {}
    for sign in text:
        wide = cells(sign)
        if wide == 0:
            line[left - 1] += sign
        else:
            line[left] = sign
            line |= {left + 1: ""} if wide == 2 else {}
        left += wide
    return line


def _joined(line: Mapping[int, str]) -> str:
    return "".join(line.get(x, " ") for x in range(max(line) + 1))
