"""Pipelines for commands and the Python API.

They are read and compiled from a file, or recorded by a run, and compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from hookflow.errors import Problem, UserError, first_few, make_place_key, nearest
from hookflow.graph.schedule import Forecast, Length, compute_forecasts, is_window_empty
from hookflow.pipeline.condition import METRIC_PREFIX
from hookflow.text import print_error

if TYPE_CHECKING:
    from hookflow.events.rundir import RunDir
    from hookflow.graph.plan import Binding, Plan
    from hookflow.graph.points import Points
    from hookflow.pipeline.load import Loaded, PipelineSource, Said
    from hookflow.pipeline.schema import Pipeline


def lint(loaded: Loaded, plan: Plan, forecasts: Mapping[int, Forecast]) -> Iterator[Problem]:
    """Yield a warning for each hook that never fires.

    Conditions that are constant or misspelt are warned of, too.

    `forecasts` are by the binding's id, and must rest on nothing but the pipeline.
    """
    by_hook: dict[str, list[Binding]] = {}
    for binding in plan.bindings:
        by_hook.setdefault(binding.hook, []).append(binding)
    for name, bindings in by_hook.items():
        where = loaded.places.of(f"hooks.{name}")
        for message, hint in _find_silent(loaded, plan, name, bindings, forecasts):
            yield Problem(message, where, hint)
        yield from _find_doubtful_conditions(loaded, name)


def _find_doubtful_conditions(loaded: Loaded, name: str) -> Iterator[Problem]:
    """Yield a problem for each condition of a hook that is constant or misspelt."""
    node = loaded.pipeline.hooks[name]
    conditions = {"when": node.when}
    for k, item in enumerate(node.points or ()):
        conditions[f"points.{k}.when"] = getattr(item, "when", None)
    for key, condition in conditions.items():
        if condition and condition.doubt:
            doubt, hint = condition.doubt
            where = loaded.places.of(f"hooks.{name}.{key}")
            yield Problem(f'hook "{name}": the condition "{condition}" {doubt}', where, hint)


def _find_silent(
    loaded: Loaded,
    plan: Plan,
    name: str,
    bindings: list[Binding],
    forecasts: Mapping[int, Forecast],
) -> Iterator[tuple[str, str]]:
    """Yield a problem for a hook that never fires, even with a test; or not at some of its points.

    A point without its data is no problem where the hook fires elsewhere, unless the hook reads
    metrics only there.
    """
    missing = _missing_splits(loaded.pipeline)
    empty = []  # their window, from `from` to `until`, is empty
    silent = []
    for binding in bindings:
        if binding.half != "exit" and is_window_empty(binding.trigger, plan.points[binding.point]):
            empty.append(binding)
        waits_for_test = bool(loaded.pipeline.data.test) and _needs(binding, "test")
        if forecasts[binding.id].times == 0 and not waits_for_test:
            silent.append(binding)

    if len(silent) == len(bindings) and not empty:
        lacking = [
            why
            for split, why in missing.items()
            if any(_needs(binding, split) for binding in silent)
        ]
        hint = " and ".join(lacking) or "the run ends before its trigger lets it"
        yield f'hook "{name}" never fires', hint
        return

    for binding in silent:
        has_data = not any(_needs(binding, split) for split in missing)
        if str(binding.trigger) and has_data and binding not in empty and binding.half != "exit":
            yield (
                f'hook "{name}" never fires at {binding.point}',
                f"{binding.trigger}: the run ends before that",
            )
    if "val" in missing:
        yield from _find_unread_metrics(name, bindings, silent, missing["val"])
    for binding in empty:
        trigger = binding.trigger
        hint = f"from = {trigger.since} is not below until = {trigger.until}"
        yield f'hook "{name}" never fires at {binding.point}', hint


def _find_unread_metrics(
    name: str, bindings: list[Binding], silent: list[Binding], why: str
) -> Iterator[tuple[str, str]]:
    """Yield a problem for each silent point of a validation at which alone metrics are read.

    A hook reads them there.
    """
    slots_read: set[str] = set()
    for binding in bindings:
        if binding not in silent:
            slots_read.update(binding.reads)
    for binding in silent:
        metrics = [
            slot
            for slot in binding.reads
            if slot.startswith(METRIC_PREFIX) and slot not in slots_read
        ]
        if metrics and _needs(binding, "val"):
            hint = f"it reads {', '.join(metrics)} there, and {why}"
            yield f'hook "{name}" never fires at {binding.point}', hint


def _missing_splits(pipeline: Pipeline) -> dict[str, str]:
    """Return the splits on which a run measures nothing, and why."""
    missing = {}
    if pipeline.data.val is None:
        missing["val"] = "there is no [data.val]"
    elif not pipeline.validated_sets:
        missing["val"] = "run.val_every is 0"
    if pipeline.data.test is None:
        missing["test"] = "there is no [data.test]"
    return missing


def _needs(binding: Binding, split: str) -> bool:
    """Say whether a binding fires only where the run evaluates a split."""
    return f"_{split}" in binding.point or (
        "train" not in binding.stages and split in binding.stages
    )


def read_pipeline(
    source: PipelineSource,
    overrides: Sequence[Said] = (),
    *,
    without: Sequence[str] = (),
    only: Sequence[str] = (),
    base: Path | None = None,
    imports: bool = True,
) -> Loaded:
    """Load a file, or its tables, as `hookflow.pipeline.load.load` does.

    A run records it with the `base` of its files. Raises UserError with all that is wrong with it,
    and with what is understood of its components and hooks; unless it `imports`, by their source
    alone.
    """
    from hookflow.hooks.compile import compile_pipeline
    from hookflow.pipeline.load import UnsoundError, load, missing_components
    from hookflow.service.weights import resolve_weights

    try:
        loaded = load(source, overrides, without=without, only=only, recorded=base is not None)
        return replace(loaded, weights=resolve_weights(loaded)[0])
    except UnsoundError as error:
        problems = [*error.problems]
        if error.rest is not None:
            problems += missing_components(error.rest, base or error.rest.source.parent)
            try:
                compile_pipeline(error.rest, base, imports=imports)
            except UserError as of_hooks:
                problems += of_hooks.problems
        raise UserError(sorted(problems, key=make_place_key)) from None


def missing_weights(loaded: Loaded, folder: Path) -> Iterator[Problem]:
    """Yield a problem for each file of initial weights that is not there."""
    from hookflow.pipeline.layers import nearest_sibling
    from hookflow.pipeline.load import key_of

    for name, model in loaded.pipeline.models.items():
        section = model.begins_with
        if section is None or section.file is None:
            continue
        path = folder / Path(section.file).expanduser()
        key = key_of("model", name)
        if path.exists():
            continue
        if isinstance(model.weights, str):
            written_key = f"{key}.weights"
        else:
            written_key = f"{key}.weights.file"
        yield Problem(
            f'there is no file "{path}"', loaded.places.of(written_key), nearest_sibling(path)
        )


def find_non_finite_numbers(loaded: Loaded) -> Iterator[Problem]:
    """Yield a problem for each argument of an optimizer that is not finite.

    The weights would not be finite, either.
    """
    from hookflow.pipeline.load import key_of
    from hookflow.pipeline.source_map import walk

    for name, optimizer in loaded.pipeline.optimizers.items():
        key = key_of("optimizer", name)
        arguments = {f"{key}.args": optimizer.args}
        for k, group in enumerate(optimizer.groups):
            arguments[f"{key}.groups.{k}.args"] = group.args
        for table, args in arguments.items():
            for path, value in walk(args):
                if isinstance(value, float) and not isfinite(value):
                    argument = ".".join(path)
                    message = f'{key}: "{argument}" must be a finite number, not {value}'
                    yield Problem(message, loaded.places.of(f"{table}.{argument}"))


def valid_plan(
    loaded: Loaded,
    base: Path | None = None,
    shuffle: int | None = None,
    *,
    imports: bool = True,
    begins: bool = True,
) -> Plan:
    """Compile the hooks and look for everything else that the pipeline names.

    The plan has all warnings of `check`. Files are relative to `base`, the pipeline's own folder if
    left out; `shuffle` is the seed of another order. Unless it `imports`, of the user's hooks only
    the file's words are known. A run that `begins` needs the files of its initial weights; a
    resumed one does not read them. Raises UserError with all that is wrong.
    """
    from hookflow.hooks.arguments import find_source_problems
    from hookflow.hooks.compile import compile_pipeline
    from hookflow.pipeline.load import find_part_problems, missing_components
    from hookflow.service.bare_amounts import find_mixed_amounts
    from hookflow.service.weights import resolve_weights

    folder = base or loaded.source.parent
    problems = [
        *missing_components(loaded, folder),
        *find_part_problems(loaded),
        *find_source_problems(loaded, folder),
    ]
    problems += find_non_finite_numbers(loaded)
    if begins:
        problems += missing_weights(loaded, folder)
        problems += resolve_weights(loaded)[1]
    if loaded.pipeline.notify is not None:
        from hookflow.notify.section import find_notification_problems

        problems += find_notification_problems(loaded)
    try:
        plan = compile_pipeline(loaded, base, shuffle, imports=imports)
    except UserError as error:
        problems += error.problems
        raise UserError(sorted(problems, key=make_place_key)) from None
    problems += find_mixed_amounts(loaded, plan)
    if problems:
        raise UserError(sorted(problems, key=make_place_key))
    forecasts = compute_forecasts(plan, Length.of(loaded.pipeline))
    warnings = (*plan.warnings, *lint(loaded, plan, forecasts))
    return replace(plan, warnings=warnings)


@dataclass(frozen=True, slots=True)
class Target:
    """A pipeline with its plan.

    `name` is what the user called it, `base` what its own files are relative to.

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

    A run is looked for in the folder `runs`. The record of a run is never changed from outside.
    Unless it `imports`, of the user's hooks only the file's words are known. Raises UserError when
    there is no such thing, it is not valid, or a run is to be changed.
    """
    from hookflow.events.rundir import short
    from hookflow.hooks.compile import compile_pipeline
    from hookflow.pipeline.load import load
    from hookflow.service.runs import find_run, read_recorded_plan

    if named is not None and not named.endswith(".toml") and not Path(named).is_file():
        if overrides or without or only or shuffle is not None:
            hint = "name the pipeline's file, to ask of another order than that of the run"
            raise UserError(Problem(f"{named} is a run, and its plan is recorded", hint=hint))
        run = find_run(named, runs, or_file=True)
        loaded = load(short(run.pipeline), recorded=True, environment=False)
        base = Path(run.describe().get("base", "."))
        # A run directory is data, and nothing that it names is imported.
        return Target(run.id, loaded, read_recorded_plan(run), base, run, imports=False)
    path = Path(named or only_pipeline())
    loaded = read_pipeline(path, overrides, without=without, only=only, imports=imports)
    plan = compile_pipeline(loaded, shuffle=shuffle, imports=imports)
    return Target(str(path), loaded, plan, path.parent, imports=imports)


def warn_unknown(plan: Plan) -> None:
    """Print a line for each hook that is not imported."""
    for problem in plan.unknown:
        print_error(f"unknown: {problem}")


def only_pipeline() -> Path:
    """Return the one pipeline file in the current folder and `pipelines/`.

    Raises UserError when there is not one. Other programs keep TOML files too: a pipeline has a
    table `[run]`.
    """
    files = [*sorted(Path().glob("*.toml")), *sorted(Path("pipelines").glob("*.toml"))]
    pipelines = []
    for file in files:
        text = file.read_text("utf-8", "replace")
        if re.search(r"^\[run\]", text, re.MULTILINE):
            pipelines.append(file)
    if len(pipelines) == 1:
        return pipelines[0]
    if not pipelines:
        hint = "name one: pipelines/FILE.toml"
        raise UserError(Problem("there is no pipeline file here, nor in pipelines/", hint=hint))
    others = first_few([str(file) for file in pipelines[1:]], 3)
    hint = f"name one: {pipelines[0]} (or {others})"
    raise UserError(Problem(f"there are {len(pipelines)} pipelines here", hint=hint))


def no_point(points: Points, name: str) -> Problem:
    """Return what is wrong with asking for a point of that name, which is none."""
    both = points.find_points_of_around(name)
    if both is not None:
        return Problem(f"{name} is two points", hint=f"name one of them: {' or '.join(both)}")
    names = [point.name for point in points]
    return Problem(f'there is no point "{name}"', hint=nearest(name, names))
