"""Turns the log of a run into messages."""

import time
from collections.abc import Iterable, Iterator, Sequence

from hookflow.events.process_life import read_start_time
from hookflow.events.records import Record
from hookflow.events.rundir import RunDir
from hookflow.monitor.feed import LogFollower
from hookflow.monitor.health import judge
from hookflow.monitor.series import BestValue
from hookflow.monitor.stall_watch import StallWatch
from hookflow.monitor.summary import summary
from hookflow.notify.sender import Message
from hookflow.numbers import number, one_line
from hookflow.pipeline.schema import Occasion
from hookflow.text import make_lines_printable, make_printable

END_GRACE = 2.0
"""Seconds in which the command that has started a killed training records its end."""

MIN_INTERVAL = 60.0
"""Seconds between two messages on a new best value, or on warnings.

Events in between are sent as one.
"""


class HeldMessages:
    """Texts that wait, by occasion.

    At most one message of an occasion is sent in `MIN_INTERVAL` seconds.
    """

    def __init__(self) -> None:
        self._texts: dict[Occasion, list[str]] = {}
        self._sent: dict[Occasion, float] = {}  # when, by a clock that cannot be set

    def add(self, occasion: Occasion, text: str) -> None:
        """Hold a text."""
        self._texts.setdefault(occasion, []).append(text)

    def take_due(self, *, everything: bool) -> list[tuple[Occasion, list[str]]]:
        """Return the texts that are due, or all, and hold them no longer."""
        due = []
        for occasion, texts in list(self._texts.items()):
            now = time.monotonic()
            last_sent = self._sent.get(occasion)
            if everything or last_sent is None or now >= last_sent + MIN_INTERVAL:
                del self._texts[occasion]
                self._sent[occasion] = now
                due.append((occasion, texts))
        return due


class RunWatch:
    """Turns the log of one attempt at a run, from the moment `since` on, into messages."""

    def __init__(self, run: RunDir, wanted: Sequence[Occasion], pid: int, since: float) -> None:
        self._run = run
        self._wanted = wanted
        self._since = since
        self._pid = pid
        self._process_start = read_start_time(pid)
        self._live = LogFollower(run)
        self._stall_watch = StallWatch(run, self._live)
        self._is_stalled = False
        self._has_begun = False
        self._best: dict[str, BestValue] = {}
        self._next_entry = 0  # of the journal
        self._warnings: set[str] = set()  # that were held or sent
        self._gone_since: float | None = None  # when no process of the run was alive any more
        self._held = HeldMessages()

    def look(self) -> tuple[list[Message], bool]:
        """Return the messages that are due, and whether they are the last ones."""
        is_over = self._is_over()  # before the look at the logs, so that nothing comes after
        for rank, record in self._live.records():
            if rank == 0:
                self._apply(record)
        self._collect_warnings()
        messages = [*self._iter_due_messages(everything=is_over), *self._iter_stall_messages()]
        if is_over:
            messages.append(self._last_message())
        return [message for message in messages if message.occasion in self._wanted], is_over

    def _is_over(self) -> bool:
        """Return whether nothing more will come of this attempt."""
        end = self._live.state.refused or self._live.state.end
        if end is not None and end["t"] >= self._since:
            return True
        is_same_process = (
            self._process_start is not None and read_start_time(self._pid) == self._process_start
        )
        if is_same_process or self._run.life() == "alive":
            self._gone_since = None
            return False
        if self._gone_since is None:
            self._gone_since = time.monotonic()
        return time.monotonic() > self._gone_since + END_GRACE

    def _apply(self, record: Record) -> None:
        is_new = record["t"] >= self._since
        if record["k"] == "run" and is_new:
            self._has_begun = True
        if record["k"] == "metrics":
            self._collect_best(is_new)

    def _collect_best(self, is_new: bool) -> None:
        """Hold new best values.

        They are of monitored metrics, or of any whose mode is known where none is monitored.
        """
        state = self._live.state
        names: Iterable[str] = state.monitored or state.metrics.best
        for name in names:
            best = state.metrics.best.get(name)
            if best is None or best == self._best.get(name):
                continue
            self._best[name] = best
            if is_new:
                self._held.add(
                    "best",
                    f"best {name} {number(best.value)} at epoch {best.ep}, iteration {best.it}",
                )

    def _collect_warnings(self) -> None:
        """Hold the warnings and errors that are new in the journal.

        Entries that the message of a failure has are left out.
        """
        for entry in self._live.state.journal.since(self._next_entry):
            self._next_entry = entry.number + 1
            if not entry.trouble or entry.t < self._since or entry.ends_run:
                continue
            text = f"{entry.source}: {one_line(entry.text)}"
            if text not in self._warnings:
                self._warnings.add(text)
                self._held.add("warning", text)

    def _iter_due_messages(self, *, everything: bool) -> Iterator[Message]:
        """Yield what is held and due: of best values the last, of warnings all."""
        for occasion, texts in self._held.take_due(everything=everything):
            earlier = []
            if occasion == "warning":
                earlier = texts[:-1]
            yield self._message(occasion, texts[-1], earlier)

    def _iter_stall_messages(self) -> Iterator[Message]:
        """Yield a message when a stall begins or ends, once, however long it lasts."""
        if not self._has_begun:
            return
        report = self._stall_watch.look(time.time())
        if report is None:
            return
        condition, sentence = report
        is_stalled = condition == "stalled"
        if is_stalled != self._is_stalled:
            yield self._message("stall", f"{condition}: {sentence}")
        self._is_stalled = is_stalled

    def _last_message(self) -> Message:
        state = self._live.state
        title, *lines = summary(self._run, state, self._live.plan)
        occasion: Occasion = "end"
        if state.refused is not None or judge(self._run, state, time.time()).bad:
            occasion = "failure"
        return Message(occasion, title, "\n".join([*lines, *self._host_lines()]))

    def _message(self, occasion: Occasion, title: str, lines: Sequence[str] = ()) -> Message:
        name = f"{self._run.path.parent.name} {self._run.id}"
        text = "\n".join([*lines, *self._host_lines()])
        return Message(occasion, make_printable(f"{name}: {title}"), make_lines_printable(text))

    def _host_lines(self) -> list[str]:
        host = self._live.state.run.get("host")
        if host:
            return [f"on {host}"]
        return []
