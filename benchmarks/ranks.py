"""The speed of 1, 2 and 4 ranks on one machine: those of hookflow beside PyTorch's DDP by hand.

    python benchmarks/ranks.py [ROUNDS]

Two sizes of work, with the data on the device, by gloo on the CPU, one thread a rank: a net so
small that an iteration is nothing but what surrounds it, and one whose step takes about 5 ms. A
batch has 64 examples, shared out among the ranks. By hand is `torchrun` with a plain loop around
DistributedDataParallel. The trainings take turns. Each figure is that of the fastest window of
iterations; a window is longer than the time between two exchanges of the ranks. "to one" is the
rate over that of one rank of the same kind, "to DDP" over that of as many ranks by hand: 1 is as
fast. "cpu" is the processor time of an iteration on rank 0, all its threads together, in the median
window: it tells more where other work keeps the cores busy. More ranks than cores cannot be faster.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

HERE = Path(__file__).resolve()
WORLDS = (1, 2, 4)
BATCH, WARM_UP, WINDOWS = 64, 40, 8
WINDOW = {"tiny": 150, "5 ms": 40}
"""Iterations that are timed together."""
SHAPES = {"tiny": (64,), "5 ms": (3, 16, 16)}
PIPELINE = f"""
[run]
name = "ranks"
default_hooks = false
max_epochs = 1
threads = 1
precision = "fp32"
[model]
use = "{HERE}:net"
args = {{ work = "WORK" }}
[optimizer]
use = "torch.optim:SGD"
args = {{ lr = 0.01, momentum = 0.9 }}
[data.train]
use = "{HERE}:Noise"
args = {{ work = "WORK" }}
loader = {{ batch_size = {BATCH}, on_device = true }}
[hooks.clock]
use = "{HERE}:Clock"
args = {{ work = "WORK", file = "FILE" }}
phase = "last"
ranks = "zero"
"""


class Rate(NamedTuple):
    """Seconds of an iteration: by the wall clock, and of the processor."""

    wall: float
    cpu: float


def net(work: str) -> nn.Module:
    if work == "tiny":
        return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    convolutions = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


class Noise(Dataset[Any]):
    """Examples of noise in memory, as many as one measurement needs."""

    def __init__(self, work: str) -> None:
        examples = BATCH * (WARM_UP + WINDOW[work] * WINDOWS)
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(examples, *SHAPES[work], generator=generator)
        self.target = torch.randint(10, (examples,), generator=generator)

    def __len__(self) -> int:
        return len(self.target)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index], self.target[index]


class Clock:
    """Times windows of iterations after the warm-up, and writes down the fastest,
    and the median of the processor.
    """

    def __init__(self, work: str, file: str) -> None:
        self.window, self.file = WINDOW[work], Path(file)
        self.began = Rate(0.0, 0.0)
        self.windows: list[Rate] = []

    def after_train_iter(self, run: Any) -> None:
        self.tick(run.iter)

    def after_train(self) -> None:
        fastest = min(window.wall for window in self.windows)
        self.file.write_text(
            f"{fastest} {statistics.median(window.cpu for window in self.windows)}"
        )

    def tick(self, done: int) -> None:
        """Take note that so many iterations are done."""
        if done >= WARM_UP and (done - WARM_UP) % self.window == 0:
            now = Rate(time.perf_counter(), time.process_time())
            if done > WARM_UP:
                took = (after - before for after, before in zip(now, self.began, strict=True))
                self.windows.append(Rate(*(seconds / self.window for seconds in took)))
            self.began = now


def by_hand(work: str, file: str) -> None:
    """Train as one of the ranks that torchrun has started;
    the first writes the seconds of an iteration.
    """
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model, clock, noise = DistributedDataParallel(net(work)), Clock(work, file), Noise(work)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    order = torch.randperm(len(noise), generator=torch.Generator().manual_seed(0))
    for done, whole in enumerate(order.split(BATCH)):
        chosen = whole[rank::world]
        loss = functional.cross_entropy(model(noise.inputs[chosen]), noise.target[chosen])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        clock.tick(done + 1)
    if rank == 0:
        clock.after_train()
    dist.destroy_process_group()


def measured(kind: str, work: str, world: int, folder: Path) -> Rate:
    """Return what an iteration of so many ranks takes, each a process of its own."""
    mark, pipeline = folder / "seconds", folder / "ranks.toml"
    if kind == "by hand":
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
        command = [*launcher, str(HERE), "--by-hand", work, str(mark)]
    else:
        pipeline.write_text(PIPELINE.replace("WORK", work).replace("FILE", str(mark)))
        command = ["hookflow", "run", str(pipeline), f"--nproc={world}", "--ui=none"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return Rate(*map(float, mark.read_text().split()))


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print(f"iterations a second, batches of {BATCH}, one thread a rank, {os.cpu_count()} cores\n")
    print(
        f"{'work':<6}{'ranks':>5} "
        f" {'':<9}{'it/s':>8}{'examples/s':>12}{'to one':>8}{'to DDP':>8}{'cpu':>10}"
    )
    for work in WINDOW:
        rates: dict[tuple[str, int], list[Rate]] = defaultdict(list)
        for _, world, kind in product(range(rounds), WORLDS, ("by hand", "hookflow")):
            with tempfile.TemporaryDirectory() as folder:
                rates[kind, world].append(measured(kind, work, world, Path(folder)))
        best = {key: Rate(*map(min, zip(*each, strict=True))) for key, each in rates.items()}
        for (kind, world), (wall, cpu) in best.items():
            to_one, to_ddp = best[kind, 1].wall / wall, best["by hand", world].wall / wall
            rate = f"{1 / wall:>8.1f}{BATCH / wall:>12.0f}"
            print(
                f"{work:<6}{world:>5} "
                f" {kind:<9}{rate}{to_one:>8.2f}{to_ddp:>8.2f}{cpu * 1e6:>7.0f} us"
            )


if __name__ == "__main__":
    if "--by-hand" in sys.argv:
        by_hand(*sys.argv[-2:])
    else:
        main()
