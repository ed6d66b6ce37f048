"""The keys of a hook's table, and of its points, that pick modules and parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hookflow.errors import Problem, Where
from hookflow.graph.plan import Binding, EdgeSpec, Node
from hookflow.graph.points import Point, Points
from hookflow.hooks.inspect import Method
from hookflow.pipeline.schema import BindingSpec, HookNode

MODULE_KEYS = ("modules", "stages", "prepend", "always_call")
KEYS = (*MODULE_KEYS, "parameters")
ALLOWED = {"module": MODULE_KEYS, "state": ("modules",), "parameter": ("parameters",)}
"""The keys that a binding may have, by the kind of its point."""
BACKWARD = ("full_backward_pre", "full_backward")
EXAMPLES = {
    "modules": 'name them as a glob: modules = ["layer*.conv?"]; ["*"] is every one',
    "parameters": 'name them as a glob: parameters = ["*.weight"]; ["*"] is every one',
}


class PickKeys:
    """These keys of one hook's table, and of the points in it, with the `problems` of them.

    `in_class` returns the names that an attribute of the hook's class holds; None where there is no such class.
    `prepended` are the points where the hook is prepended, with the place in the file.
    """

    def __init__(
        self,
        hook: str,
        table: HookNode,
        in_class: Callable[[str], tuple[str, ...]] | None,
        points: Points,
        place: Callable[[str], Where],
        *,
        compiles: bool,
    ) -> None:
        self.problems: list[Problem] = []
        self.prepended: dict[str, Where] = {}
        self._hook = hook
        self._called = f'hook "{hook}"'
        self._table = table
        self._in_class = in_class
        self._points = points
        self._place = place
        self._compiles = compiles

    def of(self, method: Method, near: BindingSpec | None, key: str) -> dict[str, Any]:
        """Return what a binding has of these; `near` is its entry in the file's `points`, which stands at `key`."""
        point = self._points[method.point]
        for name in KEYS:
            if near and getattr(near, name) is not None and name not in ALLOWED.get(point.kind, ()):
                kind = "parameter" if name == "parameters" else "forward or backward" if point.picks else "module"
                self._wrong(f"{name} is not allowed at {point.name}: it is not a {kind} point", f"{key}.{name}")
        result: dict[str, Any] = {point.picks: self._picked(point, near, key)} if point.picks else {}
        if point.kind != "module":
            return result
        stages, stages_at = self._stated("stages", near, key)
        prepend, prepend_at = self._stated("prepend", near, key)
        always, always_at = self._stated("always_call", near, key)
        if near and near.always_call is not None and point.name != "forward":
            self._wrong(f"{self._called}: always_call is for forward, not for {point.name}", f"{key}.always_call")
        if always and self._compiles and point.name == "forward":
            message = f"{self._called}: torch.compile does not honour always_call"
            self._wrong(message, always_at, "take it out, or take run.compile out")
        if prepend:
            self.prepended[point.name] = self._place(prepend_at)
        return {
            **result,
            "stages": self._stages(point.name, stages or (), stages_at, near),
            "prepend": bool(prepend),
            "always_call": bool(always) and point.name == "forward",
        }

    def without_effect(self, bound: Sequence[Binding]) -> Iterator[Problem]:
        """Yield each key of the whole hook that holds at none of its points."""
        points = [self._points[item.point] for item in bound]
        own = [item for item in self._table.points or () if isinstance(item, BindingSpec)]
        for field in ("every", "from_", "until", "when", *KEYS) if bound else ():
            why, hint = "", f"it is at {', '.join(dict.fromkeys(point.name for point in points))}"
            key = field.rstrip("_")
            holds = [point for point in points if key in ALLOWED.get(point.kind, ()) or key not in KEYS]
            if not holds:
                why = f"it is at no point of a {'parameter' if key == 'parameters' else 'module'}"
            elif key == "always_call" and all(point.name != "forward" for point in holds):
                why = "it is not at forward"
            elif len(own) == len(self._table.points or ".") and all(getattr(spec, field) is not None for spec in own):
                why, hint = "each of its points has its own", f"change that one: {key} in hooks.{self._hook}.points"
            if why and getattr(self._table, field) is not None:
                yield Problem(f"{self._called}: {key} has no effect, since {why}", self._place(key), hint)

    def _stated(self, name: str, near: BindingSpec | None, key: str) -> tuple[Any, str]:
        if near is not None and getattr(near, name) is not None:
            return getattr(near, name), f"{key}.{name}"
        return getattr(self._table, name), name

    def _picked(self, point: Point, near: BindingSpec | None, key: str) -> tuple[str, ...]:
        picks = point.picks or ""
        result = tuple(self._stated(picks, near, key)[0] or (self._in_class(picks) if self._in_class else ()))
        if not result and self._in_class:
            message = f"{self._called} does not say at which {picks} {point.name} fires"
            self._wrong(message, key or "use", EXAMPLES[picks])
        return result

    def _stages(self, point: str, stages: Sequence[str], at: str, near: BindingSpec | None) -> tuple[str, ...]:
        """Return the stages that are stated. In val and test there are no gradients, and nothing goes backward."""
        if point not in BACKWARD:
            return tuple(dict.fromkeys(stages))
        without = [stage for stage in stages if stage != "train"]
        if without and ((near is not None and near.stages is not None) or "train" not in stages):
            message = f"{self._called} never fires at {point} in {' and '.join(without)}, where gradients are off"
            self._wrong(message, at, 'name the points that it has to do with: points = ["forward"]')
        return ()

    def _wrong(self, message: str, key: str, hint: str = "") -> None:
        self.problems.append(Problem(message, self._place(key), hint))


def with_prepended_first(nodes: Mapping[str, Node], prepended: Mapping[str, Mapping[str, Where]]) -> dict[str, Node]:
    """Return the nodes with an edge from each hook that is prepended at a point to each that is not.

    `prepended` says of each hook at which points it is, and where the file says so: the hooks that the model has
    registered itself fire between the two.
    """
    at: dict[str, list[str]] = {}
    for name, node in nodes.items():
        for bound in node.bound:
            if bound.modules and not bound.prepend:
                at.setdefault(bound.point, []).append(name)

    def edges(node: Node) -> Iterator[EdgeSpec]:
        for bound in node.bound:
            for other in at.get(bound.point, ()) if bound.prepend else ():
                where = prepended[node.hook.name][bound.point]
                yield EdgeSpec(other, False, "file", where, (bound.point, bound.half))

    return {name: replace(node, before=(*node.before, *edges(node))) for name, node in nodes.items()}
