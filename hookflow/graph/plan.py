"""A compiled plan: hooks, bindings, edges and points, and how two differ.

A `Node` is a hook before it is ordered.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.graph.points import STANDARD_POINTS, Point, Points
from hookflow.pipeline.amounts import Amount, read_amount
from hookflow.pipeline.condition import Condition, parse_condition
from hookflow.pipeline.source_map import flat

if TYPE_CHECKING:
    import networkx as nx
    from pydantic import TypeAdapter

    from hookflow.pipeline.schema import Pipeline

VERSION = 2
"""The version of the format of `plan.json`.

It goes up with every change that a reader of the last one would misread.
"""

Half = Literal["whole", "enter", "exit"]
"""Which part of a method is called at a point.

A plain method is called whole. An `around_X` generator enters at `before_X` and exits at `after_X`.
"""

WantedPlaces = Mapping[tuple[str, str, Half], int]
"""The wanted place of a hook's method, or half of its around, at a point.

It counts as far as nothing else decides.
"""

EdgeKind = Literal["file", "class", "nesting", "flow"]
"""The source of an edge: the pipeline file, the hook's class, the nesting of arounds, or data flow.

Arounds are left in the reverse order of entry, and a hook's around encloses its own methods. Data
flow puts writers of a slot before its readers, and gives way to the others.
"""

Reason = Literal["edge", "phase", "file"]
"""The reason of the order of two hooks.

It is an edge, their phases, or only their order in the file (or the shuffle).
"""

DropReason = Literal["contradicted", "cycle"]
"""Why a data-flow edge is dropped.

Others that are kept contradict it, or it is on a cycle of flows, all of which are dropped.
"""

Phase = Literal["first", "early", "normal", "late", "last"]
PHASES: tuple[Phase, ...] = ("first", "early", "normal", "late", "last")
"""Places in the order that need no neighbour's name."""

OnError = Literal["raise", "disable", "ignore"]

WhenFull = Literal["wait", "drop", "coalesce"]

Ranks = Literal["zero", "all"]
RANK_CHOICES: tuple[Ranks, ...] = ("zero", "all")
"""The ranks on which a hook fires: the first one alone, or every one."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a binding fires: parsed amounts and a condition; None leaves a side open.

    With `once` it fires once.
    """

    every: Amount | None = None
    since: Amount | None = None
    until: Amount | None = None
    when: Condition | None = None
    once: bool = False

    @classmethod
    def parse(
        cls,
        every: str | None = None,
        since: str | None = None,
        until: str | None = None,
        when: str | None = None,
        *,
        once: bool = False,
    ) -> "Trigger":
        """Return the trigger of amounts and a condition as they are written.

        Raises ValueError for what is none.
        """
        condition = None
        if when is not None:
            condition = parse_condition(when)
        return cls(
            _read_if_stated(every), _read_if_stated(since), _read_if_stated(until), condition, once
        )

    def __str__(self) -> str:
        """Return it in a few words, e.g. "every 50 from 1ep".

        The text is empty when the binding fires always.
        """
        named = (
            ("every", self.every),
            ("from", self.since),
            ("until", self.until),
            ("when", self.when),
        )
        words = [f"{name} {amount}" for name, amount in named if amount is not None]
        if self.once:
            words.insert(0, "once")
        return " ".join(words)

    @property
    def amounts(self) -> list[Amount]:
        """The amounts that it is made of."""
        return [amount for amount in (self.every, self.since, self.until) if amount is not None]


def _read_if_stated(text: str | None) -> Amount | None:
    if text is None:
        return None
    return read_amount(text)


@dataclass(frozen=True, slots=True)
class DeclaredBinding:
    """One hook at one point, as the file and the hook's class declare it.

    `takes` are the arguments its method names, out of those that the point offers, in the method's
    order. `reads` and `writes` are the slots that its method touches. `modules` and `parameters`
    are globs over names, or classes of modules, for a point that fires on such (`Point.picks`).

    The others are for module points alone. `stages` is where the binding fires, none meaning in
    training alone; `prepend` puts it before the hooks that the model has registered itself; with
    `always_call` it fires after an exception, too.
    """

    hook: str
    point: str
    method: str
    half: Half
    takes: tuple[str, ...]
    trigger: Trigger
    phase: Phase
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    prepend: bool = False
    always_call: bool = False

    @property
    def key(self) -> "BindingKey":
        """The point and the half, which name the binding among those of its hook."""
        return self.point, self.half


BindingKey = tuple[str, Half]
"""A binding among those of its hook."""


@dataclass(frozen=True, slots=True)
class Binding(DeclaredBinding):
    """A binding in its place in the order.

    `id` is its place in `Plan.bindings` and its name in the event log. `phase` is the one it fires
    in: the hook's own, unless an edge has moved it into another. One that is `beside` the training
    fires in the thread of its hook. `placed_by` is what puts the binding behind the one that fires
    before it at its point; of the first one it says nothing.
    """

    id: int = field(kw_only=True)
    beside: bool = False
    placed_by: Reason = "file"


@dataclass(frozen=True, slots=True)
class Edge:
    """`first` fires before `then` at `point`.

    `where` is the file and line (or the class) that says so.

    `first_id` and `then_id` are the bindings: a hook may have two at one point, a plain method and
    half of an `around`. For a flow edge `where` is empty, and `slots` are what `first` writes and
    `then` reads. A `loose` edge between two second halves follows from how the arounds were
    entered, and nothing but the file's order (or the shuffle) says that. An `implied` edge follows
    from others of its point, and drawings leave its line out. One that is stated of a `group` has
    the group's name.
    """

    point: str
    first: str
    then: str
    kind: EdgeKind
    where: str
    slots: tuple[str, ...]
    first_id: int
    then_id: int
    loose: bool = False
    implied: bool = False
    group: str = ""

    @property
    def source(self) -> str:
        """The file and line, class, nesting rule, or slots that the edge comes from; its group."""
        if self.kind == "flow":
            return ", ".join(self.slots)
        if self.group:
            return f"{self.where}, group:{self.group}"
        return self.where


@dataclass(frozen=True, slots=True)
class DroppedEdge:
    """A flow edge that is not kept.

    `against` are the edges that lead from `edge.then` to `edge.first`. Where very many flows are
    dropped, `against` is left empty for all but the first ones. Of hooks around something, some of
    these may be edges at the other of the two points.
    """

    edge: Edge
    reason: DropReason
    against: tuple[Edge, ...]

    @property
    def cycle(self) -> tuple[Edge, ...]:
        """The cycle of flows that the edge is on, from its first name on.

        It is empty if the edge was contradicted.
        """
        if self.reason != "cycle" or not self.against:
            return ()
        edges = (self.edge, *self.against)
        start = min(range(len(edges)), key=lambda k: edges[k].first)
        return (*edges[start:], *edges[:start])


@dataclass(frozen=True, slots=True)
class PlannedHook:
    """A node: a hook by its name in the file, what it is made of, and what it says of itself."""

    name: str
    use: str
    args: Mapping[str, Any] | Sequence[Any]
    phase: Phase
    about: str
    where: str
    on_error: OnError
    ambiguous_with: tuple[str, ...] = ()
    ranks: Ranks = "all"
    default: bool = False
    """Whether the pipeline file leaves it out: one of `hookflow.pipeline.load`."""
    settable: tuple[str, ...] = ()
    """The arguments that a command may set while the run goes on."""
    queue: int = 0
    """Firings that may wait for the thread of an offloaded hook; 0: it has none."""
    in_process: bool = False
    """Whether that thread has a process fire the hook."""
    when_full: WhenFull = "wait"
    """The behaviour of a firing that finds the queue full."""
    timeout: float = 0.0
    """Seconds until a firing of an offloaded hook is given up; 0: none is."""
    obstacle: str = ""
    """The reason that keeps a hook of `offload = "auto"` in the training thread."""
    retry: int = 0
    """How often a firing that raises is called again, before `on_error` counts."""
    throttle: str = ""
    """The budget that it keeps by firing less often; empty where it fires whenever it is due."""

    @property
    def written_args(self) -> str:
        """The arguments as one would write them in a call."""
        if isinstance(self.args, Mapping):
            return ", ".join(f"{name} = {value!r}" for name, value in self.args.items())
        return ", ".join(map(repr, self.args))


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A group of hooks.

    It has the names and globs that declare it, and its members that are not switched off.
    """

    name: str
    entries: tuple[str, ...]
    members: tuple[str, ...]
    where: str
    """The file and line that declare it."""


@dataclass(frozen=True, slots=True)
class CollapsedBinding:
    """A box of a drawing that stands for several bindings of a group, in the order of firing.

    Its id is the first's.
    """

    id: int
    group: str
    members: tuple[Binding, ...]

    @property
    def hook(self) -> str:
        """The name that the box has in the place of a hook's."""
        return f"group:{self.group}"


@dataclass(frozen=True)
class Plan:
    """Every hook, binding and edge.

    Bindings are listed point by point in the order of the loop, and in the order of firing at each.

    `own` are the points that the pipeline declares for itself. `dropped_edges` are the data flows
    that stronger edges, or one another, have overruled. `warnings` are probable mistakes, `notes`
    may be intended, `unknown` are facts about hooks that are not imported. `shuffle` is the seed of
    another order than the file's. `off` are the hooks that a run has switched off, and the
    iterations done then; no recorded plan has any. Nor has it `collapsed` boxes, which drawings
    have in the place of members of `groups`.
    """

    pipeline: str
    hooks: tuple[PlannedHook, ...]
    bindings: tuple[Binding, ...]
    edges: tuple[Edge, ...]
    own: tuple[Point, ...] = ()
    dropped_edges: tuple[DroppedEdge, ...] = ()
    warnings: tuple[Problem, ...] = ()
    notes: tuple[Problem, ...] = ()
    unknown: tuple[Problem, ...] = ()
    shuffle: int | None = None
    off: tuple[tuple[str, int], ...] = ()
    groups: tuple[PlannedGroup, ...] = ()
    collapsed: tuple[CollapsedBinding, ...] = ()

    @cached_property
    def points(self) -> Points:
        """Every point of the run, whether something is bound to it or not."""
        return Points(self.own)

    @cached_property
    def _bindings_by_point(self) -> dict[str, tuple[Binding, ...]]:
        return _group_by_point(self.bindings)

    @cached_property
    def _edges_by_point(self) -> dict[str, tuple[Edge, ...]]:
        return _group_by_point(self.edges)

    @cached_property
    def hooks_by_name(self) -> dict[str, PlannedHook]:
        return {hook.name: hook for hook in self.hooks}

    @cached_property
    def collapsed_by_id(self) -> dict[int, CollapsedBinding]:
        return {box.id: box for box in self.collapsed}

    @cached_property
    def groups_by_name(self) -> dict[str, PlannedGroup]:
        return {group.name: group for group in self.groups}

    @cached_property
    def order(self) -> dict[str, tuple[str, ...]]:
        """The names of the hooks that fire at each point, in order.

        Points without any are left out.
        """
        return {
            point.name: tuple(binding.hook for binding in self.at(point.name))
            for point in self.bound_points
        }

    @cached_property
    def bound_points(self) -> tuple[Point, ...]:
        """The points that have bindings, in the order of a run."""
        return tuple(point for point in self.points if self.at(point.name))

    def __str__(self) -> str:
        """Return a line for each point where something fires: the hooks in order, with triggers."""
        width = max(map(len, self.order), default=0)
        lines = []
        for point in self.order:
            hooks = (
                f"{b.hook} ({b.trigger})" if str(b.trigger) else b.hook for b in self.at(point)
            )
            lines.append(f"{point:<{width}}  {' → '.join(hooks)}")
        return "\n".join(lines)

    def at(self, point: str) -> tuple[Binding, ...]:
        """Return what fires at a point, in order."""
        return self._bindings_by_point.get(point, ())

    def edges_at(self, point: str) -> tuple[Edge, ...]:
        return self._edges_by_point.get(point, ())

    def graph(self, point: str | None = None, *, dropped: bool = False) -> "nx.MultiDiGraph":
        """Return the graph of a point, or of all points, for networkx.

        Raises UserError for an unknown point. A node is the id of a binding, with the attributes
        `hook`, `point`, `half`, `phase`, `binding` (the Binding) and `spec` (the PlannedHook). An
        edge leads from who fires first. Its key is its kind, and its attributes are `kind`,
        `source`, `slots`, `kept`, `reason` and `edge` (the Edge). With `dropped` the graph has the
        data flows that were dropped, too, with `kept` as False and the edges they gave way to as
        `against`; it may have cycles.
        """
        import networkx as nx  # the training process has plans, and asks for no graph

        if point is not None and point not in self.points:
            raise UserError(
                Problem(f'there is no point "{point}"', hint=nearest(point, self.points.names))
            )
        graph = nx.MultiDiGraph(name=self.pipeline)
        for binding in self.bindings:
            if point is None or binding.point == point:
                graph.add_node(
                    binding.id,
                    hook=binding.hook,
                    point=binding.point,
                    half=binding.half,
                    phase=binding.phase,
                    binding=binding,
                    spec=self.hook(binding.hook),
                )
        for edge in self.edges:
            if edge.first_id in graph:
                _add_edge(graph, edge, kept=True, reason=KEPT_BECAUSE[edge.kind])
        if dropped:
            for each in self.dropped_edges:
                if each.edge.first_id in graph:
                    _add_edge(
                        graph, each.edge, kept=False, reason=each.reason, against=each.against
                    )
        return graph

    @cached_property
    def settable(self) -> dict[str, tuple[str, ...]]:
        """The arguments of each hook that a command may set, by the hook's name."""
        return {hook.name: hook.settable for hook in self.hooks}

    def hook(self, name: str) -> PlannedHook:
        """Return a hook. Raises KeyError when there is none of that name."""
        return self.hooks_by_name[name]

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, mappings and strings, as `plan.json` holds them."""
        parts = _as_json(self)
        return {
            "version": VERSION,
            **{name: part for name, part in parts.items() if name not in DRAWN_ONLY or part},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | str | bytes) -> "Plan":
        """Return the plan that `to_json` wrote, or its text.

        Raises ValueError when it is something else.
        """
        from pydantic import ValidationError

        from hookflow.events.reading import read_json

        if isinstance(data, (str, bytes)):
            data = read_json(data, nan=True)
        if isinstance(data, Mapping) and (version := data.get("version", VERSION)) != VERSION:
            message = (
                f"it is in format {version}, and this version of hookflow reads format {VERSION}"
            )
            raise ValueError(f"no plan: {message}")
        try:
            plan = _make_reader().validate_python(data)
        except ValidationError as error:
            (first, *_) = error.errors()
            raise ValueError(
                f"no plan: {'.'.join(map(str, first['loc']))}: {first['msg']}"
            ) from None
        wrong = next(_find_contradictions(plan), "")
        if wrong:
            raise ValueError(f"no plan: {wrong}")
        return plan


def _as_json(value: Any) -> Any:
    """Return a value as JSON holds it.

    Classes of plans become mappings, amounts and conditions texts.
    """
    if isinstance(value, Amount | Condition):
        return str(value)
    if is_dataclass(value):
        return {each.name: _as_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: _as_json(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_as_json, value))
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    return value


DRAWN_ONLY = ("off", "collapsed")
"""Parts of a plan that no recorded plan has: they are for drawings."""

KEPT_BECAUSE: Mapping[EdgeKind, str] = {
    "file": "stated",
    "class": "stated",
    "nesting": "nesting",
    "flow": "uncontradicted",
}
"""The reason, in the graph of networkx, that an edge of each kind is kept."""


def _add_edge(
    graph: "nx.MultiDiGraph", edge: Edge, *, kept: bool, reason: str, against: tuple[Edge, ...] = ()
) -> None:
    graph.add_edge(
        edge.first_id,
        edge.then_id,
        key=edge.kind,
        kind=edge.kind,
        source=edge.source,
        slots=edge.slots,
        kept=kept,
        reason=reason,
        against=against,
        edge=edge,
    )


@cache
def _make_reader() -> "TypeAdapter[Plan]":
    from pydantic import TypeAdapter  # nothing but a reader takes the time to import it

    return TypeAdapter(Plan)


def _find_contradictions(plan: Plan) -> Iterator[str]:
    """Yield what contradicts itself in a plan that was read.

    The readers of a plan rely on the names and numbers in it.
    """
    points = {point.name for point in STANDARD_POINTS}
    for point in plan.own:  # one may follow another of its own that stands above it
        if point.name in points or point.follows not in points:
            yield f"its point {point.name} is there twice, or follows none"
        points.add(point.name)
    hooks = {hook.name for hook in plan.hooks}
    for k, binding in enumerate(plan.bindings):
        if binding.id != k or binding.hook not in hooks or binding.point not in points:
            yield f"its binding {k} is misnumbered, or has no hook or point"
    bound = {(binding.id, binding.hook, binding.point) for binding in plan.bindings}
    for edge in plan.edges:
        if not bound.issuperset(
            {(edge.first_id, edge.first, edge.point), (edge.then_id, edge.then, edge.point)}
        ):
            yield f"it has no bindings for the edge from {edge.first} to {edge.then}"


Placed = TypeVar("Placed", Binding, Edge)


def _group_by_point(items: Iterable[Placed]) -> dict[str, tuple[Placed, ...]]:
    groups: dict[str, list[Placed]] = {}
    for item in items:
        groups.setdefault(item.point, []).append(item)
    return {point: tuple(there) for point, there in groups.items()}


@dataclass(frozen=True, slots=True)
class EdgeSpec:
    """The name of another hook, as an edge states it.

    `at` is the point and half that it holds for, or None for all.

    `group` is the group by which it was named, if it was.
    """

    hook: str
    optional: bool
    kind: EdgeKind
    where: Where
    at: tuple[str, Half] | None = None
    group: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A hook of the pipeline.

    `after` and `before` hold at every point where both hooks are bound.
    """

    hook: PlannedHook
    where: Where
    bound: tuple[DeclaredBinding, ...]
    after: tuple[EdgeSpec, ...] = ()
    before: tuple[EdgeSpec, ...] = ()
    requires: tuple[EdgeSpec, ...] = ()
    ambiguous_with: tuple[EdgeSpec, ...] = ()


Nodes = Mapping[str, Node]
"""Every hook by name, in the file's order."""


@dataclass(frozen=True, slots=True)
class Change:
    """A dotted key with its two values; None where it is not there, for TOML has no null."""

    key: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class EdgeArrow:
    """That `first` fires before `then`, and at which points an edge says so."""

    first: str
    then: str
    points: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReorderedPair:
    """The hooks that fire at a point in both plans, in either order."""

    point: str
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanDifference:
    """All that differs between two plans.

    `bound` and `unbound` are the points at which a hook fires in one of the plans alone.
    """

    keys: tuple[Change, ...]
    hooks_added: tuple[str, ...]
    hooks_removed: tuple[str, ...]
    bound: Mapping[str, tuple[str, ...]]
    unbound: Mapping[str, tuple[str, ...]]
    edges_added: tuple[EdgeArrow, ...]
    edges_removed: tuple[EdgeArrow, ...]
    order: tuple[ReorderedPair, ...]

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__slots__)


Tables: TypeAlias = "Pipeline | Mapping[str, Any]"
"""A pipeline, or the tables that a run has recorded it in."""


def difference(
    old: tuple[Tables, Plan], new: tuple[Tables, Plan], *, sweep: bool = False
) -> PlanDifference:
    """Compare two pipelines and what they were compiled to.

    Their [sweep], which no run records, is compared only with `sweep`.
    """
    before = old[1]
    after = new[1]
    names = [[hook.name for hook in plan.hooks] for plan in (before, after)]
    common = set(names[0]) & set(names[1])
    was = _keys(*old, common, sweep)
    now = _keys(*new, common, sweep)
    changed = (key for key in dict.fromkeys((*was, *now)) if was.get(key) != now.get(key))
    return PlanDifference(
        keys=tuple(Change(key, was.get(key), now.get(key)) for key in changed),
        hooks_added=tuple(name for name in names[1] if name not in common),
        hooks_removed=tuple(name for name in names[0] if name not in common),
        bound=_bound_here(after, before, common),
        unbound=_bound_here(before, after, common),
        edges_added=_find_own_arrows(after, before, common),
        edges_removed=_find_own_arrows(before, after, common),
        order=tuple(_find_reordered(before, after)),
    )


def _keys(pipeline: Tables, plan: Plan, hooks: set[str], sweep: bool) -> dict[str, Any]:
    """Return every key that is set, dotted; of hooks, those of `hooks` alone."""
    if isinstance(pipeline, Mapping):
        tree = dict(pipeline)
    else:
        tree = pipeline.model_dump(by_alias=True)
    tree["hooks"] = {name: hook for name, hook in tree.get("hooks", {}).items() if name in hooks}
    if not sweep:
        tree.pop("sweep", None)
    return {**dict(flat(tree)), "--shuffle": plan.shuffle}


def _bound_here(here: Plan, there: Plan, common: set[str]) -> dict[str, tuple[str, ...]]:
    elsewhere = {_make_key(binding) for binding in there.bindings}
    result: dict[str, list[str]] = {}
    for binding in here.bindings:
        if binding.hook in common and _make_key(binding) not in elsewhere:
            result.setdefault(binding.hook, []).append(binding.point)
    return {hook: tuple(dict.fromkeys(points)) for hook, points in result.items()}


def _find_own_arrows(here: Plan, there: Plan, common: set[str]) -> tuple[EdgeArrow, ...]:
    """Return the edges between common hooks that one plan has alone.

    The place in the file does not count.
    """
    elsewhere = {(edge.first, edge.then, edge.point) for edge in there.edges}
    result: dict[tuple[str, str], list[str]] = {}
    for edge in here.edges:
        if {edge.first, edge.then} <= common and (
            edge.first,
            edge.then,
            edge.point,
        ) not in elsewhere:
            result.setdefault((edge.first, edge.then), []).append(edge.point)
    return tuple(EdgeArrow(first, then, tuple(points)) for (first, then), points in result.items())


def _find_reordered(old: Plan, new: Plan) -> Iterator[ReorderedPair]:
    for point in old.order:
        common = {_make_key(binding) for binding in old.at(point)} & {
            _make_key(binding) for binding in new.at(point)
        }
        before, after = (
            tuple(b.hook for b in plan.at(point) if _make_key(b) in common) for plan in (old, new)
        )
        if before != after:
            yield ReorderedPair(point, before, after)


def _make_key(binding: Binding) -> tuple[str, str, str]:
    return binding.hook, binding.point, binding.half
