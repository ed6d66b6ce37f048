"""One writer of a run in a thread of its own, with the queue that leads to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from hookflow.runner.recorder import Recorder
from hookflow.runner.writer_history import Call, History, Series
from hookflow.runner.writer_progress import WriterProgress
from hookflow.user_code import showable
from hookflow.writers.base import Writer

PLACES = 10_000
"""How many calls may wait for a writer."""
IN_A_ROW = 10
"""After so many calls in a row that have raised, a writer is switched off."""


CONFIGURED, PROGRESS = "configured", "progress"
"""Files in a writer's folder: an empty one which says that it has had the pipeline, and how far it has come."""


class WriterThread:
    """Makes the calls of one writer, whose `folder` is in the run directory. What raises loses that call; it is told.

    No step of a series is written twice, or after a later one: in a resumed run what is trained again is passed over,
    so far as the writer has kept it, and what waited when the process was killed is made up for from the event log. A
    writer that has been added since is given all that is trained from here on.
    """

    def __init__(
        self,
        name: str,
        writer: Writer,
        config: Mapping[str, Any],
        folder: Path,
        recorder: Recorder,
        history: History | None = None,
    ) -> None:
        self.name = name
        self._writer = writer
        self._config = config
        self._configured = folder / CONFIGURED
        self._recorder = recorder
        self._history = history
        self._first = history.calls if history else 0
        """The number of the first call of this attempt."""
        self._progress = WriterProgress(folder / PROGRESS, self._first)
        self._queue: SimpleQueue[tuple[int, Call] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=f"hookflow-writer-{name}", daemon=True)
        self._next: dict[Series, int] = {}
        self._given = self._dropped = 0  # counted by who gives
        self._done = self._failed = self._in_a_row = 0  # counted by the thread
        self._hurried = self._told = self._off = False

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def leave(self) -> None:
        """Close the writer, which has been given nothing."""
        with suppress(Exception):
            self._writer.close()

    def give(self, number: int, call: Call) -> None:
        """Take a call with its number, or drop it where too many wait already."""
        self._given += 1
        if self._off:
            return
        if self._queue.qsize() < PLACES:
            self._queue.put((number, call))
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
            self._progress.save(begun=self._first, safe=self._first)
            self._progress.leave_out(0, self._first, -1)
            self._try("write_config", self._configure)
        elif self._history is not None:
            self._try("resume_at", self._resume, self._history)
        number = self._first - 1
        while (given := self._queue.get()) is not None and not self._hurried:
            number, call = given
            if self._write(number, call):
                self._done += 1
            else:
                self._failed += 1
            if self._queue.empty():
                self._secure("flush", number + 1)
            if self._in_a_row >= IN_A_ROW:
                self._off = True
                said = f'the writer "{self.name}" has raised {IN_A_ROW} times in a row: it is switched off'
                self._recorder.say(said, "warn")
                break
        self._secure("close", number + 1)
        self._progress.close()

    def _secure(self, method: str, calls: int) -> None:
        """Let the writer bring to its place what it has been given, which is so many calls."""
        if self._try(method, getattr(self._writer, method)) and calls > self._progress.safe:
            self._progress.save(safe=calls)

    def _resume(self, history: History) -> None:
        """Let the writer forget what will be trained again, and as much of the rest as it may lack; write that again.

        One that cannot forget is given what it certainly lacks.
        """
        progress = self._progress
        begun, safe, cut = progress.begun, progress.safe, history.iteration
        for number, call in history.numbered():
            if progress.has_begun(number, call.iteration):
                self._next[call.series] = max(call.iteration + 1, self._next.get(call.series, 0))
            if number >= safe:
                cut = max(min(cut, call.iteration - 1), 0)
        if cut < history.iteration:
            forgotten = (number for number, call in history.standing() if call.iteration > cut)
            progress.save(safe=min(safe, next(forgotten, safe)))
        progress.leave_out(begun, history.calls, history.iteration)
        forgets = self._writer.resume_at(cut)
        if forgets:
            self._next = {}
        stand: dict[Series, int] = {}
        for number, call in history.standing():
            stand[call.series] = max(call.iteration + 1, stand.get(call.series, 0))
            if number >= begun or (forgets and call.iteration > cut):
                self._write(number, call)
            if self._hurried:
                return
        self._next |= {series: max(following, self._next.get(series, 0)) for series, following in stand.items()}
        progress.save(begun=history.calls)
        self._secure("flush", history.calls)

    def _configure(self) -> None:
        self._writer.write_config(self._config)
        self._configured.touch()

    def _write(self, number: int, call: Call) -> bool:
        """Make a call unless the writer has the step already; return whether it has it now."""
        if call.iteration < self._next.get(call.series, 0):
            return True
        self._next[call.series] = call.iteration
        self._progress.save(begun=max(number + 1, self._progress.begun))
        written = self._try(call.method, getattr(self._writer, call.method), *call.args)
        self._in_a_row = 0 if written else self._in_a_row + 1
        return written

    def _try(self, what: str, call: Callable[..., Any], *args: Any) -> bool:
        """Make a call of the writer, and return whether it has raised nothing."""
        try:
            call(*args)
        except BaseException as error:  # whatever a writer may raise: it is no reason to end the training
            if not self._told:
                self._told = True
                shown = showable(error, f'in {what} of the writer "{self.name}"')
                self._recorder.failure(shown, action="ignore")
                lost = ": that value is lost" if args else ""
                said = f'the writer "{self.name}" raised in {what}{lost}; later errors are only counted'
                self._recorder.say(said, "warn")
            return False
        return True
