"""The commands val, test and predict: a checkpoint evaluated without training."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hookflow.cli import options
from hookflow.cli.output import check_writable, columns, echo, echo_json, exits_after_traceback, opened, warn_of
from hookflow.errors import Problem, UserError, Where, nearest_or_all
from hookflow.numbers import counted, number

if TYPE_CHECKING:
    from hookflow.events.rundir import RunDir
    from hookflow.trials.temporary_run import Evaluated


_named = "A checkpoint's folder, a run (its newest good one), or RUN:NAME such as cifar:best."
CheckpointArgument = Annotated[str | None, options.argument("CHECKPOINT", _named, options.runs)]


def _evaluate(
    split: str, named: str | None, shown: options.Format, overrides: Sequence[str] | None, root: Path
) -> None:
    """Evaluate a checkpoint and print the metrics; exit with 1 when something raised, with 130 after Ctrl-C."""
    from hookflow.runner.loop.trainer import Trainer
    from hookflow.runner.process.main import prepare_exit
    from hookflow.trials.temporary_run import with_checkpoint

    prepare_exit()
    run_dir, checkpoint = find_checkpoint(named, root)
    with exits_after_traceback(), redirect_stdout(sys.stderr):
        evaluated = with_checkpoint(Trainer.evaluate, run_dir, checkpoint, split, overrides or (), warn_of)
    rows = columns([(name, number(value)) for name, value in evaluated.result.items()], "  ")
    more = {"metrics": evaluated.result} if shown == "json" else rows
    _print(run_dir, checkpoint, split, evaluated, more)


def _print(
    run_dir: RunDir, checkpoint: Path, split: str, evaluated: Evaluated[Any], more: Mapping[str, Any] | Sequence[str]
) -> None:
    """Print the checkpoint of a run and its data, as JSON with `more` in it, or as text with these lines below it."""
    from hookflow.events.rundir import short
    from hookflow.monitor.summary import read_overview

    data = evaluated.data
    if isinstance(more, Mapping):
        place = {"run": run_dir.id, "checkpoint": str(short(checkpoint)), "split": split}
        described = data.get(split, data)
        echo_json(place | {"it": evaluated.it, "ep": evaluated.ep, "data": described, **more})
        return
    epoch = read_overview(run_dir, time.time()).state.epoch_of(evaluated.it, evaluated.ep)
    where = f"{run_dir.path.parent.name} {run_dir.id}, {checkpoint.name}"
    echo(f"{split} of {where} (iteration {evaluated.it:,}, epoch {epoch:,})")
    for name, info in data.items():
        of = f"{name.partition('.')[2]}: " if len(data) > 1 else ""
        known = counted(info["examples"], "example") if info["examples"] else counted(info["batches"], "batch")
        echo(f"{of}on {known} of {'SYNTHETIC ' * info['synthetic']}{info['name']}")
    echo("\n".join(more))


def find_checkpoint(named: str | None, root: Path) -> tuple[RunDir, Path]:
    """Return a run and one of its checkpoints: the folder that is named, that of a RUN:NAME, or a run's newest good.

    The run of a copy that lies apart is a temporary directory, without checkpoints.
    Raises UserError when there is no such checkpoint, or it lacks files.
    """
    from hookflow.runner.checkpoint.manifest import damage, links, list_apart, list_checkpoints, newest_good
    from hookflow.service.restored import identity_of_copy, run_above
    from hookflow.service.runs import find_run, has_checkpoint

    if named and (Path(named) / "manifest.json").is_file():
        chosen = Path(named).resolve()
        run_dir = run_above(Path(named)) or identity_of_copy(chosen)
    else:
        run, colon, name = (named or "").partition(":")
        run_dir = find_run(run or None, root, having=has_checkpoint)
        every = list_checkpoints(run_dir.checkpoints)
        if not colon:
            newest, passed_over = newest_good(every)
            for line in passed_over:
                warn_of(line, "warn")
            if newest is None:
                raise UserError(Problem(f"the run {run_dir.id} has no checkpoint", Where("CHECKPOINT")))
            return run_dir, newest
        there = {path.name: path for path in (*every, *list_apart(run_dir.checkpoints))} | links(run_dir.checkpoints)
        if name not in there:
            hint = nearest_or_all(name, there)
            raise UserError(Problem(f'the run {run_dir.id} has no checkpoint "{name}"', Where("CHECKPOINT"), hint))
        chosen = there[name]
    if wrong := damage(chosen, thorough=False):
        message = f"the checkpoint {chosen.name} of {run_dir.id} cannot be used: {wrong}"
        raise UserError(Problem(message, Where("CHECKPOINT")))
    return run_dir, chosen


def val(
    checkpoint: CheckpointArgument = None,
    format_: options.FormatOption = "text",
    set_: options.Overrides = None,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Validate a checkpoint, and print the metrics.

    It uses the pipeline as recorded with the run, and its validation data. Hooks fire as in a validation during the
    training: averaged weights are evaluated where there are any. The run is not changed.

    Example: `hookflow val cifar:best`
    """
    _evaluate("val", checkpoint, format_, set_, dir)


def test(
    checkpoint: CheckpointArgument = None,
    format_: options.FormatOption = "text",
    set_: options.Overrides = None,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Test a checkpoint, and print the metrics.

    It uses the pipeline as recorded with the run, and its test data. Hooks fire as in a test after training: averaged
    weights are evaluated where there are any. The run is not changed.

    Example: `hookflow test cifar:best`
    """
    _evaluate("test", checkpoint, format_, set_, dir)


def predict(
    checkpoint: CheckpointArgument = None,
    split: Annotated[
        str, typer.Option(metavar="SET", help="The data to predict: test, val, or a set by its name, val.ood.")
    ] = "test",
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="The file to write: .npz, .jsonl (one line per example) or .pt.")
    ] = Path("predictions.npz"),
    format_: options.FormatOption = "text",
    set_: options.Overrides = None,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Write a checkpoint's predictions to a file.

    The file has a row for each example of the split, as the task's `predict(run, batch)` returns it; the data need no
    targets. The pipeline is the one recorded with the run. Its hooks fire as in a test, but for those that read outputs
    or metrics: averaged weights are used where there are any. The run is not changed.

    Example: `hookflow predict cifar:best --out predictions.jsonl`
    """
    from hookflow.hooks.builtin.predict import WRITERS

    if out.suffix not in WRITERS:
        *others, last = WRITERS
        hint = f"use {', '.join(others)} or {last}"
        raise UserError(Problem(f'unknown format "{out.suffix}"', Where("--out"), hint))
    check_writable(out)
    from hookflow.runner.loop.trainer import Trainer
    from hookflow.runner.process.main import prepare_exit
    from hookflow.trials.temporary_run import with_checkpoint

    prepare_exit()
    run_dir, path = find_checkpoint(checkpoint, dir)
    with exits_after_traceback(), redirect_stdout(sys.stderr):
        evaluated = with_checkpoint(Trainer.predict, run_dir, path, split, set_ or (), warn_of, single=True)
    with opened(out) as file:
        WRITERS[out.suffix](file, evaluated.result)
    shapes = {name: list(rows.shape) for name, rows in evaluated.result.items()}
    written = ", ".join(f"{name} {' × '.join(map(str, shape))}" for name, shape in shapes.items())
    more = {"file": str(out), "shapes": shapes} if format_ == "json" else [f"  {out}: {written}"]
    _print(run_dir, path, split, evaluated, more)
