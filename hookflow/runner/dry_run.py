"""A dry run: everything is built and every point fires once, and nothing is kept.

One iteration, the end of its epoch, a validation (and test) of one batch, a checkpoint that is written and read back.
Triggers do not count, so that a hook fires that would come only after hours. The run directory is a temporary one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hookflow.events.records import DataInfo
from hookflow.graph.plan import Plan
from hookflow.pipeline.load import Loaded
from hookflow.runner.build import build
from hookflow.runner.distributed.model_class import class_of
from hookflow.runner.numerics.device import describe
from hookflow.runner.numerics.memory import explain_oom
from hookflow.runner.numerics.settings import torch_settings
from hookflow.runner.short_run import shortened, without_amounts
from hookflow.runner.silent import Silent, fired_in, silent_in
from hookflow.runner.temporary_run import in_temporary_run
from hookflow.runner.trainer import Trainer


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a dry run has found, and what the run itself would train."""

    model: str
    params: int
    device: str
    precision: str
    data: Mapping[str, DataInfo]
    iters_per_epoch: int
    max_iters: int
    points: int
    """The points where something is bound and has fired."""
    fired: int
    """The bindings that have fired."""
    silent: Sequence[Silent]
    checkpoint: int
    """The bytes of the checkpoint."""
    seconds: float


def dry_run(loaded: Loaded, plan: Plan, base: Path, say: Callable[..., None]) -> DryRun:
    """Do everything once; `say` takes lines for people. Files of the pipeline are relative to `base`.

    Whatever raises goes through, printed with its traceback where it is no mistake in the pipeline.
    """
    began = time.perf_counter()
    run = loaded.pipeline.run
    plan = without_amounts(plan)
    with explain_oom(loaded.pipeline, lambda: False), torch_settings(run, say):
        whole = build(loaded, plan, base, say)
        parts, device = replace(whole, data=shortened(whole.data, 1, "--dry-run")), describe(whole.device)
        _, recorded = in_temporary_run(parts, plan, partial(Trainer.train_once, test=run.test, sanity=run.sanity), say)
    fired = fired_in(recorded)
    bound = [binding for binding in plan.bindings if fired[binding.id]]
    written = [record["bytes"] for record in recorded if record["k"] == "checkpoint"]
    return DryRun(
        model=" + ".join(class_of(model) for model in parts.models.values()),
        params=sum(p.numel() for p in parts.model.parameters()),
        device=device,
        precision=parts.precision,
        data={split: source.info for split, source in whole.data.items()},
        iters_per_epoch=parts.iters_per_epoch,
        max_iters=run.max_iters or (run.max_epochs or 0) * parts.iters_per_epoch,
        points=len({binding.point for binding in bound}),
        fired=len(bound),
        silent=list(silent_in(parts, plan, fired, recorded)),
        checkpoint=written[-1],
        seconds=time.perf_counter() - began,
    )
