"""Studies of optuna for a sweep, built from its trials each time: their state is in the files of the sweep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from hookflow.metric_mode import Mode
from hookflow.pipeline.schema import SweepRange, SweepSection
from hookflow.service.sweep_trials import Trial

STATES = {
    "finished": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "running": TrialState.RUNNING,
    "interrupted": TrialState.RUNNING,
}
"""Optuna's names for the states of trials."""

PRUNERS = {"median": MedianPruner, "halving": SuccessiveHalvingPruner, "hyperband": HyperbandPruner, None: NopPruner}


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
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = TPESampler(seed=section.seed + number, constant_liar=True)
    direction = "maximize" if mode == "max" else "minimize"
    study = optuna.create_study(sampler=sampler, pruner=PRUNERS[section.pruner](), direction=direction)
    study.add_trials([_frozen(section, trial) for trial in trials if trial.state in STATES])
    return study


def _frozen(section: SweepSection, trial: Trial) -> FrozenTrial:
    state = STATES[trial.state]
    return create_trial(
        state=state,
        value=trial.value if state is TrialState.COMPLETE else None,
        params={key: _param(values, trial.values[key]) for key, values in section.optuna.items()},
        distributions={key: _distribution(values) for key, values in section.optuna.items()},
        intermediate_values=dict(enumerate(trial.points, 1)),
    )


def _distribution(values: Sequence[Any] | SweepRange) -> BaseDistribution:
    """Return the distribution of a key; of a list it has the places, as optuna takes no lists and tables."""
    if not isinstance(values, SweepRange):
        return CategoricalDistribution(range(len(values)))
    if values.integers:
        return IntDistribution(int(values.low), int(values.high), log=values.log, step=int(values.step or 1))
    return FloatDistribution(float(values.low), float(values.high), log=values.log, step=values.step)


def _value(values: Sequence[Any] | SweepRange, param: Any) -> Any:
    return param if isinstance(values, SweepRange) else values[param]


def _param(values: Sequence[Any] | SweepRange, value: Any) -> Any:
    return value if isinstance(values, SweepRange) else values.index(value)
