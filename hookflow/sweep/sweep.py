"""Sweeps: runs of one pipeline with other values of some keys.

Their state is in a directory, and each run is a process.

A sweep is a folder beside its runs, `runs/<name>/sweep-<date>-<time>-<digits>/`: `sweep.json`, the
pipeline, and a file for each trial. Each process that executes trials writes the files of its own
trials alone, so tasks of Slurm share it. A study of optuna is built from these files each time.
"""

from __future__ import annotations

import json
import math
import random
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import tomli

from hookflow.errors import Problem, UserError, Where
from hookflow.events.run_lock import Locks, try_lock
from hookflow.events.rundir import short, write_whole
from hookflow.metric_mode import Mode, choose_mode
from hookflow.pipeline.layers import Override
from hookflow.pipeline.load import Loaded, dump
from hookflow.pipeline.registry import missing_package
from hookflow.pipeline.schema import FOLD_KEY, SweepSection
from hookflow.pipeline.source_map import as_toml, flat, split_key
from hookflow.service.pipelines import read_pipeline, valid_plan
from hookflow.sweep.search import (
    PrunerVerdict,
    SweepTrial,
    draw_value,
    end_values,
    judge,
    suggest,
)

SWEEP_NAME_PREFIX = "sweep-"

NOT_OF_TRAINING = ("sweep.", "notify.")
"""How the keys begin that no training depends on."""


class Sweep:
    """A sweep in its folder."""

    def __init__(self, path: Path, loaded: Loaded) -> None:
        if loaded.pipeline.sweep is None:
            message = f"{loaded.source} has no table [sweep]"
            raise UserError(
                Problem(message, hint='[sweep] with metric = "accuracy", and [sweep.grid]')
            )
        self.path = path
        self.loaded = loaded
        self.section: SweepSection = loaded.pipeline.sweep
        try:
            self.mode: Mode = choose_mode(self.section.metric, self.section.mode)
        except UserError as error:
            place = loaded.places.of("sweep.metric")
            raise UserError(replace(problem, where=place) for problem in error.problems) from None

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def folder(self) -> Path:
        """The folder of runs."""
        return Path(self.loaded.pipeline.run.dir)

    @classmethod
    def create(cls, file: Path, overrides: Sequence[str]) -> Sweep:
        """Return the sweep of a pipeline file, checked. Raises UserError with all that is wrong."""
        loaded = read_pipeline(file, overrides)
        name = f"{SWEEP_NAME_PREFIX}{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        sweep = cls(
            Path(loaded.pipeline.run.dir).absolute() / loaded.pipeline.run.name / name, loaded
        )
        sweep.check()
        return sweep

    def begin(self) -> None:
        """Make its folder, unless it has one. Raises UserError."""
        if self.path.exists():
            return
        facts = {"file": str(self.loaded.source.absolute()), "overrides": [*self.loaded.overrides]}
        try:
            (self.path / "trials").mkdir(parents=True, mode=0o700)
            write_whole(self.path / "pipeline.toml", dump(self.loaded.public))
            write_whole(
                self.path / "sweep.json", json.dumps(facts | {"created": time.time()}, indent=1)
            )
        except OSError as error:
            message = f"no sweep can be made in {self.folder}: {error.strerror}"
            raise UserError(Problem(message, self.loaded.places.of("run.dir"))) from None

    @classmethod
    def open(cls, path: Path) -> Sweep:
        """Return a sweep that has begun.

        Raises UserError where it cannot be read, or its pipeline has changed.
        """
        try:
            facts = json.loads((path / "sweep.json").read_text("utf-8"))
            file = Path(facts["file"])
            overrides = facts["overrides"]
            then = tomli.loads((path / "pipeline.toml").read_text("utf-8"))
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(Problem(f"{short(path)} is no sweep that can be read")) from None
        sweep = cls(path, read_pipeline(file, overrides))
        before = _collect_fixed_values(then)
        after = _collect_fixed_values(tomli.loads(dump(sweep.loaded.public)))
        for key in before | after:
            if before.get(key) != after.get(key):
                message = f"{key} has changed since the sweep {sweep.id} began"
                raise UserError(
                    Problem(
                        message, sweep.loaded.places.of(key), "its trials would not be comparable"
                    )
                )
        sweep._check_grid_of_begun_trials()
        return sweep

    @classmethod
    def newest(cls, file: Path, overrides: Sequence[str]) -> Sweep:
        """Return the newest sweep of a pipeline file. Raises UserError where there is none."""
        run = cls(Path(), read_pipeline(file, overrides)).loaded.pipeline.run
        folder = Path(run.dir).absolute() / run.name
        files = folder.glob(f"{SWEEP_NAME_PREFIX}*/sweep.json")
        newest = max(files, key=_read_time_of_creation, default=None)
        if newest is None:
            raise UserError(Problem(f"there is no sweep in {short(folder)}", Where("--resume")))
        return cls.open(newest.parent)

    def lock(self, *, shared: bool) -> Locks:
        """Lock the sweep until the returned locks are released.

        Raises UserError while another process has it.
        """
        locks = try_lock(self.path, shared=shared)
        if locks is None:
            raise UserError(Problem(f"the sweep {self.id} is already running"))
        return locks

    def trials(self) -> list[SweepTrial]:
        """Return every trial as its file has it."""
        return [self.trial(number) for number in range(self.section.count)]

    def trial(self, number: int) -> SweepTrial:
        with suppress(OSError, ValueError, TypeError):  # it has not begun
            return SweepTrial(**json.loads(self._file(number).read_text("utf-8")))
        return SweepTrial(number)

    def keep(self, trial: SweepTrial) -> SweepTrial:
        """Write the file of a trial."""
        write_whole(self._file(trial.number), json.dumps(asdict(trial)))
        return trial

    def _file(self, number: int) -> Path:
        return self.path / "trials" / f"{number:04}.json"

    def check(self, *, imports: bool = True) -> None:
        """Raise UserError with each key and value that no trial could have."""
        problems: list[Problem] = []
        if self.section.optuna:
            missing = missing_package(
                "[sweep.optuna]", "optuna", "optuna", self.loaded.places.of("sweep.optuna")
            )
            if missing:
                problems.append(missing)
        problems += self._find_value_problems(imports)
        problems += self._find_repeated_values()
        if problems:
            raise UserError(problems)

    def _find_value_problems(self, imports: bool) -> list[Problem]:
        """Return what is wrong with each key, and with the pipeline of each value.

        The other keys have their first value.
        """
        problems: list[Problem] = []
        first = {
            key: next(iter(end_values(values))) for key, values in self.section.searched.items()
        }
        for key, values in self.section.searched.items():
            if not _can_be_searched(key):
                message = f'"{key}" is no key that a sweep can change'
                problems.append(
                    Problem(message, self._find_place(key), 'write one as "optimizer.args.lr"')
                )
                continue
            for value in end_values(values):
                try:
                    valid_plan(self.load(first | {key: value}, imports=imports), imports=imports)
                except UserError as error:
                    problems += [problem for problem in error.problems if problem not in problems]
        return problems

    def _find_repeated_values(self) -> list[Problem]:
        """Return a problem for each key of the grid that lists a value twice."""
        problems = []
        for key, values in self.section.grid.items():
            listed = [repr(value) for value in values]  # 1 == True
            repeated = [
                value for place, value in enumerate(values) if listed[place] in listed[:place]
            ]
            if repeated:
                message = (
                    f"{key} = {as_toml(repeated[0])} is listed twice, and would be trained twice"
                )
                problems.append(Problem(message, self._find_place(key)))
        return problems

    def load(self, values: dict[str, Any], *, imports: bool = True) -> Loaded:
        """Return the pipeline with the values of a trial. Raises UserError."""
        changes = [
            Override(f"{key}={as_toml(value)}", self._find_place(key))
            for key, value in values.items()
        ]
        return read_pipeline(
            self.loaded.source, [*self.loaded.overrides, *changes], imports=imports
        )

    def _find_place(self, key: str) -> Where:
        if key == FOLD_KEY and self.section.folds is not None:
            return self.loaded.places.of("sweep.folds")
        return self.loaded.places.of(("sweep", self.section.kind, key))

    def suggest(self, number: int) -> dict[str, Any]:
        """Return the values of a trial; with optuna by the trials so far.

        Each setting has its folds in a row.
        """
        if self.section.folds is None:
            return self._suggest_setting(number)
        setting, fold = divmod(number, self.section.folds)
        return self._suggest_setting(setting) | {FOLD_KEY: fold}

    def _suggest_setting(self, number: int) -> dict[str, Any]:
        """Return the values of the keys that are searched.

        Where there are folds, the values are without the fold.
        """
        section = self.section
        match section.kind:
            case "grid":
                return self._order_combinations()[number]
            case "random":
                generator = random.Random(f"{section.seed} {number}")  # noqa: S311  # nothing secret
                return {
                    key: draw_value(values, generator) for key, values in section.random.items()
                }
        return suggest(section, self.mode, self.trials(), number)

    def _order_combinations(self) -> list[dict[str, Any]]:
        """Return the combinations of the grid by the number of their setting.

        The grid may have grown since the sweep began. Settings that have begun keep their numbers;
        the other combinations fill the free ones in order, so it makes no difference to any of them
        which tasks of Slurm have begun meanwhile.
        """
        begun = self._find_begun_settings()
        texts_of_begun = {repr(setting) for setting in begun.values()}
        ordered = []
        left = []
        for setting in self._list_combinations():
            if repr(setting) not in texts_of_begun:
                left.append(setting)
        num_settings = len(begun) + len(left)
        for number in range(num_settings):
            if number in begun:
                setting = begun[number]
            else:
                setting = left.pop(0)
            ordered.append(setting)
        return ordered

    def _list_combinations(self) -> list[dict[str, Any]]:
        """Return every combination of the grid, in its order."""
        grid = self.section.grid
        combinations = []
        for values in product(*grid.values()):
            setting = dict(zip(grid, values, strict=True))
            combinations.append(setting)
        return combinations

    def _find_begun_settings(self) -> dict[int, dict[str, Any]]:
        """Return the values of each setting of which a trial has begun, by its number.

        They are without the fold, and in the order of the grid's keys.
        """
        settings = {}
        folds = self.section.folds or 1
        for trial in self._begun_trials():
            number = trial.number // folds
            settings[number] = self._find_setting(trial)
        return settings

    def _find_setting(self, trial: SweepTrial) -> dict[str, Any]:
        """Return the values of a trial without its fold, the grid's keys first."""
        setting = {}
        for key in (*self.section.grid, *trial.values):
            if key in trial.values and key != FOLD_KEY:
                setting[key] = trial.values[key]
        return setting

    def _begun_trials(self) -> list[SweepTrial]:
        """Return the trials that have values, those beyond the present count, too."""
        files = sorted((self.path / "trials").glob("*.json"))
        trials = []
        for file in files:
            number = int(file.stem)
            trial = self.trial(number)
            if trial.values:
                trials.append(trial)
        return trials

    def _check_grid_of_begun_trials(self) -> None:
        """Raise UserError where the grid lacks the values of a trial that has begun."""
        if self.section.kind != "grid":
            return
        known = {repr(setting) for setting in self._list_combinations()}
        for trial in self._begun_trials():
            setting = self._find_setting(trial)
            if repr(setting) in known:
                continue
            message = (
                f"the grid has no {trial.text} any more, with which trial {trial.number} of"
                f" {self.id} has begun"
            )
            place = self.loaded.places.of("sweep.grid")
            hint = "a grid may only grow while its sweep goes on; begin another one without it"
            raise UserError(Problem(message, place, hint))

    def judge(self, trial: SweepTrial) -> PrunerVerdict:
        """Return what the pruner says of a trial at its latest value."""
        if self.section.pruner is None or not trial.points:
            return PrunerVerdict(ends=False, marks=trial.marks)
        return judge(self.section, self.mode, self.trials(), trial)

    def best(self, points: Sequence[float]) -> float | None:
        """Return the best of the values that are finite; None where none is."""
        finite = [point for point in points if math.isfinite(point)]
        if self.mode == "max":
            return max(finite, default=None)
        return min(finite, default=None)


def _read_time_of_creation(file: Path) -> float:
    """Return when a sweep was made, in seconds since 1970; 0 where that cannot be read.

    Its name has the time of a clock, which zones and summer time shift.
    """
    with suppress(OSError, ValueError, KeyError, TypeError):
        text = file.read_text("utf-8")
        facts = json.loads(text)
        return float(facts["created"])
    return 0.0


def check_sweep(loaded: Loaded, *, imports: bool = True) -> None:
    """Raise UserError where a trial of a pipeline's sweep has no valid plan.

    A pipeline may have no sweep.
    """
    if loaded.pipeline.sweep is not None:
        Sweep(Path(), loaded).check(imports=imports)


def _collect_fixed_values(pipeline: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a pipeline that must stay what they are while a sweep goes on."""
    return {key: value for key, value in flat(pipeline) if _is_fixed(key)}


def _is_fixed(key: str) -> bool:
    """Say whether a key must stay what it is while a sweep goes on.

    The number of folds tells which trial is which.
    """
    return key == "sweep.folds" or not key.startswith(NOT_OF_TRAINING)


def _can_be_searched(key: str) -> bool:
    """Say whether trials may differ in a key."""
    is_of_run = not key.startswith(NOT_OF_TRAINING) and key not in ("run.name", "run.dir")
    return is_of_run and _is_key(key)


def _is_key(key: str) -> bool:
    try:
        return bool(split_key(f"{key}=")[0])
    except ValueError:
        return False
