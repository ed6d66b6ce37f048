"""The commands val, test and predict: a checkpoint evaluated without training."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hookflow.cli import options
from hookflow.cli.output import (
    check_writable,
    columns,
    echo,
    echo_json,
    exit_after_traceback,
    open_output_file,
    warn_of,
)
from hookflow.errors import Problem, UserError, Where
from hookflow.numbers import format_count, number

if TYPE_CHECKING:
    from hookflow.events.rundir import RunDir
    from hookflow.trials.temporary_run import EvaluationResult


CHECKPOINT_HELP = (
    "A checkpoint's folder, a run (its newest good one), or RUN:NAME such as cifar:best."
)
CheckpointArgument = Annotated[
    str | None, options.argument("CHECKPOINT", CHECKPOINT_HELP, options.complete_runs)
]

SPLIT_HELP = "The data to predict: test, val, or a set by its name, val.ood."
PredictedSplit = Annotated[str, typer.Option("--split", metavar="SET", help=SPLIT_HELP)]

OUT_HELP = "The file to write: .npz, .jsonl (one line per example) or .pt."
PredictionFile = Annotated[Path, typer.Option("--out", metavar="FILE", help=OUT_HELP)]


def warn_of_line(line: str) -> None:
    """Print a warning of what is passed over."""
    warn_of(line, "warn")


@dataclass(frozen=True, slots=True)
class EvaluatedCheckpoint:
    """A checkpoint of a run, the split or set on which it was evaluated, and what came of it."""

    run_dir: RunDir
    path: Path
    split: str
    evaluation: EvaluationResult[Any]


def _evaluate(
    split: str,
    named: str | None,
    shown: options.Format,
    overrides: Sequence[str] | None,
    root: Path,
    average: str | None,
    without: Sequence[str] | None,
) -> None:
    """Evaluate a checkpoint and print the metrics.

    Exits with 1 when something raised, and with 130 after Ctrl-C.
    """
    from hookflow.runner.attempt.main import prepare_exit
    from hookflow.runner.loop.trainer import Trainer
    from hookflow.service.checkpoints import find_checkpoint
    from hookflow.trials.temporary_run import with_checkpoint

    prepare_exit()
    run_dir, path = find_checkpoint(named, root, warn_of_line)
    with exit_after_traceback(), redirect_stdout(sys.stderr):
        evaluate = partial(Trainer.evaluate, average=average)
        evaluation = with_checkpoint(
            evaluate, run_dir, path, split, overrides or (), warn_of, without=without or ()
        )
    evaluated = EvaluatedCheckpoint(run_dir, path, split, evaluation)
    metrics = evaluation.result
    if shown == "json":
        _print_json(evaluated, {"metrics": metrics})
    else:
        rows = [(name, number(value)) for name, value in metrics.items()]
        _print_text(evaluated, columns(rows, "  "))


def _print_json(evaluated: EvaluatedCheckpoint, more: Mapping[str, Any]) -> None:
    """Print the checkpoint of a run, its data, and `more`."""
    from hookflow.events.rundir import short

    evaluation = evaluated.evaluation
    facts = {
        "run": evaluated.run_dir.id,
        "checkpoint": str(short(evaluated.path)),
        "split": evaluated.split,
        "it": evaluation.it,
        "ep": evaluation.ep,
        "data": evaluation.data.get(evaluated.split, evaluation.data),
    }
    echo_json({**facts, **more})


def _print_text(evaluated: EvaluatedCheckpoint, lines: Sequence[str]) -> None:
    """Print the checkpoint of a run and its data, and these lines below."""
    from hookflow.monitor.summary import read_run_summary

    run_dir = evaluated.run_dir
    evaluation = evaluated.evaluation
    state = read_run_summary(run_dir, time.time()).state
    epoch = state.epoch_of(evaluation.it, evaluation.ep)
    checkpoint = f"{run_dir.path.parent.name} {run_dir.id}, {evaluated.path.name}"
    echo(f"{evaluated.split} of {checkpoint} (iteration {evaluation.it:,}, epoch {epoch:,})")
    for name, info in evaluation.data.items():
        label = ""
        if len(evaluation.data) > 1:
            _, _, set_name = name.partition(".")
            label = f"{set_name}: "
        echo(f"{label}on {_describe_data(info)}")
    echo("\n".join(lines))


def _describe_data(info: Mapping[str, Any]) -> str:
    if info["examples"]:
        amount = format_count(info["examples"], "example")
    else:
        amount = format_count(info["batches"], "batch")
    if info["synthetic"]:
        return f"{amount} of SYNTHETIC {info['name']}"
    return f"{amount} of {info['name']}"


def val(
    checkpoint: CheckpointArgument = None,
    format_: options.FormatOption = "text",
    set_: options.Overrides = None,
    average: options.Average = None,
    without: options.Without = None,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Validate a checkpoint, and print the metrics.

    It uses the pipeline as recorded with the run, and its validation data. Hooks fire as in a
    validation during the training: averaged weights are evaluated where there are any, or those
    that `--average` says. The run is not changed.

    Example: `hookflow val cifar:best`

    Example: `hookflow val cifar:best --average none`
    """
    _evaluate("val", checkpoint, format_, set_, dir, average, without)


def test(
    checkpoint: CheckpointArgument = None,
    format_: options.FormatOption = "text",
    set_: options.Overrides = None,
    average: options.Average = None,
    without: options.Without = None,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Test a checkpoint, and print the metrics.

    It uses the pipeline as recorded with the run, and its test data. Hooks fire as in a test after
    training: averaged weights are evaluated where there are any, or those that `--average` says.
    The run is not changed.

    Example: `hookflow test cifar:best`
    """
    _evaluate("test", checkpoint, format_, set_, dir, average, without)


def predict(
    checkpoint: CheckpointArgument = None,
    split: PredictedSplit = "test",
    out: PredictionFile = Path("predictions.npz"),
    format_: options.FormatOption = "text",
    set_: options.Overrides = None,
    average: options.Average = None,
    without: options.Without = None,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Write a checkpoint's predictions to a file.

    The file has a row for each example of the split, as the task's `predict(run, batch)` returns
    it; the data need no targets. The pipeline is the one recorded with the run. Its hooks fire as
    in a test, but for those that read outputs or metrics: averaged weights are used where there are
    any, or those that `--average` says. The run is not changed.

    Example: `hookflow predict cifar:best --out predictions.jsonl`
    """
    from hookflow.hooks.builtin.predict import WRITER_BY_SUFFIX

    if out.suffix not in WRITER_BY_SUFFIX:
        *others, last = WRITER_BY_SUFFIX
        hint = f"use {', '.join(others)} or {last}"
        raise UserError(Problem(f'unknown format "{out.suffix}"', Where("--out"), hint))
    check_writable(out)
    from hookflow.runner.attempt.main import prepare_exit
    from hookflow.runner.loop.trainer import Trainer
    from hookflow.service.checkpoints import find_checkpoint
    from hookflow.trials.temporary_run import with_checkpoint

    prepare_exit()
    run_dir, path = find_checkpoint(checkpoint, dir, warn_of_line)
    with exit_after_traceback(), redirect_stdout(sys.stderr):
        predict_split = partial(Trainer.predict, average=average)
        evaluation = with_checkpoint(
            predict_split,
            run_dir,
            path,
            split,
            set_ or (),
            warn_of,
            single=True,
            without=without or (),
        )
    evaluated = EvaluatedCheckpoint(run_dir, path, split, evaluation)
    predictions = evaluation.result
    with open_output_file(out) as file:
        write = WRITER_BY_SUFFIX[out.suffix]
        write(file, predictions)
    shapes = {name: list(rows.shape) for name, rows in predictions.items()}
    if format_ == "json":
        _print_json(evaluated, {"file": str(out), "shapes": shapes})
    else:
        written = []
        for name, shape in shapes.items():
            lengths = " × ".join(str(length) for length in shape)
            written.append(f"{name} {lengths}")
        _print_text(evaluated, [f"  {out}: {', '.join(written)}"])
