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


class Replaces:
    writes = ("batch",)

    def before_train_iter(self, run: Any, batch: Any) -> None:
        run.replace_batch((0 * batch[0], batch[1]))

    before_val_iter = before_train_iter


class SeesBatch:
    reads = ("batch",)

    def before_train_iter(self, run: Any, batch: Any) -> None:
        run.say(f"{run.iter} {run.batch_size} {float(batch[0].abs().sum()) > 0}")

    after_forward = before_train_iter
    after_train_iter = before_train_iter
    before_val_iter = before_train_iter


class ReplacesUndeclared:
    """Calls the run by a name that no check of the file sees,
    so that the run itself must refuse it.
    """

    call = "replace_batch"

    def before_train_iter(self, run: Any, batch: Any) -> None:
        getattr(run, self.call)((0 * batch[0], batch[1]))


class StopsUndeclared:
    def after_val_iter(self, run: Any) -> None:
        if run.iter > 5:
            run.stop("validated often enough")


class Skips:
    """Skips the step of one iteration, or of all."""

    writes = ("control",)

    def __init__(self, at: int | None = None) -> None:
        self.at = at

    def after_backward(self, run: Any) -> None:
        if self.at in (None, run.iter):
            run.skip_step()


class SkipsAll:
    writes = ("control",)

    def before_train_iter(self, run: Any) -> None:
        run.skip_batch()


class Doubles:
    writes = ("batch",)

    def before_train_iter(self, run: Any, batch: Any) -> None:
        run.replace_batch((2 * batch[0], *batch[1:]))

    before_val_iter = before_train_iter
    before_test_iter = before_train_iter
