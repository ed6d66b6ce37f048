"""`hookflow export`: the numbers of a run, for other programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hookflow.cli.options import RunArgument, RunsFolder
from hookflow.cli.output import echo, write_file
from hookflow.numbers import strict_json

if TYPE_CHECKING:
    from hookflow.events.scalars import ScalarRow


class Format(StrEnum):
    """How the rows are written."""

    csv = "csv"
    jsonl = "jsonl"


def export(
    run: RunArgument = None,
    format_: Annotated[
        Format, typer.Option("--format", "-f", help="Comma-separated values, or a JSON object a line.")
    ] = Format.csv,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a file, not to the terminal.")] = None,
    dir: RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Write out the scalars and metrics of a run.

    Each row is one number: iteration, epoch, time, name, value. Metrics are named by their split: val/accuracy. Of
    iterations that were trained again after a resume, the later attempt counts. The time is in seconds since 1970.

    Example: `hookflow export cifar --format csv --out cifar.csv`
    """
    from hookflow.cli.run_dirs import find_run
    from hookflow.events.scalars import scalars

    rows = scalars(find_run(run, dir))
    text = as_csv(rows) if format_ is Format.csv else as_jsonl(rows)
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
