"""Sweeps: runs of one pipeline with other values of some keys, their state in a directory, one process for each run.

A sweep is a folder beside its runs, `runs/<name>/sweep-<date>-<time>-<digits>/`: `sweep.json`, the pipeline, and a file
for each trial. Each process that executes trials writes the files of its own trials alone, so tasks of Slurm share it.
A study of optuna is built from these files each time.
"""

from __future__ import annotations

import json
import math
import os
import random
import secrets
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any, Literal

import tomli

from hookflow.errors import Problem, UserError, Where, nearest_or_all
from hookflow.events.commands import send
from hookflow.events.run_lock import Locks, try_lock
from hookflow.events.rundir import RunDir, short, write_whole
from hookflow.metric_mode import Mode, mode_of
from hookflow.monitor.summary import Glance, Overview
from hookflow.numbers import number
from hookflow.pipeline.layers import Override
from hookflow.pipeline.load import Loaded, dump
from hookflow.pipeline.registry import missing_package
from hookflow.pipeline.schema import SweepRange, SweepSection
from hookflow.pipeline.source_map import as_toml, flat, split_key
from hookflow.runner.distributed.failures import ChildExit
from hookflow.runner.process.launch import cores, new_run, start
from hookflow.runner.process.signals import SIGNALS
from hookflow.service.pipelines import read_pipeline, valid_plan
from hookflow.service.runs import failure_report
from hookflow.text import print_error

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

PREFIX = "sweep-"
PERIOD = 0.2
"""Seconds between looks at the trials that train."""

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
    if values.integers and not values.log:
        return generator.randint(int(low), int(high))
    value = math.exp(generator.uniform(math.log(low), math.log(high))) if values.log else generator.uniform(low, high)
    return min(max(round(value) if values.integers else float(f"{value:.4g}"), low), high)


STATES = {"finished": "COMPLETE", "pruned": "PRUNED", "running": "RUNNING", "interrupted": "RUNNING"}
PRUNERS = {"median": "Median", "halving": "SuccessiveHalving", "hyperband": "Hyperband", None: "Nop"}
"""Optuna's names for the states of trials, and for its classes of pruners, to which "Pruner" is added."""


def suggest(section: SweepSection, mode: Mode, trials: Iterable[Trial], number: int) -> dict[str, Any]:
    """Return the values that the sampler chooses for a trial by the others."""
    study = _study(section, mode, trials, number)
    chosen = study.ask({key: _distribution(values) for key, values in section.optuna.items()}).params
    lists = {key: values for key, values in section.optuna.items() if not isinstance(values, SweepRange)}
    return {key: lists[key][value] if key in lists else value for key, value in chosen.items()}


def is_hopeless(section: SweepSection, mode: Mode, trials: Iterable[Trial], trial: Trial) -> bool:
    """Say whether the pruner ends a trial at its latest value."""
    study = _study(section, mode, trials, trial.number)
    study.add_trial(_frozen(section, trial))
    return bool(study.pruner.prune(study, study.trials[-1]))


def _study(section: SweepSection, mode: Mode, trials: Iterable[Trial], number: int) -> optuna.Study:
    """Return the study of all trials but that of the number."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=section.seed + number, constant_liar=True)
    direction = "maximize" if mode == "max" else "minimize"
    pruner = getattr(optuna.pruners, f"{PRUNERS[section.pruner]}Pruner")()
    study = optuna.create_study(sampler=sampler, pruner=pruner, direction=direction)
    study.add_trials([_frozen(section, trial) for trial in trials if trial.number != number and trial.state in STATES])
    return study


def _frozen(section: SweepSection, trial: Trial) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    state, params = TrialState[STATES[trial.state]], dict[str, Any]()
    for key, values in section.optuna.items():
        value = trial.values[key]
        params[key] = value if isinstance(values, SweepRange) else values.index(value)
    return create_trial(
        state=state,
        value=trial.value if state is TrialState.COMPLETE else None,
        params=params,
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


class Sweep:
    """A sweep in its folder."""

    def __init__(self, path: Path, loaded: Loaded) -> None:
        if loaded.pipeline.sweep is None:
            message = f"{loaded.source} has no table [sweep]"
            raise UserError(Problem(message, hint='[sweep] with metric = "accuracy", and [sweep.grid]'))
        self.path, self.loaded = path, loaded
        self.section: SweepSection = loaded.pipeline.sweep
        try:
            self.mode: Mode = mode_of(self.section.metric, self.section.mode)
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
        name = f"{PREFIX}{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        sweep = cls(Path(loaded.pipeline.run.dir).absolute() / loaded.pipeline.run.name / name, loaded)
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
            write_whole(self.path / "sweep.json", json.dumps(facts | {"created": time.time()}, indent=1))
        except OSError as error:
            message = f"no sweep can be made in {self.folder}: {error.strerror}"
            raise UserError(Problem(message, self.loaded.places.of("run.dir"))) from None

    @classmethod
    def open(cls, path: Path) -> Sweep:
        """Return a sweep that has begun. Raises UserError where it cannot be read, or its pipeline has changed."""
        try:
            facts = json.loads((path / "sweep.json").read_text("utf-8"))
            file, overrides = Path(facts["file"]), facts["overrides"]
            then = tomli.loads((path / "pipeline.toml").read_text("utf-8"))
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(Problem(f"{short(path)} is no sweep that can be read")) from None
        sweep = cls(path, read_pipeline(file, overrides))
        now = tomli.loads(dump(sweep.loaded.public))
        before, after = ({key: value for key, value in flat(tables) if _is_fixed(key)} for tables in (then, now))
        if changed := [key for key in before | after if before.get(key) != after.get(key)]:
            message = f"{changed[0]} has changed since the sweep {sweep.id} began"
            raise UserError(Problem(message, sweep.loaded.places.of(changed[0]), "its trials would not be comparable"))
        return sweep

    @classmethod
    def newest(cls, file: Path, overrides: Sequence[str]) -> Sweep:
        """Return the newest sweep of a pipeline file. Raises UserError where there is none."""
        run = cls(Path(), read_pipeline(file, overrides)).loaded.pipeline.run
        folder = Path(run.dir).absolute() / run.name
        newest = max(folder.glob(f"{PREFIX}*/sweep.json"), default=None)
        if newest is None:
            raise UserError(Problem(f"there is no sweep in {short(folder)}", Where("--resume")))
        return cls.open(newest.parent)

    def lock(self, *, shared: bool) -> Locks:
        """Lock the sweep until the returned locks are released. Raises UserError while another process has it."""
        if (locks := try_lock(self.path, shared=shared)) is None:
            raise UserError(Problem(f"the sweep {self.id} is already running"))
        return locks

    def trials(self) -> list[Trial]:
        """Return every trial as its file has it."""
        return [self.trial(number) for number in range(self.section.count)]

    def trial(self, number: int) -> Trial:
        with suppress(OSError, ValueError, TypeError):  # it has not begun
            return Trial(**json.loads(self._file(number).read_text("utf-8")))
        return Trial(number)

    def keep(self, trial: Trial) -> Trial:
        """Write the file of a trial."""
        write_whole(self._file(trial.number), json.dumps(asdict(trial)))
        return trial

    def _file(self, number: int) -> Path:
        return self.path / "trials" / f"{number:04}.json"

    def check(self, *, imports: bool = True) -> None:
        """Raise UserError with each key and value that no trial could have."""
        problems: list[Problem] = []
        if self.section.optuna:
            place = self.loaded.places.of("sweep.optuna")
            problems += filter(None, [missing_package("[sweep.optuna]", "optuna", "optuna", place)])
        first = {key: next(iter(ends_of(values))) for key, values in self.section.searched.items()}
        for key, values in self.section.searched.items():
            if not _is_fixed(key) or key in ("run.name", "run.dir") or not _is_key(key):
                message = f'"{key}" is no key that a sweep can change'
                problems.append(Problem(message, self._place(key), 'write one as "optimizer.args.lr"'))
                continue
            for value in ends_of(values):
                try:
                    valid_plan(self.load(first | {key: value}, imports=imports), imports=imports)
                except UserError as error:
                    problems += [problem for problem in error.problems if problem not in problems]
        for key, values in self.section.grid.items():
            if twice := [value for k, value in enumerate(values) if repr(value) in map(repr, values[:k])]:  # 1 == True
                message = f"{key} = {as_toml(twice[0])} is listed twice, and would be trained twice"
                problems.append(Problem(message, self._place(key)))
        if problems:
            raise UserError(problems)

    def load(self, values: dict[str, Any], *, imports: bool = True) -> Loaded:
        """Return the pipeline with the values of a trial. Raises UserError."""
        changes = [Override(f"{key}={as_toml(value)}", self._place(key)) for key, value in values.items()]
        return read_pipeline(self.loaded.source, [*self.loaded.overrides, *changes], imports=imports)

    def _place(self, key: str) -> Where:
        return self.loaded.places.of(("sweep", self.section.kind, key))

    def suggest(self, number: int) -> dict[str, Any]:
        """Return the values of a trial; with optuna by the trials so far."""
        section = self.section
        match section.kind:
            case "grid":
                combinations = list(product(*section.grid.values()))
                return dict(zip(section.grid, combinations[number], strict=True))
            case "random":
                generator = random.Random(f"{section.seed} {number}")  # noqa: S311  # nothing secret
                return {key: drawn(values, generator) for key, values in section.random.items()}
        return suggest(section, self.mode, self.trials(), number)

    def is_hopeless(self, trial: Trial) -> bool:
        """Say whether the pruner ends a trial at its latest value."""
        if self.section.pruner is None or not trial.points:
            return False
        return is_hopeless(self.section, self.mode, self.trials(), trial)

    def best(self, points: Sequence[float]) -> float | None:
        finite = [point for point in points if math.isfinite(point)]
        return (max if self.mode == "max" else min)(finite, default=None)


def _is_fixed(key: str) -> bool:
    """Say whether a key must stay what it is while a sweep goes on."""
    return not key.startswith(("sweep.", "notify."))


def _is_key(key: str) -> bool:
    try:
        return bool(split_key(f"{key}=")[0])
    except ValueError:
        return False


def gpus() -> list[str]:
    """Return the GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in visible.split(",") if name]
    import pynvml

    with suppress(pynvml.NVMLError):  # there is no driver that answers
        pynvml.nvmlInit()
        return [str(k) for k in range(pynvml.nvmlDeviceGetCount())]
    return []


@dataclass(slots=True)
class Job:
    """A trial that trains: its process, unless an earlier sweep has started it, and what its log says."""

    trial: Trial
    run: RunDir
    slot: int
    glance: Glance
    child: Popen[bytes] | None = None
    exit: ChildExit | None = None
    signals: int = 0
    hopeless: bool = False


class Executor:
    """Executes trials of a sweep, `jobs` at a time. `say` receives a line for each that begins or ends."""

    def __init__(self, sweep: Sweep, jobs: int, say: Callable[[str], object]) -> None:
        self._sweep, self._jobs, self._say = sweep, jobs, say
        self._gpus = gpus() if jobs > 1 else []
        self._doubts = False
        """Whether the metric has been doubted, which the first validation did not give."""
        self.asked: list[int] = []
        """The signals that this process has received: no trial begins any more, and those that train get them."""

    def execute(self, numbers: Sequence[int]) -> None:
        """Execute these trials, as far as they are not done; those that were interrupted go on.

        Raises UserError where the folder of the sweep cannot be written any more, once those that train have ended.
        """
        for signal_ in SIGNALS:
            signal.signal(signal_, lambda got, _: self.asked.append(got))
        waiting = [number for number in numbers if not self._sweep.trial(number).done]
        active: list[Job] = []
        try:
            while active or (waiting and not self.asked):
                while waiting and len(active) < self._jobs and not self.asked:
                    free = next(slot for slot in range(self._jobs) if slot not in {job.slot for job in active})
                    active += filter(None, [self._begin(self._sweep.trial(waiting.pop(0)), free)])
                time.sleep(PERIOD)
                active = [job for job in active if not self._over(job)]
        except OSError as error:
            self._end(active)
            message = f"the sweep {self._sweep.id} cannot be recorded: {error.strerror}: {short(self._sweep.path)}"
            hint = "the trials that were training have been ended at a safe point; each is a run that can be resumed"
            raise UserError(Problem(message, hint=hint)) from None

    def _end(self, jobs: Sequence[Job]) -> None:
        """End trials at their next safe point, as SIGTERM does, and wait for that; further signals are handed on."""
        if not self.asked:  # else they have been asked already, and a second signal ends them at once
            self.asked.append(signal.SIGTERM)
        left = [*jobs]
        while left:
            for job in left:
                self._hand_on(job)
            time.sleep(PERIOD)
            left = [job for job in left if not self._has_ended(job)]

    @staticmethod
    def _has_ended(job: Job) -> bool:
        return job.exit() is not None if job.exit else job.run.life() != "alive"

    def _begin(self, trial: Trial, slot: int) -> Job | None:
        """Start the run of a trial, or resume it; None where that fails, or the run is over by now."""
        sweep = self._sweep
        if trial.state in ("running", "interrupted") and (run := RunDir(Path(trial.run))).path.is_dir():
            job = Job(trial, run, slot, Glance(run))
            if run.life() == "alive":
                self._say(f"trial {trial.number}  goes on as {run.id}  {trial.text}")
                return job
            seen = job.glance.read(time.time())
            if seen.health.condition == "finished":  # the sweep was killed before it had recorded that
                self._record(job, seen)
                return None
            self._start(job, "--resume")
            self._say(f"trial {trial.number}  resumes {run.id}  {trial.text}")
            sweep.keep(replace(trial, state="running"))
            return job
        values = sweep.suggest(trial.number)
        trial = Trial(trial.number, values)
        try:
            loaded = sweep.load(values)
            run = new_run(loaded, valid_plan(loaded))
            run.note([sweep.id], f"trial {trial.number}")
            trial = sweep.keep(replace(trial, state="running", run=str(run.path)))
            job = Job(trial, run, slot, Glance(run))
            self._start(job)
        except (UserError, OSError) as error:
            self._fail(trial, str(error))
            return None
        self._say(f"trial {trial.number}  starts {run.id}  {trial.text}")
        return job

    def _start(self, job: Job, *options: str) -> None:
        environment = {}
        if self._gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self._gpus[job.slot % len(self._gpus)]
        elif self._jobs > 1 and "OMP_NUM_THREADS" not in os.environ:
            environment["OMP_NUM_THREADS"] = str(max(cores() // self._jobs, 1))

        def begin() -> Popen[bytes]:
            job.child = start(job.run, *options, environment=environment)
            return job.child

        job.exit = ChildExit(job.run, begin)
        job.exit()

    def _over(self, job: Job) -> bool:
        """Look at a trial that trains; return whether it is over."""
        self._hand_on(job)
        over = self._has_ended(job)
        seen = job.glance.read(time.time())
        if over:
            self._record(job, seen)
            return True
        points = self._points(seen)
        if seen.state.metrics.by_name and not points and not self._doubts:
            self._doubts = True
            self._say(f"warning: {self._lacks(seen)}")
        if len(points) > len(job.trial.points):
            job.trial = self._sweep.keep(replace(job.trial, points=points, value=self._sweep.best(points)))
            if not job.hopeless and self._sweep.is_hopeless(job.trial):
                job.hopeless = True
                send(job.run, "stop")
        return False

    def _hand_on(self, job: Job) -> None:
        """Send the process of a trial the next signal that it has not had."""
        if job.signals < len(self.asked):
            with suppress(ProcessLookupError, KeyError):
                os.kill(job.child.pid if job.child else job.run.describe()["pid"], self.asked[job.signals])
            job.signals += 1

    def _points(self, seen: Overview) -> list[float]:
        return [value for _, value in seen.state.metrics.by_name.get(self._sweep.section.metric, ())]

    def _lacks(self, seen: Overview) -> str:
        metric, known = self._sweep.section.metric, seen.state.metrics.by_name
        return f'no validation has given the metric "{metric}"; {nearest_or_all(metric, known, "it has")}'

    def _record(self, job: Job, seen: Overview) -> None:
        """Write down how a trial has ended."""
        points = self._points(seen)
        value = self._sweep.best(points)
        trial = replace(job.trial, points=points, value=value)
        state: State = "failed"
        if seen.health.condition == "finished":
            state = "finished"
        elif seen.health.condition == "stopped" and job.hopeless:
            state = "pruned"
        elif seen.health.condition in ("stopped", "interrupted"):
            state = "interrupted"
        if state == "finished" and value is None:
            self._fail(trial, self._lacks(seen))
        elif state == "failed":
            self._fail(trial, seen.reason or failure_report(job.run))
        else:
            self._sweep.keep(replace(trial, state=state, reason=""))
            result = "" if value is None else f"  {self._sweep.section.metric} {number(value)}"
            self._say(f"trial {trial.number}  {state}{result}  {trial.text}")

    def _fail(self, trial: Trial, reason: str) -> None:
        self._sweep.keep(replace(trial, state="failed", reason=reason))
        print_error(f"trial {trial.number}  failed  {trial.text}\n    {reason}")
