"""The speed of the tiny training with a writer that sleeps ten seconds for each number; it logs
each iteration.

    python benchmarks/slow_writer.py [ROUNDS]

In each round the run without the writer is timed before and after the one with it, by the clock.
The end of a run, which waits for its writers for a bounded time, is not in it.
"""

from __future__ import annotations

import statistics
import sys
import time

import by_hand
import by_hookflow
import torch

ITERATIONS = 20_000
LOG = """
[hooks.log]
use = "log"
"""
SLOW = """
[writers.slow]
use = "slow_writer:Slow"
"""


class Slow:
    """A writer that takes ten seconds for each number."""

    def write_scalar(self, name: str, value: float) -> None:
        time.sleep(10)


def per_second(hooks: str) -> float:
    """Return the iterations a second of a run, by its median chunk."""
    feed = by_hand.Feed(by_hand.WARM_UP + ITERATIONS, clock=time.perf_counter_ns)
    by_hookflow.train(feed, hooks)
    return 1e6 / feed.microseconds(feed.epochs[0][by_hand.WARM_UP // by_hand.CHUNK :])


def main() -> None:
    torch.set_num_threads(1)
    ratios = []
    for round_ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
        before, slow, after = (per_second(hooks) for hooks in (LOG, LOG + SLOW, LOG))
        ratios.append(2 * slow / (before + after))
        print(
            f"round {round_ + 1}: {before:.0f} it/s, {slow:.0f} with the writer, {after:.0f}"
            " without again",
            flush=True,
        )
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    print(f"with the writer the run is {statistics.median(ratios):.3f} times as fast ({spread})")


if __name__ == "__main__":
    main()
