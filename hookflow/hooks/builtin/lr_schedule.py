"""Learning-rate schedules over the whole run: up, then down."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from hookflow.errors import Problem, UserError, nearest
from hookflow.hooks.base import Hook
from hookflow.hooks.builtin.amounts import PROGRESS
from hookflow.pipeline.values import parse_amount

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


Shape = Literal["linear", "cosine", "exponential", "constant"]


def _warmup(written: Any) -> int | float | str:
    """Hold what the file says against what a warm-up may be: a share below 1, or an amount other than of seconds."""
    if isinstance(written, int | float) and not isinstance(written, bool) and 0 <= written < 1:
        return written
    if isinstance(written, float):
        raise ValueError(f'{written} is no share of the run; write 0.1 or "10%", "100it", "2ep"')
    amount = parse_amount(written, PROGRESS)
    if amount.unit == "%" and amount.value >= 100:
        raise ValueError(f'"{written}" leaves nothing of the run')
    return written  # type: ignore[no-any-return]  # parse_amount raises for all but int and str


class LRSchedule(Hook):
    """Sets each parameter group's learning rate before every iteration: a linear warm-up, then down to the end.

    The factor multiplies what the group started with, and depends on nothing but the share of the run that is done;
    so a resumed run needs no state to go on exactly. Several of these hooks may each have groups of their own.
    """

    reads = ("optimizer",)
    writes = ("lr",)

    def __init__(
        self,
        shape: Annotated[Shape, Field(description="the way down after the warm-up")] = "cosine",
        warmup: Annotated[
            int | float | str,
            BeforeValidator(_warmup),
            Field(
                description='how long the warm-up is: 100, "100it", "2ep", "10%", or a share of the run such as 0.1',
                examples=["5%"],
            ),
        ] = 0.0,
        start: Annotated[float, Field(ge=0, description="factor of the first iteration of the warm-up")] = 0.0,
        end: Annotated[float, Field(ge=0, description="factor of the end of the run")] = 0.0,
        groups: Annotated[
            list[str] | None,
            Field(min_length=1, description="the `name` of the parameter groups that it sets; all if left out"),
        ] = None,
    ) -> None:
        self.shape = shape
        self.warmup = warmup
        self.share: float | None = None
        """The share of the run that the warm-up takes, once the run's length is known."""
        self.start = start
        self.end = end
        self.groups = groups

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        if args.get("shape") == "exponential" and not args.get("end"):
            raise ValueError("an exponential way down never ends at 0: give it an end, e.g. 0.01")

    def before_train_iter(self, run: Run) -> None:
        if self.share is None:
            self.share = self._share(run)
            self._check_groups(run)
        factor = self.factor(run.iter / run.max_iters, self.share)
        for optimizer in run.optimizers.values():
            for group in optimizer.param_groups:
                if self.groups is None or group.get("name") in self.groups:
                    group["lr"] = group["initial_lr"] * factor

    def _check_groups(self, run: Run) -> None:
        """Raise UserError for a group that no optimizer has."""
        there = [group.get("name", "") for optimizer in run.optimizers.values() for group in optimizer.param_groups]
        for name in self.groups or ():
            if name not in there:
                hint = nearest(name, filter(None, there)) or 'a group is named by its args: { name = "…" }'
                raise UserError(Problem(f'no parameter group is called "{name}"', hint=hint))

    def _share(self, run: Run) -> float:
        """Return which share of the run the warm-up takes. Raises UserError where it takes all of it."""
        if isinstance(self.warmup, float) or not self.warmup:
            return self.warmup or 0.0
        amount = parse_amount(self.warmup)
        unit = {"%": run.max_iters / 100, "ep": run.iters_per_epoch}.get(amount.unit, 1)
        share = float(amount.value) * unit / run.max_iters
        if share >= 1:
            said = f"the warm-up takes {self.warmup}, and the run has only {run.max_iters} iterations"
            raise UserError(Problem(said, hint="nothing is left for the way down"))
        return share

    def factor(self, done: float, share: float) -> float:
        """Return the factor when `done` (0 to 1) of the run is over, of which the warm-up takes `share`."""
        if done < share:
            return self.start + (1 - self.start) * done / share
        way = min((done - share) / (1 - share), 1.0)
        if self.shape == "linear":
            return 1 + (self.end - 1) * way
        if self.shape == "exponential":
            return float(self.end**way)
        if self.shape == "cosine":
            return self.end + (1 - self.end) * (1 + math.cos(math.pi * way)) / 2
        return 1.0
