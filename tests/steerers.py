"""Hooks that the tests put into pipelines to change the course of a training, some without having said so."""

from __future__ import annotations

from typing import Any

from tests.watchers import at_every_point


@at_every_point
class Steers:
    """Makes one call on the run, at one point and one iteration; `writes` in the file says what it may."""

    def __init__(self, call: str, point: str, at: int = 1) -> None:
        self.call, self.point, self.at = call, point, at

    def visit(self, point: str, run: Any) -> None:
        if point == self.point and run.iter == self.at:
            getattr(run, self.call)(*["as told"] * self.call.startswith("stop"))


class Replaces:
    """Makes zeros of every batch."""

    writes = ("batch",)

    def before_train_iter(self, run: Any, batch: Any) -> None:
        run.replace_batch((0 * batch[0], batch[1]))

    before_val_iter = before_train_iter


class SeesBatch:
    """Says how much there is in the batch, wherever it is offered one."""

    reads = ("batch",)

    def before_train_iter(self, run: Any, batch: Any) -> None:
        run.say(f"{run.iter} {run.batch_size} {float(batch[0].abs().sum()) > 0}")

    after_forward = before_train_iter
    after_train_iter = before_train_iter
    before_val_iter = before_train_iter


class Smaller:
    """Leaves out one example of each batch."""

    writes = ("batch",)

    def before_train_iter(self, run: Any, batch: Any) -> None:
        run.replace_batch((batch[0][1:], batch[1][1:]))


class ReplacesUndeclared(Replaces):
    writes = ()


class StopsUndeclared:
    """Asks for an end at each batch of a validation, and has not said that it may."""

    def after_val_iter(self, run: Any) -> None:
        if run.iter > 5:
            run.stop("validated often enough")


class Skips:
    """Wants no step at all."""

    writes = ("control",)

    def after_backward(self, run: Any) -> None:
        run.skip_step()


class SkipsAll:
    """Wants no batch at all."""

    writes = ("control",)

    def before_train_iter(self, run: Any) -> None:
        run.skip_batch()


class Weights:
    """Says what the weights come to."""

    def after_train_iter(self, run: Any) -> None:
        run.say(str(sum(float(p.detach().double().sum()) for p in run.model.parameters())))


class Doubles:
    """Doubles the inputs of every batch."""

    writes = ("batch",)

    def before_train_iter(self, run: Any, batch: Any) -> None:
        run.replace_batch((2 * batch[0], *batch[1:]))

    before_val_iter = before_train_iter
    before_test_iter = before_train_iter
