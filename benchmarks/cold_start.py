"""How long each command takes to answer from a cold start, beside an empty Python: in turns, as ratios.

    python benchmarks/cold_start.py [PIPELINE]

The commands that look at a pipeline are given the shipped one unless another is named. Every command runs once
unmeasured, so that files are in the system's cache and compiled; then all run in turns, and the median counts.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 7
SHIPPED = Path(__file__).parents[1] / "pipelines/cifar.toml"


def commands(pipeline: str) -> dict[str, list[str]]:
    """Return what to measure, by the name to show."""
    hooks = ["ema", "checkpoint"]
    asked = {
        "--help": ["--help"],
        "check": ["check", pipeline],
        "graph": ["graph", pipeline],
        "why": ["why", *hooks, pipeline],
        "points": ["points"],
        "points --pipeline": ["points", pipeline],
        "hooks": ["hooks"],
        "hooks ema": ["hooks", "ema"],
        "diff": ["diff", pipeline, pipeline],
        "schema": ["schema"],
        "runs": ["runs"],
    }
    return {"empty Python": ["-c", ""]} | {name: ["-m", "hookflow", *words] for name, words in asked.items()}


def seconds(command: list[str]) -> float:
    """Run Python with the arguments and return how long it took. Raises CalledProcessError when it fails."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *command], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def main() -> None:
    every = commands(sys.argv[1] if len(sys.argv) > 1 else str(SHIPPED))
    for command in every.values():
        seconds(command)
    rounds = [{name: seconds(command) for name, command in every.items()} for _ in range(ROUNDS)]
    median = {name: statistics.median(times[name] for times in rounds) for name in every}
    empty = median["empty Python"]
    for name, taken in median.items():
        print(f"{name:<18} {taken:6.3f} s   {taken / empty:5.1f} times an empty Python")


if __name__ == "__main__":
    main()
