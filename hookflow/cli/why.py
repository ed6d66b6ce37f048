"""`hookflow why`: explain why one hook fires before another."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hookflow.cli import options
from hookflow.cli.output import columns, echo
from hookflow.errors import Problem, UserError, nearest_or_all
from hookflow.pipeline.groups import group_name, is_group, missing_group

if TYPE_CHECKING:
    from hookflow.graph.plan import Binding, Edge, Plan
    from hookflow.graph.why import OrderAnswer
    from hookflow.service.pipelines import Target

TEXT_INDENT = "    "


_point_option = typer.Option(
    metavar="POINT", help="Answer for this point only.", autocompletion=options.complete_points
)


def why(
    a: Annotated[
        str,
        options.argument("A", "A hook's name, or group:NAME.", options.complete_hooks_and_groups),
    ],
    b: Annotated[
        str,
        options.argument(
            "B", "Another hook's name, or group:NAME.", options.complete_hooks_and_groups
        ),
    ],
    pipeline: options.PipelineArgument = None,
    point: Annotated[str | None, _point_option] = None,
    set_: options.Overrides = None,
    without: options.Without = None,
    only: options.Only = None,
    shuffle: options.Shuffle = None,
    no_import: options.NoImport = False,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Say why hook A fires before hook B, or after it.

    At each point where both fire, it is the edges that lead from one to the other, each with its
    source; else the phases, or the order in the file. The edge that would reverse the order is
    named, too. For hooks that share no point it is the loop. A group means each of its hooks that
    meets the other. Without a pipeline it is the only one here or in pipelines/.

    Example: `hookflow why ema checkpoint pipelines/cifar.toml`
    """
    from hookflow.service.pipelines import open_target, warn_unknown

    target = open_target(
        pipeline,
        set_ or (),
        without=without or (),
        only=only or (),
        shuffle=shuffle,
        imports=not no_import,
        runs=dir,
    )
    pairs = list(product(_list_members(target, a), _list_members(target, b)))
    if is_group(a) or is_group(b):
        pairs = [(first, then) for first, then in pairs if first != then]
    for pair in pairs:
        _check_names(target, pair, point)
    warn_unknown(target.plan)
    if not pairs:
        raise UserError(
            Problem(f"{a} and {b} have no two hooks", hint="name two hooks, or another group")
        )
    if len(pairs) == 1:
        echo(_format_answer(target, *pairs[0], point))
        return
    meeting = [pair for pair in pairs if _have_common_point(target.plan, *pair, point)]
    if not meeting:
        where = "at any point"
        if point is not None:
            where = f"at {point}"
        echo(f"no hook of {a} meets one of {b} {where}")
        return
    echo("\n\n".join(_format_answer(target, *pair, point) for pair in meeting))


def _list_members(target: Target, name: str) -> tuple[str, ...]:
    """Return the hooks that a name means: itself, or those of a group.

    Raises UserError for an unknown group.
    """
    if not is_group(name):
        return (name,)
    groups = target.plan.groups_by_name
    group = groups.get(group_name(name))
    if group is None:
        raise UserError(missing_group(group_name(name), groups, None, "there was asked for"))
    return group.members


def _have_common_point(plan: Plan, a: str, b: str, point: str | None) -> bool:
    """Return whether two hooks fire at one point: at this one, if it is given."""
    shared = set(_list_points(plan, a)) & set(_list_points(plan, b))
    if point is None:
        return bool(shared)
    return point in shared


def _list_points(plan: Plan, hook: str) -> list[str]:
    """Return the point of each binding of a hook, in the order of a run."""
    return [binding.point for binding in plan.bindings if binding.hook == hook]


def _format_answer(target: Target, a: str, b: str, point: str | None) -> str:
    """Return why two hooks fire in the order in which they do, as a text of several lines."""
    from hookflow.graph.why import find_precedence

    plan = target.plan
    disabled = [name for name in dict.fromkeys((a, b)) if name not in plan.hooks_by_name]
    if disabled:
        lines = []
        for name in disabled:
            place = target.loaded.places.of(f"hooks.{name}.enabled").at_line
            lines.append(f"{name} fires nowhere: it is switched off ({place})")
        return "\n".join(lines)
    answers = find_precedence(plan, a, b)
    here = [answer for answer in answers if point in (None, answer.point)]
    if here:
        return "\n\n".join(_format_answers(target, a, here))
    if not answers:
        return "\n".join(_without_common_point(target, a, b))
    lines = [f"{a} and {b} never meet at {point}"]
    for name in (a, b):
        points = dict.fromkeys(_list_points(plan, name))  # each once
        text = f"{name} fires at {', '.join(points)}"
        lines.append(
            textwrap.fill(text, 78, initial_indent=TEXT_INDENT, subsequent_indent=2 * TEXT_INDENT)
        )
    return "\n".join(lines)


def _check_names(target: Target, hooks: Sequence[str], point: str | None) -> None:
    """Raise UserError for every unknown name.

    One hook that is named twice and has one method a point is refused, too.
    """
    from hookflow.service.pipelines import no_point

    known = target.loaded.pipeline.hooks
    problems = []
    for name in hooks:
        if name not in known:
            hint = nearest_or_all(name, known, "it has")
            problems.append(Problem(f'{target.name} has no hook "{name}"', hint=hint))
    if point is not None and point not in target.plan.points:
        problems.append(no_point(target.plan.points, point))
    points = _list_points(target.plan, hooks[0])
    if hooks[0] == hooks[1] and len(set(points)) == len(points):
        message = (
            f"a hook fires neither before nor after itself, and {hooks[0]} has no two methods at"
            " one point"
        )
        problems.append(Problem(message, hint="name two hooks"))
    if problems:
        raise UserError(problems)


def _format_answers(target: Target, a: str, answers: Sequence[OrderAnswer]) -> Iterator[str]:
    """Yield a block for each answer; points whose answers are the same share a block."""
    from hookflow.graph.why import find_clashing_slots

    plan = target.plan
    points: dict[tuple[str, ...], list[str]] = {}
    for answer in answers:
        first = _name(plan, answer.first)
        then = _name(plan, answer.then)
        if answer.first.hook == a:
            order = f"{first} fires before {then}"
        else:
            order = f"{then} fires after {first}"
        slots: tuple[str, ...] = ()
        if answer.reason == "file":
            slots = find_clashing_slots(plan.points[answer.point], answer.first, answer.then)
        block = [order, *_describe_reason(plan, answer, slots)]
        # A clash has its own advice, and the order in a recorded plan cannot change.
        if not slots and target.run is None:
            block += _list_turning_edges(target, answer)
        points.setdefault(tuple(block), []).append(answer.point)
    for (order, *details), points_of_block in points.items():
        head = textwrap.fill(
            f"at {', '.join(points_of_block)}: {order}", 80, subsequent_indent="   "
        )
        yield "\n".join([head, *details])


def _describe_reason(plan: Plan, answer: OrderAnswer, slots: Sequence[str]) -> Iterator[str]:
    """Yield the reason of an answer in a sentence, then in detail.

    `slots` are those that both hooks touch.
    """
    from hookflow.graph.why import make_order_statements

    first = answer.first
    then = answer.then
    yield f"  {_format_reason(plan, answer)}"
    yield from _edges(plan, answer.path)
    if answer.reason == "file" and plan.shuffle is None:
        places = [
            (first.hook, plan.hook(first.hook).where),
            (then.hook, plan.hook(then.hook).where),
        ]
        yield from columns(places, TEXT_INDENT)
    if slots:
        yield f"  both touch {' and '.join(slots)}, so it may matter; to state which is right:"
        for statement in make_order_statements(first.hook, then.hook):
            yield f"    {statement}"
    for binding in (first, then):
        own = plan.hook(binding.hook).phase
        if binding.half != "exit" and binding.phase != own:
            yield f"  {binding.hook} is {own} by itself; its edges make it {binding.phase} here"
    cycle: dict[Edge, None] = {}
    for dropped in answer.dropped:
        cycle |= dict.fromkeys(dropped.cycle)
    if cycle:
        yield "  these flows form a cycle, so none of them counts:"
        yield from _edges(plan, list(cycle))
    for dropped in answer.dropped:
        edge = dropped.edge
        if edge not in cycle:
            flow = f"{edge.first} writes {' and '.join(edge.slots)}, which {edge.then} reads"
            yield f"  {flow}; that would turn the order, but gives way to"
            yield from _edges(plan, dropped.against, edge.point)


def _format_reason(plan: Plan, answer: OrderAnswer) -> str:
    first = answer.first
    then = answer.then
    if answer.reason == "edge" and len(answer.path) == 1:
        return "an edge says so"
    if answer.reason == "edge":
        return f"{len(answer.path)} edges lead there"
    if answer.reason == "file" and plan.shuffle is None:
        return "nothing says so but the file"
    if answer.reason == "file":
        return f"nothing says so but the shuffle with seed {plan.shuffle}"
    if first.phase != then.phase:
        return (
            f"no edge says so, but the phases do: {first.hook} is {first.phase}, {then.hook} is"
            f" {then.phase}"
        )
    if then.half == "exit":
        return (
            f"no edge says so, but {then.method} is left after all other hooks of phase"
            f" {then.phase}"
        )
    return (
        f"no edge says so, but {then.hook} must wait for a second half, and those come after the"
        " plain methods"
    )


def _with_group(plan: Plan, edge: Edge) -> str:
    """Return the place of an edge, and of the group by which it was stated."""
    group = plan.groups_by_name.get(edge.group)
    if group is None:
        return edge.where
    return f"{edge.where}, which names group:{group.name} ({group.where})"


def _edges(plan: Plan, edges: Sequence[Edge], point: str | None = None) -> list[str]:
    """Return a line for each edge with its source.

    Edges of other points than `point`, if given, name theirs.
    """
    rows = []
    for edge in edges:
        source = _with_group(plan, edge)
        if edge.kind == "flow":
            source = f"{' and '.join(edge.slots)}: {edge.first} writes, {edge.then} reads"
        elif edge.kind == "nesting":
            if edge.loose:
                source += " (nothing but the order of the tables says so)"
            source += ", and what is entered first is left last"
        if point not in (None, edge.point):
            source = f"at {edge.point}, {source}"
        rows.append((f"{edge.first} → {edge.then}", source))
    return columns(rows, TEXT_INDENT)


def _list_turning_edges(target: Target, answer: OrderAnswer) -> Iterator[str]:
    """Yield the edge that turns the two hooks of an answer, or the edges that stand against it.

    Stated edges are in the answer already. For two exits of arounds the edge names the one that is
    entered first.
    """
    from hookflow.hooks.compile import compile_pipeline

    first = answer.first.hook
    then = answer.then.hook
    stated = answer.path and all(edge.kind in ("file", "class") for edge in answer.path)
    if stated or first == then:
        return
    outer = then
    inner = first
    if answer.first.half == answer.then.half == "exit":
        outer = first
        inner = then
    hooks = target.loaded.pipeline.hooks
    after = [*_list_stated_predecessors(target, inner), outer]
    table = hooks[inner].model_copy(update={"after": after})
    pipeline = target.loaded.pipeline.model_copy(update={"hooks": {**hooks, inner: table}})
    names = ", ".join(json.dumps(name) for name in after)
    other_way = f"  to fire {then} before {first}"
    try:
        changed = replace(target.loaded, pipeline=pipeline)
        turned = compile_pipeline(changed, target.base, target.plan.shuffle, imports=target.imports)
    except UserError as error:
        if not any(f"at {answer.point}" in problem.message for problem in error.problems):
            yield (
                f'{other_way} here alone: {{ at = "{answer.point}", after = [{names}] }} in points'
                f" of [hooks.{inner}]"
            )
            return
        yield f"{other_way}, one of these must go:"
        for step in error.problems[0].hint.split("\n    "):
            if not re.match(f'"{outer}".* before "{inner}"', step):
                yield f"    {step}"
        return
    if _row(turned, answer.then) < _row(turned, answer.first):
        yield f"{other_way}: after = [{names}] in [hooks.{inner}]"


def _list_stated_predecessors(target: Target, hook: str) -> list[str]:
    """Return the hooks after which one fires by its own statement.

    It states them in the file, else in its class.
    """
    from hookflow.hooks.inspect import names_of
    from hookflow.hooks.registry import find_hook, find_without_import

    node = target.loaded.pipeline.hooks[hook]
    if "after" in node.model_fields_set:
        return list(node.after)
    find = find_without_import
    if target.imports:
        find = find_hook
    with suppress(UserError):  # the files of a run may be gone
        return list(names_of(find(node.use, target.base, None), "after"))
    return list(node.after)


def _row(plan: Plan, binding: Binding) -> int:
    """Return the place at which a plan fires a binding of another plan of the same hooks.

    It is the place among those of the binding's point.
    """
    keys = [(other.hook, other.half, other.method) for other in plan.at(binding.point)]
    return keys.index((binding.hook, binding.half, binding.method))


def _without_common_point(target: Target, a: str, b: str) -> Iterator[str]:
    """Yield the order in which the loop comes to two hooks that share no point."""
    from hookflow.graph.why import loop_order

    result = loop_order(target.plan, a, b, target.loaded.pipeline.run.validates.by_iterations)
    order = "the loop reaches each in turn"
    if result.first:
        order = f"{result.first} fires before {result.then}"
    if result.round:
        order += f" in every {result.round}"
        if any(place.trigger for place in result.places):
            order += " where both fire"
    yield f"{a} and {b} never meet: they share no point; {order}"
    rows = []
    for place in result.places:
        when = place.trigger
        if not when and place.round:
            when = f"in every {place.round}"
        rows.append((place.point, place.hook, when))
    yield from columns(rows, TEXT_INDENT)
    for handover in result.handovers:
        line = (
            f"  {handover.writer} writes {' and '.join(handover.slots)}, which {handover.reader}"
            " reads"
        )
        if handover.stale_round:
            line += f": what it reads is the last {handover.stale_round}'s"
        yield line


def _name(plan: Plan, binding: Binding) -> str:
    """Return the hook, with the half of its `around`.

    If it has several methods at this point, its method is named, too.
    """
    if binding.half == "enter":
        return f"{binding.hook} (entering {binding.method})"
    if binding.half == "exit":
        return f"{binding.hook} (leaving {binding.method})"
    methods_here = [other for other in plan.at(binding.point) if other.hook == binding.hook]
    if len(methods_here) > 1 and binding.method:
        return f"{binding.hook} ({binding.method})"
    return binding.hook
