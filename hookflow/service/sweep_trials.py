"""The trials of a sweep: what each is, the values that it may have, and those that optuna suggests.

A study of optuna is built from the trials each time: their state is in the files of the sweep.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from hookflow.metric_mode import Mode
from hookflow.pipeline.schema import SweepRange, SweepSection
from hookflow.pipeline.source_map import as_toml

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

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


STATES = {
    "finished": "COMPLETE",
    "pruned": "PRUNED",
    "running": "RUNNING",
    "interrupted": "RUNNING",
}
"""Optuna's names for the states of trials."""

PRUNERS = {
    "median": "MedianPruner",
    "halving": "SuccessiveHalvingPruner",
    "hyperband": "HyperbandPruner",
    None: "NopPruner",
}
"""Optuna's classes by the names of pruners."""


def suggest(section: SweepSection, mode: Mode, trials: Iterable[Trial], number: int) -> dict[str, Any]:
    """Return the values that the sampler chooses for a trial by the others."""
    study = _study(section, mode, (trial for trial in trials if trial.number != number), number)
    chosen = study.ask({key: _distribution(values) for key, values in section.optuna.items()}).params
    return {key: _value(values, chosen[key]) for key, values in section.optuna.items()}


def is_hopeless(section: SweepSection, mode: Mode, trials: Iterable[Trial], trial: Trial) -> bool:
    """Say whether the pruner ends a trial at its latest value."""
    study = _study(section, mode, (other for other in trials if other.number != trial.number), trial.number)
    study.add_trial(_frozen(section, trial))
    return bool(study.pruner.prune(study, study.trials[-1]))


def _study(section: SweepSection, mode: Mode, trials: Iterable[Trial], number: int) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=section.seed + number, constant_liar=True)
    direction = "maximize" if mode == "max" else "minimize"
    study = optuna.create_study(
        sampler=sampler, pruner=getattr(optuna.pruners, PRUNERS[section.pruner])(), direction=direction
    )
    study.add_trials([_frozen(section, trial) for trial in trials if trial.state in STATES])
    return study


def _frozen(section: SweepSection, trial: Trial) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    state = TrialState[STATES[trial.state]]
    return create_trial(
        state=state,
        value=trial.value if state is TrialState.COMPLETE else None,
        params={key: _param(values, trial.values[key]) for key, values in section.optuna.items()},
        distributions={key: _distribution(values) for key, values in section.optuna.items()},
        intermediate_values=dict(enumerate(trial.points, 1)),
    )


def _distribution(values: Sequence[Any] | SweepRange) -> BaseDistribution:
    """Return the distribution of a key; of a list it has the places, as optuna takes no lists and tables."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(values, SweepRange):
        return CategoricalDistribution(range(len(values)))
    if values.integers:
        return IntDistribution(int(values.low), int(values.high), log=values.log, step=int(values.step or 1))
    return FloatDistribution(float(values.low), float(values.high), log=values.log, step=values.step)


def _value(values: Sequence[Any] | SweepRange, param: Any) -> Any:
    return param if isinstance(values, SweepRange) else values[param]


def _param(values: Sequence[Any] | SweepRange, value: Any) -> Any:
    return value if isinstance(values, SweepRange) else values.index(value)
