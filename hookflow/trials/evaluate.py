"""Validate, test and predict with a checkpoint and the pipeline recorded with it, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

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

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Evaluated(Generic[Result]):
    """The `result` of a checkpoint on some data, and how far its training was: iterations and epochs done."""

    it: int
    ep: int
    data: DataInfo
    result: Result


def with_checkpoint(
    execute: Callable[[Trainer, Path, Split], Result],
    run_dir: RunDir,
    checkpoint: Path,
    split: Split,
    overrides: Sequence[str],
    say: Callable[[str, Level], None],
) -> Evaluated[Result]:
    """Execute `Trainer.evaluate` or `Trainer.predict` with a checkpoint, and the pipeline that it was saved with.

    `overrides` are laid over the pipeline. The run's directory is only read: what hooks log goes to a temporary folder.
    Exceptions propagate; a traceback is printed where a hook raised. Raises UserError when there are no such data.
    """
    recorded = short(checkpoint.absolute() / run_dir.pipeline.name)
    loaded = load(recorded, overrides, recorded=True)
    if getattr(loaded.pipeline.data, split) is None:
        raise UserError(Problem(f"the pipeline has no [data.{split}]", Where(str(recorded))))
    base = run_dir.base()
    plan = compile_pipeline(loaded, base)

    def tell(text: str, level: Level = "info") -> None:
        say(text, level)

    def with_state(trainer: Trainer, store: CheckpointStore) -> tuple[Result, RunState]:
        return execute(trainer, checkpoint.absolute(), split), trainer.state

    with torch_settings(loaded.pipeline.run, tell):
        parts = build(loaded, plan, base, tell, [split], fresh=False)
        (result, state), _ = in_temporary_run(parts, plan, with_state, say)
    return Evaluated(state.iter, state.epoch, parts.data[split].info, result)
