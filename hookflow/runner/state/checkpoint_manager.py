"""The checkpoints of a run on the training's side: request, copy, background write, report."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hookflow.errors import Problem, UserError
from hookflow.events.records import shorten_text
from hookflow.events.rundir import RunDir, short, sync_run
from hookflow.hooks.checkpoint_files import state_key
from hookflow.runner.checkpoint.manifest import EXCEPTION, NONFINITE
from hookflow.runner.checkpoint.shards import Shards, name_unreadable
from hookflow.runner.checkpoint.store import CheckpointStore, SavedCheckpoint
from hookflow.runner.device.cuda import device_thread
from hookflow.runner.distributed.parallel import full_state
from hookflow.runner.iteration.context import RunContext
from hookflow.runner.iteration.update import OptimizerUpdate
from hookflow.runner.logging.timing import SAVING
from hookflow.runner.model.frozen_parameters import FrozenParameters
from hookflow.runner.state.host_copy import HostCopier, StateCopy
from hookflow.runner.state.snapshot import RunSnapshot
from hookflow.runner.state.state_registry import StateScope
from hookflow.runner.state.unsaved import UnsavedStateCheck
from hookflow.text import masked

ABANDON_GRACE_SECONDS = 5.0
"""Seconds that a run which ends at once waits for the abandoned write."""

SIGNAL_CHECK_SECONDS = 1.0
"""Seconds between the waits for a write: Python handles a signal between them."""

OF_RUN = (
    "id",
    "name",
    "base",
    "source",
    "overrides",
    "in_python",
    "hookflow",
    "version",
    "created",
)
"""The facts of `run.json` that a checkpoint has, too."""

LAST_NAME = "last"
"""The name of the latest checkpoint, beside its other names."""


class NotSavedError(RuntimeError):
    """A checkpoint could not be written; existing ones are not affected."""


@dataclass(slots=True)
class PendingCheckpoint:
    """A checkpoint on its way to the disk."""

    copied: StateCopy
    names: list[str]
    facts: Mapping[str, Any]
    ms: float
    """How long the training has waited for it."""
    thread: threading.Thread | None = None
    """The writing thread; of several ranks the first alone has one, unless the state is sharded."""
    outcome: Future[SavedCheckpoint] = field(default_factory=Future)

    @property
    def state(self) -> dict[str, Any]:
        return self.copied.state

    def ended_within(self, seconds: float) -> bool:
        """Wait at most so many seconds; return whether the write has ended.

        On a rank that does not write it has.
        """
        return self.thread is None or bool(wait([self.outcome], seconds).done)

    def result(self) -> SavedCheckpoint | NotSavedError:
        """Wait for the write and return its outcome."""
        while not self.outcome.done():
            wait([self.outcome], SIGNAL_CHECK_SECONDS)
        try:
            return self.outcome.result()
        except Exception as error:
            failed = NotSavedError(
                f"the checkpoint of iteration {self.facts['it']} could not be saved: {error}"
            )
            failed.__cause__ = error
            return failed


def begin(
    saving: PendingCheckpoint, write: Callable[[], SavedCheckpoint], ended: Callable[[], None]
) -> None:
    """Call `write` and then `ended` in a thread that keeps no process alive."""

    def work() -> None:
        try:
            saved = write()
        except BaseException as error:
            saving.outcome.set_exception(error)
        else:
            saving.outcome.set_result(saved)
        ended()

    saving.thread = device_thread(work, "hookflow-checkpoint")
    saving.thread.start()


class CheckpointManager:
    """Saves the state of a run at safe points."""

    def __init__(
        self,
        context: RunContext,
        update: OptimizerUpdate,
        snapshot: RunSnapshot,
        unsaved: UnsavedStateCheck,
        store: CheckpointStore,
    ) -> None:
        self._kept: StateCopy | None = None
        """The state to save instead of the present one.

        It is from before a validation or the hooks at the end of an epoch. These are under way, or
        were cut short, and a run that goes on from it does them again.
        """
        self.saved_at: int | None = None
        """The iteration of the newest checkpoint."""
        self.restored = ""
        """The checkpoint whose weights the models have since the training has ended.

        Nothing is saved any more then.
        """
        self.snapshot = snapshot
        self._context = context
        self._update = update
        self._store = store
        self._state = context.state
        self._engine = context.engine
        self._requests = context.requests
        self._consensus = context.consensus
        self._ranks = context.consensus.ranks
        self._log = context.log
        self._unsaved = unsaved
        saved = context.parts.saved_checkpoints
        self._keep = max((each.keep for each in saved), default=None)
        """How many of the newest checkpoints stay, beside those with a name; None keeps all."""
        store.weights_alone = frozenset(name for each in saved for name in each.names_of_weights)
        self._trail = max((each.trail_bytes for each in saved), default=0)
        self._flushed: tuple[int, int] | None = None
        self._saving: PendingCheckpoint | None = None
        self._warned: set[str] = set()
        given_away = any(
            "checkpoint" in binding.takes for binding in context.plan.at("after_save_checkpoint")
        )
        self._mesh = context.parts.strategy.host_mesh
        parts = context.parts
        leaves_all_out = any(each.with_frozen is False for each in saved)
        if self._mesh is not None and leaves_all_out:
            message = "frozen = false takes whole weights, and these are sharded across the ranks"
            raise UserError(
                Problem(message, hint='leave it out, or set distributed.strategy = "ddp"')
            )
        if self._mesh is not None and store.weights_alone:
            message = "weights_only takes whole weights, and these are sharded across the ranks"
            raise UserError(
                Problem(
                    message, hint="leave it out: the hook `export` writes the weights of the best"
                )
            )
        self._frozen: FrozenParameters | None = None
        """The parameters that checkpoints leave out."""
        if leaves_all_out:
            self._frozen = FrozenParameters(parts.models)
        elif parts.frozen_models and parts.leaves_frozen_out:
            self._frozen = FrozenParameters(parts.models, only=parts.frozen_models)
        if leaves_all_out and not self._frozen:
            self._log.say(
                "frozen = false leaves nothing out of the checkpoints: no parameter is frozen",
                "warn",
            )
        self._copier = HostCopier(self._mesh)
        self._gives_back = not given_away
        """Whether the memory of a checkpoint is used again.

        No hook is given it, which might keep it.
        """
        self._writes = self._ranks.first or self._mesh is not None
        """Whether this rank writes weights and optimizers, and not only what it has of its own."""
        self._prepares = self._state.attention = (
            self._writes and self._gives_back and self._keep is not None
        )

    @property
    def repeats(self) -> bool:
        """Whether a validation or the end of an epoch is to be repeated.

        It is under way, or was cut short.
        """
        return self._kept is not None

    def keep_state(
        self, state: dict[str, Any] | None = None, *, validation_due: Sequence[str] = ()
    ) -> None:
        """Keep a copy of the present state, or of this one.

        From it a resumed run repeats what follows. The copy has everything: whatever hooks do from
        here on, it stays what it is. The training does not wait for a GPU.
        """
        with self._context.timeline.excluded(SAVING):
            if state is None:
                state = self.snapshot.capture(validation_due=validation_due)
            if self._writes:
                self._kept = self._copier.copy(state, waits=False)
            else:
                self._kept = StateCopy(self.snapshot.registry.copy(state))

    def forget_kept_state(self) -> None:
        """Forget what `keep_state` has kept: there is nothing to repeat."""
        if self._kept is not None:
            self._copier.give_back(self._kept)
            self._kept = None

    def begin(self) -> None:
        """Record what no checkpoint holds as the training begins.

        Raises UserError for a state that none can hold.
        """
        self._unsaved.record()
        self._check_states()

    def _check_states(self) -> None:
        if self._keep is not None:
            self.snapshot.check_states()

    @property
    def has_written(self) -> bool:
        """Whether a write has ended that has not been reported."""
        return self._saving is not None and self._saving.outcome.done()

    def prepare(self) -> None:
        """Take the memory for copies of the state in another thread.

        The optimizers have theirs by then. By then the states of hooks, data and the task have
        their items, so they are checked again.
        """
        if self._prepares and self._state.iter:
            self._prepares = False
            self._check_states()
            parts = self._context.parts
            tensors: list[torch.Tensor] = [
                p
                for model in parts.models.values()
                for p in model.parameters()
                if not self._leaves_out(p)
            ]
            tensors += [buffer for model in parts.models.values() for buffer in model.buffers()]
            for optimizer in parts.optimizers.values():
                tensors += [value for state in optimizer.state.values() for value in state.values()]
            device_thread(partial(self._copier.prepare, tensors), "hookflow-memory").start()

    def _leaves_out(self, parameter: torch.nn.Parameter) -> bool:
        return self._frozen is not None and self._frozen.holds(parameter)

    def save(self) -> None:
        """Copy the state and write it in another thread; an earlier write is waited for first."""
        self._update.settle()
        self.report()
        if self.restored:
            late = ", ".join(self._requests.take_saves()[0])
            self._log.say(
                f"no checkpoint is saved ({late}): the models have the weights of {self.restored}",
                "warn",
            )
            return
        for warning in (*self._update.warnings(), *self._unsaved.warnings()):
            self._warn_once(warning)
        began = time.perf_counter()
        with self._state.during("save"), self._context.timeline.excluded(SAVING):
            if not self._ranks.first:
                self._log.flush(frame=False)  # the first rank brings the logs of all to the disk
            requested: dict[str, int | None] = {}
            keeps: list[int] = []
            for wanted, keep in self._consensus.all_gather_object(self._requests.take_saves()):
                requested |= wanted
                keeps += [keep] if keep is not None else []
            self._keep = max(keeps, default=self._keep)
            moved = {name: it for name, it in requested.items() if it is not None}
            names = [
                LAST_NAME,
                *(name for name in requested if name not in moved and name != LAST_NAME),
            ]
            copied = self._copied()
            facts = self._facts(copied.state)
            self._saving = PendingCheckpoint(
                copied, names, facts, (time.perf_counter() - began) * 1e3
            )
            if self._mesh is not None:
                aside = self._consensus.broadcast_object(
                    self._store.find_staging_path(self._state.iter)
                )
                group = self._context.parts.strategy.host_group
                assert group is not None
                write = partial(self._write_shards, self._saving, aside, group, moved)
                begin(self._saving, write, self._wake)
            elif self._ranks.first:
                begin(self._saving, partial(self._write, self._saving, moved), self._wake)
            self.saved_at = self._state.iter

    def request_last(self) -> None:
        """Request a save of the training's end, unless it is saved, or the run saves nothing."""
        wanted = self._keep is not None or self.saved_at is not None
        if wanted and self.saved_at != self._state.iter > 0:
            self._requests.save([LAST_NAME])

    def report(self) -> None:
        """Wait for the checkpoint that is being written, if any, and report it."""
        saving = self._saving
        if saving is None:
            return
        with self._state.during("save"), self._context.timeline.excluded(SAVING):
            self._consensus.wait(saving.ended_within)
            saved = self._consensus.broadcast_object(saving.result() if saving.thread else None)
            if saving.thread:
                saving.thread.join()  # it has no more to do, and still holds the state
            self._saving = None  # only now: a signal may cut the wait short
            if not isinstance(saved, SavedCheckpoint):
                self.snapshot.check_states()
                raise saved or NotSavedError("rank 0 has written no checkpoint")
            self._record(saving, saved)
            self._engine.fire("after_save_checkpoint", saving.state, saved.path)
            if self._gives_back:
                self._copier.give_back(saving.copied)

    def save_the_rest(self) -> None:
        """Save what has been requested, and wait until it is on the disk."""
        self.report()
        if self._consensus.any_rank(bool(self._requests.saves)):
            self.save()
            self.report()

    def report_if_possible(self) -> None:
        """Do what `report` does, in a run that has failed already.

        The other ranks may have gone.
        """
        with self._reporting_errors():
            if self._ranks.world == 1:
                self.report()
            elif self._saving and self._saving.thread:
                saved = self._saving.result()  # the others write with this one
                if self._ranks.first and not isinstance(saved, SavedCheckpoint):
                    raise saved

    def save_after_error(self, error: BaseException) -> None:
        """Save the state after something has raised; no run resumes from it by itself."""
        with self._reporting_errors():
            if self._ranks.world > 1:
                raise NotSavedError("that takes all ranks, and this one has raised")
            state = self._copied().state
            facts = self._facts(state) | {
                "exception": shorten_text(masked(f"{type(error).__name__}: {error}"))
            }
            path = self._store.save_apart(state, facts, EXCEPTION).path
            text = (
                f"the state after {type(error).__name__} was raised is in"
                f" {path.relative_to(self._context.folder)}"
            )
            if self._kept is not None:
                text = (
                    f"the state before that error is saved: hookflow fork {short(path)} trains on"
                    " from it"
                )
            self._log.say(text, "warn")

    @contextmanager
    def _reporting_errors(self) -> Iterator[None]:
        """Record why nothing is saved.

        The run has failed already, and ends with the error that it failed with.
        """
        try:
            yield
        except Exception as error:
            self._log.say(f"no checkpoint could be saved after the error: {error}", "error")

    def abandon(self) -> None:
        """Abandon the write, since the run ends at once.

        A checkpoint that was written nevertheless is recorded.
        """
        self._store.abandon()
        if self._saving is not None and self._saving.thread:
            self._saving.thread.join(ABANDON_GRACE_SECONDS)
            if (
                self._ranks.first
                and self._saving.outcome.done()
                and isinstance(saved := self._saving.result(), SavedCheckpoint)
            ):
                self._record(self._saving, saved)

    def _wake(self) -> None:
        if self._ranks.first:  # it alone reports; and the training may set this in the same moment
            self._state.attention = True

    def _warn_once(self, warning: str) -> None:
        if warning not in self._warned:
            self._warned.add(warning)
            self._log.say(warning, "warn")

    def _copied(self) -> StateCopy:
        """Return the state of all ranks in the host's memory.

        Arounds of a save are left once it is there.
        """
        if self._kept is None:
            state = self.snapshot.capture()
        else:
            self._kept.wait()
            state = dict(self._kept.state)
        self._engine.fire("before_save_checkpoint", state)
        if self._context.optimizer_modes.optimizers:
            self._save_evaluated_weights(state)
        if self._frozen is not None:
            state = self._frozen.without(state)
        if self._ranks.world > 1:
            registry = self.snapshot.registry
            per_rank = registry.names(StateScope.PER_RANK)
            by_item = registry.names(StateScope.PER_RANK_ITEM)
            state = full_state(state, self._consensus, per_rank, by_item)
        copied = StateCopy(state)
        if self._writes:
            with name_unreadable(state):
                copied = self._copier.copy(state, kept=self._kept)
        self._engine.fire("after_copy_checkpoint")
        return copied

    def _save_evaluated_weights(self, state: dict[str, Any]) -> None:
        """Let the models of a captured state have the weights that are evaluated.

        The weights that are trained are kept. A loaded model has the weights for use; a resume has
        those that the optimizers go on from.
        """
        models = {
            state_key("model", name): model for name, model in self._context.parts.models.items()
        }
        training: dict[str, dict[str, dict[str, Any]]] = {}
        for optimizer, of_models in self._context.optimizer_modes.copy_evaluated_weights(
            models
        ).items():
            training[optimizer] = {}
            for key, weights in of_models.items():
                present = {name: value for name, value in weights.items() if name in state[key]}
                training[optimizer][key] = {name: state[key][name] for name in present}
                # `copy.copy` keeps the versions that a state_dict carries beside its entries.
                state[key] = copy.copy(state[key])
                state[key].update(present)
        state["training_weights"] = training

    def _facts(self, state: Mapping[str, Any]) -> dict[str, Any]:
        position = state["position"]
        described = RunDir(self._context.folder).describe()
        return {
            "it": position["iter"],
            "ep": position["epoch"],
            "metrics": position["metrics"],
            "metrics_it": position["metrics_at"],
            "pipeline": self._context.plan.pipeline,
            "world": self._ranks.world,
            "run": {fact: described[fact] for fact in OF_RUN if fact in described},
        }

    def _write_shards(
        self,
        saving: PendingCheckpoint,
        aside: Path,
        group: dist.ProcessGroup,
        moved: Mapping[str, int],
    ) -> SavedCheckpoint:
        """Write the shards of all ranks, and on the first the rest.

        It is called in the writing thread of each.
        """
        files = self._store.write_shards(aside, saving.state, group)
        every: list[Any] = [None] * self._ranks.world
        weight = next(self.snapshot.nonfinite_weights(saving.state), None)
        dist.all_gather_object(every, (files, weight), group=group)
        if not self._ranks.first:
            return SavedCheckpoint(aside, 0)
        shards = aside, {name: entry for files, _ in every for name, entry in files.items()}
        return self._write(
            saving, moved, shards, next((weight for _, weight in every if weight), None)
        )

    def _write(
        self,
        saving: PendingCheckpoint,
        moved: Mapping[str, int],
        shards: Shards | None = None,
        weight: str | None = None,
    ) -> SavedCheckpoint:
        """Bring a checkpoint to the disk and remove those that it replaces.

        It is called in the writing thread.

        `shards` are those of all ranks, and `weight` is one in them that is not finite.
        """
        self._log.flush(frame=False)  # the log must have what the checkpoint has
        try:
            # The records are on the disk before the checkpoint is.
            size, self._flushed = sync_run(RunDir(self._context.folder), self._flushed)
            saving.facts = {**saving.facts, "log": size, "ms": round(saving.ms, 3)}
            weight = weight or next(self.snapshot.nonfinite_weights(saving.state), None)
            if weight:
                if self._context.parts.section.on_nan != "ignore":
                    saved = self._store.save_apart(saving.state, saving.facts, NONFINITE, shards)
                    self._store.move(moved)
                    where = (
                        f'the weights are not finite in iteration {saving.facts["it"]} ("{weight}")'
                    )
                    how = f"the checkpoint is saved as {saved.path.name}, and not as last nor best"
                    self._log.say(f"{where}: {how}; --resume takes the one before it", "error")
                    return saved
                self._warn_once('the weights are not finite, and run.on_nan = "ignore" saves them')
            saved = self._store.save(saving.state, saving.names, saving.facts, moved, shards)
            if self._keep is not None:
                self._store.prune(self._keep, self._trail)
        except FileNotFoundError:
            if self._context.folder.exists():
                raise
            raise FileNotFoundError("the run directory is gone: it was moved or deleted") from None
        return saved

    def _record(self, saving: PendingCheckpoint, saved: SavedCheckpoint) -> None:
        if saved.path.name.startswith(NONFINITE):
            return  # no run resumes from it; an error names it
        path = str(saved.path.relative_to(self._context.folder))
        it = saving.facts["it"]
        ep = saving.facts["ep"]
        self._log.put(
            "checkpoint",
            it=it,
            ep=ep,
            path=path,
            names=saving.names,
            bytes=saved.bytes,
            ms=saving.ms,
        )
