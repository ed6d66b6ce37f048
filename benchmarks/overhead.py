"""What hookflow adds to an iteration: the same tiny training by hand and by the runner, in turns, in one process.

    python benchmarks/overhead.py

Prints, for several numbers of hooks that do nothing, the CPU time of an iteration beside that of the loop written by
hand (their ratio is what to compare between machines), and what one firing costs, timing included.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from hookflow.runner.launch import prepare
from hookflow.runner.process import train

ITERATIONS = 2000
ROUNDS = 5
HOOKS = (0, 1, 10, 30)

PIPELINE = """
[run]
name = "overhead"
max_iters = {iterations}
threads = 1
[model]
use = "./overhead.py:net"
[optimizer]
use = "torch.optim:SGD"
args = {{ lr = 0.01 }}
[data.train]
use = "./overhead.py:Noise"
"""


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


class Noise:
    """One batch of noise, again and again: data that costs nothing."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.batch = torch.randn(64, 64, generator=generator), torch.randint(10, (64,), generator=generator)
        size = {"examples": 64 * ITERATIONS, "batches": ITERATIONS, "batch_size": 64}
        self.info = {"name": "noise", **size, "synthetic": True, "note": "noise"}

    def __len__(self) -> int:
        return ITERATIONS

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(start, ITERATIONS):
            yield self.batch


class Nothing:
    """A hook that does nothing after every iteration."""

    def after_train_iter(self, run: object) -> None: ...


def by_hand() -> float:
    """Return the CPU seconds of ITERATIONS iterations written out."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    began = time.process_time()
    for inputs, target in Noise().epoch(0):
        loss = functional.cross_entropy(model(inputs), target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return time.process_time() - began


class Clock:
    """Notes the CPU time at both ends of the training, so that starting and ending a run are left out."""

    def __init__(self, marks: str) -> None:
        self.file = Path(marks)

    def before_train_epoch(self) -> None:
        self.began = time.process_time()

    def after_train(self) -> None:
        self.file.write_text(str(time.process_time() - self.began))


def by_hookflow(hooks: int, folder: Path) -> float:
    """Return the CPU seconds of the same by the runner, its recorder's thread included."""
    mark = folder / "seconds"
    tables = "".join(f'[hooks.n{k}]\nuse = "./overhead.py:Nothing"\n' for k in range(hooks))
    clock = f'[hooks.clock]\nuse = "./overhead.py:Clock"\nargs = {{ marks = "{mark}" }}\n'
    loaded = parse(PIPELINE.format(iterations=ITERATIONS) + tables + clock, Path(__file__))
    run_dir = RunDir.create(folder, "overhead")
    prepare(loaded, compile_pipeline(loaded), run_dir, Path(__file__).parent)
    if train(run_dir):
        raise SystemExit(f"the run failed: see {run_dir.path}")
    return float(mark.read_text())


def main() -> None:
    torch.set_num_threads(1)
    by_hand()  # the first steps load parts of torch
    with tempfile.TemporaryDirectory() as folder:
        seconds = {hooks: [(by_hand(), by_hookflow(hooks, Path(folder))) for _ in range(ROUNDS)] for hooks in HOOKS}
    best = {hooks: (min(a for a, _ in pairs), min(b for _, b in pairs)) for hooks, pairs in seconds.items()}
    print("hooks   by hand  hookflow   ratio   (CPU time of an iteration in us, best of", ROUNDS, "rounds)")
    for hooks, (hand, flow) in best.items():
        print(f"{hooks:5} {hand / ITERATIONS * 1e6:9.1f} {flow / ITERATIONS * 1e6:9.1f} {flow / hand:7.3f}")
    few, many = min(HOOKS), max(HOOKS)
    cost = (best[many][1] - best[few][1]) / ITERATIONS / (many - few)
    print(f"one firing, called and timed: {cost * 1e6:.2f} us")


if __name__ == "__main__":
    main()
