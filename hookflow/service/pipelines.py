"""Pipelines for commands and the Python API: read and compiled from a file, or recorded by a run; and compared."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookflow.errors import Problem, UserError, by_place, first_few, nearest
from hookflow.graph.schedule import Forecast, Length, forecast, window_is_empty
from hookflow.pipeline.condition import METRICS, parse_condition
from hookflow.pipeline.source_map import as_toml
from hookflow.text import print_error

if TYPE_CHECKING:
    from hookflow.events.rundir import RunDir
    from hookflow.graph.plan import Binding, Change, Difference, Plan
    from hookflow.graph.points import Points
    from hookflow.pipeline.load import Loaded, PipelineSource, Said


def lint(loaded: Loaded, plan: Plan, forecasts: Mapping[int, Forecast]) -> Iterator[Problem]:
    """Yield a warning for each hook that never fires, and for each condition that is constant or misspelt.

    `forecasts` are by the binding's id, and must rest on nothing but the pipeline.
    """
    by_hook: dict[str, list[Binding]] = {}
    for binding in plan.bindings:
        by_hook.setdefault(binding.hook, []).append(binding)
    for name, bindings in by_hook.items():
        where = loaded.places.of(f"hooks.{name}")
        for message, hint in _silent(loaded, plan, name, bindings, forecasts):
            yield Problem(message, where, hint)
        node = loaded.pipeline.hooks[name]
        written = {f"points.{k}.when": getattr(item, "when", None) for k, item in enumerate(node.points or ())}
        for key, when in {"when": node.when, **written}.items():
            if when and (doubt := parse_condition(when).doubt):
                place = loaded.places.of(f"hooks.{name}.{key}")
                yield Problem(f'hook "{name}": the condition "{when}" {doubt[0]}', place, doubt[1])


def _silent(
    loaded: Loaded, plan: Plan, name: str, bindings: list[Binding], forecasts: Mapping[int, Forecast]
) -> Iterator[tuple[str, str]]:
    """Yield a problem for a hook that never fires, even with a test; or not at some of its points.

    A point without its data is no problem where the hook fires elsewhere, unless the hook reads metrics only there.
    """
    data = loaded.pipeline.data
    empty = [b for b in bindings if b.half != "exit" and window_is_empty(b.trigger, plan.points[b.point])]
    silent = [b for b in bindings if forecasts[b.id].times == 0 and not (data.test and _needs(b, "test"))]
    missing = [split for split in ("val", "test") if any(_needs(b, split) for b in silent)]
    absent = " and ".join(f"[data.{split}]" for split in missing if getattr(data, split) is None)
    if len(silent) == len(bindings) and not empty:
        hint = f"there is no {absent}" if absent else "the run ends before its trigger lets it"
        yield f'hook "{name}" never fires', hint
        return
    for binding in silent:
        has_data = not any(_needs(binding, split) and getattr(data, split) is None for split in ("val", "test"))
        if str(binding.trigger) and has_data and binding not in empty and binding.half != "exit":
            yield f'hook "{name}" never fires at {binding.point}', f"{binding.trigger}: the run ends before that"
    read = {slot for b in bindings if b not in silent for slot in b.reads}
    for binding in silent if data.val is None else ():
        metrics = [slot for slot in binding.reads if slot.startswith(METRICS) and slot not in read]
        if metrics and _needs(binding, "val"):
            hint = f"it reads {', '.join(metrics)} there, and there is no [data.val]"
            yield f'hook "{name}" never fires at {binding.point}', hint
    for binding in empty:
        trigger = binding.trigger
        hint = f"from = {trigger.since} is not below until = {trigger.until}"
        yield f'hook "{name}" never fires at {binding.point}', hint


def _needs(binding: Binding, split: str) -> bool:
    """Say whether a binding fires only where the run evaluates a split."""
    return f"_{split}" in binding.point or ("train" not in binding.stages and split in binding.stages)


def read_pipeline(
    source: PipelineSource,
    overrides: Sequence[Said] = (),
    *,
    without: Sequence[str] = (),
    only: Sequence[str] = (),
    base: Path | None = None,
    imports: bool = True,
) -> Loaded:
    """Load a file, or its tables, as `hookflow.pipeline.load.load` does. A run records it with the `base` of its files.

    Raises UserError with all that is wrong with it, and with what is understood of its components and hooks; unless it
    `imports`, by their source alone.
    """
    from hookflow.hooks.compile import compile_pipeline
    from hookflow.pipeline.load import UnsoundError, load, missing_components

    try:
        return load(source, overrides, without=without, only=only, recorded=base is not None)
    except UnsoundError as error:
        problems = [*error.problems]
        if error.rest is not None:
            problems += missing_components(error.rest, base or error.rest.source.parent)
            try:
                compile_pipeline(error.rest, base, imports=imports)
            except UserError as of_hooks:
                problems += of_hooks.problems
        raise UserError(sorted(problems, key=by_place)) from None


def missing_weights(loaded: Loaded, folder: Path) -> Iterator[Problem]:
    """Yield a problem for each file of initial weights that is not there."""
    from hookflow.pipeline.layers import nearest_sibling
    from hookflow.pipeline.load import key_of

    for name, model in loaded.pipeline.models.items():
        section = model.begins_with
        if section is None:
            continue
        path = folder / Path(section.file).expanduser()
        key = key_of("model", name)
        if not path.exists():
            at = f"{key}.weights" if isinstance(model.weights, str) else f"{key}.weights.file"
            yield Problem(f'there is no file "{path}"', loaded.places.of(at), nearest_sibling(path))


def numbers_not_finite(loaded: Loaded) -> Iterator[Problem]:
    """Yield a problem for each argument of an optimizer that is infinite, or no number: the weights would be, too."""
    from hookflow.pipeline.load import key_of
    from hookflow.pipeline.source_map import walk

    for name, optimizer in loaded.pipeline.optimizers.items():
        key = key_of("optimizer", name)
        written = {f"{key}.args": optimizer.args}
        written |= {f"{key}.groups.{k}.args": group.args for k, group in enumerate(optimizer.groups)}
        for at, args in written.items():
            for path, value in walk(args):
                if isinstance(value, float) and not isfinite(value):
                    argument = ".".join(path)
                    message = f'{key}: "{argument}" must be a finite number, not {value}'
                    yield Problem(message, loaded.places.of(f"{at}.{argument}"))


def valid_plan(
    loaded: Loaded,
    base: Path | None = None,
    shuffle: int | None = None,
    *,
    imports: bool = True,
    begins: bool = True,
) -> Plan:
    """Compile the hooks and look for everything else that the pipeline names; the plan has all warnings of `check`.

    Files are relative to `base`, the pipeline's own folder if left out; `shuffle` is the seed of another order.
    Unless it `imports`, of the user's hooks only the file's words are known. A run that `begins` needs the files of its
    initial weights; a resumed one does not read them. Raises UserError with all that is wrong.
    """
    from hookflow.hooks.arguments import wrong_by_source
    from hookflow.hooks.compile import compile_pipeline
    from hookflow.pipeline.load import missing_components, wrong_parts

    folder = base or loaded.source.parent
    problems = [*missing_components(loaded, folder), *wrong_parts(loaded), *wrong_by_source(loaded, folder)]
    problems += numbers_not_finite(loaded)
    if begins:
        problems += missing_weights(loaded, folder)
    if loaded.pipeline.notify is not None:
        from hookflow.monitor.notify import wrong_notifications

        problems += wrong_notifications(loaded)
    try:
        plan = compile_pipeline(loaded, base, shuffle, imports=imports)
    except UserError as error:
        every = [*problems, *error.problems]
        raise UserError(sorted(every, key=by_place)) from None
    if problems:
        raise UserError(sorted(problems, key=by_place))
    return replace(plan, warnings=(*plan.warnings, *lint(loaded, plan, forecast(plan, Length.of(loaded.pipeline)))))


@dataclass(frozen=True, slots=True)
class Target:
    """A pipeline with its plan; `name` is what the user called it, `base` what its own files are relative to.

    `run` is the run that has recorded it, if one has.
    """

    name: str
    loaded: Loaded
    plan: Plan
    base: Path
    run: RunDir | None = None
    imports: bool = True
    """Whether its hooks may be imported."""


def open_target(
    named: str | None,
    overrides: Sequence[Said] = (),
    *,
    without: Sequence[str] = (),
    only: Sequence[str] = (),
    shuffle: int | None = None,
    imports: bool = True,
    runs: Path = Path("runs"),
) -> Target:
    """Return the pipeline file or the run that `named` means; None is the only pipeline file here.

    A run is looked for in the folder `runs`. The record of a run is never changed from outside. Unless it `imports`, of
    the user's hooks only the file's words are known. Raises UserError when there is no such thing, it is not valid, or
    a run is to be changed.
    """
    from hookflow.events.rundir import short
    from hookflow.hooks.compile import compile_pipeline
    from hookflow.pipeline.load import load
    from hookflow.service.runs import find_run, recorded_plan

    if named is not None and not named.endswith(".toml") and not Path(named).is_file():
        if overrides or without or only or shuffle is not None:
            hint = "name the pipeline's file, to ask of another order than that of the run"
            raise UserError(Problem(f"{named} is a run, and its plan is recorded", hint=hint))
        run = find_run(named, runs, or_file=True)
        loaded = load(short(run.pipeline), recorded=True, environment=False)
        base = Path(run.describe().get("base", "."))
        return Target(run.id, loaded, recorded_plan(run), base, run, imports=False)  # a run directory is data
    path = Path(named or only_pipeline())
    loaded = read_pipeline(path, overrides, without=without, only=only, imports=imports)
    plan = compile_pipeline(loaded, shuffle=shuffle, imports=imports)
    return Target(str(path), loaded, plan, path.parent, imports=imports)


WIDTH = 100
"""Characters of a line about a difference."""


def difference_lines(old: Target, new: Target, result: Difference) -> Iterator[str]:
    """Yield what differs, as `hookflow compare` shows it."""
    if not result:
        yield f"{old.name} and {new.name} amount to the same"
        return
    yield f"- {old.name}"
    yield f"+ {new.name}"
    hooks = [
        f"{sign} {hook.name}  {hook.use}({hook.written_args})"
        for sign, target, names in (("-", old, result.hooks_removed), ("+", new, result.hooks_added))
        for hook in map(target.plan.hook, names)
    ]
    bound = (("-", result.unbound), ("+", result.bound))
    points = [(f"{sign} {hook}", at) for sign, by_hook in bound for hook, at in by_hook.items()]
    changed = (("-", result.edges_removed), ("+", result.edges_added))
    edges = [(f"{sign} {edge.first} → {edge.then}", edge.points) for sign, arrows in changed for edge in arrows]
    for title, lines in (
        ("keys", _keys(result.keys)),
        ("hooks", hooks),
        ("fire at", _at(points)),
        ("edges", _at(edges)),
        ("order", [line for t in result.order for line in (t.point, *_order("-", t.old), *_order("+", t.new))]),
    ):
        if shown := list(lines):
            yield f"\n{title}"
            yield from (f"  {line}" for line in shown)


def _keys(changes: Sequence[Change]) -> Iterator[str]:
    width = max((len(change.key) for change in changes), default=0)
    for change in changes:
        old, new = written(change.old), written(change.new)
        if width + len(old) + len(new) + 8 <= WIDTH:
            yield f"{change.key:<{width}}  {old} → {new}"
        else:
            yield from (change.key, f"  - {old}", f"  + {new}")


def _at(points: Iterable[tuple[str, Sequence[str]]]) -> Iterator[str]:
    for subject, names in points:
        yield from textwrap.wrap(f"{subject} at {', '.join(names)}", WIDTH, subsequent_indent="    ")


def _order(sign: str, hooks: Sequence[str]) -> list[str]:
    return textwrap.wrap(f"  {sign} {' → '.join(hooks)}", WIDTH, subsequent_indent="      ")


def written(value: Any) -> str:
    """Return the value of a key as TOML; "nothing" where a pipeline lacks it."""
    return "nothing" if value is None else as_toml(value)


def warn_unknown(plan: Plan) -> None:
    """Print a line for each hook that is not imported."""
    for problem in plan.unknown:
        print_error(f"unknown: {problem}")


def only_pipeline() -> Path:
    """Return the one pipeline file in the current folder and `pipelines/`. Raises UserError when there is not one.

    Other programs keep TOML files too: a pipeline has a table `[run]`.
    """
    files = [path for folder in (Path(), Path("pipelines")) for path in sorted(folder.glob("*.toml"))]
    result = [path for path in files if re.search(r"^\[run\]", path.read_text("utf-8", "replace"), re.MULTILINE)]
    if len(result) == 1:
        return result[0]
    if not result:
        hint = "name one: pipelines/FILE.toml"
        raise UserError(Problem("there is no pipeline file here, nor in pipelines/", hint=hint))
    hint = f"name one: {result[0]} (or {first_few(map(str, result[1:]), 3)})"
    raise UserError(Problem(f"there are {len(result)} pipelines here", hint=hint))


def no_point(points: Points, name: str) -> Problem:
    """Return what is wrong with asking for a point of that name, which is none."""
    pair = name.removeprefix("around_")
    if name != pair and pair in points.pairs:
        return Problem(f"{name} is two points", hint=f"name one of them: before_{pair} or {points.pairs[pair]}")
    return Problem(f'there is no point "{name}"', hint=nearest(name, [point.name for point in points]))
