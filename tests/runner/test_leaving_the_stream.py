"""Threads and memory of CUDA beside the stream of the training: what of it can be seen without a
GPU.

`test_cuda.py` has what a GPU alone shows.
"""

import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import hookflow.runner
from hookflow.runner.data import batches
from hookflow.runner.data.batches import prefetch
from hookflow.runner.device.cuda import device_thread, memory_parts
from hookflow.runner.logging import media
from hookflow.runner.logging.media import MediaRecorder
from hookflow.runner.process.state import RunState


def test_a_thread_begins_on_the_device_of_its_maker(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: dict[str, int] = {}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(
        torch.cuda,
        "set_device",
        lambda device: devices.update({threading.current_thread().name: device}),
    )
    thread = device_thread(lambda: None, "beside")
    assert devices == {}
    thread.start()
    thread.join()
    assert devices == {"beside": 3}


WITHOUT_TENSORS = {
    "attempt/main.py",
    "process/signals.py",
    "process/code_recorder.py",
    "attempt/attempt.py",
    "checkpoint/copies.py",
}
"""Modules whose threads touch no tensor."""

ON_DEVICE_OF_TENSORS = {"logging/recorder.py"}
"""Those whose threads begin before torch is there, and name the device of each tensor."""


def test_threads_that_use_tensors_are_made_in_one_place() -> None:
    runner = Path(hookflow.runner.__file__ or "").parent
    makers = {
        str(file.relative_to(runner))
        for file in runner.rglob("*.py")
        if re.search(r"\bThread\(\s*target", file.read_text())
    }
    assert makers == {"device/cuda.py"} | WITHOUT_TENSORS | ON_DEVICE_OF_TENSORS


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
@pytest.mark.parametrize(
    "layout",
    [
        torch.strided,
        torch.sparse_coo,
        torch.sparse_csr,
        torch.sparse_csc,
        torch.sparse_bsr,
        torch.sparse_bsc,
    ],
)
def test_the_memory_of_a_tensor_is_in_dense_parts(layout: torch.layout) -> None:
    values = torch.eye(4)
    blocks = {"blocksize": (2, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    tensor = values if layout is torch.strided else values.to_sparse(layout=layout, **blocks)
    parts = memory_parts(tensor)
    assert all(part.layout is torch.strided for part in parts)
    assert len(parts) == {torch.strided: 1, torch.sparse_coo: 2}.get(layout, 3)
    numbers = sum(part.numel() for part in parts if part.is_floating_point())
    assert numbers == {torch.strided: 16, torch.sparse_bsr: 8, torch.sparse_bsc: 8}.get(layout, 4)


def test_of_a_nested_tensor_too() -> None:
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    values, offsets = memory_parts(jagged)
    assert (values.numel(), offsets.tolist()) == (5, [0, 2, 5])


class Event:
    """An event of a stream that is done once somebody waits for it;
    by then `tensor` has its values.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def synchronize(self) -> None:
        self.tensor.fill_(1.0)


def test_what_another_stream_computes_is_read_after_its_event(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(media, "event_of_stream", Event)
    put: list[dict[str, Any]] = []
    shown = MediaRecorder(
        tmp_path, RunState(), lambda kind, **fields: put.append(fields), lambda text, level: None
    )
    shown.histogram("values", torch.zeros(6), 1, "hook")
    shown.close()
    (histogram,) = put
    assert histogram["edges"][0] <= 1.0 <= histogram["edges"][-1]
    assert histogram["edges"][0] > 0.0


def test_batches_of_all_epochs_are_copied_on_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stream keeps the memory that it has used."""
    made: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "Stream", made.append)
    batches._stream_for_copies.cache_clear()
    context: Any = SimpleNamespace(device=torch.device("cuda", 0))
    for _ in range(3):  # epochs
        assert [*prefetch([], context)] == []
    assert made == [torch.device("cuda", 0)]
    batches._stream_for_copies.cache_clear()
