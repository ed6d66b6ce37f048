"""What `hookflow check` warns of in a pipeline that is valid, and hardly what anybody meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hookflow.errors import Problem
from hookflow.graph.forecast import Forecast
from hookflow.graph.plan import Binding, Plan
from hookflow.graph.schedule import window_is_empty
from hookflow.pipeline.condition import METRICS, parse_condition
from hookflow.pipeline.load import Loaded


def lint(loaded: Loaded, plan: Plan, forecasts: Mapping[int, Forecast]) -> Iterator[Problem]:
    """Yield a warning for each hook that never fires, speaks of itself, or has a condition that makes no difference.

    `forecasts` are by the binding's id, and must rest on nothing but the pipeline.
    """
    by_hook: dict[str, list[Binding]] = {}
    for binding in plan.bindings:
        by_hook.setdefault(binding.hook, []).append(binding)
    for name, bindings in by_hook.items():
        where = loaded.places.of(f"hooks.{name}")
        for said, hint in _silent(loaded, plan, name, bindings, forecasts):
            yield Problem(said, where, hint)
        yield from _conditions(loaded, name)
        yield from _of_itself(loaded, name)


def _silent(
    loaded: Loaded, plan: Plan, name: str, bindings: list[Binding], forecasts: Mapping[int, Forecast]
) -> Iterator[tuple[str, str]]:
    """Yield that a hook would not fire once, not even if the run is asked to test; or not at some of its points.

    A point that the run does not come to, for want of data, is passed over where the hook fires elsewhere, unless the
    hook reads metrics there that it reads nowhere else: it is to choose by them.
    """
    data = loaded.pipeline.data
    empty = [b for b in bindings if b.half != "exit" and window_is_empty(b.trigger, plan.points[b.point])]
    silent = [b for b in bindings if forecasts[b.id].times == 0 and not (data.test and _needs(b, "test"))]
    missing = [split for split in ("val", "test") if any(_needs(b, split) for b in silent)]
    absent = " and ".join(f"[data.{split}]" for split in missing if getattr(data, split) is None)
    if len(silent) == len(bindings) and not empty:
        yield f'hook "{name}" never fires', f"there is no {absent}" if absent else _TOO_LATE
        return
    for binding in silent:
        has_data = not any(_needs(binding, split) and getattr(data, split) is None for split in ("val", "test"))
        if str(binding.trigger) and has_data and binding not in empty and binding.half != "exit":
            yield f'hook "{name}" never fires at {binding.point}', f"{binding.trigger}: the run ends before that"
    read = {slot for b in bindings if b not in silent for slot in b.reads}
    for binding in silent if data.val is None else ():
        metrics = [slot for slot in binding.reads if slot.startswith(METRICS) and slot not in read]
        if metrics and _needs(binding, "val"):
            hint = f"it reads {', '.join(metrics)} there, and there is no [data.val]"
            yield f'hook "{name}" never fires at {binding.point}', hint
    for binding in empty:
        trigger = binding.trigger
        hint = f"from = {trigger.since} is not below until = {trigger.until}"
        yield f'hook "{name}" never fires at {binding.point}', hint


def _needs(binding: Binding, split: str) -> bool:
    """Say whether a binding fires only where the run evaluates a split."""
    return f"_{split}" in binding.point or ("train" not in binding.stages and split in binding.stages)


_TOO_LATE = "the run ends before its trigger lets it"


def _conditions(loaded: Loaded, name: str) -> Iterator[Problem]:
    """Yield what is doubtful in the conditions that are written for a hook."""
    said = loaded.pipeline.hooks[name]
    written = {f"points.{k}.when": getattr(item, "when", None) for k, item in enumerate(said.points or ())}
    for key, when in {"when": said.when, **written}.items():
        if when and (doubt := parse_condition(when).doubt):
            where = loaded.places.of(f"hooks.{name}.{key}")
            yield Problem(f'hook "{name}": the condition "{when}" {doubt[0]}', where, doubt[1])


def _of_itself(loaded: Loaded, name: str) -> Iterator[Problem]:
    said = loaded.pipeline.hooks[name]
    for key, others in (("requires", said.requires or ()), ("ambiguous_with", said.ambiguous_with)):
        if name in {other.removesuffix("?") for other in others}:
            where = loaded.places.of(f"hooks.{name}.{key}")
            yield Problem(f'hook "{name}" names itself in {key}', where, "that says nothing: name another hook")
