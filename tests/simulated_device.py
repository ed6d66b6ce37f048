"""A simulated accelerator: a queue of work with its own clock, whose events are like those of `torch.Event`."""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor

from hookflow.runner.logging.timing import DeviceClock
from tests import toy

FORWARD, HOOK = 0.006, 0.003
"""Seconds of the work that the forward pass, and the hook, launch."""

busy_until = 0.0
"""When the work that is launched will be done, by `time.perf_counter`."""


def launch(seconds: float) -> None:
    global busy_until
    busy_until = max(busy_until, time.perf_counter()) + seconds


class Event:
    def record(self) -> None:
        self.at = max(busy_until, time.perf_counter())

    def query(self) -> bool:
        return time.perf_counter() >= self.at

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 1e3


def clock(device: object) -> DeviceClock:
    """Replace the function that makes the clock of a real device."""
    return DeviceClock(Event)


class Net(toy.Net):
    def forward(self, x: Tensor) -> Tensor:
        launch(FORWARD)
        return super().forward(x)


class Launches:
    def after_backward(self, run: Any) -> None:
        launch(HOOK)
