"""Reruns of random iterations of a long run: every logged number is equal, and what they take
beside the recording.

    python benchmarks/rerun.py [--reruns 20] [--iters 2000]

The run accumulates two batches, averages its weights, and reads a stream by two workers; every 250
iterations it saves. Each rerun goes from the checkpoint before to ten iterations from a random one
on. Both times are the median of an iteration, from the log.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

HERE = Path(__file__).resolve()
EVERY = 250
"""Iterations between checkpoints."""

PIPELINE = f"""
[run]
name = "rerun"
max_iters = ITERS
accumulate = 2
threads = 1
device = "cpu"
[model]
use = "{HERE}:net"
[optimizer]
use = "torch.optim:AdamW"
args = {{ lr = 0.001 }}
[data.train]
use = "{HERE}:Stream"
loader = {{ batch_size = 32, workers = 2, batches = 200 }}
[hooks.ema]
use = "ema"
[hooks.spike]
use = "{HERE}:spike"
args = {{ at = SPIKE }}
points = ["before_train_iter"]
writes = ["batch"]
[hooks.log]
use = "log"
every = 1
[hooks.checkpoint]
use = "checkpoint"
args = {{ keep = "all" }}
points = [{{ at = "after_train_iter", every = {EVERY} }}]
"""


class Stream(IterableDataset[Any]):
    """Examples in a row, with noise, shared out among the workers."""

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        of, own = (worker.num_workers, worker.id) if worker else (1, 0)
        for k in range(own, 6400, of):
            yield torch.randn(256) + k % 10, k % 10


def net() -> torch.nn.Module:
    wide = 512
    return torch.nn.Sequential(
        torch.nn.Linear(256, wide),
        torch.nn.Dropout(),
        torch.nn.GELU(),
        torch.nn.Linear(wide, wide),
        torch.nn.GELU(),
        torch.nn.Linear(wide, 10),
    )


def spike(run: Any, batch: Any, at: int) -> None:
    """Let the loss of iteration `at` jump."""
    if run.iter == at - 1:
        batch[0].mul_(50)


def hookflow(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "hookflow", *arguments], cwd=cwd, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"hookflow {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def milliseconds(events: Path, after: int) -> list[float]:
    """Return the mean time of an iteration in each frame behind iteration `after`."""
    frames = [
        json.loads(line)
        for line in events.read_text().splitlines()
        if '"k":"frame"' in line.replace(" ", "")
    ]
    return [
        each["iters"][1] / each["iters"][0] / 1e6
        for each in frames
        if each["it"] > after and each["iters"][0] > 9
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reruns", type=int, default=20)
    parser.add_argument("--iters", type=int, default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chosen = random.Random(0)
        jumps = chosen.randrange(2, options.iters - 10)
        (folder / "p.toml").write_text(
            PIPELINE.replace("ITERS", str(options.iters)).replace("SPIKE", str(jumps))
        )
        hookflow("run", "p.toml", "--ui", "none", cwd=folder)
        (events,) = folder.glob("runs/rerun/*/events.jsonl")
        recorded = statistics.median(milliseconds(events, 100))
        times, numbers = [], 0
        ats = [jumps, *(chosen.randrange(2, options.iters - 10) for _ in range(options.reruns - 1))]
        for at in ats:
            watched = ("--with", "grad_norm") if at == jumps else ()
            words = ("rerun", "rerun", "--at", str(at), "--for", "10", *watched)
            printed = hookflow(*words, "--format", "json", cwd=folder)
            result = json.loads(printed)
            numbers += result["compared"]
            if result["unlike"]:
                raise SystemExit(f"iteration {at}: {result['unlike'][0]} differs")
            if watched:
                first, then = (result["more"]["grad_norm/total"][str(at + k)] for k in (0, 1))
                print(
                    f"the spike, iteration {at}: its gradients have a norm of {first:.1f}, the next"
                    f" ones {then:.1f}"
                )
            times += milliseconds(Path(result["rerun"]) / "events.jsonl", result["begin"] + 20)
        print(
            f"{options.reruns} reruns of random iterations: {numbers:,} numbers, every one as"
            " recorded, to the bit"
        )
        again = statistics.median(times)
        print(
            f"an iteration took {recorded:.2f} ms as recorded and {again:.2f} ms again:"
            f" {again / recorded:.2f}"
        )


if __name__ == "__main__":
    main()
