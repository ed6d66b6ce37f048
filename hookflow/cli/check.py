"""`hookflow check`: say whether a pipeline is sound, and what it amounts to, without running anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hookflow.cli.options import Overrides, PipelineFile

if TYPE_CHECKING:
    from hookflow.graph.links import Link
    from hookflow.graph.plan import Plan
    from hookflow.pipeline.schema import Pipeline


SHOWN = 6
"""How many pairs that nothing but the file orders are named."""


def check(pipeline: PipelineFile, set_: Overrides = None) -> None:
    """Check a pipeline: its keys, its hooks and their order, and that all it names is there.

    The arguments of model, data and optimizer are checked by a run, before it fetches any data.
    """
    from hookflow.cli.sound import sound_plan
    from hookflow.pipeline.load import load

    loaded = load(pipeline, set_ or ())
    plan = sound_plan(loaded)
    print(f"{pipeline} is sound")
    for name, text in _summary(loaded.pipeline, plan):
        print(f"  {name:<10} {text}")
    for warning in _warnings(loaded.pipeline, plan):
        print(f"  {'warning':<10} {warning}")


def _summary(pipeline: Pipeline, plan: Plan) -> Iterator[tuple[str, str]]:
    yield pipeline.run.name, _length(pipeline)
    yield "model", pipeline.model.use
    yield "task", pipeline.task.use
    yield "optimizer", pipeline.optimizer.use
    data = {"train": pipeline.data.train, "val": pipeline.data.val, "test": pipeline.data.test}
    yield "data", ", ".join(f"{split} {part.use}" if part else f"no {split}" for split, part in data.items())
    off = [name for name, hook in pipeline.hooks.items() if not hook.enabled]
    points = {binding.point for binding in plan.bindings}
    switched_off = f"; switched off: {', '.join(off)}" if off else ""
    yield "hooks", f"{_count(len(plan.hooks), 'hook')} at {_count(len(points), 'point')}{switched_off}"
    links = list(_links(plan))
    if links:
        yield "order", _order(Counter(link.reason for link in links))
    left = [link for link in links if link.reason == "file"]
    for link in left[:SHOWN]:
        yield "", f"at {link.first.point}: {link.first.hook}, then {link.then.hook}"
    if len(left) > SHOWN:
        yield "", f"and {len(left) - SHOWN} more"


def _length(pipeline: Pipeline) -> str:
    run = pipeline.run
    unit, length = ("epoch", run.max_epochs) if run.max_epochs else ("iteration", run.max_iters or 0)
    every = f"each {unit}" if run.val_every == 1 else f"every {run.val_every} {unit}s"
    validation = f", validation after {every}" if pipeline.data.val else ""
    return f"{_count(length, unit)}{validation}{', then the test' if run.test else ''}"


def _order(reasons: Counter[str]) -> str:
    """Say what decides between hooks that fire one right after the other."""
    words = {"edge": "by edges", "phase": "by phase", "file": "by the file alone"}
    told = [f"{reasons[reason]} {said}" for reason, said in words.items() if reasons[reason]]
    return f"of neighbouring hooks {', '.join(told)}"


def _warnings(pipeline: Pipeline, plan: Plan) -> Iterator[str]:
    missing = [split for split in ("val", "test") if getattr(pipeline.data, split) is None]
    for hook in plan.hooks:
        points = [binding.point for binding in plan.bindings if binding.hook == hook.name]
        waits_for = {split for split in missing for point in points if f"_{split}" in point}
        if points and all(any(f"_{split}" in point for split in missing) for point in points):
            sections = " and ".join(f"[data.{split}]" for split in missing if split in waits_for)
            yield f'hook "{hook.name}" never fires: there is no {sections} ({hook.where})'


def _links(plan: Plan) -> Iterator[Link]:
    from hookflow.graph.links import bound_points, neighbours

    for point in bound_points(plan):
        yield from neighbours(plan, point.name)


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'s' * (number != 1)}"
