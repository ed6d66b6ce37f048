"""The calls on the run that a hook must declare, and those that it has not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hookflow.errors import Problem, Where
from hookflow.graph.plan import Bound, Node
from hookflow.hooks.run_uses import Use, in_words, uses

SLOT = {
    "replace_batch": "batch",
    "add_param_group": "optimizer",
    **dict.fromkeys(("skip_batch", "skip_step", "accumulate", "stop_epoch", "stop"), "control"),
}
"""The slot that a hook must declare to write, by the call on the run."""


def undeclared_calls(hook: Callable[..., Any], node: Node) -> Iterator[Problem]:
    """Yield a warning for each call on the run in the source of a hook that does not declare the call's slot."""
    told: set[tuple[str, Where]] = set()
    for bound in node.bound:
        for use in uses(hook, bound.method, SLOT) if "run" in bound.takes else ():
            if use.call and SLOT[use.name] not in bound.writes and (use.name, use.where) not in told:
                told.add((use.name, use.where))
                yield _undeclared(use, node, bound)


def _undeclared(use: Use, node: Node, bound: Bound) -> Problem:
    slot, name = SLOT[use.name], node.hook.name
    said = f'hook "{name}" calls run.{use.name} at {bound.point} ({in_words(use.where)})'
    ends = "" if use.name == "stop" else ", which would end the run with an error"
    hint = how_to_declare(slot, name, bound.writes)
    return Problem(f'{said} without declaring that it writes "{slot}"{ends}', node.where, hint)


def how_to_declare(slot: str, hook: str, writes: Iterable[str]) -> str:
    """Say how a hook that declares `writes` at a point declares that it writes a slot, too."""
    slots = ", ".join(f'"{one}"' for one in sorted({slot, *writes}))
    return f"declare it: writes = [{slots}] in [hooks.{hook}], or in its class"
