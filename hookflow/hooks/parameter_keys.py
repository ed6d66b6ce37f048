"""`parameters` in a hook's table: the globs that say at which parameters its hook fires."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hookflow.errors import Problem, Where
from hookflow.graph.plan import Bound
from hookflow.graph.points import Points
from hookflow.pipeline.schema import BindingSpec, HookNode


class ParameterKeys:
    """What a hook says of parameters: its table, each of its points, and its class (None where there is none)."""

    def __init__(
        self,
        hook: str,
        said: HookNode,
        in_class: tuple[str, ...] | None,
        points: Points,
        place: Callable[[str], Where],
    ) -> None:
        self._hook = hook
        self._said = said
        self._in_class = in_class
        self._points = points
        self._place = place
        self._problems: list[Problem] = []

    def of(self, point: str, near: BindingSpec | None, key: str) -> tuple[str, ...]:
        """Return the globs of a binding, which parameter points alone have, and need; `near` is its table, at `key`."""
        beside = near.parameters if near else None
        if self._points[point].picks != "parameters":
            if beside:
                said = f"parameters is not allowed at {point}: it is not a parameter point"
                self._problems.append(Problem(said, self._place(f"{key}.parameters"), self._hint()))
            return ()
        found = tuple(beside or self._said.parameters or self._in_class or ())
        if not found and self._in_class is not None:
            said = f'hook "{self._hook}" does not say at which parameters {point} fires'
            hint = 'name them as a glob: parameters = ["*.weight"]; ["*"] is every one'
            self._problems.append(Problem(said, self._place(key or "use"), hint))
        return found

    def wrong(self, bound: Sequence[Bound]) -> Iterator[Problem]:
        """Yield what is wrong, once all bindings are known."""
        yield from self._problems
        if self._said.parameters and bound and not any(self._fires_at_some(one.point) for one in bound):
            said = f'hook "{self._hook}": parameters has no effect, since it is at no point of a parameter'
            yield Problem(said, self._place("parameters"), self._hint())

    def _fires_at_some(self, point: str) -> bool:
        return self._points[point].picks == "parameters"

    def _hint(self) -> str:
        return f"they are for {' and '.join(point.name for point in self._points if point.picks == 'parameters')}"
