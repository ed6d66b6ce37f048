"""The commands checkpoints and export: what a run has stored."""

from __future__ import annotations

import csv
import io
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hookflow.cli.options import Format, RunArgument, RunsFolder
from hookflow.cli.output import columns, echo, echo_json, write_file
from hookflow.numbers import strict_json

if TYPE_CHECKING:
    from hookflow.events.rundir import RunDir
    from hookflow.events.scalars import ScalarRow
    from hookflow.monitor.state import RunState


HEADS = ("checkpoint", "names", "iter", "epoch", "metrics", "size", "age", "state")
WIDE = ("names", "metrics", "state")
"""Details below a row, where a terminal is too narrow for one line."""


def checkpoints(
    run: RunArgument = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read every file and hold it against its checksum.")] = False,
    format_: Annotated[Format, typer.Option("--format", "-f", help="How to show them.")] = Format.text,
    dir: RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """List a run's checkpoints, and whether they are whole.

    The newest is the first. Without `--verify` that is whether every file is there and has its size. One that was saved
    after an error is listed last: no run goes on from it.

    Exits with 0 if all are whole, with 1 if one cannot be used.

    Example: `hookflow checkpoints cifar --verify`
    """
    from hookflow.events.rundir import short
    from hookflow.monitor.overview import read_overview
    from hookflow.runner.checkpoint.manifest import EXCEPTION
    from hookflow.service.runs import find_run, has_checkpoint

    run_dir = find_run(run, dir, having=has_checkpoint)
    folder = run_dir.checkpoints
    result = saved(run_dir, verify=verify)
    if format_ is Format.json:
        echo_json(result)
    elif result:
        _echo(result, read_overview(run_dir, time.time()).state, verified=verify)
    else:
        echo(f"no checkpoints in {short(folder)}")
    if format_ is Format.text and (unfinished := [*folder.glob(f".{EXCEPTION}*"), *folder.glob(".it*")]):
        echo(f"{len(unfinished)} more not finished: being written now, or cleared away when the run goes on")
    raise typer.Exit(1 if any(item["damage"] for item in result) else 0)


def saved(run: RunDir, *, verify: bool = False) -> list[dict[str, Any]]:
    """Return what there is to say of each checkpoint of a run, the newest first; those after an error at the end."""
    from hookflow.runner.checkpoint.manifest import EXCEPTION, NONFINITE, list_checkpoints, names_by_checkpoint

    folder = run.checkpoints
    names = names_by_checkpoint(folder)
    return [
        _seen(path, names.get(path, []), verify)
        for prefix in ("", EXCEPTION, NONFINITE)
        for path in list_checkpoints(folder, prefix)
    ]


def _seen(path: Path, names: list[str], verify: bool) -> dict[str, Any]:
    """Return what there is to say of a checkpoint; what a damaged one does not tell is None."""
    from hookflow.events.rundir import short
    from hookflow.runner.checkpoint.manifest import DamagedError, damage, read_manifest

    try:
        manifest = read_manifest(path)
    except DamagedError:
        manifest = {}
    keys = ("it", "ep", "metrics", "metrics_it", "saved", "hookflow", "torch", "exception")
    text = {key: manifest.get(key) for key in keys}
    files = {name: entry["bytes"] for name, entry in manifest.get("files", {}).items()}
    whole = {"bytes": sum(files.values()) if files else None, "files": files}
    return {"path": str(short(path)), "names": names, **text, **whole, "damage": damage(path, thorough=verify)}


def _echo(result: list[dict[str, Any]], state: RunState, *, verified: bool) -> None:
    rows = [HEADS, *(_row(item, state, "verified" if verified else "whole") for item in result)]
    lines = columns(rows)
    if sys.stdout.isatty() and max(map(len, lines)) > shutil.get_terminal_size().columns:
        lines = _narrow(rows)
    echo("\n".join(lines))


def _narrow(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows with what is wide below each, in lines of its own."""
    short = columns([[cell for head, cell in zip(HEADS, row, strict=True) if head not in WIDE] for row in rows])
    lines = short[:1]
    for line, row in zip(short[1:], rows[1:], strict=True):
        below = (cell for head, cell in zip(HEADS, row, strict=True) if head in WIDE and cell != "-")
        lines += [line, *(f"  {cell.replace(',', ', ')}" for cell in below)]
    return lines


def _row(item: dict[str, Any], state: RunState, whole: str) -> tuple[str, ...]:
    """Return the cells; "-" for what is not known, so that columns can be cut out in a pipe."""
    from hookflow.numbers import age, number, size

    metrics = " ".join(f"{name}={number(float(value))}" for name, value in (item["metrics"] or {}).items())
    if metrics and item["metrics_it"] != item["it"]:
        metrics += f" (of iteration {item['metrics_it']})"
    return (
        Path(item["path"]).name,
        ",".join(item["names"]) or "-",
        "-" if item["it"] is None else str(item["it"]),
        "-" if item["ep"] is None else str(state.epoch_of(item["it"], item["ep"])),
        metrics or "-",
        "-" if item["bytes"] is None else size(item["bytes"]),
        "-" if item["saved"] is None else age(time.time() - item["saved"]),
        f"unusable: {item['damage']}"
        if item["damage"]
        else f"after {item['exception']}"
        if item["exception"]
        else whole,
    )


class ExportFormat(StrEnum):
    """How the rows are written."""

    csv = "csv"
    jsonl = "jsonl"


def export(
    run: RunArgument = None,
    format_: Annotated[
        ExportFormat, typer.Option("--format", "-f", help="Comma-separated values, or a JSON object a line.")
    ] = ExportFormat.csv,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a file, not to the terminal.")] = None,
    dir: RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Write out the scalars and metrics of a run.

    Each row is one number: iteration, epoch, time, name, value. Metrics are named by their split: val/accuracy. Of
    iterations that were trained again after a resume, the later attempt counts. The time is in seconds since 1970.

    Example: `hookflow export cifar --format csv --out cifar.csv`
    """
    from hookflow.events.scalars import scalars
    from hookflow.service.runs import find_run

    rows = scalars(find_run(run, dir))
    text = as_csv(rows) if format_ is ExportFormat.csv else as_jsonl(rows)
    if out is None:
        echo(text.removesuffix("\n"))
    else:
        write_file(out, text)


def as_csv(rows: Iterable[ScalarRow]) -> str:
    """Return the rows below their heads; a number that is not finite is `nan`, `inf` or `-inf`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("iteration", "epoch", "time", "name", "value"))
    writer.writerows(rows)
    return text.getvalue()


def as_jsonl(rows: Iterable[ScalarRow]) -> str:
    """Return an object for each row; a number that is not finite is null, which JSON has for it."""
    return "".join(
        strict_json({"iteration": row.iter, "epoch": row.epoch, "time": row.time, "name": row.name, "value": row.value})
        + "\n"
        for row in rows
    )
