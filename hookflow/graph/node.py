"""A hook as declared, before the order is known: where it is bound, and who it wants to stand before or after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hookflow.errors import Where
from hookflow.graph.plan import EdgeKind, Half, PlannedHook, Trigger


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
