"""The commands checkpoints and prune.

They show what a run has saved, and delete checkpoints that are no longer wanted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hookflow.cli import options
from hookflow.cli.output import columns, echo, echo_json
from hookflow.cli.runs import FILTER_HELP
from hookflow.errors import Problem, UserError, Where
from hookflow.numbers import format_age, format_count, number, size

if TYPE_CHECKING:
    from hookflow.events.rundir import RunDir
    from hookflow.monitor.state import RunState
    from hookflow.service.saved_checkpoints import SavedCheckpoint


COLUMN_HEADINGS = ("checkpoint", "names", "iter", "epoch", "metrics", "size", "age", "state")


def checkpoints(
    run: options.RunWithCheckpoint = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare every file with its checksum.")
    ] = False,
    format_: options.FormatOption = "text",
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """List a run's checkpoints, and whether they are whole.

    The newest is listed first. Without `--verify` only the presence and size of each file are
    checked. A checkpoint that was saved after an error is listed last: no run resumes from it.

    Exits with 0 if all are whole, with 1 if one cannot be used.

    Example: `hookflow checkpoints cifar --verify`
    """
    from hookflow.service.runs import find_run, has_checkpoint
    from hookflow.service.saved_checkpoints import list_saved

    run_dir = find_run(run, dir, having=has_checkpoint)
    saved = list_saved(run_dir, verify=verify)
    if format_ == "json":
        echo_json([asdict(checkpoint) for checkpoint in saved])
    else:
        _print_checkpoints(run_dir, saved, "verified" if verify else "whole")
    has_damage = any(checkpoint.damage for checkpoint in saved)
    raise typer.Exit(1 if has_damage else 0)


def _print_checkpoints(run: RunDir, saved: Sequence[SavedCheckpoint], whole: str) -> None:
    """Print a table of checkpoints; `whole` is the word for one that is not damaged."""
    from hookflow.events.rundir import short
    from hookflow.monitor.summary import read_run_summary
    from hookflow.runner.checkpoint.manifest import list_unfinished

    if saved:
        state = read_run_summary(run, time.time()).state
        rows = [_table_row(checkpoint, state, whole) for checkpoint in saved]
        echo("\n".join(columns([COLUMN_HEADINGS, *rows])))
    else:
        echo(f"no checkpoints in {short(run.checkpoints)}")
    unfinished = list_unfinished(run.checkpoints)
    if unfinished:
        echo(
            f"{len(unfinished)} more not finished: being written now, or cleared away when the run"
            " goes on"
        )


UNKNOWN_CELL = "-"
"""A cell of which nothing is known, so that columns can be cut out in a pipe."""


def _table_row(checkpoint: SavedCheckpoint, state: RunState, whole: str) -> tuple[str, ...]:
    iteration = epoch = weight = saved_ago = UNKNOWN_CELL
    if checkpoint.it is not None:
        iteration = str(checkpoint.it)
        if checkpoint.ep is not None:
            epoch = str(state.epoch_of(checkpoint.it, checkpoint.ep))
    if checkpoint.bytes is not None:
        weight = size(checkpoint.bytes)
    if checkpoint.saved is not None:
        saved_ago = format_age(time.time() - checkpoint.saved)
    names = ",".join(checkpoint.names) or UNKNOWN_CELL
    condition = _state_cell(checkpoint, whole)
    return (
        checkpoint.name,
        names,
        iteration,
        epoch,
        _format_metrics(checkpoint),
        weight,
        saved_ago,
        condition,
    )


def _format_metrics(checkpoint: SavedCheckpoint) -> str:
    if not checkpoint.metrics:
        return UNKNOWN_CELL
    text = " ".join(f"{name}={number(float(value))}" for name, value in checkpoint.metrics.items())
    if checkpoint.metrics_it != checkpoint.it:
        text += f" (of iteration {checkpoint.metrics_it})"
    return text


def _state_cell(checkpoint: SavedCheckpoint, whole: str) -> str:
    if checkpoint.damage:
        return f"unusable: {checkpoint.damage}"
    if checkpoint.exception:
        return f"after {checkpoint.exception}"
    return whole


@dataclass(frozen=True, slots=True)
class PruningPlan:
    """The checkpoints of a run that are deleted, their size in bytes, and how many stay."""

    run: RunDir
    deleted: Sequence[Path]
    num_bytes: int
    num_kept: int


def prune(
    runs: Annotated[
        list[str] | None,
        options.argument(
            "[RUN]…", "Runs: paths, ids, or parts of ids; all if left out.", options.complete_runs
        ),
    ] = None,
    filter_: Annotated[
        str | None, typer.Option("--filter", metavar="CONDITION", help=FILTER_HELP)
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Also the newest, and those with a name as `best`.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Delete checkpoints of runs that are over.

    The runs and their records stay. Of each run the newest checkpoint stays, and those with a name,
    as `best`. With `--all` none stays, but for a run that others were forked from: its newest
    stays, and those that the forks began with. Runs that go on are left out. It asks first.

    Example: `hookflow prune --all --filter 'best.accuracy < 0.8'`
    """
    from hookflow.events.deletion import delete_checkpoints

    chosen = _choose_runs(runs or [], filter_, dir)
    begun_with = _list_checkpoints_of_forks(
        {dir.absolute(), *(run.path.parent.parent for run in chosen)}
    )
    plans = []
    for run in chosen:
        plan = _make_pruning_plan(run, begun_with.get(run.id), every)
        if plan.deleted:
            plans.append(plan)
    if not plans:
        echo(f"no checkpoint of {format_count(len(chosen), 'run')} is to be deleted")
        return
    _print_plans(plans)
    if not yes:
        _confirm(plans)
    for plan in plans:
        delete_checkpoints(plan.run, plan.deleted)


def _print_plans(plans: Sequence[PruningPlan]) -> None:
    table: list[tuple[str, ...]] = [("run", "name", "delete", "size", "stay")]
    for plan in plans:
        name = plan.run.path.parent.name
        table.append(
            (plan.run.id, name, str(len(plan.deleted)), size(plan.num_bytes), str(plan.num_kept))
        )
    echo("\n".join(columns(table)))


def _confirm(plans: Sequence[PruningPlan]) -> None:
    """Ask whether to delete; a no exits with 1. Raises UserError where there is no terminal."""
    if not sys.stdin.isatty():
        raise UserError(
            Problem(
                "nobody can be asked here", Where("prune"), "add --yes to delete without a question"
            )
        )
    count = format_count(sum(len(plan.deleted) for plan in plans), "checkpoint")
    total_size = size(sum(plan.num_bytes for plan in plans))
    if not typer.confirm(f"Delete {count} ({total_size})?"):
        raise typer.Exit(1)


def _choose_runs(names: Sequence[str], condition: str | None, root: Path) -> list[RunDir]:
    """Return the runs that are meant, by their real paths.

    They must be over, and own their checkpoints. Others are left out with a line that says why.
    Raises UserError where such a run is named.
    """
    chosen: list[RunDir] = []
    problems: list[Problem] = []
    for run in _find_runs(names, condition, root):
        problem = _find_reason_to_keep(run)
        if problem is None:
            chosen.append(run)
        else:
            problems.append(problem)
    if names and problems:
        raise UserError(problems)
    for problem in problems:
        echo(f"{problem.message}: it is left out")
    return chosen


def _find_reason_to_keep(run: RunDir) -> Problem | None:
    """Return why the checkpoints of a run cannot be deleted, or None."""
    from hookflow.events.deletion import checkpoint_owner
    from hookflow.events.run_lock import is_locked
    from hookflow.monitor.summary import read_run_summary

    owner = checkpoint_owner(run)
    if owner != run:
        message = f"the checkpoints of {run.id} belong to {owner.path}"
        return Problem(message, Where("RUN"), "name that run to delete them")
    if is_locked(run.path) or not read_run_summary(run, time.time()).health.over:
        return Problem(f"the run {run.id} goes on", Where("RUN"), f"hookflow stop {run.id}")
    return None


def _find_runs(names: Sequence[str], condition: str | None, root: Path) -> list[RunDir]:
    """Return the runs with these names that meet the condition, by their real paths.

    Without names these are all runs that do.
    """
    from hookflow.events.rundir import RunDir
    from hookflow.monitor.index import Index
    from hookflow.monitor.selection import select
    from hookflow.service.runs import find_run

    named = [find_run(name, root).path.resolve() for name in names]
    if names and condition is None:
        return [RunDir(path) for path in dict.fromkeys(named)]
    listed = [row.run.path.resolve() for row in select(Index(root).refresh(), condition, None)]
    if names:
        listed = [path for path in listed if path in named]
    return [RunDir(path) for path in dict.fromkeys(listed)]


def _list_checkpoints_of_forks(folders: Iterable[Path]) -> dict[str, set[str]]:
    """Return the checkpoints that forks in these folders began with, by the ids of their runs."""
    from hookflow.monitor.index import Index

    result: dict[str, set[str]] = {}
    for folder in folders:
        for row in Index(folder).refresh():
            if not row.values["parent"]:
                continue
            parent = row.run.parent()
            if parent is not None:
                result.setdefault(parent.run, set()).add(parent.checkpoint)
    return result


def _make_pruning_plan(run: RunDir, begun_with: set[str] | None, every: bool) -> PruningPlan:
    """Return what is deleted of a run.

    Forks of it have `begun_with` these checkpoints, which is None where there are no forks.
    """
    from hookflow.runner.checkpoint.manifest import (
        list_apart,
        list_checkpoints,
        names_by_checkpoint,
    )

    saved = list_checkpoints(run.checkpoints)
    kept: set[Path] = set()
    if begun_with:
        kept.update(path for path in saved if path.name in begun_with)
    if not every or begun_with:
        kept.update(saved[:1])  # the newest
    if every:
        saved += list_apart(run.checkpoints)
    else:
        named = names_by_checkpoint(run.checkpoints)
        kept.update(path for path in saved if path in named)
    deleted = [path for path in saved if path not in kept]
    num_bytes = sum(_size_of(path) for path in deleted)
    return PruningPlan(run, deleted, num_bytes, len(saved) - len(deleted))


def _size_of(checkpoint: Path) -> int:
    return sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file())
