"""Hooks that the tests put into pipelines: to see what fires, and to raise where they are told to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hookflow.graph.points import POINTS


def _watch(point: str) -> Any:
    def method(self: Tracer, run: Any) -> None:
        with self.file.open("a") as file:
            file.write(f"{point} iter={run.iter} epoch={run.epoch}\n")

    return method


class Tracer:
    """Writes down every point that fires, with the counters as they stand there."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)


for _point in POINTS:
    setattr(Tracer, _point.name, _watch(_point.name))


class Nothing:
    """Stands at every point of an iteration and does nothing."""

    def before_train_iter(self, batch: object) -> None: ...
    def after_forward(self, outputs: object) -> None: ...
    def after_backward(self, run: object) -> None: ...
    def after_train_iter(self) -> None: ...


class Raises:
    """Raises once the run has come to an iteration."""

    def __init__(self, at: int = 3) -> None:
        self.at = at

    def after_backward(self, run: Any) -> None:
        if run.iter == self.at:
            raise RuntimeError("as told")


class Around:
    """Marks in a file that it was entered and left around the training."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    def around_train_epoch(self) -> Iterator[None]:
        self.mark("entered")
        yield
        self.mark("left")

    def mark(self, word: str) -> None:
        with self.file.open("a") as file:
            file.write(f"{word}\n")


class AroundVal(Around):
    """Does so around validation, too."""

    def around_val(self) -> Iterator[None]:
        self.mark("entered")
        yield
        self.mark("left")


class Interrupts:
    """Sends its own process a signal, so many times, at one iteration of one point; never twice for one mark."""

    def __init__(self, mark: str, point: str, at: int, number: int = 15, times: int = 1) -> None:
        self.mark, self.point, self.at, self.number, self.times = Path(mark), point, at, number, times

    def strike(self, point: str, run: Any) -> None:
        if point == self.point and run.iter == self.at and not self.mark.exists():
            self.mark.touch()
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)


def _strikes(point: str) -> Any:
    return lambda self, run: self.strike(point, run)


for _point in POINTS:
    setattr(Interrupts, _point.name, _strikes(_point.name))


def slow(run: Any) -> None:
    """Take a moment, so that a test can do something meanwhile."""
    import time

    time.sleep(0.02)
