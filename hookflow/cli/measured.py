"""What the hooks of an answer took in the run that is asked about."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookflow.cli.pipelines import Target
    from hookflow.graph.plan import Binding
    from hookflow.graph.why import Answer
    from hookflow.monitor.state import RunState


class Measured:
    """The times of a run; a pipeline file has none."""

    def __init__(self, target: Target) -> None:
        self._target = target

    @cached_property
    def _state(self) -> RunState | None:
        from hookflow.monitor.feed import Live

        if self._target.run is None:
            return None
        live = Live(self._target.run)
        while live.poll():
            pass
        return live.state

    def lines(self, answer: Answer) -> Iterator[str]:
        """Yield what the two took, and that the one has waited for nothing, where nothing requires their order."""
        if self._state is None or answer.first.hook == answer.then.hook:
            return
        first, then = (self._state.timing(binding.id).total for binding in (answer.first, answer.then))
        took = f"{self._took(answer.first)}, ahead of {self._took(answer.then)}"
        free = answer.reason == "file" and first > then
        yield f"  in this run: {took}{'; nothing requires it' if free else ''}"

    def _took(self, binding: Binding) -> str:
        from hookflow.monitor.formatting import ms, rough

        assert self._state is not None
        timing = self._state.timing(binding.id)
        took = f"{ms(timing.total)} ms" if timing.total < 1e9 else f"{rough(timing.total / 1e9)} s"
        return f"{binding.hook}, {took} in {timing.count:,} firing{'s' * (timing.count != 1)}"
