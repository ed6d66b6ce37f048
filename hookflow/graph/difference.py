"""The difference between two pipelines and their plans: keys, hooks, bindings, edges, order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hookflow.graph.plan import Binding, Plan
from hookflow.pipeline.schema import Pipeline
from hookflow.pipeline.source_map import flat


@dataclass(frozen=True, slots=True)
class Change:
    """A dotted key with its two values; None where it is not there, for TOML has no null."""

    key: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class Arrow:
    """That `first` fires before `then`, and at which points an edge says so."""

    first: str
    then: str
    points: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Turned:
    """The hooks that fire at a point in both plans, in either order."""

    point: str
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """All that differs; `bound` and `unbound` are the points at which a hook fires in one of the plans alone."""

    keys: tuple[Change, ...]
    hooks_added: tuple[str, ...]
    hooks_removed: tuple[str, ...]
    bound: Mapping[str, tuple[str, ...]]
    unbound: Mapping[str, tuple[str, ...]]
    edges_added: tuple[Arrow, ...]
    edges_removed: tuple[Arrow, ...]
    order: tuple[Turned, ...]

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__slots__)


Tables = Pipeline | Mapping[str, Any]
"""A pipeline, or the tables that a run has recorded it in."""


def difference(old: tuple[Tables, Plan], new: tuple[Tables, Plan]) -> Difference:
    """Compare two pipelines and what they were compiled to."""
    before, after = old[1], new[1]
    names = [[hook.name for hook in plan.hooks] for plan in (before, after)]
    common = set(names[0]) & set(names[1])
    was, now = _keys(*old, common), _keys(*new, common)
    changed = (key for key in dict.fromkeys((*was, *now)) if was.get(key) != now.get(key))
    return Difference(
        keys=tuple(Change(key, was.get(key), now.get(key)) for key in changed),
        hooks_added=tuple(name for name in names[1] if name not in common),
        hooks_removed=tuple(name for name in names[0] if name not in common),
        bound=_bound_here(after, before, common),
        unbound=_bound_here(before, after, common),
        edges_added=_arrows_here(after, before, common),
        edges_removed=_arrows_here(before, after, common),
        order=tuple(_turned(before, after)),
    )


def _keys(pipeline: Tables, plan: Plan, hooks: set[str]) -> dict[str, Any]:
    """Return every key that is set, dotted; of hooks, those of `hooks` alone."""
    tree = pipeline.model_dump(by_alias=True) if isinstance(pipeline, Pipeline) else dict(pipeline)
    tree["hooks"] = {name: hook for name, hook in tree.get("hooks", {}).items() if name in hooks}
    return {**dict(flat(tree)), "--shuffle": plan.shuffle}


def _bound_here(here: Plan, there: Plan, common: set[str]) -> dict[str, tuple[str, ...]]:
    elsewhere = {_stand(binding) for binding in there.bindings}
    result: dict[str, list[str]] = {}
    for binding in here.bindings:
        if binding.hook in common and _stand(binding) not in elsewhere:
            result.setdefault(binding.hook, []).append(binding.point)
    return {hook: tuple(dict.fromkeys(points)) for hook, points in result.items()}


def _arrows_here(here: Plan, there: Plan, common: set[str]) -> tuple[Arrow, ...]:
    """Return the edges between common hooks that one plan has alone; the place in the file does not count."""
    elsewhere = {(edge.first, edge.then, edge.point) for edge in there.edges}
    result: dict[tuple[str, str], list[str]] = {}
    for edge in here.edges:
        if {edge.first, edge.then} <= common and (edge.first, edge.then, edge.point) not in elsewhere:
            result.setdefault((edge.first, edge.then), []).append(edge.point)
    return tuple(Arrow(first, then, tuple(points)) for (first, then), points in result.items())


def _turned(old: Plan, new: Plan) -> Iterator[Turned]:
    for point in old.order:
        common = {_stand(binding) for binding in old.at(point)} & {_stand(binding) for binding in new.at(point)}
        before, after = (tuple(b.hook for b in plan.at(point) if _stand(b) in common) for plan in (old, new))
        if before != after:
            yield Turned(point, before, after)


def _stand(binding: Binding) -> tuple[str, str, str]:
    return binding.hook, binding.point, binding.half
