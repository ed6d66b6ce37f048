"""A trial of a sweep, and the values that it may have."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hookflow.pipeline.schema import SweepRange
from hookflow.pipeline.source_map import as_toml

State = Literal["waiting", "running", "finished", "pruned", "interrupted", "failed"]


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial: its values by key, its run (a path), and what came of it: the best `value`, or the reason of a failure.

    `points` are the values of the metric so far, one a validation.
    """

    number: int
    values: dict[str, Any] = field(default_factory=dict)
    state: State = "waiting"
    run: str = ""
    value: float | None = None
    reason: str = ""
    points: list[float] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.state in ("finished", "pruned")

    @property
    def text(self) -> str:
        """The values as the command line would set them."""
        return "  ".join(f"{key}={as_toml(value)}" for key, value in self.values.items())


def ends_of(values: Sequence[Any] | SweepRange) -> Sequence[Any]:
    """Return the values of a list, or the ends of a range."""
    return (values.low, values.high) if isinstance(values, SweepRange) else values


def drawn(values: Sequence[Any] | SweepRange, generator: random.Random) -> Any:
    """Return a value of a list or a range."""
    if not isinstance(values, SweepRange):
        return generator.choice(values)
    low, high = values.low, values.high
    if values.step is not None:
        return low + values.step * generator.randint(0, int((high - low) / values.step + 1e-9))
    if values.integers:
        if not values.log:
            return generator.randint(int(low), int(high))
        return min(max(round(math.exp(generator.uniform(math.log(low), math.log(high)))), int(low)), int(high))
    value = math.exp(generator.uniform(math.log(low), math.log(high))) if values.log else generator.uniform(low, high)
    return min(max(float(f"{value:.4g}"), low), high)
