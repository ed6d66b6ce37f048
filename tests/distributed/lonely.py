"""Hooks that act on one rank alone: named by pipelines of tests as "./lonely.py:…"."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch


class Acts:
    """Calls something of the run on one rank, at one iteration of one point."""

    writes = ("control",)

    def __init__(self, call: str, rank: int, at: int, point: str, args: list[Any]) -> None:
        self.call, self.rank, self.iteration, self.point, self.args = call, rank, at, point, args

    def act(self, point: str, run: Any) -> None:
        if (point, run.rank, run.iter) == (self.point, self.rank, self.iteration):
            getattr(run, self.call)(*self.args)

    def before_train_iter(self, run: Any) -> None:
        self.act("before_train_iter", run)

    def after_backward(self, run: Any) -> None:
        self.act("after_backward", run)

    def before_optimizer_step(self, run: Any) -> None:
        self.act("before_optimizer_step", run)

    def after_train_iter(self, run: Any) -> None:
        self.act("after_train_iter", run)


class Strikes:
    """Sends this rank's process a signal, once: `mark` says whether it has been."""

    def __init__(self, rank: int, at: int, number: int, mark: str) -> None:
        self.rank, self.iteration, self.number, self.mark = rank, at, number, Path(mark)

    def after_backward(self, run: Any) -> None:
        if run.rank == self.rank and run.iter == self.iteration and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), self.number)


class Remembers:
    """Has a state that is another one on every rank, and draws numbers that are, too."""

    def __init__(self) -> None:
        self.drawn: list[float] = []

    def after_train_iter(self, run: Any) -> None:
        self.drawn.append(run.rank + torch.rand(()).item())

    def after_train(self, run: Any) -> None:
        weights = sum(p.double().sum().item() for p in run.model.parameters())
        run.say(f"iteration {run.iter}, weights {weights!r}, drawn {self.drawn}")

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": list(self.drawn)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn = list(state["drawn"])


class Breaks:
    """Raises on rank 1 alone, in the third iteration."""

    def fail(self, run: Any) -> None:
        if run.rank == 1 and run.iter == 2:
            raise RuntimeError("as told")

    def before_train_iter(self, run: Any) -> None:
        self.fail(run)

    def forward(self, run: Any) -> None:
        self.fail(run)

    def after_train_iter(self, run: Any) -> None:
        self.fail(run)

    def around_train_iter(self, run: Any) -> Iterator[None]:
        self.fail(run)
        yield
