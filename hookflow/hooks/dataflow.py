"""Data flow found in the source of hooks: numbers that they log, and slots that they do not declare."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from hookflow.errors import Problem, Where, misspelt
from hookflow.graph.plan import Binding, Node, Nodes, Plan
from hookflow.graph.slots import root, wider
from hookflow.graph.why import Decided
from hookflow.hooks.uses import Source, Sources, in_words, keys_read, uses
from hookflow.pipeline.condition import METRICS, parse_condition

SCALARS = "scalars."
LOSS = "loss"
"""The number that every iteration gives, unless its task steps itself."""

UNKNOWN = "\0"
"""Replaces a value of an f-string in a name."""
Logged = Sequence[Sequence[str]]
"""The names that each call of `run.log` may give: several where an expression chooses."""


def with_scalars(nodes: Mapping[str, Node], sources: Sources) -> tuple[dict[str, Node], list[Problem]]:
    """Return the nodes with the numbers that they read and write, and warnings of names that are probably misspelt."""
    every = [bound for node in nodes.values() for bound in node.bound]
    named = {when: parse_condition(when).names for bound in every if (when := bound.trigger.when)}
    logged = {name: {b.method: _logged(sources[name][b.method], b) for b in node.bound} for name, node in nodes.items()}
    wanted = _logged_twice(nodes, logged).union(*named.values())
    if not wanted:
        return dict(nodes), []
    made = {slot for bound in every for slot in bound.writes}
    reads = {when: _read(names, made) for when, names in named.items()}

    def flowing(name: str, bound: Binding) -> Binding:
        logs = {*chain(*logged[name][bound.method])}
        writes = {f"{SCALARS}{number}" for number in wanted if any(_may_be(log, number) for log in logs)}
        requested = reads.get(bound.trigger.when or "", frozenset()) if bound.half != "exit" else frozenset()
        if not writes and not requested:
            return bound
        return replace(
            bound, reads=tuple(sorted({*bound.reads, *requested})), writes=tuple(sorted({*bound.writes, *writes}))
        )

    result = {name: replace(node, bound=tuple(flowing(name, b) for b in node.bound)) for name, node in nodes.items()}
    logs = {log for methods in logged.values() for several in methods.values() for log in chain(*several)}
    return result, list(_misspelt(nodes, named, logs, made))


def _logged_twice(nodes: Mapping[str, Node], logged: Mapping[str, Mapping[str, Logged]]) -> frozenset[str]:
    """Return the numbers that two hooks log at one point, each by a name that is a plain string."""
    first: dict[tuple[str, str], str] = {}
    return frozenset(
        log
        for name, node in nodes.items()
        for bound in node.bound
        for log, *others in logged[name][bound.method]
        if UNKNOWN not in log and not others and first.setdefault((bound.point, log), name) != name
    )


def _read(names: Collection[str], made: Collection[str]) -> frozenset[str]:
    bare = {name for name in names if not name.startswith(METRICS)}
    metrics = {f"{METRICS}{name}" for name in bare}
    return frozenset({*names} - bare | metrics & {*made} | {f"{SCALARS}{name}" for name in bare})


def _logged(source: Source | None, bound: Binding) -> Logged:
    calls = [use.call for use in uses(source, {"log"}) if use.call] if "run" in bound.takes else []
    arguments = [call.args[:1] or [k.value for k in call.keywords if k.arg == "name"] for call in calls]
    return [names for argument in chain(*arguments) if (names := _name(argument))]


def _name(argument: ast.expr) -> list[str]:
    match argument:
        case ast.Constant(value=str() as name):
            return [name]
        case ast.JoinedStr(values=parts):
            name = "".join(str(part.value) if isinstance(part, ast.Constant) else UNKNOWN for part in parts)
            return [name] if name.strip(UNKNOWN) else []
        case ast.IfExp(body=first, orelse=other):
            return [*_name(first), *_name(other)]
    return []


def _may_be(log: str, name: str) -> bool:
    return bool(re.fullmatch(".+".join(map(re.escape, log.split(UNKNOWN))), name))


def _misspelt(
    nodes: Mapping[str, Node], named: Mapping[str, Collection[str]], logs: Collection[str], made: Collection[str]
) -> Iterator[Problem]:
    """Yield a warning for each name of a condition that no hook gives, and nearly one that a hook gives, or `loss`."""
    metrics = {slot.removeprefix(METRICS) for slot in made if slot.startswith(METRICS)}
    known = metrics | {log for log in logs if UNKNOWN not in log}
    for name, node in nodes.items():
        for when in dict.fromkeys(bound.trigger.when for bound in node.bound if bound.trigger.when):
            for stated in sorted(named[when]):
                bare = stated.removeprefix(METRICS)
                if bare in known or any(_may_be(log, bare) for log in logs):
                    continue
                suggestion = next((item for item in sorted(known) if misspelt(bare, item)), "")
                # With another letter it may be a loss of the task's own: "dloss".
                if not suggestion and misspelt(bare.lower(), LOSS, shortest=3) and {*bare.lower()} <= {*LOSS}:
                    suggestion = LOSS
                if suggestion:
                    text = f'hook "{name}": the condition "{when}" names "{stated}", which no hook gives'
                    yield Problem(text, node.where, f'did you mean "{suggestion}"?')


ATTRIBUTES = {"model": ("model",), "optimizer": ("optimizer", "lr")}
"""The slots that an attribute of the run is, where there is one model and one optimizer."""

KEYED = ("metrics", "checkpoint", "outputs")
"""The arguments that hold something by name, each called as its slot."""

Read = tuple[str, str, Where | None]
"""A slot, how the source says that, and where."""


def undeclared_slots(plan: Plan, nodes: Nodes, sources: Sources) -> Iterator[Problem]:
    """Yield a warning for each hook without slots that reads what another one writes at the same point."""
    silent = {name for name, node in nodes.items() if not any(_declared(b.reads, b.writes) for b in node.bound)}
    for point in dict.fromkeys(binding.point for binding in plan.bindings):
        writers = [binding for binding in plan.at(point) if _declared(binding.writes)]
        readers = [binding for binding in plan.at(point) if binding.hook in silent] if writers else []
        result = [
            (reader, read, writer)
            for reader in readers
            for read in _slots_read(sources[reader.hook][reader.method], reader)
            for writer in writers
            if any(read[0] == slot or read[0] in wider(slot) or slot in wider(read[0]) for slot in writer.writes)
        ]
        decided = Decided(plan, point) if result else None
        for reader, read, writer in result:
            if decided and _is_open(decided, reader, writer):
                yield _described(plan, reader, read, writer, nodes[reader.hook].where)


def _declared(*slots: tuple[str, ...]) -> bool:
    """Say whether any slots are such as a hook declares; numbers are found in its source and its condition."""
    return any(root(slot) != "scalars" for some in slots for slot in some)


def _slots_read(source: Source | None, reader: Binding) -> Iterator[Read]:
    result: dict[str, Read] = {}
    for use in uses(source, ATTRIBUTES) if "run" in reader.takes else ():
        for slot in ATTRIBUTES[use.name]:
            result.setdefault(slot, (slot, f"run.{use.name}", use.where))
    for argument in KEYED:
        for key, where in keys_read(source, argument) if argument in reader.takes else ():
            result.setdefault(f"{argument}.{key}", (f"{argument}.{key}", f'{argument}["{key}"]', where))
    if "batch" in reader.takes:
        result["batch"] = ("batch", "batch", None)
    yield from result.values()


def _is_open(decided: Decided, item: Binding, other: Binding) -> bool:
    """Say whether nothing that the user stated orders two bindings: no edge, no phase, no `ambiguous_with`."""
    pair = frozenset((item.hook, other.hook))
    first, then = sorted((item, other), key=lambda binding: binding.id)
    stated = len(pair) == 1 or pair in decided.allowed or item.phase != other.phase
    return not stated and decided.reason(first, then) != "edge"


def _described(plan: Plan, reader: Binding, read: Read, writer: Binding, where: Where) -> Problem:
    slot, source, line = read
    message = f'hook "{reader.hook}" reads {source} at {reader.point}{f" ({in_words(line)})" if line else ""}'
    order = "before" if reader.id < writer.id else "after"
    hint = f'declare it, and it fires after "{writer.hook}": reads = ["{slot}"]'
    hint += f" in [hooks.{reader.hook}], or in its class"
    if writer.half == "exit":
        other = f'"{writer.hook}" leaves {writer.method}, which writes {root(slot)}'
    else:
        by = "the file" if plan.shuffle is None else f"the shuffle with seed {plan.shuffle}"
        other = f'"{writer.hook}", which writes {root(slot)}, and nothing but {by} says so'
        hint += f'; if it must fire before, state that: before = ["{writer.hook}"]'
    return Problem(f"{message} and declares no slots: it fires {order} {other}", where, hint)
