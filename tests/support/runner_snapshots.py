"""An image of everything mutable that the runner holds,
for a test that two runs are in the same state.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from hookflow.runner.loop.trainer import Trainer
from hookflow.zoo.tasks import Classification

TRAINERS: list[Trainer] = []
"""The trainers of this process, the latest last; a test puts them here."""

DERIVED = {
    "Timeline": "what time has passed is no state of the training",
    "TimingAggregator": "as above",
    "DeviceTimingAggregator": "as above",
    "DeviceClock": "as above",
    "CurrentHook": "as above: which hook is being called",
    "EventRecorder": "what it has to write goes on, whatever the training does",
    "MediaRecorder": "as above",
    "SignalCollector": "what has come to this process",
    "CheckpointStore": "what stands on the disk",
    "HostCopier": "memory that is used again",
    "PendingCheckpoint": "a write that is under way",
    "AsyncScalarCopy": "settled before each save",
    "RunComponents": "model, optimizers, hooks and data: compared by assert_same_end",
    "ScheduledTrigger._began": "seconds are counted anew in each process",
    "ScheduledTrigger._schedule": "worked out from the totals",
    "ScheduledTrigger._due": "follows from the last multiple",
    "ScheduledTrigger.next": "follows from the last multiple",
    "RunState.attention": "a flag that it is worth looking",
    "RunState.next_stop": "worked out before each stretch of iterations",
    "RunState.seconds": "a clock",
    "RunState.batches": "of the current pass",
    "RunState.batch_size": "of the current batch",
    "RunState.validation_due": "used up when the run was resumed",
    "ModuleHandle": "an id that PyTorch counts up in each process",
    "ModuleHookStack": "what PyTorch holds follows from the registrations",
    "HookRequests.offered": "of the current batch",
    "LatestScalars._others": "names for a hint",
    "LatestScalars._unseen": "names for a warning",
    "StepGuard._began": "the first step of each process is looked at",
    "StepGuard._reported": "follows from how many steps were left out",
    "OptimizerUpdate._left_out": "of the current iteration",
    "ModelWeights.saved_dtypes": "of the checkpoint that was loaded, if one was",
    "HostTensorPlaces.loaded": "as above",
    "UnsavedStateCheck": "the attributes that each process began with",
    "CheckpointManager.saved_at": (
        "which checkpoint stands: another one where the run was interrupted"
    ),
    "CheckpointManager._saving": "a write that is under way",
    "CheckpointManager._flushed": "what is on the disk",
    "SafePoint.handled_signal": "what has come to this process",
    "OpenArounds.open": "generators, which are entered again",
}
"""What a checkpoint need not hold, and why; a class, or one attribute of it."""


def photograph(thing: Any, seen: set[int] | None = None) -> Any:
    """Return plain values for all that an object of the runner holds, at any depth."""
    seen = set() if seen is None else seen
    if isinstance(thing, bool | int | float | str | bytes | type(None)):
        return thing
    if isinstance(thing, torch.Tensor):
        return thing.detach().tolist()
    if id(thing) in seen:
        return "seen"
    if isinstance(thing, Mapping):
        return {str(key): photograph(value, seen) for key, value in thing.items()}
    if isinstance(thing, set | frozenset):
        return sorted(map(str, thing))
    if isinstance(thing, list | tuple | deque):
        return [photograph(item, seen) for item in thing]
    kind = type(thing)
    if not kind.__module__.startswith("hookflow.runner") or any(
        base.__name__ in DERIVED for base in kind.__mro__
    ):
        return kind.__name__
    seen.add(id(thing))
    names = [
        *getattr(thing, "__dict__", {}),
        *(slot for base in kind.__mro__ for slot in getattr(base, "__slots__", ())),
    ]
    kept = [
        name
        for name in names
        if not any(f"{each.__name__}.{name}" in DERIVED for each in kind.__mro__)
    ]
    return {"": kind.__name__} | {
        name: photograph(getattr(thing, name, None), seen) for name in kept
    }


def registered_states(trainer: Trainer) -> dict[str, Any]:
    """Return the state of each registered part, as text: tensors by their values."""
    states = {}
    for registered in trainer.checkpoints.snapshot.registry:
        state = tree_map_only(torch.Tensor, torch.Tensor.tolist, registered.part.state_dict())
        states[registered.name] = repr(state)
    return states


class StepsEveryThird(Classification):
    """A task that steps its optimizer at every third batch,
    so that gradients and requests wait between iterations.
    """

    steps_itself = True

    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        loss = super().step(run, batch)["loss"]
        run.backward(loss)
        if run.iter % 3 == 2:
            run.step()
        return {"loss": loss}


class Freezes:
    """Puts the batch norm into evaluation, and says of each module in which mode it trains."""

    def __init__(self, at: int = -1) -> None:
        self.at = at

    def before_train(self, run: Any) -> None:
        if self.at < 0:
            run.model.body[1].eval()

    def before_train_iter(self, run: Any) -> None:
        if run.iter == self.at:
            run.model.body[1].eval()

    def after_train_iter(self, run: Any) -> None:
        modes = {name or "net": module.training for name, module in run.model.named_modules()}
        run.say(
            f"{run.iter} in evaluation:"
            f" {[name for name, training in modes.items() if not training]}"
        )
