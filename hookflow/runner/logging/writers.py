"""The writers of a run: each runs in a thread of its own, fed by the recorder's thread.

The training thread waits for no writer while it trains. Only the end of a run waits, and not for
long.
"""

import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count, islice
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

import tomli

from hookflow.events.log import TailReader
from hookflow.events.packing import unpack
from hookflow.events.reading import read_record
from hookflow.events.records import Record, Status
from hookflow.events.rundir import RunDir, count_attempts
from hookflow.runner.logging.recorder import EventRecorder
from hookflow.runner.process.signals import Rewind, SignalCollector
from hookflow.user_code import make_showable
from hookflow.writers import Writer

FRAME_START = b'{"k":"frame"'
CALLS_HEADER = struct.Struct("<QQ")
GAP_LAYOUT = struct.Struct("<QQq")


class WriterProgress:
    """How far a writer has come.

    `begun` calls may have reached it, and `safe` calls it has brought to their place. Calls are
    numbered as in `EarlierLogs`. A file that is not there yet says that all of `calls` are safe.
    `gaps` are calls that were never made: from one number up to another, those after an iteration,
    at which the run was resumed.
    """

    def __init__(self, path: Path, calls: int) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        kept = path.read_bytes()
        self.begun, self.safe = (
            CALLS_HEADER.unpack_from(kept) if len(kept) >= CALLS_HEADER.size else (calls, calls)
        )
        self.begun, self.safe = min(self.begun, calls), min(self.safe, calls)
        self.gaps: list[tuple[int, int, int]] = list(
            GAP_LAYOUT.iter_unpack(kept[CALLS_HEADER.size :])
        )

    def save(self, *, begun: int | None = None, safe: int | None = None) -> None:
        """Write the numbers with one system call, which a kill cannot tear."""
        self.begun = self.begun if begun is None else begun
        self.safe = self.safe if safe is None else safe
        os.pwrite(self._file, CALLS_HEADER.pack(self.begun, self.safe), 0)

    def leave_out(self, begin: int, end: int, iteration: int) -> None:
        """Note that late calls from `begin` up to `end` are never made.

        These are the calls after the iteration.
        """
        if begin < end:
            if not self.gaps:
                self.save()
            os.pwrite(
                self._file,
                GAP_LAYOUT.pack(begin, end, iteration),
                CALLS_HEADER.size + GAP_LAYOUT.size * len(self.gaps),
            )
            self.gaps.append((begin, end, iteration))

    def has_begun(self, number: int, iteration: int) -> bool:
        """Return whether a call of an iteration may have reached the writer."""
        return number < self.begun and not any(
            begin <= number < end and iteration > at for begin, end, at in self.gaps
        )

    def close(self) -> None:
        os.close(self._file)


Series = tuple[str, str]
"""Numbers of one name: what kind of thing it is ("scalar", "image", …), and the name."""


class WriterCall(NamedTuple):
    """Something to write: a method of the writer, its series and iteration, its arguments."""

    method: str
    series: Series
    iteration: int
    args: tuple[Any, ...]


def iter_calls(record: Record, folder: Path) -> Iterator[WriterCall]:
    """Yield what a writer is to write of a record of the run in `folder`."""
    match record["k"]:
        case "scalars":
            for row in unpack(record):
                yield from (
                    _call("scalar", name, row._asdict(), value) for name, value in row.v.items()
                )
        case "metrics":
            for name, value in record["v"].items():
                yield _call("scalar", f"{record['split']}/{name}", record, value)
        case "image" if record["figure"]:
            yield _call("figure", record["name"], record, folder / record["path"])
        case "image":
            yield _call("image", record["name"], record, folder / record["path"], record["caption"])
        case "text":
            yield _call("text", record["name"], record, record["text"])
        case "histogram":
            yield _call("histogram", record["name"], record, record["edges"], record["counts"])


def _call(verb: str, name: str, record: Any, *what: Any) -> WriterCall:
    series = "image" if verb == "figure" else verb, name
    return WriterCall(
        f"write_{verb}",
        series,
        record["it"],
        (name, *what, record["it"], record["ep"], record["t"]),
    )


class LatestIteration:
    """Keeps back the calls of an iteration until it is over.

    Where a scalar is logged again, the last value counts.
    """

    def __init__(self) -> None:
        self._calls: dict[object, tuple[int, WriterCall]] = {}
        self._iteration = 0

    def add(self, number: int, call: WriterCall) -> list[tuple[int, WriterCall]]:
        """Take a call with its number; return those of an iteration that is over."""
        over = self.take_past_calls(call.iteration)
        if not self._calls:
            self._iteration = call.iteration
        key = (call.series, call.iteration) if call.method == "write_scalar" else number
        self._calls.pop(key, None)  # so that the calls stay in the order of their numbers
        self._calls[key] = number, call
        return over

    def take_past_calls(self, iteration: int) -> list[tuple[int, WriterCall]]:
        """Return the calls that were kept back, if the run has come to a later iteration.

        None is returned twice.
        """
        if self._calls and iteration > self._iteration:
            return self.all()
        return []

    def all(self) -> list[tuple[int, WriterCall]]:
        """Return the calls that were kept back, whatever may follow."""
        calls = self._calls
        self._calls = {}
        return list(calls.values())


class EarlierLogs:
    """The logs of earlier attempts at a run that resumes at `iteration`.

    Calls have numbers, in the order of the event log; `calls` is how many there are. Logs after the
    checkpoint of a later attempt are left out.
    """

    def __init__(self, run_dir: RunDir, iteration: int) -> None:
        self.iteration = iteration
        self.calls = 0
        self._run_dir = run_dir
        begins: list[tuple[int, int]] = []
        for record in self._iter_records():
            if record["k"] == "run":
                begins.append((self.calls, record.get("it", 0)))
            self.calls += sum(1 for _ in iter_calls(record, run_dir.path))
        begins.append((self.calls, iteration))
        self._attempts = [
            (number, min(it for _, it in begins[k:])) for k, (number, _) in enumerate(begins)
        ]
        """The first call of each attempt, and the earliest iteration of it and later ones.

        That is where they have begun.
        """

    def iter_numbered_calls(self) -> Iterator[tuple[int, WriterCall]]:
        """Yield every call with its number.

        Calls that the same attempt has superseded in the same iteration are left out.
        """
        begins = {number for number, _ in self._attempts}
        latest = LatestIteration()
        every = (
            call
            for record in self._iter_records()
            for call in iter_calls(record, self._run_dir.path)
        )
        for number, call in islice(enumerate(every), self.calls):  # what follows this attempt logs
            if number in begins:
                yield from latest.all()
            yield from latest.add(number, call)
        yield from latest.all()

    def iter_standing_calls(self) -> Iterator[tuple[int, WriterCall]]:
        """Yield the calls that stand, no step of a series from two attempts."""
        attempts = iter(self._attempts)
        first, earliest = next(attempts)
        latest: dict[Series, int] = {}
        before: dict[Series, int] = {}
        for number, call in self.iter_numbered_calls():
            while number >= first:
                first, earliest = next(attempts)
                before = dict(latest)
            if before.get(call.series, -1) < call.iteration <= earliest:
                latest[call.series] = call.iteration
                yield number, call

    def _iter_records(self) -> Iterator[Record]:
        # Frames are most of a log, and are left out.
        log = TailReader[Record](
            self._run_dir.events,
            lambda line: None if line.startswith(FRAME_START) else read_record(line),
        )
        log.grew = True
        while log.grew:
            yield from log.read()


MAX_QUEUED_CALLS = 10_000
"""How many calls may wait for a writer."""
IN_A_ROW = 10
"""After so many calls in a row that have raised, a writer is switched off."""

CONFIGURED, PROGRESS = "configured", "progress"
"""Files in a writer's folder.

An empty one says that it has had the pipeline, and the other how far it has come.
"""


class WriterThread(Thread):
    """Makes the calls of one writer, whose `folder` is in the run directory.

    An exception loses that call; it is reported. No step of a series is written twice, or after a
    later one: a resumed run skips what it trains again and the writer has, and makes up from the
    event log for what a kill has lost. A writer that has been added since is given all that is
    trained from here on. One whose folder `was_removed` is given everything again, if it can
    forget.
    """

    def __init__(
        self,
        name: str,
        writer: Writer,
        config: Mapping[str, Any],
        folder: Path,
        recorder: EventRecorder,
        history: EarlierLogs | None = None,
        *,
        was_removed: bool = False,
    ) -> None:
        super().__init__(name=f"hookflow-writer-{name}", daemon=True)
        self.writer = writer
        self.hurried = False
        """Close the writer at once, after the current call."""
        self.status: Status = "finished"
        """How the attempt has ended, once it has."""
        self._title = f'the writer "{name}"'
        self._config = config
        self._folder = folder
        self._was_removed = was_removed
        """Whether an earlier attempt had this writer, and its folder has been removed since."""
        self._removal_reported = False
        self._configured = folder / CONFIGURED
        self._recorder = recorder
        self._history = history
        self._first = history.calls if history else 0
        """The number of the first call of this attempt."""
        self._progress = WriterProgress(folder / PROGRESS, self._first)
        self._queue: SimpleQueue[tuple[int, WriterCall] | None] = SimpleQueue()
        self._next: dict[Series, int] = {}
        self._given = self._dropped = 0  # counted by the caller of `give`
        self._done = self._failed = self._in_a_row = 0  # counted by this thread
        self._reported = self._off = False

    def queue_call(self, number: int, call: WriterCall) -> None:
        """Take a call with its number, or drop it where too many wait already."""
        self._given += 1
        if self._off:
            return
        if self._queue.qsize() < MAX_QUEUED_CALLS:
            self._queue.put((number, call))
            return
        self._dropped += 1
        if self._dropped == 1:
            self._recorder.say(
                f"{self._title} is slower than the run logs: values are dropped", "warn"
            )

    def finish(self) -> None:
        self._queue.put(None)

    def describe_shortcomings(self) -> str:
        """Return what was not written, or that the writer has not closed.

        The text is empty where all is well.
        """
        missing = self._given - self._done
        left = missing - self._failed - self._dropped
        rest = "left at the end"
        if self._off:
            rest = "given when it was switched off"
        reasons = {"dropped, as it was too slow": self._dropped, "failed": self._failed, rest: left}
        why = "; ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
        text = []
        if missing:
            text = [f"has not written {missing} of {self._given} values ({why})"]
        if self.is_alive():
            text.append("has not closed")
        if text:
            return f"{self._title} {' and '.join(text)}"
        return ""

    def run(self) -> None:
        if self._configured.exists():
            if self._history is not None:
                self._try("resume_at", self._resume, self._history)
        else:
            self._begin()
        number = self._first - 1
        while (provided := self._queue.get()) is not None and not self.hurried:
            number, call = provided
            if self._write(number, call):
                self._done += 1
            else:
                self._failed += 1
            if self._queue.empty():
                self._flush_writer("flush", number + 1)
            if self._in_a_row >= IN_A_ROW:
                self._off = True
                self._recorder.say(
                    f"{self._title} has raised {IN_A_ROW} times in a row: it is switched off",
                    "warn",
                )
                break
        self._try("end", self.writer.end, self.status)
        self._flush_writer("close", number + 1)
        self._progress.close()

    def _begin(self) -> None:
        """Give the writer the pipeline.

        Where its folder was removed and it can forget, it is given all earlier calls, too.
        """
        if self._try("write_config", self.writer.write_config, self._config):
            with suppress(FileNotFoundError):  # it was removed again
                self._configured.touch()
        if self._was_removed and self._history is not None:
            self._try("resume_at", self._restore, self._history)
        else:
            self._leave_out_earlier_calls()

    def _leave_out_earlier_calls(self) -> None:
        """Note that the writer is never given what earlier attempts have logged."""
        self._progress.save(begun=self._first, safe=self._first)
        self._progress.leave_out(0, self._first, -1)

    def _restore(self, history: EarlierLogs) -> None:
        """Write again what the removed folder had.

        The writer may have it elsewhere, and then must be able to forget it.
        """
        removed = f"the folder of {self._title} was removed"
        if not self.writer.resume_at(0):
            self._leave_out_earlier_calls()
            self._recorder.say(
                f"{removed}: what was logged before is not written again, as it cannot forget",
                "warn",
            )
            return
        self._progress.save(begun=0, safe=0)
        self._resume(history)
        self._recorder.say(f"{removed}: what was logged before is written again", "warn")

    def _report_removal(self) -> None:
        """Warn, once, where the writer's folder is gone: what it writes there is lost."""
        if self._removal_reported or self._folder.is_dir():
            return
        self._removal_reported = True
        text = "was removed while the run goes on: what it writes there is lost"
        self._recorder.say(f"the folder of {self._title} {text}", "warn")

    def _flush_writer(self, method: str, calls: int) -> None:
        """Let the writer bring to its place what it has been given, which is so many calls."""
        self._report_removal()
        if self._try(method, getattr(self.writer, method)) and calls > self._progress.safe:
            self._progress.save(safe=calls)

    def _resume(self, history: EarlierLogs) -> None:
        """Let the writer forget what will be trained again, and what it may lack, and write that.

        One that cannot forget is given what it certainly lacks.
        """
        progress = self._progress
        begun = progress.begun
        safe = progress.safe
        cut = history.iteration
        for number, call in history.iter_numbered_calls():
            if progress.has_begun(number, call.iteration):
                self._next[call.series] = max(call.iteration + 1, self._next.get(call.series, 0))
            if number >= safe:
                cut = max(min(cut, call.iteration - 1), 0)
        if cut < history.iteration:
            forgotten = (
                number for number, call in history.iter_standing_calls() if call.iteration > cut
            )
            progress.save(safe=min(safe, next(forgotten, safe)))
        progress.leave_out(begun, history.calls, history.iteration)
        forgets = self.writer.resume_at(cut)
        if forgets:
            self._next = {}
        stand: dict[Series, int] = {}
        for number, call in history.iter_standing_calls():
            stand[call.series] = max(call.iteration + 1, stand.get(call.series, 0))
            if number >= begun or (forgets and call.iteration > cut):
                self._write(number, call)
            if self.hurried:
                return
        self._next |= {
            series: max(following, self._next.get(series, 0)) for series, following in stand.items()
        }
        progress.save(begun=history.calls)
        self._flush_writer("flush", history.calls)

    def _write(self, number: int, call: WriterCall) -> bool:
        """Make a call unless the writer has the step already; return whether it has it now."""
        if call.iteration < self._next.get(call.series, 0):
            return True
        self._next[call.series] = call.iteration
        self._progress.save(begun=max(number + 1, self._progress.begun))
        written = self._try(call.method, getattr(self.writer, call.method), *call.args)
        self._in_a_row = 0 if written else self._in_a_row + 1
        return written

    def _try(self, method: str, call: Callable[..., Any], *args: Any) -> bool:
        """Make a call of the writer, and return whether it has raised nothing.

        The first exception is reported.
        """
        try:
            call(*args)
        # No exception of a writer is a reason to end the training.
        except BaseException as error:
            if not self._reported:
                self._reported = True
                self._recorder.failure(
                    make_showable(error, f"in {method} of {self._title}"), action="ignore"
                )
                lost = ""
                if len(args) > 1:
                    lost = ": that value is lost"
                self._recorder.say(
                    f"{self._title} raised in {method}{lost}; later errors are only counted", "warn"
                )
            return False
        return True


GRACE, CLOSING = 10.0, 5.0
"""Seconds that the end of a run waits for its writers.

They write what is left in the first, and close in the second.
"""

POLL_PERIOD_SECONDS = 0.1
"""Seconds between looks at signals, while the end of a run waits for its writers."""


@contextmanager
def run_writers(
    makes: Mapping[str, Callable[[Mapping[str, Any]], Writer]],
    run_dir: RunDir,
    pipeline: Path,
    iteration: int,
    recorder: EventRecorder,
    signals: SignalCollector,
) -> Iterator[Callable[[], None]]:
    """Make the writers, each by its name in `makes`.

    From a call of what is yielded on they write what is recorded.

    `pipeline` is the recorded file, and the run begins at `iteration`. A signal ends the wait for
    the writers at the end of the run, and has no other effect then.
    """
    if not makes:
        yield lambda: None
        return
    history = None
    if count_attempts(run_dir):
        history = EarlierLogs(run_dir, iteration)
    threads = _make_threads(makes, run_dir, pipeline, recorder, history)
    first_number = 0
    if history:
        first_number = history.calls
    writers = RunWriters(threads, recorder, run_dir.path, first_number)
    try:
        yield writers.start
    except BaseException as error:
        if recorder.listener is None:  # the resume was refused, and they have been given nothing
            writers.discard()
        recorder.ends_as = "failed"
        if isinstance(error, KeyboardInterrupt | Rewind):
            recorder.ends_as = "interrupted"
        raise
    finally:
        before = signals.ignored
        signals.ignored = True
        count_before = signals.count
        writers.finish(lambda: signals.count > count_before)
        signals.ignored = before


class RunWriters:
    """The threads of a run's writers, and the calls that each recorded event is for them.

    Calls are numbered from `first_number` on. `folder` is the run directory.
    """

    def __init__(
        self,
        threads: Sequence[WriterThread],
        recorder: EventRecorder,
        folder: Path,
        first_number: int,
    ) -> None:
        self._threads = threads
        self._recorder = recorder
        self._folder = folder
        self._numbers = count(first_number)
        self._latest = LatestIteration()

    def start(self) -> None:
        """Start the threads, and give them what is recorded from here on."""
        for thread in self._threads:
            thread.start()
        self._recorder.listener = self._hand_on

    def discard(self) -> None:
        """Close the writers of threads that have not been started."""
        for thread in self._threads:
            with suppress(Exception):
                thread.writer.close()
        self._threads = ()

    def finish(self, is_cut_short: Callable[[], bool]) -> None:
        """Give the threads what is left, wait for them, and record what they have not written.

        They have `GRACE` seconds to write and `CLOSING` to close, unless the wait is cut short.
        """
        deadline = time.monotonic() + GRACE
        while not self._recorder.flush(frame=False, patience=POLL_PERIOD_SECONDS):
            if is_cut_short() or time.monotonic() > deadline:
                break
        self._recorder.listener = None
        self._queue_calls(self._latest.all())
        for thread in self._threads:
            thread.status = self._recorder.ends_as
            thread.finish()
        _join(self._threads, GRACE, is_cut_short)
        for thread in self._threads:
            thread.hurried = True
        _join(self._threads, CLOSING, is_cut_short)
        for thread in self._threads:
            message = thread.describe_shortcomings()
            if message:
                self._recorder.say(message, "warn")

    def _hand_on(self, records: Sequence[Record]) -> None:
        for record in records:
            for call in iter_calls(record, self._folder):
                self._queue_calls(self._latest.add(next(self._numbers), call))
            self._queue_calls(self._latest.take_past_calls(record["it"]))

    def _queue_calls(self, calls: Sequence[tuple[int, WriterCall]]) -> None:
        for number, call in calls:
            for thread in self._threads:
                thread.queue_call(number, call)


def _make_threads(
    makes: Mapping[str, Callable[[Mapping[str, Any]], Writer]],
    run_dir: RunDir,
    pipeline: Path,
    recorder: EventRecorder,
    history: EarlierLogs | None,
) -> list[WriterThread]:
    config = tomli.loads(pipeline.read_text("utf-8"))
    earlier: set[str] = set()  # the writers of the attempts so far
    if history is not None:
        earlier |= tomli.loads(run_dir.pipeline.read_text("utf-8")).get("writers", {}).keys()
    threads = []
    with ExitStack() as opened:
        for name, make in makes.items():
            folder = run_dir.writers / name
            was_removed = name in earlier and not folder.exists()
            folder.mkdir(parents=True, exist_ok=True)
            writer = make(
                {"dir": folder, "run_name": run_dir.path.parent.name, "run_id": run_dir.id}
            )
            opened.callback(writer.close)
            thread = WriterThread(
                name, writer, config, folder, recorder, history, was_removed=was_removed
            )
            threads.append(thread)
        opened.pop_all()
    return threads


def _join(
    threads: Sequence[WriterThread], seconds: float, is_cut_short: Callable[[], bool]
) -> None:
    """Wait until all threads have ended, at most so many seconds.

    The wait may be cut short.
    """
    deadline = time.monotonic() + seconds
    for thread in threads:
        while thread.is_alive() and time.monotonic() < deadline and not is_cut_short():
            thread.join(POLL_PERIOD_SECONDS)
