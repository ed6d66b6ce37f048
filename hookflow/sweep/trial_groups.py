"""Trials of a sweep that repeat a setting, and what came of all of them.

They have other seeds or folds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hookflow.monitor.aggregate import MetricAggregate
from hookflow.pipeline.schema import FOLD_KEY
from hookflow.sweep.search import SweepTrial

REPETITION_KEYS = frozenset({FOLD_KEY, "run.seed"})
"""The keys that repeat a setting, and are no part of it."""


@dataclass(frozen=True, slots=True)
class TrialGroup:
    """The trials that have the same `values` but for their folds and seeds."""

    values: dict[str, Any]
    trials: Sequence[SweepTrial]

    @property
    def best(self) -> MetricAggregate | None:
        """The best values of the trials that have finished; None where none has."""
        return _aggregate([best_of(trial) for trial in self.trials])

    @property
    def last(self) -> MetricAggregate | None:
        """The last values of the trials that have finished; None where none has."""
        return _aggregate([last_of(trial) for trial in self.trials])


def best_of(trial: SweepTrial) -> float | None:
    """Return the best value of a trial that has finished.

    A pruned one has trained less than the others, and would make the mean another thing.
    """
    if trial.state != "finished":
        return None
    return trial.value


def last_of(trial: SweepTrial) -> float | None:
    """Return the value of a trial's last validation, if the trial has finished."""
    if trial.state != "finished" or not trial.points:
        return None
    return trial.points[-1]


def group_trials(trials: Sequence[SweepTrial]) -> list[TrialGroup]:
    """Return the groups of the trials that have begun, in the order of their first trials."""
    settings: dict[str, dict[str, Any]] = {}
    members: defaultdict[str, list[SweepTrial]] = defaultdict(list)
    for trial in trials:
        if not trial.values:
            continue
        setting = {key: value for key, value in trial.values.items() if key not in REPETITION_KEYS}
        name = repr(setting)
        settings[name] = setting
        members[name].append(trial)
    return [TrialGroup(setting, members[name]) for name, setting in settings.items()]


def _aggregate(values: Sequence[float | None]) -> MetricAggregate | None:
    known = [value for value in values if value is not None]
    if known:
        return MetricAggregate.of(known)
    return None
