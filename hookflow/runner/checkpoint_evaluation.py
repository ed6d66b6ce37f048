"""Validating and testing what a checkpoint holds: by the pipeline that was recorded with it, in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hookflow.errors import Problem, UserError, Where
from hookflow.events.records import DataInfo, Level
from hookflow.events.rundir import RunDir, short
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import load
from hookflow.runner.build import build
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.numerics.settings import torch_settings
from hookflow.runner.state import RunState
from hookflow.runner.temporary_run import in_temporary_run
from hookflow.runner.trainer import Trainer

Say = Callable[[str, Level], None]
"""Takes a line for people, and how grave it is: "info", "warn" or "error"."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What was found: the metrics, how far the training was (iterations and epochs done), and on which data."""

    checkpoint: Path
    it: int
    ep: int
    data: DataInfo
    metrics: Mapping[str, float]


def evaluate_checkpoint(
    run_dir: RunDir, checkpoint: Path, split: Literal["val", "test"], overrides: Sequence[str], say: Say
) -> Evaluated:
    """Validate or test a checkpoint of the run, by the pipeline that it was saved with, `overrides` laid over it.

    The run's directory is only read: what hooks log goes to a folder that is gone afterwards. Whatever raises goes
    through, printed with its traceback where a hook has raised it. Raises UserError when there are no such data.
    """
    recorded = short(checkpoint.absolute() / run_dir.pipeline.name)
    loaded = load(recorded, overrides, recorded=True)
    if getattr(loaded.pipeline.data, split) is None:
        raise UserError(Problem(f"the pipeline has no [data.{split}]", Where(str(recorded))))
    base = Path(run_dir.describe()["base"])
    plan = compile_pipeline(loaded, base)

    def tell(text: str, level: Level = "info") -> None:
        say(text, level)

    def evaluate(trainer: Trainer, store: CheckpointStore) -> tuple[dict[str, float], RunState]:
        return dict(trainer.evaluate(checkpoint.absolute(), split)), trainer.state

    with torch_settings(loaded.pipeline.run, tell):
        parts = build(loaded, plan, base, tell, [split], fresh=False)
        (metrics, state), _ = in_temporary_run(parts, plan, evaluate, say)
    return Evaluated(checkpoint, state.iter, state.epoch, parts.data[split].info, metrics)
