"""Saving beside the training: the state is copied into memory of its own, and another thread brings that to the disk.

The training waits for the copy, and for the checkpoint before, if that is not on the disk yet: so there is never more
than one copy, and the memory of the last one serves the next.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

import torch

from hookflow.runner.checkpoint.nested import mapped
from hookflow.runner.checkpoint.store import Saved

GRACE = 5.0
"""Seconds that a run which ends at once waits for the write that it has called off."""

HEARS = 1.0
"""Seconds after which a signal is heard that came just before a wait began: Python would hear it when that ends."""


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
    thread: threading.Thread | None = None
    """Who writes it: nobody here, on all ranks but the first."""
    outcome: Future[Saved] = field(default_factory=Future)

    @property
    def ended(self) -> bool:
        return self.outcome.done()

    def ended_within(self, seconds: float) -> bool:
        """Wait for the write for so many seconds at most; return whether it has ended, if this rank writes at all."""
        return self.thread is None or bool(wait([self.outcome], seconds).done)

    def result(self) -> Saved | NotSavedError:
        """Wait for the write, and return what has become of it."""
        while not self.outcome.done():
            wait([self.outcome], HEARS)
        try:
            return self.outcome.result()
        except Exception as error:
            failed = NotSavedError(f"the checkpoint of iteration {self.facts['it']} could not be saved: {error}")
            failed.__cause__ = error
            return failed


def begin(saving: Saving, write: Callable[[], Saved], ended: Callable[[], None]) -> None:
    """Call `write` in a thread, and then `ended`. That is no reason for a process to live on."""

    def work() -> None:
        try:
            saved = write()
        except BaseException as error:
            saving.outcome.set_exception(error)
        else:
            saving.outcome.set_result(saved)
        ended()

    saving.thread = threading.Thread(target=work, name="hookflow-checkpoint", daemon=True)
    saving.thread.start()


class HostCopy:
    """Copies a state into the host's memory: pinned where it comes from a GPU, so that it waits for the device once.

    Fresh memory costs more than the copy into it. So that of the last copy is written over by the next, tensor by
    tensor of the same shape and kind; with `reuse` false every copy is its owner's to keep. Whatever the last copy was
    made for must be done with it.
    """

    def __init__(self, *, reuse: bool) -> None:
        self._reuse = reuse
        self._spare: dict[Any, list[torch.Tensor]] = {}

    def of(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of a state; what is one tensor there is one in the copy."""
        copies: dict[Any, torch.Tensor] = {}
        taken: dict[Any, list[torch.Tensor]] = {}
        copied: dict[str, Any] = mapped(dict(state), lambda leaf: self._copied(leaf, copies, taken))
        for device in {key[0] for key in copies if key[0].type == "cuda"}:
            torch.cuda.current_stream(device).synchronize()
        if self._reuse:
            self._spare = taken
        return copied

    def _copied(self, value: Any, copies: dict[Any, torch.Tensor], taken: dict[Any, list[torch.Tensor]]) -> Any:
        if isinstance(value, torch.Tensor):
            if value.layout != torch.strided:
                return value.detach().to("cpu", copy=True)
            storage = value.untyped_storage().data_ptr()
            key = (value.device, storage, value.storage_offset(), value.shape, value.stride(), value.dtype)
            if key not in copies:
                memory = self._memory_for(value, taken)
                copies[key] = memory.copy_(value.detach(), non_blocking=value.is_cuda)
            return copies[key]
        return copy.deepcopy(value)

    def _memory_for(self, tensor: torch.Tensor, taken: dict[Any, list[torch.Tensor]]) -> torch.Tensor:
        """Return host memory that lies as the tensor does: spare one, if there is."""
        kind = (tensor.shape, tensor.stride(), tensor.dtype, tensor.is_cuda)
        spare = self._spare.get(kind)
        memory = spare.pop() if spare else torch.empty_like(tensor.detach(), device="cpu", pin_memory=tensor.is_cuda)
        taken.setdefault(kind, []).append(memory)
        return memory
