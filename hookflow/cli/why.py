"""`hookflow why`: explain why one hook fires before another."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hookflow.cli import options
from hookflow.cli.output import columns, echo
from hookflow.errors import Problem, UserError, nearest_or_all

if TYPE_CHECKING:
    from hookflow.graph.plan import Binding, Edge, Plan
    from hookflow.graph.why import Answer
    from hookflow.service.pipelines import Target

INDENT = "    "


def why(
    a: Annotated[str, options.argument("A", "A hook's name.", options.hooks)],
    b: Annotated[str, options.argument("B", "Another hook's name.", options.hooks)],
    pipeline: options.PipelineArgument = None,
    point: Annotated[
        str | None, typer.Option(metavar="POINT", help="Answer for this point only.", autocompletion=options.points)
    ] = None,
    set_: options.Overrides = None,
    without: options.Without = None,
    only: options.Only = None,
    shuffle: options.Shuffle = None,
    no_import: options.NoImport = False,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Say why hook A fires before hook B, or after it.

    At each point where both fire, it is the edges that lead from one to the other, each with its source; else the
    phases, or the order in the file. The edge that would reverse the order is named, too. For hooks that share no point
    it is the loop. Without a pipeline it is the only one here or in pipelines/.

    Example: `hookflow why ema checkpoint pipelines/cifar.toml`
    """
    from hookflow.graph.why import precedence
    from hookflow.service.pipelines import open_target, warn_unknown

    changes = {"without": without or (), "only": only or ()}
    target = open_target(pipeline, set_ or (), **changes, shuffle=shuffle, imports=not no_import, runs=dir)
    _refuse_unknown(target, (a, b), point)
    plan = target.plan
    warn_unknown(plan)
    if off := [name for name in (a, b) if name not in {hook.name for hook in plan.hooks}]:
        for name in off:
            place = target.loaded.places.of(f"hooks.{name}.enabled")
            echo(f"{name} fires nowhere: it is switched off ({place.at_line})")
        return
    answers = precedence(plan, a, b)
    if here := [answer for answer in answers if point in (None, answer.point)]:
        echo("\n\n".join(_explained(target, a, here)))
    elif answers:
        echo(f"{a} and {b} never meet at {point}")
        for name in (a, b):
            at = ", ".join(dict.fromkeys(binding.point for binding in plan.bindings if binding.hook == name))
            echo(textwrap.fill(f"{name} fires at {at}", 78, initial_indent=INDENT, subsequent_indent=2 * INDENT))
    else:
        echo("\n".join(_apart(target, a, b)))


def _refuse_unknown(target: Target, hooks: Sequence[str], point: str | None) -> None:
    """Raise UserError for every unknown name, and for one hook that is named twice and has one method a point."""
    from hookflow.service.pipelines import no_point

    known = target.loaded.pipeline.hooks
    unknown, message = [name for name in hooks if name not in known], f"{target.name} has no hook"
    problems = [Problem(f'{message} "{name}"', hint=nearest_or_all(name, known, "it has")) for name in unknown]
    if point is not None and point not in target.plan.points:
        problems.append(no_point(target.plan.points, point))
    points = [binding.point for binding in target.plan.bindings if binding.hook == hooks[0]]
    if hooks[0] == hooks[1] and len(set(points)) == len(points):
        message = f"a hook fires neither before nor after itself, and {hooks[0]} has no two methods at one point"
        problems.append(Problem(message, hint="name two hooks"))
    if problems:
        raise UserError(problems)


def _explained(target: Target, a: str, answers: Sequence[Answer]) -> Iterator[str]:
    """Yield a block for each answer; points whose answers are the same share a block."""
    from hookflow.graph.why import clash

    plan = target.plan
    points: dict[tuple[str, ...], list[str]] = {}
    for answer in answers:
        first, then = _name(plan, answer.first), _name(plan, answer.then)
        order = f"{first} fires before {then}" if answer.first.hook == a else f"{then} fires after {first}"
        slots = clash(plan.points[answer.point], answer.first, answer.then) if answer.reason == "file" else ()
        block = [*_described(plan, answer, slots)]
        if not slots and target.run is None:  # a clash has its own advice, and a recorded plan cannot change
            block += _turning(target, answer)
        points.setdefault((order, *block), []).append(answer.point)
    for (order, *rest), at in points.items():
        yield "\n".join([textwrap.fill(f"at {', '.join(at)}: {order}", 80, subsequent_indent="   "), *rest])


def _described(plan: Plan, answer: Answer, slots: Sequence[str]) -> Iterator[str]:
    """Yield the reason of an answer in a sentence, then in detail; `slots` are those that both hooks touch."""
    from hookflow.graph.why import ways_to_state

    first, then = answer.first, answer.then
    yield f"  {_reason(plan, answer)}"
    yield from _edges(answer.path)
    if answer.reason == "file" and plan.shuffle is None:
        yield from columns([(name, plan.hook(name).where) for name in (first.hook, then.hook)], INDENT)
    if slots:
        yield f"  both touch {' and '.join(slots)}, so it may matter; to state which is right:"
        yield from (f"    {edge}" for edge in ways_to_state(first.hook, then.hook))
    for binding in (first, then):
        own = plan.hook(binding.hook).phase
        if binding.half != "exit" and binding.phase != own:
            yield f"  {binding.hook} is {own} by itself; its edges make it {binding.phase} here"
    if cycle := dict.fromkeys(edge for passed in answer.overruled for edge in plan.cycle(passed)):
        yield "  these flows form a cycle, so none of them counts:"
        yield from _edges(list(cycle))
    for passed in answer.overruled:
        edge = passed.edge
        if edge not in cycle:
            flow = f"{edge.first} writes {' and '.join(edge.slots)}, which {edge.then} reads"
            yield f"  {flow}; that would turn the order, but gives way to"
            yield from _edges(passed.against, edge.point)


def _reason(plan: Plan, answer: Answer) -> str:
    first, then = answer.first, answer.then
    if answer.reason == "edge":
        return "an edge says so" if len(answer.path) == 1 else f"{len(answer.path)} edges lead there"
    if answer.reason == "file":
        return f"nothing says so but {'the file' if plan.shuffle is None else f'the shuffle with seed {plan.shuffle}'}"
    if first.phase != then.phase:
        return f"no edge says so, but the phases do: {first.hook} is {first.phase}, {then.hook} is {then.phase}"
    if then.half == "exit":
        return f"no edge says so, but {then.method} is left after all other hooks of phase {then.phase}"
    return f"no edge says so, but {then.hook} must wait for a second half, and those come after the plain methods"


def _edges(edges: Sequence[Edge], point: str | None = None) -> list[str]:
    """Return a line for each edge with its source; edges of other points than `point`, if given, name theirs."""
    rows = []
    for edge in edges:
        at = f"at {edge.point}, " if point not in (None, edge.point) else ""
        source = edge.where
        if edge.kind == "flow":
            source = f"{' and '.join(edge.slots)}: {edge.first} writes, {edge.then} reads"
        elif edge.kind == "pair":
            alone = " (nothing but the order of the tables says so)" if edge.loose else ""
            source += f"{alone}, and what is entered first is left last"
        rows.append((f"{edge.first} → {edge.then}", f"{at}{source}"))
    return columns(rows, INDENT)


def _turning(target: Target, answer: Answer) -> Iterator[str]:
    """Yield the edge that turns the two hooks of an answer, or the edges that stand against it.

    Stated edges are in the answer already. For two exits of arounds the edge names the one that is entered first.
    """
    from hookflow.hooks.compile import compile_pipeline
    from hookflow.hooks.inspect import names_of
    from hookflow.hooks.registry import find_hook, find_without_import

    first, then = answer.first.hook, answer.then.hook
    stated = answer.path and all(edge.kind in ("file", "class") for edge in answer.path)
    if stated or first == then:
        return
    outer, inner = (first, then) if answer.first.half == answer.then.half == "exit" else (then, first)
    loaded = target.loaded
    hooks, node = loaded.pipeline.hooks, loaded.pipeline.hooks[inner]
    stated_after = list(node.after)
    if "after" not in node.model_fields_set:
        find = find_hook if target.imports else find_without_import
        with suppress(UserError):  # the files of a run may be gone
            stated_after = list(names_of(find(node.use, target.base, None), "after"))
    after = [*stated_after, outer]
    pipeline = loaded.pipeline.model_copy(update={"hooks": {**hooks, inner: node.model_copy(update={"after": after})}})
    names = ", ".join(map(json.dumps, after))
    other_way = f"  to fire {then} before {first}"
    try:
        changed = replace(loaded, pipeline=pipeline)
        turned = compile_pipeline(changed, target.base, target.plan.shuffle, imports=target.imports)
    except UserError as error:
        if not any(f"at {answer.point}" in problem.message for problem in error.problems):
            yield f'{other_way} here alone: {{ at = "{answer.point}", after = [{names}] }} in points of [hooks.{inner}]'
            return
        yield f"{other_way}, one of these must go:"
        steps = error.problems[0].hint.split("\n    ")
        yield from (f"    {step}" for step in steps if not re.match(f'"{outer}".* before "{inner}"', step))
        return
    place = {(b.hook, b.half, b.method): k for k, b in enumerate(turned.at(answer.point))}
    now, later = (place[b.hook, b.half, b.method] for b in (answer.first, answer.then))
    if later < now:
        yield f"{other_way}: after = [{names}] in [hooks.{inner}]"


def _apart(target: Target, a: str, b: str) -> Iterator[str]:
    """Yield the order in which the loop comes to two hooks that share no point."""
    from hookflow.graph.why import apart

    result = apart(target.plan, a, b, target.loaded.pipeline.run.validates.by_iterations)
    order = f"{result.first} fires before {result.then}" if result.first else "the loop reaches each in turn"
    seldom = " where both fire" if any(trigger for *_, trigger in result.rows) else ""
    often = f" in every {result.round}{seldom}" if result.round else ""
    yield f"{a} and {b} never meet: they share no point; {order}{often}"
    rows = (
        (point, hook, trigger or (f"in every {each}" if each else "")) for point, hook, each, trigger in result.rows
    )
    yield from columns([*rows], INDENT)
    for writer, reader, slots, left in result.handed:
        what = f": what it reads is the last {left}'s" if left else ""
        yield f"  {writer} writes {' and '.join(slots)}, which {reader} reads{what}"


def _name(plan: Plan, binding: Binding) -> str:
    """Return the hook, with the half of its `around`, or with its method if it has several at this point."""
    if binding.half != "whole":
        return f"{binding.hook} ({'entering' if binding.half == 'enter' else 'leaving'} {binding.method})"
    several = [other.hook for other in plan.at(binding.point)].count(binding.hook) > 1
    return f"{binding.hook} ({binding.method})" if several and binding.method else binding.hook
