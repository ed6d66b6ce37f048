"""One measurement of hookflow between two of the same by hand, in a fresh process; prints its rows
as a line of JSON.

    python benchmarks/cell.py hooks none|ten|every|usual ITERATIONS
        the tiny training, in this process
    python benchmarks/cell.py flat ITERATIONS
        the last tenth of a long run beside the first
    python benchmarks/cell.py ranks WORK
        two ranks, of a work of `benchmarks/ranks.py`
    python benchmarks/cell.py data
        batches of data sets, see `benchmarks/data.py`
    python benchmarks/cell.py attached
        a loop of one's own, see `benchmarks/attached.py`
    python benchmarks/cell.py start
        until the first iteration is done, and the memory

`benchmarks/overhead.py` starts them in turns. A row has the figure `by_hand` (the mean of before
and after), that of `hookflow`, their `unit`, and the `drift` between the two by hand, as a share:
what the machine itself wavered. Imports torch only where it is measured: a process that is started
takes over the peak memory of the one that starts it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

EPOCH = 500
"""Iterations of an epoch of the usual set of hooks, which ends with a checkpoint."""
QUARTER = EPOCH // 4
"""The checkpoint is written in the first quarter of the next epoch, or the second;
nothing is saved in the third.
"""
SLICE = 3000
"""Iterations by hand before and after a long run."""
FIRST = 300
"""Iterations that a process makes whose start is measured,
so that its memory is that of a training.
"""

Rows = dict[str, dict[str, Any]]


def row(before: float, hookflow: float, after: float, unit: str) -> dict[str, Any]:
    by_hand = (before + after) / 2
    return {
        "by_hand": by_hand,
        "hookflow": hookflow,
        "drift": abs(after - before) / by_hand,
        "unit": unit,
    }


def hooks(which: str, iterations: int) -> Rows:
    """Measure the CPU time of an iteration, that of all threads,
    the median of the chunks after the warm-up.
    """
    import by_hand

    before = warm_by_hand(iterations)
    if which == "usual":
        feed = by_hookflow(which, EPOCH, epochs=1 + iterations // EPOCH, chunk=QUARTER)
        began = [chunks[0][0] for chunks in feed.epochs]
        measured = {
            "usual set": (began[-1] - began[1]) / (len(began) - 2) / EPOCH / 1e3,
            "usual set, while nothing is saved": feed.microseconds(third_quarters(feed)),
        }
    else:
        names = {
            "none": "no hooks",
            "ten": "ten hooks at `after_train_iter`",
            "every": "ten hooks at every point",
        }
        feed = by_hookflow(which, by_hand.WARM_UP + iterations)
        measured = {
            names[which]: feed.microseconds(feed.epochs[0][by_hand.WARM_UP // by_hand.CHUNK :])
        }
    after = by_hand.microseconds(iterations)
    return {name: row(before, us, after, "µs") for name, us in measured.items()}


def flat(iterations: int) -> Rows:
    """Compare the last tenth of a long run with the first,
    each seen beside the loop by hand next to it.
    """
    import by_hand

    before = warm_by_hand(SLICE)
    feed = by_hookflow("usual", EPOCH, epochs=1 + iterations // EPOCH, chunk=QUARTER)
    after = by_hand.microseconds(SLICE)
    chunks = third_quarters(feed)
    tenth = max(1, len(chunks) // 10)
    first, last = feed.microseconds(chunks[:tenth]), feed.microseconds(chunks[-tenth:])
    measured = row(before, last, after, "µs") | {"by_hand": first * after / before}
    return {f"usual set, last tenth of {iterations:,} beside the first": measured}


def warm_by_hand(iterations: int) -> float:
    """Return the microseconds of an iteration by hand, for the first time in this process."""
    import by_hand
    import torch

    torch.set_num_threads(1)
    by_hand.microseconds(EPOCH)  # the first steps load parts of torch
    return by_hand.microseconds(iterations)


def by_hookflow(which: str, length: int, epochs: int = 1, chunk: int | None = None) -> Any:
    """Train so many epochs with a set of hooks; return the feed that has timed them, by chunks."""
    import by_hand
    import by_hookflow

    feed = by_hand.Feed(length, chunk or by_hand.CHUNK)
    by_hookflow.train(feed, by_hookflow.HOOKS[which], epochs)
    return feed


def third_quarters(feed: Any) -> list[tuple[int, int]]:
    """Return the third quarter of each epoch but the first one, which warms up."""
    return [chunks[2] for chunks in feed.epochs[1:]]


def ranks(work: str) -> Rows:
    """Measure the time of an iteration of two gloo ranks, by the clock: most of it is waiting."""
    import ranks

    def once(kind: str) -> float:
        with tempfile.TemporaryDirectory() as folder:
            return ranks.measured(kind, work, 2, Path(folder)).wall * 1e6

    before, hookflow, after = once("by hand"), once("hookflow"), once("by hand")
    return {
        f"two ranks, {work} step" if work != "tiny" else "two ranks, tiny net": row(
            before, hookflow, after, "µs"
        )
    }


def data() -> Rows:
    """Measure a batch of each setting of `benchmarks/data.py`."""
    import data as settings

    settings.warm_up()
    rows = {}
    for name, setting in settings.SETTINGS.items():
        before, hookflow, after = (
            run(setting) for run in (settings.by_hand, settings.by_hookflow, settings.by_hand)
        )
        rows[name] = row(before, hookflow, after, "µs")
    return rows


def start() -> Rows:
    """Measure how long a process takes until its first iteration is done, by the clock,
    and its memory at the end.
    """

    def once(kind: str) -> dict[str, float]:
        printed = subprocess.check_output(
            [sys.executable, __file__, "first", kind, repr(time.time())]
        )
        figures: dict[str, float] = json.loads(printed.splitlines()[-1])
        return figures

    before, hookflow, after = once("by hand"), once("hookflow"), once("by hand")
    names = {"s": "first iteration, from the process's start", "MB": "peak memory"}
    return {
        name: row(before[unit], hookflow[unit], after[unit], unit) for unit, name in names.items()
    }


def attached() -> Rows:
    """Measure a loop of one's own with the default hooks,
    and the firing of a point without hooks beside 0.3 µs.
    """
    from attached import measure

    figures = measure(400)
    loop = {
        "by_hand": figures["alone"],
        "hookflow": figures["attached"],
        "drift": figures["drift"],
        "unit": "µs",
    }
    fired = {"by_hand": 0.3, "hookflow": figures["fire"], "drift": 0.0, "unit": "µs"}
    return {
        "a loop of one's own, default hooks": loop,
        "`run.fire` without hooks, beside 0.3 µs": fired,
    }


def first(kind: str, began: float) -> dict[str, float]:
    """Make the first iterations of this process, which was started at `began`;
    return what they took.
    """
    import by_hand

    feed = by_hand.Feed(FIRST, chunk=1, clock=time.time_ns)
    if kind == "by hand":
        import torch

        torch.set_num_threads(1)
        by_hand.train(feed)
    else:
        import by_hookflow

        by_hookflow.train(feed, hooks="")
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return {
        "s": feed.epochs[0][0][1] / 1e9 - began,
        "MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit,
    }


def pin() -> None:
    """Keep this process and its children on one processor, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def main() -> None:
    kind, *arguments = sys.argv[1:]
    if kind not in ("ranks", "data"):  # workers have processors of their own
        pin()
    match kind:
        case "hooks":
            measured: Any = hooks(arguments[0], int(arguments[1]))
        case "flat":
            measured = flat(int(arguments[0]))
        case "ranks":
            measured = ranks(arguments[0])
        case "data":
            measured = data()
        case "start":
            measured = start()
        case "attached":
            measured = attached()
        case "first":
            measured = first(arguments[0], float(arguments[1]))
        case _:
            raise SystemExit(__doc__)
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
