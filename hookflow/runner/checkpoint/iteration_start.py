"""The state at the start of the iteration under way, for an iteration of several batches that cannot be finished."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from hookflow.graph.plan import Plan
from hookflow.hooks.checkpoint_files import state_key
from hookflow.runner.checkpoint.shards import cloned, mapped
from hookflow.runner.checkpoint.snapshot import Snapshot
from hookflow.runner.data.batches import call_before_each
from hookflow.runner.data.source import Source
from hookflow.runner.random_state import pack_random_state, raw_random_state


class IterationStart:
    """Records what an iteration changes before its optimizer step, at the start of each iteration.

    A worker may hang when a signal has come, in the middle of an iteration of several batches. Then the batches that
    were accumulated are discarded: what is saved is the state after the last finished iteration. The weights and the
    optimizers are still in that state. Buffers, random numbers, and the states of hooks, triggers, task and data are
    not, so these are copied at each start. Only a run that `may_be_cut_short` pays for that.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._context, self._parts, self._update = snapshot.context, snapshot.parts, snapshot.update
        self._hooks = _hooks_before_the_step(snapshot.plan)
        self._iter = -1
        self._recorded: dict[str, Any] = {}
        self._buffers: dict[str, dict[str, Tensor]] = {}
        self._random: Any = None

    def recording(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return the batches of an epoch; record the state before the first one of each iteration is fetched."""
        self._iter = -1
        return call_before_each(batches, self._record_once)

    def _record_once(self) -> None:
        if self._context.state.iter != self._iter:
            self._record()

    def _record(self) -> None:
        context, parts, update = self._context, self._parts, self._update
        context.engine.settle()
        self._iter = context.state.iter
        hooks = [(name, hook) for name, hook in parts.hooks.items() if name in self._hooks]
        recorded = {
            "gradients": update.state_dict(),
            "group": update.group.state_dict(),
            "position": context.state.state_dict(),
            "requests": context.requests.state_dict(),
            "module_hooks": context.module_hooks.state_dict(),
            "scalars": context.scalars.state_dict(),
            "hooks": {name: hook.state_dict() for name, hook in hooks if hasattr(hook, "state_dict")},
            "task": parts.task.state_dict() if hasattr(parts.task, "state_dict") else {},
            "triggers": self._snapshot.trigger_states(),
            "data": self._train_data_state(),
        }
        self._recorded = mapped(recorded, cloned)
        self._buffers = {
            state_key("model", name): {key: buffer.detach().clone() for key, buffer in model.named_buffers()}
            for name, model in parts.models.items()
        }
        self._random = raw_random_state(parts.device)

    def _train_data_state(self) -> dict[str, Any]:
        train = self._snapshot.data.get("train")
        return {"train": train.state_dict()} if train is not None else {}

    def state(self) -> dict[str, Any]:
        """Return the complete state at the start of the iteration under way, and go back to its place in the data."""
        self._context.state.batch_idx = self._recorded["position"]["batch_idx"]
        state = self._snapshot.capture()
        for key, recorded in self._recorded.items():
            if key in ("position", "hooks", "data"):
                state[key] = {**state[key], **recorded}
            else:
                state[key] = recorded
        for key, buffers in self._buffers.items():
            saved = state[key]
            saved.update({name: buffer for name, buffer in buffers.items() if name in saved})
        state["random"] = pack_random_state(self._random)
        return state


def may_be_cut_short(train: Source, plan: Plan, accumulate: int) -> bool:
    """Return whether a worker's batch may be awaited when the state is not that of the last finished iteration.

    Where an iteration has one batch, only hooks at `before_fetch` have changed anything by then. A source of one's own
    may have workers that nothing tells of: it is taken to have some where an iteration has several batches. With one
    batch the copies would cost more than many an iteration, and a hook at `before_fetch` may then fire once more.
    """
    if accumulate == 1 and not plan.at("before_fetch"):
        return False
    if not hasattr(train, "loader"):
        return accumulate > 1
    return getattr(train.loader, "num_workers", 0) > 0


def _hooks_before_the_step(plan: Plan) -> frozenset[str]:
    """Return the hooks that fire in an iteration before its optimizer step, and those of numbers that are logged."""
    names = [point.name for point in plan.points]
    before_the_step = names[names.index("before_fetch") : names.index("before_optimizer_step")]
    return frozenset(binding.hook for name in (*before_the_step, "on_log") for binding in plan.at(name))
