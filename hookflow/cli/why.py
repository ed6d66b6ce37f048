"""`hookflow why`: explain why one hook fires before another."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hookflow.cli import complete
from hookflow.cli.options import NoImport, Only, Overrides, PipelineArgument, RunsFolder, Shuffle, Without
from hookflow.cli.output import echo
from hookflow.errors import UserError

if TYPE_CHECKING:
    from hookflow.graph.plan import Binding, Edge, GivenWay, Plan
    from hookflow.graph.why import Answer
    from hookflow.monitor.state import RunState
    from hookflow.service.pipelines import Target


class Turning:
    """The edges that would turn pairs of a pipeline. A recorded run cannot be changed."""

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
        if isinstance(turned, UserError) and not any(
            f"at {answer.point}" in problem.message for problem in turned.problems
        ):
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

    message = target.loaded.pipeline.hooks[hook]
    if "after" in message.model_fields_set:
        return list(message.after)
    return list(names_of(find_hook(message.use, target.loaded.source.parent, None), "after"))


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


class Measured:
    """The times of a run; a pipeline file has none."""

    def __init__(self, target: Target) -> None:
        self._target = target

    @cached_property
    def _state(self) -> RunState | None:
        from hookflow.monitor.feed import Live

        if self._target.run is None:
            return None
        live = Live(self._target.run)
        while live.poll():
            pass
        return live.state

    def lines(self, answer: Answer) -> Iterator[str]:
        """Yield what the two took, and that the one has waited for nothing, where nothing requires their order."""
        if self._state is None or answer.first.hook == answer.then.hook:
            return
        first, then = (self._state.timing(binding.id).total for binding in (answer.first, answer.then))
        took = f"{self._took(answer.first)}, ahead of {self._took(answer.then)}"
        free = answer.reason == "file" and first > then
        yield f"  in this run: {took}{'; nothing requires it' if free else ''}"

    def _took(self, binding: Binding) -> str:
        from hookflow.numbers import ms, rough

        assert self._state is not None
        timing = self._state.timing(binding.id)
        took = f"{ms(timing.total)} ms" if timing.total < 1e9 else f"{rough(timing.total / 1e9)} s"
        return f"{binding.hook}, {took} in {timing.count:,} firing{'s' * (timing.count != 1)}"


def why(
    a: Annotated[str, typer.Argument(metavar="A", help="A hook's name.", autocompletion=complete.hooks)],
    b: Annotated[str, typer.Argument(metavar="B", help="The name of another.", autocompletion=complete.hooks)],
    pipeline: PipelineArgument = None,
    point: Annotated[
        str | None, typer.Option(metavar="POINT", help="Ask of this point alone.", autocompletion=complete.points)
    ] = None,
    set_: Overrides = None,
    without: Without = None,
    only: Only = None,
    shuffle: Shuffle = None,
    no_import: NoImport = False,
    dir: RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Say why hook A fires before hook B, or after it.

    At each point where both are bound it is the edges that lead from one to the other, each with its source; or the
    phases, or nothing but their order in the file; and the edge that would turn the two. Of hooks that share no point
    the loop decides. For a run it includes the time of both. Without a pipeline it is the only one here or in
    pipelines/, or the only one that has both hooks.

    Example: `hookflow why ema checkpoint pipelines/cifar.toml`
    """
    from hookflow.graph.why import precedence
    from hookflow.service.pipelines import open_target, warn_unknown

    target = open_target(
        pipeline,
        (a, b),
        set_ or (),
        without=without or (),
        only=only or (),
        shuffle=shuffle,
        imports=not no_import,
        runs=dir,
    )
    _refuse_unknown(target, (a, b), point)
    plan = target.plan
    warn_unknown(plan)
    off = [name for name in (a, b) if name not in {hook.name for hook in plan.hooks}]
    if off:
        for name in off:
            place = target.loaded.places.of(f"hooks.{name}.enabled")
            echo(f"{name} fires nowhere: it is switched off ({place.at_line})")
        return
    answers = precedence(plan, a, b)
    result = [answer for answer in answers if point in (None, answer.point)]
    if result:
        echo("\n\n".join(_folded(plan, a, result, Turning(target), Measured(target))))
    else:
        echo("\n".join(_never(plan, a, b, point) if answers else _apart(target, a, b)))


def _refuse_unknown(target: Target, hooks: Sequence[str], point: str | None) -> None:
    """Raise UserError for every name that the pipeline does not know."""
    from hookflow.errors import Problem, UserError, nearest_or_all
    from hookflow.service.pipelines import no_point

    known = target.loaded.pipeline.hooks
    problems = [
        Problem(f'{target.name} has no hook "{name}"', hint=nearest_or_all(name, known, "it has"))
        for name in hooks
        if name not in known
    ]
    if point is not None and point not in target.plan.points:
        problems.append(no_point(target.plan.points, point))
    if hooks[0] == hooks[1] and not _stands_twice(target.plan, hooks[0]):
        message = f"a hook fires neither before nor after itself, and {hooks[0]} has no two methods at one point"
        problems.append(Problem(message, hint="name two hooks"))
    if problems:
        raise UserError(problems)


def _stands_twice(plan: Plan, hook: str) -> bool:
    points = [binding.point for binding in plan.bindings if binding.hook == hook]
    return len(set(points)) < len(points)


def _folded(plan: Plan, a: str, answers: Sequence[Answer], turning: Turning, measured: Measured) -> Iterator[str]:
    """Yield the answers, those that differ in nothing but the point as one."""
    points: dict[tuple[str, ...], list[str]] = {}
    for answer in answers:
        block = [*_described(plan, answer), *measured.lines(answer)]
        if answer.reason != "file" or not _touched(plan, answer):  # which has its own advice
            block += turning.lines(answer)
        points.setdefault((_order(plan, answer, a), *block), []).append(answer.point)
    for (order, *rest), at in points.items():
        yield "\n".join([textwrap.fill(f"at {', '.join(at)}: {order}", 80, subsequent_indent="   "), *rest])


def _order(plan: Plan, answer: Answer, a: str) -> str:
    """Return which of the two is the first, as seen from hook `a`."""
    first, then = _name(plan, answer.first), _name(plan, answer.then)
    return f"{first} fires before {then}" if answer.first.hook == a else f"{then} fires after {first}"


def _described(plan: Plan, answer: Answer) -> Iterator[str]:
    """Yield what is to be said of an answer beside its point and order: the reason in a sentence, then in detail."""
    first, then = answer.first, answer.then
    yield f"  {_reason(plan, answer)}"
    yield from _table([(f"{edge.first} → {edge.then}", _source(edge)) for edge in answer.path])
    if answer.reason == "file":
        if plan.shuffle is None:
            yield from _table([(name, plan.hook(name).where) for name in (first.hook, then.hook)])
        yield from _advice(plan, answer)
    yield from (line for binding in (first, then) for line in _moved(plan, binding))
    if circular := dict.fromkeys(edge for provided in answer.overruled for edge in plan.circle(provided)):
        yield "  these flows go in a circle, so none of them counts:"
        yield from _table([(f"{edge.first} → {edge.then}", _source(edge)) for edge in circular])
    for passed in answer.overruled:
        if passed.edge not in circular:
            yield from _overruled(passed)


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


def _source(edge: Edge) -> str:
    """Return where an edge comes from, in full."""
    match edge.kind:
        case "flow":
            return f"{' and '.join(edge.slots)}: {edge.first} writes, {edge.then} reads"
        case "pair":
            alone = " (nothing but the order of the tables says so)" if edge.loose else ""
            return f"{edge.where}{alone}, and what is entered first is left last"
        case _:
            return edge.where


def _advice(plan: Plan, answer: Answer) -> Iterator[str]:
    from hookflow.graph.why import ways_to_state

    if both := _touched(plan, answer):
        yield f"  both touch {' and '.join(both)}, so it may matter; to state which is right:"
        yield from (f"    {path}" for path in ways_to_state(answer.first.hook, answer.then.hook))


def _touched(plan: Plan, answer: Answer) -> tuple[str, ...]:
    from hookflow.graph.why import clash

    return clash(plan.points[answer.point], answer.first, answer.then)


def _moved(plan: Plan, binding: Binding) -> Iterator[str]:
    """Say that an edge has moved a binding out of its hook's own phase."""
    own = plan.hook(binding.hook).phase
    if binding.half != "exit" and binding.phase != own:
        yield f"  {binding.hook} is {own} by itself; its edges make it {binding.phase} here"


def _overruled(given_way: GivenWay) -> Iterator[str]:
    edge = given_way.edge
    slots = " and ".join(edge.slots)
    to = " to" if given_way.against else ": it is one of very many flows that contradict others"
    yield f"  {edge.first} writes {slots}, which {edge.then} reads; that would turn the order, but gives way{to}"
    steps = [(step, f"at {step.point}, " * (step.point != edge.point)) for step in given_way.against]
    yield from _table([(f"{step.first} → {step.then}", f"{at}{_source(step)}") for step, at in steps])


def _never(plan: Plan, a: str, b: str, point: str | None) -> Iterator[str]:
    yield f"{a} and {b} never meet at {point}"
    for name in (a, b):
        points = dict.fromkeys(binding.point for binding in plan.bindings if binding.hook == name)
        at = ", ".join(points)
        yield textwrap.fill(f"{name} fires at {at}", 78, initial_indent="    ", subsequent_indent="        ")


def _apart(target: Target, a: str, b: str) -> Iterator[str]:
    """Say of hooks that share no point what the loop decides."""
    from hookflow.graph.why import apart

    result = apart(target.plan, a, b, target.loaded.pipeline.run.validates.unit == "it")
    order = f"{result.first} fires before {result.then}" if result.first else "the loop comes to them by turns"
    often = f" in every {result.round}" if result.round else ""
    yield f"{a} and {b} never meet: they share no point; {order}{often}"
    yield from _columns([(point, hook, f"in every {each}" if each else "") for point, hook, each in result.rows])
    for writer, reader, slots, left in result.handed:
        what = f": what it reads is the last {left}'s" if left else ""
        yield f"  {writer} writes {' and '.join(slots)}, which {reader} reads{what}"


def _name(plan: Plan, binding: Binding) -> str:
    """Return the hook, and which half of an `around` it is; or which method, if it has several at this point."""
    twice = [other.hook for other in plan.at(binding.point)].count(binding.hook) > 1
    whole = f" ({binding.method})" if twice and binding.method else ""
    halves = {"whole": whole, "enter": f" (entering {binding.method})", "exit": f" (leaving {binding.method})"}
    return f"{binding.hook}{halves[binding.half]}"


def _table(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    return _columns(rows)


def _columns(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ("    " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
