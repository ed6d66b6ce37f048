"""Hooks that the tests put into pipelines to change the course of a training,
some without having said so.
"""

from typing import Any

from tests.support.common_hooks import at_every_point


@at_every_point
class Steers:
    def __init__(self, call: str, point: str, at: int = 1) -> None:
        self.call, self.point, self.at = call, point, at

    def visit(self, point: str, run: Any) -> None:
        if point == self.point and run.iter == self.at:
            getattr(run, self.call)(*["as told"] * self.call.startswith("stop"))


class Skips:
    """Skips the step of one iteration, or of all."""

    writes = ("control",)

    def __init__(self, at: int | None = None) -> None:
        self.at = at

    def after_backward(self, run: Any) -> None:
        if self.at in (None, run.iter):
            run.skip_step()
