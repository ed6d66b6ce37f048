"""One attempt at a run: build it from its directory, restore it, train it."""

import os
import platform
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal

import torch

from hookflow.errors import Problem, UserError
from hookflow.events.initial_weights import read_recorded_weights
from hookflow.events.recorded_code import RecordedCode, code_before
from hookflow.events.records import VERSION
from hookflow.events.rundir import Parent, RunDir, short
from hookflow.graph.plan import Plan
from hookflow.hooks.capabilities import SavedCheckpoints
from hookflow.metric_mode import Mode
from hookflow.pipeline.layers import in_python
from hookflow.pipeline.load import Loaded, load
from hookflow.pipeline.schema import Pipeline
from hookflow.runner.builder.build import build
from hookflow.runner.builder.components import RunComponents, iter_layers
from hookflow.runner.checkpoint.copies import CheckpointCopies
from hookflow.runner.checkpoint.held import find_parent_checkpoint, release_parent
from hookflow.runner.checkpoint.manifest import find_newest_good, parse_iteration, read_manifest
from hookflow.runner.checkpoint.resume_rules import (
    ChangeRule,
    RecordedChange,
    changed_hooks,
    find_changes,
    find_changes_since,
    read_recorded,
)
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.data.source import close
from hookflow.runner.data.workers import call_explaining_worker_errors
from hookflow.runner.device.precision import describe, explain_oom, torch_settings
from hookflow.runner.dispatch.torch_hooks import check_comm_hook
from hookflow.runner.distributed.consensus import ProcessGroupConsensus, RankConsensus
from hookflow.runner.distributed.parallel import class_of
from hookflow.runner.distributed.rendezvous import RankLayout, process_group
from hookflow.runner.logging.budgets import BudgetController
from hookflow.runner.logging.recorder import EventRecorder
from hookflow.runner.logging.writers import run_writers
from hookflow.runner.loop.trainer import Trainer
from hookflow.runner.process.code_recorder import CodeRecorder
from hookflow.runner.process.launch import commit_resume
from hookflow.runner.process.signals import SignalCollector, StopReason
from hookflow.runner.process.state import all_iterations
from hookflow.user_code import only_showable

if TYPE_CHECKING:
    from hookflow.runner.state.fork import ForkAdapter


@dataclass(frozen=True)
class AttemptOrigin:
    """Where an attempt begins: at a checkpoint, or at the beginning.

    The checkpoint is that of a `parent` where the run is a fork.
    """

    checkpoint: Path | None
    parent: Parent | None

    @property
    def name(self) -> str:
        """The checkpoint as people name it; empty at the beginning."""
        if self.parent is not None:
            return str(self.parent)
        if self.checkpoint is not None:
            return self.checkpoint.name
        return ""

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        if self.checkpoint:
            return read_manifest(self.checkpoint)
        return {"it": 0, "ep": 0}

    @cached_property
    def before(self) -> tuple[Pipeline, Plan]:
        loaded, plan = read_recorded(self.checkpoint or Path())
        return loaded.pipeline, plan


BuildComponents = Callable[[AttemptOrigin], RunComponents]
"""Builds the components of an attempt that begins somewhere."""


@dataclass(frozen=True)
class PreparedAttempt:
    """An attempt that is built, and whose loop can begin."""

    trainer: Trainer
    origin: AttemptOrigin
    parts: RunComponents
    begin: Callable[[], None]
    """Records the attempt, once the checkpoint has been read if there is one."""
    is_changed: bool
    """Whether the pipeline has changed since the checkpoint; a fork is a change."""


class TrainingAttempt:
    """An attempt at the run in `run_dir`, from its newest checkpoint if it is to `resume`.

    Where a command has gone `back_to` a checkpoint, it starts from that one, and those after it are
    removed. The same holds for a `resumed_iter`, which is the iteration of a checkpoint, if there
    is one of that iteration.
    """

    def __init__(
        self,
        run_dir: RunDir,
        recorder: EventRecorder,
        signals: SignalCollector,
        ranks: RankLayout,
        *,
        resume: bool,
        allow_changed_hooks: bool,
        back_to: Path | None = None,
        resumed_iter: int | None = None,
    ) -> None:
        self._run_dir = run_dir
        self._recorder = recorder
        self._signals = signals
        self._ranks = ranks
        self._resume = resume
        self._allows_changes = allow_changed_hooks
        self._back_to = back_to
        self._resumed_iter = resumed_iter
        self._say = recorder.say
        self._wanted = run_dir.wanted() if resume else run_dir
        texts = {
            path.name: path.read_text("utf-8")
            for path in (self._wanted.pipeline, self._wanted.plan)
        }
        self._plan = Plan.from_json(texts[self._wanted.plan.name])
        loaded = _with_places(load(short(self._wanted.pipeline), recorded=True), self._wanted)
        self._loaded = replace(loaded, weights=read_recorded_weights(run_dir))
        self._store = CheckpointStore(run_dir.checkpoints, texts)
        self._code = CodeRecorder(run_dir, self._loaded, self._wanted.base(), recorder.say)

    def execute(self, built: Callable[[], None]) -> StopReason:
        """Build and train; return why the run ended. `built` is called before the training begins.

        Raises UserError when the hooks are not those of the checkpoint, unless that is allowed, and
        Rewind when a command goes back; other exceptions propagate, those of hooks after the
        recorder has them.
        """
        loaded = self._loaded
        ranks = self._ranks
        store = self._store
        explained = explain_oom(loaded.pipeline, lambda: bool(store.all()))
        with (
            explained,
            torch_settings(loaded.pipeline.run, self._say),
            process_group(loaded, ranks),
            only_showable(),
        ):
            consensus = RankConsensus()
            if ranks.world > 1:
                consensus = ProcessGroupConsensus(ranks, loaded.pipeline.distributed.timeout)
            with self.prepared(consensus, self._build) as prepared:
                trainer = prepared.trainer
                origin = prepared.origin
                begins = prepared.begin
                if not self._resume:
                    prepared.begin()
                    begins = _nothing
                built()
                fork = self._make_fork_adapter(origin, prepared.parts)
                train = partial(
                    trainer.train,
                    origin.checkpoint,
                    begins,
                    fork=fork,
                    is_changed=prepared.is_changed,
                )
                try:
                    stop = call_explaining_worker_errors(
                        partial(train, test=loaded.pipeline.run.test)
                    )
                    if stop is not None:
                        self._recorder.ends_as = stop.status
                    store.finish_copies()
                except Exception:  # not where a signal ends the run at once
                    store.finish_copies()
                    raise
                finally:
                    for source in prepared.parts.data.values():
                        close(source)
                    self.finish_files()
        return stop or StopReason("every iteration is done", "finished", 0, save=False)

    @contextmanager
    def prepared(
        self, consensus: RankConsensus, build: BuildComponents
    ) -> Iterator["PreparedAttempt"]:
        """Choose the checkpoint, build and record, and yield the trainer.

        `build` makes the components, the start is recorded, and the trainer connects them. Raises
        UserError when the hooks are not those of the checkpoint, unless that is allowed.
        """
        self._consensus = consensus
        origin = self._choose_origin()
        is_changed = self._report_changes(origin)
        parts = self._build_components(origin, build)
        arguments = parts.writers, self._run_dir, self._wanted.pipeline, origin.manifest["it"]
        with run_writers(*arguments, self._recorder, self._signals) as start_writers:
            _record_start(
                self._recorder,
                self._plan,
                parts,
                origin,
                self._loaded.pipeline.distributed.strategy,
            )
            self._report_warnings()
            trainer = Trainer(
                parts,
                self._plan,
                self._run_dir,
                self._store,
                self._recorder,
                self._signals,
                consensus,
            )
            if self._ranks.first:
                self._recorder.budgets = BudgetController.of(
                    self._loaded.pipeline, self._plan, self._say, trainer.throttles
                )
            begin = partial(self._begin, origin, start_writers)
            yield PreparedAttempt(trainer, origin, parts, begin, is_changed)

    def finish_files(self) -> None:
        """Record code that was imported late, and let go of a parent's checkpoint.

        The run must have a checkpoint of its own by then.
        """
        if not self._ranks.first:
            return
        self._code.finish()
        if self._store.all():
            release_parent(self._run_dir)

    def finish_copies(self) -> None:
        """Wait until the copies of checkpoints are where they are to be."""
        self._store.finish_copies()

    def _build(self, origin: AttemptOrigin) -> RunComponents:
        base = self._wanted.base()
        fresh = origin.checkpoint is None
        return build(self._loaded, self._plan, base, self._say, ranks=self._ranks, fresh=fresh)

    def _choose_origin(self) -> AttemptOrigin:
        """Choose the checkpoint, on all ranks the same, and read it."""
        forked = self._run_dir.parent()
        first = partial(_list_saved, self._store, self._say, self._resume, forked is not None)
        own = self._consensus.together(first if self._ranks.first else list[Path])
        of_iteration = [path for path in own if parse_iteration(path) == self._resumed_iter]
        if of_iteration:
            own = of_iteration
        if self._back_to:
            saved = [self._back_to]
        else:
            saved = self._consensus.broadcast_object(own)
        checkpoint, passed_over = find_newest_good(saved, self._load)
        if self._ranks.first:
            for line in passed_over:
                self._say(line, "warn")
        if checkpoint or not forked:
            return AttemptOrigin(checkpoint, None)
        start = find_parent_checkpoint(self._run_dir, forked)
        wrong = self._load(start)
        if wrong:
            raise UserError(
                Problem(f"{forked}, which this run is a fork of, cannot be used: {wrong}")
            )
        return AttemptOrigin(start, forked)

    def _load(self, path: Path) -> str:
        """Read a checkpoint on all ranks; return its damage, which any of them may find.

        Each rank reads for itself, from the memory of its machine: that is faster than to send the
        state to the others.
        """
        rank = self._ranks.rank
        world = self._ranks.world
        own = self._consensus.together(partial(self._store.load, path, rank, world))
        return next(filter(None, self._consensus.all_gather_object(own)), "")

    def _report_changes(self, origin: AttemptOrigin) -> bool:
        """Report what has changed since the checkpoint, and return whether anything has.

        A fork is a change. Raises UserError for hooks that may not change.
        """
        changes: list[RecordedChange] = []
        if origin.parent:
            for change in find_changes(origin.before, (self._loaded.public, self._plan)):
                if not change.why:  # `hookflow fork` has shown the keys
                    self._say(f"since {origin.parent}: {change.text}")
        elif origin.checkpoint:
            changes = find_changes_since(origin.checkpoint, self._loaded.public, self._plan)
            since = f"the checkpoint {origin.checkpoint.name}"
            if not self._allows_changes and (refused := changed_hooks(changes, since)):
                raise UserError(refused)
            for change in changes:
                self._say(
                    f"since {since}: {change.text}",
                    "info" if change.may is ChangeRule.YES else "warn",
                )
        recorded_code = self._code_before(origin)
        if recorded_code is not None and self._ranks.first and self._back_to is None:
            self._code.report_changes(recorded_code, origin.name)
        return bool(changes or origin.parent)

    def _code_before(self, origin: AttemptOrigin) -> RecordedCode | None:
        """Return the code that has led to the checkpoint of an origin.

        It is None where it was not recorded.
        """
        if origin.checkpoint is None:
            return None
        return code_before(self._run_dir, origin.manifest["it"])

    def _build_components(self, origin: AttemptOrigin, build: BuildComponents) -> RunComponents:
        """Build the components, and say what the event log lacks of the iterations before."""
        parts = build(origin)
        kept = partial(
            _set_up_checkpoints, self._store, self._run_dir, parts.saved_checkpoints, self._say
        )
        self._consensus.together(kept if self._ranks.first else _nothing)
        check_comm_hook(self._plan, parts.strategy, parts.place)
        is_own = self._ranks.first and not self._back_to and not origin.parent
        if is_own and self._recorder.log_found < origin.manifest.get("log", 0):
            lost = (
                "what was recorded between its end and the checkpoint is lost, as after a power cut"
            )
            self._say(
                f"the event log ends before the checkpoint's iteration {origin.manifest['it']}:"
                f" {lost}",
                "warn",
            )
        return parts

    def _make_fork_adapter(
        self, origin: AttemptOrigin, parts: RunComponents
    ) -> "ForkAdapter | None":
        if origin.parent is None:
            return None
        from hookflow.runner.state.fork import ForkAdapter  # and the schedules, which few runs need

        return ForkAdapter(
            origin.parent, origin.before, (self._loaded.public, self._plan), parts, self._say
        )

    def _report_warnings(self) -> None:
        if not self._ranks.first:
            return
        for problem in self._plan.warnings:
            place = ""
            if problem.where:
                place = f"{problem.where.at_line}: "
            hint = ""
            if problem.hint:
                hint = f" ({' '.join(problem.hint.split())})"
            self._say(f"{place}{problem.message}{hint}", "warn")

    def _begin(self, origin: AttemptOrigin, start_writers: Callable[[], None]) -> None:
        """Record the attempt, on all ranks or on none.

        The checkpoint has been read by then, if there is one.
        """
        self._consensus.any_rank(False)
        self._consensus.together(
            partial(self._record_files, origin) if self._ranks.first else _nothing
        )
        self._recorder.held = False
        start_writers()
        # The log says that the attempt began. A thread writes it, since a signal may raise in this
        # one.
        thread = Thread(target=partial(self._recorder.flush, frame=False), daemon=True)
        thread.start()
        thread.join()

    def _record_files(self, origin: AttemptOrigin) -> None:
        commit_resume(self._run_dir)
        if self._back_to is None:
            self._code.record(origin.manifest["it"], self._code_before(origin), origin.name)
        else:  # the process goes on with what it has imported
            self._code.record_again(origin.manifest["it"])
        if origin.checkpoint and not origin.parent:
            goes_back = parse_iteration(origin.checkpoint) == self._resumed_iter
            forget = goes_back or self._back_to is not None
            self._store.rewind(origin.checkpoint, forget=forget)
            self._store.make_up_copies()
            release_parent(self._run_dir)


def _nothing() -> None:
    pass


def _list_saved(
    store: CheckpointStore, say: Callable[..., None], resume: bool, forked: bool
) -> list[Path]:
    """Clear away what a killed process has left, and return the checkpoints to resume from.

    The newest is the first. Without one, a run that was `forked` starts at its parent's.
    """
    for path in store.clear_leftovers():
        say(f"{short(path)} is left alone: a process that lives is writing it", "warn")
    saved = []
    if resume:
        saved = store.all()
    if resume and not saved and not forked:
        say("there is no checkpoint to resume from: starting at the beginning", "warn")
    return saved


def _with_places(recorded: Loaded, run_dir: RunDir) -> Loaded:
    """Return the recorded pipeline with the places of the user's file.

    That file must still be the same pipeline.
    """
    facts = run_dir.describe()
    try:
        message = [
            in_python(text) if facts.get("in_python") else text for text in facts["overrides"]
        ]
        written = load(Path(facts["source"]), message)
    except (UserError, KeyError, TypeError):  # it is invalid by now, or unknown
        return recorded
    if written.public == recorded.public:
        return written
    return recorded


def _set_up_checkpoints(
    store: CheckpointStore,
    run_dir: RunDir,
    saved: Collection[SavedCheckpoints],
    say: Callable[..., None],
) -> None:
    """Keep the checkpoints in the hooks' folder, and copy them elsewhere.

    Raises UserError for several folders.
    """
    store.copies = CheckpointCopies.of(saved, run_dir, say)
    folders = {each.folder for each in saved if each.folder is not None}
    if len(folders) > 1:
        message = (
            "the checkpoints of a run are in one folder, and out_dir says"
            f" {' and '.join(sorted(folders))}"
        )
        raise UserError(Problem(message))
    for folder in folders:
        store.keep_in(Path(folder), Path(run_dir.path.parent.name, run_dir.id))


def _record_start(
    recorder: EventRecorder,
    plan: Plan,
    parts: RunComponents,
    origin: AttemptOrigin,
    strategy: Literal["ddp", "fsdp"],
) -> None:
    resumed_from = None
    if not origin.parent:
        resumed_from = origin.checkpoint
    lengths = parts.epoch_lengths
    modes: dict[str, Mode] = {}
    frozen: list[str] = []
    for each in parts.capabilities.values():
        modes.update(each.monitors)
        if not origin.manifest["it"]:  # later on, what is frozen is frozen already
            frozen += each.frozen_at_start
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
        layers=[*iter_layers(parts.model, frozen)] if parts.ranks.first else [],
        seed=parts.section.seed,
        data={split: source.info for split, source in parts.data.items()},
        limited=parts.limited,
        max_epochs=parts.section.epoch_limit or 0,
        max_iters=all_iterations(parts.section.epoch_limit, parts.section.max_iters, lengths),
        iters_per_epoch=lengths.at(0),
        epoch_lengths=[list(stage) for stage in lengths.stages] if lengths.changes else [],
        modes=modes,
        resumed_from=resumed_from and resumed_from.name,
        forked_from=str(origin.parent) if origin.parent else None,
        rank=parts.ranks.rank,
        world=parts.ranks.world,
        strategy=strategy if parts.ranks.world > 1 else "",
    )
