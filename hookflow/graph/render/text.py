"""A plan as text: the points as the loop nests them, and beside each its hooks in the order of firing.

before_train            ┌─  whiten    early
                        └─▶ ema       after whiten (writes model)
before_val                  ema       ╭ enters around_val
  before_val_epoch          accuracy  │ early
after_val                   ema       ╰ leaves around_val
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.cells import cell_len

from hookflow.graph.plan import Binding, Edge, EdgeKind, GivenWay, Plan
from hookflow.graph.points import Point
from hookflow.graph.why import bound_points, rows_of, stated
from hookflow.numbers import counted
from hookflow.text import printable, wrapped, wrapped_phrases

KINDS: dict[EdgeKind, str] = {
    "file": "stated in the pipeline file",
    "class": "stated by the hook's class",
    "flow": "data flow: who writes a slot, before who reads it",
    "pair": "last in, first out",
}
"""The kinds of edges, for a legend."""

_MIRRORED = {"first": "last", "early": "late", "normal": "normal", "late": "early", "last": "first"}
"""The phase in which the second half of an `around` fires, by that of the first."""


def title_of(plan: Plan, shown: str = "") -> str:
    """Return the heading of a drawing: what is `shown`, or the number of hooks and points; and whether by lot."""
    hooks, points = len(plan.hooks), len(bound_points(plan))
    shown = shown or f"{hooks} hook{'s' * (hooks != 1)} at {points} point{'s' * (points != 1)}"
    lot = "" if plan.shuffle is None else f", shuffled (seed {plan.shuffle})"
    return plain(f"{plan.pipeline}: {shown}{lot}")


def marks(plan: Plan, binding: Binding) -> list[str]:
    """Return what is out of the ordinary about a binding.

    These are the half of an `around`, phase, trigger, its condition, ranks, and a mark for default hooks.
    """
    verb = {"whole": "", "enter": "enters", "exit": "leaves"}[binding.half]
    around = f"{verb} {binding.method}" if verb else ""
    globs = binding.modules or binding.parameters
    picked = f"on {', '.join(globs)}" if globs else ""
    ranks = "rank 0 alone" if plan.hook(binding.hook).ranks == "zero" else ""
    default = "default" if plan.hook(binding.hook).default else ""
    stages = f"in {', '.join(binding.stages)}" if binding.stages else ""
    inside = (picked, stages, "prepended" * binding.prepend, "always called" * binding.always_call)
    result = (around, _phase(plan, binding), str(binding.trigger), *inside, ranks, default)
    return [plain(mark) for mark in result if mark]


def _phase(plan: Plan, binding: Binding) -> str:
    """Return the phase, unless it is the normal one, and the one it was moved from, if an edge moved it."""
    own = plan.hook(binding.hook).phase
    suggestion = _MIRRORED[own] if binding.half == "exit" else own
    if binding.phase != suggestion:
        return f"{binding.phase} (moved from {suggestion})"
    return binding.phase if binding.phase != "normal" else ""


def place_of(edge: Edge) -> str:
    """Return where an edge comes from, briefly: the file without its folders, the slots, or the rule."""
    if edge.kind == "pair":
        return "last in, first out"
    if edge.kind == "flow":
        return f"writes {', '.join(map(plain, edge.slots))}"
    if edge.where.startswith("--set "):
        return "--set"
    return plain(re.sub(r"^.*/", "", edge.where))


def in_words(edge: Edge) -> str:
    """Return an edge as a sentence: "whiten before ema (writes model)"."""
    return f"{edge.first} before {edge.then} ({place_of(edge)})"


def edges_that_gave_way(plan: Plan) -> Iterator[str]:
    """Yield the edges of a plan that are not kept, with those that overruled them; a circle of flows is one sentence.

    For each point the first ones are listed.
    """
    yield from dict.fromkeys(_gave_way(plan, provided) for provided in plan.given_way)
    for point, count in plan.gave_way_unexplained().items():
        yield f"at {point}, {counted(count, 'more flow')} gave way to others"


def _gave_way(plan: Plan, given_way: GivenWay) -> str:
    if circle := plan.circle(given_way):
        return (
            f"at {given_way.edge.point}, a circle of flows, so none of them counts: {', '.join(map(in_words, circle))}"
        )
    against = ", ".join(map(in_words, given_way.against))
    return f"at {given_way.edge.point}, {in_words(given_way.edge)} gave way to: {against}"


def slots(binding: Binding) -> list[str]:
    """Return what a binding reads and writes, in words."""
    both = {"reads": binding.reads, "writes": binding.writes}
    return [f"{verb} {', '.join(map(plain, names))}" for verb, names in both.items() if names]


def plain(text: str) -> str:
    """Return a text on one line, without characters that steer a terminal or that XML has no place for."""
    return printable(" ".join(text.split()))


def padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def with_commas(phrases: Iterable[str]) -> list[str]:
    every = list(phrases)
    return [f"{phrase}," for phrase in every[:-1]] + every[-1:]


def pairs(bindings: Sequence[Binding]) -> list[tuple[int, int]]:
    """Return, for each `around` of which both halves are there, the places of the two."""
    entered: dict[tuple[str, str], int] = {}
    result = []
    for row, binding in enumerate(bindings):
        if binding.half == "enter":
            entered[binding.hook, binding.method] = row
        elif binding.half == "exit" and (binding.hook, binding.method) in entered:
            result.append((entered.pop((binding.hook, binding.method)), row))
    return sorted(result)


def rails(bindings: Sequence[Binding], limit: int) -> list[str]:
    """Return one text a binding, all equally wide. Pairs beyond `limit` at a time have no rail."""
    bounds = dict(pairs(bindings))
    lanes: list[int | None] = []  # for each rail the row in which it ends
    drawn = []
    for row in range(len(bindings)):
        line = ["│" if end is not None else " " for end in lanes]
        if row in bounds and (lane := _free(lanes, limit)) is not None:
            lanes[lane:] = [bounds[row], *lanes[lane + 1 :]]
            line[lane:] = ["╭", *line[lane + 1 :]]
        if row in lanes:
            lane = lanes.index(row)
            lanes[lane], line[lane] = None, "╰"
        drawn.append("".join(line))
    return [line.ljust(len(lanes)) for line in drawn]


def _free(lanes: Sequence[int | None], limit: int) -> int | None:
    """Return the first rail that is free, or the place of a new one if there may be one more."""
    free = lanes.index(None) if None in lanes else len(lanes)
    return free if free < limit else None


def gutter(count: int, edges: Iterable[tuple[int, int]], limit: int | None = None) -> list[str]:
    """Return one prefix for each of `count` rows, hooks in the order of firing; all are equally wide.

    A hook that others wait for opens a lane (`┌`, `┬`); a hook that waits joins it (`├`, `┼`, or `└`, `┴` as the
    last one) and gets an arrow; a lane that merely passes stays `│`. Left out are edges that follow from others, and,
    where there are more than `limit` lanes, those of the hooks for which no lane is free.
    """
    links: dict[int, set[int]] = {}
    for first, then in edges:
        links.setdefault(first, set()).add(then)
    targets = reduced(links)
    last = {row: max(rows) for row, rows in targets.items()}
    sources: dict[int, set[int]] = {}
    for source, rows in targets.items():
        for row in rows:
            sources.setdefault(row, set()).add(source)
    lanes: list[int | None] = []  # for each lane the row that opened it
    drawn = []
    for row in range(count):
        waits = sources.get(row, set())
        joined = {lane for lane, source in enumerate(lanes) if source in waits} if waits else set()
        opened = _open(lanes, row, limit) if row in targets else None
        closed = {lane for lane in joined if last[lanes[lane]] == row}  # type: ignore[index]
        drawn.append((_line(lanes, joined, opened, closed), bool(joined), opened is not None))
        for lane in closed:
            lanes[lane] = None
    width = max(2 * len(lanes) - 1, 0)
    return [_finish(line, width, waits, leads) for line, waits, leads in drawn]


def reduced(links: Mapping[int, Iterable[int]]) -> dict[int, list[int]]:
    """Return the links, which run from lower numbers to higher ones, without those that a longer way implies."""
    reach: dict[int, int] = {}  # as bits: quick to unite
    kept: dict[int, list[int]] = {}
    for row in sorted(links, reverse=True):
        implied = bounds = 0
        for then in sorted(links[row]):
            if not implied >> then & 1:
                kept.setdefault(row, []).append(then)
            implied |= reach.get(then, 0)
            bounds |= 1 << then
        reach[row] = implied | bounds
    return kept


def _open(lanes: list[int | None], row: int, limit: int | None) -> int | None:
    """Give the row a lane, the first that is free, and return which; None if there must be no more."""
    if None not in lanes:
        if limit is not None and len(lanes) >= limit:
            return None
        lanes.append(None)
    lane = lanes.index(None)
    lanes[lane] = row
    return lane


def _line(lanes: Sequence[int | None], joined: set[int], opened: int | None, closed: set[int]) -> str:
    """Return the lanes of one row, two columns each."""
    touched = joined if opened is None else joined | {opened}
    left = min(touched, default=len(lanes))
    line = ""
    for lane, source in enumerate(lanes):
        stroke = "─" if lane >= left else " "
        if lane == opened:
            knot = "┌" if lane == left else "┬"
        elif lane in closed:
            knot = "└" if lane == left else "┴"
        elif lane in joined:
            knot = "├" if lane == left else "┼"
        elif source is not None:
            knot = "│"
        else:
            knot = stroke
        line += knot + stroke
    return line


def _finish(line: str, width: int, waits: bool, leads: bool) -> str:
    """Bring a row to the full width and end it in an arrow when its hook waits for another."""
    if not width:
        return ""
    stroke = "─" if waits or leads else " "
    return line[:width].ljust(width, stroke) + ("▶" if waits else stroke)


_GUTTER_GOES_ON = str.maketrans({**dict.fromkeys("┌┬├┼", "│"), **dict.fromkeys("└┴─▶", " ")})
_RAILS_GO_ON = str.maketrans({"╭": "│", "╰": " "})
"""The parts of a row that continue on the line below."""

_ROOM_FOR_NOTES = 28
_MOST_RAILS = 6

_BOLD, _CYAN, _DIM, _OFF = "\x1b[1m", "\x1b[36m", "\x1b[2m", "\x1b[0m"


def as_text(plan: Plan, title: str = "", width: int = 80, colour: bool = False) -> str:
    """Draw every point that has bindings, `width` columns wide (40 or more); for a terminal, in colours."""
    drawing = _Drawing(plan, width, colour)
    heading = drawing.styled(title or title_of(plan), _BOLD)
    return "\n".join([heading, "", *drawing.lines(), *drawing.notes()])


class _Drawing:
    """Knows how wide each column is, and what is to be said of each binding.

    Where the points would take the room of the notes, they stand above their hooks.
    """

    def __init__(self, plan: Plan, width: int, colour: bool) -> None:
        self.plan = plan
        self.width = width
        self.colour = colour
        points = bound_points(plan)
        outermost = min((point.depth for point in points), default=0)
        self.labels = {point.name: "  " * (point.depth - outermost) + point.name for point in points}
        self.gutters = {point.name: self._gutter(point) for point in points}
        rows = [binding for point in points for binding in plan.at(point.name)]
        self.rails = dict(zip((binding.id for binding in rows), rails(rows, _MOST_RAILS), strict=True))
        self.waits = self._waits()
        self.gutter_width = max((len(row) for drawn in self.gutters.values() for row in drawn), default=0)
        self.name_width = min(max((len(binding.hook) for binding in rows), default=0), width // 3)
        self.rail_width = max((len(rail) + 1 for rail in self.rails.values() if rail), default=0)
        longest = max(map(len, self.labels.values()), default=0)
        self.beside = self._room(longest) >= _ROOM_FOR_NOTES
        self.label_width = longest if self.beside else 1

    def lines(self) -> Iterator[str]:
        rails_above = ""
        for name, label in self.labels.items():
            if not self.beside:
                yield self._heading(label, rails_above)
            beside = label if self.beside else ""
            for binding, row in zip(self.plan.at(name), self.gutters[name], strict=True):
                message = [*marks(self.plan, binding), *self.waits.get(binding.id, ())]
                rail = self.rails[binding.id]
                rails_above = rail.translate(_RAILS_GO_ON)
                notes = wrapped_phrases(with_commas(message), self._room(self.label_width))
                if len(binding.hook) > self.name_width and (notes[0] or rail.strip()):
                    yield self._line(beside, row, binding.hook, "", "")
                    beside, name_here, row = "", "", row.translate(_GUTTER_GOES_ON)
                else:
                    name_here = binding.hook
                first, *rest = notes
                yield self._line(beside, row, name_here, rail, first)
                for note in rest:
                    yield self._line("", row.translate(_GUTTER_GOES_ON), "", rails_above, note)
                beside = ""

    def notes(self) -> Iterator[str]:
        """Yield below the drawing which weaker edges are not kept."""
        for sentence in edges_that_gave_way(self.plan):
            first, *rest = wrapped(sentence, self.width - 2)
            yield from ("", first, *(f"  {line}" for line in rest))

    def styled(self, text: str, style: str) -> str:
        return f"{style}{text}{_OFF}" if self.colour and text.strip() else text

    def _left_of_rails(self, label_width: int) -> int:
        lanes = self.gutter_width + 1 if self.gutter_width else 0
        return label_width + 1 + lanes + self.name_width + 2

    def _room(self, label_width: int) -> int:
        """Return what is left for the notes."""
        return self.width - self._left_of_rails(label_width) - self.rail_width

    def _gutter(self, point: Point) -> list[str]:
        edges = rows_of(self.plan, point.name)
        return gutter(len(self.plan.at(point.name)), edges, limit=self.width // 10)

    def _waits(self) -> dict[int, list[str]]:
        """Return by binding whom it waits for, and what says so: the hooks of one place together."""
        result: dict[int, dict[str, dict[str, None]]] = {}
        for point in self.labels:
            for link in stated(self.plan, point):
                if link.edge:
                    places = result.setdefault(link.then.id, {})
                    places.setdefault(place_of(link.edge), {})[link.first.hook] = None
        return {
            id_: [f"after {', '.join(hooks)} ({place})" for place, hooks in places.items()]
            for id_, places in result.items()
        }

    def _heading(self, label: str, rail: str) -> str:
        """Return the line of a point above its hooks; the rails pass it where there is room."""
        left = self._left_of_rails(self.label_width)
        shown = rail if len(label) < left else ""
        return f"{self.styled(label.ljust(left), _BOLD)}{self.styled(shown, _CYAN)}".rstrip()

    def _line(self, label: str, row: str, name: str, rail: str, note: str) -> str:
        lanes = f"{self.styled(row.rjust(self.gutter_width), _CYAN)} " if self.gutter_width else ""
        line = f"{self.styled(padded(label, self.label_width), _BOLD)} {lanes}{padded(name, self.name_width)}"
        if not (rail.strip() or note):
            return line.rstrip()
        rails = f"{self.styled(rail, _CYAN)} " if self.rail_width else ""
        return f"{line}  {rails}{self.styled(note, _DIM)}".rstrip()
