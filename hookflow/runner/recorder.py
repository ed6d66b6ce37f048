"""The flusher thread: everything that leaves a run through files goes through here, off the training thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from hookflow.events.log import Appender, Tail
from hookflow.events.records import Stage
from hookflow.events.rundir import RunDir
from hookflow.runner.meter import Cell, Meter

QUICKEST, SLOWEST = 0.25, 2.0
"""Seconds between frames: at the start of a run, and of one that is older than an hour or so."""


class Progress(Protocol):
    """What a frame says of the run's place."""

    iter: int
    epoch: int
    stage: Stage
    batch_idx: int
    batches: int


class Recorder:
    """Appends frames and events to the event log, and hands on what the command log asks for."""

    def __init__(self, run_dir: RunDir, on_command: Callable[[dict[str, Any]], None]) -> None:
        self._log = Appender(run_dir.events)
        self._commands = Tail(run_dir.commands)
        self._commands.read_all()  # what was asked of an earlier attempt is not asked of this one
        self._on_command = on_command
        self._queue: deque[dict[str, Any]] = deque()
        self._scalars: deque[tuple[int, int, float, str, float | torch.Tensor]] = deque()
        self._frames: _Frames | None = None
        self._cost = 0
        self._began = time.monotonic()
        self._closing = threading.Event()
        self._one_at_a_time = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="hookflow-recorder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def watch(self, meter: Meter, progress: Progress) -> None:
        """Write frames of these from now on."""
        self._frames = _Frames(meter, progress)

    def put(self, kind: str, **fields: Any) -> None:
        """Record an event, stamped with the time; it is written soon, by the flusher thread."""
        self._queue.append({"k": kind, "t": time.time(), **fields})

    def scalar(self, it: int, ep: int, name: str, value: float | torch.Tensor) -> None:
        """Record a number. A tensor must not change any more; it is read later, by the flusher thread."""
        self._scalars.append((it, ep, time.time(), name, value))

    def close(self) -> None:
        """Write what is left and end the thread."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        self.flush()
        self._log.close()

    def _work(self) -> None:
        while not self._closing.wait(min(max((time.monotonic() - self._began) / 2400, QUICKEST), SLOWEST)):
            for command in self._commands.read():
                self._on_command(command)
            self.flush()

    def flush(self) -> None:
        """Append everything there is. Any thread may ask; one at a time does."""
        with self._one_at_a_time:
            began = time.perf_counter_ns()
            records = [*self._read_scalars(), *_take(self._queue)]
            if self._frames:
                records.append(self._frames.next(self._cost))
            self._log.append(records)
            self._cost = time.perf_counter_ns() - began

    def _read_scalars(self) -> list[dict[str, Any]]:
        """Return the numbers logged since the last time, a record for each iteration.

        This waits for the device where a number is still being computed, which is why it stands in this thread.
        """
        taken = _take(self._scalars)
        values = _on_host([value for *_, value in taken])
        records: dict[int, dict[str, Any]] = {}
        for (it, ep, t, name, _), value in zip(taken, values, strict=True):
            records.setdefault(it, {"k": "scalars", "t": t, "it": it, "ep": ep, "v": {}})["v"][name] = value
        return list(records.values())


def _take(queue: deque[Any]) -> list[Any]:
    """Empty the queue of what is in it now, while others may still be adding to it."""
    return [queue.popleft() for _ in range(len(queue))]


def _on_host(values: list[float | torch.Tensor]) -> list[float]:
    """Return all values as numbers, with one copy off the device for all tensors together."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    fetched = iter(torch.stack([tensor.reshape(()).double() for tensor in tensors]).tolist() if tensors else ())
    return [next(fetched) if isinstance(value, torch.Tensor) else float(value) for value in values]


class _Frames:
    """Turns counters that only grow into frames: what has happened since the frame before."""

    def __init__(self, meter: Meter, progress: Progress) -> None:
        self._meter = meter
        self._progress = progress
        self._samples = 0
        self._phases: Mapping[str, int] = dict(meter.phases)
        self._seen: dict[int, tuple[int, int, dict[int, int]]] = {}

    def next(self, cost: int) -> dict[str, Any]:
        meter, run = self._meter, self._progress
        samples, phases = meter.samples, dict(meter.phases)
        frame = {
            "k": "frame",
            "t": time.time(),
            "it": run.iter,
            "ep": run.epoch,
            "stage": run.stage,
            "bi": run.batch_idx,
            "bn": run.batches,
            "samples": samples - self._samples,
            "phases": {name: ns - self._phases[name] for name, ns in phases.items()},
            "iters": self._since(-1, meter.iterations) or [0, 0, 0, 0, {}],
            "hooks": {str(k): fired for k, cell in enumerate(meter.cells) if (fired := self._since(k, cell))},
            "cost": cost,
        }
        self._samples, self._phases = samples, phases
        return frame

    def _since(self, key: int, cell: Cell) -> list[Any] | None:
        """Return [n, total, longest, last, bins] since the last time; None when nothing has been added."""
        n, total, bins = cell.n, cell.total, dict(cell.bins)
        was_n, was_total, was_bins = self._seen.get(key, (0, 0, {}))
        if n == was_n:
            return None
        longest, cell.longest = cell.longest, 0
        self._seen[key] = (n, total, bins)
        grown = {str(index): count - was_bins.get(index, 0) for index, count in bins.items()}
        return [n - was_n, total - was_total, longest, cell.last, {b: c for b, c in grown.items() if c}]
