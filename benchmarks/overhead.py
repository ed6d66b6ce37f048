"""The time that hookflow adds to a loop written by hand: a table in Markdown, or what has moved.

    make bench          measures and prints the table; ARGS=--write keeps its ratios in ratios.json
    make bench-check    measures again, and names what moved since by more than the noise;
                        exits with 1 where it got worse

The training is so small that nothing hides what surrounds it (see `by_hand.py`). In a sandwich,
hookflow is measured between two loops by hand. Each sandwich has a fresh process, on one thread
and, where the system can pin it, one processor; a start takes three processes. The rows take turns.
Tiny trainings are measured in CPU time, which other work disturbs less; starts and ranks by the
clock. If the two by hand differ by more than a row bears, the machine was busy, and the sandwich is
made again. `docs/explanation/benchmarks/runner.md` says how to read the table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import ratios
from ratios import Ratio, Sandwich

CELL = Path(__file__).with_name("cell.py")
TRIES = 3
Table = dict[str, list[Sandwich]]


@dataclass(frozen=True)
class Cell:
    """What one process measures: the arguments of `cell.py`,
    and by how much the two by hand may differ.
    """

    arguments: tuple[str, ...]
    drift: float = 0.05
    rounds: int = 5


CELLS = {
    "none": Cell(("hooks", "none", "ITERATIONS")),
    "ten": Cell(("hooks", "ten", "ITERATIONS")),
    "every": Cell(("hooks", "every", "ITERATIONS")),
    "usual": Cell(("hooks", "usual", "ITERATIONS")),
    "data": Cell(("data",), rounds=3),
    "attached": Cell(("attached",), rounds=3),
    "start": Cell(("start",), drift=0.15),
    "ranks-tiny": Cell(("ranks", "tiny"), drift=0.15, rounds=3),
    "ranks-5ms": Cell(("ranks", "5 ms"), drift=0.15, rounds=3),
    "flat": Cell(("flat", "100000"), rounds=1),
}
UNASKED = [name for name in CELLS if name != "flat"]


def sandwiches(cell: Cell, iterations: int) -> dict[str, Sandwich]:
    """Measure the rows of a cell, again while the machine is busy; return the try in which it
    wavered least.

    A process that fails counts as a try: launchers of ranks do now and then. Raises SystemExit when
    all have failed.
    """
    command = [
        sys.executable,
        str(CELL),
        *(part.replace("ITERATIONS", str(iterations)) for part in cell.arguments),
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    tries: list[dict[str, Sandwich]] = []
    for _ in range(TRIES):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            rows = json.loads(done.stdout.splitlines()[-1])
            tries.append({name: Sandwich(**row) for name, row in rows.items()})
            if _drift(tries[-1]) <= cell.drift:
                break
    if not tries:
        raise SystemExit(
            f"{' '.join(command)} failed {TRIES} times:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
    return min(tries, key=_drift)


def _drift(rows: dict[str, Sandwich]) -> float:
    return max(sandwich.drift for sandwich in rows.values())


def measured(names: list[str], rounds: int | None, iterations: int) -> tuple[Table, set[str]]:
    """Measure cells in turns; return their rows, and those for which the machine was too busy."""
    table: Table = {}
    busy: set[str] = set()
    turns = {name: rounds or CELLS[name].rounds for name in names}
    for turn in range(max(turns.values())):
        for name in names:
            if turn < turns[name]:
                print(f"round {turn + 1}: {name}", file=sys.stderr, flush=True)
                for row, sandwich in sandwiches(CELLS[name], iterations).items():
                    table.setdefault(row, []).append(sandwich)
                    if sandwich.drift > CELLS[name].drift:
                        busy.add(row)
    return table, busy


def show(table: Table, busy: set[str]) -> None:
    """Print the table, and what it means where a step takes longer."""
    print("| | by hand | hookflow adds | ratio | its spread | speed | by hand wavered |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, row in table.items():
        ratio, unit = Ratio.of(row), row[0].unit
        by_hand, over = (
            statistics.median(figures)
            for figures in ([s.by_hand for s in row], [s.over for s in row])
        )
        digits = {"s": 2, "MB": 0}.get(unit, 1)
        times = f"{by_hand:.{digits}f} {unit} | {over:+.{digits}f} {unit}"
        spread = f"{ratio.low:.3f} – {ratio.high:.3f}"
        wavered = f"{max(s.drift for s in row):.1%}" + (" (busy)" if name in busy else "")
        print(
            f"| {name} | {times} | {ratio.ratio:.3f} | {spread} | {1 / ratio.ratio:.2f} |"
            f" {wavered} |"
        )
    if "usual set" in table:
        over = statistics.median(sandwich.over for sandwich in table["usual set"])
        share = f"{over:.0f} µs of the usual set are {over / 1e5:.2%}"
        print(f"\nWhere it does not matter: of a step of 100 ms, the {share}.")
    if busy:
        print(
            f"\nThe machine was too busy, {TRIES} times each: do not trust"
            f" {', '.join(sorted(busy))}."
        )


def check(table: Table, busy: set[str]) -> int:
    """Print what has moved since the ratios that are kept; return 1 if anything is slower,
    2 if nothing is kept.
    """
    if not ratios.FILE.exists():
        print(f"\nthere is no {ratios.FILE.name} to compare with: make bench ARGS=--write")
        return 2
    machine, then = ratios.read(ratios.FILE)
    now = {name: Ratio.of(row) for name, row in table.items()}
    here = ratios.machine()
    for key in [key for key in here if here[key] != machine[key]]:
        print(
            f"\nthe ratios kept are of {key} {machine[key]}, this is {here[key]}: what moved may be"
            " that"
        )
    worse = 0
    print()
    for name, by, noise in ratios.moved(now, then):
        verdict = (
            "not judged, the machine was too busy"
            if name in busy
            else "slower"
            if by > 0
            else "faster"
        )
        worse += verdict == "slower"
        print(
            f"{name}: {then[name].ratio:.3f} -> {now[name].ratio:.3f} ({by:+.3f}, noise"
            f" {noise:.3f}): {verdict}"
        )
    for name in sorted(now.keys() - then.keys()):
        print(f"{name}: {now[name].ratio:.3f}, and no ratio kept to compare it with")
    judged = len((now.keys() & then.keys()) - busy)
    print(
        f"of {len(now)} rows {judged} were compared, {worse or 'none'} slower by more than the"
        " noise"
    )
    return int(worse > 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default=",".join(UNASKED), help="which of " + ", ".join(CELLS))
    parser.add_argument("--rounds", type=int, help="sandwiches of a row (5; 3 of ranks, 1 of flat)")
    parser.add_argument(
        "--iterations",
        type=int,
        default=3000,
        help="of a tiny training, a multiple of 500 from 1000",
    )
    parser.add_argument(
        "--write", action="store_true", help=f"keep the ratios in {ratios.FILE.name}"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare with the ratios that are kept"
    )
    options = parser.parse_args()
    names = options.rows.split(",")
    if unknown := set(names) - CELLS.keys():
        parser.error(f"no rows {', '.join(sorted(unknown))}: there are {', '.join(CELLS)}")
    if options.iterations < 1000 or options.iterations % 500:
        parser.error("--iterations must be a multiple of 500, and 1000 at least")
    table, busy = measured(names, options.rounds, options.iterations)
    show(table, busy)
    code = check(table, busy) if options.check else 0
    if options.write:
        quiet = {name: Ratio.of(row) for name, row in table.items() if name not in busy}
        ratios.write(quiet, ratios.FILE)
        print(f"\n{len(quiet)} of {len(table)} rows written to {ratios.FILE}")
    return code


if __name__ == "__main__":
    sys.exit(main())
