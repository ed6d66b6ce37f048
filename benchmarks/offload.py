"""What three slow hooks cost a training: not there, in the training thread, and offloaded. Prints a table in Markdown.

    python benchmarks/offload.py              ARGS: --iters 300 --rounds 3

Steps of some 10 ms on one thread; every 10 iterations hooks take 20, 50 and 100 ms. They wait, as for a disk or a
service; or they compute for a fifth of that, since three that compute all of it would need two processors of their own.
In torch they leave Python to others meanwhile, as statistics of activations and image grids do; in Python they hold its
lock, unless they have processes. What is left then is the machine's: the same computation beside the training, in
processes that get nothing of it and are as nice as those of hooks, is its floor.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

HERE = Path(__file__).resolve()
MILLISECONDS = (20, 50, 100)
EVERY = 10
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


def compute_again(ms: int, work: str, period: float) -> None:
    """Compute as the hook of so many milliseconds does, each `period` seconds."""
    os.nice(19)
    torch.set_num_threads(1)
    weight, due = torch.randn(1024, 1024), time.perf_counter()
    while True:
        compute(ms / 5e3, work, weight)
        due += period
        time.sleep(max(due - time.perf_counter(), 0))


@contextmanager
def beside(work: str, period: float) -> Iterator[None]:
    """Compute in processes of no training, if there is `work`."""
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=compute_again, args=(ms, work, period), daemon=True) for ms in MILLISECONDS if work
    ]
    for each in processes:
        each.start()
    try:
        yield
    finally:
        for each in processes:
            each.kill()
            each.join()


class Clock:
    """Print the milliseconds of an iteration, the mean of all but the first tenth."""

    def before_train(self, run: Any) -> None:
        self.first, self.began = run.max_iters // 10, 0.0

    def after_train_iter(self, run: Any) -> None:
        if run.iter == self.first:
            self.began = time.perf_counter()

    def after_train(self, run: Any) -> None:
        print("ms", 1e3 * (time.perf_counter() - self.began) / (run.max_iters - self.first))


def milliseconds(folder: Path, hooks: str, iters: int) -> float:
    """Return the milliseconds of an iteration of a training in a process of its own."""
    (folder / "offload.toml").write_text(PIPELINE.replace("ITERS", str(iters)) + hooks)
    command = [sys.executable, "-m", "hookflow", "run", "offload.toml", "--ui", "plain"]
    output = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    (line,) = (line for line in output.splitlines() if "| ms " in line)
    return float(line.rpartition(" ")[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iters", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    def hooks(work: str, offload: str) -> str:
        values = {"here": HERE, "work": work, "every": EVERY, "offload": offload}
        return "".join(HOOK.format(ms=ms, **values) for ms in MILLISECONDS)

    rows = {
        "no hooks": ("", ""),
        "hooks that wait, in the training thread": (hooks("waits", "false"), ""),
        "hooks that wait, in threads": (hooks("waits", "true"), ""),
    }
    for work, called in (("torch", "torch"), ("python", "Python")):
        name = f"hooks that compute in {called}"
        rows[f"{name}, in the training thread"] = hooks(work, "false"), ""
        rows[f"{name}, in threads"] = hooks(work, "true"), ""
        rows[f"{name}, in processes"] = hooks(work, '"process"'), ""
        rows[f"no hooks, the same in {called} in processes that are not hookflow's"] = "", work
    taken: dict[str, list[float]] = {name: [] for name in rows}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for name, (text, work) in rows.items():
                none = statistics.median(taken["no hooks"] or [10.0])
                with beside(work, EVERY * none / 1e3):
                    taken[name].append(milliseconds(Path(folder), text, options.iters))
    none = statistics.median(taken["no hooks"])
    print("| | ms an iteration | over no hooks |\n| --- | --- | --- |")
    for name, times in taken.items():
        ms = statistics.median(times)
        print(f"| {name} | {ms:.2f} ({min(times):.2f} – {max(times):.2f}) | {100 * (ms / none - 1):+.1f} % |")


if __name__ == "__main__":
    main()
