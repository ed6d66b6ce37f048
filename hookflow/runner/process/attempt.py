"""One attempt at a run: build it from its directory, restore it, train it."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Literal

import torch

from hookflow.errors import Problem, UserError
from hookflow.events.records import VERSION
from hookflow.events.rundir import Parent, RunDir, short
from hookflow.graph.plan import Plan
from hookflow.pipeline.layers import in_python
from hookflow.pipeline.load import Loaded, load
from hookflow.runner.builder.build import build
from hookflow.runner.builder.components import Parts, layers
from hookflow.runner.checkpoint.copies import Copies
from hookflow.runner.checkpoint.manifest import newest_good, read_manifest
from hookflow.runner.checkpoint.resume_rules import (
    May,
    changed_hooks,
    changes_between,
    changes_since,
    recorded,
)
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.data.source import close
from hookflow.runner.data.workers import explaining_worker_errors
from hookflow.runner.dispatch.torch_hooks import check_comm_hook
from hookflow.runner.distributed.consensus import Alone, AnyConsensus, Consensus
from hookflow.runner.distributed.parallel import class_of
from hookflow.runner.distributed.process_group import process_group
from hookflow.runner.distributed.rendezvous import Ranks
from hookflow.runner.logging.budgets import Budgets
from hookflow.runner.logging.recorder import Recorder
from hookflow.runner.logging.writers import writing
from hookflow.runner.loop.trainer import Trainer
from hookflow.runner.numerics.precision import describe, explain_oom, torch_settings
from hookflow.runner.process.launch import adopt
from hookflow.runner.process.signals import Signals, Stop
from hookflow.runner.process.state import all_iterations
from hookflow.user_code import only_showable


def execute(
    run_dir: RunDir,
    recorder: Recorder,
    signals: Signals,
    ranks: Ranks,
    built: Callable[[], None],
    *,
    resume: bool,
    allow_changed_hooks: bool,
    back_to: Path | None = None,
) -> Stop:
    """Build and train the run in `run_dir`, from its newest checkpoint if `resume`; return why it ended.

    Where a command has gone `back_to` a checkpoint, it starts from that one, and those after it are removed. `built` is
    called before the training begins. Raises UserError when the hooks are not those of the checkpoint, unless that is
    allowed, and Rewind when a command goes back; other exceptions propagate, those of hooks after `recorder` has them.
    """
    say = recorder.say
    wanted = run_dir.wanted() if resume else run_dir
    texts = {path.name: path.read_text("utf-8") for path in (wanted.pipeline, wanted.plan)}
    plan = Plan.from_json(texts[wanted.plan.name])
    loaded = _with_places(load(short(wanted.pipeline), recorded=True), wanted)
    store = CheckpointStore(run_dir.checkpoints, texts)
    explained = explain_oom(loaded.pipeline, lambda: bool(store.all()))
    with explained, torch_settings(loaded.pipeline.run, say), process_group(loaded, ranks), only_showable():
        consensus = Consensus(ranks, loaded.pipeline.distributed.timeout) if ranks.world > 1 else Alone()
        first = partial(_begin, store, say, resume, run_dir.parent() is not None) if ranks.first else list[Path]
        saved = [back_to] if back_to else consensus.broadcast_object(consensus.together(first))
        checkpoint, passed_over = newest_good(saved, partial(_load, store, consensus))
        for line in passed_over if ranks.first else ():
            say(line, "warn")
        parent = run_dir.parent() if checkpoint is None else None
        if checkpoint is not None:
            changes, since = changes_since(checkpoint, loaded.public, plan), f"the checkpoint {checkpoint.name}"
            if not allow_changed_hooks and (refused := changed_hooks(changes, since)):
                raise UserError(refused)
            for change in changes:
                say(f"since {since}: {change.text}", "info" if change.may is May.YES else "warn")
        elif parent is not None:
            checkpoint = Path(parent.path)
            if wrong := _load(store, consensus, checkpoint):
                raise UserError(Problem(f"{parent}, which this run is a fork of, cannot be used: {wrong}"))
            then = recorded(checkpoint)
            before = then[0].pipeline, then[1]
            for change in changes_between(before, (loaded.public, plan)):
                say(f"since {parent}: {change.text}")
        parts = build(loaded, plan, wanted.base(), say, ranks=ranks, fresh=checkpoint is None)
        kept = partial(_place_checkpoints, store, run_dir, parts.hooks.values(), say)
        consensus.together(kept if ranks.first else _nothing)
        check_comm_hook(plan, parts.strategy, parts.place)
        manifest = read_manifest(checkpoint) if checkpoint else {"it": 0, "ep": 0}
        if ranks.first and not back_to and not parent and recorder.log_found < manifest.get("log", 0):
            lost = "what was recorded between its end and the checkpoint is lost, as after a power cut"
            say(f"the event log ends before the checkpoint's iteration {manifest['it']}: {lost}", "warn")
        with writing(parts.writers, run_dir, wanted.pipeline, manifest["it"], recorder, signals) as start_writers:
            origin = parent or checkpoint
            _record_start(recorder, plan, parts, manifest, origin, loaded.pipeline.distributed.strategy)
            for problem in plan.warnings if ranks.first else ():
                place = f"{problem.where.at_line}: " if problem.where else ""
                hint = f" ({' '.join(problem.hint.split())})" if problem.hint else ""
                say(f"{place}{problem.message}{hint}", "warn")
            trainer = Trainer(parts, plan, run_dir, store, recorder, signals, consensus)
            if ranks.first:
                recorder.budgets = Budgets.of(loaded.pipeline, plan, say, trainer.throttles)

            def record_files() -> None:
                adopt(run_dir)
                if checkpoint is not None and parent is None:
                    store.rewind(checkpoint, forget=back_to is not None)

            def begin_attempt() -> None:
                """Record the attempt, on all ranks or on none: the checkpoint has been read, if there is one."""
                consensus.any_rank(False)
                consensus.together(record_files if ranks.first else _nothing)
                recorder.held = False
                start_writers()
                # in a thread, since a signal may raise in this one: the log says that the attempt began
                thread = Thread(target=partial(recorder.flush, frame=False), daemon=True)
                thread.start()
                thread.join()

            if not resume:
                begin_attempt()
            built()
            fork = None
            if parent is not None:
                from hookflow.runner.checkpoint.fork import Fork  # and the schedules, which few runs need

                fork = Fork(parent, before, (loaded.public, plan), parts, say)
            train = partial(trainer.train, checkpoint, begin_attempt if resume else _nothing, fork=fork)
            try:
                stop = explaining_worker_errors(partial(train, test=loaded.pipeline.run.test))
                store.finish_copies()
            except Exception:  # not where a signal ends the run at once
                store.finish_copies()
                raise
            finally:
                for source in parts.data.values():
                    close(source)
    return stop or Stop("every iteration is done", "finished", 0, save=False)


def _nothing() -> None:
    pass


def _begin(store: CheckpointStore, say: Callable[..., None], resume: bool, forked: bool) -> list[Path]:
    """Clear away what a killed process has left, and return the checkpoints to resume from, the newest first.

    Without one, a run that was `forked` starts at its parent's.
    """
    for path in store.clear_leftovers():
        say(f"{short(path)} is left alone: a process that lives is writing it", "warn")
    saved = store.all() if resume else []
    if resume and not saved and not forked:
        say("there is no checkpoint to resume from: starting at the beginning", "warn")
    return saved


def _load(store: CheckpointStore, consensus: AnyConsensus, path: Path) -> str:
    """Read a checkpoint on all ranks; return its damage, which any of them may find.

    Each rank reads for itself: from the memory of its machine, which is faster than to send the state to the others.
    """
    ranks = consensus.ranks
    wrong = consensus.all_gather_object(consensus.together(partial(store.load, path, ranks.rank, ranks.world)))
    return next(filter(None, wrong), "")


def _with_places(recorded: Loaded, run_dir: RunDir) -> Loaded:
    """Return the recorded pipeline with the places of the user's file, if that is still the same pipeline."""
    facts = run_dir.describe()
    try:
        message = [in_python(text) if facts.get("in_python") else text for text in facts["overrides"]]
        written = load(Path(facts["source"]), message)
    except (UserError, KeyError, TypeError):  # it is invalid by now, or unknown
        return recorded
    return written if written.public == recorded.public else recorded


def _place_checkpoints(
    store: CheckpointStore, run_dir: RunDir, hooks: Collection[Any], say: Callable[..., None]
) -> None:
    """Keep the checkpoints in the hooks' folder, and copy them elsewhere. Raises UserError for several folders."""
    store.copies = Copies.of(hooks, run_dir, say)
    folders = {folder for hook in hooks if (folder := getattr(hook, "keeps_checkpoints_in", None)) is not None}
    if len(folders) > 1:
        message = f"the checkpoints of a run are in one folder, and out_dir says {' and '.join(sorted(folders))}"
        raise UserError(Problem(message))
    for folder in folders:
        store.keep_in(Path(folder), Path(run_dir.path.parent.name, run_dir.id))


def _record_start(
    recorder: Recorder,
    plan: Plan,
    parts: Parts,
    manifest: Mapping[str, Any],
    origin: Path | Parent | None,
    strategy: Literal["ddp", "fsdp"],
) -> None:
    """Record the beginning of an attempt; `origin` is the own checkpoint that it resumes from, or that of a parent."""
    iters_per_epoch = parts.iters_per_epoch
    monitored = (getattr(hook, "modes", None) for hook in parts.hooks.values())
    modes = {name: mode for each in monitored if isinstance(each, Mapping) for name, mode in each.items()}
    recorder.put(
        "run",
        it=manifest["it"],
        ep=manifest["ep"],
        version=VERSION,
        pipeline=plan.pipeline,
        pid=os.getpid(),
        host=socket.gethostname(),
        python=platform.python_version(),
        torch=torch.__version__,
        device=describe(parts.device),
        precision=parts.precision,
        model=" + ".join(class_of(model) for model in parts.models.values()),
        params=sum(p.numel() for p in parts.model.parameters()),
        layers=[*layers(parts.model)] if parts.ranks.first else [],
        seed=parts.section.seed,
        data={split: source.info for split, source in parts.data.items()},
        limited=parts.limited,
        max_epochs=parts.section.max_epochs or 0,
        max_iters=all_iterations(parts.section.max_epochs, parts.section.max_iters, iters_per_epoch),
        iters_per_epoch=iters_per_epoch,
        modes={name: mode for name, mode in modes.items() if mode in ("min", "max")},  # hooks may have anything there
        resumed_from=origin.name if isinstance(origin, Path) else None,
        forked_from=str(origin) if isinstance(origin, Parent) else None,
        rank=parts.ranks.rank,
        world=parts.ranks.world,
        strategy=strategy if parts.ranks.world > 1 else "",
    )
