"""A dry run: everything is built and every point fires once, and nothing is kept.

One iteration, the end of its epoch, a validation (and test) of one batch, a checkpoint that is written and read back.
Triggers do not count, so that a hook fires that would come only after hours. The run directory is a temporary one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hookflow.events.records import DataInfo, Record
from hookflow.graph.plan import Binding, Plan, Trigger
from hookflow.pipeline.load import Loaded
from hookflow.runner.build import Parts, build
from hookflow.runner.data.limited import Limited
from hookflow.runner.distributed.model_class import class_of
from hookflow.runner.numerics.device import describe
from hookflow.runner.numerics.memory import explain_oom
from hookflow.runner.numerics.settings import torch_settings
from hookflow.runner.temporary_run import in_temporary_run
from hookflow.runner.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Silent:
    """A binding that has not fired, and why."""

    hook: str
    point: str
    why: str


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
    plan = replace(plan, bindings=tuple(replace(binding, trigger=Trigger()) for binding in plan.bindings))
    with explain_oom(loaded.pipeline, lambda: False), torch_settings(run, say):
        whole = build(loaded, plan, base, say)
        once = {
            split: data if split == "train" else Limited(data, 1, "--dry-run") for split, data in whole.data.items()
        }
        parts, device = replace(whole, data=once), describe(whole.device)
        _, recorded = in_temporary_run(parts, plan, partial(Trainer.train_once, test=run.test), say)
    fired = _fired(recorded)
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
        silent=list(_silent(parts, plan, fired, recorded)),
        checkpoint=written[-1],
        seconds=time.perf_counter() - began,
    )


def _fired(recorded: Sequence[Record]) -> Counter[int]:
    found: Counter[int] = Counter()
    for record in recorded:
        if record["k"] == "frame":
            for binding, (times, *_) in record["hooks"].items():
                found[int(binding)] += times
    return found


def _silent(parts: Parts, plan: Plan, fired: Counter[int], recorded: Sequence[Record]) -> Iterator[Silent]:
    """Yield each binding that has not fired, and each that has raised, with the reason."""
    raised = {(r["hook"], r["point"]): f"raised {r['type']}: {r['text']}" for r in recorded if r["k"] == "error"}
    for binding in plan.bindings:
        if why := raised.get((binding.hook, binding.point)):
            yield Silent(binding.hook, binding.point, why)
        elif not fired[binding.id]:
            off = any(hook == binding.hook for hook, _ in raised)
            yield Silent(
                binding.hook, binding.point, "switched off: it has raised" if off else _why(parts, plan, binding)
            )


def _why(parts: Parts, plan: Plan, binding: Binding) -> str:
    point = plan.points[binding.point]
    data: dict[str, Any] = dict(parts.data)
    evaluates = [stage for stage in binding.stages if stage != "train"] if "train" not in binding.stages else []
    if evaluates and not any(stage in data for stage in evaluates):
        return "there is no [data.val]" if "val" in evaluates else "run.test is off"
    if point.name == "on_exception":
        return "nothing has raised"
    if "_test" in point.name:
        return "run.test is off" if "test" not in data else "the test was not reached"
    if "_val" in point.name and "val" not in data:
        return "there is no [data.val]"
    if point.kind == "own":
        return "nobody has fired this point in the first iteration"
    if point.kind == "log":
        return "nothing has been logged in the first iteration"
    if point.kind == "comm":
        return "a single process averages no gradients"
    if point.kind == "module":
        return "none of its modules was called in the first iteration"
    if point.kind == "parameter":
        return "none of its parameters has been given a gradient in the first iteration"
    return "the first iteration did not come to it"
