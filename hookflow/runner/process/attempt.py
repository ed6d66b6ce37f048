"""One attempt at a run: build it from its directory, restore it, train it."""

import os
import platform
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal

import torch

from hookflow.errors import Problem, UserError
from hookflow.events.records import VERSION
from hookflow.events.rundir import Parent, RunDir, short
from hookflow.graph.plan import Plan
from hookflow.pipeline.layers import in_python
from hookflow.pipeline.load import Loaded, load
from hookflow.pipeline.schema import Pipeline
from hookflow.runner.builder.build import build
from hookflow.runner.builder.components import Parts, layers
from hookflow.runner.checkpoint.copies import Copies
from hookflow.runner.checkpoint.held import held_parent, release_parent
from hookflow.runner.checkpoint.manifest import newest_good, read_manifest
from hookflow.runner.checkpoint.resume_rules import May, changed_hooks, changes_between, changes_since, recorded
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.data.source import close
from hookflow.runner.data.workers import explaining_worker_errors
from hookflow.runner.dispatch.torch_hooks import check_comm_hook
from hookflow.runner.distributed.consensus import Consensus, OverRanks
from hookflow.runner.distributed.parallel import class_of
from hookflow.runner.distributed.rendezvous import Ranks, process_group
from hookflow.runner.logging.budgets import Budgets
from hookflow.runner.logging.recorder import Recorder
from hookflow.runner.logging.writers import writing
from hookflow.runner.loop.trainer import Trainer
from hookflow.runner.precision import describe, explain_oom, torch_settings
from hookflow.runner.process.launch import adopt
from hookflow.runner.process.signals import Signals, Stop
from hookflow.runner.process.state import all_iterations
from hookflow.user_code import only_showable

if TYPE_CHECKING:
    from hookflow.runner.checkpoint.fork import Fork


@dataclass(frozen=True)
class Origin:
    """Where an attempt begins: at a checkpoint, that of a `parent` where the run is a fork; or at the beginning."""

    checkpoint: Path | None
    parent: Parent | None

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        return read_manifest(self.checkpoint) if self.checkpoint else {"it": 0, "ep": 0}

    @cached_property
    def before(self) -> tuple[Pipeline, Plan]:
        loaded, plan = recorded(self.checkpoint or Path())
        return loaded.pipeline, plan


class Attempt:
    """An attempt at the run in `run_dir`, from its newest checkpoint if it is to `resume`.

    Where a command has gone `back_to` a checkpoint, it starts from that one, and those after it are removed.
    """

    def __init__(
        self,
        run_dir: RunDir,
        recorder: Recorder,
        signals: Signals,
        ranks: Ranks,
        *,
        resume: bool,
        allow_changed_hooks: bool,
        back_to: Path | None = None,
    ) -> None:
        self._run_dir, self._recorder, self._signals, self._ranks = run_dir, recorder, signals, ranks
        self._resume, self._allows_changes, self._back_to = resume, allow_changed_hooks, back_to
        self._say = recorder.say
        self._wanted = run_dir.wanted() if resume else run_dir
        texts = {path.name: path.read_text("utf-8") for path in (self._wanted.pipeline, self._wanted.plan)}
        self._plan = Plan.from_json(texts[self._wanted.plan.name])
        self._loaded = _with_places(load(short(self._wanted.pipeline), recorded=True), self._wanted)
        self._store = CheckpointStore(run_dir.checkpoints, texts)

    def execute(self, built: Callable[[], None]) -> Stop:
        """Build and train; return why the run ended. `built` is called before the training begins.

        Raises UserError when the hooks are not those of the checkpoint, unless that is allowed, and Rewind when a
        command goes back; other exceptions propagate, those of hooks after the recorder has them.
        """
        loaded, ranks, store = self._loaded, self._ranks, self._store
        explained = explain_oom(loaded.pipeline, lambda: bool(store.all()))
        with explained, torch_settings(loaded.pipeline.run, self._say), process_group(loaded, ranks), only_showable():
            self._consensus = OverRanks(ranks, loaded.pipeline.distributed.timeout) if ranks.world > 1 else Consensus()
            origin = self._origin()
            self._report_changes(origin)
            parts = self._built(origin)
            arguments = parts.writers, self._run_dir, self._wanted.pipeline, origin.manifest["it"]
            with writing(*arguments, self._recorder, self._signals) as start_writers:
                _record_start(self._recorder, self._plan, parts, origin, loaded.pipeline.distributed.strategy)
                self._report_warnings()
                trainer = Trainer(
                    parts, self._plan, self._run_dir, store, self._recorder, self._signals, self._consensus
                )
                if ranks.first:
                    self._recorder.budgets = Budgets.of(loaded.pipeline, self._plan, self._say, trainer.throttles)
                begin = partial(self._begin, origin, start_writers)
                if not self._resume:
                    begin()
                built()
                begins = begin if self._resume else _nothing
                train = partial(trainer.train, origin.checkpoint, begins, fork=self._fork(origin, parts))
                try:
                    stop = explaining_worker_errors(partial(train, test=loaded.pipeline.run.test))
                    store.finish_copies()
                except Exception:  # not where a signal ends the run at once
                    store.finish_copies()
                    raise
                finally:
                    for source in parts.data.values():
                        close(source)
                    if ranks.first and store.all():
                        release_parent(self._run_dir)
        return stop or Stop("every iteration is done", "finished", 0, save=False)

    def _origin(self) -> Origin:
        """Choose the checkpoint, on all ranks the same, and read it."""
        forked = self._run_dir.parent()
        first = partial(_saved, self._store, self._say, self._resume, forked is not None)
        own = self._consensus.together(first if self._ranks.first else list[Path])
        saved = [self._back_to] if self._back_to else self._consensus.broadcast_object(own)
        checkpoint, passed_over = newest_good(saved, self._load)
        for line in passed_over if self._ranks.first else ():
            self._say(line, "warn")
        if checkpoint or not forked:
            return Origin(checkpoint, None)
        start = held_parent(self._run_dir, forked)
        if wrong := self._load(start):
            raise UserError(Problem(f"{forked}, which this run is a fork of, cannot be used: {wrong}"))
        return Origin(start, forked)

    def _load(self, path: Path) -> str:
        """Read a checkpoint on all ranks; return its damage, which any of them may find.

        Each rank reads for itself, from the memory of its machine: that is faster than to send the state to the others.
        """
        rank, world = self._ranks.rank, self._ranks.world
        own = self._consensus.together(partial(self._store.load, path, rank, world))
        return next(filter(None, self._consensus.all_gather_object(own)), "")

    def _report_changes(self, origin: Origin) -> None:
        """Report what has changed since the checkpoint. Raises UserError for hooks that may not change."""
        if origin.parent:
            for change in changes_between(origin.before, (self._loaded.public, self._plan)):
                if not change.why:  # `hookflow fork` has shown the keys
                    self._say(f"since {origin.parent}: {change.text}")
        elif origin.checkpoint:
            changes = changes_since(origin.checkpoint, self._loaded.public, self._plan)
            since = f"the checkpoint {origin.checkpoint.name}"
            if not self._allows_changes and (refused := changed_hooks(changes, since)):
                raise UserError(refused)
            for change in changes:
                self._say(f"since {since}: {change.text}", "info" if change.may is May.YES else "warn")

    def _built(self, origin: Origin) -> Parts:
        """Build the components of the run, and say what the event log lacks of the iterations before."""
        base, fresh = self._wanted.base(), origin.checkpoint is None
        parts = build(self._loaded, self._plan, base, self._say, ranks=self._ranks, fresh=fresh)
        kept = partial(_place_checkpoints, self._store, self._run_dir, parts.hooks.values(), self._say)
        self._consensus.together(kept if self._ranks.first else _nothing)
        check_comm_hook(self._plan, parts.strategy, parts.place)
        is_own = self._ranks.first and not self._back_to and not origin.parent
        if is_own and self._recorder.log_found < origin.manifest.get("log", 0):
            lost = "what was recorded between its end and the checkpoint is lost, as after a power cut"
            self._say(f"the event log ends before the checkpoint's iteration {origin.manifest['it']}: {lost}", "warn")
        return parts

    def _fork(self, origin: Origin, parts: Parts) -> "Fork | None":
        if origin.parent is None:
            return None
        from hookflow.runner.checkpoint.fork import Fork  # and the schedules, which few runs need

        return Fork(origin.parent, origin.before, (self._loaded.public, self._plan), parts, self._say)

    def _report_warnings(self) -> None:
        for problem in self._plan.warnings if self._ranks.first else ():
            place = f"{problem.where.at_line}: " if problem.where else ""
            hint = f" ({' '.join(problem.hint.split())})" if problem.hint else ""
            self._say(f"{place}{problem.message}{hint}", "warn")

    def _begin(self, origin: Origin, start_writers: Callable[[], None]) -> None:
        """Record the attempt, on all ranks or on none: the checkpoint has been read, if there is one."""
        self._consensus.any_rank(False)
        self._consensus.together(partial(self._record_files, origin) if self._ranks.first else _nothing)
        self._recorder.held = False
        start_writers()
        # in a thread, since a signal may raise in this one: the log says that the attempt began
        thread = Thread(target=partial(self._recorder.flush, frame=False), daemon=True)
        thread.start()
        thread.join()

    def _record_files(self, origin: Origin) -> None:
        adopt(self._run_dir)
        if origin.checkpoint and not origin.parent:
            self._store.rewind(origin.checkpoint, forget=self._back_to is not None)
            self._store.make_up_copies()
            release_parent(self._run_dir)


def _nothing() -> None:
    pass


def _saved(store: CheckpointStore, say: Callable[..., None], resume: bool, forked: bool) -> list[Path]:
    """Clear away what a killed process has left, and return the checkpoints to resume from, the newest first.

    Without one, a run that was `forked` starts at its parent's.
    """
    for path in store.clear_leftovers():
        say(f"{short(path)} is left alone: a process that lives is writing it", "warn")
    saved = store.all() if resume else []
    if resume and not saved and not forked:
        say("there is no checkpoint to resume from: starting at the beginning", "warn")
    return saved


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
    recorder: Recorder, plan: Plan, parts: Parts, origin: Origin, strategy: Literal["ddp", "fsdp"]
) -> None:
    resumed_from = origin.checkpoint if not origin.parent else None
    iters_per_epoch = parts.iters_per_epoch
    monitored = (getattr(hook, "modes", None) for hook in parts.hooks.values())
    modes = {name: mode for each in monitored if isinstance(each, Mapping) for name, mode in each.items()}
    begins = () if origin.manifest["it"] else parts.hooks.values()  # later on, what is frozen is frozen already
    frozen = [glob for hook in begins for glob in getattr(hook, "frozen_at_start", ())]
    recorder.put(
        "run",
        it=origin.manifest["it"],
        ep=origin.manifest["ep"],
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
        layers=[*layers(parts.model, frozen)] if parts.ranks.first else [],
        seed=parts.section.seed,
        data={split: source.info for split, source in parts.data.items()},
        limited=parts.limited,
        max_epochs=parts.section.max_epochs or 0,
        max_iters=all_iterations(parts.section.max_epochs, parts.section.max_iters, iters_per_epoch),
        iters_per_epoch=iters_per_epoch,
        modes={name: mode for name, mode in modes.items() if mode in ("min", "max")},  # hooks may have anything there
        resumed_from=resumed_from and resumed_from.name,
        forked_from=str(origin.parent) if origin.parent else None,
        rank=parts.ranks.rank,
        world=parts.ranks.world,
        strategy=strategy if parts.ranks.world > 1 else "",
    )
