"""How long each command takes to answer from a cold start, beside an empty Python: in turns, as
ratios.

    python benchmarks/cold_start.py

The pipeline is the shipped one. Every command runs once unmeasured, so that files are in the
system's cache and compiled; then all run in turns, and the median counts.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 7
FILE = str(Path(__file__).parents[1] / "pipelines/cifar.toml")
COMMANDS = (
    "--help",
    "check FILE",
    "graph FILE",
    "why ema checkpoint FILE",
    "compare FILE FILE",
    "explain points",
    "explain points FILE",
    "explain hooks",
    "explain ema",
    "explain schema",
    "runs",
)


def seconds(*arguments: str) -> float:
    """Run Python with the arguments and return how long it took.

    Raises CalledProcessError when it fails.
    """
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def main() -> None:
    every = {"empty Python": ["-c", ""]}
    every |= {
        command: ["-m", "hookflow", *command.replace("FILE", FILE).split()] for command in COMMANDS
    }
    for arguments in every.values():
        seconds(*arguments)
    rounds = [
        {name: seconds(*arguments) for name, arguments in every.items()} for _ in range(ROUNDS)
    ]
    median = {name: statistics.median(times[name] for times in rounds) for name in every}
    for name, middle in median.items():
        print(
            f"{name:<27} {middle:6.3f} s   {middle / median['empty Python']:5.1f} times an empty"
            " Python"
        )


if __name__ == "__main__":
    main()
