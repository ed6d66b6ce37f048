"""The state of a run as a fold over its records, shared by the dashboard, replay and plain lines.

Every length of time is taken between the records' own stamps, never from the reader's clock, so
that a replay shows what the live view showed. How long an attempt has taken is in its frames, by a
clock that cannot be set.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hookflow.events import records
from hookflow.events.packing import iter_series
from hookflow.events.records import LATE_KINDS, RECORD_KINDS, VERSION
from hookflow.graph.plan import Plan
from hookflow.metric_mode import Mode, read_mode_from_name
from hookflow.monitor.durations import CallHistories
from hookflow.monitor.journal import (
    ERROR_ACTION_LABELS,
    Entry,
    Journal,
    Kind,
    MediaGallery,
    describe_briefly,
)
from hookflow.monitor.ranks import NO_PLAN, NO_RUN, RankGroup, RankState
from hookflow.monitor.series import BestValue, MetricHistory, Progress, Series, in_order
from hookflow.numbers import (
    duration,
    format_frequency,
    format_many,
    format_plural,
    format_span,
    number,
    one_line,
    size,
)
from hookflow.pipeline.by_epoch import recorded_lengths

SET_BACK = 5.0
"""Seconds that a frame must be older than what came before to mean that the clock was set back."""

CHANGING_COMMANDS = ("off", "on", "set", "validate")
"""Commands that change the training."""

IDLE_STAGES = ("start", "paused", "end")
"""Stages whose time is no part of the pace of the training."""


@dataclass(slots=True)
class Request:
    """A command of a user with its arguments.

    `answer` is the run's acknowledgement, or None while it is awaited.
    """

    cmd: str
    at: float
    args: Sequence[str] = ()
    answer: records.Acknowledged | None = None

    @property
    def text(self) -> str:
        """The command as one writes it."""
        return " ".join([self.cmd, *self.args])


@dataclass(slots=True)
class Attempt:
    """One attempt at the run.

    It goes from `begin` to `it`, counted in iterations, and from `began` to `until`, in seconds.

    `prepared` has the messages from before it began, such as the changes since its checkpoint.
    `ended` has the end in words; it is empty while the attempt goes on, and where it left no end
    record.
    """

    began: float
    until: float
    begin: int
    it: int
    prepared: tuple[Entry, ...]
    resumed_from: str = ""
    ended: str = ""


def is_still(record: records.Record) -> bool:
    """Return whether a record is a frame of a pause, in which nothing has fired."""
    if record["k"] != "frame" or record["stage"] != "paused":
        return False
    num_iters = record["iters"][0]
    return not record["hooks"] and not num_iters


class RunState:
    """Everything that the screens show of a run, folded from its records.

    The values are of rank 0, except `ranks`.
    """

    def __init__(self) -> None:
        self.journal = Journal()
        self.scalars: dict[str, Series] = {}
        self.metrics = MetricHistory()
        self.histories = CallHistories()
        self.checkpoints: list[records.Checkpoint] = []  # the last 1,000
        self.traces: list[records.Trace] = []
        # The commands that have changed the training, up to its present iteration.
        self.changes: list[records.Acknowledged] = []
        # By hook that skips firings: the record that says since when.
        self.throttled: dict[str, records.Throttle] = {}
        # By hook that is switched off: the iterations that were done then.
        self.disabled: dict[str, int] = {}
        self.requests: dict[str, Request] = {}
        self.attempts: list[Attempt] = []
        # Messages since the last record of another kind belong to an attempt that follows them.
        self._prepared: list[Entry] = []
        self.gallery = MediaGallery()
        self.frames = 0
        # The number of records that have changed something: a frame of a pause in which nothing
        # happens has not.
        self.news = 0
        self.unreadable = 0  # lines of the logs that were no records
        self.complaint = ""  # where one of them is, and why
        self.now = 0.0
        self.it = 0
        self.ep = 0
        self._ends: dict[int, int] = {}  # the iterations done when so many epochs were
        # By iteration: the seconds of training up to it, in this attempt and those before it.
        self._seconds = Series()
        self._before = 0.0  # the seconds of those before
        self.ranks = RankGroup()
        self._begin(NO_RUN)

    def _begin(self, run: records.Run) -> None:
        """Start afresh what belongs to one attempt at the run."""
        self.run = run
        # The length of an epoch is 0 where it is not known.
        self.epoch_lengths = recorded_lengths(run)
        self._began = run.get("t", 0.0)
        self.ranks = self.ranks.begin_attempt(run)
        self.end: records.End | None = None
        # A resume that was refused has left the run as it was.
        self.refused: records.Refused | None = None
        # True where a mistake of the user's ended the attempt before it began: there is nothing to
        # show.
        self.failed_to_start = False
        self.stage = "start"
        self.batch = 0
        self.batches = 0
        self.errors: dict[tuple[str, str], records.Error] = {}
        # By hook and name: the work that hooks report now.
        self.works: dict[tuple[str, str], records.Progress] = {}
        self._warned: set[str] = set()  # scalars that were not finite
        self.moved = self.now  # when the training was last seen to get on
        # True while an epoch is over, with or without its validation, and the next has not begun.
        self._between = False
        self.active = 0.0  # seconds of training, validation and saving
        self.staged = 0.0  # those before the present stage
        self._frame_t = 0.0

    def apply(self, record: records.Record, rank: int = 0, plan: Plan = NO_PLAN) -> None:
        """Take the next record of a rank's event log, as `read_record` returns it.

        `plan` names its bindings.
        """
        if self.stage != "paused" or not is_still(record):
            self.news += 1
        if rank:
            self.ranks.apply(rank, record, self.journal)
            return
        if record["k"] in RECORD_KINDS:  # a log of another version may know more
            self._apply_known(record, plan)
        if len(self.ranks.of) > 1:
            self.ranks.check_balance(self.now, plan, self.journal)

    def _apply_known(self, record: records.Record, plan: Plan) -> None:
        self._advance(record)
        is_late = self._is_late(record)
        if not is_late:
            self.it = record["it"]
            self.ep = record["ep"]
            self.first.it = self.it
        handle: Callable[[Any], None] = getattr(self, f"_on_{record['k']}")
        handle(record)
        if record["k"] == "frame":
            self.histories.add_frame(record, plan)
        self.first.now = self.now
        if record["k"] == "message":
            return
        self._prepared.clear()
        if self.attempts and not is_late:
            self.attempts[-1].it = self.it
            self.attempts[-1].until = self.now

    def _is_late(self, record: records.Record) -> bool:
        """Return whether a record is of an offloaded hook, which may be behind the training."""
        if record["k"] in LATE_KINDS:
            return True
        return record["k"] == "scalars" and record["it"] < self.it

    def apply_command(self, record: records.CommandRecord) -> None:
        """Take the next record of the command log, as `apply` does those of an event log."""
        self.requests.setdefault(record["id"], Request(record["cmd"], record["t"], record["args"]))

    def warn(self, text: str) -> None:
        """Warn of a file of the run that cannot be read."""
        self.journal.add(self.now, "warn", "monitor", text, own=True)

    def _advance(self, record: records.Record) -> None:
        """Go on to the time of a record.

        Where the clock was set back, times move back so far, as if no time had passed. Frames tell
        that: one thread writes them in turn, while an image, say, may be written long after it was
        logged.
        """
        t = record["t"]
        if record["k"] == "frame" and t < self.now - SET_BACK:
            self._began += t - self.now
            self.now = t
        self.now = max(self.now, t)

    @property
    def first(self) -> RankState:
        """Rank 0, whose log this is."""
        return self.ranks.of[0]

    @property
    def iterating(self) -> int:
        """The ns of this attempt that were spent in training iterations."""
        return self.first.attempt.sums["ns"]

    @property
    def monitored(self) -> dict[str, Mode]:
        """The metrics that hooks monitor, and whether less or more of each is better.

        They are in the pipeline's order.
        """
        return self.run.get("modes", {})

    @property
    def scalar_names(self) -> list[str]:
        """The scalars in the order in which they are shown: monitored, the loss, the others."""
        places = {name: place for place, name in enumerate(self.monitored)}

        def sort_key(name: str) -> tuple[int, bool, str]:
            return places.get(name, len(places)), name != "loss", name

        return sorted(self.scalars, key=sort_key)

    @property
    def synthetic(self) -> list[str]:
        """The splits whose data are made up."""
        return [split for split, data in self.run.get("data", {}).items() if data["synthetic"]]

    @property
    def limited(self) -> list[str]:
        """The splits of which only a part is used, and which part."""
        data = self.run.get("data", {})
        texts = []
        for split, count in self.run.get("limited", {}).items():
            if split in data:
                texts.append(f"{split} {data[split]['batches']} of {count} batches")
        return texts

    @property
    def not_finite(self) -> str:
        """The first number that is not finite now, such as "loss NaN"; empty where all are."""
        name = self._first_not_finite
        if name is None:
            return ""
        return f"{name} {number(self.scalars[name].last)}"

    @property
    def not_finite_since(self) -> int:
        """The iteration from which on the number of `not_finite` is not finite; 0 where all are."""
        name = self._first_not_finite
        if name is None:
            return 0
        return self.scalars[name].broken[-1].first

    @property
    def _first_not_finite(self) -> str | None:
        for name in self.scalar_names:
            if not math.isfinite(self.scalars[name].last):
                return name
        return None

    @property
    def outcome(self) -> records.Status | Literal["refused", ""]:
        """How the last attempt has ended, if it has.

        It is "refused" for a user's mistake before the first iteration.
        """
        if self.end is None:
            return ""
        # A fork begins with the iteration of its parent, and not with 0.
        first = self.attempts[0].begin if self.attempts else 0
        if self.end["exit"] == 2 and self.it <= first:
            return "refused"
        return self.end["status"]

    @property
    def total_iters(self) -> int:
        """How many iterations the run is to have; 0 when that is not known."""
        max_iters = self.run.get("max_iters")
        if max_iters:
            return int(max_iters)
        return int(self.epoch_lengths.iterations(self.run.get("max_epochs", 0)))

    @property
    def epoch(self) -> int:
        """The epoch that is worked on, counted from 1: its validation is part of it.

        After the end, the last.
        """
        if not self.run or self.end is not None or self._between:
            return self.epoch_of(self.it, self.ep)
        current = self.ep + 1
        return min(current, self.run.get("max_epochs") or current)

    def epoch_of(self, it: int, ep: int) -> int:
        """Return the epoch, counted from 1, of iteration `it`, when `ep` epochs were over then."""
        if not self.run:  # the length of an epoch is unknown
            return ep
        end = self._ends.get(ep, self.epoch_lengths.iterations(ep))
        if it > end:
            return ep + 1
        return ep

    def progress(self, unit: Literal["it", "epoch", "time"]) -> Progress:
        """Return how far the run was in epochs, or in seconds of training.

        A resumed run is followed along the path that it kept.
        """
        if unit == "it":
            return Progress()
        if unit == "time":
            return Progress(self._seconds.its, self._seconds.highs)
        ends = {0: 0}
        for ep in sorted(self._ends):
            ends[ep] = self._ends[ep]
        last = max(ends)
        per_epoch = self.epoch_lengths.at(last)
        if per_epoch:
            ends[last + 1] = max(ends[last] + per_epoch, self.it)
        return Progress([*ends.values()], [*ends])

    @property
    def elapsed(self) -> float:
        """The seconds of this attempt, from its first record to its last.

        It does not matter how the clock was set.
        """
        if not self.run:
            if self.end:
                return self.end["seconds"]
            return 0.0
        return self.now - self._began

    @property
    def pending(self) -> list[Request]:
        """The requests to this attempt that are not answered yet."""
        if self.end is not None:
            return []
        began = self.run.get("t", 0.0)
        waiting = [request for request in self.requests.values() if request.answer is None]
        return [request for request in waiting if request.at >= began]

    @property
    def was_asked_to_stop(self) -> bool:
        """Whether this attempt was requested to stop, and the run has not refused that."""
        began = self.run.get("t", 0.0)
        for request in self.requests.values():
            is_refused = request.answer is not None and not request.answer["ok"]
            if request.cmd == "stop" and request.at >= began and not is_refused:
                return True
        return False

    def _on_run(self, record: records.Run) -> None:
        is_again = bool(self.run)
        origin = record["resumed_from"] or record["forked_from"] or ""
        self._begin(record)
        self.attempts.append(self._new_attempt(record["t"], origin))
        if record["version"] > VERSION:
            text = (
                f"the log is in format {record['version']}, and this version of hookflow reads"
                f" format {VERSION}"
            )
            self._warn(record, "version", "monitor", f"{text}: what is new in it is not shown")
        self.moved = record["t"]
        self._drop_later_records()
        verb = "started"
        if record["forked_from"]:
            verb = "forked"
        elif is_again or origin:
            verb = "resumed"
        text = f"{verb} on {record['device']}"
        if origin:
            text += f" from {origin} at iteration {self.it}"
        self._add_entry(record, "info", "run", text)
        if self.synthetic:
            splits = ", ".join(self.synthetic)
            self._warn(
                record,
                "synthetic",
                "data",
                f"SYNTHETIC data ({splits}): scores say nothing of the real set",
            )

    def _new_attempt(self, began: float, resumed_from: str = "") -> Attempt:
        """Return an attempt that is at the present iteration, with the messages from before it."""
        return Attempt(began, self.now, self.it, self.it, tuple(self._prepared), resumed_from)

    def _drop_later_records(self) -> None:
        """Forget what lies ahead of the present iteration: a resumed run does it again."""
        for name, known in list(self.scalars.items()):
            known.forget_after(self.it)
            if known.newest < 0:
                del self.scalars[name]
        self.gallery.forget_after(self.it)
        self.metrics.forget_after(self.it)
        self.histories.begin_attempt(self.it)
        self.disabled = {hook: it for hook, it in self.disabled.items() if it <= self.it}
        self.throttled = {}  # what the checkpoint has follows
        self.changes = [change for change in self.changes if change["it"] <= self.it]
        self._ends = {ep: it for ep, it in self._ends.items() if it <= self.it}
        self._before = self.progress("time").at(self.it)
        self._seconds.forget_after(self.it)

    def _on_frame(self, record: records.Frame) -> None:
        self.frames += 1
        stage = record["stage"]
        has_moved = stage != self.stage or record["bi"] != self.batch or stage == "paused"
        if has_moved or record["samples"] or record["hooks"]:
            self.moved = record["t"]
        if stage == "train" and (record["bi"] or self.stage != "train"):
            self._between = False
        elif stage == "val":
            self._between = 0 < self.ep == self.epoch_of(self.it, self.ep)
        self._add_active_time(record)
        if stage != self.stage:
            self.staged = self.active
        if "elapsed" in record:
            self._began = self.now - record["elapsed"]
        self.stage = stage
        self.batch = record["bi"]
        self.batches = record["bn"]
        self.first.frame(record)
        num_iters = record["iters"][0]
        if num_iters:
            self._seconds.add(self.it, self._before + self.elapsed)

    def _add_active_time(self, record: records.Frame) -> None:
        t = record.get("elapsed", record["t"])
        if self._frame_t and record["stage"] not in IDLE_STAGES:
            self.active += max(t - self._frame_t, 0.0)
        self._frame_t = t

    def _on_scalars(self, record: records.Scalars) -> None:
        for name, its, values in iter_series(record):
            if name not in self.scalars:
                self.scalars[name] = Series()
            self.scalars[name].extend(its, values)
            if not math.isfinite(sum(values)):
                for it, value in zip(its, values, strict=True):
                    self._check_finite(record, name, value, it)

    def _on_metrics(self, record: records.Metrics) -> None:
        self.moved = record["t"]
        epoch = self.epoch_of(record["it"], record["ep"])
        texts = {}
        for name, value in record["v"].items():
            if record["split"] == "val":
                key = name
            else:
                key = f"{record['split']} {name}"
            new = BestValue(float(value), record["it"], epoch)
            mode = self.monitored.get(name) or read_mode_from_name(name)
            is_best = self.metrics.add(key, new, mode)
            self._check_finite(record, key, new.value, new.it)
            texts[name] = f"{name} {number(new.value)}"
            if is_best:
                texts[name] += " ★"
        values = "  ".join(texts[name] for name in in_order(texts, self.monitored))
        took = duration(record["seconds"] * 1e9)
        self._add_entry(record, "metrics", record["split"], f"{values}  in {took}")

    def _on_epoch(self, record: records.Epoch) -> None:
        self.moved = record["t"]
        self._between = True
        self._ends[record["ep"]] = record["it"]
        text = f"{record['ep']} done in {duration(record['seconds'] * 1e9)}"
        if "loss" in self.scalars:
            text += f"  loss {number(self.scalars['loss'].last)}"
        self._add_entry(record, "info", "epoch", text)

    def _on_checkpoint(self, record: records.Checkpoint) -> None:
        self.moved = record["t"]
        self.checkpoints = [*self.checkpoints[-999:], record]
        text = record["path"].rsplit("/", 1)[-1]
        if record["names"]:
            text += f" ({', '.join(record['names'])})"
        took = duration(record["ms"] * 1e6)
        self._add_entry(
            record,
            "checkpoint",
            "checkpoint",
            f"{text}  {size(record['bytes'])} in {took}",
            record["path"],
        )

    def _on_ack(self, record: records.Acknowledged) -> None:
        if record["id"] not in self.requests:
            self.requests[record["id"]] = Request(record["cmd"], record["sent"], record["args"])
        request = self.requests[record["id"]]
        request.answer = record
        outcome = "refused"
        if record["ok"]:
            outcome = f"done at iteration {record['it']}"
        waited = record["t"] - record["sent"]
        text = f"{request.text} {outcome} ({waited:.1f} s)"
        if record["note"]:
            text += f": {record['note']}"
        self._add_entry(record, "command", "command", text)
        if record["ok"]:
            self._record_change(record)

    def _record_change(self, record: records.Acknowledged) -> None:
        """Take note of what a command has changed."""
        match (record["cmd"], *record["args"]):
            case ("on", hook):
                self.disabled.pop(hook, None)
            case ("off", hook):
                self.disabled[hook] = record["it"]
            case ("rewind", *_) if self.attempts:
                self.attempts[-1].ended = record["note"]
        if record["cmd"] in CHANGING_COMMANDS:
            self.changes.append(record)

    def find_setting(self, hook: str, argument: str) -> records.Acknowledged | None:
        """Return the command that has set an argument last, if any has."""
        prefix = f"{hook}.{argument}="
        for change in reversed(self.changes):
            if change["args"] and change["args"][0].startswith(prefix):
                return change
        return None

    def _on_throttle(self, record: records.Throttle) -> None:
        before = self.throttled.pop(record["hook"], None)
        every_before = 1
        if before:
            every_before = before["every"]
        if record["every"] > 1:
            self.throttled[record["hook"]] = record
        kind: Kind = "warn" if record["every"] > every_before else "info"
        self._add_entry(
            record, kind, record["hook"], f"{format_frequency(record['every'])}: {record['why']}"
        )

    def _on_trace(self, record: records.Trace) -> None:
        self.traces = [*self.traces[-99:], record]
        first = record["first"]
        last = first + record["iters"] - 1
        path = record["path"]
        self._add_entry(record, "command", "trace", f"iterations {first} to {last}: {path}", path)

    def _on_message(self, record: records.Message) -> None:
        self.ranks.mark_seen(record)
        self._prepared.append(
            self._add_entry(record, record["level"], record["source"], record["text"])
        )

    def _on_logged(self, record: records.Media) -> None:
        shown = self.gallery.add(record)
        self.journal.add_shown(
            record["t"],
            record["k"],
            record["hook"],
            describe_briefly(record),
            record["it"],
            shown.number,
        )

    _on_image = _on_text = _on_histogram = _on_logged

    def _on_progress(self, record: records.Progress) -> None:
        key = record["hook"], record["name"]
        if record["over"]:
            self.works.pop(key, None)
        else:
            self.works[key] = record

    def _on_error(self, record: records.Error) -> None:
        text = (
            f"{ERROR_ACTION_LABELS[record['action']]}: {record['type']}: {one_line(record['text'])}"
        )
        if record["point"]:
            text = f"{record['point']}, {text}"
        self.ranks.mark_seen(record)
        ends_run = record["action"] == "raise"
        self._add_entry(
            record,
            "error",
            record["hook"] or "hookflow",
            text,
            record["traceback"],
            ends_run=ends_run,
        )
        self.errors[record["hook"], record["point"]] = record
        if ends_run:
            self.first.fatal = record
        if record["action"] == "disable":
            self.disabled[record["hook"]] = self.it + 1  # no checkpoint of this iteration has it

    def _on_end(self, record: records.End) -> None:
        has_begun = bool(self.run) and self.end is None
        began = record["t"] - record["seconds"]
        # The launcher may repeat the end of an attempt, which is then in `attempts` already.
        if not has_begun and (not self.attempts or began > self.attempts[-1].until):
            self.attempts.append(self._new_attempt(began))
        self.end = record
        self.first.end = record
        self.attempts[-1].ended = self._end_text(record)
        # No attempt is longer than its process, though the clock was set since the last frame.
        if record["seconds"]:
            self._began = max(self._began, self.now - record["seconds"])
        self.ranks.mark_seen(record)
        self.failed_to_start = record["exit"] == 2 and not has_begun
        self.stage = "end"
        self.works.clear()
        done = f"{format_many(self.it)} {format_plural(self.it, 'iteration')}"
        text = f"{self.outcome} after {format_span(self.elapsed)}, {done}"
        if record["reason"]:
            text += f": {one_line(record['reason'])}"
        detail = ""
        if "\n" in record["reason"]:
            detail = record["reason"]
        # The first failure of a rank is an entry already.
        is_new_error = record["status"] == "failed" and self.ranks.first_failure is None
        self._add_entry(
            record, "error" if is_new_error else "info", "run", text, detail, ends_run=is_new_error
        )

    def _end_text(self, record: records.End) -> str:
        """Return how the attempt has ended, in words."""
        text = f"{self.outcome}"
        if record["exit"]:
            text += f" with exit code {record['exit']}"
        reason = " ".join(record["reason"].split())
        if reason:
            text += f": {reason}"
        return text

    def _on_refused(self, record: records.Refused) -> None:
        self.refused = record
        self.failed_to_start = record["exit"] == 2
        reason = " ".join(record["reason"].split())
        attempt = self._new_attempt(record["t"])
        attempt.until = record["t"]
        attempt.ended = f"not resumed, exit code {record['exit']}: {reason}"
        self.attempts.append(attempt)
        detail = record.get("traceback") or record["reason"]
        self._add_entry(
            record,
            "error",
            "run",
            f"not resumed: {one_line(record['reason'])}",
            detail,
            ends_run=True,
        )

    def _check_finite(self, record: records.Record, name: str, value: float, it: int) -> None:
        if not math.isfinite(value):
            self._warn(record, name, name, f"{name} is {number(value)} at iteration {it}")

    def _warn(self, record: records.Record, about: str, source: str, text: str) -> None:
        """Add a warning to the journal, the first time in this attempt that it is about this."""
        if about not in self._warned:
            self._warned.add(about)
            self.journal.add(record["t"], "warn", source, text, own=True, it=record["it"])

    def _add_entry(
        self,
        record: records.Record,
        kind: Kind,
        source: str,
        text: str,
        detail: str = "",
        *,
        ends_run: bool = False,
    ) -> Entry:
        return self.journal.add(
            record["t"], kind, source, text, detail, it=record["it"], ends_run=ends_run
        )
