"""Tasks, models, data and hooks that would show a trace of a
validation that nobody was to notice.
"""

import random
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from hookflow.hooks.capabilities import HookCapabilities
from tests.support.data_loaders import Clouds
from tests.support.toy import Net


class Meter:
    def __init__(self) -> None:
        self.sum, self.seen = 0.0, [0]


class Leaves(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        noise = torch.randn(()) + random.random() + np.random.rand() + 1e-3 * self.passes
        return super().forward(inputs) + noise


class Tracks:
    """A task whose losses depend on everything that was evaluated before,
    and which does all that a task may do.
    """

    def __init__(self) -> None:
        self.meter, self.evaluated = Meter(), 0
        self.own = torch.Generator().manual_seed(3)
        self.numpy, self.python = np.random.default_rng(3), random.Random(3)
        self.confusion, self.sums = np.zeros(3), torch.zeros(3)
        self.run: Any = None

    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        trace = (
            self.evaluated
            + self.meter.sum
            + sum(self.meter.seen)
            + self.confusion.sum()
            + float(self.sums.sum())
        )
        drawn = (
            float(torch.rand((), generator=self.own)) + self.numpy.random() + self.python.random()
        )
        loss = functional.cross_entropy(run.model(batch[0]), batch[1])
        return {"loss": loss + 1e-3 * (trace + drawn), "drawn": drawn, "trace": float(trace)}

    def evaluate(self, run: Any, batch: Any) -> dict[str, Any]:
        self.run = run
        self.evaluated += 1
        self.meter.sum += 1
        self.meter.seen.append(len(batch[1]))
        self.confusion += 1
        self.sums += torch.rand(3, generator=self.own)
        run.log("logged", self.evaluated)
        run.say("evaluated")
        run.save_checkpoint("unasked")
        logits = run.model(batch[0])
        drawn = (
            torch.rand(())
            + random.random()
            + np.random.rand()
            + self.numpy.random()
            + self.python.random()
        )
        loss = functional.cross_entropy(logits, batch[1]) + drawn
        return {"loss": loss, "logits": logits, "target": batch[1]}

    def metrics(self, means: Mapping[str, float]) -> Mapping[str, float]:
        self.meter.sum = 0
        return {"twice": 2 * means["loss"]}


class Raises:
    def __init__(self, split: str = "evaluate") -> None:
        self.split = split

    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        return {"loss": functional.cross_entropy(run.model(batch[0]), batch[1])}

    def evaluate(self, run: Any, batch: Any) -> dict[str, Any]:
        if self.split == "evaluate":
            raise KeyError("logits")
        return self.step(run, batch)

    def metrics(self, means: Mapping[str, float]) -> Mapping[str, float]:
        if self.split == "metrics":
            raise ZeroDivisionError("no positives in these examples")
        return {}


class Locked(Raises):
    def __init__(self) -> None:
        super().__init__("none")
        self.lock = threading.Lock()

    def evaluate(self, run: Any, batch: Any) -> dict[str, Any]:
        logits = run.model(batch[0])
        return {
            "loss": functional.cross_entropy(logits, batch[1]),
            "logits": logits,
            "target": batch[1],
        }


class Counts:
    """A hook that notes each call, as a metric of a name that it does not declare."""

    named = "calls"

    def __init__(self) -> None:
        self.calls = 0

    def before_val(self) -> None:
        self.calls += 1

    def after_val_iter(self) -> None:
        self.calls += 1

    def after_val_epoch(self, metrics: dict[str, float]) -> None:
        metrics[self.named] = self.calls


class Sets:
    def after_val_epoch(self, metrics: dict[str, float]) -> None:
        metrics["calls"] = 1


class SetsOfTheRun:
    def after_val_epoch(self, run: Any) -> None:
        run.metrics["calls"] = 1


def sets(run: Any) -> None:
    run.metrics["calls"] = 1


class Looks:
    def __init__(self, name: str) -> None:
        self.name = name

    def after_train_epoch(self, run: Any) -> None:
        run.log("looked", run.scalar(self.name))


class Reads:
    def __init__(self, monitors: Any) -> None:
        pass

    @classmethod
    def capabilities_for(cls, args: Mapping[str, Any]) -> HookCapabilities:
        return HookCapabilities(monitors=args["monitors"])

    def after_val(self) -> None:
        pass


def validates() -> DataLoader[Any]:
    return DataLoader(
        Clouds(), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(5)
    )
