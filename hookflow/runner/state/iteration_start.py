"""The state at the start of the current iteration.

It is for an iteration that cannot be finished, as a worker hangs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from hookflow.graph.plan import Plan
from hookflow.hooks.checkpoint_files import state_key
from hookflow.runner.checkpoint.shards import clone_leaf, mapped
from hookflow.runner.data.batches import call_before_each
from hookflow.runner.data.lengths import is_mixed, iter_sources
from hookflow.runner.data.source import Source
from hookflow.runner.device.random_state import pack_random_state, raw_random_state
from hookflow.runner.state.snapshot import RunSnapshot

RECORDED_IN_PART = ("position", "hooks", "data")
"""Entries of which less is recorded than a checkpoint holds.

The rest is as it was at the start of the iteration.
"""


class BufferCopies:
    """Copies of a model's buffers, in the same memory each time: one call copies them all.

    Which modules have buffers is looked up at each `begin`.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules: list[tuple[str, nn.Module]] = []
        self._all: list[Tensor | None] = []
        """The values of the modules at the last copy.

        One is None for a buffer that is None at the moment.
        """
        self._names: list[str] = []
        self._buffers: list[Tensor] = []
        self._are_plain = True
        self._shapes: list[torch.Size] = []
        self._copies: list[Tensor] = []

    def begin(self) -> None:
        """Look up the modules with buffers; an epoch begins."""
        modules = self._model.named_modules(remove_duplicate=False)
        self._modules = [(name, module) for name, module in modules if module._buffers]
        self._all = []

    def copy(self) -> None:
        """Copy the buffers as they are now."""
        buffers: list[Tensor | None] = []
        for _, module in self._modules:
            buffers += module._buffers.values()
        are_the_same = len(buffers) == len(self._all) and all(map(is_, buffers, self._all))
        if (
            are_the_same
            and self._are_plain
            and [buffer.shape for buffer in self._buffers] == self._shapes
        ):
            if self._copies:  # PyTorch refuses empty lists, as of buffers that are all None
                with torch.no_grad():
                    torch._foreach_copy_(self._copies, self._buffers)
        else:
            self._all = buffers
            self._copy_anew()

    def _copy_anew(self) -> None:
        """Copy the buffers into new memory: others are there, or of another shape or kind."""
        self._names = []
        self._buffers = []
        for prefix, module in self._modules:
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    self._names.append(f"{prefix}.{name}" if prefix else name)
                    self._buffers.append(buffer)
        self._are_plain = all(
            buffer.layout == torch.strided and not buffer.is_nested for buffer in self._buffers
        )
        self._shapes = [buffer.shape for buffer in self._buffers] if self._are_plain else []
        self._copies = [buffer.detach().clone() for buffer in self._buffers]

    def by_name(self) -> dict[str, Tensor]:
        """Return the copies."""
        return dict(zip(self._names, self._copies, strict=True))


class RecordingRate(Enum):
    """At which iterations the state at the start is recorded."""

    NEVER = "never"
    EACH_EPOCH = "each epoch"
    """At the first iteration of an epoch, and at that of a resumed run."""
    EACH_ITERATION = "each iteration"


class IterationStart:
    """Records what an iteration changes before its optimizer step, at the start of an iteration.

    A worker may hang when a signal has come, in the middle of an iteration of several batches. Then
    the batches that were accumulated are discarded: what is saved is the state after the last
    finished iteration. The weights and the optimizers are still in that state. Buffers, random
    numbers, and the states of hooks, triggers, task and data are not, so these are copied.
    `recording_rate` says when: only a run that may be cut short pays for it.
    """

    def __init__(self, snapshot: RunSnapshot, rate: RecordingRate) -> None:
        self._snapshot = snapshot
        self._rate = rate
        self._context = snapshot.context
        self._parts = snapshot.parts
        self._registry = snapshot.registry
        self._hooks = _hooks_before_the_step(snapshot.plan)
        self._iter = -1
        self._recorded: dict[str, Any] = {}
        self._buffers = {
            state_key("model", name): BufferCopies(model)
            for name, model in self._parts.models.items()
        }
        self._random: Any = None

    def recording(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return the batches of an epoch, which is not begun.

        The state is recorded before they are fetched. That is done once, or before the first batch
        of each iteration.
        """
        self._iter = -1
        for buffers in self._buffers.values():
            buffers.begin()
        if self._rate is RecordingRate.EACH_EPOCH:
            self._record()
            return batches
        return call_before_each(batches, self._record_once)

    def _record_once(self) -> None:
        if self._context.state.iter != self._iter:
            self._record()

    def _record(self) -> None:
        context = self._context
        parts = self._parts
        context.engine.settle()
        self._iter = context.state.iter
        changing = [
            each
            for each in self._registry
            if each.changes_before_step and each.name not in RECORDED_IN_PART
        ]
        recorded = {each.name: each.part.state_dict() for each in changing}
        recorded["position"] = context.state.state_dict()
        hooks = [(name, hook) for name, hook in parts.hooks.items() if name in self._hooks]
        recorded["hooks"] = {
            name: hook.state_dict() for name, hook in hooks if hasattr(hook, "state_dict")
        }
        recorded["data"] = self._train_data_state()
        self._recorded = mapped(recorded, clone_leaf)
        for buffers in self._buffers.values():
            buffers.copy()
        self._random = raw_random_state(parts.device)

    def _train_data_state(self) -> dict[str, Any]:
        train = self._parts.data["train"]
        if hasattr(train, "state_dict"):
            return {"train": train.state_dict()}
        return {}

    def state(self) -> dict[str, Any] | None:
        """Return the complete state at the start of the current iteration, and go back to it.

        The data go back to their place. None where it was not recorded: the present state is the
        same.
        """
        if self._context.state.iter != self._iter:
            return None
        self._context.state.batch_idx = self._recorded["position"]["batch_idx"]
        state = self._snapshot.capture()
        for key, recorded in self._recorded.items():
            if key in RECORDED_IN_PART:
                state[key] = {**state[key], **recorded}
            else:
                state[key] = recorded
        for key, buffers in self._buffers.items():
            saved = state[key]
            saved.update(
                {name: buffer for name, buffer in buffers.by_name().items() if name in saved}
            )
        state["random"] = pack_random_state(self._random)
        return state


def recording_rate(train: Source, plan: Plan, accumulate: int) -> RecordingRate:
    """Return when a worker's batch may be awaited in another state than the last recorded one.

    That is the state of the last finished iteration. Where an iteration has one batch, hooks at
    `before_fetch` have changed something by then; and the first batch of an epoch is awaited when
    its order has been drawn, by a sampler with a state or from a generator. A source of one's own
    may have workers that are unknown. With one batch an iteration, copies at each would cost more
    than many an iteration, and a hook at `before_fetch` may then fire once more.
    """
    if is_mixed(train):
        return _rate_of_several(
            [source for _, source in iter_sources({"train": train})], plan, accumulate
        )
    has_loader = hasattr(train, "loader")
    loader = getattr(train, "loader", None)
    if has_loader and getattr(loader, "num_workers", 0) == 0:
        return RecordingRate.NEVER
    if accumulate > 1:
        return RecordingRate.EACH_ITERATION
    if has_loader and plan.at("before_fetch"):
        return RecordingRate.EACH_ITERATION
    return RecordingRate.EACH_EPOCH


def _rate_of_several(sets: Sequence[Source], plan: Plan, accumulate: int) -> RecordingRate:
    """Return the rate that the most demanding of several sets needs.

    A set may begin an epoch of its own at any iteration, and one with a state draws its order then.
    """
    rates = {recording_rate(each, plan, accumulate) for each in sets}
    if rates == {RecordingRate.NEVER}:
        return RecordingRate.NEVER
    have_state = any(hasattr(each, "state_dict") for each in sets)
    if have_state or RecordingRate.EACH_ITERATION in rates:
        return RecordingRate.EACH_ITERATION
    return RecordingRate.EACH_EPOCH


def _hooks_before_the_step(plan: Plan) -> frozenset[str]:
    """Return the hooks that fire before an iteration's optimizer step, and those of numbers.

    These are numbers that are logged.
    """
    names = [point.name for point in plan.points]
    before_the_step = names[names.index("before_fetch") : names.index("before_optimizer_step")]
    return frozenset(
        binding.hook for name in (*before_the_step, "on_log") for binding in plan.at(name)
    )
