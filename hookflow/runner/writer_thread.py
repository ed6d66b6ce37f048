"""One writer of a run in a thread of its own, with the queue that leads to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from hookflow.events.records import Record
from hookflow.events.steps import Series, Steps
from hookflow.runner.recorder import Recorder
from hookflow.writers.base import Writer

PLACES = 10_000
"""How many calls may wait for a writer."""
IN_A_ROW = 10
"""After so many calls in a row that have raised, a writer is switched off."""


class Call(NamedTuple):
    """Something to write: the method of a writer, the series and the iteration that it is of, the arguments."""

    method: str
    series: Series
    iteration: int
    args: tuple[Any, ...]


def calls_of(record: Record, folder: Path) -> Iterator[Call]:
    """Yield what a writer is to write of a record of the run in `folder`."""
    match record["k"]:
        case "scalars" | "metrics":
            prefix = f"{record['split']}/" if record["k"] == "metrics" else ""
            for name, value in record["v"].items():
                yield _call("scalar", f"{prefix}{name}", record, value)
        case "image" if record["figure"]:
            yield _call("figure", record["name"], record, folder / record["path"])
        case "image":
            yield _call("image", record["name"], record, folder / record["path"], record["caption"])
        case "text":
            yield _call("text", record["name"], record, record["text"])
        case "histogram":
            yield _call("histogram", record["name"], record, record["edges"], record["counts"])


def _call(verb: str, name: str, record: Any, *what: Any) -> Call:
    series = "image" if verb == "figure" else verb, name  # as `hookflow.events.steps` has them
    return Call(f"write_{verb}", series, record["it"], (name, *what, record["it"], record["ep"], record["t"]))


class WriterThread:
    """Makes the calls of one writer. What raises loses that call; it is told once.

    No step of a series is written twice, or after a later one: in a resumed run what is trained again is passed over,
    so far as the writer has kept it. One that has been added since is given all that is trained from here on.
    """

    def __init__(
        self, name: str, writer: Writer, config: Mapping[str, Any], configured: Path, recorder: Recorder
    ) -> None:
        self.name = name
        self._writer = writer
        self._config = config
        self._configured = configured
        self._recorder = recorder
        self._queue: SimpleQueue[Call | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=f"hookflow-writer-{name}", daemon=True)
        self._resumed: tuple[int, Steps] | None = None
        self._next: dict[Series, int] = {}
        self._given = self._dropped = 0  # counted by who gives
        self._done = self._failed = self._in_a_row = 0  # counted by the thread
        self._hurried = self._told = self._off = False

    def start(self, resumed: tuple[int, Steps] | None) -> None:
        """Begin; a resumed run says at which iteration, and what it has logged before."""
        self._resumed = resumed
        self._thread.start()

    def give(self, call: Call) -> None:
        """Take a call, or drop it where too many wait already."""
        self._given += 1
        if self._off:
            return
        if self._queue.qsize() < PLACES:
            self._queue.put(call)
            return
        self._dropped += 1
        if self._dropped == 1:
            self._recorder.say(f'the writer "{self.name}" is slower than the run logs: values are dropped', "warn")

    def finish(self) -> None:
        """Let it write what is left, and then close the writer."""
        self._queue.put(None)

    def hurry(self) -> None:
        """Let it close the writer at once, after the call that it is in."""
        self._hurried = True

    def join(self, seconds: float) -> bool:
        """Wait so long for the end, and return whether it has come."""
        self._thread.join(max(seconds, 0))
        return not self._thread.is_alive()

    def shortcomings(self) -> str:
        """Return what people should know in the end; nothing where all was written, and the writer has closed."""
        missing = self._given - self._done
        left = missing - self._failed - self._dropped
        rest = "given when it was switched off" if self._off else "left at the end"
        reasons = {"dropped, as it was too slow": self._dropped, "failed": self._failed, rest: left}
        why = "; ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
        told = [f"has not written {missing} of {self._given} values ({why})"] if missing else []
        told += ["has not closed"] if self._thread.is_alive() else []
        return f'the writer "{self.name}" {" and ".join(told)}' if told else ""

    def _work(self) -> None:
        if not self._configured.exists():  # nor has it been given anything that it could be asked for twice
            self._try("write_config", self._configure)
        elif self._resumed is not None:
            self._try("resume_at", self._resume)
        while (call := self._queue.get()) is not None and not self._hurried:
            self._write(call)
            if self._queue.empty():
                self._try("flush", self._writer.flush)
            if self._in_a_row >= IN_A_ROW:
                self._off = True
                said = f'the writer "{self.name}" has raised {IN_A_ROW} times in a row: it is switched off'
                self._recorder.say(said, "warn")
                break
        self._try("close", self._writer.close)

    def _resume(self) -> None:
        assert self._resumed is not None
        iteration, steps = self._resumed
        self._next = {series: it + 1 for series, it in steps.ever.items()}  # what counts if the next line raises
        if self._writer.resume_at(iteration):
            self._next = {series: it + 1 for series, it in steps.standing.items()}

    def _configure(self) -> None:
        self._writer.write_config(self._config)
        self._configured.touch()

    def _write(self, call: Call) -> None:
        if call.iteration < self._next.get(call.series, 0):
            self._done += 1  # it stands there already
            return
        self._next[call.series] = call.iteration
        if self._try(call.method, getattr(self._writer, call.method), *call.args):
            self._done += 1
            self._in_a_row = 0
        else:
            self._failed += 1
            self._in_a_row += 1

    def _try(self, what: str, call: Callable[..., Any], *args: Any) -> bool:
        """Make a call of the writer, and return whether it has raised nothing."""
        try:
            call(*args)
        except BaseException as error:  # whatever a writer may raise: it is no reason to end the training
            if not self._told:
                self._told = True
                error.add_note(f'in {what} of the writer "{self.name}"')
                self._recorder.failure(error, action="ignore")
                lost = ": that value is lost" if args else ""
                said = f'the writer "{self.name}" raised in {what}{lost}; later errors are only counted'
                self._recorder.say(said, "warn")
            return False
        return True
