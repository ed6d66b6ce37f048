"""Plain lines of a run, for logs and pipes: one fact a line, its kind in front.

No line holds control characters. Programs read the event log itself (`hookflow.monitor.jsonl`).
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self, TextIO

from rich.console import Console

from hookflow.events.records import DataInfo, Error, Record
from hookflow.events.regular_file import open_regular
from hookflow.events.rundir import RunDir, count_attempts
from hookflow.graph.plan import Plan
from hookflow.monitor.bars import Bars
from hookflow.monitor.feed import Live, follow_records
from hookflow.monitor.health import Pace, bottleneck, examine, look_inside, missing, raised_at
from hookflow.monitor.journal import BECAME, Entry, brief
from hookflow.monitor.ranks import NO_PLAN
from hookflow.monitor.series import monitored_first
from hookflow.monitor.state import RunState
from hookflow.monitor.summary import metrics_table, print_summary, summary
from hookflow.numbers import clock, lasting, many, number, one_line, out_of, plural, span
from hookflow.text import ESCAPE, printable

PERIOD = 1.0
"""Seconds between looks."""

LONGEST = 600.0
"""Seconds between two lines about the same hang, at most."""


class StallWatch:
    """Watches the stalls of one run, whose state is folded elsewhere."""

    def __init__(self, run: RunDir, live: Live) -> None:
        self._run = run
        self._live = live
        self._looked = 0.0
        self._since = 0.0  # when the training was last seen to get on, while it hangs; else 0
        self._next = 0.0  # seconds of the next report of a stall

    def look(self, clock: float) -> tuple[str, str] | None:
        """Return what there is to tell at this moment (seconds since 1970), the condition and a sentence; else None."""
        if abs(clock - self._looked) < PERIOD:  # it may have been set back
            return None
        self._looked, state = clock, self._live.state
        life = self._run.life()
        inside = look_inside(self._run, state) if life == "alive" else {}
        health = examine(state, life, clock, self._live.plan, inside)
        if health.condition != "stalled":
            since, self._since = self._since, 0.0
            return ("running", f"again, after {lasting(state.moved - since)}") if since and not health.over else None
        still = clock - state.moved
        if self._since and still < self._next:
            return None
        self._since, self._next = state.moved, still + min(still, LONGEST)
        return "stalled", health.sentence


CHUNK = 1 << 20
"""Bytes read at a time; also the longest line that is waited for."""


def tidy(line: str) -> str:
    """Return a line as it looks in the end: of a progress bar, which goes back again and again, the last state."""
    states = [part for part in ESCAPE.sub("", line).split("\r") if part.strip()]
    return printable(states[-1]).rstrip() if states else ""


class Output:
    """Reads what has been printed since the last look."""

    def __init__(self, path: Path, *, from_now: bool = False) -> None:
        self._path = path
        self._at = path.stat().st_size if from_now and path.exists() else 0
        self._rest = b""

    def read(self, last: bool = False) -> list[str]:
        """Return the next whole lines; with `last` also one that was not ended. None when there is nothing new."""
        try:
            with open_regular(self._path) as file:
                file.seek(self._at)
                data = file.read(-1 if last else CHUNK)
        except OSError:
            return []
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._rest and (last or len(self._rest) > CHUNK):
            lines, self._rest = [*lines, self._rest], b""
        return [tidy(line.decode("utf-8", "replace")) for line in lines]


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines, `count` at most, and not further back than 64 kB."""
    try:
        with open_regular(path) as file:
            file.seek(max(file.seek(0, os.SEEK_END) - (1 << 16), 0))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [tidy(line) for line in text.removesuffix("\n").split("\n")[-count:]] if text else []


EVERY = 10.0
"""Seconds of the run between lines on its progress, without other lines."""

SCALARS = 5
"""Numbers in such a line, at most."""


def follow(
    run: RunDir,
    out: TextIO,
    *,
    child_exit: Callable[[], int | None] | None = None,
    interrupts: Callable[[], int] = lambda: 0,
    bars: bool = False,
) -> int:
    """Print the run until it has ended or its process is gone; return the exit code to leave with.

    With `bars`, for which `out` must be a terminal, progress bars stand below the lines, and a table of the metrics at
    the end. The exit code is the run's own, or 1 when it went without an end record. `child_exit` returns the exit code
    of the process that trains once it has ended, when the caller is its parent; `interrupts`, how often Ctrl-C has been
    pressed, which that process has heard. For a resumed run the newest attempt is printed, with the changes. A
    mistake that ends a run before it has begun is left for the caller to print.
    """
    live = Live(run)
    with Bars(out) if bars else Lines(out) as sheet:
        code = _follow(run, live, sheet, child_exit, interrupts)
    if bars and (table := metrics_table(live.state, live.plan or NO_PLAN)):
        Console(file=out, highlight=False, markup=False, emoji=False).print(table)
    if moved := live.moved():
        print_summary(moved, out)
    elif not live.state.failed_to_start:
        print("\n".join(summary(run, live.state, live.plan)), file=out, flush=True)
    return code


def _follow(
    run: RunDir,
    live: Live,
    sheet: Lines | Bars,
    child_exit: Callable[[], int | None] | None,
    interrupts: Callable[[], int],
) -> int:
    attempts = count_attempts(run)
    printed = Output(run.output, from_now=attempts > (child_exit is None))
    printer = _Printer(run, live, sheet, printed, skip=attempts if attempts > 1 and child_exit is None else 0)
    if child_exit is not None and attempts:
        while live.poll():  # what earlier attempts left
            pass
        printer.divide(time.time(), attempts + 1)

    def look(over: bool) -> None:
        printer.relay(over)
        printer.warn()
        printer.look(interrupts(), over)
        sheet.show(live.state, live.plan or NO_PLAN)

    code = follow_records(run, live, printer.take, child_exit, look)
    printer.warn()
    unseen = live.state.end is None and not live.moved()
    if child_exit is not None and unseen and (exit_code := child_exit()):
        printer.lost(exit_code)
    return code


class Lines:
    """Lines below one another, and nothing else."""

    has_bars = False

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def line(self, line: str) -> None:
        print(line, file=self._out, flush=True)

    def show(self, state: RunState, plan: Plan) -> None:
        """Show nothing of how far the run is: the lines say it."""


class _Printer:
    """Prints a line for each fact; the attempts before the one numbered `skip` are folded in silence."""

    def __init__(self, run: RunDir, live: Live, sheet: Lines | Bars, printed: Output, skip: int = 0) -> None:
        self._run = run
        self._live = live
        self._sheet = sheet
        self._printed = printed
        self._skip = skip
        self._attempt = 0
        self._relayed: deque[str] = deque(maxlen=1000)
        self._told_before: set[str] = set()  # lines of a traceback that may still be printed
        self._seen = 0  # entries of the journal
        self._interrupts = 0
        self._missing = False  # the run directory is not in its place
        self._stall = StallWatch(run, live)
        self._told = 0.0  # when the last line on progress was due

    def take(self, record: Record) -> None:
        """Print what a record says; frames and scalars only now and then."""
        entries = self._fresh()
        self._attempt += record["k"] == "run"
        if self._attempt < self._skip:
            return
        if self._attempt == self._skip and record["k"] == "run":
            self.divide(record["t"], self._attempt)
            prepared = self._live.state.attempts[-1].prepared
            self._print(*(f"{clock(entry.t)} {_message(entry)}" for entry in prepared))
        lines = [f"{clock(record['t'])} {line}" for line in self._lines(record, entries)]
        self._print(*lines, *self._matches(entries))

    def warn(self) -> None:
        """Print what has come from other ranks, or was found, since the last record of rank 0."""
        entries = self._fresh()
        self._print(*(self._matches(entries) if self._attempt >= self._skip else ()))

    def divide(self, t: float, attempt: int) -> None:
        """Print that the run has been resumed, and pass over what has been warned of before."""
        self._fresh()
        self._print(f"{clock(t)} {_line('resumed', f'attempt {attempt}')}")

    def look(self, interrupts: int, over: bool) -> None:
        """Print what no record says: that Ctrl-C was pressed, and what that does; that the run hangs, or does no more.

        A training that is stuck cannot say so itself.
        """
        while self._interrupts < interrupts:
            self._interrupts += 1
            self._print(f"{clock(time.time())} {_line('Ctrl-C', _interrupted(self._live.state, self._interrupts))}")
        if not self._missing and not self._run.path.exists():
            self._missing, moved = True, self._live.moved()
            if moved or not over:  # else `lost` prints it
                self._print(f"{clock(time.time())} {_line('lost', missing(self._live.state, moved))}")
        if self._attempt >= self._skip and (line := self._stall.look(time.time())):
            self._print(f"{clock(time.time())} {_line(*line)}")

    def lost(self, exit_code: int) -> None:
        """Print how the process that trains has ended, which has written no end record."""
        self._print(f"{clock(time.time())} {_line('lost', self._run.ended_by(exit_code))}")

    def relay(self, over: bool = False) -> None:
        """Print what the training has printed since the last time; `over`, also a line that it has not ended."""
        for line in self._printed.read(over):
            self._relayed.append(line)
            if line in self._told_before:
                self._told_before.remove(line)
            else:
                self._sheet.line(f"output     | {line}".rstrip())

    def _print(self, *lines: str) -> None:
        for line in lines:
            self._sheet.line(printable(line))

    def _fresh(self) -> list[Entry]:
        """Return the entries of the journal since the last time."""
        fresh = self._live.state.journal.since(self._seen)
        self._seen = fresh[-1].number + 1 if fresh else self._seen
        return fresh

    def _matches(self, entries: list[Entry]) -> Iterator[str]:
        """Yield lines for what the fold itself has warned of, and for what other ranks say."""
        for entry in entries:
            if entry.own:
                for line in [_message(entry), *self._traceback(entry.detail)]:
                    yield f"{clock(entry.t)} {line}"

    def _traceback(self, text: str) -> list[str]:
        """Return the lines of a traceback, unless the training has printed it and it was relayed."""
        self.relay()  # what is recorded is printed at once, perhaps since the last look
        if (lines := {tidy(line) for line in text.splitlines()}) <= set(self._relayed):
            return []
        self._told_before = lines
        return [_line("error", f"| {line}") for line in text.splitlines()]

    def _lines(self, record: Record, entries: list[Entry]) -> list[str]:
        """Return the lines for a record, without the time."""
        match record["k"]:
            case "run":
                self._told = record["t"]
                return _beginning(self._run, self._live)
            case "epoch":
                self._told = record["t"]
                return [self._progress()]
            case "frame":
                if self._sheet.has_bars or record["t"] - self._told < EVERY or record["stage"] != "train":
                    return []
                self._told = record["t"]
                return [self._progress()]
            case "metrics":
                return [_line(entry.source, self._at(record), entry.text) for entry in entries if not entry.own]
            case "checkpoint":
                return [_line("checkpoint", self._at(record), entry.text) for entry in entries]
            case "image" | "text" | "histogram":
                return [_line(record["k"], self._at(record), brief(record))]
            case "error":
                return [_line("error", _raised(record, self._live.state.it)), *self._traceback(record["traceback"])]
            case "refused" if not self._live.state.failed_to_start:
                return [*map(_message, entries), *self._traceback(record.get("traceback", ""))]
            case "end" | "refused":
                return [] if self._live.state.failed_to_start else [_line("end", entry.text) for entry in entries]
        return [_message(entry) for entry in entries if not entry.own]

    def _at(self, record: Record) -> str:
        """Return how far the run was, or is now: the epoch and the iteration."""
        state = self._live.state
        it, epoch = record["it"], state.epoch_of(record["it"], record["ep"])
        return _place(state, epoch, it)

    def _progress(self) -> str:
        state, plan = self._live.state, self._live.plan or NO_PLAN
        pace = Pace.of(state, plan)
        names = monitored_first(sorted(state.scalars, key=lambda name: (name != "loss", name)), plan)
        facts = [_place(state, state.epoch, state.it)]
        facts += [f"{name} {number(state.scalars[name].last)}" for name in names[:SCALARS]]
        facts += [f"({len(names) - SCALARS} more)"] * (len(names) > SCALARS)
        if (
            pace.iters_per_s and not self._sheet.has_bars
        ):  # else no iteration has been timed yet: a run may be over in no time
            facts.append(f"{pace.iters_per_s:.1f} it/s")
            facts += [f"{many(pace.samples_per_s)} samples/s"] * bool(pace.samples_per_s)  # else it is unknown
            facts += [f"ETA {span(pace.eta)}"] if pace.eta is not None else []
            facts += [word] if (word := bottleneck(state, pace)) != "compute-bound" else []
        return _line("train", *facts)


def _line(kind: str, *facts: str) -> str:
    return f"{kind:<10} {'  '.join(facts)}"


def _message(entry: Entry) -> str:
    if entry.kind == "command":
        return _line("command", entry.text)
    return _line(entry.kind, f"{entry.source}: {entry.text}")


def _interrupted(state: RunState, times: int) -> str:
    """Return what the training does when Ctrl-C has been pressed so many times."""
    if times > 1:
        return "ending at once, without saving"
    if not state.iterating:  # it may not have begun: then there is nothing to save
        return "ending as soon as possible; Ctrl-C again ends at once without saving"
    return "finishing the iteration, saving a checkpoint; Ctrl-C again ends at once without saving"


def _place(state: RunState, epoch: int, it: int) -> str:
    """Return the epoch, counted from 1, and the iteration."""
    return f"epoch {out_of(epoch, state.run.get('max_epochs'))}  iter {out_of(it, state.total_iters)}"


def _raised(record: Error, it: int) -> str:
    """Return what raised, where and when, and what became of it."""
    at = f", at {place}" if (place := raised_at(record)) else ""
    owner = f'hook "{record["hook"]}" at {record["point"]}, ' if record["hook"] else ""
    return f"{owner}iteration {it}, {BECAME[record['action']]}: {record['type']}: {one_line(record['text'])}{at}"


def _beginning(run: RunDir, live: Live) -> list[str]:
    """Return the lines that say what runs, on what data, where."""
    record, plan = live.state.run, live.plan
    model = [f"{record['model']}, {many(record['params'])} parameters"] if record["model"] else []
    ranks = [f"{record['world']} ranks"] if record["world"] > 1 else []
    resumed = [f"resumed from {record['resumed_from']}"] if record["resumed_from"] else []
    where = [f"{record['device']}, {record['precision']}", *ranks, f"pid {record['pid']}@{record['host']}"]
    versions = f"torch {record['torch']}, python {record['python']}"
    lines = [
        _line("run", f"{run.path.parent.name} {run.id}", *model, f"seed {record['seed']}", *resumed),
        _line("device", *where, versions),
    ]
    lines += [_line("data", _data(split, data)) for split, data in record["data"].items()]
    if plan:
        shuffled = [f"SHUFFLED {plan.shuffle}"] if plan.shuffle is not None else []
        numbers = {"hook": len(plan.hooks), "binding": len(plan.bindings), "edge": plan.edge_count}
        counts = ", ".join(f"{count} {plural(count, thing)}" for thing, count in numbers.items())
        lines.append(_line("plan", counts, *shuffled))
    return lines


def _data(split: str, data: DataInfo) -> str:
    of = f" of {data['batch_size']}" if data["batch_size"] else ""
    examples, batches = data["examples"], data["batches"]
    counts = f"{examples} {plural(examples, 'example')} in {batches} {plural(batches, 'batch')}{of}"
    marks = ["SYNTHETIC"] * data["synthetic"] + [data["note"]] * bool(data["note"])
    return "  ".join([f"{split}: {data['name']}", counts, ": ".join(marks)]).rstrip()
