"""`hookflow run --resume`: find the run, compare its pipeline, and check that the change is allowed."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hookflow.errors import Problem, UserError, by_place
from hookflow.text import print_error

if TYPE_CHECKING:
    from hookflow.events.rundir import RunDir
    from hookflow.pipeline.layers import Override
    from hookflow.pipeline.load import Loaded
    from hookflow.service.pipelines import Target


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of a pipeline on the command line."""

    overrides: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    shuffle: int | None = None
    dir: Path | None = None

    def load(self, path: Path) -> Loaded:
        """Load a pipeline file with the changes made. Raises UserError with everything that is wrong."""
        from hookflow.service.pipelines import read_pipeline

        folder = (f"run.dir={json.dumps(str(self.dir))}",) if self.dir else ()
        return read_pipeline(path, (*self.overrides, *folder), without=self.without, only=self.only)


def resumed(
    target: str | None, changes: Changes, *, allow_changed_hooks: bool = False, even_if_done: bool = False
) -> RunDir:
    """Return the run to resume, once what differs from its recording is shown, accepted, and written down beside it.

    `target` is a run, or a pipeline file: then its newest run is resumed by the file as it is now, with the `--set` and
    `--without` of the start of the run. Raises UserError with each change that a resumed run cannot make, and ends the
    command when nothing is left to do, unless `even_if_done`.
    """
    from hookflow.events.records import VERSION
    from hookflow.events.run_lock import release
    from hookflow.events.rundir import run_argument, short
    from hookflow.runner.checkpoint.manifest import damage, list_checkpoints, newest_good
    from hookflow.runner.checkpoint.resume_rules import recorded
    from hookflow.runner.process.launch import claim, keep, propose, withdraw
    from hookflow.service.pipelines import Target
    from hookflow.service.restored import restore_run, run_above
    from hookflow.service.runs import find_run, has_begun, has_checkpoint

    named, colon, checkpoint = (target or "").partition(":")
    file = Path(named) if named.endswith(".toml") else None
    hooks: Collection[str] | None = None
    root = changes.dir or Path("runs")
    if file:
        pipeline = changes.load(file).pipeline
        named, root, hooks = pipeline.run.name, Path(pipeline.run.dir), pipeline.hooks
    is_checkpoint = target is not None and (Path(target) / "manifest.json").is_file()
    if target and is_checkpoint and run_above(Path(target)) is None:
        run_dir = restore_run(Path(target), root)
        print_error(f"{short(run_dir.path)} is made again from {target}: what was logged before is not in it")
        named, colon, is_checkpoint = str(run_dir.path), "", False
    if target and (colon or is_checkpoint):
        fork = f"{run_argument(find_run(named, root, having=has_checkpoint))}:{checkpoint}" if file else target
        message = f"{target} is a checkpoint, and a resumed run goes on from its newest whole one"
        raise UserError(Problem(message, hint=f"a new run begins with it: hookflow fork {fork}"))
    run_dir = find_run(named or None, root, having=has_begun, or_file=file is None)
    _check_newest(run_dir, find_run(named or None, root))
    locks = claim(run_dir)  # refuses, before anything is written, where the run is live
    try:
        withdraw(run_dir)  # what a resume that was killed has left
        newest, _ = newest_good(list_checkpoints(run_dir.checkpoints), partial(damage, thorough=False))
        if (version := (facts := run_dir.describe()).get("version", VERSION)) > VERSION:
            author = f"hookflow {facts.get('hookflow', '')} recorded {run_dir.id} in format {version}"
            raise UserError(Problem(f"{author}, and this version reads format {VERSION}", hint="update hookflow"))
        then = Target(f"{run_dir.id} as it was recorded", *recorded(run_dir.path), run_dir.base())
        changed = file is not None or replace(changes, dir=None) != Changes()
        now = _wanted(run_dir, file, hooks, changes) if changed else then
        _accept(run_dir, newest, then, now, allow_changed_hooks=allow_changed_hooks)
        if not even_if_done and (done := _nothing_left(run_dir, newest, then, now)):
            print_error(done)
            raise typer.Exit(0)
        if changed:
            propose(now.loaded, now.plan, run_dir, now.base)
    except BaseException:
        release(locks)
        raise
    keep(run_dir, locks)  # until it starts: in between, another resume could record another length
    return run_dir


def _wanted(run_dir: RunDir, file: Path | None, hooks: Collection[str] | None, changes: Changes) -> Target:
    """Return the pipeline to run: the file, or without one the recorded pipeline, with the changes made.

    `hooks` are those of the file.
    """
    from hookflow.service.pipelines import Target, read_pipeline, valid_plan
    from hookflow.service.runs import recorded_plan

    if file is None:
        return as_recorded(run_dir, run_dir.path, changes)
    kept = list(_kept(run_dir.describe().get("overrides", []), changes.overrides, hooks))
    shuffle = recorded_plan(run_dir).shuffle if changes.shuffle is None else changes.shuffle
    if kept:
        print_error(f"kept from the start of the run: {' '.join(f'--set {override}' for override in kept)}")
    loaded = read_pipeline(file, (*kept, *changes.overrides), without=changes.without, only=changes.only)
    return Target(str(file), loaded, valid_plan(loaded, shuffle=shuffle, begins=False), file.parent)


def as_recorded(run_dir: RunDir, folder: Path, changes: Changes, hooks: Iterable[Override] = ()) -> Target:
    """Return the pipeline that a run has recorded in its directory or in a checkpoint (`folder`), with the changes.

    They are made after `hooks` are added.
    """
    from hookflow.events.rundir import short
    from hookflow.runner.checkpoint.resume_rules import recorded
    from hookflow.service.pipelines import Target, read_pipeline, valid_plan

    base, facts, file = run_dir.base(), run_dir.describe(), folder / run_dir.pipeline.name
    shuffle = recorded(folder)[1].shuffle if changes.shuffle is None else changes.shuffle
    overrides: tuple[str | Override, ...] = (*hooks, *changes.overrides)
    loaded = read_pipeline(short(file), overrides, without=changes.without, only=changes.only, base=base)
    plan = valid_plan(loaded, base, shuffle, begins=False)
    name = f"{run_dir.id} with {' '.join(loaded.overrides) or f'--shuffle {shuffle}'}"
    kept = _kept(facts.get("overrides", []), changes.overrides, None)
    source, written = Path(facts.get("source", file)), dict.fromkeys((*kept, *loaded.overrides))
    return Target(name, replace(loaded, source=source, overrides=tuple(written)), plan, base)


def _kept(recorded: Sequence[str], new: Sequence[str], hooks: Collection[str] | None) -> Iterator[str]:
    """Yield the recorded overrides that no new one replaces; not those of hooks that the file no longer has."""
    from hookflow.pipeline.layers import OTHER_LENGTH

    stated = [key for override in new if (key := _key(override))]
    if not all(any(_key(override) == ("run", length) for override in recorded) for length in OTHER_LENGTH):
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


def _accept(run_dir: RunDir, checkpoint: Path | None, then: Target, now: Target, *, allow_changed_hooks: bool) -> None:
    """Show what differs. Raises UserError with each change that a run cannot make once it has a checkpoint."""
    from hookflow.events.rundir import run_argument
    from hookflow.graph.plan import difference
    from hookflow.runner.checkpoint.resume_rules import May, changed_hooks, changes_since
    from hookflow.service.pipelines import difference_lines

    if now is then:
        return
    if result := difference((then.loaded.public, then.plan), (now.loaded.public, now.plan)):
        print_error("\n".join([*difference_lines(then, now, result), ""]))
    if checkpoint is None:
        return  # the run begins anew, and may begin as it likes
    changes = changes_since(checkpoint, now.loaded.public, now.plan)
    places, no = now.loaded.places, [change for change in changes if change.may is May.NO]
    if refused := [Problem(f"{change.text}: {change.why}", places.of(change.key)) for change in no]:
        hint = f"to resume it as it was recorded: hookflow run --resume {run_argument(run_dir)}"
        refused[-1] = replace(refused[-1], hint=f"{hint}\n    for a new run, leave --resume out")
    if not allow_changed_hooks:
        refused += changed_hooks(changes, f"the checkpoint {checkpoint.name}", places)
    if refused:
        raise UserError(sorted(refused, key=by_place))


def _check_newest(chosen: RunDir, newest: RunDir) -> None:
    """Tell the user that the newest run has not begun, and that an older one is resumed.

    Raises UserError where the older one is finished: to train that one on cannot be meant.
    """
    from hookflow.events.rundir import run_argument
    from hookflow.monitor.summary import read_overview

    if chosen.path == newest.path:
        return
    text = f"the newest run, {newest.id}, has no checkpoint: it has ended before its first iteration"
    end = read_overview(chosen, time.time()).state.end
    if end is None or end["status"] != "finished":
        print_error(f"{text}; resuming {chosen.id}, which is older")
        return
    begin = f"to begin {newest.id} again: hookflow run --resume {run_argument(newest)}"
    go_on = f"to go on with {chosen.id}: hookflow run --resume {run_argument(chosen)}"
    raise UserError(Problem(f"{text}. {chosen.id} is older and finished", hint=f"{begin}\n    {go_on}"))


def _nothing_left(run_dir: RunDir, checkpoint: Path | None, then: Target, now: Target) -> str:
    """Return the message for a run that has nothing left to do; "" for any other.

    It has finished at the length that it is to have; or a hook has ended it early, and nothing is changed.
    """
    from hookflow.events.rundir import run_argument
    from hookflow.graph.plan import difference
    from hookflow.monitor.summary import read_overview
    from hookflow.runner.checkpoint.manifest import read_manifest

    section, end = now.loaded.pipeline.run, read_overview(run_dir, time.time()).state.end
    if end is None or end["status"] != "finished" or (section.test and not then.loaded.pipeline.run.test):
        return ""
    reaches_iters = section.max_iters is not None and end["ep"] < (section.max_epochs or math.inf)
    key, unit = ("max_iters", "iterations") if reaches_iters else ("max_epochs", "epochs")
    length = getattr(section, key)
    done = end["it"] if reaches_iters else end["ep"]
    saved = done if checkpoint is None else read_manifest(checkpoint)["it" if reaches_iters else "ep"]
    train_on = f"hookflow run --resume {run_argument(run_dir)}"
    if min(done, saved) >= length:
        where = now.loaded.places.of(f"run.{key}")
        text = f"the run {run_dir.id} has done {done} {unit}, and run.{key} is {length} ({where})"
        return f"nothing is left to do: {text}\n    to train on: {train_on} --set run.{key}=N"
    changed = difference((then.loaded.public, then.plan), (now.loaded.public, now.plan))
    if changed or done > saved:
        return ""
    text = f"the run {run_dir.id} was ended early after {done} of {length} {unit}: {end['reason']}"
    hint = f"change what has ended it, e.g. {train_on} --without HOOK --allow-changed-hooks"
    return f"nothing is left to do: {text}\n    to train on, {hint}"
