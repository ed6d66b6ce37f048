"""The checkpoints of a run from the side of the training: request, copy, background write, report."""

from __future__ import annotations

import copy
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from mmap import PAGESIZE
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from hookflow.errors import Problem, UserError, first_few
from hookflow.events.records import shortened
from hookflow.events.rundir import RunDir, short, sync_run
from hookflow.hooks.builtin.checkpoint import Checkpoint
from hookflow.hooks.checkpoint_files import state_key
from hookflow.hooks.tensors import is_sharded, local
from hookflow.runner.checkpoint.manifest import EXCEPTION, NONFINITE
from hookflow.runner.checkpoint.shards import Shards, cloned, leaves, mapped, naming_unreadable, sharded_as
from hookflow.runner.checkpoint.snapshot import Frozen, Snapshot, Unsaved
from hookflow.runner.checkpoint.store import CheckpointStore, Saved
from hookflow.runner.cuda import device_thread
from hookflow.runner.distributed.parallel import full_state
from hookflow.runner.logging.timing import SAVING
from hookflow.runner.loop.context import Context
from hookflow.runner.loop.update import Update
from hookflow.text import masked

GRACE = 5.0
"""Seconds that a run which ends at once waits for the abandoned write."""

HEARS = 1.0
"""Seconds between the waits for a write: Python handles a signal between them."""

LARGE = 1 << 20
"""Bytes from which on the memory of a copy is locked by its size."""

OF_RUN = ("id", "name", "base", "source", "overrides", "in_python", "hookflow", "version", "created")
"""The facts of `run.json` that a checkpoint has, too."""

LAST = "last"
"""The name of the latest checkpoint, beside its other names."""


class NotSavedError(RuntimeError):
    """A checkpoint could not be written; existing ones are not affected."""


@dataclass(slots=True)
class Saving:
    """A checkpoint on its way to the disk."""

    state: dict[str, Any]
    names: list[str]
    facts: Mapping[str, Any]
    ms: float
    """How long the training has waited for it."""
    thread: threading.Thread | None = None
    """The writing thread; of several ranks the first alone has one, unless the state is sharded."""
    outcome: Future[Saved] = field(default_factory=Future)

    def ended_within(self, seconds: float) -> bool:
        """Wait at most so many seconds; return whether the write has ended. On a rank that does not write it has."""
        return self.thread is None or bool(wait([self.outcome], seconds).done)

    def result(self) -> Saved | NotSavedError:
        """Wait for the write and return its outcome."""
        while not self.outcome.done():
            wait([self.outcome], HEARS)
        try:
            return self.outcome.result()
        except Exception as error:
            failed = NotSavedError(f"the checkpoint of iteration {self.facts['it']} could not be saved: {error}")
            failed.__cause__ = error
            return failed


def begin(saving: Saving, write: Callable[[], Saved], ended: Callable[[], None]) -> None:
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


def host_memory(like: torch.Tensor) -> torch.Tensor:
    """Return memory of the host for a copy of a tensor, uninitialised; for one of a GPU it is page-locked.

    Large memory is locked by its size: PyTorch's allocator of pinned memory rounds it up to a power of two.
    """
    memory = torch.empty_like(like, device="cpu", pin_memory=like.is_cuda and like.nbytes < LARGE)
    if like.is_cuda and like.nbytes >= LARGE:
        cudart = torch.cuda.cudart()
        if int(cudart.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)):  # it is locked another way, then
            _clear_cuda_error(like.device)
            return torch.empty_like(like, device="cpu", pin_memory=True)
        weakref.finalize(memory, cudart.cudaHostUnregister, memory.data_ptr())
    return memory


def _clear_cuda_error(device: torch.device) -> None:
    """Clear the error that a failed call of the CUDA runtime has left: the next kernel would be blamed for it."""
    with suppress(RuntimeError):  # that error: PyTorch looks at it, and so clears it, after each kernel
        torch.zeros(1, device=device)


class HostCopy:
    """Copies a state into the host's memory: pinned where it comes from a GPU, so that it waits for the device once.

    With `reuse` the next copy overwrites the memory of the last one, tensor by tensor of the same shape and kind.
    It copies this rank's shard of a sharded tensor; the copies are sharded over `mesh`.
    """

    def __init__(self, mesh: DeviceMesh | None = None, *, reuse: bool) -> None:
        self._mesh, self.reuse = mesh, reuse
        self._spare: dict[Any, list[torch.Tensor]] = {}

    def prepare(self, tensors: Iterable[Any]) -> None:
        """Take memory for the first copy of these tensors, page by page; it may be made in another thread meanwhile."""
        spare = self._spare
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and not tensor.is_nested:
                own = local(tensor.detach())
                memory = host_memory(own)
                torch.empty(0, dtype=torch.uint8).set_(memory.untyped_storage())[::PAGESIZE].zero_()
                spare.setdefault(_kind(own), []).append(memory)

    def of(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of a state; a tensor that occurs twice there is one tensor in the copy."""
        copies: dict[Any, torch.Tensor] = {}
        used: dict[Any, list[torch.Tensor]] = {}

        def copied(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return copy.deepcopy(value)
            if is_sharded(value):
                return sharded_as(value, copied(local(value)), self._mesh)
            if value.layout != torch.strided or value.is_nested:
                return value.detach().to("cpu", copy=True)
            kind = _kind(value)
            key = (value.device, value.untyped_storage().data_ptr(), value.storage_offset(), *kind)
            if key not in copies:
                spare = self._spare.get(kind)
                memory = spare.pop() if spare else host_memory(value.detach())
                used.setdefault(kind, []).append(memory)
                copies[key] = memory.copy_(value.detach(), non_blocking=value.is_cuda)
            return copies[key]

        result: dict[str, Any] = mapped(dict(state), copied)
        for device in {key[0] for key in copies if key[0].type == "cuda"}:
            torch.cuda.current_stream(device).synchronize()
        if self.reuse:
            self._spare = used
        return result


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.is_cuda


class CheckpointManager:
    """Saves the state of a run at safe points."""

    def __init__(
        self, context: Context, update: Update, snapshot: Snapshot, unsaved: Unsaved, store: CheckpointStore
    ) -> None:
        self.to_repeat: Mapping[str, Any] | None = None
        """The state to save instead of the present one, from before a validation or the hooks at the end of an epoch.

        They are under way, or were cut short, and a run that goes on from it does them again. Its weights and the state
        of its optimizers are the run's own tensors; all else is copied.
        """
        self._kept_versions: list[tuple[str, torch.Tensor, int]] = []
        """The tensors of `to_repeat` that are the run's own, each with its name and its version at that moment."""
        self.saved_at: int | None = None
        """The iteration of the newest checkpoint."""
        self.restored = ""
        """The checkpoint whose weights the models have since the training has ended: nothing is saved any more."""
        self.snapshot = snapshot
        self._context, self._update, self._store = context, update, store
        self._state, self._engine, self._requests = context.state, context.engine, context.requests
        self._consensus, self._ranks, self._log = context.consensus, context.consensus.ranks, context.log
        self._unsaved = unsaved
        saving = [hook for hook in context.parts.hooks.values() if isinstance(hook, Checkpoint)]
        self._keep = max((hook.newest for hook in saving), default=None)
        """How many of the newest checkpoints stay, beside those with a name; None keeps all."""
        store.weights_alone = frozenset(name for hook in saving if hook.weights_only for name in hook.best_names())
        self._trail = max((hook.trail_bytes for hook in saving), default=0)
        self._flushed: tuple[int, int] | None = None
        self._saving: Saving | None = None
        self._warned: set[str] = set()
        given_away = any("checkpoint" in binding.takes for binding in context.plan.at("after_save_checkpoint"))
        self._mesh = context.parts.strategy.host_mesh
        if self._mesh is not None and not all(hook.frozen for hook in saving):
            message = "frozen = false takes whole weights, and these are sharded across the ranks"
            raise UserError(Problem(message, hint='leave it out, or set distributed.strategy = "ddp"'))
        if self._mesh is not None and store.weights_alone:
            message = "weights_only takes whole weights, and these are sharded across the ranks"
            raise UserError(Problem(message, hint="leave it out: the hook `export` writes the weights of the best"))
        self._frozen = None if all(hook.frozen for hook in saving) else Frozen(context.parts.models)
        if self._frozen is not None and not self._frozen:
            self._log.say("frozen = false leaves nothing out of the checkpoints: no parameter is frozen", "warn")
        self._copy = HostCopy(self._mesh, reuse=not given_away)
        writes = self._ranks.first or self._mesh is not None
        self._prepares = self._state.attention = writes and self._copy.reuse and self._keep is not None

    def keep_state(self, state: dict[str, Any] | None = None, *, validation_due: Sequence[str] = ()) -> None:
        """Keep the present state, or this one, as the one `to_repeat`."""
        if state is None:
            state = self.snapshot.capture(validation_due=validation_due)
        is_own = {key: key == "gradients" or key.startswith(("model", "optimizer")) for key in state}
        own = {key: value for key, value in state.items() if is_own[key]}
        others = {key: value for key, value in state.items() if not is_own[key]}
        self.to_repeat = own | mapped(others, cloned)
        self._kept_versions = [
            (".".join(map(str, place)), tensor, tensor._version)
            for place, tensor in leaves(own)
            if isinstance(tensor, torch.Tensor) and not tensor.is_inference()
        ]

    def forget_kept_state(self) -> None:
        """Forget what `keep_state` has kept: there is nothing to repeat."""
        self.to_repeat = None
        self._kept_versions = []

    def _written_since_kept(self) -> list[str]:
        """Return the names of the weights and optimizer tensors that were written to since `keep_state`."""
        return [name for name, tensor, version in self._kept_versions if tensor._version != version]

    def look(self) -> None:
        """Look at what no checkpoint holds. Raises UserError for a state that none can hold."""
        self._unsaved.look()
        if self._keep is not None:
            self.snapshot.check_states()

    @property
    def has_written(self) -> bool:
        """Whether a write has ended that has not been reported."""
        return self._saving is not None and self._saving.outcome.done()

    def prepare(self) -> None:
        """Take the memory for copies of the state in another thread, once the optimizers have theirs.

        By then the modules have assigned the tensors that they keep, and lists have items.
        """
        if self._prepares and self._state.iter:
            self._prepares = False
            self.look()
            parts = self._context.parts
            tensors: list[torch.Tensor] = [
                p for model in parts.models.values() for p in model.parameters() if not self._leaves_out(p)
            ]
            tensors += [buffer for model in parts.models.values() for buffer in model.buffers()]
            for optimizer in parts.optimizers.values():
                tensors += [value for state in optimizer.state.values() for value in state.values()]
            device_thread(partial(self._copy.prepare, tensors), "hookflow-memory").start()

    def _leaves_out(self, parameter: torch.nn.Parameter) -> bool:
        return self._frozen is not None and self._frozen.holds(parameter)

    def save(self) -> None:
        """Copy the state and write it in another thread; an earlier write is waited for first."""
        self._update.settle()
        self.report()
        if self.restored:
            late = ", ".join(self._requests.take_saves()[0])
            self._log.say(f"no checkpoint is saved ({late}): the models have the weights of {self.restored}", "warn")
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
            names = [LAST, *(name for name in requested if name not in moved and name != LAST)]
            state = self._copied()
            self._saving = Saving(state, names, self._facts(state), (time.perf_counter() - began) * 1e3)
            if self._mesh is not None:
                aside = self._consensus.broadcast_object(self._store.aside(self._state.iter))
                group = self._context.parts.strategy.host_group
                assert group is not None
                write = partial(self._write_shards, self._saving, aside, group, moved)
                begin(self._saving, write, self._wake)
            elif self._ranks.first:
                begin(self._saving, partial(self._write, self._saving, moved), self._wake)
            self.saved_at = self._state.iter

    def request_last(self) -> None:
        """Request a save of the end of the training, unless it is saved, or the run saves nothing."""
        wanted = self._keep is not None or self.saved_at is not None
        if wanted and self.saved_at != self._state.iter > 0:
            self._requests.save([LAST])

    def report(self) -> None:
        """Wait for the checkpoint that is being written, if any, and report it."""
        if (saving := self._saving) is None:
            return
        with self._state.during("save"), self._context.timeline.excluded(SAVING):
            self._consensus.wait(saving.ended_within)
            saved = self._consensus.broadcast_object(saving.result() if saving.thread else None)
            if saving.thread:
                saving.thread.join()  # it has no more to do, and still holds the state
            self._saving = None  # only now: a signal may cut the wait short
            if not isinstance(saved, Saved):
                self.snapshot.check_states()
                raise saved or NotSavedError("rank 0 has written no checkpoint")
            self._record(saving, saved)
            self._engine.fire("after_save_checkpoint", saving.state, saved.path)

    def save_the_rest(self) -> None:
        """Save what has been requested, and wait until it is on the disk."""
        self.report()
        if self._consensus.any_rank(bool(self._requests.saves)):
            self.save()
            self.report()

    def report_if_possible(self) -> None:
        """Do what `report` does, in a run that has failed already; of several ranks the others may have gone."""
        with self._reporting_errors():
            if self._ranks.world == 1:
                self.report()
            elif self._saving and self._saving.thread:
                saved = self._saving.result()  # the others write with this one
                if self._ranks.first and not isinstance(saved, Saved):
                    raise saved

    def save_after_error(self, error: BaseException) -> None:
        """Save the state after something has raised; no run resumes from it by itself."""
        with self._reporting_errors():
            if self._ranks.world > 1:
                raise NotSavedError("that takes all ranks, and this one has raised")
            state = self._copied()
            facts = self._facts(state) | {"exception": shortened(masked(f"{type(error).__name__}: {error}"))}
            path = self._store.save_apart(state, facts, EXCEPTION).path
            text = f"the state after {type(error).__name__} was raised is in {path.relative_to(self._context.folder)}"
            if self.to_repeat is not None:
                text = f"the state before that error is saved: hookflow fork {short(path)} trains on from it"
                if written := self._written_since_kept():
                    since = f"but {len(written)} of its tensors were written to since then ({first_few(written)})"
                    text = f"{text}, {since}: hooks may have left other weights there"
            self._log.say(text, "warn")

    @contextmanager
    def _reporting_errors(self) -> Iterator[None]:
        """Record why nothing is saved: the run has failed already, and ends with the error that it failed with."""
        try:
            yield
        except Exception as error:
            self._log.say(f"no checkpoint could be saved after the error: {error}", "error")

    def abandon(self) -> None:
        """Abandon the write, since the run ends at once. A checkpoint that was written nevertheless is recorded."""
        self._store.abandon()
        if self._saving is not None and self._saving.thread:
            self._saving.thread.join(GRACE)
            if self._ranks.first and self._saving.outcome.done() and isinstance(saved := self._saving.result(), Saved):
                self._record(self._saving, saved)

    def _wake(self) -> None:
        if self._ranks.first:  # it alone reports; and the training may set this in the same moment
            self._state.attention = True

    def _warn_once(self, warning: str) -> None:
        if warning not in self._warned:
            self._warned.add(warning)
            self._log.say(warning, "warn")

    def _copied(self) -> dict[str, Any]:
        """Return the state of all ranks in the host's memory. Arounds of a save are left once it is there."""
        state = dict(self.to_repeat or self.snapshot.capture())
        self._engine.fire("before_save_checkpoint", state)
        if self._context.optimizer_modes.optimizers:
            self._save_evaluated_weights(state)
        if self._frozen is not None:
            state = self._frozen.without(state)
        if self._ranks.world > 1:
            state = full_state(state, self._consensus)
        with naming_unreadable(state):
            copied = self._copy.of(state) if self._ranks.first or self._mesh is not None else state
        self._engine.fire("after_copy_checkpoint")
        return copied

    def _save_evaluated_weights(self, state: dict[str, Any]) -> None:
        """Let the models of a captured state have the weights that are evaluated, and keep those that are trained.

        Whoever loads a model has the weights for use; a resume has those that the optimizers go on from.
        """
        models = {state_key("model", name): model for name, model in self._context.parts.models.items()}
        training: dict[str, dict[str, dict[str, Any]]] = {}
        for optimizer, of_models in self._context.optimizer_modes.evaluated_weights(models).items():
            training[optimizer] = {}
            for key, weights in of_models.items():
                present = {name: value for name, value in weights.items() if name in state[key]}
                training[optimizer][key] = {name: state[key][name] for name in present}
                state[key] = copy.copy(state[key])  # with the versions that it carries beside its entries
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

    def _write_shards(self, saving: Saving, aside: Path, group: dist.ProcessGroup, moved: Mapping[str, int]) -> Saved:
        """Write the shards of all ranks, and on the first the rest; called in the writing thread of each."""
        files = self._store.write_shards(aside, saving.state, group)
        every: list[Any] = [None] * self._ranks.world
        weight = next(self.snapshot.nonfinite_weights(saving.state), None)
        dist.all_gather_object(every, (files, weight), group=group)
        if not self._ranks.first:
            return Saved(aside, 0)
        shards = aside, {name: entry for files, _ in every for name, entry in files.items()}
        return self._write(saving, moved, shards, next((weight for _, weight in every if weight), None))

    def _write(
        self, saving: Saving, moved: Mapping[str, int], shards: Shards | None = None, weight: str | None = None
    ) -> Saved:
        """Bring a checkpoint to the disk and remove those that it replaces; called in the writing thread.

        `shards` are those of all ranks, and `weight` is one in them that is not finite.
        """
        self._log.flush(frame=False)  # the log must have what the checkpoint has
        try:
            # and on the disk, before the checkpoint is
            size, self._flushed = sync_run(RunDir(self._context.folder), self._flushed)
            saving.facts = {**saving.facts, "log": size, "ms": round(saving.ms, 3)}
            if weight := weight or next(self.snapshot.nonfinite_weights(saving.state), None):
                if self._context.parts.section.on_nan != "ignore":
                    saved = self._store.save_apart(saving.state, saving.facts, NONFINITE, shards)
                    self._store.move(moved)
                    where = f'the weights are not finite in iteration {saving.facts["it"]} ("{weight}")'
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

    def _record(self, saving: Saving, saved: Saved) -> None:
        if saved.path.name.startswith(NONFINITE):
            return  # no run resumes from it; an error names it
        path = str(saved.path.relative_to(self._context.folder))
        it, ep = saving.facts["it"], saving.facts["ep"]
        self._log.put("checkpoint", it=it, ep=ep, path=path, names=saving.names, bytes=saved.bytes, ms=saving.ms)
