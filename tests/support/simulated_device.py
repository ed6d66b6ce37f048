"""A simulated accelerator: a queue of work with its own clock, whose events are like those of
`torch.Event`.

Work is launched by functions of PyTorch: of whatever module the pipeline names, there may be two in
one process.
"""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

FORWARD, HOOK = 0.0004, 0.0002
"""Seconds of the work that the forward pass, and the hook that clips gradients, launch. An
iteration of `toy.toml` takes longer, so that the device keeps up.
"""

busy_until = 0.0
"""When the work that is launched will be done, by `time.perf_counter`."""


class Event:
    def record(self) -> None:
        self.at = max(busy_until, time.perf_counter())

    def query(self) -> bool:
        return time.perf_counter() >= self.at

    def elapsed_time(self, end: "Event") -> float:
        return (end.at - self.at) * 1e3


def launching(seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that launches so much work, too."""

    def launch(*args: Any, **kwargs: Any) -> Any:
        global busy_until
        busy_until = max(busy_until, time.perf_counter()) + seconds
        return function(*args, **kwargs)

    return launch


def simulate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the clock of the device. The network of `toy.py` has two linear layers."""
    from hookflow.runner.iteration import context
    from hookflow.runner.logging.timing import DeviceClock

    monkeypatch.setattr(context, "_device_clock", lambda device: DeviceClock(Event))
    monkeypatch.setattr(torch.nn.Linear, "forward", launching(FORWARD / 2, torch.nn.Linear.forward))
    monkeypatch.setattr(
        torch.nn.utils,
        "clip_grads_with_norm_",
        launching(HOOK, torch.nn.utils.clip_grads_with_norm_),
    )
