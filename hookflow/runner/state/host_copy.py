"""Copies of a run's state in the host's memory, which is used again for the next ones."""

from __future__ import annotations

import copy
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from mmap import PAGESIZE
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from hookflow.hooks.tensors import is_sharded, local
from hookflow.runner.checkpoint.shards import mapped, sharded_as

LARGE_COPY_BYTES = 1 << 20
"""Bytes from which on the memory of a copy is locked by its size."""

MAX_SPARE_COPIES = 2
"""Copies of which the memory is kept: one may be written to the disk while the next one is made."""

TensorKind = tuple[Any, ...]
"""Tensors of one kind can be copied into the same memory.

It is shape, strides, dtype, and whether it is on a GPU.
"""

Memory = dict[TensorKind, list[Tensor]]
"""Memory for tensors, by their kind."""


@dataclass
class StateCopy:
    """A state in the host's memory, with the tensors that are its memory."""

    state: dict[str, Any]
    memory: Memory = field(default_factory=dict)
    copied: list[torch.cuda.Event] = field(default_factory=list)
    """The events that the devices have passed once the state is there."""

    def wait(self) -> None:
        """Wait for the devices until the state is there."""
        for event in self.copied:
            event.synchronize()
        self.copied = []


class HostCopier:
    """Copies states into the host's memory: pinned where they come from a GPU.

    A copy has the memory of an earlier one that was given back, tensor by tensor of the same shape
    and kind. A sharded tensor is held as this rank's shard; the copies are sharded over `mesh`.
    """

    def __init__(self, mesh: DeviceMesh | None = None) -> None:
        self._mesh = mesh
        self._spare: deque[Memory] = deque(maxlen=MAX_SPARE_COPIES)

    def prepare(self, tensors: Iterable[Any]) -> None:
        """Take memory for the first copy of these tensors, page by page.

        The copy may be made in another thread meanwhile.
        """
        memory: Memory = {}
        self._spare.append(memory)
        for tensor in tensors:
            if isinstance(tensor, Tensor) and _is_plain(tensor):
                own = local(tensor.detach())
                place = host_memory(own)
                torch.empty(0, dtype=torch.uint8).set_(place.untyped_storage())[::PAGESIZE].zero_()
                memory.setdefault(_kind_of(own), []).append(place)

    def copy(
        self, state: Mapping[str, Any], *, kept: StateCopy | None = None, waits: bool = True
    ) -> StateCopy:
        """Return a copy of a state; a tensor that occurs twice there is one tensor in the copy.

        Tensors of the `kept` copy are taken as they are. A copy of tensors on a GPU `waits` for it,
        or is to be waited for before it is read; what is computed after this call is not in it
        either way.
        """
        spare = {}
        if self._spare:
            spare = self._spare.pop()
        job = _CopyJob(
            self._mesh, spare, _places_of(kept.memory) if kept is not None else frozenset()
        )
        result = StateCopy(mapped(dict(state), job.copy), job.memory)
        job.fill()
        for device in {source.device for source in job.sources if source.is_cuda}:
            result.copied.append(torch.cuda.current_stream(device).record_event())
        if waits:
            result.wait()
        return result

    def give_back(self, copied: StateCopy) -> None:
        """Use the memory of a copy that is no longer read for a later one."""
        if copied.memory:
            self._spare.append(copied.memory)


class _CopyJob:
    """One copy of a state: chooses the memory of each tensor, and then fills it."""

    def __init__(
        self, mesh: DeviceMesh | None, spare: Memory, kept_places: Collection[int]
    ) -> None:
        self._mesh = mesh
        self._spare = spare
        self._kept_places = kept_places
        self._targets: dict[Any, Tensor] = {}  # by device, place in memory and kind of the tensor
        self.sources: list[Tensor] = []
        self.memory: Memory = {}

    def copy(self, value: Any) -> Any:
        """Return a copy of a leaf of a state.

        A plain tensor has its contents once `fill` is called.
        """
        if not isinstance(value, Tensor):
            return copy.deepcopy(value)
        if is_sharded(value):
            return sharded_as(value, self.copy(local(value)), self._mesh)
        if not _is_plain(value):
            return value.detach().to("cpu", copy=True)
        place = value.untyped_storage().data_ptr()
        if place in self._kept_places:
            return value
        kind = _kind_of(value)
        key = (value.device, place, value.storage_offset(), *kind)
        if key not in self._targets:
            self._targets[key] = self._take_memory(kind, value)
            self.sources.append(value.detach())
        return self._targets[key]

    def _take_memory(self, kind: TensorKind, value: Tensor) -> Tensor:
        spare = self._spare.get(kind)
        if spare:
            memory = spare.pop()
        else:
            memory = host_memory(value.detach())
        self.memory.setdefault(kind, []).append(memory)
        return memory

    def fill(self) -> None:
        """Copy the tensors into their memory, without waiting for a GPU."""
        pairs = list(zip(self._targets.values(), self.sources, strict=True))
        on_host = [
            (target, source) for target, source in pairs if type(source) in (Tensor, nn.Parameter)
        ]
        on_host = [(target, source) for target, source in on_host if source.device.type == "cpu"]
        if on_host:  # PyTorch refuses empty lists
            torch._foreach_copy_(
                [target for target, _ in on_host], [source for _, source in on_host]
            )
        done = {id(target) for target, _ in on_host}
        for target, source in pairs:
            if id(target) not in done:
                target.copy_(source, non_blocking=source.is_cuda)


def host_memory(like: Tensor) -> Tensor:
    """Return memory of the host for a copy of a tensor, uninitialised.

    For one of a GPU it is page-locked. Large memory is locked by its size: PyTorch's allocator of
    pinned memory rounds it up to a power of two.
    """
    memory = torch.empty_like(
        like, device="cpu", pin_memory=like.is_cuda and like.nbytes < LARGE_COPY_BYTES
    )
    if like.is_cuda and like.nbytes >= LARGE_COPY_BYTES:
        cudart = torch.cuda.cudart()
        # CUDA has refused to lock this memory, so PyTorch's allocator locks some.
        if int(cudart.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)):
            _clear_cuda_error(like.device)
            return torch.empty_like(like, device="cpu", pin_memory=True)
        weakref.finalize(memory, cudart.cudaHostUnregister, memory.data_ptr())
    return memory


def _clear_cuda_error(device: torch.device) -> None:
    """Clear the error that a failed call of the CUDA runtime has left.

    The next kernel would be blamed for it.
    """
    # PyTorch looks at the error after each kernel, which raises it here and clears it.
    with suppress(RuntimeError):
        torch.zeros(1, device=device)


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor has memory of a shape and strides."""
    return tensor.layout == torch.strided and not tensor.is_nested


def _kind_of(tensor: Tensor) -> TensorKind:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.is_cuda


def _places_of(memory: Memory) -> frozenset[int]:
    """Return the places of this memory; empty tensors have none."""
    places: set[int] = set()
    for tensors in memory.values():
        places.update(tensor.untyped_storage().data_ptr() for tensor in tensors)
    places.discard(0)
    return frozenset(places)
