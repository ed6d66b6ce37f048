"""Time limit: a run that ends by itself before the time of its job is up."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import BeforeValidator, Field

from hookflow.hooks.base import Hook, Slots

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


WRITTEN = re.compile(r"(?:(\d+)d)?\s*(?:(\d+)h)?\s*(?:(\d+)m)?\s*(?:(\d+(?:\.\d+)?)s)?")


def seconds(written: object) -> float:
    """Return the seconds of a duration such as "3h50m", "90m" or "1d12h". Raises ValueError for anything else."""
    match = WRITTEN.fullmatch(written.strip()) if isinstance(written, str) else None
    if match is None or not any(match.groups()):
        raise ValueError(f'{written!r} is no duration; write "3h50m", "90m", "1d12h" or "30s"')
    days, hours, minutes, rest = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def duration(written: object) -> object:
    """Hold what the file says against what a duration may be."""
    if not seconds(written):
        raise ValueError(f"{written!r} must be above zero")
    return written


@dataclass(eq=False)
class TimeLimit(Hook):
    """Stops the run at a safe point, with a checkpoint, when its time limit is reached.

    Time is counted from when this process has made its hooks, anew in each one: a run that a batch system such as Slurm
    ends after four hours gets "3h50m", and the next job resumes it. It is looked at after each iteration and each
    validation; neither is cut short, so leave time for a validation and for writing the checkpoint. Over several
    processes this lets them wait for one another after each iteration in which it fires: give it `every = "10s"`.
    """

    phase = "late"
    writes: ClassVar[Slots] = ("control", "checkpoint")

    limit: Annotated[
        str, BeforeValidator(duration), Field(description='how long: "3h50m", "1d12h", "30s"', examples=["3h50m"])
    ]

    def __post_init__(self) -> None:
        self.end = time.monotonic() + seconds(self.limit)

    def after_train_iter(self, run: Run) -> None:
        if time.monotonic() >= self.end:
            run.save_checkpoint()
            run.stop(f"the time limit of {self.limit} is reached", this_process=True)

    after_val = after_train_iter
