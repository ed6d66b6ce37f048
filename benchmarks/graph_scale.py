"""The cost of compiling a plan, from ten hooks to ten thousand: time, memory, and how the time
grows.

    python benchmarks/graph_scale.py

Each hook has ten edges, so the largest plan has 100,000. Two shapes: every hook at one point, which
is the hardest; every hook at three points of 29, reading a slot and writing one, of as many slots
as there are hooks. "over n log n" is the time over that, with the row of a hundred hooks as one:
where it does not grow, neither does the cost beyond n log n. "from TOML" is the same plan from the
text of a file: reading it, checking it, the place of every key, each hook looked up. Each row is
measured in a process of its own, the best of three.
"""

from __future__ import annotations

import json
import math
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from hookflow.errors import Where
from hookflow.graph.plan import PHASES, DeclaredBinding, EdgeSpec, Node, PlannedHook, Trigger
from hookflow.graph.points import DEFAULT_POINTS

SIZES = (10, 30, 100, 300, 1_000, 3_000, 10_000)
EDGES = 10
ROUNDS = 3


def main() -> None:
    for shape in ("one point", "spread, with slots"):
        print(
            f"\n{shape}\n{'hooks':>7} {'edges':>10} {'compile':>10} {'memory':>9}"
            f" {'over n log n':>13} {'from TOML':>10}"
        )
        rows = [_in_a_process(shape, size) for size in SIZES]
        unit = next(row["seconds"] / _work(row["hooks"]) for row in rows if row["hooks"] == 100)
        for row in rows:
            grown = row["seconds"] / _work(row["hooks"]) / unit
            toml = f"{row['toml']:>8.2f} s" if row["toml"] else ""
            print(
                f"{row['hooks']:>7,} {row['edges']:>10,} {row['seconds'] * 1e3:>7.1f} ms"
                f" {row['megabytes']:>6.0f} MB {grown:>13.2f} {toml:>10} {'█' * round(10 * grown)}"
            )


def _work(hooks: float) -> float:
    return hooks * math.log(hooks)


def _in_a_process(shape: str, size: int) -> dict[str, float]:
    row: dict[str, float] = json.loads(
        subprocess.check_output([sys.executable, __file__, shape, str(size)])
    )
    return row


def measure(shape: str, size: int) -> dict[str, float]:
    """Return the time and the peak of memory of one size, and how many edges the plan keeps."""
    from hookflow.graph.order import compile_plan

    nodes = {node.hook.name: node for node in declared(shape, size)}
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        plan = compile_plan("scale", nodes)
        times.append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    measured = {"hooks": size, "edges": len(plan.edges), "seconds": min(times), "megabytes": peak}
    return measured | {"toml": _from_toml(list(nodes.values())) if shape == "one point" else 0.0}


def declared(shape: str, size: int) -> Iterator[Node]:
    """Yield hooks whose edges lead to earlier ones, drawn at random with a seed of their own."""
    lots = random.Random(0)
    names = [point.name for point in DEFAULT_POINTS if point.kind != "module"]
    for k in range(size):
        here = lots.sample(names, 3) if shape == "spread, with slots" else names[10:11]
        slots: tuple[tuple[str, ...], tuple[str, ...]] = (), ()
        after = sorted(lots.sample(range(k), min(k, EDGES)))
        if shape == "spread, with slots":
            slots = (f"s{lots.randrange(size)}",), (f"s{lots.randrange(size)}",)
        name, phase = f"h{k}", lots.choice(PHASES)
        bound = tuple(
            DeclaredBinding(name, point, point, "whole", (), Trigger(), phase, *slots)
            for point in here
        )
        wishes = tuple(
            EdgeSpec(f"h{other}", False, "file", Where("scale.toml", k + 1)) for other in after
        )
        hook = PlannedHook(name, "builtins:print", {}, phase, "", f"scale.toml:{k + 1}", "raise")
        yield Node(hook, Where("scale.toml", k + 1), bound, wishes)


def _from_toml(nodes: list[Node]) -> float:
    """Return the seconds from the text of the same plan to the plan."""
    from hookflow.hooks.compile import compile_pipeline
    from hookflow.pipeline.load import parse

    text = """run = { name = "scale", max_iters = 1 }
        model.use = "a:b"
        optimizer.use = "a:b"
        data.train.use = "a:b"
    """
    for node in nodes:
        after = ", ".join(f'"{wish.hook}"' for wish in node.after)
        points = ", ".join(f'"{bound.point}"' for bound in node.bound)
        text += (
            f'[hooks.{node.hook.name}]\nuse = "builtins:print"\npoints = [{points}]\nafter ='
            f" [{after}]\n"
        )
        bound = node.bound[0]
        text += (
            f"reads = {[*bound.reads]}\nwrites = {[*bound.writes]}\n"
            if bound.reads or bound.writes
            else ""
        )
    began = time.perf_counter()
    compile_pipeline(parse(text, Path("scale.toml")))
    return time.perf_counter() - began


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
    else:
        main()
