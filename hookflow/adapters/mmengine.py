"""Hooks of MMEngine, unmodified.

Each is called as MMEngine's Runner calls it, with a runner that is a view of the run.

`use = "mmengine:EMAHook"` names a hook of MMEngine's registry; any other class with
`mmengine.hooks.Hook` among its bases is adapted likewise. Source: `mmengine.hooks.Hook`, version
0.10.
"""

from typing import Any, ClassVar

from hookflow.adapters.mmengine_hook import MMEngineHook
from hookflow.adapters.mmengine_tables import (
    ADAPTER_READS,
    EPOCH_OF_LOOP,
    HIGHEST_PRIORITIES,
    HOOK_SLOTS,
    HOOK_WRITES_OUTSIDE,
    POINT_ARGUMENTS,
    REPLACEMENT_HINTS,
    translate_members,
)
from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.graph.plan import EdgeSpec, Half, Nodes, Phase
from hookflow.hooks.adapter import (
    AdaptedClasses,
    AdaptedClassSpec,
    AdaptedHook,
    EdgesByHook,
    FrameworkNames,
    HookAdapter,
    get_bases,
    get_module_name,
    get_package_name,
    read_adapted_capabilities,
    read_slots,
)
from hookflow.pipeline.registry import missing_package

BindingPlace = tuple[str, Half]
"""A point, and the half of an around there."""


class MMEngineAdapter(HookAdapter):
    """Runs hooks of MMEngine, in the order of their priorities."""

    prefix = "mmengine"
    names: ClassVar = FrameworkNames(
        framework="MMEngine",
        packages=("mmengine", "mmcv"),
        base="Hook",
        arguments={"runner": "run", "data_batch": "batch"},
        unmistakable=("runner", "data_batch"),
        members=translate_members(),
    )

    def find(self, name: str, where: Where | None) -> type:
        """Return the hook of MMEngine's registry that has this name.

        Raises UserError where there is none.
        """
        problem = missing_package(f'use = "mmengine:{name}"', "mmengine", "mmengine", where)
        if problem is not None:
            raise UserError(problem)
        import mmengine.hooks
        from mmengine.registry import HOOKS

        result: Any = getattr(mmengine.hooks, name, None) or HOOKS.get(name)
        if not isinstance(result, type) or not self.claims(result):
            known = [*mmengine.hooks.__all__, *HOOKS.module_dict]
            raise UserError(Problem(f'MMEngine has no hook "{name}"', where, nearest(name, known)))
        return result

    def claims(self, kind: type) -> bool:
        """Say whether a class is derived from MMEngine's `Hook`."""
        for base in get_bases(kind)[1:]:
            name = type.__getattribute__(base, "__name__")
            if name == "Hook" and get_module_name(base).startswith("mmengine."):
                return True
        return False

    def read(self, kind: type, where: Where | None) -> AdaptedClassSpec:
        """Read a hook class. Raises UserError for some of MMEngine's own, and of its libraries."""
        from mmengine.runner.priority import get_priority

        package = get_package_name(kind)
        replacement = REPLACEMENT_HINTS.get(f"{package}.{kind.__name__}")
        if replacement is not None:
            if package == "mmengine":
                owner = "MMEngine"
            else:
                owner = package
            raise UserError(
                Problem(f"{owner}'s {kind.__name__} needs MMEngine's Runner", where, replacement)
            )
        arguments = {point: POINT_ARGUMENTS[point] for point in find_points(kind)}
        slots = read_slots(kind, "mmengine.", HOOK_SLOTS)
        reads: dict[str, tuple[str, ...]] = {}
        for point in arguments:
            reads[point] = slots.reads.get(point, ()) + ADAPTER_READS.get(point, ())
        level: int = get_priority(kind.priority)  # type: ignore[attr-defined]
        return AdaptedClassSpec(
            base=MMEngineHook,
            arguments=arguments,
            reads=reads,
            writes=slots.writes,
            phase=find_phase(level),
            capabilities=read_adapted_capabilities(
                kind, MMEngineHook, "mmengine.", HOOK_WRITES_OUTSIDE
            ),
            attributes={"priority_level": level},
        )

    def edges(self, nodes: Nodes, hooks: AdaptedClasses) -> EdgesByHook:
        """Return an edge from each hook of MMEngine to each of a greater priority number.

        At a point where stated edges put the two the other way round, directly or by way of others,
        there is none.
        """
        levels = {name: get_priority_level(hook) for name, hook in hooks.items()}
        followers = StatedFollowers(nodes)
        edges: dict[str, list[EdgeSpec]] = {}
        for name, level in levels.items():
            edges[name] = []
            for other, other_level in levels.items():
                if other_level < level:
                    edges[name] += _make_priority_edges(other, name, level, followers)
        return edges


def find_points(kind: type) -> list[str]:
    """Return the points at which a hook has something to do."""
    from mmengine.hooks import Hook as MMEngineBase

    points = {*MMEngineBase.get_triggered_stages(kind)}  # which takes a class as well
    for inner, outer in EPOCH_OF_LOOP.items():
        if inner in points:
            points.add(outer)  # where the iteration-based loop fires it
    if "before_train_epoch" in points:
        points.add("after_load_checkpoint")  # where the epochs that have begun are shown again
    return [point for point in POINT_ARGUMENTS if point in points]


def get_priority_level(hook: type[AdaptedHook]) -> int:
    """Return the priority of an adapted class of hooks."""
    assert issubclass(hook, MMEngineHook)
    return hook.priority_level


def find_phase(level: int) -> Phase:
    """Return the phase of a priority."""
    for highest, phase in HIGHEST_PRIORITIES:
        if level <= highest:
            return phase
    raise ValueError(f"MMEngine has no priority {level}")


def _make_priority_edges(
    first: str, then: str, level: int, followers: "StatedFollowers"
) -> list[EdgeSpec]:
    """Return the edges by which a hook fires before another.

    There is one at each point where nothing stated contradicts it.
    """
    where = Where(f"priority {level}")
    shared = followers.places[first] & followers.places[then]
    free = {place for place in shared if not followers.has(then, first, place)}
    if free == shared:
        return [EdgeSpec(first, False, "class", where)]
    return [EdgeSpec(first, False, "class", where, place) for place in sorted(free)]


class StatedFollowers:
    """The hooks that stated edges put after a hook at a point, directly or by others."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.places: dict[str, set[BindingPlace]] = {}
        """By hook: where it is bound."""
        for name, node in nodes.items():
            self.places[name] = {(bound.point, bound.half) for bound in node.bound}
        self._graphs: dict[BindingPlace, Any] = {}

    def has(self, first: str, then: str, place: BindingPlace) -> bool:
        """Say whether stated edges put `then` after `first` at a place."""
        import networkx as nx  # which a training without hooks of MMEngine does without

        if place not in self._graphs:
            self._graphs[place] = self._make_graph(place)
        return bool(nx.has_path(self._graphs[place], first, then))

    def _make_graph(self, place: BindingPlace) -> Any:
        import networkx as nx

        graph = nx.DiGraph()
        graph.add_nodes_from(name for name, places in self.places.items() if place in places)
        for name in [*graph]:
            for spec in self._nodes[name].after:
                if spec.hook in graph and spec.at in (None, place):
                    graph.add_edge(spec.hook, name)
            for spec in self._nodes[name].before:
                if spec.hook in graph and spec.at in (None, place):
                    graph.add_edge(name, spec.hook)
        return graph
