"""`hookflow graph`: draw the hooks of each point in their order, with the reasons.

For a run it draws where the time goes.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from hookflow.cli import options
from hookflow.cli.output import as_json, echo, write_file
from hookflow.errors import Problem, UserError, Where, nearest_or_all
from hookflow.graph.plan import EdgeKind, Plan
from hookflow.numbers import duration, format_count, format_percent
from hookflow.pipeline.groups import group_name, is_group, missing_group

if TYPE_CHECKING:
    from hookflow.events.rundir import RunDir
    from hookflow.graph.filters import PlanFilter
    from hookflow.monitor.hook_costs import CallCost
    from hookflow.service.iteration_times import IterationTimes
    from hookflow.service.pipelines import Target


Format = Literal["text", "mermaid", "dot", "svg", "html", "json"]
"""How a plan is drawn."""

GANTT_HELP = (
    "For a run: bars of a traced iteration, N or that of median length; without a trace median is"
    " the mean."
)
BACKGROUND_SHARE = "what an iteration has of it are its copies, and the waits for room in its queue"
WHAT_IF_HELP = (
    "For a run: the mean iteration without this hook, or group:NAME, computed from the times of its"
    " calls."
)

BY_SUFFIX: dict[str, Format] = {f".{format_}": format_ for format_ in get_args(Format)}
BY_SUFFIX |= {".txt": "text", ".mmd": "mermaid", ".gv": "dot"}


FORMAT_HELP = "Output format; by the suffix of --out, else text."
POINT_HELP = "Draw only this point, e.g. after_train_iter. Repeatable."
HOOK_HELP = "Draw only this hook, or group:NAME, and those that it has edges with."
ANCESTORS_HELP = "Draw only what must fire before this hook, or before group:NAME."
DESCENDANTS_HELP = "Draw only what must fire after this hook, or after group:NAME."
SLOT_HELP = "Draw only hooks that read or write this slot, e.g. metrics. Repeatable."
KIND_HELP = "Draw only edges of this kind, and the hooks that have one."
COLLAPSE_HELP = "Draw this group of hooks as one box. Repeatable."
CHAIN_HELP = "For a run: phases and hooks of the mean iteration, with times."
OUT_HELP = "Write to a file, not to the terminal."


def _hook_option(sentence: str) -> Any:
    """Return the declaration of an option that takes a hook or a group."""
    return typer.Option(
        metavar="HOOK", help=sentence, autocompletion=options.complete_hooks_and_groups
    )


_point_option = typer.Option(
    metavar="POINT", help=POINT_HELP, autocompletion=options.complete_points
)


def graph(
    target: options.PipelineOrRun,
    format_: Annotated[Format | None, typer.Option("--format", "-f", help=FORMAT_HELP)] = None,
    point: Annotated[list[str] | None, _point_option] = None,
    hook: Annotated[str | None, _hook_option(HOOK_HELP)] = None,
    ancestors: Annotated[str | None, _hook_option(ANCESTORS_HELP)] = None,
    descendants: Annotated[str | None, _hook_option(DESCENDANTS_HELP)] = None,
    slot: Annotated[list[str] | None, typer.Option(metavar="SLOT", help=SLOT_HELP)] = None,
    kind: Annotated[EdgeKind | None, typer.Option(help=KIND_HELP)] = None,
    collapse: Annotated[list[str] | None, typer.Option(metavar="GROUP", help=COLLAPSE_HELP)] = None,
    collapse_groups: Annotated[
        bool, typer.Option("--collapse-groups", help="Draw every group as one box.")
    ] = False,
    critical_chain: Annotated[bool, typer.Option("--critical-chain", help=CHAIN_HELP)] = False,
    gantt: Annotated[
        str | None, typer.Option("--gantt", metavar="N|median", help=GANTT_HELP)
    ] = None,
    what_if: Annotated[str | None, _hook_option(WHAT_IF_HELP)] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help=OUT_HELP)] = None,
    set_: options.Overrides = None,
    without: options.Without = None,
    only: options.Only = None,
    shuffle: options.Shuffle = None,
    no_import: options.NoImport = False,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Draw which hooks fire at which points, in what order, and why.

    Where the test repeats the validation, the text says so once, and `--point` draws it.

    For a run, draw the plan recorded at its start, with the hooks that have been switched off
    since; text, svg and html have what each hook took. `--critical-chain` and `--gantt` show where
    the time of an iteration goes, and `--what-if` what it would be without a hook.
    """
    from hookflow.service.pipelines import open_target, warn_unknown

    chosen = _choose_format(format_, out)
    opened = open_target(
        target,
        set_ or (),
        without=without or (),
        only=only or (),
        shuffle=shuffle,
        imports=not no_import,
        runs=dir,
    )
    if critical_chain or gantt is not None or what_if is not None:
        lines = _format_iteration(opened, critical_chain, gantt, what_if)
        if out is None:
            echo("\n".join(lines))
        else:
            write_file(out, "\n".join([*lines, ""]))
        return
    plan = opened.plan
    if opened.run is not None:
        plan = replace(plan, off=_list_switched_off(opened.run))
    warn_unknown(plan)
    names = _FilterNames(
        points=list(dict.fromkeys(point or ())),
        hook=hook,
        ancestors=ancestors,
        descendants=descendants,
        slots=slot or (),
        kind=kind,
    )
    part, title = _narrow_plan(plan, names)
    part = _collapse_groups(part, collapse or (), collapse_groups, chosen)
    colour = out is None and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    drawing = _draw_plan(opened, part, title, chosen, colour)
    if out is None:
        echo(drawing, coloured=colour)
    else:
        write_file(out, drawing + "\n")


def _format_iteration(
    opened: Target, critical_chain: bool, gantt: str | None, what_if: str | None
) -> list[str]:
    """Return where the time of an iteration goes.

    Raises UserError for a pipeline that has not run.
    """
    if opened.run is None:
        option = "--what-if"
        if critical_chain:
            option = "--critical-chain"
        elif gantt is not None:
            option = "--gantt"
        hint = "name a run: its id, its name or its folder"
        raise UserError(
            Problem(f"{opened.name} is a pipeline, and only a run has times", Where(option), hint)
        )
    parts = []
    if critical_chain:
        parts.append(_chain_lines(opened.name, opened.run, opened.plan))
    if gantt is not None:
        parts.append(_format_gantt(opened.name, opened.run, opened.plan, gantt))
    if what_if is not None:
        parts.append(_format_what_if(opened, opened.run, what_if))
    lines = parts[0]
    for part in parts[1:]:
        lines += ["", *part]
    return lines


def _chain_lines(name: str, run: RunDir, plan: Plan) -> list[str]:
    """Return the mean iteration as a list of phases and hooks."""
    from hookflow.graph.render.timeline import draw_chain
    from hookflow.service.iteration_times import read_mean_times

    times = read_mean_times(run, plan)
    lines = [f"{name}: {_format_means_heading(times)}", "", *draw_chain(times.spans, times.total)]
    if times.background:
        names = ", ".join(times.background)
        lines += ["", f"beside the training: {names}; {BACKGROUND_SHARE}"]
    return lines


def _format_gantt(name: str, run: RunDir, plan: Plan, wanted: str) -> list[str]:
    """Return an iteration as bars: the one of a number, or "median".

    Raises UserError for anything else.
    """
    from hookflow.graph.render.timeline import draw_gantt
    from hookflow.service.iteration_times import read_mean_times, read_traced_times

    if wanted != "median" and not wanted.isdecimal():
        hint = "write --gantt median, or the number of a traced iteration"
        raise UserError(Problem(f'"{wanted}" is no iteration', Where("--gantt"), hint))
    if wanted == "median":
        iteration = None
    else:
        iteration = int(wanted)
    times = read_traced_times(run, iteration) or read_mean_times(run, plan)
    heading = _format_means_heading(times)
    if iteration is not None:
        heading = f"iteration {times.iteration:,}: {duration(times.total)}"
    elif times.iteration:
        traced = format_count(times.num_iterations, "traced iteration")
        heading = f"iteration {times.iteration:,}, the median of {traced}: {duration(times.total)}"
    width = max(40, shutil.get_terminal_size().columns)
    return [f"{name}: {heading}", "", *draw_gantt(times.spans, times.total, width)]


def _format_what_if(opened: Target, run: RunDir, hook: str) -> list[str]:
    """Return the mean iteration without a hook, and how to measure it.

    Raises UserError for an unknown hook.
    """
    from hookflow.graph.render.timeline import draw_chain
    from hookflow.service.iteration_times import read_mean_times, without_hooks

    hooks = _find_hooks(opened.plan, hook, "--what-if")
    times = read_mean_times(run, opened.plan)
    rest = without_hooks(times, hooks)
    saved = times.total - rest.total
    share = format_percent(saved / times.total)
    lines = [
        f"{opened.name}: {_format_means_heading(times)}",
        f"without {hook}: {duration(rest.total)}, {duration(saved)} less ({share} %)",
        "",
        *draw_chain(rest.spans, rest.total),
        "",
    ]
    timed = {span.name for span in times.spans if span.point}
    for each in hooks:
        if each in times.background:
            lines.append(f"{each} fires beside the training: {BACKGROUND_SHARE}")
        elif each not in timed:
            lines.append(f"{each}: no call of it is known to be in an iteration alone")
    lines.append(
        "computed from its calls in the training thread; what else depends on it is as before"
    )
    lines.append(_describe_measurement(opened, run, hooks, hook, min(times.num_iterations, 100)))
    return lines


def _describe_measurement(
    opened: Target, run: RunDir, hooks: Sequence[str], hook: str, iterations: int
) -> str:
    """Return how the time without a hook is measured, in a rerun of so many iterations.

    A loop of one's own cannot be done again by a command.
    """
    from hookflow.events.rundir import run_argument

    if opened.loaded.is_attached:
        keys = " and ".join(f"hooks.{each}.enabled = false" for each in hooks)
        return (
            f"measured by: your program with {keys}, and hookflow graph --critical-chain of its run"
        )
    command = f"hookflow rerun {run_argument(run)} --at 1 --for {iterations} --without {hook}"
    return (
        f"measured by: {command}, and hookflow graph --critical-chain of the folder that it prints"
    )


def _format_means_heading(times: IterationTimes) -> str:
    heading = f"mean of {format_count(times.num_iterations, 'iteration')}: {duration(times.total)}"
    if times.has_part:
        heading += ", with part of one that did not end"
    return heading


def _choose_format(format_: Format | None, out: Path | None) -> Format:
    """Return the format that is stated, or that the name of the file says.

    Raises UserError if neither does.
    """
    if format_ is not None:
        return format_
    if out is None:
        return "text"
    by_name = BY_SUFFIX.get(out.suffix.lower())
    if by_name is None:
        hint = (
            f"name a format with --format, or end the file's name in one of {', '.join(BY_SUFFIX)}"
        )
        raise UserError(
            Problem(
                "the name of the file does not say in which format to draw", Where(str(out)), hint
            )
        )
    return by_name


def _draw_plan(opened: Target, plan: Plan, title: str, chosen: Format, colour: bool) -> str:
    from hookflow.graph.render.html import as_html
    from hookflow.graph.render.svg import as_svg
    from hookflow.graph.render.text import as_dot, as_mermaid

    if chosen == "json":
        return as_json(plan.to_json())
    if chosen == "mermaid":
        return as_mermaid(plan, title)
    if chosen == "dot":
        return as_dot(plan, title)
    if chosen == "text":
        return _draw_text(opened, plan, title, colour)
    times = _format_times(opened.run, plan, _in_words)
    if chosen == "svg":
        return as_svg(plan, title, times)
    return as_html(plan, title, times)


def _draw_text(opened: Target, plan: Plan, title: str, colour: bool) -> str:
    """Return the plan as text.

    Points of the test that repeat the validation are left out, unless they have times.
    """
    from hookflow.graph.collapse import describe_repeats, find_repeats, without_points
    from hookflow.graph.render.text import as_text

    width = max(40, shutil.get_terminal_size().columns)
    times = _format_times(opened.run, plan)
    remark = ""
    if not times:
        repeats = find_repeats(plan)
        plan = without_points(plan, [repeat.point for repeat in repeats])
        remark = describe_repeats(repeats)
    return as_text(plan, title, width, colour, times, remark)


def _format_times(
    run: RunDir | None, plan: Plan, written: Callable[[CallCost, bool], str] | None = None
) -> dict[int, str]:
    """Return what the bindings took in the last attempt of a run, as `written`, else in columns.

    A box of several bindings has none: their medians cannot be added.
    """
    if run is None:
        return {}
    from hookflow.monitor.feed import LogFollower
    from hookflow.monitor.hook_costs import cost_columns, format_costs

    live = LogFollower(run, kept=True)
    live.read_all()
    single = [binding for binding in plan.bindings if binding.id not in plan.collapsed_by_id]
    return format_costs(live.state, replace(plan, bindings=tuple(single)), written or cost_columns)


def _in_words(cost: CallCost, has_device: bool) -> str:
    words = f"{cost.count:,} × {duration(cost.median or 0.0)}"
    if has_device and cost.device:
        words += f", {duration(cost.device)} on the device"
    if cost.share is not None:
        words += f", {format_percent(cost.share)} % of iterations"
    return words


def _list_switched_off(run: RunDir) -> tuple[tuple[str, int], ...]:
    """Return the hooks of a run that were switched off, and the iterations done then.

    A command or an error has done it.
    """
    from hookflow.monitor.summary import read_run_summary

    return tuple(read_run_summary(run, time.time()).state.disabled.items())


def _collapse_groups(plan: Plan, names: Sequence[str], all_groups: bool, chosen: Format) -> Plan:
    """Return the plan with the named groups, or all, as boxes.

    Raises UserError for an unknown group, and for JSON.
    """
    from hookflow.graph.collapse import collapse_groups

    if not names and not all_groups:
        return plan
    if chosen == "json":
        hint = "leave the option out: the plan has its groups under `groups`"
        raise UserError(Problem("JSON has every hook of a group", Where("--collapse"), hint))
    groups = [plan.groups_by_name[_find_group(plan, name, "--collapse")] for name in names]
    if all_groups:
        groups = list(plan.groups)
    return collapse_groups(plan, groups)


def _find_group(plan: Plan, written: str, option: str) -> str:
    """Return the name of a group. Raises UserError if there is none."""
    name = group_name(written)
    if name not in plan.groups_by_name:
        raise UserError(missing_group(name, plan.groups_by_name, Where(option), f"{option} names"))
    return name


@dataclass(frozen=True, slots=True)
class _FilterNames:
    """The options that say which part of a plan is drawn, as they are written."""

    points: Sequence[str]
    hook: str | None
    ancestors: str | None
    descendants: str | None
    slots: Sequence[str]
    kind: EdgeKind | None

    def filter(self, plan: Plan) -> PlanFilter:
        """Return the filter, with the members of groups. Raises UserError for an unknown name."""
        from hookflow.graph.filters import PlanFilter

        hooks = _find_hooks(plan, self.hook, "--hook")
        ancestors = _find_hooks(plan, self.ancestors, "--ancestors")
        descendants = _find_hooks(plan, self.descendants, "--descendants")
        _check_points(plan, self.points)
        _check_slots(plan, self.slots)
        return PlanFilter(self.points, hooks, ancestors, descendants, self.slots, self.kind)

    def described(self, bound: Sequence[str]) -> str:
        """Return the part in words, for the heading.

        `bound` are the points that `hook` fires at.
        """
        where = " and ".join(self.points)
        words = []
        if self.hook:
            at = where or format_count(len(bound), "point")
            words.append(f"{self.hook} at {at}, with the hooks that it has edges with")
        elif where:
            words.append(f"hooks at {where}")
        if self.ancestors:
            words.append(f"what fires before {self.ancestors}")
        if self.descendants:
            words.append(f"what fires after {self.descendants}")
        if self.slots:
            words.append(f"what touches {' or '.join(self.slots)}")
        if self.kind:
            words.append(f"edges of kind {self.kind}")
        return "; ".join(words)


def _narrow_plan(plan: Plan, names: _FilterNames) -> tuple[Plan, str]:
    """Return the part of a plan that is drawn, and its title.

    Raises UserError for an unknown name, or if nothing is left.
    """
    from hookflow.graph.render.text import title_of

    chosen = names.filter(plan)
    bound: dict[str, None] = {}
    for binding in plan.bindings:
        if not chosen.hooks or binding.hook in chosen.hooks:
            bound[binding.point] = None
    for point in names.points:
        if point not in bound:
            message = f"no hook fires at {point}"
            firing = "hooks fire"
            if names.hook is not None:
                message = f"{names.hook} does not fire at {point}"
                firing = "it fires"
            raise UserError(Problem(message, hint=f"{firing} at {', '.join(bound)}"))
    narrowed = chosen.apply(plan)
    if chosen.has_only_points:
        return narrowed, title_of(narrowed)
    described = names.described(list(bound))
    if not narrowed.bindings:
        raise UserError(Problem(f"nothing to draw: {described}", hint="leave out an option"))
    return narrowed, title_of(narrowed, described)


def _find_hooks(plan: Plan, name: str | None, option: str) -> tuple[str, ...]:
    """Return the hook of a name, or the members of a group.

    There are none without a name. Raises UserError for an unknown name. A group without members
    that are on is refused, too: a filter by nothing would let all pass.
    """
    if name is None:
        return ()
    if is_group(name):
        group = plan.groups_by_name[_find_group(plan, name, option)]
        if not group.members:
            raise UserError(
                Problem(f'the group "{group.name}" has no hooks that are on', Where(option))
            )
        return group.members
    if name in plan.hooks_by_name:
        return (name,)
    hint = nearest_or_all(name, list(plan.hooks_by_name), "it has")
    if name in plan.groups_by_name:
        hint = f'the group is written "group:{name}"'
    raise UserError(Problem(f'there is no hook "{name}" in this pipeline', hint=hint))


def _check_points(plan: Plan, points: Sequence[str]) -> None:
    from hookflow.service.pipelines import no_point

    for point in points:
        if point not in plan.points:
            raise UserError(no_point(plan.points, point))


def _check_slots(plan: Plan, slots: Sequence[str]) -> None:
    touched: dict[str, None] = {}
    for binding in plan.bindings:
        touched |= dict.fromkeys((*binding.reads, *binding.writes))
    for slot in slots:
        if not any(_is_part(slot, known) or _is_part(known, slot) for known in touched):
            hint = nearest_or_all(slot, list(touched), "they touch")
            raise UserError(Problem(f'no hook of this pipeline touches a slot "{slot}"', hint=hint))


def _is_part(slot: str, whole: str) -> bool:
    """Say whether a slot is another one, or a part of it."""
    return slot == whole or slot.startswith(f"{whole}.")
