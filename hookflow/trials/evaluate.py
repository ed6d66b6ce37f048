"""Validate, test and predict with a checkpoint and the pipeline recorded with it, in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from hookflow.errors import Problem, UserError, Where
from hookflow.events.records import DataInfo, Level
from hookflow.events.rundir import RunDir, short
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import load
from hookflow.runner.builder.build import build
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.loop.evaluation import Split
from hookflow.runner.loop.trainer import Trainer
from hookflow.runner.numerics.precision import torch_settings
from hookflow.runner.process.state import RunState
from hookflow.trials.dry_run import in_temporary_run

Found = TypeVar("Found")

Say = Callable[[str, Level], None]
"""Takes a line for people, and how grave it is: "info", "warn" or "error"."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The metrics: the metrics, how far the training was (iterations and epochs done), and on which data."""

    checkpoint: Path
    it: int
    ep: int
    data: DataInfo
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predictions by name, a row for each example; else as `Evaluated`."""

    checkpoint: Path
    it: int
    ep: int
    data: DataInfo
    rows: Mapping[str, Tensor]


def evaluate_checkpoint(
    run_dir: RunDir, checkpoint: Path, split: Split, overrides: Sequence[str], say: Say
) -> Evaluated:
    """Validate or test a checkpoint of the run, by the pipeline that it was saved with, `overrides` laid over it.

    The run's directory is only read: what hooks log goes to a folder that is gone afterwards. Exceptions propagate; a
    traceback is printed where a hook raised. Raises UserError when there are no such data.
    """
    result, state, data = _with_checkpoint(
        run_dir, checkpoint, split, overrides, say, lambda trainer, path: dict(trainer.evaluate(path, split))
    )
    return Evaluated(checkpoint, state.iter, state.epoch, data, result)


def predict_checkpoint(
    run_dir: RunDir, checkpoint: Path, split: Split, overrides: Sequence[str], say: Say
) -> Predicted:
    """Let a checkpoint of the run predict a split, which needs no targets; else as `evaluate_checkpoint`.

    Raises UserError when the task says nothing of how to predict.
    """
    result, state, data = _with_checkpoint(
        run_dir, checkpoint, split, overrides, say, lambda trainer, path: trainer.predict(path, split)
    )
    return Predicted(checkpoint, state.iter, state.epoch, data, result)


def _with_checkpoint(
    run_dir: RunDir,
    checkpoint: Path,
    split: Split,
    overrides: Sequence[str],
    say: Say,
    execute: Callable[[Trainer, Path], Found],
) -> tuple[Found, RunState, DataInfo]:
    recorded = short(checkpoint.absolute() / run_dir.pipeline.name)
    loaded = load(recorded, overrides, recorded=True)
    if getattr(loaded.pipeline.data, split) is None:
        raise UserError(Problem(f"the pipeline has no [data.{split}]", Where(str(recorded))))
    base = run_dir.base()
    plan = compile_pipeline(loaded, base)

    def tell(text: str, level: Level = "info") -> None:
        say(text, level)

    def with_state(trainer: Trainer, store: CheckpointStore) -> tuple[Found, RunState]:
        return execute(trainer, checkpoint.absolute()), trainer.state

    with torch_settings(loaded.pipeline.run, tell):
        parts = build(loaded, plan, base, tell, [split], fresh=False)
        (result, state), _ = in_temporary_run(parts, plan, with_state, say)
    return result, state, parts.data[split].info
