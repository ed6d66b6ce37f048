"""One of the processes that train together, as far as its own log tells."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from hookflow.events.records import PHASES, End, Error, Frame, Run
from hookflow.graph.plan import Binding, Plan
from hookflow.monitor.timing import WINDOW, Minute, Timing

MEETING: Mapping[str, tuple[str, ...]] = {"ddp": ("backward",), "fsdp": ("forward", "backward")}
"""Phases in which the ranks bring something together, and so wait for one another, by strategy."""

NO_PLAN = Plan("", (), (), ())
"""What stands for a plan that has not been written yet."""

NO_RUN = cast("Run", {})
"""What stands for a run record that has not been written yet; false, and nothing is in it."""

TRACK = 64
"""Frames back to which it is remembered how far a rank was."""


@dataclass(slots=True)
class Work:
    """Training iterations added up: how many, their ns, and of these the ns in which ranks wait for one another."""

    iters: int = 0
    ns: int = 0
    met: int = 0

    def add(self, iters: int, ns: int, met: int) -> None:
        self.iters += iters
        self.ns += ns
        self.met += met

    @property
    def whole(self) -> float:
        """Return the ns of an iteration."""
        return self.ns / self.iters if self.iters else 0.0

    @property
    def own(self) -> float:
        """Return the ns of an iteration that this rank needs by itself, whatever the others do."""
        return (self.ns - self.met) / self.iters if self.iters else 0.0


class Rank:
    """What is known of one rank since its `run` record: `work` in the last WINDOW seconds, `total` in all."""

    def __init__(self, run: Run | None = None) -> None:
        self.run: Run = run or NO_RUN
        self.end: End | None = None
        self.fatal: Error | None = None  # the error that ended it
        self.now: float = self.run.get("t", 0.0)
        self.it: int = self.run.get("it", 0)
        self.minute = Minute()
        self.bindings: dict[int, Timing] = {}
        self.work, self.total = Work(), Work()
        self._recent: deque[tuple[float, int, int, int]] = deque()
        self._track: deque[tuple[float, int]] = deque(maxlen=TRACK)
        self._meeting = MEETING.get(self.run.get("strategy", ""), MEETING["ddp"])

    @property
    def meeting(self) -> tuple[str, ...]:
        """Return the phases in which this rank waits for the others."""
        return self._meeting

    def timing(self, binding: int) -> Timing:
        """Return what is known of a binding's firings; of one that has not fired yet, an empty timing."""
        return self.bindings.get(binding) or Timing()

    def frame(self, record: Frame) -> None:
        """Take a frame, or the head of one (see `logs`): that adds to `total` alone."""
        t, (iters, ns, *_) = record["t"], record["iters"]
        self.now, self.it = max(self.now, t), record["it"]
        self._track.append((t, self.it))
        met = sum(record["phases"].get(phase, 0) for phase in self._meeting)
        self.total.add(iters, ns, met)
        if "hooks" not in record:
            return
        self.work.add(iters, ns, met)
        self._recent.append((t, iters, ns, met))
        while self._recent[0][0] <= t - WINDOW:
            _, iters, ns, met = self._recent.popleft()
            self.work.add(-iters, -ns, -met)
        self.minute.add(t, record["phases"], record["iters"], record["samples"], record["cost"])
        for binding, entry in record["hooks"].items():
            self.bindings.setdefault(int(binding), Timing()).add(t, entry)

    def reached(self, moment: float) -> tuple[int, float, int] | None:
        """Return the iteration that the rank had reached by a moment for sure, about, and at most.

        None when the moment is not within what is remembered.
        """
        before: tuple[float, int] | None = None
        for t, it in self._track:
            if t >= moment:
                if before is None:
                    return (it, it, it) if t == moment else None
                share = (moment - before[0]) / (t - before[0])
                return before[1], before[1] + share * (it - before[1]), it
            before = (t, it)
        return None

    @property
    def told(self) -> float:
        """Return when its newest frame was written; 0 when there is none."""
        return self._track[-1][0] if self._track else 0.0


class Timed(Protocol):
    """Whatever has timed iterations: a rank, or a whole run."""

    now: float

    @property
    def minute(self) -> Minute: ...

    def timing(self, binding: int) -> Timing: ...


def spent(timed: Timed, plan: Plan, binding: Binding) -> int:
    """Return the ns that firings of a binding took inside iterations of the last minute; 0 where it fires elsewhere."""
    return timed.timing(binding.id).spent(timed.now) if plan.points.in_iteration(binding.point) else 0


def booked(timed: Timed, plan: Plan) -> dict[str, int]:
    """Return the ns of the last minute's iterations by phase; "other" is what nothing else was booked to."""
    sums = timed.minute.sums(timed.now)
    books = {phase: sums[phase] for phase in PHASES}
    # logs of older versions sum up all firings, wherever: at the start of training, around an epoch
    books["hooks"] = sum(spent(timed, plan, binding) for binding in plan.bindings)
    books["other"] = 0
    books["other"] = max(sums["ns"] - sum(books.values()), 0)  # of an iteration under way some are booked already
    return books
