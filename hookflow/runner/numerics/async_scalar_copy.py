"""Numbers on their way from the device to the host, which nobody waits for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

import torch
from torch import Tensor

Mark = TypeVar("Mark")


class AsyncScalarCopy(Generic[Mark]):
    """Single numbers in the order in which they were sent, each with a mark that says what it is.

    On CUDA each is copied to pinned memory once the device has come so far; on the CPU it is there at once. Other
    devices cannot say how far they are: there, who asks waits.
    """

    def __init__(self) -> None:
        self._under_way: deque[tuple[Tensor, torch.cuda.Event | None, Mark]] = deque()

    def send(self, number: Tensor, mark: Mark) -> None:
        """Send a tensor of one element as it will be when the device has come so far."""
        if number.device.type == "cuda":
            copy = number.detach().to("cpu", non_blocking=True)  # which takes pinned memory for it
            self._under_way.append((copy, torch.cuda.current_stream(number.device).record_event(), mark))
        else:
            self._under_way.append((number.detach().clone(), None, mark))

    def arrived(self, wait: bool = False) -> Iterator[tuple[float, Mark]]:
        """Yield what has arrived since the last time; all there is, if the caller would rather wait for it."""
        while self._under_way:
            copy, copied, mark = self._under_way[0]
            if copied is not None and not copied.query():  # type: ignore[no-untyped-call]
                if not wait:
                    return
                copied.synchronize()
            self._under_way.popleft()
            yield float(copy), mark
