"""A capture: the stamps of some iterations, kept by the recorder's thread and written as a trace.

The training thread stamps the clock anyway; a capture costs it nothing. The trace has Chrome's
format, which Perfetto opens: an event for each iteration, phase and firing, and for what lies
between iterations. Times are in microseconds from `began` on, in seconds since 1970.

Each offloaded hook has a track of its own. An event there is a firing while it ran: `iteration` is
the one that queued it, and `queued` when. A wait of the training thread for it is an event of the
category "wait" in the thread's track.
"""

import json
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from hookflow.events.records import BACKGROUND, DEVICE, PHASES
from hookflow.events.rundir import write_whole
from hookflow.graph.plan import Plan
from hookflow.runner.logging.background import (
    BackgroundFiring,
    BackgroundSpan,
    BackgroundSpans,
    BackgroundWait,
)
from hookflow.runner.logging.timing import (
    HOOKS,
    ITERATION_SLOT,
    NOBODY,
    OUTSIDE_KINDS,
    Array,
    Stamps,
    on_host_clock,
)


class TraceCapture:
    """Keeps what is stamped from `began` on, until so many iterations are over.

    `began` is by `time.perf_counter`.

    `first` is the first iteration, counted from 1. `background` has the offloaded hooks of a run
    with any. `skipped` iterations from `began` on, the one under way included, come before it.
    """

    def __init__(
        self,
        plan: Plan,
        first: int,
        iters: int,
        began: float,
        rank: int,
        background: BackgroundSpans | None = None,
        skipped: int = 0,
    ) -> None:
        self.first = first
        self.iters = iters
        self._skipped = skipped
        self._plan = plan
        self._rank = rank
        self._began = began
        self._marks: list[Array] = []
        self._apart: list[Array] = []
        self._nested: list[Array] = []
        self._device: list[Stamps] = []
        self.on_device = False
        """Whether the device stamps the iterations, too."""
        self._background = background
        self._firings: list[BackgroundFiring] = []
        self._waits: list[BackgroundWait] = []
        if background is not None:
            background.keeps.append(self.add_background)

    def add(
        self, marks: Array, apart: Sequence[Array], nested: Array, device: Sequence[Stamps]
    ) -> None:
        """Take marks of the timeline, firings, and the stamps of iterations on the device.

        A firing has binding, begin, seconds. Firings `apart` call no others. Among those in
        `nested`, an inner firing precedes the outer one.
        """
        self._marks.append(marks[marks[:, 0] > self._began])
        self._apart += apart
        self._nested.append(nested)
        self._device += [stamps for stamps in device if stamps[0][0] >= self._began]

    def add_background(self, span: BackgroundSpan) -> None:
        """Take a firing of an offloaded hook, or a wait for one, that is over.

        It is called in several threads.
        """
        if isinstance(span, BackgroundWait):
            self._waits.append(span)
        else:
            self._firings.append(span)

    def end_background(self) -> None:
        """Take no more of them, and those that are not over as far as they are."""
        if self._background is None:
            return
        unfinished = self._background.unfinished(time.perf_counter())
        self._background.keeps.remove(self.add_background)
        kept = {(firing.binding, firing.queued) for firing in self._firings}
        for firing in unfinished:
            if (firing.binding, firing.queued) not in kept:  # one may have ended meanwhile
                self._firings.append(firing)

    @property
    def is_whole(self) -> bool:
        awaited = self._skipped + self.iters
        if self.on_device and len(self._device) < awaited:
            return False
        ended = sum(int((marks[:, 1] == ITERATION_SLOT).sum()) for marks in self._marks)
        return ended >= awaited

    def write(self, path: Path) -> int:
        """Write the trace, whole or not at all; return how many iterations it has."""
        waits = ((wait.began, wait.ended, wait.hook, "wait") for wait in self._waits)
        spans = sorted(
            chain(self._iter_phases(), self._iter_firings(), waits),
            key=lambda span: (span[0], -span[1]),
        )
        starts = np.array([begin for begin, _, name, _ in spans if name == "iteration"])
        if not len(starts):
            return 0
        zero = starts[0]
        end = max(end for _, end, name, _ in spans if name == "iteration")
        events: list[dict[str, Any]] = [
            {
                "ph": "M",
                "name": "process_name",
                "pid": self._rank,
                "tid": 0,
                "args": {"name": f"rank {self._rank}"},
            }
        ]
        inside = [span for span in spans if zero <= span[0] < end]
        for begin, until, name, place in inside:
            it = self.first + int(np.searchsorted(starts, begin, "right")) - 1
            event = {"ph": "X", "name": name, "cat": place, "pid": self._rank, "tid": 0}
            events.append(
                {**event, **_make_span_times(begin, until, zero), "args": {"iteration": it}}
            )
        if self._device:
            host, device = on_host_clock(self._device)
            track = {"pid": self._rank, "tid": DEVICE}
            events.append({"ph": "M", "name": "thread_name", **track, "args": {"name": "device"}})
            for event, (begin, until, _, place) in zip(events[1:], inside, strict=False):
                if place != "outside" and host[0] <= begin <= until <= host[-1]:
                    first, last = np.interp([begin, until], host, device).tolist()
                    events.append({**event, **track, **_make_span_times(first, last, zero)})
        events += self._background_events(zero, end)
        path.parent.mkdir(exist_ok=True)
        # The events are encoded one by one, so that the training thread gets its turns in between.
        lines = ",\n".join(map(json.dumps, events))
        began = time.time() - time.perf_counter() + zero
        write_whole(
            path, f'{{"otherData": {{"began": {began:.6f}}}, "traceEvents": [\n{lines}\n]}}\n'
        )
        return len(starts)

    def _background_events(self, zero: float, end: float) -> Iterator[dict[str, Any]]:
        """Yield the names of the tracks of offloaded hooks, and what is on them.

        These are firings and waits between `zero` and `end`.
        """
        tracks: dict[str, int] = {}
        for firing in sorted(self._firings, key=lambda each: each.began):
            if firing.queued >= end or firing.ended <= zero:
                continue
            bound = self._plan.bindings[firing.binding]
            if bound.hook not in tracks:
                tracks[bound.hook] = BACKGROUND + len(tracks)
                track = {"pid": self._rank, "tid": tracks[bound.hook]}
                name = f"{bound.hook} in background"
                yield {"ph": "M", "name": "thread_name", **track, "args": {"name": name}}
            event = {
                "ph": "X",
                "name": bound.hook,
                "cat": bound.point,
                "pid": self._rank,
                "tid": tracks[bound.hook],
            }
            queued = round((firing.queued - zero) * 1e6, 3)
            args = {"iteration": firing.it, "queued": queued}
            yield {**event, **_make_span_times(firing.began, firing.ended, zero), "args": args}

    def _iter_phases(self) -> Iterator[tuple[float, float, str, str]]:
        """Yield begin, end, name and category of each iteration and phase.

        The time between iterations is yielded, too.
        """
        before = start = self._began
        skipped = self._skipped
        left = self.iters
        if self._marks:
            for now, spent_on in np.concatenate(self._marks).tolist():
                if skipped:
                    if spent_on == ITERATION_SLOT:
                        skipped -= 1
                    before = start = now
                    continue
                if spent_on < HOOKS:
                    yield before, now, PHASES[int(spent_on)], "phase"
                elif spent_on == ITERATION_SLOT:
                    yield start, now, "iteration", "iteration"
                    left -= 1
                if spent_on > NOBODY:
                    yield before, now, OUTSIDE_KINDS[int(spent_on - NOBODY)], "outside"
                if spent_on >= ITERATION_SLOT:
                    start = now
                before = now
                if not left:
                    return

    def _iter_firings(self) -> Iterator[tuple[float, float, str, str]]:
        """Yield the same of each firing: one that has called others lasts until they are over."""
        inner: list[tuple[float, float]] = []
        for apart, rows in [(True, rows) for rows in self._apart] + [
            (False, rows) for rows in self._nested
        ]:
            for binding, begin, seconds in rows.tolist():
                while not apart and inner and inner[-1][0] >= begin:
                    seconds += inner.pop()[1]
                if not apart:
                    inner.append((begin, seconds))
                bound = self._plan.bindings[int(binding)]
                yield begin, begin + seconds, bound.hook, bound.point


def _make_span_times(begin: float, end: float, zero: float) -> dict[str, float]:
    """Return when a span begins, from `zero` on, and how long it takes, as a trace states it.

    All else is in seconds.
    """
    return {"ts": round((begin - zero) * 1e6, 3), "dur": round((end - begin) * 1e6, 3)}
