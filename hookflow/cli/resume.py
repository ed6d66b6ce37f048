"""`hookflow run --resume`.

It finds the run, compares its pipeline, and checks that the change is allowed.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hookflow.errors import Problem, UserError, make_place_key
from hookflow.text import print_error

if TYPE_CHECKING:
    from hookflow.events.rundir import RunDir
    from hookflow.pipeline.layers import Override
    from hookflow.pipeline.load import Loaded
    from hookflow.service.pipelines import Target


@dataclass(frozen=True, slots=True)
class PipelineChanges:
    """The changes of a pipeline on the command line."""

    overrides: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    shuffle: int | None = None
    dir: Path | None = None

    def load(self, path: Path) -> Loaded:
        """Load a pipeline file with the changes made.

        Raises UserError with everything that is wrong.
        """
        from hookflow.service.pipelines import read_pipeline

        overrides = list(self.overrides)
        if self.dir:
            overrides.append(f"run.dir={json.dumps(str(self.dir))}")
        return read_pipeline(path, overrides, without=self.without, only=self.only)

    def any_of_keys(self) -> bool:
        """Return whether anything but the folder of runs is changed."""
        return bool(self.overrides or self.without or self.only) or self.shuffle is not None


@dataclass(frozen=True, slots=True)
class ResumeTarget:
    """The run that a command names, "" for the newest, below the folder `root`.

    `file` is the pipeline file that was named in its place, `hooks` are those of the file.
    """

    run: str
    root: Path
    file: Path | None = None
    hooks: Collection[str] | None = None


def _parse_target(target: str | None, changes: PipelineChanges) -> ResumeTarget:
    """Return what a run, a pipeline file or the folder of a checkpoint means.

    Raises UserError where the file is wrong, and for RUN:CHECKPOINT, which is no run to go on with.
    """
    from hookflow.events.rundir import run_argument
    from hookflow.service.runs import find_run, has_checkpoint

    name, colon, checkpoint = (target or "").partition(":")
    named = ResumeTarget(name, changes.dir or Path("runs"))
    if name.endswith(".toml"):
        file = Path(name)
        pipeline = changes.load(file).pipeline
        named = ResumeTarget(pipeline.run.name, Path(pipeline.run.dir), file, pipeline.hooks)
    if target and (Path(target) / "manifest.json").is_file():
        return replace(named, run=_run_of_checkpoint(target, named.root))
    if colon:
        parent = str(target)
        if named.file is not None:
            run = find_run(named.run, named.root, having=has_checkpoint)
            parent = f"{run_argument(run)}:{checkpoint}"
        raise UserError(_checkpoint_problem(str(target), parent))
    return named


def prepare_resume(
    target: str | None,
    changes: PipelineChanges,
    *,
    allow_changed_hooks: bool = False,
    strict: bool = False,
) -> RunDir:
    """Return the run to resume.

    All differences from its recording were shown, accepted, and written down beside it.

    `target` is a run, or a pipeline file: then its newest run is resumed by the file as it is now,
    with the `--set` and `--without` of the start of the run. Raises UserError with each change that
    a resumed run cannot make, and ends the command when nothing is left to do, also where torchrun
    has started it. With `strict` a change of the code is refused, too.
    """
    from hookflow.events.run_lock import release
    from hookflow.events.rundir import resume_command
    from hookflow.runner.checkpoint.manifest import find_damage, find_newest_good, list_checkpoints
    from hookflow.runner.checkpoint.resume_rules import read_recorded
    from hookflow.runner.process.launch import claim, keep, rollback_resume, stage_resume
    from hookflow.service.code import check_code
    from hookflow.service.pipelines import Target
    from hookflow.service.runs import find_run, has_begun

    named = _parse_target(target, changes)
    run_dir = find_run(named.run or None, named.root, having=has_begun, or_file=named.file is None)
    if run_dir.describe().get("loop") == "own":
        message = f"the loop of {run_dir.id} is a program of its own"
        raise UserError(Problem(message, hint=f"start {resume_command(run_dir)}"))
    _check_newest(run_dir, find_run(named.run or None, named.root))

    locks = claim(run_dir)  # refuses, before anything is written, where the run is live
    try:
        rollback_resume(run_dir)  # what a resume that was killed has left
        newest, _ = find_newest_good(
            list_checkpoints(run_dir.checkpoints), partial(find_damage, thorough=False)
        )
        _check_version(run_dir)
        then = Target(
            f"{run_dir.id} as it was recorded", *read_recorded(run_dir.path), run_dir.base()
        )
        now = then
        is_changed = named.file is not None or changes.any_of_keys()
        if is_changed:
            now = _read_target(run_dir, named.file, named.hooks, changes)
        _accept(run_dir, newest, then, now, allow_changed_hooks=allow_changed_hooks)
        if strict and newest is not None:
            check_code(run_dir, newest, now)
        done = _nothing_left(run_dir, newest, then, now)
        if done:
            print_error(done)
            raise typer.Exit(0)
        if is_changed:
            stage_resume(now.loaded, now.plan, run_dir, now.base)
    except BaseException:
        release(locks)
        raise
    keep(run_dir, locks)  # until it starts: in between, another resume could record another length
    return run_dir


def _run_of_checkpoint(checkpoint: str, root: Path) -> str:
    """Return the run that is made again, below `root`, from a copy of a checkpoint that lies apart.

    Raises UserError for a checkpoint that lies in its run.
    """
    from hookflow.events.rundir import short
    from hookflow.service.restored import restore_run, run_above

    if run_above(Path(checkpoint)) is not None:
        raise UserError(_checkpoint_problem(checkpoint, checkpoint))
    run_dir = restore_run(Path(checkpoint), root)
    print_error(
        f"{short(run_dir.path)} is made again from {checkpoint}: what was logged before is not"
        " in it"
    )
    return str(run_dir.path)


def _checkpoint_problem(target: str, parent: str) -> Problem:
    """Return the problem of resuming a checkpoint; `parent` is what `hookflow fork` calls it."""
    message = f"{target} is a checkpoint, and a resumed run goes on from its newest whole one"
    return Problem(message, hint=f"a new run begins with it: hookflow fork {parent}")


def _check_version(run_dir: RunDir) -> None:
    """Raise UserError where a later version of hookflow has recorded a run."""
    from hookflow.events.records import VERSION

    facts = run_dir.describe()
    version = facts.get("version", VERSION)
    if version > VERSION:
        author = f"hookflow {facts.get('hookflow', '')} recorded {run_dir.id} in format {version}"
        raise UserError(
            Problem(f"{author}, and this version reads format {VERSION}", hint="update hookflow")
        )


def _read_target(
    run_dir: RunDir, file: Path | None, hooks: Collection[str] | None, changes: PipelineChanges
) -> Target:
    """Return the pipeline to run, with the changes made.

    It is that of the file, or without one the recorded pipeline.

    `hooks` are those of the file.
    """
    from hookflow.service.pipelines import Target, read_pipeline, valid_plan
    from hookflow.service.runs import read_recorded_plan

    if file is None:
        return as_recorded(run_dir, run_dir.path, changes)
    kept = list(
        _list_kept_overrides(run_dir.describe().get("overrides", []), changes.overrides, hooks)
    )
    shuffle = changes.shuffle
    if shuffle is None:
        shuffle = read_recorded_plan(run_dir).shuffle
    if kept:
        options = " ".join(f"--set {override}" for override in kept)
        print_error(f"kept from the start of the run: {options}")
    loaded = read_pipeline(
        file, (*kept, *changes.overrides), without=changes.without, only=changes.only
    )
    plan = valid_plan(loaded, shuffle=shuffle, begins=False)
    return Target(str(file), loaded, plan, file.parent)


def as_recorded(
    run_dir: RunDir,
    folder: Path,
    changes: PipelineChanges,
    hooks: Iterable[Override] = (),
    base: Path | None = None,
) -> Target:
    """Return the pipeline that a run or a checkpoint (`folder`) has recorded, with the changes.

    They are made after `hooks` are added. The pipeline's own files are relative to `base`, that of
    the run if left out.
    """
    from hookflow.events.initial_weights import read_recorded_weights
    from hookflow.events.rundir import short
    from hookflow.runner.checkpoint.resume_rules import read_recorded
    from hookflow.service.pipelines import Target, read_pipeline, valid_plan

    facts = run_dir.describe()
    file = folder / run_dir.pipeline.name
    if base is None:
        base = run_dir.base()
    shuffle = changes.shuffle
    if shuffle is None:
        _, recorded_plan = read_recorded(folder)
        shuffle = recorded_plan.shuffle
    overrides: tuple[str | Override, ...] = (*hooks, *changes.overrides)
    loaded = read_pipeline(
        short(file), overrides, without=changes.without, only=changes.only, base=base
    )
    plan = valid_plan(loaded, base, shuffle, begins=False)
    changed = " ".join(loaded.overrides) or f"--shuffle {shuffle}"
    kept = _list_kept_overrides(facts.get("overrides", []), changes.overrides, None)
    all_overrides = dict.fromkeys((*kept, *loaded.overrides))  # each once
    source = Path(facts.get("source", file))
    loaded = replace(
        loaded,
        source=source,
        overrides=tuple(all_overrides),
        weights=read_recorded_weights(run_dir),
    )
    return Target(f"{run_dir.id} with {changed}", loaded, plan, base)


def _list_kept_overrides(
    recorded: Sequence[str], new: Sequence[str], hooks: Collection[str] | None
) -> Iterator[str]:
    """Yield the recorded overrides that no new one replaces.

    Overrides of hooks that the file no longer has are left out.
    """
    from hookflow.pipeline.layers import OTHER_LENGTH

    recorded_keys = [_key(override) for override in recorded]
    stated = [key for key in map(_key, new) if key]
    had_both_lengths = all(("run", length) in recorded_keys for length in OTHER_LENGTH)
    if not had_both_lengths:  # a new length replaces the other one, too
        for length, other in OTHER_LENGTH.items():
            if ("run", length) in stated:
                stated.append(("run", other))
    for override, key in zip(recorded, recorded_keys, strict=True):
        is_gone = hooks is not None and key[0] == "hooks" and len(key) > 2 and key[1] not in hooks
        is_replaced = any(key[: len(prefix)] == prefix for prefix in stated)
        if not is_gone and not is_replaced:
            yield override


def _key(override: str) -> tuple[str, ...]:
    from hookflow.pipeline.source_map import split_key

    try:
        return split_key(override)[0]
    except ValueError:  # which reading the file reports
        return ()


def _accept(
    run_dir: RunDir,
    checkpoint: Path | None,
    then: Target,
    now: Target,
    *,
    allow_changed_hooks: bool,
) -> None:
    """Show what differs.

    Raises UserError with each change that a run cannot make once it has a checkpoint.
    """
    from hookflow.events.rundir import run_argument
    from hookflow.graph.plan import difference
    from hookflow.runner.checkpoint.resume_rules import (
        ChangeRule,
        changed_hooks,
        find_changes_since,
    )
    from hookflow.service.differences import difference_lines

    if now is then:
        return
    result = difference((then.loaded.public, then.plan), (now.loaded.public, now.plan))
    if result:
        print_error("\n".join([*difference_lines(then, now, result), ""]))
    if checkpoint is None:
        return  # the run begins anew, and may begin as it likes
    changes = find_changes_since(checkpoint, now.loaded.public, now.plan)
    places = now.loaded.places
    refused = []
    for change in changes:
        if change.may is ChangeRule.NO:
            refused.append(Problem(f"{change.text}: {change.why}", places.of(change.key)))
    if refused:
        hint = f"to resume it as it was recorded: hookflow run --resume {run_argument(run_dir)}"
        refused[-1] = replace(refused[-1], hint=f"{hint}\n    for a new run, leave --resume out")
    if not allow_changed_hooks:
        refused += changed_hooks(changes, f"the checkpoint {checkpoint.name}", places)
    if refused:
        raise UserError(sorted(refused, key=make_place_key))


def _check_newest(chosen: RunDir, newest: RunDir) -> None:
    """Tell the user that the newest run has not begun, and that an older one is resumed.

    Raises UserError where the older one is finished: to train that one on cannot be meant.
    """
    from hookflow.events.rundir import run_argument
    from hookflow.monitor.summary import read_run_summary

    if chosen.path == newest.path:
        return
    text = (
        f"the newest run, {newest.id}, has no checkpoint: it has ended before its first iteration"
    )
    end = read_run_summary(chosen, time.time()).state.end
    if end is None or end["status"] != "finished":
        print_error(f"{text}; resuming {chosen.id}, which is older")
        return
    begin = f"to begin {newest.id} again: hookflow run --resume {run_argument(newest)}"
    go_on = f"to go on with {chosen.id}: hookflow run --resume {run_argument(chosen)}"
    raise UserError(
        Problem(f"{text}. {chosen.id} is older and finished", hint=f"{begin}\n    {go_on}")
    )


def _nothing_left(run_dir: RunDir, checkpoint: Path | None, then: Target, now: Target) -> str:
    """Return the message for a run that has nothing left to do; "" for any other.

    It has finished at the length that it is to have; or a hook has ended it early, and nothing is
    changed.
    """
    from hookflow.events.rundir import run_argument
    from hookflow.graph.plan import difference
    from hookflow.monitor.summary import read_run_summary
    from hookflow.runner.checkpoint.manifest import read_manifest
    from hookflow.service.code import code_changes

    section = now.loaded.pipeline.run
    end = read_run_summary(run_dir, time.time()).state.end
    if end is None or end["status"] != "finished":
        return ""
    if section.test and not then.loaded.pipeline.run.test:
        return ""  # the test is left to do
    last_saved: Mapping[str, Any] = end
    if checkpoint is not None:
        last_saved = read_manifest(checkpoint)
    if section.max_iters is not None and end["ep"] < (section.epoch_limit or math.inf):
        key = "max_iters"
        unit = "iterations"
        done = end["it"]
        saved = last_saved["it"]
    else:
        key = "max_epochs"
        unit = "epochs"
        done = end["ep"]
        saved = last_saved["ep"]
    length = getattr(section, key)
    train_on = f"hookflow run --resume {run_argument(run_dir)}"
    if min(done, saved) >= length:
        where = now.loaded.places.of(f"run.{key}")
        text = f"the run {run_dir.id} has done {done} {unit}, and run.{key} is {length} ({where})"
        return f"nothing is left to do: {text}\n    to train on: {train_on} --set run.{key}=N"
    if difference((then.loaded.public, then.plan), (now.loaded.public, now.plan)):
        return ""
    if checkpoint is not None and code_changes(run_dir, checkpoint, now.base):
        return ""
    if done > saved:
        return ""
    text = f"the run {run_dir.id} was ended early after {done} of {length} {unit}: {end['reason']}"
    hint = f"change what has ended it, e.g. {train_on} --without HOOK --allow-changed-hooks"
    return f"nothing is left to do: {text}\n    to train on, {hint}"
