"""A compiled plan: hooks, bindings, edges and points. `Node` and `Bound` are hooks before they are ordered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import product, starmap
from typing import Any, Literal, TypeVar

from hookflow.errors import Problem, Where
from hookflow.graph.points import Point, Points

VERSION = 1
"""The version of the format of `plan.json`. It goes up with every change that a reader of the last one would
misread."""

Half = Literal["whole", "enter", "exit"]
"""A plain method is called whole; an `around_X` generator enters at `before_X` and exits at `after_X`."""

EdgeKind = Literal["file", "class", "pair", "flow"]
"""The source of an edge: the pipeline file, the hook's class, the rule that what is entered first is left last (and
that a hook's around encloses its own methods), or that who writes a slot fires before who reads it. A flow edge gives
way to the others."""

Phase = Literal["first", "early", "normal", "late", "last"]
PHASES: tuple[Phase, ...] = ("first", "early", "normal", "late", "last")
"""Places in the order that need no neighbour's name."""

OnError = Literal["raise", "disable", "ignore"]

Ranks = Literal["zero", "all"]
RANKS: tuple[Ranks, ...] = ("zero", "all")
"""On which of the processes that train together a hook fires: on the first one alone, or on every one."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a binding fires, as written (amounts such as "100", "2ep", "30s", "10%"); None leaves a side open.

    Written amounts are read by `hookflow.pipeline.values.parse_amount`.
    """

    every: str | None = None
    since: str | None = None
    until: str | None = None
    when: str | None = None

    def __str__(self) -> str:
        """Return it in a few words, e.g. "every 50 from 1ep"; empty when the binding fires always."""
        named = (("every", self.every), ("from", self.since), ("until", self.until), ("when", self.when))
        return " ".join(f"{name} {amount}" for name, amount in named if amount)


@dataclass(frozen=True, slots=True)
class Binding:
    """One hook at one point. `id` is its place in `Plan.bindings` and its name in the event log.

    `takes` are the arguments its method names, out of those that the point offers, in the method's order. `phase` is
    the one it fires in: the hook's own, unless an edge has moved it into another. `reads` and `writes` are the slots
    that its method touches. `modules` (globs over the names of modules, or classes) and `parameters` (globs over the
    names of parameters) are what it fires on, at a point that fires on such (`Point.picks`).

    The others are for module points alone. `stages` is where the binding fires, none meaning in training alone;
    `prepend` puts it before the hooks that the model has registered itself; with `always_call` it fires after an
    exception, too.
    """

    id: int
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


@dataclass(frozen=True, slots=True)
class Edge:
    """`first` fires before `then` at `point`; `where` is the file and line (or the class) that says so.

    A hook may stand there twice, with a plain method and with half of an `around`: `first_id` and `then_id` are the
    bindings; None in plans that were recorded before edges named them. For a flow edge `where` is empty, and `slots`
    are what `first` writes and `then` reads. A `loose` edge between two second halves follows from how the arounds were
    entered, and nothing but the file's order (or the shuffle) says that.
    """

    point: str
    first: str
    then: str
    kind: EdgeKind
    where: str
    slots: tuple[str, ...] = ()
    first_id: int | None = None
    then_id: int | None = None
    loose: bool = False


@dataclass(frozen=True, slots=True)
class Bundle:
    """Flow edges that are kept as one: from each of `first_ids`, bindings that write `slots`, to each of `then_ids`.

    A thousand writers and a thousand readers of a slot do not become a million edges. Fewer than
    `hookflow.graph.edges.MANY` are kept one by one.
    """

    point: str
    first_ids: tuple[int, ...]
    then_ids: tuple[int, ...]
    slots: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.first_ids) * len(self.then_ids)

    def pairs(self, bindings: Mapping[int, Binding]) -> Iterator[tuple[Binding, Binding]]:
        """Yield the ends of the edges one by one, of those of `bindings` (by their ids) that are in it."""
        firsts, thens = ([bindings[id_] for id_ in ids if id_ in bindings] for ids in (self.first_ids, self.then_ids))
        return product(firsts, thens)

    def touching(self, ids: Collection[int]) -> Iterator[Bundle]:
        """Yield the parts of it that begin or end at some bindings."""
        if firsts := tuple(id_ for id_ in self.first_ids if id_ in ids):
            yield replace(self, first_ids=firsts)
        if thens := tuple(id_ for id_ in self.then_ids if id_ in ids):
            yield replace(self, then_ids=thens)

    def edge(self, first: Binding, then: Binding) -> Edge:
        return Edge(self.point, first.hook, then.hook, "flow", "", self.slots, first.id, then.id)


@dataclass(frozen=True, slots=True)
class GivenWay:
    """A flow edge that is not kept; `against` are the edges that lead from `edge.then` to `edge.first`.

    Of hooks around something, some of these may be edges at the other of the two points. An edge of
    `Plan.given_way_bundles` has none.
    """

    edge: Edge
    against: tuple[Edge, ...]


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

    @property
    def written_args(self) -> str:
        """The arguments as one would write them in a call."""
        if isinstance(self.args, Mapping):
            return ", ".join(f"{name} = {value!r}" for name, value in self.args.items())
        return ", ".join(map(repr, self.args))


@dataclass(frozen=True)
class Plan:
    """Every hook, every binding (point by point in the order of the loop, then in the order of firing), every edge.

    `edges` are those that stand for themselves; `bundles` hold the others, where they are very many. `own` are the
    points that the pipeline declares for itself. `given_way` are the weaker edges that stronger ones have overruled,
    `given_way_bundles` those that are very many. `warnings` are probable mistakes, `notes` may be intended, `unknown`
    are facts about hooks that are not imported. `shuffle` is the seed of another order than the file's.
    """

    pipeline: str
    hooks: tuple[PlannedHook, ...]
    bindings: tuple[Binding, ...]
    edges: tuple[Edge, ...]
    own: tuple[Point, ...] = ()
    given_way: tuple[GivenWay, ...] = ()
    warnings: tuple[Problem, ...] = ()
    notes: tuple[Problem, ...] = ()
    unknown: tuple[Problem, ...] = ()
    shuffle: int | None = None
    bundles: tuple[Bundle, ...] = ()
    given_way_bundles: tuple[Bundle, ...] = ()

    @cached_property
    def points(self) -> Points:
        """Every point of the run, whether something is bound to it or not."""
        return Points(self.own)

    @cached_property
    def _by_point(self) -> dict[str, tuple[Binding, ...]]:
        return _grouped(self.bindings)

    @cached_property
    def _bundles_by_point(self) -> dict[str, tuple[Bundle, ...]]:
        return _grouped(self.bundles)

    @cached_property
    def _edges_by_point(self) -> dict[str, tuple[Edge, ...]]:
        return _grouped(self.edges)

    @cached_property
    def _by_name(self) -> dict[str, PlannedHook]:
        return {hook.name: hook for hook in self.hooks}

    @cached_property
    def order(self) -> dict[str, tuple[str, ...]]:
        """The names of the hooks that fire at each point, in order; points without any are left out."""
        return {point.name: tuple(b.hook for b in self.at(point.name)) for point in self.points if self.at(point.name)}

    def __str__(self) -> str:
        """Return a line for each point where something fires: the hooks in order, with their triggers."""
        width = max(map(len, self.order), default=0)
        return "\n".join(f"{point:<{width}}  {' → '.join(map(_with_trigger, self.at(point)))}" for point in self.order)

    def at(self, point: str) -> tuple[Binding, ...]:
        """Return what fires at a point, in order."""
        return self._by_point.get(point, ())

    def edges_at(self, point: str) -> tuple[Edge, ...]:
        return self._edges_by_point.get(point, ())

    def bundles_at(self, point: str) -> tuple[Bundle, ...]:
        return self._bundles_by_point.get(point, ())

    @property
    def edge_count(self) -> int:
        """How many edges there are, with those in bundles."""
        return len(self.edges) + sum(map(len, self.bundles))

    @property
    def edge_kinds(self) -> set[EdgeKind]:
        result = {edge.kind for edge in self.edges}
        return result | {"flow"} if self.bundles else result

    def gave_way_unexplained(self) -> Counter[str]:
        """Return how many flow edges of each point gave way of which it is not kept against what."""
        count = Counter[str]()
        for bundle in self.given_way_bundles:
            count[bundle.point] += len(bundle)
        return count

    @cached_property
    def _dropped(self) -> frozenset[Edge]:
        return frozenset(provided.edge for provided in self.given_way)

    def circle(self, given_way: GivenWay) -> tuple[Edge, ...]:
        """Return the circle of flows that an edge gave way to, from its first name on; () where a kept edge did it.

        Of such a circle no edge is kept, since none is the stronger.
        """
        if not given_way.against or not self._dropped.issuperset(given_way.against):
            return ()
        edges = (given_way.edge, *given_way.against)
        start = min(range(len(edges)), key=lambda k: edges[k].first)
        return (*edges[start:], *edges[:start])

    def every_edge(self) -> Iterator[Edge]:
        """Yield every edge, also those in bundles, which are made only now."""
        yield from self.edges
        bindings = {binding.id: binding for binding in self.bindings} if self.bundles else {}
        for bundle in self.bundles:
            yield from starmap(bundle.edge, bundle.pairs(bindings))

    def hook(self, name: str) -> PlannedHook:
        """Return a hook. Raises KeyError when there is none of that name."""
        return self._by_name[name]

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, mappings and strings, as `plan.json` holds them."""
        rare = {key for key in ("unknown", "bundles", "given_way_bundles") if not getattr(self, key)}
        return {"version": VERSION, **{key: value for key, value in asdict(self).items() if key not in rare}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Return the plan that `to_json` wrote. Raises KeyError, TypeError or ValueError when it is something else."""
        check_version(data)
        return cls(
            pipeline=data["pipeline"],
            hooks=tuple(PlannedHook(**_tuples(hook) | {"args": hook["args"]}) for hook in data["hooks"]),
            bindings=tuple(
                Binding(**_tuples(binding) | {"trigger": Trigger(**binding["trigger"])}) for binding in data["bindings"]
            ),
            edges=_edges(data["edges"]),
            own=tuple(Point(**_tuples(point)) for point in data["own"]),
            given_way=tuple(
                GivenWay(_edges([provided["edge"]])[0], _edges(provided["against"])) for provided in data["given_way"]
            ),
            warnings=tuple(_problem(**warning) for warning in data["warnings"]),
            notes=tuple(_problem(**note) for note in data.get("notes", ())),  # older plans have none
            shuffle=data["shuffle"],
            bundles=tuple(Bundle(**_tuples(bundle)) for bundle in data.get("bundles", ())),  # most plans have none
            given_way_bundles=tuple(Bundle(**_tuples(bundle)) for bundle in data.get("given_way_bundles", ())),
        )


def check_version(data: Any) -> None:
    """Raise ValueError when a plan was written in another format; the first one had no version."""
    if isinstance(data, Mapping) and (version := data.get("version", VERSION)) != VERSION:
        raise ValueError(f"no plan: it is in format {version}, and this version of hookflow reads format {VERSION}")


def _with_trigger(binding: Binding) -> str:
    return f"{binding.hook} ({binding.trigger})" if str(binding.trigger) else binding.hook


def _edges(data: Iterable[Mapping[str, Any]]) -> tuple[Edge, ...]:
    return tuple(Edge(**_tuples(edge)) for edge in data)


def _problem(message: str, where: Mapping[str, Any] | None, hint: str) -> Problem:
    return Problem(message, Where(**where) if where else None, hint)


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with tuples for the lists, as which JSON keeps them."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}


Placed = TypeVar("Placed", Binding, Edge, Bundle)


def _grouped(things: Iterable[Placed]) -> dict[str, tuple[Placed, ...]]:
    groups: dict[str, list[Placed]] = {}
    for thing in things:
        groups.setdefault(thing.point, []).append(thing)
    return {point: tuple(there) for point, there in groups.items()}


@dataclass(frozen=True, slots=True)
class EdgeSpec:
    """The name of another hook, as an edge or a requirement states it. An `optional` one may be missing."""

    hook: str
    optional: bool
    kind: EdgeKind
    where: Where


@dataclass(frozen=True, slots=True)
class Bound:
    """One method of a hook at one point; `after` and `before` hold for this point alone."""

    point: str
    method: str
    half: Half
    takes: tuple[str, ...]
    trigger: Trigger
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    after: tuple[EdgeSpec, ...] = ()
    before: tuple[EdgeSpec, ...] = ()
    parameters: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    prepend: bool = False
    always_call: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """A hook of the pipeline: `after` and `before` hold at every point where both hooks are bound."""

    hook: PlannedHook
    where: Where
    bound: tuple[Bound, ...]
    after: tuple[EdgeSpec, ...] = ()
    before: tuple[EdgeSpec, ...] = ()
    requires: tuple[EdgeSpec, ...] = ()
    ambiguous_with: tuple[EdgeSpec, ...] = ()


Nodes = Mapping[str, Node]
"""Every hook by name, in the file's order."""
