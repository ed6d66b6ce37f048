"""Hooks that declare no slots, beside hooks that write what they read: told, since nothing else orders the two.

What they read is found in their source, where it is certain: `run.model`, `run.optimizer`, a key of what the point
offers (`metrics["accuracy"]`), the batch. Of a hook that declares any slot, what it declares counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hookflow.errors import Problem, Where
from hookflow.graph.plan import Binding, Nodes, Plan
from hookflow.graph.slots import root, wider
from hookflow.graph.why import Decided
from hookflow.hooks.run_uses import in_words, keys_read, uses

ATTRIBUTES = {"model": ("model",), "optimizer": ("optimizer", "lr")}
"""The slots that an attribute of the run is, where there is one model and one optimizer."""

KEYED = ("metrics", "checkpoint", "outputs")
"""The arguments that hold something by name, each called as its slot."""

Read = tuple[str, str, Where | None]
"""A slot, how the source says that, and where."""


def undeclared_slots(plan: Plan, nodes: Nodes, hooks: Mapping[str, Callable[..., Any]]) -> Iterator[Problem]:
    """Yield a warning for each hook without slots that reads what another one writes at the same point."""
    silent = {name for name, node in nodes.items() if not any(_declared(b.reads, b.writes) for b in node.bound)}
    for point in dict.fromkeys(binding.point for binding in plan.bindings):
        writers = [binding for binding in plan.at(point) if _declared(binding.writes)]
        readers = [binding for binding in plan.at(point) if binding.hook in silent] if writers else []
        found = [
            (reader, read, writer)
            for reader in readers
            for read in _read(hooks[reader.hook], reader)
            for writer in writers
            if _touches(writer, read[0])
        ]
        decided = Decided(plan, point) if found else None
        for reader, read, writer in found:
            if decided and _open(plan, decided, reader, writer):
                yield _told(plan, reader, read, writer, nodes[reader.hook].where)


def _declared(*slots: tuple[str, ...]) -> bool:
    """Say whether any slots are such as a hook declares; numbers are found in its source and its condition."""
    return any(root(slot) != "scalars" for some in slots for slot in some)


def _read(hook: Callable[..., Any], reader: Binding) -> Iterator[Read]:
    """Yield what the source of a method reads, each slot once."""
    found: dict[str, Read] = {}
    if "run" in reader.takes:
        for use in uses(hook, reader.method, ATTRIBUTES):
            for slot in ATTRIBUTES[use.name]:
                found.setdefault(slot, (slot, f"run.{use.name}", use.where))
    for argument in KEYED:
        for key, where in keys_read(hook, reader.method, argument) if argument in reader.takes else ():
            found.setdefault(f"{argument}.{key}", (f"{argument}.{key}", f'{argument}["{key}"]', where))
    if "batch" in reader.takes:
        found["batch"] = ("batch", "batch", None)
    yield from found.values()


def _touches(writer: Binding, slot: str) -> bool:
    return any(slot == other or slot in wider(other) or other in wider(slot) for other in writer.writes)


def _open(plan: Plan, decided: Decided, one: Binding, other: Binding) -> bool:
    """Say whether nothing that anybody has stated orders two bindings: no edge, no phase, no word that either may."""
    first, then = sorted((one, other), key=lambda binding: binding.id)
    allowed = {one.hook, other.hook}
    if any({hook.name, name} == allowed for hook in plan.hooks for name in hook.ambiguous_with):
        return False
    return one.hook != other.hook and one.phase == other.phase and decided.reason(first, then) != "edge"


def _told(plan: Plan, reader: Binding, read: Read, writer: Binding, where: Where) -> Problem:
    slot, source, line = read
    said = f'hook "{reader.hook}" reads {source} at {reader.point}{f" ({in_words(line)})" if line else ""}'
    order = "before" if reader.id < writer.id else "after"
    by = "the file" if plan.shuffle is None else f"the shuffle with seed {plan.shuffle}"
    leaves = writer.half == "exit"
    other = f'"{writer.hook}"{f" leaves {writer.method}" if leaves else ""}, which writes {root(slot)}'
    alone = "" if leaves else f", and nothing but {by} says so"
    hint = (
        f'declare it, and it fires after "{writer.hook}": reads = ["{slot}"] in [hooks.{reader.hook}], or in its class'
    )
    if not leaves:
        hint += f'; if it must fire before, state that: before = ["{writer.hook}"]'
    return Problem(f"{said} and declares no slots: it fires {order} {other}{alone}", where, hint)
