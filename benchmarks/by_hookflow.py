"""The training of `by_hand.py` by the runner, with several sets of hooks;
and the parts that its pipelines name.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from by_hand import EXAMPLES, RATE, Feed
from torch.nn import functional

from hookflow.graph.points import DEFAULT_POINTS
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from hookflow.runner.attempt import main
from hookflow.runner.process.launch import new_run

HERE = Path(__file__).resolve()

PIPELINE = f"""
[run]
name = "overhead"
default_hooks = false
max_epochs = EPOCHS
threads = 1
device = "cpu"
precision = "fp32"
[model]
use = "by_hand:net"
[task]
use = "by_hookflow:step"
[optimizer]
use = "torch.optim:SGD"
args = {{ lr = {RATE} }}
[data.train]
use = "by_hookflow:Data"
"""
USUAL = """
[hooks.log]
use = "log"
points = [{ at = "after_train_iter", every = 50 }]
[hooks.scheduler]
use = "scheduler"
args = { chain = [{ use = "StepLR", args = { step_size = 2, gamma = 0.5 } }], per = "epoch" }
[hooks.checkpoint]
use = "checkpoint"
args = { keep = 2 }
[hooks.throughput]
use = "throughput"
"""
HOOKS = {
    "none": "",
    "ten": "".join(f'[hooks.n{k}]\nuse = "by_hookflow:After"\n' for k in range(10)),
    "every": "".join(f'[hooks.n{k}]\nuse = "by_hookflow:Every"\n' for k in range(10)),
    "usual": USUAL,
}

feed: Feed
"""The batches of the run in this process; `train` sets them."""


class Data:
    """The feed, as a source."""

    def __init__(self) -> None:
        size = {"examples": EXAMPLES * len(self), "batches": len(self), "batch_size": EXAMPLES}
        self.info = {"name": "noise", **size, "synthetic": True, "note": "noise"}

    def __len__(self) -> int:
        return feed.length

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return iter(feed)


def step(run: Any, batch: Any) -> dict[str, torch.Tensor]:
    inputs, target = batch
    return {"loss": functional.cross_entropy(run.model(inputs), target)}


class After:
    """A hook that does nothing after each iteration."""

    def after_train_iter(self, run: Any, outputs: Any) -> None: ...


def _nothing(self: object, run: Any) -> None: ...


Every = type(
    "Every",
    (),
    {point.name: _nothing for point in DEFAULT_POINTS if point.kind in ("standard", "step")},
)
"""A hook that does nothing at every point of the loop."""


def train(batches: Feed, hooks: str, epochs: int = 1) -> None:
    """Train for so many epochs of the feed, with the tables of hooks."""
    global feed
    feed = batches
    carry_out(PIPELINE.replace("EPOCHS", str(epochs)) + hooks)


def carry_out(pipeline: str) -> None:
    """Run a pipeline in this process, as `hookflow run` does in one of its own.

    Raises SystemExit when that fails.
    """
    loaded = parse(pipeline, HERE)
    with tempfile.TemporaryDirectory() as folder:
        run = new_run(loaded, compile_pipeline(loaded), Path(folder))
        if main.train(run):
            raise SystemExit(f"the run failed:\n{run.events.read_text()[-2000:]}")
