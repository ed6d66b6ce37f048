"""Throughput: how many training examples and tokens a second, and how much of the hardware's speed that uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from hookflow.errors import Problem, UserError
from hookflow.hooks.base import Hook, Slots

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


class Throughput(Hook):
    """Logs `samples_per_s`, of all ranks together, over the iterations since it last did.

    With `tokens_per_sample` also `tokens_per_s`, of all ranks together. With `flops_per_sample` and `peak_flops` also
    `mfu`, the model FLOPs utilization, from 0 to 1: the operations that the examples need by the model's definition, a
    second, by those that the devices could do (A. Chowdhery and others, *PaLM*, 2022). The forward and backward pass of
    a transformer need about 6 operations for each token and parameter.

    A figure covers every iteration since the last one, over the ends of epochs too, whatever `every` says of when it is
    logged. A run shorter than `window` logs one figure, at its end. The time of validations, checkpoints and pauses is
    left out. Where the size of a batch is unknown, nothing is logged.
    """

    reads: ClassVar[Slots] = {"after_train_iter": ("batch",)}

    def __init__(
        self,
        window: Annotated[int, Field(ge=1, description="iterations that a figure covers at least")] = 20,
        tokens_per_sample: Annotated[int | None, Field(ge=1, description="how many tokens an example has")] = None,
        flops_per_sample: Annotated[
            float | None,
            Field(gt=0, description="floating-point operations of the forward and backward pass of one example"),
        ] = None,
        peak_flops: Annotated[
            float | None,
            Field(gt=0, description="floating-point operations a second that one device can do in the run's precision"),
        ] = None,
    ) -> None:
        self.window = window
        self.tokens_per_sample = tokens_per_sample
        self.flops_per_sample = flops_per_sample
        self.peak_flops = peak_flops
        self.least = window
        self.began = 0.0
        self.samples = self.iterations = 0
        self.known = True
        self.watches = {"after_train_iter": self.add}

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        both = ("flops_per_sample", "peak_flops")
        for one, other in (both, both[::-1]):
            if args.get(one) is not None and args.get(other) is None:
                raise UserError(Problem(f"{one} needs {other} too", hint="mfu is computed from both"))

    def before_train(self, run: Run) -> None:
        self.least = min(self.window, max(run.max_iters - run.iter, 1))
        self.restart(run)

    def restart(self, run: Run) -> None:
        """Begin a new figure."""
        self.began, self.samples, self.iterations, self.known = run.train_seconds, 0, 0, True

    def add(self, run: Run) -> None:
        """Count the examples of an iteration, logged or not."""
        size = run.batch_size
        self.samples += size
        self.known = self.known and size > 0
        self.iterations += 1

    def after_train_iter(self, run: Run) -> None:
        if self.iterations < self.least:
            return
        seconds = run.train_seconds - self.began
        total = run.sum(self.samples / seconds)  # all ranks must call it, whatever each of them knows
        if self.known:
            for name, value in self.figures(total, run.world).items():
                run.log(name, value)
        self.restart(run)

    def figures(self, samples_per_s: Any, devices: int) -> dict[str, Any]:
        """Return what is logged when all devices together train on so many examples a second."""
        found = {"samples_per_s": samples_per_s}
        if self.tokens_per_sample is not None:
            found["tokens_per_s"] = samples_per_s * self.tokens_per_sample
        if self.flops_per_sample is not None and self.peak_flops is not None:
            found["mfu"] = samples_per_s * self.flops_per_sample / (devices * self.peak_flops)
        return found
