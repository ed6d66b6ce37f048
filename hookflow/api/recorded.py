"""`hookflow.runs` and `hookflow.load_run`: runs as they were recorded, and their checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli

from hookflow.errors import Problem, UserError, nearest_or_all
from hookflow.events.log import event_log
from hookflow.events.reading import read_regular
from hookflow.events.rundir import RunDir, short
from hookflow.graph.plan import Plan
from hookflow.monitor.index import Index, Row
from hookflow.monitor.selection import curve_svg, html_of, html_table, select
from hookflow.monitor.summary import metric_rows, read_overview
from hookflow.pipeline.source_map import as_toml
from hookflow.runner.checkpoint.manifest import (
    APART,
    WEIGHTS,
    DamagedError,
    damage,
    iteration_of,
    list_checkpoints,
    names_by_checkpoint,
    read_manifest,
)
from hookflow.service.rerun import Unlike
from hookflow.service.runs import LATEST, ScalarRow, find_run, recorded_plan, scalars

if TYPE_CHECKING:
    from torch import nn


def runs(
    folder: str | os.PathLike[str] = "runs",
    *,
    filter: str | None = None,  # noqa: A002  # as the option of the command
    sort: str | None = None,
) -> Runs:
    """Return the runs in a folder of runs, the newest first.

    `filter` and `sort` are those of `hookflow runs`: "best.accuracy > 0.9", "-best.accuracy". Raises UserError where no
    run has such a key.
    """
    return Runs(select(Index(Path(folder)).refresh(), filter, sort))


class Runs(list["RecordedRun"]):
    """A list of runs, as they were when they were listed; a notebook shows it as a table."""

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__(RecordedRun(row.run) for row in rows)
        self._rows = rows

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dict for each run with its facts, its metrics and the keys of its pipeline; for `pandas.DataFrame`."""
        return [{**row.values, **row.config} for row in self._rows]

    def _repr_html_(self) -> str:
        return html_table(self._rows)


def load_run(run: str | os.PathLike[str] = LATEST, folder: str | os.PathLike[str] = "runs") -> RecordedRun:
    """Return a run: "latest", its id or a beginning or end of that, its name (the newest of it), or its directory.

    Raises UserError when there is none, or more than one.
    """
    return RecordedRun(find_run(os.fspath(run), Path(folder)))


class RecordedRun:
    """A run, read from its directory. Every attribute is read when it is accessed, so the values of a live run are
    current."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir

    @property
    def id(self) -> str:
        """When it was started, and four digits: what every command takes as RUN."""
        return self._run_dir.id

    @property
    def name(self) -> str:
        """The `run.name` of its pipeline."""
        return self._run_dir.path.parent.name

    @property
    def dir(self) -> Path:
        """The run directory."""
        return self._run_dir.path

    @property
    def status(self) -> str:
        """How it is: "finished", "stopped", "interrupted", "failed", "refused", or "running", "stalled", "lost", ….

        A run that a hook has ended before its last iteration is "finished", too; its reason says so.
        """
        return read_overview(self._run_dir, time.time()).health.condition

    @property
    def config(self) -> dict[str, Any]:
        """The pipeline that it was started with, as nested tables: `run.config["optimizer"]["args"]["lr"]`.

        Raises OSError or ValueError where it cannot be read.
        """
        return tomli.loads(read_regular(self._run_dir.pipeline).decode())

    @property
    def best(self) -> dict[str, float]:
        """The best value of each metric, where more or less of it is known to be better: {"accuracy": 0.93}."""
        best = read_overview(self._run_dir, time.time()).state.metrics.best
        return {name: record.value for name, record in best.items()}

    @property
    def plan(self) -> Plan:
        """Which hooks fired where, and in which order."""
        return recorded_plan(self._run_dir)

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """Metrics of the latest validation and test: {"val": {"accuracy": 0.93}}. Earlier ones are in `scalars`."""
        result: dict[str, dict[str, float]] = {}
        for record in event_log(self._run_dir.events).read_all():
            if record["k"] == "metrics":
                result[record["split"]] = {name: float(value) for name, value in record["v"].items()}
        return result

    def scalars(self, *names: str) -> dict[str, list[Any]]:
        """Return the logged numbers (those of `names`, if any are given) as columns that `pandas.DataFrame` takes.

        They are `iter` and `epoch` (those done), `time` (seconds since 1970), `name` and `value`. Metrics are called
        "val/accuracy". Of iterations that were trained again after a resume, the later attempt counts. Raises UserError
        for names that nothing was ever logged by.
        """
        every = scalars(self._run_dir)
        logged = dict.fromkeys(row.name for row in every)
        if unknown := [name for name in names if name not in logged]:
            message = f"the run {self.id} has never logged"
            metric = {full.rpartition("/")[2]: f'did you mean "{full}"?' for full in reversed(logged)}
            hints = {name: metric.get(name) or nearest_or_all(name, logged) for name in unknown}
            raise UserError(Problem(f'{message} "{name}"', hint=hint) for name, hint in hints.items())
        rows = [row for row in every if not names or row.name in names]
        return {column: [getattr(row, column) for row in rows] for column in ScalarRow._fields}

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints, the newest first; not those that cannot be used, or were saved after an error."""
        return self._saved("", WEIGHTS)

    def _saved(self, *prefixes: str) -> list[Checkpoint]:
        folder = self._run_dir.checkpoints
        names = names_by_checkpoint(folder)
        result = []
        paths = (path for prefix in prefixes for path in list_checkpoints(folder, prefix))
        for path in sorted(paths, key=iteration_of, reverse=True):
            try:
                manifest = read_manifest(path)
            except DamagedError:
                continue
            metrics = manifest.get("metrics") or {}
            result.append(Checkpoint(path, manifest["it"], manifest["ep"], tuple(names.get(path, ())), metrics))
        return result

    def checkpoint(self, name: str = "last") -> Checkpoint:
        """Return the checkpoint of a name: "last", "best", or that of its folder. Raises UserError if there is none."""
        there = {known: item for item in self._saved("", *APART) for known in (*item.names, item.path.name)}
        if name not in there:
            hint = nearest_or_all(name, there)
            raise UserError(Problem(f'the run {self.id} has no checkpoint "{name}"', hint=hint))
        return there[name]

    def rerun(
        self,
        at: int,
        *,
        iters: int = 20,
        with_: Sequence[str] = (),
        without: Sequence[str] = (),
        overrides: Mapping[str, Any] | None = None,
    ) -> Rerun:
        """Do `iters` iterations from iteration `at` on again, in a process of their own, and compare what they log.

        `with_` are hooks that watch ("grad_norm", "./probe.py:Probe"), `without` names hooks that are left out. This is
        `hookflow rerun`. Raises UserError as that command does.
        """
        command = [sys.executable, "-m", "hookflow", "rerun", str(self.dir), f"--at={at}", f"--for={iters}"]
        command += [f"--with={use}" for use in with_] + [f"--without={name}" for name in without]
        command += [f"--set={key}={as_toml(value)}" for key, value in (overrides or {}).items()]
        done = subprocess.run([*command, "--format=json"], capture_output=True, text=True, check=False)
        if done.returncode > 1:
            raise UserError(Problem(done.stderr.strip() or f"the rerun has ended with exit code {done.returncode}"))
        result = json.loads(done.stdout)
        more = {name: {int(it): value for it, value in its.items()} for name, its in result["more"].items()}
        unlike = [Unlike(**each) for each in result["unlike"]]
        return Rerun(RecordedRun(RunDir(Path(result["rerun"]))), unlike, result["causes"], result["compared"], more)

    def _repr_html_(self) -> str:
        seen = read_overview(self._run_dir, time.time())
        points = seen.state.metrics.by_name
        lines = [[*map(escape, row), curve_svg([y for _, y in points[row[0]]])] for row in metric_rows(seen.state)]
        table = html_of(("metric", "last", "best", "at epoch", "iteration", "curve"), lines)
        return f"<p>{escape(f'{self.name} {self.id}: {seen.health.condition}')}</p>{table}"

    def __repr__(self) -> str:
        return f"<Run {self.name} {self.id}: {self.status}>"


@dataclass(frozen=True, slots=True)
class Rerun:
    """Iterations that were done again: the run of their own, and what differs from the recording."""

    run: RecordedRun
    unlike: Sequence[Unlike]
    """The numbers that are not the recorded ones to the bit, the first one first."""
    causes: Sequence[str]
    compared: int
    """How many numbers were held against the recording."""
    more: Mapping[str, Mapping[int, float]]
    """Numbers beyond the recording, as those of hooks that watched, by name and iteration."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint: its folder, the iterations and epochs that were done, its names, the metrics known by then."""

    path: Path
    iter: int
    epoch: int
    names: tuple[str, ...]
    metrics: Mapping[str, float]

    def load_into(self, model: nn.Module, name: str | None = None) -> nn.Module:
        """Give a model the weights, and return it. `name`: one of several models, or the hook that has averaged them.

        Without a `name` they are the trained weights. Where the checkpoint has an average of them, which the metrics
        are of, a UserWarning says so; `name="model"` says that the trained ones are meant.

        Frozen parameters that the checkpoint leaves out remain the model's own. Raises UserError where the checkpoint
        is damaged, has no such weights, or was trained with other frozen parameters, and PyTorch's own RuntimeError
        where they do not fit the model.
        """
        from hookflow.hooks.checkpoint_files import averages_in, frozen_in, read_weights, state_key, with_frozen

        if wrong := damage(self.path):
            raise UserError(Problem(f"checkpoint {short(self.path)} cannot be used: {wrong}"))
        key = state_key("model", name or "model")
        averages = averages_in(self.path) if name is None else []
        if averages:
            ways = [f'load_into(model, "{average.removeprefix("model_")}")' for average in averages]
            message = "these are the trained weights, and the metrics of the checkpoint are of an average of them"
            hint = f'{" or ".join(ways)} loads the average, load_into(model, "model") the trained ones'
            warnings.warn(f"{message}: {hint}", stacklevel=2)
        model.load_state_dict(with_frozen(read_weights(self.path, key), frozen_in(self.path, key), model))
        return model
