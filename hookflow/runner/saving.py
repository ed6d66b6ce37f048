"""Saving beside the training: the state is copied into memory of its own, and another thread brings that to the disk.

The training waits for the copy, and for the checkpoint before, if that is not on the disk yet: so there is never more
than one copy.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from hookflow.runner.checkpoint import Saved

GRACE = 5.0
"""Seconds that a run which ends at once waits for the write that it has called off."""


class NotSavedError(RuntimeError):
    """A checkpoint could not be written; those that stand are none the worse for it."""


@dataclass(slots=True)
class Saving:
    """A checkpoint on its way to the disk: the copied state, what is known of it, and who writes it."""

    state: dict[str, Any]
    names: list[str]
    facts: Mapping[str, Any]
    ms: float
    """How long the training has waited for it."""
    thread: threading.Thread
    outcome: Future[Saved]

    @property
    def ended(self) -> bool:
        return self.outcome.done()

    def result(self) -> Saved:
        """Wait for the write. Raises NotSavedError when it has failed."""
        try:
            return self.outcome.result()
        except Exception as error:
            raise NotSavedError(
                f"the checkpoint of iteration {self.facts['it']} could not be saved: {error}"
            ) from error


def begin(
    write: Callable[[], Saved], state: dict[str, Any], names: list[str], facts: Mapping[str, Any], ms: float
) -> Saving:
    """Call `write` in a thread. That is no reason for a process to live on."""
    outcome: Future[Saved] = Future()

    def work() -> None:
        try:
            saved = write()
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(saved)

    thread = threading.Thread(target=work, name="hookflow-checkpoint", daemon=True)
    thread.start()
    return Saving(state, names, facts, ms, thread, outcome)


def on_host(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a state in the host's memory; what shares its memory in the state does in the copy.

    It waits for the device once, at the end.
    """
    copies: dict[Any, torch.Tensor] = {}
    copied = {key: _copied(value, copies) for key, value in state.items()}
    for device in {key[0] for key in copies if key[0].type == "cuda"}:
        torch.cuda.synchronize(device)
    return copied


def _copied(value: Any, copies: dict[Any, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            return value.detach().to("cpu", copy=True)
        storage = value.untyped_storage().data_ptr()
        key = (value.device, storage, value.storage_offset(), value.shape, value.stride(), value.dtype)
        if key not in copies:
            copies[key] = _off_device(value.detach())
        return copies[key]
    if type(value) is dict:
        return {key: _copied(item, copies) for key, item in value.items()}
    if type(value) is OrderedDict:
        new = OrderedDict((key, _copied(item, copies)) for key, item in value.items())
        vars(new).update(copy.deepcopy(vars(value)))  # the versions that a state_dict carries
        return new
    if type(value) in (list, tuple):
        return type(value)(_copied(item, copies) for item in value)
    return copy.deepcopy(value)


def _off_device(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type != "cuda":
        return tensor.to("cpu", copy=True)
    target = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return target.copy_(tensor, non_blocking=True)
