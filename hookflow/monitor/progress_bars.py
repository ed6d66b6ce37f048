"""Progress bars below the plain lines of a run, on a terminal."""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TextIO

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from hookflow.events.records import Progress
from hookflow.monitor.series import in_order
from hookflow.monitor.state import RunState
from hookflow.monitor.style import PLAIN_INKS
from hookflow.monitor.throughput import Throughput
from hookflow.numbers import format_span, format_speed, number, out_of
from hookflow.text import fit_name, make_printable

MAX_NAME_WIDTH = 24
"""Cells from which on the name of a number is cut, so that a long one leaves room for others."""

MAX_NUMBERS = 3
"""The numbers in a row."""


def can_show_bars(out: TextIO) -> bool:
    """Say whether there is a terminal that can show bars, and a person before it."""
    return out.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("CI")


class ProgressBar(NamedTuple):
    """One row: how much is `done` of how much, with speed and times.

    The whole is 0 where it is unknown. The latest numbers are shown, too.
    """

    name: str
    done: int
    whole: int
    facts: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()


def shorten_name(name: str) -> str:
    """Return the name of a number in at most MAX_NAME_WIDTH cells."""
    shown = make_printable(name)
    if cell_len(shown) <= MAX_NAME_WIDTH:
        return shown
    return fit_name(shown, MAX_NAME_WIDTH)


def names_as_they_came(state: RunState) -> list[str]:
    """Return the scalars in an order that a new one does not change.

    Monitored ones come first, then the loss, then others as they came.
    """
    monitored = [name for name in state.monitored if name in state.scalars]
    if "loss" in state.scalars:
        first = [*monitored, "loss"]
    else:
        first = monitored
    return [*dict.fromkeys([*first, *state.scalars])]


def make_progress_bars(state: RunState) -> Iterator[ProgressBar]:
    """Yield a bar for the run, and one for each thing that goes on in it.

    These are the epoch where there are several, a validation, and each piece of work that hooks
    show.
    """
    if not state.run:
        return
    yield _bar_of_run(state)
    per_epoch = state.epoch_lengths.at(max(state.epoch - 1, 0))
    if 0 < per_epoch < state.total_iters:
        yield _bar_of_epoch(state, per_epoch)
    if state.stage in ("val", "test"):
        latest = {name: points[-1][1] for name, points in state.metrics.by_name.items() if points}
        metrics = [(name, latest[name]) for name in in_order(latest, state.monitored)]
        yield ProgressBar(state.stage, state.batch, state.batches, numbers=_format_numbers(metrics))
    for work in state.works.values():
        yield ProgressBar(
            format_work_name(work), work["done"], work["total"], (format_span(work["seconds"]),)
        )


def format_work_name(work: Progress) -> str:
    """Return what some work of a hook is called beside other bars: "export: shards"."""
    return shorten_name(f"{work['hook']}: {work['name']}" if work["hook"] else work["name"])


def _bar_of_run(state: RunState) -> ProgressBar:
    pace = Throughput.of(state)
    per_second = ""
    if pace.iters_per_s:
        per_second = format_speed(pace.iters_per_s)
    time_left = ""
    if pace.left:
        time_left = f"ETA {pace.left}"
    latest = [(name, state.scalars[name].last) for name in names_as_they_came(state)]
    name = "train"
    if state.stage == "paused":
        name = "paused"
    facts = (per_second, format_span(state.elapsed), time_left)
    return ProgressBar(name, state.it, state.total_iters, facts, _format_numbers(latest))


def _bar_of_epoch(state: RunState, per_epoch: int) -> ProgressBar:
    before = int(state.epoch_lengths.iterations(state.ep))
    is_over = state.epoch == state.ep and state.it == before  # and the next one has not begun
    if is_over:
        done = per_epoch
    else:
        done = min(max(state.it - before, 0), per_epoch)
    return ProgressBar(f"epoch {out_of(state.epoch, state.run['max_epochs'])}", done, per_epoch)


def _format_numbers(numbers: Iterable[tuple[str, float]]) -> tuple[str, ...]:
    described = [f"{shorten_name(name)} {number(value)}" for name, value in numbers]
    return tuple(described[:MAX_NUMBERS])


def make_bars_table(bars: Sequence[ProgressBar], width: int) -> Table:
    """Return the bars below one another for so many cells.

    Parts that a narrow terminal has no room for are left out.
    """
    table = Table.grid(padding=(0, 2))
    bar_width = max(min(width // 5, width - 28), 1)
    num_facts = max((width - 44) // 10, 0)
    for bar in bars:
        share = ""
        done = 0
        if bar.whole:
            share = f"{bar.done / bar.whole:4.0%}"
            done = round(bar_width * bar.done / bar.whole)
        drawn = Text.assemble(("━" * done, PLAIN_INKS["bar"]), ("╌" * (bar_width - done), "dim"))
        texts = [share, out_of(bar.done, bar.whole), *bar.facts[:num_facts]]
        texts += [""] * (min(num_facts, 3) + 2 - len(texts))
        cells = [Text(text, justify="right") for text in texts]
        if num_facts > 3:
            cells.append(
                Text("  ".join(bar.numbers), PLAIN_INKS["val"], no_wrap=True, overflow="ellipsis")
            )
        table.add_row(Text(bar.name, "bold"), drawn, *cells)
    return table
