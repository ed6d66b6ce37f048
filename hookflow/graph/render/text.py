"""A plan as text, DOT or Mermaid.

As text it has the points as the loop nests them, and beside each its hooks in their order.

before_train            ┌─  whiten    early
                        └─▶ ema       after whiten (writes model)
before_val                  ema       ╭ enters around_val
  before_val_epoch          accuracy  │ early
after_val                   ema       ╰ leaves around_val
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from types import MappingProxyType

from rich.cells import cell_len

from hookflow.graph.offload import ThreadSpan, find_awaited_hooks, is_thinned, iter_threads
from hookflow.graph.plan import PHASES, Binding, CollapsedBinding, Edge, EdgeKind, Plan
from hookflow.graph.why import explain_neighbours, list_drawn_edges
from hookflow.numbers import format_count
from hookflow.text import make_printable, wrapped, wrapped_phrases

EDGE_KIND_TEXTS: dict[EdgeKind, str] = {
    "file": "stated in the pipeline file",
    "class": "stated by the hook's class",
    "flow": "data flow: who writes a slot, before who reads it",
    "nesting": "last in, first out",
}
"""The kinds of edges, for a legend."""


def title_of(plan: Plan, shown: str = "") -> str:
    """Return the heading of a drawing.

    It is what is `shown`, or how many hooks and points, and the seed of a shuffle.
    """
    if not shown:
        shown = (
            f"{format_count(len(plan.hooks), 'hook')} at"
            f" {format_count(len(plan.bound_points), 'point')}"
        )
    if plan.shuffle is not None:
        shown += f", shuffled (seed {plan.shuffle})"
    return plain(f"{plan.pipeline}: {shown}")


def list_marks(plan: Plan, binding: Binding) -> list[str]:
    """Return what is unusual about a binding: half of an around, phase, trigger, ranks, off."""
    box = plan.collapsed_by_id.get(binding.id)
    if box is not None:
        return _list_box_marks(plan, binding, box)
    result = []
    if binding.half == "enter":
        result.append(f"enters {binding.method}")
    elif binding.half == "exit":
        result.append(f"leaves {binding.method}")
    result += _list_phase_marks(plan, binding)
    if str(binding.trigger):
        result.append(str(binding.trigger))
    result += _list_module_marks(binding)
    result += _list_hook_marks(plan, binding)
    for name, iteration in plan.off:
        if name == binding.hook:
            result.append(f"off since iteration {iteration:,}")
    return [plain(mark) for mark in result]


def _list_box_marks(plan: Plan, binding: Binding, box: CollapsedBinding) -> list[str]:
    """Return the members of a box, what all of them have in common, and which are off."""
    names = list(dict.fromkeys(member.hook for member in box.members))
    result = [f"{format_count(len(names), 'hook')}: {', '.join(names)}"]
    if binding.phase != "normal":
        result.append(binding.phase)
    if str(binding.trigger):
        result.append(str(binding.trigger))
    for name, iteration in plan.off:
        if name in names:
            result.append(f"{name} off since iteration {iteration:,}")
    return [plain(mark) for mark in result]


def _list_phase_marks(plan: Plan, binding: Binding) -> list[str]:
    own = plan.hook(binding.hook).phase
    if binding.half == "exit":
        own = PHASES[-1 - PHASES.index(own)]  # the mirrored one
    if binding.phase != own:
        return [f"{binding.phase} (moved from {own})"]
    if binding.phase != "normal":
        return [binding.phase]
    return []


def _list_module_marks(binding: Binding) -> list[str]:
    """Return what a hook inside the network is registered on, and how."""
    result = []
    globs = binding.modules or binding.parameters
    if globs:
        result.append(f"on {', '.join(globs)}")
    if binding.stages:
        result.append(f"in {', '.join(binding.stages)}")
    if binding.prepend:
        result.append("prepended")
    if binding.always_call:
        result.append("always called")
    return result


def _list_hook_marks(plan: Plan, binding: Binding) -> list[str]:
    """Return a hook's ranks and thread, what it waits for, and whether the file names it."""
    hook = plan.hook(binding.hook)
    result = []
    if hook.ranks == "zero":
        result.append("rank 0 alone")
    if binding.beside:
        where = ""
        if hook.in_process:
            where = "process, "
        result.append(f"offloaded ({where}queue {hook.queue}, {hook.when_full})")
    others = [each for each in find_awaited_hooks(plan, binding) if each != hook.name]
    if others:
        result.append(f"waits for {', '.join(others)}")
    if is_thinned(plan, binding):
        result.append(f"throttled to {hook.throttle}")
    if hook.default:
        result.append("default")
    return result


def format_edge_place(edge: Edge) -> str:
    """Return where an edge comes from, briefly.

    It is the file without its folders, the slots, or the rule.
    """
    if edge.kind == "nesting":
        return "last in, first out"
    if edge.kind == "flow":
        return f"writes {', '.join(map(plain, edge.slots))}"
    if edge.where.startswith("--set "):
        if edge.group:
            return f"--set, group:{edge.group}"
        return "--set"
    return plain(re.sub(r"^.*/", "", edge.source))


def in_words(edge: Edge) -> str:
    """Return an edge as a sentence: "whiten before ema (writes model)"."""
    return f"{edge.first} before {edge.then} ({format_edge_place(edge)})"


def edges_that_gave_way(plan: Plan) -> Iterator[str]:
    """Yield the flows that were dropped, with the edges that overruled them.

    A cycle of flows is one sentence.
    """
    sentences: dict[str, None] = {}
    num_unexplained: Counter[str] = Counter()
    for dropped in plan.dropped_edges:
        point = dropped.edge.point
        if dropped.cycle:
            flows = ", ".join(in_words(edge) for edge in dropped.cycle)
            sentences[f"at {point}, a cycle of flows, so none of them counts: {flows}"] = None
        elif dropped.against:
            against = ", ".join(in_words(edge) for edge in dropped.against)
            sentences[f"at {point}, {in_words(dropped.edge)} gave way to: {against}"] = None
        else:
            num_unexplained[point] += 1
    yield from sentences
    for point, count in num_unexplained.items():
        yield f"at {point}, {format_count(count, 'more flow')} gave way to others"


def find_waits(edges: Iterable[Edge]) -> dict[int, list[str]]:
    """Return by binding whom it waits for, and what says so: the hooks of one place together."""
    places: dict[int, dict[str, dict[str, None]]] = {}
    for edge in edges:
        hooks_at_place = places.setdefault(edge.then_id, {})
        hooks_at_place.setdefault(format_edge_place(edge), {})[edge.first] = None
    result = {}
    for id_, hooks_at_place in places.items():
        result[id_] = [
            f"after {', '.join(hooks)} ({place})" for place, hooks in hooks_at_place.items()
        ]
    return result


def list_slots(binding: Binding) -> list[str]:
    """Return what a binding reads and writes, in words."""
    result = []
    if binding.reads:
        result.append(f"reads {', '.join(map(plain, binding.reads))}")
    if binding.writes:
        result.append(f"writes {', '.join(map(plain, binding.writes))}")
    return result


def plain(text: str) -> str:
    """Return a text on one line, without control characters.

    Characters that XML has no place for are left out, too.
    """
    return make_printable(" ".join(text.split()))


def pad_text(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def with_commas(phrases: Iterable[str]) -> list[str]:
    every = list(phrases)
    return [f"{phrase}," for phrase in every[:-1]] + every[-1:]


def find_around_pairs(bindings: Sequence[Binding]) -> list[tuple[int, int]]:
    """Return, for each `around` of which both halves are there, the places of the two."""
    entered: dict[tuple[str, str], int] = {}
    result = []
    for row, binding in enumerate(bindings):
        if binding.half == "enter":
            entered[binding.hook, binding.method] = row
        elif binding.half == "exit" and (binding.hook, binding.method) in entered:
            result.append((entered.pop((binding.hook, binding.method)), row))
    return sorted(result)


def columns(spans: Iterable[tuple[int, int]]) -> list[int]:
    """Return for each span of rows (first, last) the first column that is free.

    The spans are in ascending order.
    """
    result: list[int] = []
    last_rows: list[int] = []  # of each column, the row in which it ends
    for first, last in spans:
        column = 0
        while column < len(last_rows) and last_rows[column] >= first:
            column += 1
        if column == len(last_rows):
            last_rows.append(last)
        last_rows[column] = last
        result.append(column)
    return result


def draw_rails(
    bindings: Sequence[Binding], limit: int, beside: Iterable[ThreadSpan] = ()
) -> list[str]:
    """Return one text for each binding, all equally wide.

    They have the lines of arounds, and heavier ones of threads that are `beside` the training.
    Lines beyond `limit` at a time have no rail.
    """
    spans = [(first, last, "╭│╰") for first, last in find_around_pairs(bindings)]
    for thread in beside:
        spans.append((thread.first, thread.last, "┏┃┗" if thread.joins else "┏┃┃"))
    spans.sort()
    rail_columns = columns((first, last) for first, last, _ in spans)
    width = max((column + 1 for column in rail_columns if column < limit), default=0)
    rows = [[" "] * width for _ in bindings]
    for (first, last, signs), column in zip(spans, rail_columns, strict=True):
        if column >= limit:
            continue
        for row in range(first, last + 1):
            rows[row][column] = signs[1]
        rows[last][column] = signs[2]
        rows[first][column] = signs[0]
    return ["".join(row) for row in rows]


def draw_gutter(count: int, edges: Iterable[tuple[int, int]], limit: float = inf) -> list[str]:
    """Return one prefix for each of `count` rows, which are hooks in the order of firing.

    All are equally wide. A hook that others wait for opens a lane (`┌`, `┬`); a hook that waits
    joins it (`├`, `┼`, or `└`, `┴` as the last one) and gets an arrow; a lane that merely passes
    stays `│`. Where there are more than `limit` lanes, the edges of the hooks for which no lane is
    free are left out.
    """
    targets: dict[int, list[int]] = {}
    for first, then in edges:
        targets.setdefault(first, []).append(then)
    spans = sorted((first, max(thens)) for first, thens in targets.items())
    knots: list[dict[int, str]] = [{} for _ in range(count)]  # for each row the knot on each lane
    joins: set[int] = set()
    width = 0
    for (first, last), lane in zip(spans, columns(spans), strict=True):
        if lane >= limit:
            continue
        width = max(width, 2 * lane + 1)
        for row in range(first, last + 1):
            knots[row][lane] = "│"
        for then in targets[first]:
            knots[then][lane] = "├"
        knots[first][lane] = "┌"
        knots[last][lane] = "└"
        joins.update(targets[first])
    return [_draw_knots(knots[row], width, row in joins) for row in range(count)]


_CROSSED_KNOTS = {"┌": "┬", "├": "┼", "└": "┴"}
"""A knot that a stroke from further left meets."""


def _draw_knots(knots: dict[int, str], width: int, joins: bool) -> str:
    """Return the lanes of one row, two columns each.

    From its first knot on, a stroke leads to the hook.
    """
    if not width:
        return ""
    tied = [lane for lane, knot in knots.items() if knot != "│"]
    left = min(tied, default=width)
    line = ""
    for lane in range(width // 2 + 1):
        stroke = " "
        if lane >= left:
            stroke = "─"
        knot = knots.get(lane, stroke)
        if lane > left:
            knot = _CROSSED_KNOTS.get(knot, knot)
        line += knot + stroke
    if joins:
        tip = "▶"
    else:
        tip = line[-1]
    return line[:width] + tip


_GUTTER_GOES_ON = str.maketrans({**dict.fromkeys("┌┬├┼", "│"), **dict.fromkeys("└┴─▶", " ")})
_RAILS_GO_ON = str.maketrans({"╭": "│", "╰": " ", "┏": "┃", "┗": " "})
"""The parts of a row that continue on the line below."""

TIMES_HEADING = f"{'fired':>9} {'p50   ':>8} {'%it':>5}"
TIMES_OF_DEVICE = f"{'fired':>9} {'p50   ':>8} {'device ':>8} {'%it':>5}"
"""The headings of the columns that a run adds to its plan.

This is the wider one, for a run with device times.
"""

_ROOM_FOR_NOTES = 28
_MOST_RAILS = 6

_BOLD, _CYAN, _DIM, _OFF = "\x1b[1m", "\x1b[36m", "\x1b[2m", "\x1b[0m"


def as_text(
    plan: Plan,
    title: str = "",
    width: int = 80,
    colour: bool = False,
    times: Mapping[int, str] = MappingProxyType({}),
    remark: str = "",
) -> str:
    """Draw every point that has bindings, `width` columns wide (40 or more).

    The text has colours for a terminal.

    `times` are what the bindings of a run took, by their ids, in the columns of TIMES_HEADING or of
    TIMES_OF_DEVICE. A `remark` is a sentence about the drawing, which stands below it.
    """
    drawing = _Drawing(plan, width, colour, times)
    heading = drawing.styled(title or title_of(plan), _BOLD)
    lines = [heading, "", *drawing.head(), *drawing.lines(), *drawing.notes()]
    if remark:
        lines += ["", *wrapped(remark, width)]
    return "\n".join(lines)


class _Drawing:
    """Knows the width of each column.

    Points stand above their hooks where they would take the room of the notes.
    """

    def __init__(self, plan: Plan, width: int, colour: bool, times: Mapping[int, str]) -> None:
        self.plan = plan
        self.times = times
        wide = any(len(text) > len(TIMES_HEADING) for text in times.values())
        self.heading = ""
        if wide:
            self.heading = TIMES_OF_DEVICE
        elif times:
            self.heading = TIMES_HEADING
        self.width = width
        self.colour = colour
        outermost = min((point.depth for point in plan.bound_points), default=0)
        self.labels = {
            point.name: "  " * (point.depth - outermost) + point.name for point in plan.bound_points
        }
        self.gutters = {
            point: draw_gutter(
                len(plan.at(point)), list_drawn_edges(plan, point), limit=width // 10
            )
            for point in self.labels
        }
        rows: list[Binding] = []
        for point in self.labels:
            rows += plan.at(point)
        self.threads = [*iter_threads(plan, rows)]
        drawn = draw_rails(rows, _MOST_RAILS, self.threads)
        self.rails = dict(zip((binding.id for binding in rows), drawn, strict=True))
        self.waits = find_waits(plan.edges)
        self.gutter_width = max(
            (len(row) for drawn in self.gutters.values() for row in drawn), default=0
        )
        self.name_width = min(max((len(binding.hook) for binding in rows), default=0), width // 3)
        self.rail_width = max((len(rail) + 1 for rail in self.rails.values() if rail), default=0)
        longest = max(map(len, self.labels.values()), default=0)
        self.beside = self._compute_room(longest) >= _ROOM_FOR_NOTES
        if self.beside:
            self.label_width = longest
        else:
            self.label_width = 1

    def head(self) -> Iterator[str]:
        """Yield the heading of the times, if there are any."""
        if self.times:
            left = self._left_of_rails(self.label_width) + self.rail_width
            yield self.styled(f"{'':<{left}}{self.heading}", _DIM)

    def lines(self) -> Iterator[str]:
        rails_above = ""
        for name, label in self.labels.items():
            if not self.beside:
                yield self._format_heading(label, rails_above)
            beside = ""
            if self.beside:
                beside = label
            for binding, row in zip(self.plan.at(name), self.gutters[name], strict=True):
                message = [*list_marks(self.plan, binding), *self.waits.get(binding.id, ())]
                rail = self.rails[binding.id]
                rails_above = rail.translate(_RAILS_GO_ON)
                first, *rest = wrapped_phrases(
                    with_commas(message), self._compute_room(self.label_width)
                )
                hook = binding.hook
                if len(hook) > self.name_width and (first or rail.strip() or self.times):
                    yield self._line(beside, row, hook, "", "")
                    beside = ""
                    hook = ""
                    row = row.translate(_GUTTER_GOES_ON)
                yield self._line(beside, row, hook, rail, first, self.times.get(binding.id, ""))
                for note in rest:
                    yield self._line("", row.translate(_GUTTER_GOES_ON), "", rails_above, note)
                beside = ""

    def notes(self) -> Iterator[str]:
        """Yield below the drawing what threads are, and which weaker edges are not kept."""
        if self.threads:
            yield from (
                "",
                "┏ ┃ ┗ beside the training: from its first firing until the run waits for it",
            )
        for sentence in edges_that_gave_way(self.plan):
            first, *rest = wrapped(sentence, self.width - 2)
            yield from ("", first, *(f"  {line}" for line in rest))

    def styled(self, text: str, style: str) -> str:
        if self.colour and text.strip():
            return f"{style}{text}{_OFF}"
        return text

    def _left_of_rails(self, label_width: int) -> int:
        lanes = 0
        if self.gutter_width:
            lanes = self.gutter_width + 1
        return label_width + 1 + lanes + self.name_width + 2

    def _compute_room(self, label_width: int) -> int:
        return self.width - self._left_of_rails(label_width) - self.rail_width - self.times_width

    def _format_heading(self, label: str, rail: str) -> str:
        """Return the line of a point above its hooks; the rails pass it where there is room."""
        left = self._left_of_rails(self.label_width)
        shown = ""
        if len(label) < left:
            shown = rail
        return f"{self.styled(label.ljust(left), _BOLD)}{self.styled(shown, _CYAN)}".rstrip()

    @property
    def times_width(self) -> int:
        if self.times:
            return len(self.heading) + 2
        return 0

    def _line(self, label: str, row: str, name: str, rail: str, note: str, times: str = "") -> str:
        lanes = ""
        if self.gutter_width:
            lanes = f"{self.styled(row.rjust(self.gutter_width), _CYAN)} "
        line = (
            f"{self.styled(pad_text(label, self.label_width), _BOLD)}"
            f" {lanes}{pad_text(name, self.name_width)}"
        )
        if not (rail.strip() or note or times):
            return line.rstrip()
        rails = ""
        if self.rail_width:
            rails = f"{self.styled(pad_text(rail, self.rail_width - 1), _CYAN)} "
        figures = pad_text(times, self.times_width)
        return f"{line}  {rails}{figures}{self.styled(note, _DIM)}".rstrip()


_DOT_PREAMBLE = """\
  rankdir=LR; newrank=true; compound=true; fontname="sans-serif"; labelloc=t; style=rounded;
  node [shape=box, style=rounded, fontname="sans-serif", fontsize=12];
  edge [fontname="sans-serif", fontsize=9];"""

_STYLES: dict[EdgeKind, str] = {
    "file": "style=solid",
    "class": 'color="black:invis:black"',
    "flow": "style=dashed",
    "nesting": "style=dotted",
}


def as_dot(plan: Plan, title: str = "") -> str:
    heading = f"  label={_quoted(title or title_of(plan))};"
    return "\n".join(["digraph plan {", _DOT_PREAMBLE, heading, *_draw_clusters(plan), "}"])


def _draw_clusters(plan: Plan) -> Iterator[str]:
    # Where a graph runs from left to right, Graphviz stacks clusters from below: the last comes
    # first.
    for k, point in reversed([*enumerate(plan.bound_points)]):
        yield f"  subgraph cluster_{k} {{ label={_quoted(point.name)}; labeljust=l; color=gray60;"
        for binding in plan.at(point.name):
            label = "\n".join([binding.hook, *list_marks(plan, binding)])
            yield f"    b{binding.id} [label={_quoted(label)}];"
        for edge in plan.edges_at(point.name):
            label = f"label={_quoted(format_edge_place(edge))}, {_STYLES[edge.kind]}"
            yield f"    b{edge.first_id} -> b{edge.then_id} [{label}];"
        for link in explain_neighbours(plan, point.name):
            if not link.path:
                yield f"    b{link.first.id} -> b{link.then.id} [style=invis];"
        yield "  }"
    firsts = [f"b{plan.at(point.name)[0].id}" for point in plan.bound_points]
    yield f"  {{ rank=same; {' '.join(firsts)} }}"
    for k, (upper, lower) in enumerate(pairwise(firsts)):
        yield (
            f"  {lower} -> {upper} [ltail=cluster_{k + 1}, lhead=cluster_{k}, color=gray60,"
            " arrowhead=none];"
        )


def _quoted(text: str) -> str:
    return json.dumps(text.replace("&", "&amp;"), ensure_ascii=False)


_MERMAID_ARROWS: dict[EdgeKind, str] = {
    "file": "-->",
    "class": "-->",
    "flow": "-.->",
    "nesting": "-.->",
}


def as_mermaid(plan: Plan, title: str = "") -> str:
    heading = [
        "---",
        f"title: {json.dumps(title or title_of(plan), ensure_ascii=False)}",
        "---",
        "flowchart TB",
    ]
    return "\n".join([*heading, *_draw_boxes(plan)])


def _draw_boxes(plan: Plan) -> Iterator[str]:
    for k, point in enumerate(plan.bound_points):
        yield f'  subgraph p{k}["{_escape_text(point.name)}"]'
        yield "    direction LR"
        for binding in plan.at(point.name):
            label = "<br/>".join(
                [
                    f"<b>{_escape_text(binding.hook)}</b>",
                    *map(_escape_text, list_marks(plan, binding)),
                ]
            )
            yield f'    b{binding.id}["{label}"]'
        for edge in plan.edges_at(point.name):
            label = _escape_text(format_edge_place(edge))
            yield f'    b{edge.first_id} {_MERMAID_ARROWS[edge.kind]}|"{label}"| b{edge.then_id}'
        for link in explain_neighbours(plan, point.name):
            if not link.path:
                yield f"    b{link.first.id} ~~~ b{link.then.id}"
        yield "  end"
    yield from (f"  p{k} ==> p{k + 1}" for k, _ in enumerate(plan.bound_points[1:]))


def _escape_text(text: str) -> str:
    """Return a text escaped for Mermaid by numbers.

    A space of no width parts a backslash from an n.
    """
    numbered = re.sub(r"[^\w\s.,:()/?=+-]", lambda sign: f"#{ord(sign[0])};", text)
    return numbered.replace("#92;", "#92;#8203;")
