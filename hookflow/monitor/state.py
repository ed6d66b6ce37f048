"""The state of a run as a fold over its records, shared by the dashboard, replay and plain lines.

Every length of time is taken between the records' own stamps, never from the reader's clock, so that a replay shows
what the live view showed. How long an attempt has taken is in its frames, by a clock that cannot be set.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hookflow.events import records
from hookflow.events.packing import series
from hookflow.events.records import KINDS, LATE, VERSION
from hookflow.graph.plan import Plan
from hookflow.metric_mode import Mode, mode_by_name
from hookflow.monitor.durations import Histories
from hookflow.monitor.journal import BECAME, Entry, Gallery, Journal, Kind, brief
from hookflow.monitor.ranks import NO_PLAN, NO_RUN, Rank, Ranks
from hookflow.monitor.series import Best, MetricHistory, Progress, Series, in_order
from hookflow.numbers import duration, frequency, many, number, one_line, plural, size, span

SET_BACK = 5.0
"""Seconds that a frame must be older than what came before to mean that the clock was set back."""

CHANGES = ("off", "on", "set", "validate")
"""Commands that change the training."""

IDLE = ("start", "paused", "end")
"""Stages whose time is no part of the pace of the training."""


@dataclass(slots=True)
class Request:
    """A command of a user with its arguments; `answer` is the run's acknowledgement, None while it is awaited."""

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
    """One attempt at the run: from `begin` to `it`, counted in iterations, and from `began` to `until`, in seconds.

    `prepared` has the messages from before it began, such as the changes since its checkpoint. `ended` has the end in
    words; it is empty while the attempt goes on, and where it left no end record.
    """

    began: float
    until: float
    begin: int
    it: int
    prepared: tuple[Entry, ...]
    resumed_from: str = ""
    ended: str = ""


def is_still(record: records.Record) -> bool:
    """Say whether a record is a frame of a pause, in which nothing has fired."""
    return record["k"] == "frame" and record["stage"] == "paused" and not (record["hooks"] or record["iters"][0])


class RunState:
    """Everything that the screens show of a run, folded from its records; the values are of rank 0, except `ranks`."""

    def __init__(self) -> None:
        self.journal = Journal()
        self.scalars: dict[str, Series] = {}
        self.metrics = MetricHistory()
        self.histories = Histories()
        self.checkpoints: list[records.Checkpoint] = []  # the last 1,000
        self.traces: list[records.Trace] = []
        self.changes: list[records.Acknowledged] = []  # the commands that have changed the training, as far as it is
        self.throttled: dict[str, records.Throttle] = {}  # the hooks that skip firings, and since when
        self.disabled: dict[str, int] = {}  # the hooks that are switched off, with the iterations done then
        self.requests: dict[str, Request] = {}
        self.attempts: list[Attempt] = []
        self._prepared: list[Entry] = []  # messages since the last record of another kind: of the attempt before it
        self.gallery = Gallery()
        self.frames = 0
        self.news = 0  # records that have changed something: all but the frames of a pause in which nothing happens
        self.unreadable = 0  # lines of the logs that were no records
        self.complaint = ""  # where one of them is, and why
        self.now = 0.0
        self.it = 0
        self.ep = 0
        self._ends: dict[int, int] = {}  # the iterations done when so many epochs were
        self._seconds = Series()  # of training, this attempt's and those before it, up to an iteration
        self._before = 0.0  # the seconds of those before
        self.ranks = Ranks()
        self._begin(NO_RUN)

    def _begin(self, run: records.Run) -> None:
        """Start afresh what belongs to one attempt at the run."""
        self.run = run
        self._began = run.get("t", 0.0)
        self.ranks = self.ranks.again(run)
        self.end: records.End | None = None
        self.refused: records.Refused | None = None  # a resume that came to nothing: the run is as it was
        self.failed_to_start = False  # the user's mistake ended the attempt before it began: there is nothing to show
        self.stage = "start"
        self.batch = self.batches = 0
        self.errors: dict[tuple[str, str], records.Error] = {}
        self._warned: set[str] = set()  # scalars that were not finite
        self.moved = self.now  # when the training was last seen to get on
        self._between = False  # an epoch is over, with or without its validation, and the next has not begun
        self.active = self.staged = 0.0  # seconds of training, validation and saving; those before the present stage
        self._frame_t = 0.0

    def apply(self, record: records.Record, rank: int = 0, plan: Plan = NO_PLAN) -> None:
        """Take the next record of a rank's event log, as `read_record` returns it; `plan` names its bindings."""
        self.news += not (self.stage == "paused" and is_still(record))
        if rank:
            self.ranks.hear(rank, record, self.journal)
            return
        if record["k"] in KINDS:  # a log of another version may know more
            self._advance(record)
            is_late = record["k"] in LATE or (record["k"] == "scalars" and record["it"] < self.it)  # of offloaded hooks
            if not is_late:
                self.it, self.ep = record["it"], record["ep"]
                self.first.it = self.it
            handle: Callable[[Any], None] = getattr(self, f"_on_{record['k']}")
            handle(record)
            if record["k"] == "frame":
                self.histories.frame(record, plan)
            self.first.now = self.now
            if record["k"] != "message":
                self._prepared.clear()
                if self.attempts and not is_late:
                    self.attempts[-1].it, self.attempts[-1].until = self.it, self.now
        if len(self.ranks.of) > 1:
            self.ranks.look(self.now, plan, self.journal)

    def apply_command(self, record: records.CommandRecord) -> None:
        """Take the next record of the command log, as `apply` does those of an event log."""
        self.requests.setdefault(record["id"], Request(record["cmd"], record["t"], record["args"]))

    def warn(self, text: str) -> None:
        """Warn of a file of the run that cannot be read."""
        self.journal.add(self.now, "warn", "monitor", text, own=True)

    def _advance(self, record: records.Record) -> None:
        """Go on to the time of a record; where the clock was set back, so far back, as if no time had passed.

        Frames tell that: one thread writes them in turn, while an image, say, may be written long after it was logged.
        """
        t = record["t"]
        if record["k"] == "frame" and t < self.now - SET_BACK:
            self._began += t - self.now
            self.now = t
        self.now = max(self.now, t)

    @property
    def first(self) -> Rank:
        """Rank 0, whose log this is."""
        return self.ranks.of[0]

    @property
    def iterating(self) -> int:
        """The ns of this attempt that were spent in training iterations."""
        return self.first.attempt.sums["ns"]

    @property
    def monitored(self) -> dict[str, Mode]:
        """The metrics that hooks monitor, in the pipeline's order, and whether less or more is better."""
        return self.run.get("modes", {})

    @property
    def scalar_names(self) -> list[str]:
        """The scalars in the order in which they are shown: monitored ones, the loss, the others."""
        order = {name: place for place, name in enumerate(self.monitored)}
        return sorted(self.scalars, key=lambda name: (order.get(name, len(order)), name != "loss", name))

    @property
    def synthetic(self) -> list[str]:
        """The splits whose data are made up."""
        return [split for split, data in self.run.get("data", {}).items() if data["synthetic"]]

    @property
    def limited(self) -> list[str]:
        """The splits of which only a part is used, and which part."""
        data = self.run.get("data", {})
        whole = {split: count for split, count in self.run.get("limited", {}).items() if split in data}
        return [f"{split} {data[split]['batches']} of {count} batches" for split, count in whole.items()]

    @property
    def not_finite(self) -> str:
        """The first number that is not finite now, such as "loss NaN"; empty where all are."""
        wrong = (name for name in self.scalar_names if not math.isfinite(self.scalars[name].last))
        return next((f"{name} {number(self.scalars[name].last)}" for name in wrong), "")

    @property
    def outcome(self) -> records.Status | Literal["refused", ""]:
        """How the last attempt has ended, if it has; "refused" for a user's mistake before the first iteration."""
        if self.end is None:
            return ""
        first = self.attempts[0].begin if self.attempts else 0  # a fork begins with the iteration of its parent
        return "refused" if self.end["exit"] == 2 and self.it <= first else self.end["status"]

    @property
    def total_iters(self) -> int:
        """How many iterations the run is to have; 0 when that is not known."""
        run = self.run
        return int(run.get("max_iters") or run.get("max_epochs", 0) * run.get("iters_per_epoch", 0))

    @property
    def epoch(self) -> int:
        """The epoch that is worked on, counted from 1: its validation is part of it. After the end, the last."""
        if not self.run or self.end is not None or self._between:
            return self.epoch_of(self.it, self.ep)
        return min(self.ep + 1, self.run.get("max_epochs") or self.ep + 1)

    def epoch_of(self, it: int, ep: int) -> int:
        """Return the epoch, counted from 1, in which iteration `it` lies, when `ep` epochs were over then."""
        if not self.run:  # the length of an epoch is unknown
            return ep
        return ep + (it > self._ends.get(ep, ep * self.run.get("iters_per_epoch", 0)))

    def progress(self, unit: Literal["it", "epoch", "time"]) -> Progress:
        """Return how far the run was in epochs, or in seconds of training; of a resumed run on the path it kept."""
        if unit == "it":
            return Progress()
        if unit == "time":
            return Progress(self._seconds.its, self._seconds.highs)
        ends = dict(sorted({0: 0, **self._ends}.items()))
        last, per_epoch = max(ends), self.run.get("iters_per_epoch", 0)
        ends |= {last + 1: max(ends[last] + per_epoch, self.it)} if per_epoch else {}
        return Progress([*ends.values()], [*ends])

    @property
    def elapsed(self) -> float:
        """The seconds of this attempt, from its first record to its last, however the clock was set."""
        if not self.run:
            return self.end["seconds"] if self.end else 0.0
        return self.now - self._began

    @property
    def pending(self) -> list[Request]:
        """The requests to this attempt that are not answered yet."""
        if self.end is not None:
            return []
        began = self.run.get("t", 0.0)
        return [request for request in self.requests.values() if request.answer is None and request.at >= began]

    @property
    def was_asked_to_stop(self) -> bool:
        """Whether somebody has asked this attempt to stop, and the run has not refused that."""
        began = self.run.get("t", 0.0)
        for request in self.requests.values():
            is_refused = request.answer is not None and not request.answer["ok"]
            if request.cmd == "stop" and request.at >= began and not is_refused:
                return True
        return False

    def _on_run(self, record: records.Run) -> None:
        again, origin = bool(self.run), record["resumed_from"] or record["forked_from"] or ""
        self._begin(record)
        self.attempts.append(Attempt(record["t"], self.now, self.it, self.it, tuple(self._prepared), origin))
        if record["version"] > VERSION:
            text = f"the log is in format {record['version']}, and this version of hookflow reads format {VERSION}"
            self._warn(record, "version", "monitor", f"{text}: what is new in it is not shown")
        self.moved = record["t"]
        for known in self.scalars.values():
            known.forget_after(self.it)
        self.gallery.forget_after(self.it)
        self.metrics.forget_after(self.it)
        self.histories.again(self.it)
        self.disabled = {hook: it for hook, it in self.disabled.items() if it <= self.it}
        self.throttled = {}  # what the checkpoint has follows
        self.changes = [change for change in self.changes if change["it"] <= self.it]
        self._ends = {ep: it for ep, it in self._ends.items() if it <= self.it}
        self._before = self.progress("time").at(self.it)
        self._seconds.forget_after(self.it)
        verb = "forked" if record["forked_from"] else "resumed" if again or origin else "started"
        text = f"{verb} on {record['device']}"
        self._note(record, "info", "run", text + (f" from {origin} at iteration {self.it}" if origin else ""))
        if self.synthetic:
            splits = ", ".join(self.synthetic)
            self._warn(record, "synthetic", "data", f"SYNTHETIC data ({splits}): scores say nothing of the real set")

    def _on_frame(self, record: records.Frame) -> None:
        self.frames += 1
        place = (record["stage"], record["bi"])
        if place != (self.stage, self.batch) or record["samples"] or record["hooks"] or self.stage == "paused":
            self.moved = record["t"]
        if record["stage"] == "train" and (record["bi"] or self.stage != "train"):
            self._between = False
        elif record["stage"] == "val":
            self._between = 0 < self.ep == self.epoch_of(self.it, self.ep)
        t = record.get("elapsed", record["t"])
        if self._frame_t and record["stage"] not in IDLE:
            self.active += max(t - self._frame_t, 0.0)
        self._frame_t = t
        if record["stage"] != self.stage:
            self.staged = self.active
        if "elapsed" in record:
            self._began = self.now - record["elapsed"]
        self.stage, self.batch, self.batches = record["stage"], record["bi"], record["bn"]
        self.first.frame(record)
        if record["iters"][0]:
            self._seconds.add(self.it, self._before + self.elapsed)

    def _on_scalars(self, record: records.Scalars) -> None:
        for name, its, values in series(record):
            if name not in self.scalars:
                self.scalars[name] = Series()
            self.scalars[name].extend(its, values)
            if not math.isfinite(sum(values)):
                for it, value in zip(its, values, strict=True):
                    self._check_finite(record, name, value, it)

    def _on_metrics(self, record: records.Metrics) -> None:
        self.moved = record["t"]
        texts = {}
        for name, value in record["v"].items():
            key = name if record["split"] == "val" else f"{record['split']} {name}"
            new = Best(float(value), record["it"], self.epoch_of(record["it"], record["ep"]))
            best = self.metrics.add(key, new, self.monitored.get(name) or mode_by_name(name))
            self._check_finite(record, key, new.value, new.it)
            texts[name] = f"{name} {number(new.value)}{' ★' if best else ''}"
        values = "  ".join(texts[name] for name in in_order(texts, self.monitored))
        self._note(record, "metrics", record["split"], f"{values}  in {duration(record['seconds'] * 1e9)}")

    def _on_epoch(self, record: records.Epoch) -> None:
        self.moved = record["t"]
        self._between = True
        self._ends[record["ep"]] = record["it"]
        loss = f"  loss {number(self.scalars['loss'].last)}" if "loss" in self.scalars else ""
        self._note(record, "info", "epoch", f"{record['ep']} done in {duration(record['seconds'] * 1e9)}{loss}")

    def _on_checkpoint(self, record: records.Checkpoint) -> None:
        self.moved = record["t"]
        self.checkpoints = [*self.checkpoints[-999:], record]
        kept_as = f" ({', '.join(record['names'])})" if record["names"] else ""
        took = duration(record["ms"] * 1e6)
        text = f"{record['path'].rsplit('/', 1)[-1]}{kept_as}  {size(record['bytes'])} in {took}"
        self._note(record, "checkpoint", "checkpoint", text, record["path"])

    def _on_ack(self, record: records.Acknowledged) -> None:
        request = self.requests.setdefault(record["id"], Request(record["cmd"], record["sent"], record["args"]))
        request.answer = record
        outcome = f"done at iteration {record['it']}" if record["ok"] else "refused"
        note = f": {record['note']}" if record["note"] else ""
        text = f"{request.text} {outcome} ({record['t'] - record['sent']:.1f} s){note}"
        self._note(record, "command", "command", text)
        match (record["cmd"], *record["args"]) if record["ok"] else ():
            case ("on", hook):
                self.disabled.pop(hook, None)
            case ("off", hook):
                self.disabled[hook] = record["it"]
            case ("rewind", *_) if self.attempts:
                self.attempts[-1].ended = record["note"]
        if record["ok"] and record["cmd"] in CHANGES:
            self.changes.append(record)

    def setting(self, hook: str, argument: str) -> records.Acknowledged | None:
        """Return the command that has set an argument last, if any has."""
        key = f"{hook}.{argument}="
        of_it = (each for each in reversed(self.changes) if each["args"] and each["args"][0].startswith(key))
        return next(of_it, None)

    def _on_throttle(self, record: records.Throttle) -> None:
        before = self.throttled.pop(record["hook"], None)
        if record["every"] > 1:
            self.throttled[record["hook"]] = record
        kind: Kind = "warn" if record["every"] > (before["every"] if before else 1) else "info"
        self._note(record, kind, record["hook"], f"{frequency(record['every'])}: {record['why']}")

    def _on_trace(self, record: records.Trace) -> None:
        self.traces = [*self.traces[-99:], record]
        last, path = record["first"] + record["iters"] - 1, record["path"]
        self._note(record, "command", "trace", f"iterations {record['first']} to {last}: {path}", path)

    def _on_message(self, record: records.Message) -> None:
        self.ranks.hear_first(record)
        self._prepared.append(self._note(record, record["level"], record["source"], record["text"]))

    def _on_logged(self, record: records.Media) -> None:
        shown = self.gallery.add(record)
        self.journal.add_shown(record["t"], record["k"], record["hook"], brief(record), record["it"], shown.number)

    _on_image = _on_text = _on_histogram = _on_logged

    def _on_error(self, record: records.Error) -> None:
        place = f"{record['point']}, " if record["point"] else ""
        text = f"{place}{BECAME[record['action']]}: {record['type']}: {one_line(record['text'])}"
        self.ranks.hear_first(record)
        ends_run = record["action"] == "raise"
        self._note(record, "error", record["hook"] or "hookflow", text, record["traceback"], ends_run=ends_run)
        self.errors[record["hook"], record["point"]] = record
        if record["action"] == "raise":
            self.first.fatal = record
        if record["action"] == "disable":
            self.disabled[record["hook"]] = self.it + 1  # no checkpoint of this iteration has it

    def _on_end(self, record: records.End) -> None:
        begun = bool(self.run) and self.end is None
        began = record["t"] - record["seconds"]
        if not begun and (not self.attempts or began > self.attempts[-1].until):  # else the launcher repeats the end
            self.attempts.append(Attempt(began, self.now, self.it, self.it, tuple(self._prepared)))
        self.end = self.first.end = record
        code = f" with exit code {record['exit']}" if record["exit"] else ""
        why = " ".join(record["reason"].split())
        self.attempts[-1].ended = f"{self.outcome}{code}{f': {why}' * bool(why)}"
        if record["seconds"]:  # no attempt is longer than its process, though the clock was set since the last frame
            self._began = max(self._began, self.now - record["seconds"])
        self.ranks.hear_first(record)
        self.failed_to_start = record["exit"] == 2 and not begun
        self.stage = "end"
        reason = f": {one_line(record['reason'])}" if record["reason"] else ""
        text = f"{self.outcome} after {span(self.elapsed)}, {many(self.it)} {plural(self.it, 'iteration')}{reason}"
        new = record["status"] == "failed" and self.ranks.first_failure is None  # else the error is an entry already
        detail = record["reason"] if "\n" in record["reason"] else ""
        self._note(record, "error" if new else "info", "run", text, detail, ends_run=new)

    def _on_refused(self, record: records.Refused) -> None:
        self.refused = record
        self.failed_to_start = record["exit"] == 2
        ended = f"not resumed, exit code {record['exit']}: {' '.join(record['reason'].split())}"
        self.attempts.append(Attempt(record["t"], record["t"], self.it, self.it, tuple(self._prepared), ended=ended))
        detail = record.get("traceback") or record["reason"]
        self._note(record, "error", "run", f"not resumed: {one_line(record['reason'])}", detail, ends_run=True)

    def _check_finite(self, record: records.Record, name: str, value: float, it: int) -> None:
        if not math.isfinite(value):
            self._warn(record, name, name, f"{name} is {number(value)} at iteration {it}")

    def _warn(self, record: records.Record, about: str, source: str, text: str) -> None:
        """Add a warning to the journal, the first time in this attempt that it is about this."""
        if about not in self._warned:
            self._warned.add(about)
            self.journal.add(record["t"], "warn", source, text, own=True, it=record["it"])

    def _note(
        self, record: records.Record, kind: Kind, source: str, text: str, detail: str = "", *, ends_run: bool = False
    ) -> Entry:
        return self.journal.add(record["t"], kind, source, text, detail, it=record["it"], ends_run=ends_run)
