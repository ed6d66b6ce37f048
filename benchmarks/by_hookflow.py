"""The training of `by_hand.py` by the runner, with several sets of hooks; and the parts that its pipelines name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from by_hand import EXAMPLES, RATE, Feed
from torch.nn import functional

from hookflow.events.rundir import RunDir
from hookflow.graph.points import POINTS
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from hookflow.runner.process.launch import prepare
from hookflow.runner.process.main import train as carry_out
from hookflow.writers import Writer

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
LOG = """
[hooks.log]
use = "log"
"""
HOOKS = {
    "none": "",
    "log": LOG,
    "log, slow writer": LOG + '[writers.slow]\nuse = "by_hookflow:Slow"\n',
    "ten": "".join(f'[hooks.n{k}]\nuse = "by_hookflow:After"\n' for k in range(10)),
    "every": "".join(f'[hooks.n{k}]\nuse = "by_hookflow:Every"\n' for k in range(10)),
    "usual": USUAL,
}

feed: Feed
"""What the run that is being made trains on: set before, and read when it has ended."""


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


class Slow(Writer):
    """A writer that takes ten seconds for whatever it is given."""

    def _sleep(self, *given: object) -> None:
        time.sleep(10)

    write_scalar = write_image = write_figure = write_text = write_histogram = write_config = _sleep

    def close(self) -> None: ...


def _nothing(self: object, run: Any) -> None: ...


Every = type("Every", (), {point.name: _nothing for point in POINTS if point.kind in ("standard", "step")})
"""A hook that does nothing at every point of the loop."""


def train(batches: Feed, hooks: str, folder: Path, epochs: int = 1) -> None:
    """Train so many epochs of the feed in this process; raises SystemExit when that fails."""
    global feed
    feed = batches
    loaded = parse(PIPELINE.replace("EPOCHS", str(epochs)) + HOOKS[hooks], HERE)
    run_dir = RunDir.create(folder, "overhead")
    prepare(loaded, compile_pipeline(loaded), run_dir, HERE.parent)
    if carry_out(run_dir):
        raise SystemExit(f"the run failed:\n{run_dir.events.read_text()[-2000:]}")
