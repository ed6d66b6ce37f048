"""The cost of three slow hooks: in the training thread, and offloaded. Prints a table in Markdown.

    python benchmarks/offload.py [--pairs 40] [--rounds 2]

Steps of some 10 ms on one thread; every 10 iterations hooks take 20, 50 and 100 ms. They wait, as
for a disk or a service; or they compute for a fifth of that, since three that compute all of it
would need two processors of their own. In torch they leave Python to others meanwhile, as
statistics of activations and image grids do; in Python they hold its lock, unless they have
processes. The floor is the same computation in processes that get nothing of the training, and are
as nice as those of hooks.

The hooks fire in every second block of 60 iterations of one training. A block with hooks is
compared with the mean of the two beside it, so that a machine whose speed changes from minute to
minute changes both. Of each block the first third does not count: firings of the block before may
still run then.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

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
[optimizer]
use = "torch.optim:SGD"
args = {{ lr = 0.01 }}
[data.train]
use = "{HERE}:batches"
[hooks.clock]
use = "{HERE}:Clock"
"""
WHEN = f'every = {EVERY}, when = "iter % {2 * BLOCK} >= {BLOCK}"'
HOOK = (
    'hooks.h{ms} = {{ use = "{here}:Takes", args = {{ ms = {ms}, work = "{work}" }}, offload ='
    " {offload}, {when} }}"
)
OTHERS = """
hooks.others.use = "{here}:Elsewhere"
hooks.others.args.work = "{work}"
hooks.others.points = ["before_train", {{ at = "after_train_iter", {when} }}, "after_train"]
"""


def net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def batches() -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(64, 1024, generator=generator), torch.randint(10, (64,), generator=generator))
    ] * 20


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


class Elsewhere:
    """Let other processes compute what hooks of so many milliseconds do."""

    def __init__(self, work: str) -> None:
        self.work = work

    def before_train(self, run: Any) -> None:
        command = [sys.executable, str(HERE), "--elsewhere", self.work]
        self.others = [
            subprocess.Popen([*command, str(ms)], stdin=subprocess.PIPE, bufsize=0)
            for ms in MILLISECONDS
        ]

    def after_train_iter(self, run: Any) -> None:
        for other in self.others:
            assert other.stdin is not None
            other.stdin.write(b".")

    def after_train(self, run: Any) -> None:
        for other in self.others:
            other.kill()
            other.communicate()


def compute_elsewhere(work: str, ms: int) -> None:
    """Compute each time that the training asks for it."""
    os.nice(19)
    torch.set_num_threads(1)
    weight = torch.randn(1024, 1024)
    while sys.stdin.buffer.read(1):
        compute(ms / 5e3, work, weight)


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
    iters = (2 * pairs + 3) * BLOCK
    (folder / "offload.toml").write_text(f"{hooks}\n{PIPELINE.replace('ITERS', str(iters))}")
    command = [sys.executable, "-m", "hookflow", "run", "offload.toml", "--ui", "plain"]
    output = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    (line,) = (line for line in output.splitlines() if "| blocks " in line)
    return [float(value) for value in line.partition("| blocks ")[2].split()][2:]


def middle(values: list[float]) -> tuple[float, float, float]:
    """Return the median, and between what it is with 95 % confidence, whatever the distribution."""
    ordered, room = sorted(values), 0.98 * len(values) ** 0.5
    low, high = int(len(values) / 2 - room), round(len(values) / 2 + room)
    return statistics.median(values), ordered[max(low, 0)], ordered[min(high, len(values) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--elsewhere", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.elsewhere:
        compute_elsewhere(options.elsewhere[0], int(options.elsewhere[1]))
        return

    def hooks(work: str, offload: str) -> str:
        return "\n".join(
            HOOK.format(ms=ms, here=HERE, work=work, offload=offload, when=WHEN)
            for ms in MILLISECONDS
        )

    rows = {
        "wait, in the training thread": hooks("waits", "false"),
        "wait, in threads": hooks("waits", "true"),
    }
    for work, called in (("torch", "torch"), ("python", "Python")):
        rows[f"compute in {called}, in the training thread"] = hooks(work, "false")
        rows[f"compute in {called}, in threads"] = hooks(work, "true")
        rows[f"compute in {called}, in processes"] = hooks(work, '"process"')
        rows[f"compute in {called}, in processes without data"] = OTHERS.format(
            here=HERE, work=work, when=WHEN
        )
    without: dict[str, list[float]] = {name: [] for name in rows}
    shares: dict[str, list[float]] = {name: [] for name in rows}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for name, text in rows.items():
                blocks = blocks_of(Path(folder), text, options.pairs)
                without[name] += blocks[::2]
                beside = map(statistics.mean, zip(blocks[::2], blocks[2::2], strict=False))
                shares[name] += [
                    100 * (ms / other - 1) for ms, other in zip(blocks[1::2], beside, strict=True)
                ]
    print("| hooks that | ms an iteration without | with them | 95 % |\n| --- | --- | --- | --- |")
    for name, each in shares.items():
        median, low, high = middle(each)
        print(
            f"| {name} | {statistics.median(without[name]):.2f} | {median:+.1f} % | {low:+.1f} to"
            f" {high:+.1f} % |"
        )


if __name__ == "__main__":
    main()
