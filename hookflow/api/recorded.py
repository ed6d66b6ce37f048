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
from hookflow.monitor.selection import select
from hookflow.monitor.summary import metric_rows, read_run_summary
from hookflow.pipeline.source_map import as_toml
from hookflow.report.notebook import draw_curve_svg, html_of, html_table
from hookflow.rerun.comparison import NumberMismatch
from hookflow.runner.checkpoint.manifest import (
    NON_RESUMABLE_PREFIXES,
    WEIGHTS,
    DamagedError,
    find_damage,
    list_checkpoints,
    names_by_checkpoint,
    parse_iteration,
    read_manifest,
)
from hookflow.service.runs import LATEST_RUN_NAME, ScalarRow, find_run, read_recorded_plan, scalars

if TYPE_CHECKING:
    from torch import nn


def runs(
    folder: str | os.PathLike[str] = "runs",
    *,
    filter: str | None = None,  # noqa: A002  # as the option of the command
    sort: str | None = None,
) -> Runs:
    """Return the runs in a folder of runs, the newest first.

    `filter` and `sort` are those of `hookflow runs`: "best.accuracy > 0.9", "-best.accuracy".
    Raises UserError where no run has such a key.
    """
    return Runs(select(Index(Path(folder)).refresh(), filter, sort))


class Runs(list["RecordedRun"]):
    """A list of runs, as they were when they were listed; a notebook shows it as a table."""

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__(RecordedRun(row.run) for row in rows)
        self._rows = rows

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dict for each run, for `pandas.DataFrame`.

        It has the facts of the run, its metrics and the keys of its pipeline.
        """
        return [{**row.values, **row.config} for row in self._rows]

    def _repr_html_(self) -> str:
        return html_table(self._rows)


def load_run(
    run: str | os.PathLike[str] = LATEST_RUN_NAME, folder: str | os.PathLike[str] = "runs"
) -> RecordedRun:
    """Return a recorded run.

    `run` is "latest", its id or a beginning or end of that, its name (the newest of it), or its
    directory. Raises UserError when there is none, or more than one.
    """
    return RecordedRun(find_run(os.fspath(run), Path(folder)))


class RecordedRun:
    """A run, read from its directory.

    Every attribute is read when it is accessed, so the values of a live run are current.
    """

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
        """The condition of the run.

        It is "finished", "stopped", "interrupted", "failed", "refused", or "running", "stalled",
        "lost", …. A run that a hook has ended before its last iteration is "finished", too; its
        reason says so.
        """
        return read_run_summary(self._run_dir, time.time()).health.condition

    @property
    def config(self) -> dict[str, Any]:
        """The pipeline that it was started with, as nested tables.

        The rate, say, is `run.config["optimizer"]["args"]["lr"]`. Raises OSError or ValueError
        where it cannot be read.
        """
        return tomli.loads(read_regular(self._run_dir.pipeline).decode())

    @property
    def best(self) -> dict[str, float]:
        """The best value of each metric: {"accuracy": 0.93}.

        Metrics are left out of which it is not known whether more or less is better.
        """
        best = read_run_summary(self._run_dir, time.time()).state.metrics.best
        return {name: record.value for name, record in best.items()}

    @property
    def plan(self) -> Plan:
        """Which hooks fired where, and in which order."""
        return read_recorded_plan(self._run_dir)

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """Metrics of the latest validation and test: {"val": {"accuracy": 0.93}}.

        Earlier ones are in `scalars`.
        """
        latest: dict[str, dict[str, float]] = {}
        for record in event_log(self._run_dir.events).read_all():
            if record["k"] != "metrics":
                continue
            split = record["split"]
            latest[split] = {name: float(value) for name, value in record["v"].items()}
        return latest

    def scalars(self, *names: str) -> dict[str, list[Any]]:
        """Return the logged numbers as columns that `pandas.DataFrame` takes.

        With `names` they are the numbers of these names. They are `iter` and `epoch` (those done),
        `time` (seconds since 1970), `name` and `value`. Metrics are called "val/accuracy". Of
        iterations that were trained again after a resume, the later attempt counts. Raises
        UserError for names that nothing was ever logged by.
        """
        rows = scalars(self._run_dir)
        logged = list(dict.fromkeys(row.name for row in rows))
        unknown = [name for name in names if name not in logged]
        if unknown:
            raise UserError(self._make_unknown_name_problem(name, logged) for name in unknown)
        if names:
            rows = [row for row in rows if row.name in names]
        columns = {}
        for column in ScalarRow._fields:
            columns[column] = [getattr(row, column) for row in rows]
        return columns

    def _make_unknown_name_problem(self, name: str, logged: Sequence[str]) -> Problem:
        """Return what is wrong with a name that was never logged.

        "accuracy" may be meant for "val/accuracy".
        """
        hint = nearest_or_all(name, logged)
        for logged_name in logged:
            if logged_name.rpartition("/")[2] == name:
                hint = f'did you mean "{logged_name}"?'
                break
        return Problem(f'the run {self.id} has never logged "{name}"', hint=hint)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints, the newest first.

        Those are left out that cannot be used, or were saved after an error.
        """
        return self._list_checkpoints("", WEIGHTS)

    def _list_checkpoints(self, *prefixes: str) -> list[Checkpoint]:
        folder = self._run_dir.checkpoints
        names = names_by_checkpoint(folder)
        paths: list[Path] = []
        for prefix in prefixes:
            paths += list_checkpoints(folder, prefix)
        paths.sort(key=parse_iteration, reverse=True)
        saved = []
        for path in paths:
            try:
                manifest = read_manifest(path)
            except DamagedError:
                continue
            checkpoint = Checkpoint(
                path,
                iter=manifest["it"],
                epoch=manifest["ep"],
                names=tuple(names.get(path, ())),
                metrics=manifest.get("metrics") or {},
            )
            saved.append(checkpoint)
        return saved

    def checkpoint(self, name: str = "last") -> Checkpoint:
        """Return the checkpoint of a name: "last", "best", or that of its folder.

        Raises UserError if there is none.
        """
        by_name = {}
        for saved in self._list_checkpoints("", *NON_RESUMABLE_PREFIXES):
            for saved_name in (*saved.names, saved.path.name):
                by_name[saved_name] = saved
        if name not in by_name:
            hint = nearest_or_all(name, by_name)
            raise UserError(Problem(f'the run {self.id} has no checkpoint "{name}"', hint=hint))
        return by_name[name]

    def rerun(
        self,
        at: int,
        *,
        iters: int = 20,
        with_: Sequence[str] = (),
        without: Sequence[str] = (),
        overrides: Mapping[str, Any] | None = None,
    ) -> Rerun:
        """Do `iters` iterations again, from iteration `at` on, and compare what they log.

        They are done in a process of their own. `with_` are hooks that watch ("grad_norm",
        "./probe.py:Probe"), `without` names hooks that are left out. This is `hookflow rerun`.
        Raises UserError as that command does.
        """
        command = [
            sys.executable,
            "-m",
            "hookflow",
            "rerun",
            str(self.dir),
            f"--at={at}",
            f"--for={iters}",
        ]
        command += [f"--with={use}" for use in with_]
        command += [f"--without={name}" for name in without]
        for key, value in (overrides or {}).items():
            command.append(f"--set={key}={as_toml(value)}")
        done = subprocess.run(
            [*command, "--format=json"], capture_output=True, text=True, check=False
        )
        if done.returncode > 1:
            raise UserError(
                Problem(
                    done.stderr.strip() or f"the rerun has ended with exit code {done.returncode}"
                )
            )
        result = json.loads(done.stdout)
        more = {}
        for name, values in result["more"].items():
            more[name] = {int(iteration): value for iteration, value in values.items()}
        return Rerun(
            run=RecordedRun(RunDir(Path(result["rerun"]))),
            unlike=[NumberMismatch(**mismatch) for mismatch in result["unlike"]],
            causes=result["causes"],
            compared=result["compared"],
            more=more,
            left_out=result["left_out"],
        )

    def _repr_html_(self) -> str:
        summary = read_run_summary(self._run_dir, time.time())
        points = summary.state.metrics.by_name
        rows = []
        for cells in metric_rows(summary.state):
            values = [value for _, value in points[cells[0]]]
            rows.append([*map(escape, cells), draw_curve_svg(values)])
        table = html_of(("metric", "last", "best", "at epoch", "iteration", "curve"), rows)
        title = escape(f"{self.name} {self.id}: {summary.health.condition}")
        return f"<p>{title}</p>{table}"

    def __repr__(self) -> str:
        return f"<Run {self.name} {self.id}: {self.status}>"


@dataclass(frozen=True, slots=True)
class Rerun:
    """Iterations that were done again, in a run of their own.

    It says what differs from the recording.
    """

    run: RecordedRun
    unlike: Sequence[NumberMismatch]
    """The numbers that are not the recorded ones to the bit, the first one first."""
    causes: Sequence[str]
    compared: int
    """How many numbers were held against the recording."""
    more: Mapping[str, Mapping[int, float]]
    """Numbers beyond the recording, as those of hooks that watched, by name and iteration."""
    left_out: Sequence[str]
    """Hooks of the run that were left out, since they write outside its folder."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint of a run.

    It has its folder, the iterations and epochs that were done, its names, and the metrics known by
    then.
    """

    path: Path
    iter: int
    epoch: int
    names: tuple[str, ...]
    metrics: Mapping[str, float]

    def load_into(self, model: nn.Module, name: str | None = None) -> nn.Module:
        """Give a model the weights, and return it.

        `name` is one of several models, or the hook that has averaged them. Without a `name` they
        are the trained weights. Where the checkpoint has an average of them, which the metrics are
        of, a UserWarning says so; `name="model"` says that the trained ones are meant.

        Frozen parameters that the checkpoint leaves out remain the model's own. Raises UserError
        where the checkpoint is damaged, has no such weights, or was trained with other frozen
        parameters. PyTorch raises its own RuntimeError where they do not fit the model.
        """
        from hookflow.hooks.checkpoint_files import (
            frozen_in,
            list_averages,
            read_weights,
            state_key,
            with_frozen,
        )

        wrong = find_damage(self.path)
        if wrong:
            raise UserError(Problem(f"checkpoint {short(self.path)} cannot be used: {wrong}"))
        key = state_key("model", name or "model")
        averages = []
        if name is None:
            averages = list_averages(self.path)
        if averages:
            ways = [f'load_into(model, "{average.removeprefix("model_")}")' for average in averages]
            message = (
                "these are the trained weights, and the metrics of the checkpoint are of an average"
                " of them"
            )
            hint = (
                f'{" or ".join(ways)} loads the average, load_into(model, "model") the trained ones'
            )
            warnings.warn(f"{message}: {hint}", stacklevel=2)
        weights = read_weights(self.path, key)
        model.load_state_dict(with_frozen(weights, frozen_in(self.path, key), model))
        return model
