"""The learning-rate range test (L. Smith, *Cyclical learning rates for training neural networks*, 2017)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from hookflow.errors import Problem, UserError
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.builtin.means import loss_over_ranks
from hookflow.hooks.tensors import local
from hookflow.numbers import number

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


SMOOTHING = 0.98
"""Share of the averaged loss that an iteration keeps."""

DIVERGED = 4.0
"""So many times the lowest averaged loss is the end of the sweep."""


@dataclass(eq=False)
class LRFinder(Hook):
    """Sweeps the learning rate from `start` to `end` in the first iterations, suggests one, and stops the run.

    The rate grows by the same factor in each iteration, with the ratios between parameter groups as they are. Logged
    are `lr_finder/lr` and `lr_finder/loss`, an average that has forgotten the first losses; the sweep ends early where
    that is four times its lowest. Suggested is the rate of its steepest descent. Then weights, buffers and optimizer
    are as they were before. It is for a run of its own: it waits for the device
    in each iteration.
    """

    phase = "late"  # its rates replace those of a schedule
    after = ("log?", "lr_monitor?", "spike_guard?")  # they read the rate before the earlier one is restored
    reads: ClassVar[dict[str, tuple[str, ...]]] = {
        "before_train": ("model", "optimizer", "lr"),
        "before_train_iter": ("optimizer",),
        "after_train_iter": ("batch", "outputs"),
    }
    writes: ClassVar[Slots] = {"before_train_iter": ("lr",), "after_train_iter": (*reads["before_train"], "control")}

    start: Annotated[float, Field(gt=0, description="the rate of the first iteration")] = 1e-6
    end: Annotated[float, Field(gt=0, description="the rate of the last iteration")] = 10.0
    iters: Annotated[int, Field(ge=10, description="iterations of the sweep")] = 100

    def __post_init__(self) -> None:
        self.steps = 0
        self.done = False
        self.average = 0.0
        self.rates: list[float] = []
        self.losses: list[float] = []
        self.kept: dict[str, dict[str, Any]] = {}
        """The model and the optimizers as they were, until they are put back."""

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        if args.get("start", 1e-6) >= args.get("end", 10.0):
            raise ValueError("start must be below end")

    def before_train(self, run: Run) -> None:
        import torch

        if run.max_iters < self.iters:
            message = f"lr_finder sweeps over {self.iters} iterations, and the run has only {run.max_iters}"
            raise UserError(Problem(message, hint="let it sweep over fewer (iters), or the run be longer"))
        if not self.steps:
            weights = {
                name: local(value).clone() if torch.is_tensor(value) else deepcopy(value)
                for name, value in run.model.state_dict().items()
            }
            optimizers = {name: deepcopy(optimizer.state_dict()) for name, optimizer in run.optimizers.items()}
            self.kept = {"weights": weights, "optimizers": optimizers}

    def before_train_iter(self, run: Run) -> None:
        if not self.done:
            groups = [group for optimizer in run.optimizers.values() for group in optimizer.param_groups]
            highest = max(group["initial_lr"] for group in groups)
            for group in groups:
                group["lr"] = swept(self.start, self.end, self.steps, self.iters) * group["initial_lr"] / highest

    def after_train_iter(self, run: Run, outputs: dict[str, Any]) -> None:
        if self.done:
            return
        loss = loss_over_ranks(run, outputs, "lr_finder")
        self.average = SMOOTHING * self.average + (1 - SMOOTHING) * loss
        smooth = self.average / (1 - SMOOTHING ** (self.steps + 1))
        self.rates.append(swept(self.start, self.end, self.steps, self.iters))
        self.losses.append(smooth)
        run.log("lr_finder/lr", self.rates[-1])
        run.log("lr_finder/loss", smooth)
        self.steps += 1
        diverged = not math.isfinite(smooth) or smooth > DIVERGED * min(self.losses)
        if diverged or self.steps == self.iters:
            self.done = True
            self._restore(run)
            suggested = "no learning rate to suggest: the loss never fell"
            if (best := steepest(self.rates, self.losses)) is not None:
                suggested = f"suggested learning rate {number(best)}: there the loss fell fastest"
            message = f"{suggested}; the sweep {'diverged' if diverged else 'ended'} at {number(self.rates[-1])}"
            run.say(message)
            run.stop(f"lr_finder: {message}")

    def _restore(self, run: Run) -> None:
        import torch

        with torch.no_grad():
            for name, value in run.model.state_dict().items():
                if torch.is_tensor(value):
                    local(value).copy_(self.kept["weights"].pop(name))
        run.model.load_state_dict(self.kept["weights"], strict=False)  # the rest is the modules' extra state
        for name, optimizer in run.optimizers.items():
            optimizer.load_state_dict(self.kept["optimizers"][name])
        self.kept = {}

    def state_dict(self) -> dict[str, Any]:
        names = "steps", "done", "average", "rates", "losses", "kept"
        return {name: copy(getattr(self, name)) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def swept(start: float, end: float, step: int, steps: int) -> float:
    """Return the rate of a step of the sweep, counted from 0: the first is `start`, the last `end`."""
    return float(start * (end / start) ** (step / (steps - 1)))


def steepest(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """Return the rate at which the loss falls fastest over the logarithm of the rate; None where it never falls.

    Slopes are taken over a tenth of the sweep. Its first tenth, where an average is of few losses, does not count.
    """
    half = max(1, len(losses) // 20)
    slopes = [
        ((losses[k + half] - losses[k - half]) / math.log(rates[k + half] / rates[k - half]), rates[k])
        for k in range(max(half, len(losses) // 10), len(losses) - half)
    ]
    slope, rate = min((slope for slope in slopes if math.isfinite(slope[0])), default=(0.0, 0.0))
    return rate if slope < 0 else None
