"""Throughput: how many training examples a second."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from hookflow.hooks.base import Hook, Slots

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


class Throughput(Hook):
    """Logs `samples_per_s`, of all ranks together, over the iterations since it last did.

    Validation and checkpoints are left out.
    """

    reads: ClassVar[Slots] = {"after_train_iter": ("batch",)}

    def __init__(
        self,
        window: Annotated[int, Field(ge=1, description="iterations that one figure covers")] = 20,
    ) -> None:
        self.window = window
        self.began = self.paused = 0.0
        self.samples = 0
        self.iterations = 0

    def before_train(self) -> None:
        self.began, self.samples, self.iterations = time.perf_counter(), 0, 0

    before_train_epoch = before_train

    def before_val(self) -> None:
        self.paused = time.perf_counter()

    def after_val(self) -> None:
        self.began += time.perf_counter() - self.paused

    def around_save_checkpoint(self) -> Iterator[None]:
        self.before_val()
        yield
        self.after_val()

    def after_train_iter(self, run: Run) -> None:
        self.samples += run.batch_size
        self.iterations += 1
        if self.iterations == self.window:
            now = time.perf_counter()
            run.log("samples_per_s", run.sum(self.samples / (now - self.began)))
            self.began, self.samples, self.iterations = now, 0, 0
