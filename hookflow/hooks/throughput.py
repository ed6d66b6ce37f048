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

    Validation and checkpoints are left out. Where nobody knows the size of a batch, nothing is logged.
    """

    reads: ClassVar[Slots] = {"after_train_iter": ("batch",)}

    def __init__(
        self,
        window: Annotated[int, Field(ge=1, description="iterations that one figure covers")] = 20,
    ) -> None:
        self.window = window
        self.began = self.paused = 0.0
        self.samples = self.iterations = 0
        self.known = True

    def before_train(self) -> None:
        self.began, self.samples, self.iterations, self.known = time.perf_counter(), 0, 0, True

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
        self.known = self.known and run.batch_size > 0
        self.iterations += 1
        if self.iterations == self.window:
            now = time.perf_counter()
            total = run.sum(self.samples / (now - self.began))  # all ranks must call it, whatever each of them knows
            if self.known:
                run.log("samples_per_s", total)
            self.began, self.samples, self.iterations, self.known = now, 0, 0, True
