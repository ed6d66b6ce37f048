"""The commands checkpoints and prune: what a run has saved, and checkpoints that are no longer wanted."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hookflow.cli import options
from hookflow.cli.output import columns, echo, echo_json
from hookflow.cli.runs import FILTER
from hookflow.errors import Problem, UserError, Where
from hookflow.numbers import age, counted, number, size

if TYPE_CHECKING:
    from hookflow.events.rundir import RunDir
    from hookflow.monitor.state import RunState


HEADS = ("checkpoint", "names", "iter", "epoch", "metrics", "size", "age", "state")


def checkpoints(
    run: options.RunWithCheckpoint = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare every file with its checksum.")] = False,
    format_: options.FormatOption = "text",
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """List a run's checkpoints, and whether they are whole.

    The newest is listed first. Without `--verify` only the presence and size of each file are checked. A checkpoint
    that was saved after an error is listed last: no run resumes from it.

    Exits with 0 if all are whole, with 1 if one cannot be used.

    Example: `hookflow checkpoints cifar --verify`
    """
    from hookflow.events.rundir import short
    from hookflow.monitor.summary import read_overview
    from hookflow.runner.checkpoint.manifest import list_unfinished
    from hookflow.service.runs import find_run, has_checkpoint

    run_dir = find_run(run, dir, having=has_checkpoint)
    folder = run_dir.checkpoints
    result = saved(run_dir, verify=verify)
    if format_ == "json":
        echo_json(result)
    elif result:
        state, whole = read_overview(run_dir, time.time()).state, "verified" if verify else "whole"
        echo("\n".join(columns([HEADS, *(_row(item, state, whole) for item in result)])))
    else:
        echo(f"no checkpoints in {short(folder)}")
    if format_ == "text" and (unfinished := list_unfinished(folder)):
        echo(f"{len(unfinished)} more not finished: being written now, or cleared away when the run goes on")
    raise typer.Exit(1 if any(item["damage"] for item in result) else 0)


def saved(run: RunDir, *, verify: bool = False) -> list[dict[str, Any]]:
    """Return the facts of each checkpoint of a run, the newest first, those that no run resumes from at the end.

    Facts that a damaged manifest lacks are None.
    """
    from hookflow.events.rundir import short
    from hookflow.runner.checkpoint.manifest import (
        DamagedError,
        damage,
        list_apart,
        list_checkpoints,
        names_by_checkpoint,
        read_manifest,
    )

    names = names_by_checkpoint(run.checkpoints)
    result = []
    for path in (*list_checkpoints(run.checkpoints), *list_apart(run.checkpoints)):
        try:
            manifest = read_manifest(path)
        except DamagedError:
            manifest = {}
        keys = ("it", "ep", "metrics", "metrics_it", "saved", "hookflow", "torch", "exception")
        files = {name: entry["bytes"] for name, entry in manifest.get("files", {}).items()}
        result.append(
            {"path": str(short(path)), "names": names.get(path, []), **{key: manifest.get(key) for key in keys}}
            | {"bytes": sum(files.values()) if files else None, "files": files}
            | {"damage": damage(path, thorough=verify)}
        )
    return result


def _row(item: dict[str, Any], state: RunState, whole: str) -> tuple[str, ...]:
    """Return the cells; "-" for what is not known, so that columns can be cut out in a pipe."""
    metrics = " ".join(f"{name}={number(float(value))}" for name, value in (item["metrics"] or {}).items())
    if metrics and item["metrics_it"] != item["it"]:
        metrics += f" (of iteration {item['metrics_it']})"
    condition = f"after {item['exception']}" if item["exception"] else whole
    return (
        Path(item["path"]).name,
        ",".join(item["names"]) or "-",
        "-" if item["it"] is None else str(item["it"]),
        "-" if item["ep"] is None else str(state.epoch_of(item["it"], item["ep"])),
        metrics or "-",
        "-" if item["bytes"] is None else size(item["bytes"]),
        "-" if item["saved"] is None else age(time.time() - item["saved"]),
        f"unusable: {item['damage']}" if item["damage"] else condition,
    )


@dataclass(frozen=True, slots=True)
class Cut:
    """The checkpoints of a run that are deleted, with their bytes, and how many stay."""

    run: RunDir
    gone: Sequence[Path]
    bytes: int
    stay: int


def prune(
    runs: Annotated[
        list[str] | None,
        options.argument("[RUN]…", "Runs: paths, ids, or parts of ids; all if left out.", options.runs),
    ] = None,
    filter_: Annotated[str | None, typer.Option("--filter", metavar="CONDITION", help=FILTER)] = None,
    every: Annotated[bool, typer.Option("--all", help="Also the newest, and those with a name as `best`.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Delete checkpoints of runs that are over.

    The runs and their records stay. Of each run the newest checkpoint stays, and those with a name, as `best`. With
    `--all` none stays, but for a run that others were forked from: its newest stays, and those that the forks began
    with. Runs that go on are left out. It asks first.

    Example: `hookflow prune --all --filter 'best.accuracy < 0.8'`
    """
    from hookflow.events.deletion import delete_checkpoints

    chosen = _chosen(runs or [], filter_, dir)
    begun_with = _begun_with({dir.absolute(), *(run.path.parent.parent for run in chosen)})
    cuts = [_cut(run, begun_with.get(run.id), every) for run in chosen]
    cuts = [cut for cut in cuts if cut.gone]
    if not cuts:
        echo(f"no checkpoint of {counted(len(chosen), 'run')} is to be deleted")
        return
    heads = ("run", "name", "delete", "size", "stay")
    lines = [(c.run.id, c.run.path.parent.name, f"{len(c.gone)}", size(c.bytes), f"{c.stay}") for c in cuts]
    echo("\n".join(columns([heads, *lines])))
    if not yes and not sys.stdin.isatty():
        raise UserError(Problem("nobody can be asked here", Where("prune"), "add --yes to delete without a question"))
    count = counted(sum(len(cut.gone) for cut in cuts), "checkpoint")
    if not yes and not typer.confirm(f"Delete {count} ({size(sum(cut.bytes for cut in cuts))})?"):
        raise typer.Exit(1)
    for cut in cuts:
        delete_checkpoints(cut.run, cut.gone)


def _chosen(names: Sequence[str], condition: str | None, root: Path) -> list[RunDir]:
    """Return the runs that are meant, by their real paths: those that are over, and own their checkpoints.

    Others are left out with a line that says why. Raises UserError where such a run is named.
    """
    from hookflow.events.deletion import checkpoint_owner
    from hookflow.events.run_lock import is_locked
    from hookflow.monitor.summary import read_overview

    chosen: list[RunDir] = []
    problems: list[Problem] = []
    for run in _meant(names, condition, root):
        owner = checkpoint_owner(run)
        if owner != run:
            message = f"the checkpoints of {run.id} belong to {owner.path}"
            problems.append(Problem(message, Where("RUN"), "name that run to delete them"))
        elif is_locked(run.path) or not read_overview(run, time.time()).health.over:
            problems.append(Problem(f"the run {run.id} goes on", Where("RUN"), f"hookflow stop {run.id}"))
        else:
            chosen.append(run)
    if names and problems:
        raise UserError(problems)
    for problem in problems:
        echo(f"{problem.message}: it is left out")
    return chosen


def _meant(names: Sequence[str], condition: str | None, root: Path) -> list[RunDir]:
    """Return the runs with these names that meet the condition, by their real paths; without names, all that do."""
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


def _begun_with(folders: Iterable[Path]) -> dict[str, set[str]]:
    """Return the names of the checkpoints that forks in these folders of runs began with, by the ids of their runs."""
    from hookflow.monitor.index import Index

    result: dict[str, set[str]] = {}
    for folder in folders:
        for row in Index(folder).refresh():
            parent = row.run.parent() if row.values["parent"] else None
            if parent is not None:
                result.setdefault(parent.run, set()).add(parent.checkpoint)
    return result


def _cut(run: RunDir, begun_with: set[str] | None, every: bool) -> Cut:
    """Return what is deleted of a run; forks of it have `begun_with` these checkpoints, None where there are none."""
    from hookflow.runner.checkpoint.manifest import list_apart, list_checkpoints, names_by_checkpoint

    saved = list_checkpoints(run.checkpoints)
    named = names_by_checkpoint(run.checkpoints)
    stay = {path for path in saved if path.name in (begun_with or ())}
    if not every or begun_with:
        stay |= {*saved[:1]}
    if every:
        saved += list_apart(run.checkpoints)
    else:
        stay |= {path for path in saved if path in named}
    gone = [path for path in saved if path not in stay]
    files = (file for path in gone for file in path.rglob("*") if file.is_file())
    return Cut(run, gone, sum(file.stat().st_size for file in files), len(saved) - len(gone))
