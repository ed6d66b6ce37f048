"""A plan: the compiled pipeline, for each point its bindings in their order. Immutable, and the same after JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

Half = Literal["whole", "enter", "exit"]
"""A plain method is called whole; an `around_X` generator enters at `before_X` and exits at `after_X`."""

EdgeKind = Literal["file", "class", "pair"]
"""Who stated an edge: the pipeline file, the hook's class, or the rule that what is entered first is left last."""

OnError = Literal["raise", "disable", "ignore"]


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a binding fires, as written (amounts such as "100", "2ep", "30s", "10%"); None leaves a side open.

    Written amounts are read by `hookflow.pipeline.units.parse_amount`.
    """

    every: str | None = None
    since: str | None = None
    until: str | None = None

    def __str__(self) -> str:
        """Return it in a few words, e.g. "every 50 from 1ep"; empty when the binding fires always."""
        named = (("every", self.every), ("from", self.since), ("until", self.until))
        return " ".join(f"{name} {amount}" for name, amount in named if amount)


@dataclass(frozen=True, slots=True)
class Binding:
    """One hook at one point. `id` is its place in `Plan.bindings` and its name in the event log.

    `takes` are the arguments its method names, out of those that the point offers, in the method's order.
    """

    id: int
    hook: str
    point: str
    method: str
    half: Half
    takes: tuple[str, ...]
    trigger: Trigger
    phase: str


@dataclass(frozen=True, slots=True)
class Edge:
    """`first` fires before `then` at `point`; `where` is the file and line (or the class) that says so."""

    point: str
    first: str
    then: str
    kind: EdgeKind
    where: str


@dataclass(frozen=True, slots=True)
class PlannedHook:
    """A node: a hook by its name in the file, what it is made of, and what it says of itself."""

    name: str
    use: str
    args: Mapping[str, Any]
    phase: str
    about: str
    where: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    on_error: OnError


@dataclass(frozen=True)
class Plan:
    """Every hook, every binding (point by point in the order of the loop, then in the order of firing), every edge."""

    pipeline: str
    hooks: tuple[PlannedHook, ...]
    bindings: tuple[Binding, ...]
    edges: tuple[Edge, ...]

    @cached_property
    def _by_point(self) -> dict[str, tuple[Binding, ...]]:
        points: dict[str, list[Binding]] = {}
        for binding in self.bindings:
            points.setdefault(binding.point, []).append(binding)
        return {point: tuple(bound) for point, bound in points.items()}

    def at(self, point: str) -> tuple[Binding, ...]:
        """Return what fires at a point, in order."""
        return self._by_point.get(point, ())

    def edges_at(self, point: str) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.point == point)

    def hook(self, name: str) -> PlannedHook:
        return next(hook for hook in self.hooks if hook.name == name)

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, mappings and strings, as `plan.json` holds them."""
        return {
            "pipeline": self.pipeline,
            "hooks": [asdict(hook) for hook in self.hooks],
            "bindings": [asdict(binding) for binding in self.bindings],
            "edges": [asdict(edge) for edge in self.edges],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Return the plan that `to_json` wrote. Raises KeyError or TypeError when it is something else."""
        return cls(
            pipeline=data["pipeline"],
            hooks=tuple(
                PlannedHook(**{**hook, "reads": tuple(hook["reads"]), "writes": tuple(hook["writes"])})
                for hook in data["hooks"]
            ),
            bindings=tuple(
                Binding(**{**binding, "takes": tuple(binding["takes"]), "trigger": Trigger(**binding["trigger"])})
                for binding in data["bindings"]
            ),
            edges=tuple(Edge(**edge) for edge in data["edges"]),
        )
