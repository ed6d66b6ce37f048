"""Plain lines with progress bars below: of the run, its epoch, its validation.

The bars are only there while the run is followed: what is left in the terminal is the lines.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, Self, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.live import Live as Redrawn
from rich.text import Text

from hookflow.graph.plan import Plan
from hookflow.monitor.health import Pace
from hookflow.monitor.series import in_order, monitored_first
from hookflow.monitor.state import RunState
from hookflow.monitor.style import INKS
from hookflow.numbers import number, out_of, span
from hookflow.text import fit, printable

LINE = re.compile(r"(?P<clock>\d\d:\d\d:\d\d )?(?P<kind>\S+)")
COLOURS = {
    **dict.fromkeys(("warn", "lost", "Ctrl-C"), INKS["warn"]),
    "error": INKS["error"],
    **dict.fromkeys(("checkpoint", "histogram"), INKS["checkpoint"]),
    **dict.fromkeys(("train", "image", "command"), INKS["train"]),
    **dict.fromkeys(("val", "test"), INKS["val"]),
    **dict.fromkeys(("run", "resumed", "end", "text"), INKS["good"]),
}
"""The colour of a line's kind, where it has one."""

SCALARS = 3
"""Numbers beside a bar, at most."""


def can_show_bars(out: TextIO) -> bool:
    """Say whether there is a terminal that can show bars, and a person before it."""
    return out.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("CI")


class Bar(NamedTuple):
    """One row: how much is `done` of how much (0: unknown), how fast, for how long, and the latest numbers."""

    name: str
    done: int
    whole: int
    speed: str = ""
    elapsed: str = ""
    left: str = ""
    numbers: tuple[str, ...] = ()


class Bars:
    """Lines above bars. Use as a context, which takes the bars away at its end."""

    has_bars = True

    def __init__(self, out: TextIO) -> None:
        self._console = Console(file=out, highlight=False, markup=False, emoji=False)
        self._redrawn = Redrawn(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )

    def __enter__(self) -> Self:
        self._redrawn.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._redrawn.stop()

    def line(self, line: str) -> None:
        """Print a line above the bars."""
        text = Text(line)
        if match := LINE.match(line):
            text.stylize("dim", *match.span("clock"))
            text.stylize(COLOURS.get(match["kind"], ""), *match.span("kind"))
        self._console.print(text, soft_wrap=line.startswith("output"))  # what was printed stays as it was laid out

    def show(self, state: RunState, plan: Plan) -> None:
        """Draw the bars as the run is now."""
        self._redrawn.update(drawn([*bars(state, plan)], self._console.width), refresh=True)


def bars(state: RunState, plan: Plan) -> Iterator[Bar]:
    """Yield a bar for the run, one for the epoch where there are several, and one for a validation that is on."""
    if not state.run:
        return
    pace = Pace.of(state, plan)
    per_s = f"{pace.iters_per_s:.1f} it/s" if pace.iters_per_s else ""
    left = f"ETA {span(pace.eta)}" if pace.eta is not None else ""
    names = monitored_first(sorted(state.scalars, key=lambda name: (name != "loss", name)), plan)
    latest = [(name, state.scalars[name].last) for name in names]
    name = "paused" if state.stage == "paused" else "train"
    yield Bar(name, state.it, state.total_iters, per_s, span(state.elapsed), left, _described(latest))
    per = state.run["iters_per_epoch"]
    validates = state.stage in ("val", "test")
    if 0 < per < state.total_iters:
        over = state.epoch == state.ep and state.it == state.ep * per  # and the next one has not begun
        done = per if over else state.it - state.ep * per
        yield Bar(f"epoch {out_of(state.epoch, state.run['max_epochs'])}", min(max(done, 0), per), per)
    if validates:
        metrics = in_order(state.metrics.by_name, plan)
        result = [(name, state.metrics.by_name[name][-1][1]) for name in metrics if state.metrics.by_name[name]]
        yield Bar(state.stage, state.batch, state.batches, numbers=_described(result))


def _described(numbers: list[tuple[str, float]]) -> tuple[str, ...]:
    return tuple(f"{printable(name)} {number(value)}" for name, value in numbers[:SCALARS])


def drawn(rows: Sequence[Bar], width: int) -> Text:
    """Return the bars below one another in so many cells; what a narrow terminal has no room for is left out."""
    counts = [(f"{row.done / row.whole:4.0%}" if row.whole else "", out_of(row.done, row.whole)) for row in rows]
    columns = [[share for share, _ in counts], [count for _, count in counts]]
    columns += [[getattr(row, fact) for row in rows] for fact in ("speed", "elapsed", "left")]
    names = _widest([row.name for row in rows])
    while columns and width - names - _wide(columns) < LEAST:
        columns.pop()
    free = width - 1 - names - _wide(columns) - GAP
    bar = max(min(free, max(width // 5, LEAST)), 1)
    lines = []
    for place, row in enumerate(rows):
        done = round(bar * row.done / row.whole) if row.whole else 0
        parts = [(fit(row.name, names), "bold"), (f"  {'━' * done}", INKS["bar"]), ("╌" * (bar - done), "dim")]
        parts += [(f"  {fit(cells[place], _widest(cells), '>')}", "") for cells in columns if _widest(cells)]
        bounds = accumulate(GAP + cell_len(text) for text in row.numbers)
        parts += [
            (f"  {text}", INKS["val"]) for text, end in zip(row.numbers, bounds, strict=True) if end <= free - bar
        ]
        lines.append(Text.assemble(*parts))
    return Text("\n").join(lines)


LEAST, GAP = 10, 2
"""Cells of a bar at least, and between two columns."""


def _widest(cells: Sequence[str]) -> int:
    return max(map(cell_len, cells), default=0)


def _wide(columns: Sequence[Sequence[str]]) -> int:
    """Return the cells that columns take, with the gap before each; one that is empty takes none."""
    return sum(GAP + wide for cells in columns if (wide := _widest(cells)))
