"""The command checkpoints: what a run has saved."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hookflow.cli.output import FormatOption, RunArgument, RunsFolder, columns, echo, echo_json
from hookflow.numbers import age, number, size

if TYPE_CHECKING:
    from hookflow.events.rundir import RunDir
    from hookflow.monitor.state import RunState


HEADS = ("checkpoint", "names", "iter", "epoch", "metrics", "size", "age", "state")


def checkpoints(
    run: RunArgument = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare every file with its checksum.")] = False,
    format_: FormatOption = "text",
    dir: RunsFolder = Path("runs"),  # noqa: A002  # the option's name
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
