"""The facts on a hook at its point.

They say why it runs where it does, what it declares, what has happened to it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hookflow.graph.offload import is_thinned
from hookflow.graph.plan import Binding, DropReason, Plan, Reason
from hookflow.graph.points import Loop
from hookflow.graph.render.text import format_edge_place
from hookflow.graph.slots import iter_wider_slots
from hookflow.graph.why import explain_neighbours
from hookflow.monitor.hook_costs import compute_binding_cost, list_settings
from hookflow.monitor.run_store import RunStore
from hookflow.numbers import (
    duration,
    format_count,
    format_frequency,
    format_percent,
    format_plural,
    format_rough,
    one_line,
)

REASON_TEXTS: dict[Reason, str] = {
    "edge": "an edge",
    "phase": "of an earlier phase",
    "file": "file order only; no constraint",
}
"""Why a hook runs behind the one above it."""

DROP_WORDS: dict[DropReason, str] = {
    "contradicted": "dropped: a stated order contradicts it",
    "cycle": "dropped: it would close a cycle",
}
"""Why an edge was dropped."""


@dataclass(frozen=True, slots=True)
class HookFact:
    """A fact about a hook, under a name of a word or two."""

    name: str
    text: str


def find_hooks_before(plan: Plan, binding: Binding) -> dict[str, list[str]]:
    """Return the hooks that a hook waits for at its point, by where that is stated."""
    hooks: dict[str, list[str]] = {}
    for edge in plan.edges_at(binding.point):
        if edge.then_id == binding.id:
            names = hooks.setdefault(format_edge_place(edge), [])
            if edge.first not in names:
                names.append(edge.first)
    return hooks


def find_hooks_after(plan: Plan, binding: Binding) -> dict[str, list[str]]:
    """Return the hooks that wait for a hook at its point, by where that is stated."""
    hooks: dict[str, list[str]] = {}
    for edge in plan.edges_at(binding.point):
        if edge.first_id == binding.id:
            names = hooks.setdefault(format_edge_place(edge), [])
            if edge.then not in names:
                names.append(edge.then)
    return hooks


def hook_above(plan: Plan, binding: Binding) -> tuple[Binding, Reason] | None:
    """Return the hook that runs right before one at its point, and why it does.

    It is None for the first one.
    """
    for answer in explain_neighbours(plan, binding.point):
        if answer.then.id == binding.id:
            return answer.first, answer.reason
    return None


def last_writer(plan: Plan, binding: Binding, slot: str) -> Binding | None:
    """Return who writes a slot last before a hook reads it.

    It is in this round of the loop or in the one before.
    """
    loop = Loop(plan.points, validates_in_epoch=False)
    later = plan.bindings[binding.id + 1 :]
    of_last_round = [each for each in later if loop.common(each.point, binding.point)]
    in_order = [*of_last_round, *plan.bindings[: binding.id]]
    for writer in reversed(in_order):
        for written in writer.writes:
            if slot in (written, *iter_wider_slots(written)) or written in iter_wider_slots(slot):
                return writer
    return None


def describe_reason(plan: Plan, binding: Binding) -> str:
    """Return in a line why a hook runs where it does.

    The line says for whom it waits, who waits for it, what it writes.
    """
    before = find_hooks_before(plan, binding)
    parts = [f"after {', '.join(hooks)} ({place})" for place, hooks in before.items()]
    if not parts:
        above = hook_above(plan, binding)
        if above is None:
            parts.append("first here")
        else:
            hook, reason = above
            parts.append(f"after {hook.hook} ({REASON_TEXTS[reason]})")
    followers = []
    for hooks in find_hooks_after(plan, binding).values():
        followers += hooks
    if followers:
        parts.append(f"before {', '.join(dict.fromkeys(followers))}")
    sentence = f"runs at {binding.point}, {', '.join(parts)}"
    if binding.reads:
        sentence += f" · reads {', '.join(binding.reads)}"
    if binding.writes:
        sentence += f" · writes {', '.join(binding.writes)}"
    return sentence


def describe_trouble(store: RunStore, binding: Binding) -> str:
    """Return in a line what is wrong with a hook: its error, that it is off or slower.

    The line is empty if nothing is.
    """
    state = store.state
    error = state.errors.get((binding.hook, binding.point))
    if error is not None:
        return f"✗ failed at iteration {error['it']:,}: {error['type']}: {one_line(error['text'])}"
    if binding.hook in state.disabled:
        return f"⊘ off since iteration {state.disabled[binding.hook]:,}"
    slower = state.first.timing(binding.id).slowdown
    if slower is not None:
        times = f"{duration(slower.ns)} a call, {duration(slower.usual)} before"
        return f"▲ {format_rough(slower.ratio)}× slower since iteration {slower.it:,}: {times}"
    if binding.hook in state.throttled and is_thinned(store.plan, binding):
        throttle = state.throttled[binding.hook]
        return f"▾ {format_frequency(throttle['every'])}: {throttle['why']}"
    return ""


def describe_offload(store: RunStore, binding: Binding) -> str:
    """Return what an offloaded hook took in its thread, its queue and what it dropped.

    The text is empty for other hooks.
    """
    stats = store.state.first.beside.get(binding.id)
    if stats is None:
        return ""
    return f"in background: {stats}"


def list_reason_facts(plan: Plan, binding: Binding) -> Iterator[HookFact]:
    """Yield what a hook waits for, what waits for it, its data, its phase and its trigger."""
    before = find_hooks_before(plan, binding)
    for place, hooks in before.items():
        yield HookFact("after", f"{', '.join(hooks)}   {place}")
    if not before:
        above = hook_above(plan, binding)
        if above is None:
            yield HookFact("after", "nothing: it is the first here")
        else:
            yield HookFact("after", f"{above[0].hook}   {REASON_TEXTS[above[1]]}")
    after = find_hooks_after(plan, binding)
    for place, hooks in after.items():
        yield HookFact("before", f"{', '.join(hooks)}   {place}")
    if not after:
        yield HookFact("before", "nothing here waits for it")
    for slot in binding.reads:
        yield HookFact("reads", f"{slot}{_describe_writer(plan, binding, slot)}")
    if binding.writes:
        yield HookFact("writes", ", ".join(binding.writes))
    yield HookFact("phase", _phase_text(plan, binding))
    calls = f"{binding.trigger}" or "always"
    if plan.hook(binding.hook).ranks == "zero":
        calls += ", on rank 0 alone"
    yield HookFact("called", calls)
    yield from _list_dropped_edges(plan, binding)


def _describe_writer(plan: Plan, binding: Binding, slot: str) -> str:
    writer = last_writer(plan, binding, slot)
    if writer is None:
        return ""
    if writer.point == binding.point:
        return f"   written by {writer.hook}"
    return f"   written by {writer.hook} @ {writer.point}"


def _phase_text(plan: Plan, binding: Binding) -> str:
    own = plan.hook(binding.hook).phase
    if binding.phase != own and binding.half != "exit":
        return f"{binding.phase}   an edge moves it from {own}"
    return binding.phase


def _list_dropped_edges(plan: Plan, binding: Binding) -> Iterator[HookFact]:
    seen = set()
    for dropped in plan.dropped_edges:
        edge = dropped.edge
        is_here = edge.point == binding.point and binding.id in (edge.first_id, edge.then_id)
        if is_here and edge not in seen:
            seen.add(edge)
            yield HookFact(
                "no edge",
                f"{edge.first} → {edge.then}   {format_edge_place(edge)},"
                f" {DROP_WORDS[dropped.reason]}",
            )


def list_declared_facts(store: RunStore, binding: Binding) -> Iterator[HookFact]:
    """Yield what a hook is, where and with what it is declared, and what has been changed since."""
    state = store.state
    plan = store.plan
    hook = plan.hook(binding.hook)
    yield HookFact("what", f"{hook.use}   {hook.about}")
    yield HookFact("declared", hook.where)
    yield HookFact("arguments", hook.written_args or "none")
    changes = []
    for change in list_settings(state, plan, binding.hook):
        argument = change["args"][0].removeprefix(f"{binding.hook}.")
        changes.append(f"{argument} since iteration {change['it']:,}")
    if changes:
        yield HookFact("set", ", ".join(changes))
    if is_thinned(plan, binding):
        yield HookFact("throttled", _describe_throttle(store, binding))
    method = f"{binding.method or hook.use}({', '.join(binding.takes)})"
    if binding.half != "whole":
        method += f"  {binding.half}"
    yield HookFact("method", method)
    on_error: str = hook.on_error
    if hook.retry:
        on_error += f", after {hook.retry} more {format_plural(hook.retry, 'call')}"
    yield HookFact("on error", on_error)
    if binding.hook in state.disabled:
        yield HookFact("off", f"since iteration {state.disabled[binding.hook]:,}")


def _describe_throttle(store: RunStore, binding: Binding) -> str:
    budget = store.plan.hook(binding.hook).throttle
    throttle = store.state.throttled.get(binding.hook)
    if throttle is None:
        return f"{format_frequency(1)}; its budget is {budget}"
    return (
        f"{format_frequency(throttle['every'])}, since iteration {throttle['it']:,}; its budget is"
        f" {budget}"
    )


def cost_facts(store: RunStore, binding: Binding) -> Iterator[HookFact]:
    """Yield what the calls of a hook took, of the last minute and of the attempt, and its share."""
    state = store.state
    plan = store.plan
    timing = state.first.timing(binding.id)
    if not timing.count:
        yield HookFact("calls", "none yet")
        return
    offload = describe_offload(store, binding)
    if offload:
        yield HookFact("background", offload.removeprefix("in background: "))
        yield HookFact("training", "what it gives to the hook, for copies and its queue:")
    for name, whole_attempt in (("last 60 s", False), ("attempt", True)):
        cost = compute_binding_cost(state, plan, store.pace, binding, whole_attempt=whole_attempt)
        if not whole_attempt and not cost.is_recent:
            yield HookFact(name, "no call")
            continue
        calls = (
            cost.count if whole_attempt else timing.totals(store.find_window_start(binding)).count
        )
        parts = [format_count(calls, "call")]
        for figure, ns in (
            ("mean", cost.mean),
            ("median", cost.median),
            ("p95", cost.p95),
            ("max", cost.longest),
        ):
            if ns is not None:
                parts.append(f"{figure} {duration(ns)}")
        if cost.share is not None:
            parts.append(f"share {format_percent(cost.share)} %")
        yield HookFact(name, "   ".join(parts))
        if cost.device is not None and not whole_attempt:
            yield HookFact("device", f"mean {duration(cost.device)} a call")
    if not plan.points.in_iteration(binding.point):
        yield HookFact("share", "none: it is called outside of iterations")
    yield HookFact("last call", duration(timing.last))


def all_facts(store: RunStore, binding: Binding) -> Sequence[HookFact]:
    """Return everything about a hook at its point."""
    facts = [*list_declared_facts(store, binding), *cost_facts(store, binding)]
    trouble = describe_trouble(store, binding)
    if trouble:
        facts.insert(0, HookFact("trouble", trouble))
    facts += list_reason_facts(store.plan, binding)
    return facts
