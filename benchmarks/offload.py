"""What three slow hooks cost a training: in the training thread, and offloaded. Prints a table in Markdown.

    python benchmarks/offload.py              ARGS: --pairs 12 --rounds 2

Steps of some 10 ms on one thread; every 10 iterations hooks take 20, 50 and 100 ms. They wait, as for a disk or a
service; or they compute for a fifth of that, since three that compute all of it would need two processors of their own.
In torch they leave Python to others meanwhile, as statistics of activations and image grids do; in Python they hold its
lock, unless they have processes.

The hooks fire in every second block of 60 iterations of one training. A block with hooks is compared with the mean of
the two beside it, so that a machine whose speed changes from minute to minute changes both. Of each block the first
third does not count: firings of the block before may still run then.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

HERE = Path(__file__).resolve()
MILLISECONDS = (20, 50, 100)
EVERY = 10
BLOCK = 60
PIPELINE = f"""
[run]
name = "offload"
default_hooks = false
max_iters = ITERS
threads = 1
device = "cpu"
precision = "fp32"
[model]
use = "{HERE}:net"
[task]
use = "{HERE}:step"
[optimizer]
use = "torch.optim:SGD"
args = {{ lr = 0.01 }}
[data.train]
use = "{HERE}:batches"
[hooks.clock]
use = "{HERE}:Clock"
"""
HOOK = """
[hooks.h{ms}]
use = "{here}:Takes"
args = {{ ms = {ms}, work = "{work}" }}
every = {every}
when = "iter % {two_blocks} >= {block}"
offload = {offload}
"""


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def step(run: Any, batch: Any) -> dict[str, Any]:
    inputs, target = batch
    return {"loss": functional.cross_entropy(run.model(inputs), target)}


def batches() -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(64, 1024, generator=generator), torch.randint(10, (64,), generator=generator))] * 20


def compute(seconds: float, work: str, weight: torch.Tensor) -> None:
    """Compute for so long, in torch or in Python."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        if work == "torch":
            torch.linalg.vector_norm(weight @ weight)
        else:
            sum(k * k for k in range(1000))


class Takes:
    """Read the network and take so many milliseconds."""

    reads = ("model",)

    def __init__(self, ms: int, work: str) -> None:
        self.seconds, self.work = ms / 1e3, work

    def after_train_iter(self, run: Any) -> None:
        weight = next(run.model.parameters())
        if self.work == "waits":
            time.sleep(self.seconds)
        else:
            compute(self.seconds / 5, self.work, weight)


class Clock:
    """Print the milliseconds of an iteration in each block."""

    def before_train(self, run: Any) -> None:
        self.blocks: list[float] = []
        self.began = 0.0

    def after_train_iter(self, run: Any) -> None:
        if (at := run.iter % BLOCK) == BLOCK // 3:
            self.began = time.perf_counter()
        elif at == 0:
            self.blocks.append(1e3 * (time.perf_counter() - self.began) / (BLOCK - BLOCK // 3))

    def after_train(self, run: Any) -> None:
        print("blocks", *self.blocks)


def blocks_of(folder: Path, hooks: str, pairs: int) -> list[float]:
    """Return the milliseconds of an iteration in each block of a training in a process of its own.

    A first pair warms up and is left out; a block without hooks comes first and last.
    """
    (folder / "offload.toml").write_text(PIPELINE.replace("ITERS", str((2 * pairs + 3) * BLOCK)) + hooks)
    command = [sys.executable, "-m", "hookflow", "run", "offload.toml", "--ui", "plain"]
    output = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    (line,) = (line for line in output.splitlines() if "| blocks " in line)
    return [float(value) for value in line.partition("| blocks ")[2].split()][2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()

    def hooks(work: str, offload: str) -> str:
        values = {"here": HERE, "work": work, "every": EVERY, "offload": offload, "block": BLOCK}
        return "".join(HOOK.format(ms=ms, two_blocks=2 * BLOCK, **values) for ms in MILLISECONDS)

    rows = {
        "hooks that wait, in the training thread": hooks("waits", "false"),
        "hooks that wait, in threads": hooks("waits", "true"),
    }
    for work, called in (("torch", "torch"), ("python", "Python")):
        name = f"hooks that compute in {called}"
        rows[f"{name}, in the training thread"] = hooks(work, "false")
        rows[f"{name}, in threads"] = hooks(work, "true")
        rows[f"{name}, in processes"] = hooks(work, '"process"')
    without: dict[str, list[float]] = {name: [] for name in rows}
    shares: dict[str, list[float]] = {name: [] for name in rows}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for name, text in rows.items():
                blocks = blocks_of(Path(folder), text, options.pairs)
                without[name] += blocks[::2]
                beside = map(statistics.mean, zip(blocks[::2], blocks[2::2], strict=False))
                shares[name] += [100 * (ms / other - 1) for ms, other in zip(blocks[1::2], beside, strict=True)]
    print("| | ms an iteration without | more with them | quartiles |\n| --- | --- | --- | --- |")
    for name, each in shares.items():
        low, middle, high = statistics.quantiles(each, n=4)
        print(f"| {name} | {statistics.median(without[name]):.2f} | {middle:+.1f} % | {low:+.1f} to {high:+.1f} % |")


if __name__ == "__main__":
    main()
