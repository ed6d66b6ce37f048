"""`hookflow predict`: what a checkpoint predicts, written to a file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hookflow.cli.evaluate import CheckpointArgument, FormatOption, find_checkpoint, headed, in_process, warns
from hookflow.cli.options import Format, Overrides, RunsFolder
from hookflow.cli.output import echo, echo_json
from hookflow.errors import Problem, UserError, Where
from hookflow.hooks.predictions import WRITERS


class Split(StrEnum):
    """The data that may be predicted."""

    val = "val"
    test = "test"


def predict(
    checkpoint: CheckpointArgument = None,
    split: Annotated[Split, typer.Option(help="Which of the pipeline's data to predict.")] = Split.test,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="The file to write: .npz, .jsonl (one line per example) or .pt.")
    ] = Path("predictions.npz"),
    format_: FormatOption = Format.text,
    set_: Overrides = None,
    dir: RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Write a checkpoint's predictions to a file.

    The file has a row for each example of the split. The task's `predict(run, batch)` says what is predicted; the data
    need no targets. The pipeline is the one recorded with the run. Its hooks prepare the pass as they do a test: an
    average of the weights is used where there is one. Hooks that look at outputs or metrics do not fire. The run
    itself is left as it is.

    Example: `hookflow predict cifar:best --out predictions.jsonl`
    """
    if out.suffix not in WRITERS:
        *others, last = WRITERS
        hint = f"use {', '.join(others)} or {last}"
        raise UserError(Problem(f'unknown format "{out.suffix}"', Where("--out"), hint))
    from hookflow.runner.checkpoint_evaluation import predict_checkpoint

    run_dir, path = find_checkpoint(checkpoint, dir)
    with in_process():
        found = predict_checkpoint(run_dir, path, split.value, set_ or [], warns)
    out.parent.mkdir(parents=True, exist_ok=True)
    WRITERS[out.suffix](out, found.rows)
    shapes = {name: list(rows.shape) for name, rows in found.rows.items()}
    if format_ is Format.json:
        from hookflow.events.rundir import short

        whole = {"run": run_dir.id, "checkpoint": str(short(path)), "split": split.value}
        echo_json({**whole, "it": found.it, "ep": found.ep, "data": found.data, "file": str(out), "shapes": shapes})
        return
    written = ", ".join(f"{name} {' × '.join(map(str, shape))}" for name, shape in shapes.items())
    echo("\n".join([*headed(run_dir, found, split.value), f"  {out}: {written}"]))
