"""Hooks as the compiler of plans is given them, made by hand."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from hookflow.errors import Where
from hookflow.graph.order import PlanRequests, compile_plan
from hookflow.graph.plan import (
    DeclaredBinding,
    EdgeKind,
    EdgeSpec,
    Half,
    Node,
    Plan,
    PlannedHook,
    Trigger,
)

POINT = "after_train_iter"
AROUND: tuple[tuple[str, Half], ...] = (("before_val", "enter"), ("after_val", "exit"))

Stands = Iterable[tuple[str, Half]]


def wish(name: str, line: int = 1, kind: EdgeKind = "file") -> EdgeSpec:
    """Return an edge or a requirement; a name that ends in "?" is optional."""
    return EdgeSpec(name.removesuffix("?"), name.endswith("?"), kind, Where("p.toml", line))


def node(
    name: str,
    after: Iterable[str] = (),
    before: Iterable[str] = (),
    phase: str = "normal",
    points: Stands = ((POINT, "whole"),),
    requires: Iterable[str] = (),
    reads: Iterable[str] = (),
    writes: Iterable[str] = (),
    ambiguous_with: Iterable[str] = (),
    kind: EdgeKind = "file",
    near: Mapping[str, tuple[Iterable[str], Iterable[str]]] = MappingProxyType({}),
) -> Node:
    """Return a hook that stands at `points` and touches the same slots at each; its edges are of
    one kind.

    `near` are the edges of single methods: for each the hooks that it stands after, and those that
    it stands before.
    """
    hook = PlannedHook(name, name, {}, phase, "", "p.toml:1", "raise", tuple(ambiguous_with))
    slots = tuple(reads), tuple(writes)
    afters, befores, *others = (
        [wish(other, kind=kind) for other in names]
        for names in (after, before, requires, ambiguous_with)
    )
    bound = []
    for point, half in points:
        method = point if half == "whole" else f"around_{point.partition('_')[2]}"
        bound.append(DeclaredBinding(name, point, method, half, (), Trigger(), phase, *slots))
        for specs, names in zip((afters, befores), near.get(method, ((), ())), strict=True):
            specs += (replace(wish(other, 2), at=(point, half)) for other in names)
    return Node(
        hook, Where("p.toml", 1), tuple(bound), tuple(afters), tuple(befores), *map(tuple, others)
    )


def plan(*nodes: Node, disabled: Iterable[str] = (), shuffle: int | None = None) -> Plan:
    return compile_plan(
        "p",
        {n.hook.name: n for n in nodes},
        tuple(disabled),
        requests=PlanRequests(shuffle=shuffle),
    )


def order(compiled: Plan, point: str = POINT) -> list[str]:
    return [binding.hook for binding in compiled.at(point)]
