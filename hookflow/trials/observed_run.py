"""`hookflow check --observe`: a few real iterations in which every firing of every hook is watched; nothing is kept.

Two epochs of two iterations, with a validation of two batches after each, a checkpoint that is written and read back,
and the test if the run has one. Triggers do not count, as in a dry run. The network is not compiled. What a hook raises
is recorded, and the run goes on: a hook that reads what is not there yet is what one looks for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hookflow.graph.observation import Seen
from hookflow.graph.plan import Plan
from hookflow.pipeline.load import Loaded
from hookflow.runner.build.build import build
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.loop.trainer import Trainer
from hookflow.runner.numerics.memory import explain_oom
from hookflow.runner.numerics.precision import torch_settings
from hookflow.runner.observe.observer import Observer
from hookflow.trials.dry_run import (
    BATCHES,
    EPOCHS,
    ITERS,
    Silent,
    fired_in,
    in_temporary_run,
    shortened,
    silent_in,
    without_amounts,
)


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen, and what an observed run could not see."""

    seen: Sequence[Seen]
    silent: Sequence[Silent]
    """The bindings that have not fired, or have raised."""
    by_content: bool
    """Whether the contents of weights were compared; those of a large network are not."""
    iters: int
    seconds: float


def observe(loaded: Loaded, plan: Plan, base: Path, say: Callable[..., None]) -> Observed:
    """Train for a few iterations and watch; `say` takes lines for people. Files of the pipeline are relative to `base`.

    Whatever raises that is not a hook goes through, printed with its traceback where it is no mistake in the pipeline.
    """
    began = time.perf_counter()
    run = loaded.pipeline.run.model_copy(update={"compile": False})
    loaded = replace(loaded, pipeline=loaded.pipeline.model_copy(update={"run": run}))
    plan = replace(without_amounts(plan), hooks=tuple(replace(hook, on_error="ignore") for hook in plan.hooks))
    with explain_oom(loaded.pipeline, lambda: False), torch_settings(run, say):
        whole = build(loaded, plan, base, say)
        parts = replace(whole, data=shortened(whole.data, BATCHES, "--observe"))
        observer = Observer(plan, parts)
        train = partial(_train, epochs=min(EPOCHS, run.max_epochs or EPOCHS), test=run.test)
        try:
            iters, recorded = in_temporary_run(parts, plan, train, say, observer=observer)
        finally:
            observer.end()
    return Observed(
        seen=observer.observed(),
        silent=list(silent_in(parts, plan, fired_in(recorded), recorded)),
        by_content=observer.by_content,
        iters=iters,
        seconds=time.perf_counter() - began,
    )


def _train(trainer: Trainer, store: CheckpointStore, *, epochs: int, test: bool) -> int:
    """Train, and return how many iterations that were."""
    trainer.train_once(store, test=test, epochs=epochs, iters=ITERS)
    return trainer.state.iter
