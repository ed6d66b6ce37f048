"""Validating and testing what a checkpoint holds: by the pipeline that was recorded with it, in this process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hookflow.errors import Problem, UserError, Where
from hookflow.events.log import Tail
from hookflow.events.records import DataInfo, Level, Record
from hookflow.events.rundir import RunDir, short
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import load
from hookflow.runner.build import build
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.data.source import close
from hookflow.runner.data.worker_errors import explain_worker_errors
from hookflow.runner.distributed.consensus import Alone
from hookflow.runner.numerics.settings import torch_settings
from hookflow.runner.recorder import Recorder
from hookflow.runner.signals import Signals
from hookflow.runner.state import RunState
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

    with (
        torch_settings(loaded.pipeline.run, tell),
        tempfile.TemporaryDirectory(prefix="hookflow-") as folder,
    ):
        parts = build(loaded, plan, base, tell, [split], fresh=False)
        aside = RunDir(Path(folder))
        recorder = Recorder(aside, lambda command: None)
        recorder.start()
        try:
            state = RunState()
            store = CheckpointStore(aside.checkpoints)
            trainer = Trainer(parts, plan, aside, store, recorder, Signals(state), state, Alone())
            with explain_worker_errors():
                metrics = dict(trainer.evaluate(checkpoint.absolute(), split))
        except Exception as error:
            if recorder.reported is not error and not isinstance(error, UserError):
                recorder.failure(error)
            raise
        finally:
            recorder.close()
            close(parts.data[split])
        for record in Tail[Record](aside.events).read_all():
            if record["k"] == "message":
                say(record["text"], record["level"])
    return Evaluated(checkpoint, state.iter, state.epoch, parts.data[split].info, metrics)
