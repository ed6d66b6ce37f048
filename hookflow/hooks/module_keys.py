"""The keys of a hook's point that pick modules and parameters, and what does not go with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hookflow.errors import Problem, Where
from hookflow.graph.plan import Binding, EdgeSpec, Node
from hookflow.graph.points import Points
from hookflow.hooks.inspect import Method
from hookflow.pipeline.schema import BindingSpec, HookNode

KEYS = ("modules", "stages", "prepend", "with_kwargs", "always_call")
BACKWARD = ("full_backward_pre", "full_backward")


class ModuleKeys:
    """These keys of one hook's table, and of the points in it; `problems` is what is wrong with them.

    `modules` are those that the hook's class states, None where there is no such class. `place` tells where a key of
    the table stands. `prepended` are the points where the hook is prepended, with where the file says so.
    """

    def __init__(
        self,
        hook: str,
        message: HookNode,
        modules: Sequence[str] | None,
        points: Points,
        place: Callable[[str], Where],
        *,
        compiles: bool,
    ) -> None:
        self.problems: list[Problem] = []
        self.prepended: dict[str, Where] = {}
        self._called = f'hook "{hook}"'
        self._said = message
        self._modules = modules
        self._points = points
        self._place = place
        self._compiles = compiles

    def of(self, method: Method, near: BindingSpec | None, key: str) -> dict[str, Any]:
        """Return what a binding has of these; `near` is its entry in the file's `points`, which stands at `key`."""
        point = method.point
        if self._points[point].kind != "module":
            picks = self._points[point].picks == "modules"
            for name in KEYS[picks:]:
                if near and getattr(near, name) is not None:
                    why = "forward or backward" if picks else "module"
                    self._wrong(f"{name} is not allowed at {point}: it is not a {why} point", f"{key}.{name}")
            return {"modules": self._picked(self._stated("modules", near, key)[0], point, key)} if picks else {}
        result = {name: self._stated(name, near, key) for name in KEYS}
        self._check_kwargs(method, near, key)
        stages, at = result["stages"]
        prepend, prepended_at = result["prepend"]
        always, always_at = result["always_call"]
        if near and near.always_call is not None and point != "forward":
            self._wrong(f"{self._called}: always_call is for forward, not for {point}", f"{key}.always_call")
        if always and self._compiles and point == "forward":
            message = f"{self._called}: torch.compile does not honour always_call"
            self._wrong(message, always_at, "take it out, or take run.compile out")
        if prepend:
            self.prepended[point] = self._place(prepended_at)
        return {
            "modules": self._picked(result["modules"][0], point, key),
            "stages": self._stages(point, stages or (), at, near),
            "prepend": bool(prepend),
            "always_call": bool(always) and point == "forward",
        }

    def without_effect(self, bound: Sequence[Binding]) -> Iterator[Problem]:
        """Yield each of these keys of the whole hook that holds at none of its points."""
        inside = [item for item in bound if self._points[item.point].kind == "module"]
        at = ", ".join(dict.fromkeys(item.point for item in bound))
        for key in KEYS:
            if not bound or getattr(self._said, key) is None:
                continue
            why = ""
            if key == "modules" and any(self._points[item.point].picks == key for item in bound):
                continue
            if not inside:
                why = "it is at no point of a module"
            elif key == "always_call" and not any(item.point == "forward" for item in inside):
                why = "it is not at forward"
            elif self._said.with_kwargs and key == "with_kwargs" and not any("kwargs" in item.takes for item in inside):
                why = "it takes kwargs at none of its points"
            if why:
                message = f"{self._called}: {key} has no effect, since {why}"
                yield Problem(message, self._place(key), f"it is at {at}")

    def _stated(self, name: str, near: BindingSpec | None, key: str) -> tuple[Any, str]:
        """Return a key's value and where it stands: beside the point, or else for the whole hook."""
        if near is not None and getattr(near, name) is not None:
            return getattr(near, name), f"{key}.{name}"
        return getattr(self._said, name), name

    def _picked(self, stated: Sequence[str] | None, point: str, key: str) -> tuple[str, ...]:
        """Return what picks the modules; a binding at a module point needs something."""
        result = tuple(stated or self._modules or ())
        if not result and self._modules is not None:
            message = f"{self._called} does not say at which modules {point} fires"
            self._wrong(message, key or "use", 'name them as a glob: modules = ["layer*.conv?"]; ["*"] is every one')
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

    def _check_kwargs(self, method: Method, near: BindingSpec | None, key: str) -> None:
        takes = "kwargs" in method.takes
        stated, at = self._stated("with_kwargs", near, key)
        if self._modules is None or stated is None:
            return
        if near is not None and near.with_kwargs and not takes:
            message = f"{self._called} takes no kwargs at {method.point}, so with_kwargs cannot be true"
            self._wrong(message, at, "with kwargs PyTorch calls it as hook(module, args, kwargs, …)")
        if stated is False and takes:
            message = f"{self._called} takes kwargs at {method.point}, so with_kwargs cannot be false"
            self._wrong(message, at, "leave the key out: the signature says it")

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


class ParameterKeys:
    """The parameters of a hook: its table, each of its points, and its class (None where there is none)."""

    def __init__(
        self,
        hook: str,
        message: HookNode,
        in_class: tuple[str, ...] | None,
        points: Points,
        place: Callable[[str], Where],
    ) -> None:
        self._hook = hook
        self._said = message
        self._in_class = in_class
        self._points = points
        self._place = place
        self._problems: list[Problem] = []

    def of(self, point: str, near: BindingSpec | None, key: str) -> tuple[str, ...]:
        """Return the globs of a binding, which parameter points alone have, and need; `near` is its table, at `key`."""
        beside = near.parameters if near else None
        if self._points[point].picks != "parameters":
            if beside:
                message = f"parameters is not allowed at {point}: it is not a parameter point"
                self._problems.append(Problem(message, self._place(f"{key}.parameters"), self._hint()))
            return ()
        result = tuple(beside or self._said.parameters or self._in_class or ())
        if not result and self._in_class is not None:
            message = f'hook "{self._hook}" does not say at which parameters {point} fires'
            hint = 'name them as a glob: parameters = ["*.weight"]; ["*"] is every one'
            self._problems.append(Problem(message, self._place(key or "use"), hint))
        return result

    def wrong(self, bound: Sequence[Binding]) -> Iterator[Problem]:
        """Yield what is wrong, once all bindings are known."""
        yield from self._problems
        if self._said.parameters and bound and not any(self._fires_at_some(item.point) for item in bound):
            message = f'hook "{self._hook}": parameters has no effect, since it is at no point of a parameter'
            yield Problem(message, self._place("parameters"), self._hint())

    def _fires_at_some(self, point: str) -> bool:
        return self._points[point].picks == "parameters"

    def _hint(self) -> str:
        return f"they are for {' and '.join(point.name for point in self._points if point.picks == 'parameters')}"
