"""The metrics of all validations and tests of a run, and which value of each is the best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hookflow.metric_mode import Mode


@dataclass(frozen=True, slots=True)
class Best:
    """The best value of a metric so far; `ep` is the epoch it is of, counted from 1."""

    value: float
    it: int
    ep: int


class MetricHistory:
    """The values of each metric with their iterations, oldest first. Those of a test are named "test <name>"."""

    def __init__(self) -> None:
        self.by_name: dict[str, list[tuple[int, float]]] = {}
        self._records: dict[str, list[Best]] = {}
        """By name the values that were the best when they came, the best last."""

    @property
    def best(self) -> Mapping[str, Best]:
        """Return the best value of each metric that has one."""
        return {name: records[-1] for name, records in self._records.items()}

    def add(self, name: str, new: Best, mode: Mode | None) -> bool:
        """Take a value in, and say whether it is the best.

        One that is not finite never is; nor is one of a metric of which nobody has said whether less or more is better:
        `mode` is None.
        """
        self.by_name.setdefault(name, []).append((new.it, new.value))
        if mode is None or not math.isfinite(new.value):
            return False
        records = self._records.setdefault(name, [])
        if records and not (new.value < records[-1].value if mode == "min" else new.value > records[-1].value):
            return False
        records.append(new)
        return True

    def forget_after(self, it: int) -> None:
        """Forget what lies ahead of this iteration: a resumed run does it again."""
        for name, values in self.by_name.items():
            self.by_name[name] = [(at, value) for at, value in values if at <= it]
        kept = {name: [best for best in records if best.it <= it] for name, records in self._records.items()}
        self._records = {name: records for name, records in kept.items() if records}

    def newest_by(self, it: int) -> tuple[Mapping[str, float], int]:
        """Return the metrics of the last validation up to an iteration, and that validation's iteration: 0 if none."""
        known = [(name, at, value) for name, values in self.by_name.items() for at, value in values if at <= it]
        newest = max((at for _, at, _ in known), default=0)
        return {name: value for name, at, value in known if at == newest}, newest
