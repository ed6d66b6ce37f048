"""What runs that only look at hooks have in common: few batches, and triggers whose amounts do not count.

A dry run does everything once; a run that is observed, or compared with others, twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hookflow.graph.plan import Plan, Trigger
from hookflow.runner.data.limited import Limited

EPOCHS = ITERS = BATCHES = 2
"""Epochs, iterations in each, and batches of a validation: what lags by one shows in the second."""


def without_amounts(plan: Plan, *, keep_when: bool = False) -> Plan:
    """Return the plan with every binding due each time, so that a hook fires that would come only after hours.

    With `keep_when`, only where its `when` holds, as in the run itself.
    """
    return replace(
        plan,
        bindings=tuple(
            replace(binding, trigger=Trigger(when=binding.trigger.when) if keep_when else Trigger())
            for binding in plan.bindings
        ),
    )


def shortened(data: Mapping[str, Any], batches: int, option: str) -> dict[str, Any]:
    """Return the sources by split, with so many batches for a validation and a test; `option` has limited them."""
    return {
        split: source if split == "train" else Limited(source, min(batches, len(source)), option)
        for split, source in data.items()
    }
