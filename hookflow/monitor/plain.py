"""A run without a screen: plain lines for logs and pipes, or its raw records.

On a terminal the lines have progress bars below.

A line has one fact, its kind in front, and no control characters. Bars are there only while the run
is followed.
"""

import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live as RedrawnBlock
from rich.text import Text

from hookflow.events.log import encode
from hookflow.events.records import DataInfo, Error, Frame, Progress, Record
from hookflow.events.rundir import RunDir, count_attempts
from hookflow.graph.plan import Plan
from hookflow.graph.why import MAX_AMBIGUITIES, count_pairs, find_ambiguities
from hookflow.monitor.feed import LogFollower, show_records
from hookflow.monitor.health import describe_missing_directory, describe_place, find_raising_line
from hookflow.monitor.journal import ERROR_ACTION_LABELS, Entry, describe_briefly
from hookflow.monitor.printed_output import OutputReader, tidy
from hookflow.monitor.progress_bars import (
    format_work_name,
    make_bars_table,
    make_progress_bars,
    names_as_they_came,
    shorten_name,
)
from hookflow.monitor.stall_watch import StallWatch
from hookflow.monitor.state import RunState
from hookflow.monitor.style import PLAIN_INKS
from hookflow.monitor.summary import make_metrics_table, print_summary, summary
from hookflow.monitor.throughput import Throughput, find_bottleneck
from hookflow.numbers import (
    format_clock,
    format_count,
    format_many,
    format_span,
    format_speed,
    number,
    one_line,
    out_of,
)
from hookflow.text import make_printable

LINE_START_PATTERN = re.compile(r"(?P<clock>\d\d:\d\d:\d\d )?(?P<kind>\S+)")
"""The begin of a line."""

KIND_COLOURS = {
    **dict.fromkeys(("warn", "lost", "Ctrl-C"), PLAIN_INKS["warn"]),
    "error": PLAIN_INKS["error"],
    **dict.fromkeys(("checkpoint", "histogram"), PLAIN_INKS["checkpoint"]),
    **dict.fromkeys(("train", "image", "command"), PLAIN_INKS["train"]),
    **dict.fromkeys(("val", "test"), PLAIN_INKS["val"]),
    **dict.fromkeys(("run", "resumed", "end", "text"), PLAIN_INKS["good"]),
}
"""The colour of a line's kind, where it has one."""


class LineWriter:
    """Writes lines below one another.

    With `has_bars` they are in colour, above bars, which leave at the end of this context.
    """

    def __init__(self, out: TextIO, has_bars: bool) -> None:
        self.has_bars = has_bars
        self.console = Console(file=out, highlight=False, markup=False, emoji=False)
        self._bars = RedrawnBlock(
            console=self.console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        if self.has_bars:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def write(self, line: str) -> None:
        """Write a line."""
        if not self.has_bars:
            print(line, file=self.console.file, flush=True)
            return
        text = Text(line)
        match = LINE_START_PATTERN.match(line)
        if match:
            text.stylize("dim", *match.span("clock"))
            text.stylize(KIND_COLOURS.get(match["kind"], ""), *match.span("kind"))
        # Lines of the run's output are not wrapped, so that they stay as they were laid out.
        self.console.print(text, soft_wrap=line.startswith("output"))

    def show_bars(self, state: RunState) -> None:
        """Draw the bars as the run is now."""
        if self.has_bars:
            table = make_bars_table([*make_progress_bars(state)], self.console.width)
            self._bars.update(table, refresh=True)


PROGRESS_INTERVAL = 10.0
"""Seconds of the run between lines on its progress, without other lines."""

MAX_SCALARS = 5
"""The numbers in such a line."""

MAX_RELAYED = 1000
"""Printed lines that are remembered, so that a traceback is not printed twice."""

ChildExit = Callable[[], int | None]
"""Returns the exit code of the training process once it has ended.

The caller must be its parent.
"""


def print_records(run: RunDir, out: TextIO, *, child_exit: ChildExit | None = None) -> int:
    """Print each record of the event log as a line of JSON, as `follow` does.

    Where there are several ranks, the log of rank 0 is printed.
    """
    live = LogFollower(run, kept=child_exit is not None and not count_attempts(run))
    return show_records(
        run, live, lambda record: print(encode(record), file=out, flush=True), child_exit
    )


def print_run(
    run: RunDir,
    out: TextIO,
    *,
    child_exit: ChildExit | None = None,
    interrupts: Callable[[], int] = lambda: 0,
    bars: bool = False,
) -> int:
    """Print the run until it has ended or its process is gone; return the exit code to leave with.

    With `bars`, for which `out` must be a terminal, progress bars stand below the lines, and a
    table of the metrics at the end. The exit code is the run's own, or 1 when it went without an
    end record. `interrupts` returns how often Ctrl-C has been pressed. For a resumed run the newest
    attempt is printed, with the changes. A mistake that ends a run before it has begun is left for
    the caller that has started it.
    """
    # A parent keeps snapshots of the state, so that any viewer opens a long log at once afterwards.
    live = LogFollower(run, kept=child_exit is not None)
    attempts = count_attempts(run)
    with LineWriter(out, bars) as writer:
        is_parent = child_exit is not None
        attempts_before = attempts if is_parent else attempts - 1
        output = OutputReader(run.output, back=0 if attempts_before > 0 else None)
        skip = attempts if attempts > 1 and not is_parent else 0
        printer = RunPrinter(run, live, writer, output, skip=skip)
        if is_parent and attempts:
            live.read_all()  # what earlier attempts left
            printer.divide(time.time(), attempts + 1)

        def relay_and_check(over: bool) -> None:
            printer.print_output(over)
            printer.warn()
            printer.look(interrupts(), over)
            writer.show_bars(live.state)

        code = show_records(run, live, printer.take, child_exit, relay_and_check)
        printer.warn()
        if child_exit is not None and live.state.end is None and not live.moved():
            exit_code = child_exit()
            if exit_code:
                printer.say("lost", run.ended_by(exit_code))
    table = make_metrics_table(live.state) if bars else None
    if table is not None:
        writer.console.print(table)
    moved = live.moved()
    if moved:
        print_summary(moved, out)
    elif not live.state.failed_to_start or child_exit is None:
        print("\n".join(summary(run, live.state, live.plan)), file=out, flush=True)
    return code


class RunPrinter:
    """Prints a line for each fact.

    The attempts before the one numbered `skip` are folded in silence.
    """

    def __init__(
        self,
        run: RunDir,
        live: LogFollower,
        writer: LineWriter,
        output: OutputReader,
        skip: int = 0,
    ) -> None:
        self._run = run
        self._live = live
        self._writer = writer
        self._output = output
        self._skip = skip
        self._attempt = 0
        self._relayed: deque[str] = deque(maxlen=MAX_RELAYED)
        self._expected: set[str] = set()  # lines of a traceback that may still be printed
        self._raised = ""  # what ended the run, as its line has said it
        self._next_entry = 0  # the number of the first entry of the journal that is not printed
        self._interrupts = 0
        self._is_missing = False  # the run directory is not in its place
        self._stall = StallWatch(run, live)
        self._progress_due = 0.0  # when the last line on progress was due
        self._progress_it = -1  # and its iteration
        # By hook and name of a work: when the last line about it was due.
        self._work_told: dict[tuple[str, str], float] = {}

    def take(self, record: Record) -> None:
        """Print a record; frames and scalars only now and then."""
        entries = self._new_entries()
        if record["k"] == "run":
            self._attempt += 1
        if self._attempt < self._skip:
            return
        if self._attempt == self._skip and record["k"] == "run":
            self.divide(record["t"], self._attempt)
            for entry in self._live.state.attempts[-1].prepared:
                self._print(f"{format_clock(entry.t)} {_entry_line(entry)}")
        self._print(
            *(f"{format_clock(record['t'])} {line}" for line in self._lines(record, entries))
        )
        self._print(*self._iter_own_lines(entries))

    def warn(self) -> None:
        """Print what has come from other ranks, or from the monitor, since rank 0's last record."""
        entries = self._new_entries()
        if self._attempt >= self._skip:
            self._print(*self._iter_own_lines(entries))

    def divide(self, t: float, attempt: int) -> None:
        """Print that the run has been resumed, and pass over the warnings before."""
        self._new_entries()
        self._print(f"{format_clock(t)} {_line('resumed', f'attempt {attempt}')}")

    def say(self, kind: str, text: str) -> None:
        """Print something that happens now."""
        self._print(f"{format_clock(time.time())} {_line(kind, text)}")

    def look(self, interrupts: int, over: bool) -> None:
        """Print what has no record.

        That is that Ctrl-C was pressed, and its effect, and that the run hangs, or is lost.
        """
        while self._interrupts < interrupts:
            self._interrupts += 1
            self.say("Ctrl-C", self._describe_interrupt())
        if not self._is_missing and not self._run.path.exists():
            self._is_missing = True
            moved = self._live.moved()
            if moved or not over:  # else the exit code is printed
                self.say("lost", describe_missing_directory(self._live.state, moved))
        if self._attempt >= self._skip:
            stall = self._stall.look(time.time())
            if stall:
                self.say(*stall)

    def _describe_interrupt(self) -> str:
        if self._interrupts > 1:
            return "ending at once, without saving"
        if not self._live.state.iterating:  # it may not have begun: then there is nothing to save
            return "ending as soon as possible; Ctrl-C again ends at once without saving"
        return (
            "finishing the iteration, saving a checkpoint; Ctrl-C again ends at once without saving"
        )

    def print_output(self, over: bool = False) -> None:
        """Print the output of the training since the last time.

        With `over` a line that it has not ended is printed, too.
        """
        for line in self._output.read(over):
            self._relayed.append(line)
            if line in self._expected:
                self._expected.remove(line)
            else:
                self._writer.write(f"output     | {line}".rstrip())

    def _print(self, *lines: str) -> None:
        for line in lines:
            self._writer.write(make_printable(line))

    def _new_entries(self) -> list[Entry]:
        entries = self._live.state.journal.since(self._next_entry)
        if entries:
            self._next_entry = entries[-1].number + 1
        return entries

    def _iter_own_lines(self, entries: list[Entry]) -> Iterator[str]:
        """Yield lines for the entries of the monitor itself, and of other ranks."""
        for entry in entries:
            if entry.own:
                for line in [_entry_line(entry), *self._format_traceback(entry.detail)]:
                    yield f"{format_clock(entry.t)} {line}"

    def _format_traceback(self, text: str) -> list[str]:
        """Return the lines of a traceback.

        There are none if it is a message alone, or the training has printed it.
        """
        if "\n" not in text.strip():
            return []
        self.print_output()  # what is recorded is printed at once, perhaps since the last look
        lines = {tidy(line) for line in text.splitlines()}
        if lines <= set(self._relayed):
            return []
        self._expected = lines
        return [_line("error", f"| {line}") for line in text.splitlines()]

    def _lines(self, record: Record, entries: list[Entry]) -> list[str]:
        """Return the lines for a record, without the time."""
        state = self._live.state
        place = _format_place(state, state.epoch_of(record["it"], record["ep"]), record["it"])
        match record["k"]:
            case "run":
                self._record_progress(record["t"], -1)
                return _first_lines(self._run, self._live)
            case "epoch":
                self._record_progress(record["t"], state.it)
                return [self._format_progress()]
            case "frame":
                return self._format_frame_progress(record)
            case "metrics" | "checkpoint":
                return [
                    _line(entry.source, place, entry.text) for entry in entries if not entry.own
                ]
            case "image" | "text" | "histogram":
                return [_line(record["k"], place, describe_briefly(record))]
            case "progress":
                return self._format_work(record)
            case "error":
                return self._error_lines(record)
            case "refused" if not state.failed_to_start:
                return [
                    *map(_entry_line, entries),
                    *self._format_traceback(record.get("traceback", "")),
                ]
            case "end" | "refused":
                return self._end_lines(entries)
        return [_entry_line(entry) for entry in entries if not entry.own]

    def _end_lines(self, entries: list[Entry]) -> list[str]:
        """Return the lines for the end of a run.

        Of one that has failed to start they are printed already.
        """
        if self._live.state.failed_to_start:
            return []
        first_sentence = self._raised.partition(". ")[0]  # the line of the error has all sentences
        return [_line("end", entry.text.replace(self._raised, first_sentence)) for entry in entries]

    def _format_frame_progress(self, record: Frame) -> list[str]:
        """Return the line of the progress, where it is time for one and no bar shows it."""
        done = self._live.state.it
        is_due = (
            record["t"] - self._progress_due >= PROGRESS_INTERVAL and record["stage"] == "train"
        )
        if self._writer.has_bars or not is_due or done == self._progress_it:
            return []
        self._record_progress(record["t"], done)
        return [self._format_progress()]

    def _format_work(self, record: Progress) -> list[str]:
        """Return a line on some work of a hook when it is over, and now and then while it lasts."""
        key = record["hook"], record["name"]
        told_at = self._work_told.setdefault(key, record["t"])
        if record["over"]:
            del self._work_told[key]
        elif self._writer.has_bars or record["t"] - told_at < PROGRESS_INTERVAL:
            return []
        else:
            self._work_told[key] = record["t"]
        done = out_of(record["done"], record["total"] or None)
        return [
            _line(
                "progress", f"{format_work_name(record)}  {done}  {format_span(record['seconds'])}"
            )
        ]

    def _error_lines(self, record: Error) -> list[str]:
        self._raised = f"{record['type']}: {one_line(record['text'])}"
        places = ", ".join([*describe_place(record), ERROR_ACTION_LABELS[record["action"]]])
        line = f"{places}: {self._raised}"
        raised = find_raising_line(record)
        if raised:
            line += f", at {raised}"
        if "Traceback (" not in record["traceback"]:  # of a diagnosis it is the message alone
            return [_line("error", line)]
        return [_line("error", line), *self._format_traceback(record["traceback"])]

    def _record_progress(self, t: float, it: int) -> None:
        self._progress_due = t
        self._progress_it = it

    def _format_progress(self) -> str:
        state = self._live.state
        facts = [_format_place(state, state.epoch, state.it)]
        names = names_as_they_came(state)
        for name in names[:MAX_SCALARS]:
            facts.append(f"{shorten_name(name)} {number(state.scalars[name].last)}")
        if len(names) > MAX_SCALARS:
            facts.append(f"({len(names) - MAX_SCALARS} more)")
        if not self._writer.has_bars:
            facts += _iter_pace_facts(state)
        return _line("train", *facts)


def _iter_pace_facts(state: RunState) -> Iterator[str]:
    """Yield speed, time left and bottleneck: nothing before an iteration is timed."""
    pace = Throughput.of(state)
    if not pace.iters_per_s:
        return
    yield format_speed(pace.iters_per_s)
    if pace.samples_per_s:
        yield f"{format_many(pace.samples_per_s)} samples/s"
    if pace.left:
        yield f"ETA {pace.left}"
    word = find_bottleneck(state, pace)
    if word != "compute-bound":
        yield word


def _line(kind: str, *facts: str) -> str:
    return f"{kind:<10} {'  '.join(facts)}"


def _entry_line(entry: Entry) -> str:
    if entry.kind == "command":
        return _line(entry.kind, entry.text)
    return _line(entry.kind, f"{entry.source}: {entry.text}")


def _format_place(state: RunState, epoch: int, it: int) -> str:
    return (
        f"epoch {out_of(epoch, state.run.get('max_epochs'))}  iter {out_of(it, state.total_iters)}"
    )


def _first_lines(run: RunDir, live: LogFollower) -> list[str]:
    """Return the lines on the run, its data, and the machine."""
    record = live.state.run
    facts = [f"{run.path.parent.name} {run.id}"]
    if record["model"]:
        facts.append(f"{record['model']}, {format_many(record['params'])} parameters")
    facts.append(f"seed {record['seed']}")
    if record["resumed_from"]:
        facts.append(f"resumed from {record['resumed_from']}")
    if record["forked_from"]:
        facts.append(f"forked from {record['forked_from']}")
    device = [f"{record['device']}, {record['precision']}"]
    if record["world"] > 1:
        device.append(f"{record['world']} ranks")
    device.append(f"pid {record['pid']}@{record['host']}")
    device.append(f"torch {record['torch']}, python {record['python']}")
    lines = [_line("run", *facts), _line("device", *device)]
    lines += [_data_line(split, data) for split, data in record["data"].items()]
    if live.plan:
        lines.append(_format_plan(live.plan))
    return lines


def _data_line(split: str, data: DataInfo) -> str:
    counts = format_count(data["batches"], "batch")
    if data["examples"]:  # of a stream they are unknown
        counts = f"{format_count(data['examples'], 'example')} in {counts}"
    if data["batch_size"]:
        counts += f" of {data['batch_size']}"
    marks = []
    if data["synthetic"]:
        marks.append("SYNTHETIC")
    if data["note"]:
        marks.append(data["note"])
    return _line("data", f"{split}: {data['name']}", counts, ": ".join(marks)).rstrip()


def _format_plan(plan: Plan) -> str:
    numbers = {"hook": len(plan.hooks), "binding": len(plan.bindings), "edge": len(plan.edges)}
    facts = [", ".join(format_count(count, thing) for thing, count in numbers.items())]
    if plan.shuffle is not None:
        facts.append(f"SHUFFLED {plan.shuffle}")
    pairs = count_pairs([*islice(find_ambiguities(plan), MAX_AMBIGUITIES)])
    if pairs:
        facts.append(f"{pairs}: hookflow check")
    return _line("plan", *facts)
