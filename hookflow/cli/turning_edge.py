"""What `hookflow why` says of turning a pair round: tried, by compiling the pipeline with the edge that would do it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from hookflow.errors import UserError

if TYPE_CHECKING:
    from hookflow.cli.pipelines import Target
    from hookflow.graph.plan import Plan
    from hookflow.graph.why import Answer


class Turning:
    """What would turn pairs of a pipeline round. What a run has recorded can no longer be turned."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._tried: dict[tuple[str, ...], Plan | UserError] = {}

    def lines(self, answer: Answer) -> Iterator[str]:
        """Yield the edge that turns the two of an answer round, or what stands against it.

        Where stated edges are the answer, it says that already: one of them must go. How two arounds are left follows
        from how they are entered, so the edge says who is entered first.
        """
        first, then = answer.first.hook, answer.then.hook
        stated = answer.path and all(edge.kind in ("file", "class") for edge in answer.path)
        if stated or first == then or self._target.run is not None:
            return
        outer, inner = (first, then) if answer.first.half == answer.then.half == "exit" else (then, first)
        after = [*_stated_after(self._target, inner), outer]
        turned = self._try(inner, after)
        names = ", ".join(map(json.dumps, after))
        other_way = f"to fire {then} before {first}"
        if isinstance(turned, UserError) and not any(f"at {answer.point}" in one.message for one in turned.problems):
            here = f'{{ at = "{answer.point}", after = [{names}] }} in points of [hooks.{inner}]'
            yield f"  {other_way} here alone: {here}"
        elif isinstance(turned, UserError):
            yield f"  {other_way}, one of these must go:"
            steps = turned.problems[0].hint.split("\n    ")
            yield from (f"    {step}" for step in steps if not re.match(f'"{outer}".* before "{inner}"', step))
        elif _is_turned(turned, answer):
            yield f"  {other_way}: after = [{names}] in [hooks.{inner}]"

    def _try(self, hook: str, after: list[str]) -> Plan | UserError:
        key = (hook, *after)
        if key not in self._tried:
            try:
                self._tried[key] = _compiled(self._target, hook, after)
            except UserError as error:
                self._tried[key] = error
        return self._tried[key]


def _stated_after(target: Target, hook: str) -> list[str]:
    """Return the `after` of a hook: the file's, or else its class's."""
    from hookflow.hooks.compile import find_hook
    from hookflow.hooks.inspect import names_of

    said = target.loaded.pipeline.hooks[hook]
    if "after" in said.model_fields_set:
        return list(said.after)
    return list(names_of(find_hook(said.use, target.loaded.source.parent, None), "after"))


def _compiled(target: Target, hook: str, after: list[str]) -> Plan:
    from hookflow.hooks.compile import compile_pipeline

    pipeline = target.loaded.pipeline
    changed = pipeline.hooks[hook].model_copy(update={"after": after})
    hooks = {**pipeline.hooks, hook: changed}
    loaded = replace(target.loaded, pipeline=pipeline.model_copy(update={"hooks": hooks}))
    return compile_pipeline(loaded, shuffle=target.plan.shuffle, imports=target.imports)


def _is_turned(plan: Plan, answer: Answer) -> bool:
    """Say whether the later one of an answer comes first in another plan."""
    place = {(b.hook, b.half, b.method): k for k, b in enumerate(plan.at(answer.point))}
    first, then = ((b.hook, b.half, b.method) for b in (answer.first, answer.then))
    return place[then] < place[first]
