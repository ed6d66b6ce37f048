"""The execution of a sweep: one process for each trial, some at a time."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hookflow.errors import Problem, UserError, nearest_or_all
from hookflow.events.commands import send
from hookflow.events.rundir import RunDir, short
from hookflow.monitor.summary import RunSummary, RunSummaryReader
from hookflow.numbers import number
from hookflow.runner.distributed.failures import ChildExit, ChildProcess
from hookflow.runner.process.launch import cores, new_run, start
from hookflow.runner.process.signals import END_SIGNALS
from hookflow.service.pipelines import valid_plan
from hookflow.service.runs import failure_report
from hookflow.sweep.search import State, SweepTrial
from hookflow.sweep.sweep import Sweep
from hookflow.sweep.trial_server import TrialServer
from hookflow.text import print_error

POLL_PERIOD_SECONDS = 0.2
"""Seconds between looks at the trials that train."""


def list_gpus() -> list[str]:
    """Return the GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    import pynvml

    with suppress(pynvml.NVMLError):  # there is no driver that answers
        pynvml.nvmlInit()
        return [str(k) for k in range(pynvml.nvmlDeviceGetCount())]
    return []


def check_devices(sweep: Sweep) -> None:
    """Raise UserError unless all trials compute on the CPU.

    A process that uses a GPU cannot be forked.
    """
    pipeline = sweep.loaded.pipeline
    devices = sweep.section.searched.get("run.device", [pipeline.run.device])
    if not isinstance(devices, list):
        return
    has_accelerator = bool(list_gpus()) or sys.platform == "darwin"
    for device in devices:
        if device == "cpu" or (device == "auto" and not has_accelerator):
            continue
        message = f'--in-process trains on the CPU alone, and run.device is "{device}"'
        hint = "leave --in-process out, or add: --set run.device=cpu"
        raise UserError(Problem(message, sweep.loaded.places.of("run.device"), hint))


@dataclass(slots=True)
class TrialJob:
    """A trial that trains.

    It has its process, unless an earlier sweep has started it, and what its log says.
    """

    trial: SweepTrial
    run: RunDir
    slot: int
    glance: RunSummaryReader
    child: ChildProcess | None = None
    exit: ChildExit | None = None
    signals: int = 0
    hopeless: bool = False


class SweepExecutor:
    """Executes trials of a sweep, `jobs` at a time.

    `say` receives a line for each that begins or ends. With `in_process` the trials are forked from
    one process that has imported torch; `check_devices` says whether they may be.
    """

    def __init__(
        self, sweep: Sweep, jobs: int, say: Callable[[str], object], *, in_process: bool = False
    ) -> None:
        self._sweep = sweep
        self._jobs = jobs
        self._say = say
        self._in_process = in_process
        self._server: TrialServer | None = None
        self._gpus: list[str] = []
        if jobs > 1 and not in_process:
            self._gpus = list_gpus()
        self._doubts = False
        """Whether the metric has been doubted, which the first validation did not give."""
        self.asked: list[int] = []
        """The signals that this process has received.

        No trial begins any more then, and those that train get them.
        """

    def execute(self, numbers: Sequence[int]) -> None:
        """Execute these trials, as far as they are not done; those that were interrupted go on.

        Raises UserError where the folder of the sweep cannot be written any more, once those that
        train have ended.
        """
        for signal_ in END_SIGNALS:
            signal.signal(signal_, lambda got, _: self.asked.append(got))
        waiting = [number for number in numbers if not self._sweep.trial(number).done]
        active: list[TrialJob] = []
        try:
            if self._in_process and waiting:
                self._server = TrialServer(
                    self._sweep.path / "trial_server.log", self._make_environment(0)
                )
            while active or (waiting and not self.asked):
                while waiting and len(active) < self._jobs and not self.asked:
                    free = next(
                        slot
                        for slot in range(self._jobs)
                        if slot not in {job.slot for job in active}
                    )
                    active += filter(None, [self._begin(self._sweep.trial(waiting.pop(0)), free)])
                time.sleep(POLL_PERIOD_SECONDS)
                active = [job for job in active if not self._check_trial(job)]
        except OSError as error:
            self._end(active)
            message = (
                f"the sweep {self._sweep.id} cannot be recorded: {error.strerror}:"
                f" {short(self._sweep.path)}"
            )
            hint = (
                "the trials that were training have been ended at a safe point; each is a run that"
                " can be resumed"
            )
            raise UserError(Problem(message, hint=hint)) from None
        finally:
            if self._server is not None:
                self._server.close()

    def _end(self, jobs: Sequence[TrialJob]) -> None:
        """End trials at their next safe point, as SIGTERM does, and wait for that.

        Further signals are handed on.
        """
        # Trials that were asked already are not asked again: a second signal ends them at once.
        if not self.asked:
            self.asked.append(signal.SIGTERM)
        left = [*jobs]
        while left:
            for job in left:
                self._forward_signal(job)
            time.sleep(POLL_PERIOD_SECONDS)
            left = [job for job in left if not self._has_ended(job)]

    @staticmethod
    def _has_ended(job: TrialJob) -> bool:
        if job.exit:
            return job.exit() is not None
        return job.run.life() != "alive"

    def _begin(self, trial: SweepTrial, slot: int) -> TrialJob | None:
        """Start the run of a trial, or resume it.

        It is None where that fails, or the run is over by now.
        """
        sweep = self._sweep
        if (
            trial.state in ("running", "interrupted")
            and (run := RunDir(Path(trial.run))).path.is_dir()
        ):
            job = TrialJob(trial, run, slot, RunSummaryReader(run))
            if run.life() == "alive":
                self._say(f"trial {trial.number}  goes on as {run.id}  {trial.text}")
                return job
            seen = job.glance.read(time.time())
            # A sweep may be killed before it has recorded that a trial has finished.
            if seen.health.condition == "finished":
                self._record(job, seen)
                return None
            self._start(job, "--resume")
            self._say(f"trial {trial.number}  resumes {run.id}  {trial.text}")
            sweep.keep(replace(trial, state="running"))
            return job
        values = sweep.suggest(trial.number)
        trial = SweepTrial(trial.number, values)
        try:
            loaded = sweep.load(values)
            run = new_run(loaded, valid_plan(loaded))
            run.note([sweep.id], f"trial {trial.number}")
            trial = sweep.keep(replace(trial, state="running", run=str(run.path)))
            job = TrialJob(trial, run, slot, RunSummaryReader(run))
            self._start(job)
        except (UserError, OSError) as error:
            self._fail(trial, str(error))
            return None
        self._say(f"trial {trial.number}  starts {run.id}  {trial.text}")
        return job

    def _make_environment(self, slot: int) -> dict[str, str]:
        """Return the variables of the environment that share the machine out among the trials."""
        if self._gpus:
            return {"CUDA_VISIBLE_DEVICES": self._gpus[slot % len(self._gpus)]}
        if self._jobs > 1 and "OMP_NUM_THREADS" not in os.environ:
            return {"OMP_NUM_THREADS": str(max(cores() // self._jobs, 1))}
        return {}

    def _start(self, job: TrialJob, *options: str) -> None:
        def begin() -> ChildProcess:
            if self._server is not None:
                job.child = self._server.start(job.run, *options)
            else:
                job.child = start(job.run, *options, environment=self._make_environment(job.slot))
            return job.child

        job.exit = ChildExit(job.run, begin)
        job.exit()

    def _check_trial(self, job: TrialJob) -> bool:
        """Look at a trial that trains; return whether it is over."""
        self._forward_signal(job)
        over = self._has_ended(job)
        seen = job.glance.read(time.time())
        if over:
            self._record(job, seen)
            return True
        points = self._list_points(seen)
        if seen.state.metrics.by_name and not points and not self._doubts:
            self._doubts = True
            self._say(f"warning: {self._describe_missing_metric(seen)}")
        if len(points) > len(job.trial.points):
            trial = replace(job.trial, points=points, value=self._sweep.best(points))
            verdict = self._sweep.judge(trial)
            job.trial = self._sweep.keep(replace(trial, marks=verdict.marks))
            if verdict.ends and not job.hopeless:
                job.hopeless = True
                send(job.run, "stop")
        return False

    def _forward_signal(self, job: TrialJob) -> None:
        """Send the process of a trial the next signal that it has not had."""
        if job.signals < len(self.asked):
            with suppress(ProcessLookupError, KeyError):
                os.kill(
                    job.child.pid if job.child else job.run.describe()["pid"],
                    self.asked[job.signals],
                )
            job.signals += 1

    def _list_points(self, seen: RunSummary) -> list[float]:
        return [
            value for _, value in seen.state.metrics.by_name.get(self._sweep.section.metric, ())
        ]

    def _describe_missing_metric(self, seen: RunSummary) -> str:
        metric = self._sweep.section.metric
        known = seen.state.metrics.by_name
        if metric in known:
            return f'no validation has given a finite value of the metric "{metric}"'
        return (
            f'no validation has given the metric "{metric}";'
            f" {nearest_or_all(metric, known, 'it has')}"
        )

    def _record(self, job: TrialJob, seen: RunSummary) -> None:
        """Write down how a trial has ended."""
        points = self._list_points(seen)
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
            self._fail(trial, self._describe_missing_metric(seen))
        elif state == "failed":
            self._fail(trial, seen.reason or failure_report(job.run))
        else:
            self._sweep.keep(replace(trial, state=state, reason=""))
            if value is None:
                result = ""
            else:
                result = f"  {self._sweep.section.metric} {number(value)}"
            self._say(f"trial {trial.number}  {state}{result}  {trial.text}")

    def _fail(self, trial: SweepTrial, reason: str) -> None:
        self._sweep.keep(replace(trial, state="failed", reason=reason))
        print_error(f"trial {trial.number}  failed  {trial.text}\n    {reason}")
