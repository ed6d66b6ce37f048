"""Which bindings have not fired in a short run, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hookflow.events.records import Record
from hookflow.graph.plan import Binding, Plan
from hookflow.runner.parts import Parts


@dataclass(frozen=True, slots=True)
class Silent:
    """A binding that has not fired, and why."""

    hook: str
    point: str
    why: str


def fired_in(recorded: Sequence[Record]) -> Counter[int]:
    """Return how often each binding has fired, by its id, as a run has recorded it."""
    found: Counter[int] = Counter()
    for record in recorded:
        if record["k"] == "frame":
            for binding, (times, *_) in record["hooks"].items():
                found[int(binding)] += times
    return found


def silent_in(parts: Parts, plan: Plan, fired: Counter[int], recorded: Sequence[Record]) -> Iterator[Silent]:
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
