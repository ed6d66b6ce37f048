"""The command export: the report of a run, and what it has recorded in the formats of other programs."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tomli
import typer

from hookflow.cli import options
from hookflow.cli.output import echo, write_file
from hookflow.errors import Problem, UserError, Where, nearest_or_all
from hookflow.numbers import counted, strict_json
from hookflow.text import print_error

if TYPE_CHECKING:
    from hookflow.events.rundir import RunDir


COLUMNS = ("iteration", "epoch", "time", "name", "value")


def _csv(run: RunDir) -> str:
    from hookflow.service.runs import scalars

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *scalars(run)])
    return text.getvalue()


def _jsonl(run: RunDir) -> str:
    from hookflow.service.runs import scalars

    return "".join(f"{strict_json(dict(zip(COLUMNS, row, strict=True)))}\n" for row in scalars(run))


def _perfetto(run: RunDir) -> str:
    """Return all traces of a run as one, on one clock. Raises UserError where there are none, or one is damaged."""
    from hookflow.events.reading import read_object, read_regular
    from hookflow.events.rundir import run_argument, short

    paths = sorted(run.traces.glob("*.json"))
    if not paths:
        hint = f"trace some iterations while it trains: hookflow ctl {run_argument(run)} trace"
        raise UserError(Problem(f"the run {run.id} has no traces", Where("RUN"), hint))
    events: list[dict[str, Any]] = []
    try:
        traces = [read_object(read_regular(path)) for path in paths]
        first = min(trace["otherData"]["began"] for trace in traces)
        for trace in traces:
            later = (trace["otherData"]["began"] - first) * 1e6
            events += ({**event, "ts": event.get("ts", 0.0) + later} for event in trace["traceEvents"])
    except (KeyError, TypeError, ValueError):
        raise UserError(Problem(f"the traces in {short(run.traces)} are not all traces of hookflow")) from None
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}) + "\n"


def _html(run: RunDir) -> str:
    from hookflow.cli.report import collect
    from hookflow.cli.report_html import as_html

    return as_html(collect(run))


def _write_tensorboard(run: RunDir, folder: Path) -> None:
    """Write the event files that the writer `tensorboard` would have written. Raises UserError where it cannot."""
    from hookflow.pipeline.registry import missing_package

    if missing := missing_package("the format tensorboard", "tensorboard", "tensorboard", Where("--format")):
        raise UserError(missing)
    from hookflow.events.reading import read_regular
    from hookflow.runner.logging.writers import History
    from hookflow.writers import TensorBoardWriter

    try:
        if any(folder.glob("*tfevents*")):
            message = "has event files already, beside which each step would stand twice"
            raise UserError(Problem(message, Where(str(folder)), "name another folder"))
        writer = TensorBoardWriter(folder)
        try:
            writer.write_config(tomli.loads(read_regular(run.pipeline).decode()))
        except (OSError, ValueError, RecursionError):
            print_error(f"the pipeline of {run.id} cannot be read: it is left out")
        left_out = 0
        for _, call in History(run, sys.maxsize).standing():
            path = call.args[1]
            if isinstance(path, Path) and not (path.is_file() and path.resolve().is_relative_to(run.path.resolve())):
                left_out += 1
            else:
                getattr(writer, call.method)(*call.args)
        writer.close()
    except OSError as error:
        for begun in folder.glob("*tfevents*"):
            begun.unlink()
        raise UserError(Problem(f"cannot be written: {error.strerror}", Where(str(folder)))) from None
    if left_out:
        print_error(f"{counted(left_out, 'image')} left out: no such file in the run directory")


FORMATS = {"csv": _csv, "jsonl": _jsonl, "html": _html, "perfetto": _perfetto}
"""The formats that are one text; `tensorboard` is a folder."""


def export(
    run: options.RunArgument = None,
    format_: Annotated[
        Literal["csv", "jsonl", "html", "tensorboard", "perfetto"] | None,
        typer.Option("--format", "-f", help="Default: the ending of FILE; csv without one.", show_default=False),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a file, not to the terminal.")] = None,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Write out the report of a run, its numbers, or its traces.

    `html` is a report in one file that opens without a network: curves, the graph with its times, costs, warnings and
    errors, checkpoints, environment and pipeline.

    `csv` and `jsonl` have the scalars and metrics. Each row is one number: iteration, epoch, time, name, value. Metrics
    are named by their split: val/accuracy. Of iterations that were trained again after a resume, the later attempt
    counts. The time is in seconds since 1970. A number that is not finite is `nan`, `inf` or `-inf` in CSV, and null in
    JSON.

    `tensorboard` writes scalars, metrics, images, texts and histograms as event files into the folder FILE.

    `perfetto` has the iterations that `hookflow ctl RUN trace` has traced, of all ranks: open it at ui.perfetto.dev, or
    at chrome://tracing.

    Example: `hookflow export cifar --out cifar.html`
    """
    from hookflow.service.runs import find_run

    suffix = out.suffix.removeprefix(".") if out else ""
    if suffix and not format_ and suffix not in FORMATS:
        hint = nearest_or_all(suffix, FORMATS)
        raise UserError(Problem(f'no format is called "{suffix}"', Where(f"--out {out}"), f"{hint}; or say --format"))
    chosen = format_ or suffix or "csv"
    run_dir = find_run(run, dir)
    if chosen == "tensorboard":
        if out is None:
            raise UserError(Problem("tensorboard is a folder of event files", Where("--format"), "name it with --out"))
        _write_tensorboard(run_dir, out)
    elif out is None:
        echo(FORMATS[chosen](run_dir).removesuffix("\n"))
    else:
        write_file(out, FORMATS[chosen](run_dir))
