"""Conditions and logs as data flow: a `when` reads the numbers that it names, and `run.log` writes one.

The number `n` is the slot `scalars.n` if a condition names it, or if two hooks log it at one point: the last value
counts. Nothing else in a run reads a number. The source of a hook tells what it logs, where the name is a string, or an
f-string of which a part is fixed; a class or a file may declare more.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from hookflow.errors import Problem, misspelt
from hookflow.graph.plan import Bound, Node
from hookflow.hooks.run_uses import uses
from hookflow.pipeline.condition import METRICS, parse_condition

SCALARS = "scalars."
LOSS = "loss"
"""The number that every iteration gives, unless its task steps itself."""

Hooks = Mapping[str, Callable[..., Any]]

Name = tuple[str, ...]
"""The fixed parts of a name, of which what is between them is not known; one part is all of the name."""

Logged = Sequence[Sequence[Name]]
"""The names that each call of `run.log` may give: several where an expression chooses."""


def with_scalars(nodes: Mapping[str, Node], hooks: Hooks) -> tuple[dict[str, Node], list[Problem]]:
    """Return the nodes with the numbers that they read and write, and warnings of names that are probably misspelt."""
    every = [bound for node in nodes.values() for bound in node.bound]
    named = {when: parse_condition(when).names for bound in every if (when := bound.trigger.when)}
    logged = {name: {b.method: _logged(hooks[name], b) for b in node.bound} for name, node in nodes.items()}
    wanted = _logged_twice(nodes, logged).union(*named.values())
    if not wanted:
        return dict(nodes), []
    made = {slot for bound in every for slot in bound.writes}
    reads = {when: _read(names, made) for when, names in named.items()}

    def flowing(name: str, bound: Bound) -> Bound:
        logs = {*chain(*logged[name][bound.method])}
        given = {f"{SCALARS}{number}" for number in wanted if any(_may_be(log, number) for log in logs)}
        asked = reads.get(bound.trigger.when or "", frozenset()) if bound.half != "exit" else frozenset()
        if not given and not asked:
            return bound
        return replace(bound, reads=_with(bound.reads, asked), writes=_with(bound.writes, given))

    found = {name: replace(node, bound=tuple(flowing(name, b) for b in node.bound)) for name, node in nodes.items()}
    logs = {log for methods in logged.values() for several in methods.values() for log in chain(*several)}
    return found, list(_misspelt(nodes, named, logs, made))


def _logged_twice(nodes: Mapping[str, Node], logged: Mapping[str, Mapping[str, Logged]]) -> frozenset[str]:
    """Return the numbers that two hooks log at one point, each by a name that is a plain string."""
    first: dict[tuple[str, str], str] = {}
    return frozenset(
        log[0]
        for name, node in nodes.items()
        for bound in node.bound
        for log, *others in logged[name][bound.method]
        if len(log) == 1 and not others and first.setdefault((bound.point, log[0]), name) != name
    )


def _with(slots: tuple[str, ...], more: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted({*slots, *more})) if more else slots


def _read(names: Collection[str], made: Collection[str]) -> frozenset[str]:
    """Return what a condition reads that names these: numbers, and metrics where it says so or a hook makes such."""
    bare = {name for name in names if not name.startswith(METRICS)}
    metrics = {f"{METRICS}{name}" for name in bare}
    return frozenset({*names} - bare | metrics & {*made} | {f"{SCALARS}{name}" for name in bare})


def _logged(hook: Callable[..., Any], bound: Bound) -> Logged:
    """Return the names that a method gives to `run.log`, as far as its source tells."""
    calls = [use.call for use in uses(hook, bound.method, {"log"}) if use.call] if "run" in bound.takes else []
    return [names for call in calls for argument in _first(call) if (names := _name(argument))]


def _first(call: ast.Call) -> list[ast.expr]:
    return call.args[:1] or [keyword.value for keyword in call.keywords if keyword.arg == "name"]


def _name(argument: ast.expr) -> list[Name]:
    match argument:
        case ast.Constant(value=str() as name):
            return [(name,)]
        case ast.JoinedStr(values=parts):
            fixed = [part.value if isinstance(part, ast.Constant) else None for part in parts]
            return [_between(fixed)] if any(fixed) else []
        case ast.IfExp(body=one, orelse=other):
            return [*_name(one), *_name(other)]
    return []


def _between(parts: list[Any]) -> Name:
    """Return the fixed parts of an f-string: before, between and behind those that are None."""
    found = [""]
    for part in parts:
        if part is None:
            found.append("")
        else:
            found[-1] += part
    return tuple(found)


def _may_be(log: Name, name: str) -> bool:
    return log == (name,) or (len(log) > 1 and bool(re.fullmatch(".+".join(map(re.escape, log)), name)))


def _is_loss(name: str) -> bool:
    """Say whether a name is probably a slip of the task's loss; one with another letter may be of a task: "dloss"."""
    return misspelt(name.lower(), LOSS, shortest=3) and {*name.lower()} <= {*LOSS}


def _misspelt(
    nodes: Mapping[str, Node], named: Mapping[str, Collection[str]], logs: Collection[Name], made: Collection[str]
) -> Iterator[Problem]:
    """Yield a warning for each name of a condition that no hook gives, and nearly one that a hook gives, or `loss`."""
    metrics = {slot.removeprefix(METRICS) for slot in made if slot.startswith(METRICS)}
    known = metrics | {log[0] for log in logs if len(log) == 1}
    for name, node in nodes.items():
        for when in dict.fromkeys(bound.trigger.when for bound in node.bound if bound.trigger.when):
            for said in sorted(named[when]):
                bare = said.removeprefix(METRICS)
                meant = next((one for one in sorted(known) if misspelt(bare, one)), LOSS if _is_loss(bare) else None)
                if meant and bare not in known and not any(_may_be(log, bare) for log in logs):
                    told = f'hook "{name}": the condition "{when}" names "{said}", which no hook gives'
                    yield Problem(told, node.where, f'did you mean "{meant}"?')
