"""The command export.

It writes the report of a run, and what it has recorded in the formats of other programs.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tomli
import typer

from hookflow.cli import options
from hookflow.cli.output import echo, open_output_file, write_file
from hookflow.errors import Problem, UserError, Where, nearest_or_all
from hookflow.numbers import format_count, strict_json
from hookflow.text import print_error

if TYPE_CHECKING:
    from hookflow.events.rundir import RunDir
    from hookflow.writers import TensorBoardWriter


TRACED_ITERATIONS = 10
"""The iterations of a rerun that a hint suggests to trace."""

SCALAR_COLUMNS = ("iteration", "epoch", "time", "name", "value")


def _format_csv(run: RunDir) -> str:
    from hookflow.service.runs import scalars

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(SCALAR_COLUMNS)
    writer.writerows(scalars(run))
    return text.getvalue()


def _format_jsonl(run: RunDir) -> str:
    from hookflow.service.runs import scalars

    lines = []
    for row in scalars(run):
        fields = dict(zip(SCALAR_COLUMNS, row, strict=True))
        lines.append(f"{strict_json(fields)}\n")
    return "".join(lines)


def _format_perfetto(run: RunDir) -> str:
    """Return all traces of a run as one, on one clock.

    Raises UserError where there are none, or one is damaged.
    """
    from hookflow.events.reading import read_object, read_regular
    from hookflow.events.rundir import short
    from hookflow.service.iteration_times import can_only_be_rerun, name_tracing_command

    paths = sorted(run.traces.glob("*.json"))
    if not paths:
        command = name_tracing_command(run, 1, TRACED_ITERATIONS)
        if can_only_be_rerun(run):
            hint = f"trace some iterations in a rerun, and export that: {command}"
        else:
            hint = f"trace some iterations while it trains: {command}"
        raise UserError(Problem(f"the run {run.id} has no traces", Where("RUN"), hint))
    events: list[dict[str, Any]] = []
    try:
        traces = [read_object(read_regular(path)) for path in paths]
        first = min(trace["otherData"]["began"] for trace in traces)
        for trace in traces:
            offset = (trace["otherData"]["began"] - first) * 1e6
            for event in trace["traceEvents"]:
                time = event.get("ts", 0.0) + offset
                events.append({**event, "ts": time})
    except (KeyError, TypeError, ValueError):
        raise UserError(
            Problem(f"the traces in {short(run.traces)} are not all traces of hookflow")
        ) from None
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}) + "\n"


def _html(run: RunDir) -> str:
    from hookflow.report.contents import read_report
    from hookflow.report.run_page import render_report

    return render_report(read_report(run))


def _write_tensorboard(run: RunDir, folder: Path) -> None:
    """Write the event files that the writer `tensorboard` would have written.

    Raises UserError where it cannot.
    """
    from hookflow.pipeline.registry import missing_package

    missing = missing_package(
        "the format tensorboard", "tensorboard", "tensorboard", Where("--format")
    )
    if missing:
        raise UserError(missing)
    from hookflow.writers import TensorBoardWriter

    try:
        if any(folder.glob("*tfevents*")):
            message = "has event files already, beside which each step would stand twice"
            raise UserError(Problem(message, Where(str(folder)), "name another folder"))
        with closing(TensorBoardWriter(folder)) as writer:
            left_out = _write_records(run, writer)
    except OSError as error:
        for begun in folder.glob("*tfevents*"):
            begun.unlink()
        raise UserError(
            Problem(f"cannot be written: {error.strerror}", Where(str(folder)))
        ) from None
    if left_out:
        print_error(
            f"{format_count(left_out, 'image')} left out: no such file in the run directory"
        )


def _write_records(run: RunDir, writer: TensorBoardWriter) -> int:
    """Write the pipeline and what a run has logged.

    Returns how many images are left out since their file is gone.
    """
    from hookflow.events.reading import read_regular
    from hookflow.runner.logging.writers import EarlierLogs

    try:
        pipeline = tomli.loads(read_regular(run.pipeline).decode())
    except (OSError, ValueError, RecursionError):
        print_error(f"the pipeline of {run.id} cannot be read: it is left out")
    else:
        writer.write_config(pipeline)
    left_out = 0
    folder_of_run = run.path.resolve()
    for _, call in EarlierLogs(run, sys.maxsize).iter_standing_calls():
        path = call.args[1]
        if isinstance(path, Path) and not (
            path.is_file() and path.resolve().is_relative_to(folder_of_run)
        ):
            left_out += 1
        else:
            getattr(writer, call.method)(*call.args)
    return left_out


def _export_code(named: str | None, folder: Path, root: Path) -> None:
    """Write the code of a run, or of the attempt that saved a checkpoint.

    It says what was written.
    """
    from hookflow.events.recorded_code import code_before, find_latest_code
    from hookflow.events.rundir import short
    from hookflow.runner.checkpoint.manifest import read_manifest
    from hookflow.service.checkpoints import find_checkpoint
    from hookflow.service.code import export_code
    from hookflow.service.runs import find_run

    if named is not None and ":" in named:
        run_dir, checkpoint = find_checkpoint(named, root)
        code = code_before(run_dir, read_manifest(checkpoint)["it"])
    else:
        run_dir = find_run(named, root)
        code = find_latest_code(run_dir)
    if code is None:
        message = f"the code of the run {run_dir.id} was not recorded"
        raise UserError(
            Problem(message, Where("RUN"), "runs of this version record it, from their start on")
        )
    try:
        written, missing = export_code(run_dir, code, folder)
    except OSError as error:
        raise UserError(
            Problem(f"cannot be written: {error.strerror}", Where(str(folder)))
        ) from None
    echo(f"{format_count(len(written), 'file')} of {code.root} in {short(folder)}")
    for path in missing:
        reason = code.files[path].left_out or "its text is damaged"
        print_error(f"{path} is left out: {reason}")


def _export_weights(named: str | None, file: Path, average: str | None, root: Path) -> None:
    """Write weights of a checkpoint to a file, and say which.

    The file's ending says whether it is safetensors or a state_dict.
    """
    import torch

    from hookflow.hooks.builtin.checkpoint import make_safetensors_bytes
    from hookflow.hooks.checkpoint_files import frozen_in, list_averages, not_averages, read_weights
    from hookflow.hooks.weight_average import NO_AVERAGE
    from hookflow.pipeline.registry import missing_package
    from hookflow.service.checkpoints import find_checkpoint

    if file.suffix not in WEIGHT_ENDINGS:
        message = f'weights cannot be written as "{file.suffix}"'
        raise UserError(
            Problem(message, Where(f"--weights {file}"), f"use {' or '.join(WEIGHT_ENDINGS)}")
        )
    if file.suffix == ".safetensors":
        missing = missing_package(
            "the format safetensors", "safetensors", "safetensors", Where("--weights")
        )
        if missing:
            raise UserError(missing)
    run_dir, checkpoint = find_checkpoint(named, root)
    entry = "model"
    if average is not None and average != NO_AVERAGE:
        entry = f"model_{average}"
        averages = [name.removeprefix("model_") for name in list_averages(checkpoint)]
        if averages and average not in averages:
            message = f'the checkpoint {checkpoint.name} has no average "{average}"'
            raise UserError(Problem(message, Where("--average"), nearest_or_all(average, averages)))
    weights = read_weights(checkpoint, entry)
    left_out = frozen_in(checkpoint, entry)
    if left_out:
        message = f"the checkpoint leaves out {format_count(len(left_out), 'frozen parameter')}"
        raise UserError(
            Problem(message, Where(str(checkpoint)), "the hook export writes whole weights")
        )
    with open_output_file(file) as output:
        if file.suffix == ".safetensors":
            output.write(make_safetensors_bytes(weights))
        else:
            torch.save(weights, output)
    echo(
        f"{entry} of {run_dir.id}, {checkpoint.name}: {format_count(len(weights), 'tensor')} in"
        f" {file}"
    )
    note = not_averages(checkpoint, entry)
    if note and average is None:
        print_error(f"{note}: --average")


WEIGHT_ENDINGS = (".pt", ".safetensors")

CODE_HELP = "Write the recorded code of the run into this new folder."

WEIGHTS_HELP = "Write the weights of a checkpoint to this file, .pt or .safetensors."

TEXT_FORMATS = {
    "csv": _format_csv,
    "jsonl": _format_jsonl,
    "html": _html,
    "perfetto": _format_perfetto,
}
"""The formats that are one text; `tensorboard` is a folder."""


def export(
    run: options.RunArgument = None,
    format_: Annotated[
        Literal["csv", "jsonl", "html", "tensorboard", "perfetto"] | None,
        typer.Option(
            "--format",
            "-f",
            help="Default: the ending of FILE; csv without one.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write to a file, not to the terminal.")
    ] = None,
    code: Annotated[Path | None, typer.Option("--code", metavar="DIR", help=CODE_HELP)] = None,
    weights: Annotated[
        Path | None, typer.Option("--weights", metavar="FILE", help=WEIGHTS_HELP)
    ] = None,
    average: options.Average = None,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Write out a run's report, numbers, traces or code.

    `html` is a report in one file that opens without a network: curves, the graph with its times,
    costs, warnings and errors, checkpoints, environment and pipeline.

    `csv` and `jsonl` have the scalars and metrics. Each row is one number: iteration, epoch, time,
    name, value. Metrics are named by their split: val/accuracy. Of iterations that were trained
    again after a resume, the later attempt counts. The time is in seconds since 1970. A number that
    is not finite is `nan`, `inf` or `-inf` in CSV, and null in JSON.

    `tensorboard` writes scalars, metrics, images, texts and histograms as event files into the
    folder FILE.

    `perfetto` has the iterations that `hookflow ctl RUN trace` has traced, of all ranks: open it at
    ui.perfetto.dev, or at chrome://tracing.

    `--code` writes the files of the project that the run's latest attempt has run, as they were,
    into a new folder, with its pipeline and its difference to the git commit; for RUN:CHECKPOINT
    those of the attempt that saved it.

    `--weights` writes the weights of a checkpoint as a state_dict, or as safetensors; with
    `--average` those of an average such as ema.

    Example: `hookflow export cifar --out cifar.html`

    Example: `hookflow export cifar:best --code /tmp/cifar-best`

    Example: `hookflow export cifar:best --weights cifar.safetensors --average ema`
    """
    from hookflow.service.runs import find_run

    if weights is not None:
        if code is not None or format_ is not None or out is not None:
            message = "--weights writes a file of its own: leave --format, --out and --code out"
            raise UserError(Problem(message, Where("--weights")))
        _export_weights(run, weights, average, dir)
        return
    if average is not None:
        raise UserError(
            Problem(
                "--average chooses the weights to write", Where("--average"), "add --weights FILE"
            )
        )
    if code is not None:
        if format_ is not None or out is not None:
            raise UserError(
                Problem(
                    "--code writes a folder of its own: leave --format and --out out",
                    Where("--code"),
                )
            )
        _export_code(run, code, dir)
        return

    chosen = format_ or _format_of_file(out)
    run_dir = find_run(run, dir)
    if chosen == "tensorboard":
        if out is None:
            raise UserError(
                Problem(
                    "tensorboard is a folder of event files",
                    Where("--format"),
                    "name it with --out",
                )
            )
        _write_tensorboard(run_dir, out)
    elif out is None:
        echo(TEXT_FORMATS[chosen](run_dir).removesuffix("\n"))
    else:
        write_file(out, TEXT_FORMATS[chosen](run_dir))


def _format_of_file(out: Path | None) -> str:
    """Return the format that a file's ending names, or csv without one.

    Raises UserError where there is no such format.
    """
    suffix = ""
    if out is not None:
        suffix = out.suffix.removeprefix(".")
    if not suffix:
        return "csv"
    if suffix not in TEXT_FORMATS:
        hint = nearest_or_all(suffix, TEXT_FORMATS)
        raise UserError(
            Problem(
                f'no format is called "{suffix}"', Where(f"--out {out}"), f"{hint}; or say --format"
            )
        )
    return suffix
