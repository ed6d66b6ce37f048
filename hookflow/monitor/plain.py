"""A run without a screen: plain lines for logs and pipes, on a terminal with progress bars below; or its raw records.

A line has one fact, its kind in front, and no control characters. Bars are there only while the run is followed.
"""

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Self, TextIO

from rich.console import Console
from rich.live import Live as Redrawn
from rich.table import Table
from rich.text import Text

from hookflow.events.log import encode
from hookflow.events.reading import open_regular
from hookflow.events.records import Record
from hookflow.events.rundir import RunDir, count_attempts
from hookflow.graph.why import COUNTED, ambiguities, in_number
from hookflow.monitor.feed import Live, follow_records
from hookflow.monitor.health import Pace, RanksHere, bottleneck, examine, look_inside, missing, placed, raised_at
from hookflow.monitor.journal import BECAME, Entry, brief
from hookflow.monitor.series import in_order
from hookflow.monitor.state import RunState
from hookflow.monitor.style import INKS
from hookflow.monitor.summary import metrics_table, print_summary, summary
from hookflow.numbers import clock, counted, lasting, many, number, one_line, out_of, span, speed
from hookflow.text import ESCAPE, printable


class StallWatch:
    """Watches the stalls of one run, whose state is folded elsewhere."""

    def __init__(self, run: RunDir, live: Live) -> None:
        self._run, self._live = run, live
        self._since = 0.0  # when the training was last seen to get on, while it hangs; else 0
        self._next = 0.0  # seconds of the next report of a stall

    def look(self, clock: float) -> tuple[str, str] | None:
        """Return the condition and a sentence at this moment (seconds since 1970), when they are to be printed."""
        state, life = self._live.state, self._run.life()
        inside = look_inside(self._run, RanksHere.of(state).pids) if life == "alive" else {}
        health = examine(state, life, clock, self._live.plan, inside)
        if health.condition != "stalled":
            since, self._since = self._since, 0.0
            return ("running", f"again, after {lasting(state.moved - since)}") if since and not health.over else None
        still = clock - state.moved
        if self._since and still < self._next:
            return None
        self._since, self._next = state.moved, 2 * still
        return "stalled", health.sentence


def tidy(line: str) -> str:
    """Return a line as it looks in the end: of a progress bar, which goes back again and again, the last state."""
    states = [part for part in ESCAPE.sub("", line).split("\r") if part.strip()]
    return printable(states[-1]).rstrip() if states else ""


CHUNK = 1 << 20
"""Bytes read at a time; also the longest line that is waited for."""


class Output:
    """Reads what has been printed since the last look; at first at most `back` bytes of what was there before."""

    def __init__(self, path: Path, *, back: int | None = None) -> None:
        self._path = path
        self._at = max(path.stat().st_size - back, 0) if back is not None and path.exists() else 0
        self._rest = b""

    @property
    def unfinished(self) -> str:
        """The line that has no end yet, as of a progress bar."""
        return tidy(self._rest.decode("utf-8", "replace"))

    def read(self, last: bool = False) -> list[str]:
        """Return the next whole lines; with `last` also one that was not ended."""
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


def can_show_bars(out: TextIO) -> bool:
    """Say whether there is a terminal that can show bars, and a person before it."""
    return out.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("CI")


class Bar(NamedTuple):
    """One row: how much is `done` of how much (0: unknown); speed, time and the time left; and the latest numbers."""

    name: str
    done: int
    whole: int
    facts: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()


def bars(state: RunState) -> Iterator[Bar]:
    """Yield a bar for the run, one for the epoch where there are several, and one for a validation that is on."""
    if not state.run:
        return

    def described(numbers: list[tuple[str, float]]) -> tuple[str, ...]:
        return tuple(f"{printable(name)} {number(value)}" for name, value in numbers[:3])

    pace, per_epoch = Pace.of(state), state.run["iters_per_epoch"]
    per_s = speed(pace.iters_per_s) if pace.iters_per_s else ""
    facts = (per_s, span(state.elapsed), f"ETA {pace.left}" if pace.left else "")
    latest = described([(name, state.scalars[name].last) for name in state.scalar_names])
    yield Bar("paused" if state.stage == "paused" else "train", state.it, state.total_iters, facts, latest)
    if 0 < per_epoch < state.total_iters:
        over = state.epoch == state.ep and state.it == state.ep * per_epoch  # and the next one has not begun
        done = per_epoch if over else min(max(state.it - state.ep * per_epoch, 0), per_epoch)
        yield Bar(f"epoch {out_of(state.epoch, state.run['max_epochs'])}", done, per_epoch)
    if state.stage in ("val", "test"):
        values = {name: points[-1][1] for name, points in state.metrics.by_name.items() if points}
        metrics = described([(name, values[name]) for name in in_order(values, state.monitored)])
        yield Bar(state.stage, state.batch, state.batches, numbers=metrics)


def drawn(rows: Sequence[Bar], width: int) -> Table:
    """Return the bars below one another for so many cells; what a narrow terminal has no room for is left out."""
    table = Table.grid(padding=(0, 2))
    cells = max(min(width // 5, width - 28), 1)
    kept = max((width - 44) // 10, 0)
    for row in rows:
        done = round(cells * row.done / row.whole) if row.whole else 0
        bar = Text.assemble(("━" * done, INKS["bar"]), ("╌" * (cells - done), "dim"))
        share = f"{row.done / row.whole:4.0%}" if row.whole else ""
        counted = [Text(text, justify="right") for text in (share, out_of(row.done, row.whole), *row.facts[:kept])]
        numbers = Text("  ".join(row.numbers), INKS["val"], no_wrap=True, overflow="ellipsis")
        blanks = [""] * (min(kept, 3) + 2 - len(counted))
        table.add_row(Text(row.name, "bold"), bar, *counted, *blanks, *[numbers] * (kept > 3))
    return table


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


class Sheet:
    """Lines below one another; with `bars`, in colour above bars, which leave at the end of this context."""

    def __init__(self, out: TextIO, bars: bool) -> None:
        self.has_bars = bars
        self.console = Console(file=out, highlight=False, markup=False, emoji=False)
        self._redrawn = Redrawn(
            console=self.console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )

    def __enter__(self) -> Self:
        if self.has_bars:
            self._redrawn.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._redrawn.stop()

    def line(self, line: str) -> None:
        if not self.has_bars:
            print(line, file=self.console.file, flush=True)
            return
        text = Text(line)
        if match := LINE.match(line):
            text.stylize("dim", *match.span("clock"))
            text.stylize(COLOURS.get(match["kind"], ""), *match.span("kind"))
        self.console.print(text, soft_wrap=line.startswith("output"))  # output stays as it was laid out

    def show(self, state: RunState) -> None:
        """Draw the bars as the run is now."""
        if self.has_bars:
            self._redrawn.update(drawn([*bars(state)], self.console.width), refresh=True)


EVERY, SCALARS = 10.0, 5
"""Seconds of the run between lines on its progress, without other lines; and the numbers in such a line, at most."""

ChildExit = Callable[[], int | None]
"""Returns the exit code of the process that trains once it has ended, when the caller is its parent."""


def follow_json(run: RunDir, out: TextIO, *, child_exit: ChildExit | None = None) -> int:
    """Print each record of the event log, of several ranks that of rank 0, as a line of JSON; see `follow`."""
    live = Live(run, kept=child_exit is not None and not count_attempts(run))
    return follow_records(run, live, lambda record: print(encode(record), file=out, flush=True), child_exit)


def follow(
    run: RunDir,
    out: TextIO,
    *,
    child_exit: ChildExit | None = None,
    interrupts: Callable[[], int] = lambda: 0,
    bars: bool = False,
) -> int:
    """Print the run until it has ended or its process is gone; return the exit code to leave with.

    With `bars`, for which `out` must be a terminal, progress bars stand below the lines, and a table of the metrics at
    the end. The exit code is the run's own, or 1 when it went without an end record. `interrupts` returns how often
    Ctrl-C has been pressed. For a resumed run the newest attempt is printed, with the changes. A mistake that ends a
    run before it has begun is left for the caller that has started it.
    """
    live = Live(run, kept=child_exit is not None)  # a long log opens at once afterwards, whoever watched it
    attempts = count_attempts(run)
    with Sheet(out, bars) as sheet:
        printed = Output(run.output, back=0 if attempts > (child_exit is None) else None)
        printer = _Printer(run, live, sheet, printed, skip=attempts if attempts > 1 and child_exit is None else 0)
        if child_exit is not None and attempts:
            live.read_all()  # what earlier attempts left
            printer.divide(time.time(), attempts + 1)

        def look(over: bool) -> None:
            printer.relay(over)
            printer.warn()
            printer.look(interrupts(), over)
            sheet.show(live.state)

        code = follow_records(run, live, printer.take, child_exit, look)
        printer.warn()
        if child_exit is not None and live.state.end is None and not live.moved() and (exit_code := child_exit()):
            printer.say("lost", run.ended_by(exit_code))
    if bars and (table := metrics_table(live.state)):
        sheet.console.print(table)
    if moved := live.moved():
        print_summary(moved, out)
    elif not live.state.failed_to_start or child_exit is None:
        print("\n".join(summary(run, live.state, live.plan)), file=out, flush=True)
    return code


class _Printer:
    """Prints a line for each fact; the attempts before the one numbered `skip` are folded in silence."""

    def __init__(self, run: RunDir, live: Live, sheet: Sheet, printed: Output, skip: int = 0) -> None:
        self._run, self._live, self._sheet, self._printed, self._skip = run, live, sheet, printed, skip
        self._attempt = 0
        self._relayed: deque[str] = deque(maxlen=1000)
        self._expected: set[str] = set()  # lines of a traceback that may still be printed
        self._raised = ""  # what ended the run, as its line has said it
        self._seen = 0  # entries of the journal
        self._interrupts = 0
        self._missing = False  # the run directory is not in its place
        self._stall = StallWatch(run, live)
        self._progressed = 0.0, -1  # when the last line on progress was due, and its iteration

    def take(self, record: Record) -> None:
        """Print a record; frames and scalars only now and then."""
        entries = self._fresh()
        self._attempt += record["k"] == "run"
        if self._attempt < self._skip:
            return
        if self._attempt == self._skip and record["k"] == "run":
            self.divide(record["t"], self._attempt)
            prepared = self._live.state.attempts[-1].prepared
            self._print(*(f"{clock(entry.t)} {_message(entry)}" for entry in prepared))
        lines = [f"{clock(record['t'])} {line}" for line in self._lines(record, entries)]
        self._print(*lines, *self._own(entries))

    def warn(self) -> None:
        """Print what has come from other ranks, or from the monitor itself, since the last record of rank 0."""
        entries = self._fresh()
        self._print(*(self._own(entries) if self._attempt >= self._skip else ()))

    def divide(self, t: float, attempt: int) -> None:
        """Print that the run has been resumed, and pass over the warnings before."""
        self._fresh()
        self._print(f"{clock(t)} {_line('resumed', f'attempt {attempt}')}")

    def say(self, kind: str, text: str) -> None:
        self._print(f"{clock(time.time())} {_line(kind, text)}")

    def look(self, interrupts: int, over: bool) -> None:
        """Print what has no record: that Ctrl-C was pressed, and its effect; that the run hangs, or is lost."""
        state = self._live.state
        while self._interrupts < interrupts:
            self._interrupts += 1
            effect = "finishing the iteration, saving a checkpoint; Ctrl-C again ends at once without saving"
            if not state.iterating:  # it may not have begun: then there is nothing to save
                effect = "ending as soon as possible; Ctrl-C again ends at once without saving"
            self.say("Ctrl-C", effect if self._interrupts == 1 else "ending at once, without saving")
        if not self._missing and not self._run.path.exists():
            self._missing, moved = True, self._live.moved()
            if moved or not over:  # else the exit code is printed
                self.say("lost", missing(state, moved))
        if self._attempt >= self._skip and (line := self._stall.look(time.time())):
            self.say(*line)

    def relay(self, over: bool = False) -> None:
        """Print the output of the training since the last time; `over`, also a line that it has not ended."""
        for line in self._printed.read(over):
            self._relayed.append(line)
            if line in self._expected:
                self._expected.remove(line)
            else:
                self._sheet.line(f"output     | {line}".rstrip())

    def _print(self, *lines: str) -> None:
        for line in lines:
            self._sheet.line(printable(line))

    def _fresh(self) -> list[Entry]:
        fresh = self._live.state.journal.since(self._seen)
        self._seen = fresh[-1].number + 1 if fresh else self._seen
        return fresh

    def _own(self, entries: list[Entry]) -> Iterator[str]:
        """Yield lines for the entries of the monitor itself, and of other ranks."""
        for entry in entries:
            if entry.own:
                for line in [_message(entry), *self._traceback(entry.detail)]:
                    yield f"{clock(entry.t)} {line}"

    def _traceback(self, text: str) -> list[str]:
        """Return the lines of a traceback, unless it is a message alone, or the training has printed it."""
        if "\n" not in text.strip():
            return []
        self.relay()  # what is recorded is printed at once, perhaps since the last look
        if (lines := {tidy(line) for line in text.splitlines()}) <= set(self._relayed):
            return []
        self._expected = lines
        return [_line("error", f"| {line}") for line in text.splitlines()]

    def _lines(self, record: Record, entries: list[Entry]) -> list[str]:
        """Return the lines for a record, without the time."""
        state = self._live.state
        at = _place(state, state.epoch_of(record["it"], record["ep"]), record["it"])
        match record["k"]:
            case "run":
                self._progressed = record["t"], -1
                return _beginning(self._run, self._live)
            case "epoch":
                self._progressed = record["t"], state.it
                return [self._progress()]
            case "frame":
                since, it = self._progressed
                if self._sheet.has_bars or record["t"] - since < EVERY or record["stage"] != "train" or state.it == it:
                    return []
                self._progressed = record["t"], state.it
                return [self._progress()]
            case "metrics" | "checkpoint":
                return [_line(entry.source, at, entry.text) for entry in entries if not entry.own]
            case "image" | "text" | "histogram":
                return [_line(record["k"], at, brief(record))]
            case "error":
                what = f"{record['type']}: {one_line(record['text'])}"
                self._raised = what
                raised = f", at {place}" if (place := raised_at(record)) else ""
                line = f"{', '.join([*placed(record), BECAME[record['action']]])}: {what}{raised}"
                text = record["traceback"]  # of a diagnosis it is the message alone
                return [_line("error", line), *(self._traceback(text) if "Traceback (" in text else ())]
            case "refused" if not state.failed_to_start:
                return [*map(_message, entries), *self._traceback(record.get("traceback", ""))]
            case "end" | "refused":
                shown = [] if state.failed_to_start else entries
                first = self._raised.partition(". ")[0]  # the line of the error has all sentences
                return [_line("end", entry.text.replace(self._raised, first)) for entry in shown]
        return [_message(entry) for entry in entries if not entry.own]

    def _progress(self) -> str:
        state = self._live.state
        pace, names = Pace.of(state), state.scalar_names
        facts = [_place(state, state.epoch, state.it)]
        facts += [f"{name} {number(state.scalars[name].last)}" for name in names[:SCALARS]]
        facts += [f"({len(names) - SCALARS} more)"] * (len(names) > SCALARS)
        if pace.iters_per_s and not self._sheet.has_bars:  # a run may be over before an iteration is timed
            facts.append(speed(pace.iters_per_s))
            facts += [f"{many(pace.samples_per_s)} samples/s"] * bool(pace.samples_per_s)  # else it is unknown
            facts += [f"ETA {pace.left}"] if pace.left else []
            facts += [word] if (word := bottleneck(state, pace)) != "compute-bound" else []
        return _line("train", *facts)


def _line(kind: str, *facts: str) -> str:
    return f"{kind:<10} {'  '.join(facts)}"


def _message(entry: Entry) -> str:
    return _line(entry.kind, entry.text if entry.kind == "command" else f"{entry.source}: {entry.text}")


def _place(state: RunState, epoch: int, it: int) -> str:
    return f"epoch {out_of(epoch, state.run.get('max_epochs'))}  iter {out_of(it, state.total_iters)}"


def _beginning(run: RunDir, live: Live) -> list[str]:
    """Return the lines on the run, its data, and the machine."""
    record, plan = live.state.run, live.plan
    model = [f"{record['model']}, {many(record['params'])} parameters"] if record["model"] else []
    ranks = [f"{record['world']} ranks"] if record["world"] > 1 else []
    resumed = [f"resumed from {record['resumed_from']}"] if record["resumed_from"] else []
    resumed += [f"forked from {record['forked_from']}"] if record["forked_from"] else []
    where = [f"{record['device']}, {record['precision']}", *ranks, f"pid {record['pid']}@{record['host']}"]
    versions = f"torch {record['torch']}, python {record['python']}"
    first = _line("run", f"{run.path.parent.name} {run.id}", *model, f"seed {record['seed']}", *resumed)
    lines = [first, _line("device", *where, versions)]
    for split, data in record["data"].items():
        of = f" of {data['batch_size']}" if data["batch_size"] else ""
        known = f"{counted(data['examples'], 'example')} in " if data["examples"] else ""  # of a stream: unknown
        counts = f"{known}{counted(data['batches'], 'batch')}{of}"
        marks = ": ".join(["SYNTHETIC"] * data["synthetic"] + [data["note"]] * bool(data["note"]))
        lines.append(_line("data", f"{split}: {data['name']}", counts, marks).rstrip())
    if plan:
        shuffled = [f"SHUFFLED {plan.shuffle}"] if plan.shuffle is not None else []
        numbers = {"hook": len(plan.hooks), "binding": len(plan.bindings), "edge": len(plan.edges)}
        counts = ", ".join(counted(count, thing) for thing, count in numbers.items())
        pairs = in_number([*islice(ambiguities(plan), COUNTED)])
        lines.append(_line("plan", counts, *shuffled, *[f"{pairs}: hookflow check"] * bool(pairs)))
    return lines
