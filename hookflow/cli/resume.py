"""`hookflow run --resume`: find the run, compare its pipeline, and check that the change is allowed."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hookflow.cli.output import warn
from hookflow.errors import Problem, UserError, by_place

if TYPE_CHECKING:
    from hookflow.events.rundir import RunDir
    from hookflow.graph.difference import Difference
    from hookflow.graph.plan import Plan
    from hookflow.pipeline.schema import RunSection
    from hookflow.service.pipelines import Target

SWITCH = re.compile(r"hooks\.([\w-]+)\.enabled=false")
"""The recorded form of `--without`."""

TAIL = 1 << 18
"""Bytes at the end of an event log in which the end of the run is looked for."""


def resumed(
    target: str | None,
    overrides: Sequence[str] = (),
    without: Sequence[str] = (),
    only: Sequence[str] = (),
    shuffle: int | None = None,
    *,
    runs: Path | None = None,
    allow_changed_hooks: bool = False,
    even_if_done: bool = False,
) -> RunDir:
    """Return the run to resume, once what differs from its recording is shown, accepted, and written down beside it.

    `target` is a run, or a pipeline file: then its newest run is meant, and the file is what counts, with what the run
    was given by `--set` and `--without` when it was started. Raises UserError with each change that a resumed run
    cannot make, and ends the command when nothing is left to do, unless `even_if_done`.
    """
    from hookflow.events.run_lock import release
    from hookflow.runner.checkpoint.manifest import newest_good
    from hookflow.runner.process.launch import claim, keep, propose, withdraw
    from hookflow.service.pipelines import read_pipeline
    from hookflow.service.runs import find_run, has_begun

    file = Path(target) if target and target.endswith(".toml") else None
    hooks: Collection[str] | None = None
    if file is None:
        run_dir = find_run(target, runs or Path("runs"), having=has_begun, or_file=True)
    else:
        pipeline = read_pipeline(file, overrides, without=without, only=only).pipeline
        hooks = pipeline.hooks
        run_dir = _of_pipeline(pipeline.run, overrides, runs)
    locks = claim(run_dir)  # refuses, before anything is written, where the run is live
    try:
        withdraw(run_dir)  # what a resume that was killed has left
        newest_good(run_dir.checkpoints)  # and where no checkpoint can be used
        then = _recorded(run_dir)
        now = then
        if file is not None or overrides or without or only or shuffle is not None:
            now = _wanted(run_dir, file, hooks, overrides, without, only, shuffle)
        _accept(run_dir, then, now, allow_changed_hooks=allow_changed_hooks)
        if not even_if_done and (done := _nothing_left(run_dir, then, now)):
            _tell(done)
            raise typer.Exit(0)
        if now is not then:
            propose(now.loaded, now.plan, run_dir, now.base)
    except BaseException:
        release(locks)
        raise
    keep(run_dir, locks)  # until it starts: in between, another resume could record another length
    return run_dir


def _of_pipeline(section: RunSection, overrides: Sequence[str], runs: Path | None) -> RunDir:
    """Return the newest run of a pipeline file. Raises UserError where there is none."""
    from hookflow.service.runs import find_run, has_begun

    try:
        return find_run(section.name, runs or Path(section.dir), having=has_begun)
    except UserError as error:
        if any(_key(override) == ("run", "name") for override in overrides):
            hint = "with --resume, run.name says which run is meant; a run keeps its name"
            raise UserError([replace(problem, hint=hint) for problem in error.problems]) from None
        raise


def _recorded(run_dir: RunDir) -> Target:
    """Return the recorded pipeline and plan."""
    from hookflow.events.records import VERSION
    from hookflow.runner.checkpoint.resume_rules import recorded
    from hookflow.service.pipelines import Target

    if (version := (facts := run_dir.describe()).get("version", VERSION)) > VERSION:
        author = f"hookflow {facts.get('hookflow', '')} recorded {run_dir.id} in format {version}"
        raise UserError(Problem(f"{author}, and this version reads format {VERSION}", hint="update hookflow"))
    loaded, plan = recorded(run_dir.path)
    return Target(f"{run_dir.id} as it was recorded", loaded, plan, run_dir.base())


def _wanted(
    run_dir: RunDir,
    file: Path | None,
    hooks: Collection[str] | None,
    overrides: Sequence[str],
    without: Sequence[str],
    only: Sequence[str],
    shuffle: int | None,
) -> Target:
    """Return what the run is to be: the file (without one, the recorded pipeline) with what the command line says.

    `hooks` are those of the file.
    """
    from hookflow.events.rundir import short
    from hookflow.service.pipelines import Target, read_pipeline, valid_plan
    from hookflow.service.runs import recorded_plan

    facts = run_dir.describe()
    kept = list(_kept(facts.get("overrides", []), overrides, hooks))
    if shuffle is None:
        shuffle = recorded_plan(run_dir).shuffle
    if file is None:
        base = run_dir.base()
        loaded = read_pipeline(short(run_dir.pipeline), overrides, without=without, only=only, recorded=True)
        plan = valid_plan(loaded, base, shuffle)
        name = f"{run_dir.id} with {' '.join(loaded.overrides) or f'--shuffle {shuffle}'}"
        every = tuple(dict.fromkeys((*kept, *loaded.overrides)))
        return Target(
            name, replace(loaded, source=Path(facts.get("source", run_dir.pipeline)), overrides=every), plan, base
        )
    off = [match[1] for override in kept if (match := SWITCH.fullmatch(override))]
    kept = [override for override in kept if not SWITCH.fullmatch(override)]
    if message := [*(f"--set {override}" for override in kept), *(f"--without {hook}" for hook in off)]:
        _tell(f"kept from the start of the run: {' '.join(message)}")
    loaded = read_pipeline(file, (*kept, *overrides), without=(*off, *without), only=only)
    return Target(str(file), loaded, valid_plan(loaded, shuffle=shuffle), file.parent)


def _kept(recorded: Sequence[str], new: Sequence[str], hooks: Collection[str] | None) -> Iterator[str]:
    """Yield the overrides that the run keeps: what is not said anew, and of the hooks those that there still are."""
    from hookflow.pipeline.layers import OTHER_LENGTH

    stated = [key for override in new if (key := _key(override))]
    stated += [("run", other) for length, other in OTHER_LENGTH.items() if ("run", length) in stated]
    for override in recorded:
        key = _key(override)
        gone = hooks is not None and key[0] == "hooks" and len(key) > 2 and key[1] not in hooks
        if not gone and not any(key[: len(item)] == item for item in stated):
            yield override


def _key(override: str) -> tuple[str, ...]:
    from hookflow.pipeline.source_map import split_key

    try:
        return split_key(override)[0]
    except ValueError:  # which reading the file reports
        return ()


def _accept(run_dir: RunDir, then: Target, now: Target, *, allow_changed_hooks: bool) -> None:
    """Show what differs. Raises UserError with each change that a run cannot make once it has a checkpoint."""
    from hookflow.cli.diff import difference_lines
    from hookflow.events.rundir import run_argument
    from hookflow.graph.difference import difference
    from hookflow.runner.checkpoint.resume_rules import May, changed_hooks, changes_since

    if now is then:
        return
    if result := difference((then.loaded.public, then.plan), (now.loaded.public, now.plan)):
        _tell(*difference_lines(then, now, result), *_follows_length(result, now.plan), "")
    if (checkpoint := _newest(run_dir)) is None:
        return  # the run begins anew, and may begin as it likes
    changes = changes_since(checkpoint, now.loaded.public, now.plan)
    places = now.loaded.places
    refused = [
        Problem(f"{change.text}: {change.why}", places.of(change.key)) for change in changes if change.may is May.NO
    ]
    if refused:
        hint = f"to resume it as it was recorded: hookflow run --resume {run_argument(run_dir)}"
        refused[-1] = replace(refused[-1], hint=f"{hint}\n    for a new run, leave --resume out")
    if not allow_changed_hooks:
        refused += changed_hooks(changes, f"the checkpoint {checkpoint.name}", places)
    if refused:
        raise UserError(sorted(refused, key=by_place))


def _follows_length(result: Difference, plan: Plan) -> Iterator[str]:
    """Yield a line on what changes with the length of the run, where that is another."""
    if not any(change.key in ("run.max_epochs", "run.max_iters") for change in result.keys):
        return
    from hookflow.graph.slots import root

    hooks = {
        binding.hook for binding in plan.bindings if "lr" in map(root, binding.writes) or "%" in str(binding.trigger)
    }
    if hooks:
        yield "\nthe length"
        yield f"  what is a share of the whole run changes with it, as schedules do: {', '.join(sorted(hooks))}"


def _newest(run_dir: RunDir) -> Path | None:
    """Return the newest checkpoint that looks whole."""
    from hookflow.runner.checkpoint.manifest import damage, list_checkpoints

    return next((path for path in list_checkpoints(run_dir.checkpoints) if not damage(path, thorough=False)), None)


def _nothing_left(run_dir: RunDir, then: Target, now: Target) -> str:
    """Say that nothing is left to do, of a run that has ended in order at the length that it is to have."""
    from hookflow.events.rundir import run_argument
    from hookflow.runner.checkpoint.manifest import read_manifest

    section, end = now.loaded.pipeline.run, _end(run_dir)
    if end.get("status") != "finished" or not _reached(section, end):
        return ""
    if section.test and not then.loaded.pipeline.run.test:
        return ""
    checkpoint = _newest(run_dir)
    if checkpoint is not None and not _reached(section, read_manifest(checkpoint)):
        return ""
    length, unit = (section.max_iters, "iterations") if section.max_epochs is None else (section.max_epochs, "epochs")
    key = "run.max_iters" if section.max_epochs is None else "run.max_epochs"
    done = end["it"] if section.max_epochs is None else end["ep"]
    where = now.loaded.places.of(key)
    return (
        f"nothing is left to do: the run {run_dir.id} has done {done} {unit}, and {key} is {length} ({where})\n"
        f"    to train on: hookflow run --resume {run_argument(run_dir)} --set {key}=N"
    )


def _reached(section: RunSection, place: dict[str, Any]) -> bool:
    """Say whether a record or a manifest is of the end of a run of such a length."""
    if section.max_epochs is None:
        return bool(place["it"] >= (section.max_iters or 0))
    return bool(place["ep"] >= section.max_epochs)


def _end(run_dir: RunDir) -> dict[str, Any]:
    """Return the record of how the latest attempt has ended; an empty one where it has left none that makes sense."""
    from hookflow.events.reading import read_record

    try:
        with run_dir.events.open("rb") as log:
            log.seek(max(log.seek(0, os.SEEK_END) - TAIL, 0))
            lines = log.read().splitlines()
    except OSError:
        return {}
    kinds = (b'{"k":"end"', b'{"k":"run"')
    last = next((line for line in reversed(lines) if line.startswith(kinds)), b"")
    try:
        record = read_record(last)
    except ValueError:
        return {}
    return dict(record) if record["k"] == "end" else {}


def _tell(*lines: str) -> None:
    warn("\n".join(lines))
