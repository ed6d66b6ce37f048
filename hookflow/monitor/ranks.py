"""The ranks of a run: missing ranks, stragglers, and the rank that the others wait for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, cast

from hookflow.events.records import PHASES, End, Error, Frame, LogMessage, Record, Run
from hookflow.graph.plan import Binding, Plan
from hookflow.monitor.durations import (
    WINDOW_SECONDS,
    CallTiming,
    DeviceWindow,
    IterationWindow,
    OffloadStats,
    PhaseTotals,
)
from hookflow.monitor.journal import ERROR_ACTION_LABELS, Journal, Kind
from hookflow.numbers import format_rough, one_line

SYNC_PHASES: Mapping[str, tuple[str, ...]] = {"ddp": ("backward",), "fsdp": ("forward", "backward")}
"""Phases in which the ranks bring something together, and so wait for one another, by strategy."""

NO_PLAN = Plan("", (), (), ())
"""The plan before it is written."""

NO_RUN = cast("Run", {})
"""The run record before it is written; false, and nothing is in it."""


class RankState:
    """The state of one rank since its `run` record; in `sync_phases` it waits for the others."""

    def __init__(self, run: Run | None = None) -> None:
        self.run: Run = run or NO_RUN
        self.end: End | None = None
        self.fatal: Error | None = None  # the error that ended it
        self.now: float = self.run.get("t", 0.0)
        self.it: int = self.run.get("it", 0)
        self.trained = self.now  # the newest frame of the training
        self.minute = IterationWindow()
        self.attempt = PhaseTotals()
        self.bindings: dict[int, CallTiming] = {}
        self.beside: dict[int, OffloadStats] = {}
        self.device = DeviceWindow()
        self.sync_phases = SYNC_PHASES.get(self.run.get("strategy", ""), SYNC_PHASES["ddp"])

    @property
    def iters(self) -> int:
        """The training iterations of the last WINDOW_SECONDS."""
        return self.minute.sums["iters"]

    @property
    def whole(self) -> float:
        """The ns of one of them."""
        if self.iters == 0:
            return 0.0
        return self.minute.sums["ns"] / self.iters

    @property
    def own(self) -> float:
        """The ns of one of them that this rank needs by itself, whatever the others do."""
        if self.iters == 0:
            return 0.0
        synced = sum(self.minute.sums[phase] for phase in self.sync_phases)
        return (self.minute.sums["ns"] - synced) / self.iters

    def timing(self, binding: int) -> CallTiming:
        """Return the timing of a binding; of one that has not fired yet, an empty one."""
        return self.bindings.get(binding) or CallTiming()

    def frame(self, record: Frame) -> None:
        """Take a frame of this rank."""
        t = record["t"]
        self.now = max(self.now, t)
        self.it = record["it"]
        # A frame without training is not added, so that the last minute of training stays.
        if record["iters"][0] or any(record["phases"].values()):
            self.minute.add(t, record["phases"], record["iters"], record["samples"], record["cost"])
            count, ns, *_ = record["iters"]
            self.attempt.add_sums({**record["phases"], "iters": count, "ns": ns})
            self.trained = t
        for key, entry in record["hooks"].items():
            binding = int(key)
            if binding not in self.bindings:
                self.bindings[binding] = CallTiming()
            self.bindings[binding].add(t, record["it"], entry, record.get("checks", {}).get(key, 0))
        if "device" in record:
            self.device.add(t, record["device"])
        for key, totals in record.get("beside", {}).items():
            self.beside.setdefault(int(key), OffloadStats()).add(t, totals)


def time_in_iterations(rank: RankState, plan: Plan, binding: Binding) -> int:
    """Return the ns that firings of a binding took inside iterations of the last minute.

    It is 0 where it fires elsewhere.
    """
    if not plan.points.in_iteration(binding.point):
        return 0
    return rank.timing(binding.id).time_spent(rank.trained - WINDOW_SECONDS)


MIN_WAIT_SHARE = 0.05
"""The least waiting for a straggler that is reported, as a share of the iteration."""

MIN_WAIT_NS = 1e6
"""The least waiting that is reported, in ns."""

KEPT_WAIT_SHARE = 0.6
"""The share of these limits above which a straggler that is reported stays one."""

MIN_ITERATIONS = 3
"""Iterations of the last minute that there must be of each rank to judge."""


@dataclass(frozen=True, slots=True)
class StragglerInfo:
    """The others wait `cost` ns for this rank in each iteration of `whole` ns.

    `reason` is where it takes longer.
    """

    rank: int
    cost: float
    whole: float
    reason: str

    @property
    def sentence(self) -> str:
        times = (
            f"{format_rough(self.cost / 1e6)} ms of each {format_rough(self.whole / 1e6)} ms"
            " iteration"
        )
        return f"rank {self.rank} keeps the others waiting: {times}, in {self.reason}"

    @property
    def phrase(self) -> str:
        """The sentence for narrow places."""
        return (
            f"rank {self.rank}: +{format_rough(self.cost / 1e6)} of"
            f" {format_rough(self.whole / 1e6)} ms, {self.reason}"
        )


def can_compare(ranks: Mapping[int, RankState]) -> bool:
    """Say whether all have iterated enough lately: not while they validate, pause or begin."""
    return len(ranks) > 1 and all(rank.iters >= MIN_ITERATIONS for rank in ranks.values())


def find_reason(ranks: Mapping[int, RankState], plan: Plan, slowest: int) -> str:
    """Return the phase that takes this rank so much longer than the others, or the hook."""
    phase_times = {number: _time_by_phase(rank) for number, rank in ranks.items()}
    own_phases = [phase for phase in PHASES if phase not in ranks[slowest].sync_phases]
    phase = _longest_beyond_others(phase_times, own_phases, slowest)
    if phase != "hooks" or not plan.bindings:
        return phase
    hook_times = {number: _time_by_hook(rank, plan) for number, rank in ranks.items()}
    return f"hook {_longest_beyond_others(hook_times, hook_times[slowest], slowest)}"


def _time_by_phase(rank: RankState) -> dict[str, float]:
    """Return the ns of each phase in an iteration of the last minute."""
    return {phase: ns / rank.iters for phase, ns in rank.minute.by_phase.items()}


def _time_by_hook(rank: RankState, plan: Plan) -> dict[str, float]:
    """Return the ns of each hook in an iteration of the last minute."""
    times = dict.fromkeys((binding.hook for binding in plan.bindings), 0.0)
    for binding in plan.bindings:
        times[binding.hook] += time_in_iterations(rank, plan, binding) / rank.iters
    return times


def _longest_beyond_others(
    times: Mapping[int, Mapping[str, float]], names: Iterable[str], slowest: int
) -> str:
    """Return the name of what takes the slowest rank most beyond the median of the others."""

    def compute_excess(name: str) -> float:
        others = [of_rank[name] for number, of_rank in times.items() if number != slowest]
        return times[slowest][name] - median(others)

    return max(names, key=compute_excess, default="")


HEARTBEAT_TIMEOUT = 10.0
"""Seconds until a silent rank is named. The longest time between frames is two seconds."""

DEDUP_WINDOW = 3.0
"""Seconds until a message is not waited for on other ranks."""

MIN_DURATION = 5.0
"""Seconds until a straggler counts."""

REMOTE_DELAY = 90.0
"""Seconds by which what another machine has written may be seen late.

A network file system keeps what it knows of a file for up to 60 s, and the clocks of two machines
differ.
"""

MAX_REMEMBERED = 1000
"""Messages that are remembered, so that none is shown twice."""

MessageKey = tuple[str, ...]
"""The key of equal records."""


class _WaitingMessage(NamedTuple):
    """A message that is shown once it is clear which ranks have it, and that rank 0 has not."""

    t: float
    kind: Kind
    text: str
    detail: str
    ranks: list[int]


class RankGroup:
    """The ranks that have been heard of, by number; 0 is always there.

    Nothing of an earlier attempt is kept.
    """

    def __init__(
        self, first: RankState | None = None, others: Mapping[int, RankState] | None = None
    ) -> None:
        self.of: dict[int, RankState] = {0: first or RankState(), **(others or {})}
        self.straggler: StragglerInfo | None = None
        self._unchanged_since = 0.0
        self._judged_at = 0.0
        self._known: dict[MessageKey, None] = {}
        self._waiting: dict[MessageKey, _WaitingMessage] = {}

    def begin_attempt(self, run: Run) -> "RankGroup":
        """Return the ranks of the attempt that rank 0 begins with `run`.

        Some of the others may have begun before.
        """
        first = self.of[0]
        over = 0.0  # when the attempt before was over
        if first.end:
            over = first.end["t"]
        elif first.run:
            over = first.now
        others = {
            number: rank
            for number, rank in self.of.items()
            if number > 0 and rank.run.get("t", 0.0) > over
        }
        return RankGroup(RankState(run), others)

    @property
    def world(self) -> int:
        """How many ranks there are, or as many as have been heard of."""
        return int(self.of[0].run.get("world") or max(self.of) + 1)

    @property
    def newest(self) -> float:
        """When any rank was last heard of."""
        return max(rank.now for rank in self.of.values())

    # Records

    def apply(self, number: int, record: Record, journal: Journal) -> None:
        """Take a record of another rank than 0.

        Kinds that are shown of rank 0 alone are left out.
        """
        if self.of[0].run and number >= self.world:
            return  # a log that an attempt with more ranks has left
        if record["k"] == "run":
            self.of[number] = RankState(record)
        rank = self.of.setdefault(number, RankState())
        match record["k"]:
            case "frame":
                rank.frame(record)
            case "message":
                self._wait(
                    number, record, record["level"], f"{record['source']}: {record['text']}", ""
                )
            case "error":
                self._apply_error(number, record, journal)
            case "end":
                rank.end = record
                # A failure without a recorded error is a mistake of the user's, perhaps on one
                # machine alone.
                if record["status"] == "failed" and rank.fatal is None:
                    self._wait(
                        number,
                        record,
                        "error",
                        one_line(record["reason"]) or "failed",
                        record["reason"],
                    )
        rank.now = max(rank.now, record["t"])
        rank.it = record.get("it", rank.it)
        self._release(journal)

    def _apply_error(self, number: int, record: Error, journal: Journal) -> None:
        ends_run = record["action"] == "raise"
        if ends_run:
            self.of[number].fatal = record
        key = _key_of(record)
        if key in self._known:
            return
        self._store_message_key(key)
        place = ""
        if record["hook"]:
            place = f"{record['hook']} @ {record['point']}, "
        consequence = ERROR_ACTION_LABELS[record["action"]]
        text = f"{place}{consequence}: {record['type']}: {one_line(record['text'])}"
        rank = format_ranks([number])
        journal.add(
            record["t"], "error", rank, text, record["traceback"], own=True, ends_run=ends_run
        )

    def mark_seen(self, record: LogMessage) -> None:
        """Note a message, an error or the end of rank 0.

        The same of the other ranks need not be shown again.
        """
        key = _key_of(record)
        self._waiting.pop(key, None)
        self._store_message_key(key)

    # Notes on the ranks

    def check_balance(self, t: float, plan: Plan, journal: Journal) -> None:
        """Judge, once a second of the run, whether the ranks are balanced.

        The journal records each change.
        """
        self._release(journal)
        if t < self._judged_at + 1 or not can_compare(self.of):
            return
        self._unchanged_since = self._unchanged_since or t
        self._judged_at = t
        before = self.straggler
        slowest = max(self.of, key=lambda number: self.of[number].own)
        cost = self._compute_wait_for(slowest)
        is_same = before is not None and before.rank == slowest
        limit = max(MIN_WAIT_SHARE * self.of[slowest].whole, MIN_WAIT_NS)
        if is_same:
            limit *= KEPT_WAIT_SHARE
        is_late = cost > limit
        if is_late:
            is_unchanged = is_same
        else:
            is_unchanged = before is None
        if not is_unchanged and t < self._unchanged_since + MIN_DURATION:
            return
        self._unchanged_since = t
        if is_late:
            if before is not None and is_same:
                reason = before.reason
            else:
                reason = find_reason(self.of, plan, slowest)
            self.straggler = StragglerInfo(slowest, cost, self.of[slowest].whole, reason)
            if not is_same:
                journal.add(t, "warn", "ranks", self.straggler.sentence, own=True)
        elif before is not None:
            self.straggler = None
            journal.add(t, "info", "ranks", "the ranks are balanced again", own=True)

    def _compute_wait_for(self, slowest: int) -> float:
        """Return the ns of an iteration that the others wait for a rank."""
        others = [rank.own for number, rank in self.of.items() if number != slowest]
        return self.of[slowest].own - median(others)

    @property
    def first_failure(self) -> tuple[int, Error] | None:
        """The rank whose error came first, and the error: those of the others follow from it."""
        failures = [
            (rank.fatal["t"], number, rank.fatal) for number, rank in self.of.items() if rank.fatal
        ]
        if not failures:
            return None
        _, number, error = min(failures, key=lambda failure: failure[:2])
        return number, error

    @property
    def silent(self) -> dict[int, float]:
        """The ranks that have been silent for long while others go on, and for how many seconds."""
        first = self.of[0]
        if first.end or not first.run:
            return {}
        hosts = {rank.run.get("host") for rank in self.of.values() if rank.run}
        timeout = HEARTBEAT_TIMEOUT
        if len(hosts) > 1:
            timeout += REMOTE_DELAY
        newest = self.newest
        silent = {}
        for number in self._unended:
            if number in self.of:
                heard = self.of[number].now
            else:
                heard = first.run["t"]
            if newest - heard > timeout:
                silent[number] = newest - heard
        return silent

    @property
    def gone(self) -> list[int]:
        """The ranks that left no end record, once rank 0 has."""
        if self.of[0].end is None:
            return []
        return self._unended

    @property
    def _unended(self) -> list[int]:
        return [
            number
            for number in range(self.world)
            if number not in self.of or not self.of[number].end
        ]

    # Messages of several ranks

    def _wait(self, number: int, record: LogMessage, kind: Kind, text: str, detail: str) -> None:
        key = _key_of(record)
        if key in self._waiting:
            self._waiting[key].ranks.append(number)
        elif key not in self._known:
            self._waiting[key] = _WaitingMessage(record["t"], kind, text, detail, [number])

    def _store_message_key(self, key: MessageKey) -> None:
        self._known[key] = None
        if len(self._known) > MAX_REMEMBERED:
            oldest = next(iter(self._known))
            del self._known[oldest]

    def _release(self, journal: Journal) -> None:
        """Show what has waited long enough for rank 0, which has not written the same."""
        if not self._waiting:
            return
        due = self.newest
        if self.of[0].end is None:
            due -= DEDUP_WINDOW
        for key, message in list(self._waiting.items()):
            if message.t <= due:
                del self._waiting[key]
                self._store_message_key(key)
                ranks = format_ranks(message.ranks)
                journal.add(message.t, message.kind, ranks, message.text, message.detail, own=True)


def _key_of(record: LogMessage) -> MessageKey:
    """Return what is alike in records that say the same."""
    fields = ("k", "level", "source", "hook", "point", "type", "text", "reason")
    return tuple(cast("Mapping[str, str]", record).get(field, "") for field in fields)


def format_ranks(numbers: Iterable[int]) -> str:
    """Return "rank 2", or "ranks 1, 3", or "ranks 1-3"."""
    ranks = sorted(numbers)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    is_range = ranks[-1] - ranks[0] == len(ranks) - 1
    if len(ranks) > 2 and is_range:
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"
