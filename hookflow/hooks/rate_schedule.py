"""Hooks whose learning rates follow from the place in the run alone.

Another run can go through them again.
"""

from hookflow.hooks.base import Hook


class RateScheduleHook(Hook):
    """Base class of hooks that set learning rates by a schedule.

    A fork of a run that has other rates, or another place in its schedule, lets such a hook go
    through the schedule up to that place: it loads the state `{"done": iterations or epochs,
    "curve": None}` into it.
    """

    per: str
    """The unit of a step: "iter" or "epoch"."""
    end: int
    """The step at which the schedule ends."""
    has_plateau: bool
    """Whether the rates depend on metrics after the end of the schedule.

    Then they cannot be gone through again.
    """
