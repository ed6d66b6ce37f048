"""The search of a sweep, by optuna.

It decides which values the next trial has, and which trials are not worth to go on.
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
class SweepTrial:
    """A trial: its values by key, its run (a path), and its result.

    The result is the best `value`, or the reason of a failure.

    `points` are the values of the metric so far, one a validation. `marks` are what the pruner has
    noted of the trial: halving compares a trial with the marks of the others.
    """

    number: int
    values: dict[str, Any] = field(default_factory=dict)
    state: State = "waiting"
    run: str = ""
    value: float | None = None
    reason: str = ""
    points: list[float] = field(default_factory=list)
    marks: dict[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return self.state in ("finished", "pruned")

    @property
    def text(self) -> str:
        """The values as the command line would set them."""
        return "  ".join(f"{key}={as_toml(value)}" for key, value in self.values.items())


def end_values(values: Sequence[Any] | SweepRange) -> Sequence[Any]:
    """Return the values of a list, or the ends of a range."""
    if isinstance(values, SweepRange):
        return (values.low, values.high)
    return values


def draw_value(values: Sequence[Any] | SweepRange, generator: random.Random) -> Any:
    """Return a value of a list or a range."""
    if not isinstance(values, SweepRange):
        return generator.choice(values)
    low = values.low
    high = values.high
    if values.step is not None:
        num_steps = int((high - low) / values.step + 1e-9)
        stepped = low + values.step * generator.randint(0, num_steps)
        if values.integers:
            return stepped
        return float(f"{stepped:.{STEP_DIGITS}g}")  # 0.3, where 3 * 0.1 is above it
    if values.integers and not values.log:
        return generator.randint(int(low), int(high))
    if values.log:
        value = math.exp(generator.uniform(math.log(low), math.log(high)))
    else:
        value = generator.uniform(low, high)
    if values.integers:
        rounded: float = round(value)
    else:
        rounded = float(f"{value:.{_count_digits(values)}g}")
    return min(max(rounded, low), high)


STEP_DIGITS = 12
"""The significant digits of a value that is a number of steps above the low end."""

DRAWN_DIGITS = 4
"""The significant digits of a value that is drawn, within the width of its range."""


def _count_digits(values: SweepRange) -> int:
    """Return how many significant digits a drawn value has.

    A range that is narrow beside its numbers needs more: between 0.9999 and 0.99999 there is none
    of four digits.
    """
    largest = max(abs(values.low), abs(values.high))
    ratio = largest / (values.high - values.low)
    return DRAWN_DIGITS + max(math.floor(math.log10(ratio)), 0)


OPTUNA_STATES = {
    "finished": "COMPLETE",
    "pruned": "PRUNED",
    "running": "RUNNING",
    "interrupted": "RUNNING",
}
PRUNER_NAMES = {
    "median": "Median",
    "halving": "SuccessiveHalving",
    "hyperband": "Hyperband",
    None: "Nop",
}
"""Optuna's names for the states of trials, and for its classes of pruners.

"Pruner" is added to the latter.
"""


def suggest(
    section: SweepSection, mode: Mode, trials: Iterable[SweepTrial], number: int
) -> dict[str, Any]:
    """Return the values that the sampler chooses for a trial by the others."""
    others = [trial for trial in trials if trial.number != number]
    study = _make_study(section, mode, others, section.seed + number)
    chosen = study.ask(_distributions(section)).params
    suggested = {}
    for key, value in chosen.items():
        values = section.optuna[key]
        if isinstance(values, SweepRange):
            suggested[key] = value
        else:
            suggested[key] = values[value]  # the place in the list
    return suggested


@dataclass(frozen=True, slots=True)
class PrunerVerdict:
    """A pruner's decision on a trial: whether the trial ends, and the marks that it has now."""

    ends: bool
    marks: dict[str, Any]


def judge(
    section: SweepSection, mode: Mode, trials: Iterable[SweepTrial], trial: SweepTrial
) -> PrunerVerdict:
    """Return what the pruner says of a trial at its latest value."""
    others = [each for each in trials if each.number != trial.number]
    study = _make_study(section, mode, [*others, trial], section.seed)
    judged = study.trials[trial.number]
    ends = study.pruner.prune(study, judged)
    marked = study.trials[trial.number]  # the pruner has written its marks while it judged
    return PrunerVerdict(bool(ends), dict(marked.system_attrs))


STUDY_NAME = "sweep"
"""The name of each study: hyperband puts a trial into a bracket by it, and by the number."""


def _make_study(
    section: SweepSection, mode: Mode, trials: Iterable[SweepTrial], seed: int
) -> optuna.Study:
    """Return the study of these trials.

    Each has its number there, too: what has not begun or has failed stands as a failed trial, which
    samplers and pruners leave out.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    direction = "minimize"
    if mode == "max":
        direction = "maximize"
    pruner = getattr(optuna.pruners, f"{PRUNER_NAMES[section.pruner]}Pruner")()
    study = optuna.create_study(
        study_name=STUDY_NAME, sampler=sampler, pruner=pruner, direction=direction
    )
    known = {trial.number: trial for trial in trials if trial.state in OPTUNA_STATES}
    nothing = optuna.trial.create_trial(state=optuna.trial.TrialState.FAIL)
    for number in range(max(known, default=-1) + 1):
        if number in known:
            study.add_trial(_frozen(section, known[number]))
        else:
            study.add_trial(nothing)
    return study


def _frozen(section: SweepSection, trial: SweepTrial) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    state = TrialState[OPTUNA_STATES[trial.state]]
    final_value = None
    if state is TrialState.COMPLETE:
        final_value = trial.value
    params = _find_params(section, trial)
    distributions = _distributions(section)
    return create_trial(
        state=state,
        value=final_value,
        params=params,
        distributions={key: distributions[key] for key in params},
        intermediate_values=dict(enumerate(trial.points, 1)),
        system_attrs=trial.marks,
    )


def _find_params(section: SweepSection, trial: SweepTrial) -> dict[str, Any]:
    """Return the values of a trial as the sampler has them.

    The ranges and lists may change while a sweep goes on. A value that could not be chosen any more
    tells the sampler nothing, and is left out.
    """
    params: dict[str, Any] = {}
    for key, values in section.optuna.items():
        if key not in trial.values:
            continue
        value = trial.values[key]
        if isinstance(values, SweepRange):
            if _is_in_range(value, values):
                params[key] = value
            continue
        listed = [repr(each) for each in values]  # 1 == True
        text = repr(value)
        if text in listed:
            params[key] = listed.index(text)
    return params


def _is_in_range(value: Any, values: SweepRange) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    distribution = _make_distribution(values)
    return bool(distribution._contains(value))


def _distributions(section: SweepSection) -> dict[str, BaseDistribution]:
    """Return the distribution of each key that is searched."""
    return {key: _make_distribution(values) for key, values in section.optuna.items()}


def _make_distribution(values: Sequence[Any] | SweepRange) -> BaseDistribution:
    """Return the distribution of a key.

    For a list it has the places, as optuna takes no lists and tables.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(values, SweepRange):
        return CategoricalDistribution(range(len(values)))
    if values.integers:
        return IntDistribution(
            int(values.low), int(values.high), log=values.log, step=int(values.step or 1)
        )
    return FloatDistribution(
        float(values.low), float(values.high), log=values.log, step=values.step
    )
