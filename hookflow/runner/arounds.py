"""What has been entered and not left: the generators of `around_X`, the latest last."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from hookflow.graph.plan import Binding, Plan


class Arounds:
    """The open `around_X` of a run. `resumed` names the hooks that a resumed run will be inside of."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._open: list[tuple[Binding, Generator[None]]] = []
        self.resumed: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def latest(self) -> Binding:
        return self._open[-1][0]

    def enter(self, binding: Binding, generator: Any) -> None:
        """Run the first half. Raises RuntimeError when there is no second one."""
        try:
            next(generator)
        except StopIteration:
            raise RuntimeError(f'{binding.method} of the hook "{binding.hook}" must yield once, and has not') from None
        self._open.append((binding, generator))

    def leave(self, binding: Binding) -> None:
        """Run the second half of the latest that was entered for this binding. Raises RuntimeError at a third."""
        for entry in reversed(self._open):
            if whose(entry[0]) == whose(binding):
                self._open.remove(entry)
                for _ in entry[1]:
                    said = f'{binding.method} of the hook "{binding.hook}" must yield once, and has yielded again'
                    raise RuntimeError(said)
                return

    def is_open(self, binding: Binding) -> bool:
        return any(whose(entry) == whose(binding) for entry, _ in self._open)

    def at(self, point: str) -> list[str]:
        """Return the hooks that have been entered at `point` and not left; or will be, once a resumed run is there."""
        entered = {binding.hook for binding, _ in self._open if binding.point == point} | self.resumed
        return [binding.hook for binding in self._plan.at(point) if binding.hook in entered and binding.half == "enter"]


def whose(binding: Binding) -> tuple[str, str]:
    """Return what the two halves of an `around_X` have in common."""
    return binding.hook, binding.method
