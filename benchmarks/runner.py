"""Iterations a second of hookflow, beside a loop of the same work written by hand: in turns, in one process.

    python benchmarks/runner.py [ROUNDS]

Two sizes of work, on one thread: a net so small that what surrounds it shows, and the shipped pipeline's with images
of 32 pixels. Two ways to the data: kept on the device, or fetched by two workers (by hand: PyTorch's DataLoader). Three
sets of hooks: none; ten that do nothing at each of the seven points of an iteration; those of `pipelines/cifar.toml`,
where the loop by hand clips, averages and sets the rate, too. Nothing is validated or saved meanwhile. Each figure is
that of the fastest window of iterations in all rounds, so that a busy machine shows less; "ratio" is what to compare
between machines: 1 is as fast as by hand.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from hookflow.runner.process.launch import prepare
from hookflow.runner.process.main import train
from hookflow.zoo.cifar10 import AirNet

HERE = Path(__file__).resolve()
BATCH, WARM_UP, WORKERS = 64, 5, 2
SHAPES = {"tiny": (64,), "real": (3, 32, 32)}
WINDOW = {"tiny": 50, "real": 4}
"""Iterations that are timed together."""
WINDOWS = {"tiny": 10, "real": 5}
POINTS = (
    "before_train_iter",
    "after_forward",
    "before_backward",
    "after_backward",
    "before_optimizer_step",
    "after_optimizer_step",
    "after_train_iter",
)
NO_OPS = "".join(f'[hooks.n{k}]\nuse = "{HERE}:nothing"\npoints = {list(POINTS)}\n' for k in range(10))
SHIPPED = """
[hooks.lr_schedule]
use = "lr_schedule"
args = { shape = "linear", warmup = "23%", start = 0.2, end = 0.07 }
[hooks.grad_clip]
use = "grad_clip"
args = { max_norm = 1.0 }
[hooks.ema]
use = "ema"
args = { decay = 0.97 }
[hooks.accuracy]
use = "accuracy"
[hooks.throughput]
use = "throughput"
[hooks.log]
use = "log"
points = [{ at = "after_train_iter", every = 5, after = ["throughput"] }]
[hooks.checkpoint]
use = "checkpoint"
after = ["ema"]
"""
HOOKS = {"none": "", "70 no-ops": NO_OPS, "shipped": SHIPPED}
LOADERS = {"device": "{ batch_size = 64, on_device = true }", "workers": "{ batch_size = 64, workers = 2 }"}
PIPELINE = f"""
[run]
name = "rate"
default_hooks = false
max_epochs = 1
threads = 1
[model]
use = "{HERE}:net"
args = {{ work = "WORK" }}
[optimizer]
use = "torch.optim:SGD"
args = {{ lr = 0.01, momentum = 0.9 }}
[data.train]
use = "{HERE}:Noise"
args = {{ work = "WORK" }}
loader = LOADER
[hooks.clock]
use = "{HERE}:Clock"
args = {{ work = "WORK", file = "FILE" }}
phase = "last"
"""


def iterations(work: str) -> int:
    return WARM_UP + WINDOW[work] * WINDOWS[work]


def net(work: str) -> nn.Module:
    if work == "tiny":
        return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    return AirNet(widths=[32, 64, 128])


class Noise(Dataset[Any]):
    """Examples of noise in memory, as many as one measurement needs."""

    def __init__(self, work: str) -> None:
        examples = BATCH * iterations(work)
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(examples, *SHAPES[work], generator=generator)
        self.target = torch.randint(10, (examples,), generator=generator)

    def __len__(self) -> int:
        return len(self.target)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index], self.target[index]


def nothing() -> None:
    """Do nothing, at any point."""


class Clock:
    """Finds the fastest window of iterations after the warm-up, and writes down what one of them took, in seconds."""

    def __init__(self, work: str, file: str | None = None) -> None:
        self.window, self.file = WINDOW[work], file
        self.began, self.best = 0.0, math.inf

    def after_train_iter(self, run: Any) -> None:
        self.tick(run.iter)

    def after_train(self) -> None:
        Path(str(self.file)).write_text(str(self.best))

    def tick(self, done: int) -> None:
        """Take note that so many iterations are done."""
        if done >= WARM_UP and (done - WARM_UP) % self.window == 0:
            now = time.perf_counter()
            if done > WARM_UP:
                self.best = min(self.best, (now - self.began) / self.window)
            self.began = now


def by_hand(work: str, data: str, hooks: str) -> float:
    """Return the seconds of an iteration of the loop written out."""
    model, shipped, clock = net(work), hooks == "shipped", Clock(work)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    weights = [tensor for tensor in model.state_dict().values() if tensor.is_floating_point()]
    average, total = [tensor.clone() for tensor in weights], iterations(work)
    for done, (inputs, target) in enumerate(batches(Noise(work), data)):
        if shipped:
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * (1 - done / total)
        loss = functional.cross_entropy(model(inputs), target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if shipped:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if shipped:
            torch._foreach_lerp_(average, weights, 0.03)
        clock.tick(done + 1)
    return clock.best


def batches(noise: Noise, data: str) -> Iterator[Any]:
    if data == "workers":
        yield from DataLoader(noise, BATCH, shuffle=True, num_workers=WORKERS)
    else:
        for chosen in torch.randperm(len(noise)).split(BATCH):
            yield noise.inputs[chosen], noise.target[chosen]


def by_hookflow(work: str, data: str, hooks: str, folder: Path) -> float:
    """Return the same by the runner."""
    mark = folder / "seconds"
    text = PIPELINE.replace("WORK", work).replace("LOADER", LOADERS[data]).replace("FILE", str(mark)) + HOOKS[hooks]
    loaded = parse(text, HERE)
    run_dir = RunDir.create(folder, "rate")
    prepare(loaded, compile_pipeline(loaded), run_dir, HERE.parent)
    if train(run_dir):
        raise SystemExit(f"the run failed: see {run_dir.path}")
    return float(mark.read_text())


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    torch.set_num_threads(1)
    print(f"iterations a second, batches of {BATCH}, one thread, the fastest window of {rounds} rounds\n")
    print(f"{'work':<6}{'data':<9}{'hooks':<11}{'by hand':>9}{'hookflow':>10}{'ratio':>8}{'us more an iteration':>22}")
    for work in SHAPES:
        for data in LOADERS:
            for hooks in HOOKS:
                pairs = []
                for _ in range(rounds):
                    with tempfile.TemporaryDirectory() as folder:
                        pairs.append((by_hand(work, data, hooks), by_hookflow(work, data, hooks, Path(folder))))
                hand, flow = (min(times) for times in zip(*pairs, strict=True))
                more = (flow - hand) * 1e6
                print(f"{work:<6}{data:<9}{hooks:<11}{1 / hand:>9.1f}{1 / flow:>10.1f}{hand / flow:>8.3f}{more:>22.1f}")


if __name__ == "__main__":
    main()
