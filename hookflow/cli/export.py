"""The command export: what a run has recorded, in the formats of other programs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hookflow.cli.options import RunArgument, RunsFolder
from hookflow.cli.output import echo, write_file
from hookflow.errors import Problem, UserError, Where
from hookflow.numbers import strict_json

if TYPE_CHECKING:
    from hookflow.events.rundir import RunDir


def _csv(run: RunDir) -> str:
    from hookflow.service.runs import scalars

    text = io.StringIO()
    rows = [("iteration", "epoch", "time", "name", "value"), *scalars(run)]
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _jsonl(run: RunDir) -> str:
    from hookflow.service.runs import scalars

    facts = (
        {"iteration": row.iter, "epoch": row.epoch, "time": row.time, "name": row.name, "value": row.value}
        for row in scalars(run)
    )
    return "".join(f"{strict_json(fact)}\n" for fact in facts)


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


FORMATS = {"csv": _csv, "jsonl": _jsonl, "perfetto": _perfetto}


def export(
    run: RunArgument = None,
    format_: Annotated[
        Literal["csv", "jsonl", "perfetto"],
        typer.Option("--format", "-f", help="Numbers by commas, or as JSON lines; or traces for Perfetto."),
    ] = "csv",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a file, not to the terminal.")] = None,
    dir: RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Write out the scalars and metrics of a run, or its traces.

    Each row is one number: iteration, epoch, time, name, value. Metrics are named by their split: val/accuracy. Of
    iterations that were trained again after a resume, the later attempt counts. The time is in seconds since 1970. A
    number that is not finite is `nan`, `inf` or `-inf` in CSV, and null in JSON.

    `perfetto` has the iterations that `hookflow ctl RUN trace` has traced, of all ranks: open it at ui.perfetto.dev, or
    at chrome://tracing.

    Example: `hookflow export cifar --format csv --out cifar.csv`
    """
    from hookflow.service.runs import find_run

    text = FORMATS[format_](find_run(run, dir))
    if out is None:
        echo(text.removesuffix("\n"))
    else:
        write_file(out, text)
