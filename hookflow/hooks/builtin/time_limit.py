"""Time limit: a run that ends by itself before the time of its job is up."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import BeforeValidator, Field

from hookflow.hooks.base import Hook, Slots
from hookflow.pipeline.values import parse_amount

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


def _duration(written: object) -> object:
    parse_amount(written, ["s"])
    return written


@dataclass(eq=False)
class TimeLimit(Hook):
    """Stops the run at a safe point, with a checkpoint, when its time limit is reached.

    Time is counted from when this process has made its hooks, anew in each one: a run that a batch system such as Slurm
    ends after four hours gets "230m", and the next job resumes it. It is looked at after each iteration and each
    validation; neither is cut short, so leave time for a validation and for writing the checkpoint. Over several
    processes this lets them wait for one another after each iteration in which it fires: give it `every = "10s"`.
    """

    phase = "late"
    writes: ClassVar[Slots] = ("control", "checkpoint")

    limit: Annotated[str, BeforeValidator(_duration), Field(description='how long: "230m", "3.8h"', examples=["230m"])]

    def __post_init__(self) -> None:
        self.end = time.monotonic() + float(parse_amount(self.limit).value)

    def after_train_iter(self, run: Run) -> None:
        if time.monotonic() >= self.end:
            run.save_checkpoint()
            run.stop(f"the time limit of {self.limit} is reached", this_process=True)

    after_val = after_train_iter
