"""The checkpoints of one run, seen from the training: asked for, copied, on their way to the disk, told of."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from hookflow.runner.checkpoint.saving import GRACE, HostCopy, NotSavedError, Saving, begin
from hookflow.runner.checkpoint.state import capture, check_storable
from hookflow.runner.checkpoint.store import NOTHING, CheckpointStore, Saved
from hookflow.runner.distributed.gather import full_state
from hookflow.runner.recorder import Recorder

if TYPE_CHECKING:
    from hookflow.runner.runner import Runner


class Saver:
    """Saves the state of a run at its boundaries. `asked` are the names to save by, until somebody has."""

    def __init__(self, run: Runner, store: CheckpointStore, recorder: Recorder) -> None:
        self.asked: dict[str, int | None] = {}
        self._run = run
        self._store = store
        self._recorder = recorder
        self._keep: int | None = None
        self._saving: Saving | None = None
        given_away = any("checkpoint" in binding.takes for binding in run.plan.at("after_save_checkpoint"))
        self._copy = HostCopy(reuse=not given_away)

    def ask(self, names: Iterable[str], moved: Mapping[str, int] = NOTHING, keep: int | None = None) -> None:
        """Have the state saved at the next boundary; see `hookflow.hooks.run.Run.save_checkpoint`."""
        self.asked.update(moved)
        self.asked.update(dict.fromkeys(names))
        self._keep = max(self._keep or 0, keep) if keep is not None else self._keep

    @property
    def has_written(self) -> bool:
        """Whether a checkpoint is on the disk, or could not be written, that has not been told of."""
        return self._saving is not None and self._saving.ended

    def save(self) -> None:
        """Copy the state, and let another thread write it; what is on its way to the disk is waited for first."""
        run = self._run
        run.update.settle()
        self.tell()
        began = time.perf_counter()
        before, run.stage = run.stage, "save"
        asked, keep = self._asked_by_all()
        moved = {name: it for name, it in asked.items() if it is not None}
        names = [name for name in asked if name not in moved]
        with run.meter.aside():
            state = self._copied()
            facts = self._facts(state)
            saving = Saving(state, names, facts, (time.perf_counter() - began) * 1e3)
            self._saving = saving if run.rank else begin(saving, partial(self._write, saving, moved, keep))
        run.stage = before

    def _asked_by_all(self) -> tuple[dict[str, int | None], int | None]:
        """Return the names to save by, and how many checkpoints to keep, as all ranks want it, and forget them."""
        asked: dict[str, int | None] = {}
        keeps: list[int] = []
        for names, keep in self._run.consensus.all_gather_object((self.asked, self._keep)):
            asked.update(names)
            keeps += [keep] if keep is not None else []
        self.asked, self._keep = {}, None
        return asked, max(keeps, default=None)

    def _copied(self) -> dict[str, Any]:
        """Return the state in the host's memory. What hooks enter around a save is left once that is there.

        Of several ranks the first one copies it, and with it what the others have of their own.
        """
        run = self._run
        entered = run.dispatcher.entered
        state = dict(run.before_cut or capture(run))
        run.reach("before_save_checkpoint", state)
        check_storable(state)
        if run.ranks.world > 1:
            state = full_state(state, run.consensus)
        copied = state if run.rank else self._copy.of(state)
        run.dispatcher.leave(entered)
        return copied

    def _facts(self, state: Mapping[str, Any]) -> dict[str, Any]:
        run = self._run
        return {
            "it": run.iter,
            "ep": run.epoch,
            "metrics": state["metrics"],
            "pipeline": run.plan.pipeline,
            "world": run.ranks.world,
        }

    def _write(self, saving: Saving, moved: Mapping[str, int], keep: int | None) -> Saved:
        """Bring a checkpoint to the disk, and remove those that it replaces. Another thread does this."""
        self._recorder.flush()  # what a checkpoint has behind it, the log must have too
        saved = self._store.save(saving.state, saving.names, saving.facts, moved)
        if keep is not None:
            self._store.prune(keep)
        return saved

    def tell(self) -> None:
        """Tell of the checkpoint that is on its way to the disk, once it is there; wait for that, if need be."""
        run = self._run
        if self._saving is None:
            return
        saving = self._saving
        before, run.stage = run.stage, "save"
        with run.meter.aside():
            try:
                saved = run.consensus.broadcast_object(saving.result() if saving.thread else None)
            finally:
                self._saving = saving if saving.thread and not saving.ended else None  # a signal may cut it short
            if not isinstance(saved, Saved):
                raise saved or NotSavedError("rank 0 has written no checkpoint")
            where = {
                "it": saving.facts["it"],
                "ep": saving.facts["ep"],
                "path": str(saved.path.relative_to(run.dir)),
            }
            run.record("checkpoint", **where, names=saving.names, bytes=saved.bytes, ms=saving.ms)
            run.reach("after_save_checkpoint", saving.state, saved.path)
        run.stage = before

    def save_the_rest(self) -> None:
        """See to it that all is on the disk that has been asked for."""
        self.tell()
        if self._run.consensus.any_rank(bool(self.asked)):
            self.save()
            self.tell()

    def tell_if_possible(self) -> None:
        """Do what `tell` does, in a run that has failed already."""
        self._if_possible(self.tell if self._run.ranks.world == 1 else self._wait)

    def save_after_error(self, error: BaseException) -> None:
        """Save what stands when something has raised; no run goes on from it."""
        self._if_possible(partial(self._save_after, error))

    def abandon(self) -> None:
        """Call off what is still being written: the run ends."""
        self._store.abandon()
        if self._saving is not None and self._saving.thread:
            self._saving.thread.join(GRACE)

    def _wait(self) -> None:
        """Wait for the disk alone: the other ranks may have gone."""
        if self._saving is not None and self._saving.thread and isinstance(failed := self._saving.result(), Exception):
            raise failed

    def _save_after(self, error: BaseException) -> None:
        if self._run.ranks.world > 1:
            raise NotSavedError("that takes all ranks, and this one has raised")
        state = self._copied()
        facts = self._facts(state) | {"exception": f"{type(error).__name__}: {error}"}
        path = self._store.save_after_error(state, facts).path
        self._run.say(
            f"what stood when {type(error).__name__} was raised is in {path.relative_to(self._run.dir)}", "warn"
        )

    def _if_possible(self, save: Callable[[], None]) -> None:
        """Save, or say why not: the run has failed already, and ends with the error that it failed with."""
        try:
            save()
        except Exception as error:
            self._run.say(f"no checkpoint could be saved after the error: {error}", "error")
