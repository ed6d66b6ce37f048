"""The recorder: a thread that writes everything that a run reports to its files.

Imports no torch: the recorder is there before torch is.
"""

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from hookflow.errors import DiagnosisError
from hookflow.events.log import LogAppender, TailReader, mask_record
from hookflow.events.packing import Row, pack
from hookflow.events.reading import read_command
from hookflow.events.records import (
    MAX_SCALAR_ROWS,
    RUNNER_SOURCE,
    CommandRecord,
    Frame,
    Level,
    Message,
    Record,
    Status,
    make_stamped_record,
    shorten_text,
)
from hookflow.events.rundir import RunDir, of_rank
from hookflow.graph.plan import OnError
from hookflow.hooks.progress import HookProgress
from hookflow.runner.distributed.failures import describe_timeout, is_peer_lost, is_timeout
from hookflow.runner.distributed.rendezvous import SINGLE_RANK, RankLayout
from hookflow.runner.logging.budgets import BudgetController
from hookflow.runner.logging.capture import TraceCapture
from hookflow.runner.logging.timing import TimingAggregator
from hookflow.runner.process.state import RunState
from hookflow.text import masked, print_error
from hookflow.user_code import (
    describe_causes,
    find_innermost_line,
    has_user_frame,
    mark_printed,
    read_explanation,
)

if TYPE_CHECKING:
    import torch

POLL_PERIOD_SECONDS = 0.25
"""Seconds between looks at the command log; what happens is recorded as soon."""

QUICKEST, SLOWEST = 0.5, 2.0
"""Seconds between frames: at the start of a run, and of one that is older than an hour or so."""

HOOKS, SOONER = 1.0, 0.1
"""Seconds between frames with the firings of hooks.

In the first ten seconds of an attempt it is this share of its age.
"""

GRACE_SECONDS = 10.0
"""Seconds that the end of a run waits for a disk or a device that does not answer."""

SANITY_CHECK = "the sanity check over the validation"
"""The name in a note on an exception."""


class EventRecorder:
    """Appends frames and events to the event log, and passes on the commands of the command log.

    A log that cannot be written harms no training: records are lost meanwhile, and the log says so
    once it can. `prints_failure` says whether the traceback that ends the run is printed. While it
    is `held`, nothing is written: a resume is recorded once its checkpoint has been read.
    """

    def __init__(
        self,
        run_dir: RunDir,
        on_command: Callable[[CommandRecord], None],
        ranks: RankLayout = SINGLE_RANK,
        *,
        prints_failure: bool = True,
        held: bool = False,
    ) -> None:
        self.held = held
        self.reported: BaseException | None = None
        """The failure reported to `failure` that ends the run."""
        self.why = ""
        """Its message."""
        self.ends_as: Status = "finished"
        """The status with which the attempt ends, which its writers are given."""
        self.traceback = ""
        self.listener: Callable[[Sequence[Record]], None] | None = None
        """The listener receives the records of each flush, in the flushing thread.

        It must neither wait nor raise.
        """
        self._run_dir = run_dir
        self._log = LogAppender(run_dir.find_events_path(ranks.rank))
        self.log_found = self._log.size
        """The bytes of the log that earlier attempts have left."""
        self._ranks = ranks
        self._prints_failure = prints_failure
        self._commands = TailReader[CommandRecord](run_dir.commands, read_command)
        self._commands.read_all()  # what was asked of an earlier attempt is not asked of this one
        self._on_command = on_command
        self._queue: deque[Record] = deque()
        self._scalars: deque[tuple[int, int, float, str, float | torch.Tensor, Any]] = deque()
        self._unread: set[str] = set()
        self._progress: RunState | None = None
        self._timing: TimingAggregator | None = None
        self._captures: list[TraceCapture] = []
        self._works: list[HookProgress] = []
        """The current work of hooks that is shown as a bar; hooks add to it and take away."""
        self.budgets: BudgetController | None = None
        """The budgets of hooks; None where the pipeline has none."""
        self._samples = 0
        self._hooks_due = 0.0
        self._cost = 0
        self._lost = 0
        self._why = ""
        self._beginning: Record | None = None
        self._began = self._run_began = time.monotonic()
        self._clock_offset = time.time() - time.monotonic()
        self._closing = threading.Event()
        self._waits_for_device = False
        self._one_at_a_time = threading.Lock()
        """Held by a flush to its end, so that all it has taken is in the log when the next begins.

        `put`, `scalar` and `say` never take it: the training goes on while a flush waits for the
        device.
        """
        self._thread = threading.Thread(
            target=self._run_recorder, name="hookflow-recorder", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def discard(self) -> None:
        """Forget what is held: the resume is refused."""
        with self._one_at_a_time:
            self._queue.clear()
            self._scalars.clear()
            self._timing = None
            self.held = False

    def watch(self, timing: TimingAggregator, progress: RunState) -> None:
        """Write frames of these from now on.

        Records are stamped with the iteration and the epoch of `progress`.
        """
        self._progress = progress
        self._timing = timing

    def detach_attempt(self) -> None:
        """Write what is left of an attempt that is over: another one begins in this process."""
        self.flush()
        self._progress = self._timing = None
        self._captures.clear()

    def trace(self, capture: TraceCapture) -> None:
        """Write a trace, once it is whole; at the end of the run what there is of it."""
        assert self._timing is not None
        self._captures.append(capture)
        self._timing.keeps.append(capture.add)
        device = self._timing.device
        if device:
            device.clock.every = capture.on_device = True

    def put(self, kind: str, **fields: Any) -> None:
        """Record an event, stamped with the time and the run's place.

        The flusher thread writes it soon.
        """
        record = make_stamped_record(kind, *self._read_place(), fields)
        if record["k"] == "run":
            self._beginning, self._run_began, self._hooks_due = record, time.monotonic(), 0.0
        self._queue.append(record)

    def say(self, text: str, level: Level = "info", source: str = RUNNER_SOURCE) -> None:
        """Record a message; `source` is who says it."""
        self.put("message", level=level, source=source, text=text)

    @contextmanager
    def progress(self, work: HookProgress) -> Iterator[HookProgress]:
        """Record how far some work of a hook is, while the block lasts."""
        self._put_progress(work)
        self._works.append(work)
        try:
            yield work
        finally:
            self._works.remove(work)
            self._put_progress(work, over=True)

    def _put_progress(self, work: HookProgress, *, over: bool = False) -> None:
        self.put(
            "progress",
            hook=work.hook,
            name=work.name,
            done=work.done,
            total=work.total,
            seconds=work.seconds,
            over=over,
        )

    def scalar(
        self,
        name: str,
        value: "float | torch.Tensor",
        computed: Any = None,
        place: tuple[int, int] | None = None,
    ) -> None:
        """Record a number.

        A tensor must not change any more, since the flusher thread reads it later. That thread
        waits for the event `computed`, where the device computes the number on another stream than
        its own. `place` is the iteration and the epoch that the number is of, where those are not
        the ones done.
        """
        self._scalars.append((*(place or self._read_place()), time.time(), name, value, computed))

    def failure(
        self,
        error: BaseException,
        *,
        hook: str = "",
        point: str = "",
        action: OnError = "raise",
        it: int | None = None,
    ) -> None:
        """Record an exception with its whole traceback, and print that.

        A diagnosis is recorded by its message alone.

        `it` is the iteration in which it was raised, where that is not the one under way.

        A failure that follows from another rank is not reported: that rank reports its own.
        """
        if action == "raise":
            self.reported = error
            if self._ranks.world > 1 and is_peer_lost(error):
                return
        kind = type(error).__name__
        text = str(error)
        if any(SANITY_CHECK in str(note) for note in getattr(error, "__notes__", ())):
            text = f"in {SANITY_CHECK}: {text}"  # notes are seen in the traceback alone
        why = f"{kind}: {text}"
        if self._ranks.world > 1 and is_timeout(error):
            why = text = describe_timeout(error, self._run_dir, self._ranks, hook, point)
        if action == "raise":
            self.why = why
            if self.held:  # no error is recorded that could say more
                notes = map(str, getattr(error, "__notes__", ()))
                self.why = f'hook "{hook}" at {point}: {why}' if hook else "; ".join([why, *notes])
        diagnosed = isinstance(error, DiagnosisError) and not has_user_frame(error)
        lines = (
            traceback.format_exception_only(error)
            if diagnosed
            else traceback.format_exception(error)
        )
        summary = shorten_text(masked("".join(lines)))
        if action == "raise":
            self.traceback = summary
        at = find_innermost_line(summary)
        led = masked("\n".join([*read_explanation(error), *describe_causes(error)]))
        about = {"hook": hook, "point": point, "type": kind, "text": text, "action": action}
        done, ep = self._read_place()
        it = done + bool(self._progress and self._progress.iterating) if it is None else it
        self._queue.append(
            make_stamped_record(
                "error", it, ep, {**about, "traceback": summary, "at": at, "causes": led}
            )
        )
        # The error is printed after it was recorded, since printing may wait for a reader.
        if (self._prints_failure and not diagnosed) or action != "raise":
            # All ranks print to one place, so each names itself.
            owner = f"rank {self._ranks.rank}:\n" if self._ranks.world > 1 else ""
            print_error(f"{owner}{summary}".removesuffix("\n"))
            mark_printed(error)

    def close(self) -> None:
        """Write what is left and end the thread.

        It gives up after GRACE_SECONDS, if the disk or device does not answer.
        """
        self._closing.set()
        self._thread.join(GRACE_SECONDS)
        if self._thread.is_alive():
            silent = "disk"
            if self._waits_for_device:
                silent = "device, which computes logged numbers,"
            print_error(f"hookflow: the {silent} does not answer; the end of the event log is lost")

    def _read_place(self) -> tuple[int, int]:
        if self._progress:
            return self._progress.iter, self._progress.epoch
        if self._beginning:
            return (self._beginning["it"], self._beginning["ep"])
        return (0, 0)

    def _run_recorder(self) -> None:
        due = 0.0
        while not self._closing.wait(POLL_PERIOD_SECONDS):
            passed_over = self._commands.passed_over
            if self._ranks.first:  # it receives the commands of all
                for command in self._commands.read():
                    self._on_command(command)
            if self._commands.passed_over > passed_over:
                self.say("the command log has a line that is no command; it is passed over", "warn")
            self._check_clock()
            now = time.monotonic()
            if now >= due:
                due = now + min(max((now - self._began) / 2400, QUICKEST), SLOWEST)
                self.flush()
            elif self._queue:
                self.flush(frame=False)
        self.flush()
        self._log.close()

    def _check_clock(self) -> None:
        """Warn where the system clock was set by a second or more.

        A clock that cannot be set shows it.
        """
        before = time.monotonic()
        now = time.time()
        after = time.monotonic()
        if after - before > 0.1:  # this process has stood still in between
            return
        step = now - before - self._clock_offset
        self._clock_offset += step
        if abs(step) >= 1:
            if step < 0:
                which = f"back by {-step:.0f} s"
            else:
                which = f"forward by {step:.0f} s, or the machine slept"
            self.say(
                f"the clock was set {which}: times before and after that cannot be compared", "warn"
            )

    def flush(self, *, frame: bool = True, patience: float = -1) -> bool:
        """Append everything there is, with or without a frame; any thread may call it.

        `patience` is how many seconds to wait for another thread that flushes; without limit if
        negative. Returns False where that one has not come to its end.
        """
        if not self._one_at_a_time.acquire(timeout=patience):
            return False
        try:
            if self.held:
                return True
            began = time.perf_counter_ns()
            waiting = len(self._scalars) + len(self._queue)
            try:
                news = self._collect_news(frame)
                try:
                    self._log.append([*self._iter_preface(news), *news])
                # The listener comes after the log, so that writers have nothing that the log of a
                # killed run lacks.
                finally:
                    if self.listener is not None:
                        self.listener([mask_record(record) for record in news])
                self._lost = 0
            # A full disk or a broken device is no reason to end the training, or this thread.
            except Exception as error:
                if not self._lost:
                    print_error(f"hookflow: the event log cannot be written: {error}")
                self._lost += max(waiting - len(self._scalars) - len(self._queue), 1)
                self._why = str(error)
            self._cost += time.perf_counter_ns() - began
        finally:
            self._one_at_a_time.release()
        return True

    def _collect_news(self, framed: bool) -> list[Record]:
        """Return a record for everything since the last time, in the order in which it came."""
        if framed:
            for work in [*self._works]:
                if work.has_moved():
                    self._put_progress(work)
        frame = []
        if framed and self._timing and self._progress:
            frame = [self._frame(self._timing, self._progress)]
        # The queue is measured before the numbers are taken, so that numbers from before an event
        # are among them.
        came = len(self._queue)
        rows, unread = self._read_scalars()
        dated = [(row.t, row) for row in rows] + [
            (each["t"], each) for each in [*unread, *_take(self._queue, came)]
        ]
        return [*_pack_rows(item for _, item in sorted(dated, key=itemgetter(0))), *frame]

    def _frame(self, timing: TimingAggregator, run: RunState) -> Frame:
        # The stage is read first: the training goes on meanwhile, and no iteration is older than
        # its stage.
        stage = run.stage
        timing.update()
        for capture in [each for each in self._captures if each.is_whole or self._closing.is_set()]:
            self._captures.remove(capture)
            timing.keeps.remove(capture.add)
            capture.end_background()
            if timing.device:
                timing.device.clock.every = bool(self._captures)
            self._write_trace(capture)
        before = self._samples
        self._samples = timing.timeline.samples
        phases = timing.phases
        timing.phases = dict.fromkeys(timing.phases, 0)
        elapsed = time.monotonic() - self._run_began
        hooks = {}
        checks = {}
        if elapsed >= self._hooks_due or self._closing.is_set():
            self._hooks_due = elapsed + min(HOOKS, SOONER * elapsed)
            checks = {str(k): cell.checks for k, cell in enumerate(timing.cells) if cell.checks}
            hooks = {str(k): fired for k, cell in enumerate(timing.cells) if (fired := cell.take())}
        cost = self._cost
        self._cost = 0
        frame = Frame(
            k="frame",
            t=round(time.time(), 3),
            it=run.iter,
            ep=run.epoch,
            stage=stage,
            bi=run.batch_idx,
            bn=run.batches,
            samples=self._samples - before,
            phases=phases,
            iters=timing.iterations.take() or [0, 0, 0, 0, [0]],
            hooks=hooks,
            cost=cost,
            elapsed=round(elapsed, 3),
        )
        if checks:
            frame["checks"] = checks
        if timing.device and (device := timing.device.take()):
            frame["device"] = device
        offloaded = timing.take_offloaded()
        if offloaded:
            frame["beside"] = dict(offloaded)
        if self.budgets:
            self.budgets.take(frame)
        return frame

    def _write_trace(self, capture: TraceCapture) -> None:
        path = of_rank(self._run_dir.traces / f"it{capture.first:08d}.json", self._ranks.rank)
        try:
            iters = capture.write(path)
            if iters:
                where = str(path.relative_to(self._run_dir.path))
                last = capture.first + iters - 1
                self.put("trace", it=last, path=where, first=capture.first, iters=iters)
        except OSError as error:
            self.say(f"the trace cannot be written: {error.strerror}", "warn")

    def _iter_preface(self, news: Sequence[Record]) -> Iterator[Record]:
        """Yield warnings of what is lost.

        In a log that replaces a removed one, the attempt's first record comes as well.
        """
        if self._log.reopen_if_removed():
            if self._beginning is not None and self._beginning not in news:
                yield self._beginning
            text = "the event log was removed while the run went on: what stood in it is lost"
            yield _warning(text, time.time(), *self._read_place())
        if self._lost:
            text = (
                f"the event log could not be written ({self._why}): some {self._lost} records are"
                " lost"
            )
            yield _warning(text, time.time(), *self._read_place())

    def _read_scalars(self) -> tuple[list[Row], list[Record]]:
        """Return the newly logged numbers, a row for each iteration and epoch.

        This waits for the device. Messages name those that cannot be read, each once in a run.
        """
        used = _take(self._scalars)
        self._waits_for_device = True
        for *_, computed in used:
            if computed is not None:
                computed.synchronize()
        values = _fetch_values([value for *_, value, _ in used])
        self._waits_for_device = False
        rows: dict[tuple[int, int], Row] = {}
        unread: list[Record] = []
        for (it, ep, t, name, *_), value in zip(used, values, strict=True):
            if not isinstance(value, Exception):
                rows.setdefault((it, ep), Row(t, it, ep, {})).v[name] = value
            elif name not in self._unread:
                self._unread.add(name)
                text = shorten_text(
                    f'the logged number "{name}" cannot be read: {type(value).__name__}: {value}'
                )
                unread.append(_warning(text, t, it, ep))
        return [*rows.values()], unread


def _pack_rows(news: Iterable[Row | Record]) -> Iterator[Record]:
    """Yield the records, and one for the rows of an epoch that no record stands between."""
    for _, group in groupby(news, lambda item: item.ep if isinstance(item, Row) else None):
        items = [*group]
        rows = [item for item in items if isinstance(item, Row)]
        yield from (item for item in items if not isinstance(item, Row))
        yield from (
            pack(rows[first : first + MAX_SCALAR_ROWS])
            for first in range(0, len(rows), MAX_SCALAR_ROWS)
        )


def _warning(text: str, t: float, it: int, ep: int) -> Record:
    return Message(k="message", t=t, it=it, ep=ep, level="warn", source=RUNNER_SOURCE, text=text)


def _take(queue: deque[Any], count: int | None = None) -> list[Any]:
    return [queue.popleft() for _ in range(len(queue) if count is None else count)]


def _fetch_values(values: "list[float | torch.Tensor]") -> list[float | Exception]:
    """Return all values as numbers, with one copy off each device for all its tensors of a dtype.

    A tensor that cannot be read becomes its exception; the others of its dtype are then read one by
    one.
    """
    numbers: list[float | Exception] = [0.0] * len(values)
    alike: dict[tuple[Any, Any], list[int]] = {}
    for k, value in enumerate(values):
        if isinstance(value, float):
            numbers[k] = value
        else:
            alike.setdefault((value.device, value.dtype), []).append(k)
    for places in alike.values():
        import torch

        try:
            tensors = [values[k].reshape(()) for k in places]  # type: ignore[union-attr]
            for k, number in zip(places, torch.stack(tensors).tolist(), strict=True):
                numbers[k] = float(number)
        except Exception as error:
            if len(places) == 1:
                numbers[places[0]] = error
            else:
                for k in places:
                    (numbers[k],) = _fetch_values([values[k]])
    return numbers
