"""The needs of CUDA where work leaves the training thread or stream.

These are devices of threads, events, and memory of streams.
"""

from collections.abc import Callable
from threading import Thread
from typing import Any

import torch
from torch import Tensor


def device_thread(work: Callable[[], object], name: str) -> Thread:
    """Return a daemon thread that calls `work` on this thread's current CUDA device.

    It is not started yet. A new thread is on GPU 0 otherwise, and what it allocates without naming
    a device makes a context there.
    """
    if not torch.cuda.is_initialized():
        return Thread(target=work, name=name, daemon=True)
    device = torch.cuda.current_device()

    def run_on_device() -> None:
        torch.cuda.set_device(device)
        work()

    return Thread(target=run_on_device, name=name, daemon=True)


def event_of_stream(value: Any) -> Any:
    """Return an event after a tensor that is computed on a CUDA stream of the user's own.

    It is None on the usual stream.
    """
    if not isinstance(value, Tensor) or not value.is_cuda:
        return None
    current = torch.cuda.current_stream(value.device)
    if current == torch.cuda.default_stream(value.device):
        return None
    return current.record_event()


def record_stream(tensor: Tensor, stream: torch.cuda.Stream) -> None:
    """Keep the memory of a tensor from being used again before the stream has done its work.

    That is the work that it has been given by then.
    """
    for part in memory_parts(tensor):
        if part.is_cuda:
            part.record_stream(stream)


def memory_parts(tensor: Tensor) -> list[Tensor]:
    """Return the dense tensors that hold the memory of a tensor.

    A sparse or a nested one has indices and values.
    """
    if tensor.is_nested:
        parts = [tensor.values()]
        if tensor.layout == torch.jagged:
            parts.append(tensor.offsets())  # type: ignore[attr-defined]
        return parts
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]
