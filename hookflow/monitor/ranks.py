"""The ranks of a run: missing ranks, stragglers, and the rank that the others wait for."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol, cast

from hookflow.events.records import PHASES, End, Error, Frame, Message, Record, Run
from hookflow.graph.plan import Binding, Plan
from hookflow.monitor.journal import BECAME, Journal, Kind
from hookflow.monitor.series import WINDOW, Minute, Timing
from hookflow.numbers import one_line, rough

MEETING: Mapping[str, tuple[str, ...]] = {"ddp": ("backward",), "fsdp": ("forward", "backward")}
"""Phases in which the ranks bring something together, and so wait for one another, by strategy."""

NO_PLAN = Plan("", (), (), ())
"""The plan before it is written."""

NO_RUN = cast("Run", {})
"""The run record before it is written; false, and nothing is in it."""

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
    """The state of one rank since its `run` record: `work` in the last WINDOW seconds, `total` in all."""

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
    def heard(self) -> float:
        """Return when its newest frame was written; 0 when there is none."""
        return self._track[-1][0] if self._track else 0.0


class Timed(Protocol):
    """Sources of iteration times: a rank, or a whole run."""

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


SHARE, LEAST = 0.05, 1e6
"""The smallest share of waiting that is reported: this share of the iteration, and these ns."""

STAYS = 0.6
"""The smallest share for a rank that is already reported, so that it does not flicker."""

ENOUGH = 3
"""Iterations of the last minute that there must be of each rank to judge."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """The others wait `cost` ns for this rank in each iteration of `whole` ns; `reason` is where it takes longer."""

    rank: int
    cost: float
    whole: float
    reason: str = ""

    @property
    def sentence(self) -> str:
        times = f"{rough(self.cost / 1e6)} ms of each {rough(self.whole / 1e6)} ms iteration"
        return f"rank {self.rank} keeps the others waiting: {times}, in {self.reason}"

    @property
    def phrase(self) -> str:
        """Return the sentence for narrow places."""
        return f"rank {self.rank}: +{rough(self.cost / 1e6)} of {rough(self.whole / 1e6)} ms, {self.reason}"


def surplus(works: Mapping[int, Work]) -> tuple[int, float]:
    """Return the rank that needs most by itself, and the ns of an iteration it needs beyond the median of the others.

    `works` has at least two ranks.
    """
    slowest = max(works, key=lambda rank: works[rank].own)
    return slowest, works[slowest].own - median(work.own for rank, work in works.items() if rank != slowest)


def can_compare(ranks: Mapping[int, Rank]) -> bool:
    """Say whether all have iterated enough lately: not while they validate, pause or begin."""
    return len(ranks) > 1 and all(rank.work.iters >= ENOUGH for rank in ranks.values())


def find_straggler(ranks: Mapping[int, Rank], held: int | None) -> Straggler | None:
    """Return the rank that the others wait for; None when they are even. `held` is the rank reported last."""
    slowest, cost = surplus({number: rank.work for number, rank in ranks.items()})
    whole = ranks[slowest].work.whole
    if cost <= max(SHARE * whole, LEAST) * (STAYS if slowest == held else 1.0):
        return None
    return Straggler(slowest, cost, whole)


def reason(ranks: Mapping[int, Rank], plan: Plan, slowest: int) -> str:
    """Return the phase that takes this rank so much longer than the others, or the hook."""
    phases = {number: _part(booked(rank, plan), rank) for number, rank in ranks.items()}
    phase = _largest([phase for phase in PHASES if phase not in ranks[slowest].meeting], phases, slowest)
    if phase != "hooks":
        return phase
    hooks = {number: _part(_by_hook(rank, plan), rank) for number, rank in ranks.items()}
    return f"hook {_largest(list(hooks[slowest]), hooks, slowest)}" if hooks[slowest] else phase


def _largest(names: list[str], times: Mapping[int, Mapping[str, float]], slowest: int) -> str:
    """Return the name with the largest surplus over the median of the others."""

    def beyond(name: str) -> float:
        return times[slowest][name] - median(own[name] for rank, own in times.items() if rank != slowest)

    return max(names, key=beyond)


def _by_hook(rank: Rank, plan: Plan) -> Counter[str]:
    hooks: Counter[str] = Counter()
    for binding in plan.bindings:
        hooks[binding.hook] += spent(rank, plan, binding)
    return hooks


def _part(times: Mapping[str, float], rank: Rank) -> dict[str, float]:
    """Return times of the last minute as times of an iteration."""
    iters = rank.minute.sums(rank.now)["iters"] or 1
    return {name: ns / iters for name, ns in times.items()}


Said = Message | Error | End
"""Facts that may be equal on several ranks."""

SILENCE = 10.0
"""Seconds without a word while others go on, from which on a rank is named; the longest between frames is two."""

ALIKE = 3.0
"""Seconds that what a rank says waits, for others that say the same."""

HOLD = 5.0
"""Seconds before a straggler is reported, and before it counts as caught up."""

EXPLAINED = 30.0
"""Seconds for which the reason of a straggler is good: to find it takes longer than to find the straggler."""

REMEMBERED = 1000
"""Things said, back to which it is known that they have been."""


@dataclass(frozen=True, slots=True)
class _Said:
    """New entries of the journal."""

    t: float
    kind: Kind
    text: str
    detail: str = ""


class Ranks:
    """The ranks that have been heard of, by number; 0 is always there. Nothing of an earlier attempt is kept."""

    def __init__(self, first: Rank | None = None, others: Mapping[int, Rank] | None = None) -> None:
        self.of: dict[int, Rank] = {0: first or Rank(), **(others or {})}
        self.straggler: Straggler | None = None
        self._kept = self._looked = self._explained = 0.0
        self._said: dict[tuple[str, ...], None] = {}
        self._waiting: dict[tuple[str, ...], tuple[_Said, list[int]]] = {}

    def again(self, run: Run) -> Ranks:
        """Return the ranks of the attempt that rank 0 begins with `run`; some of the others may have begun before."""
        first = self.of[0]
        over = first.end["t"] if first.end else first.now if first.run else 0.0
        others = {number: rank for number, rank in self.of.items() if number and rank.run and rank.run["t"] > over}
        return Ranks(Rank(run), others)

    @property
    def world(self) -> int:
        """Return how many ranks there are, or as many as have been heard of."""
        return int(self.of[0].run.get("world") or max(self.of) + 1)

    @property
    def newest(self) -> float:
        """Return when any rank was last heard of."""
        return max(rank.now for rank in self.of.values())

    def hear(self, number: int, record: Record, journal: Journal) -> None:
        """Take a record of another rank than 0. Records that it shares with rank 0 (scalars, metrics, …) are
        skipped."""
        if self.of[0].run and number >= self.world:
            return  # a log that an attempt with more ranks has left
        if record["k"] == "run":
            self.of[number] = Rank(record)
        rank = self.of.setdefault(number, Rank())
        match record["k"]:
            case "frame":
                rank.frame(record)
            case "message":
                text = f"{record['source']}: {record['text']}"
                self._wait(number, record, _Said(record["t"], record["level"], text))
            case "error":
                self._hear_error(number, record, journal)
            case "end":
                self._hear_end(number, record)
        rank.now, rank.it = max(rank.now, record["t"]), record.get("it", rank.it)
        self._release(journal)

    def say(self, record: Said) -> None:
        """Note what rank 0 has said: the others need not say it again."""
        self._waiting.pop(_words(record), None)
        self._remember(_words(record))

    def look(self, t: float, plan: Plan, journal: Journal) -> None:
        """Judge, once a second of the run, how even the ranks are; the journal records each change."""
        self._release(journal)
        if t < self._looked + 1 or not can_compare(self.of):
            return
        self._kept = self._kept or t
        self._looked, held = t, self.straggler
        result = find_straggler(self.of, held.rank if held else None)
        same = (result.rank if result else None) == (held.rank if held else None)
        if not same and t < self._kept + HOLD:
            return
        if result and (not same or t >= self._explained + EXPLAINED):
            self._explained, result = t, replace(result, reason=reason(self.of, plan, result.rank))
        elif result and held:
            result = replace(result, reason=held.reason)
        self._kept, self.straggler = t, result
        if result and not same:
            journal.add(t, "warn", "ranks", result.sentence, own=True)
        elif held and not result:
            journal.add(t, "info", "ranks", "the ranks are even again", own=True)

    @property
    def first_failure(self) -> tuple[int, Error] | None:
        """Return the rank whose error came first, and the error: those of the others follow from it."""
        fatal = [(rank.fatal["t"], number, rank.fatal) for number, rank in self.of.items() if rank.fatal]
        return min(fatal, key=lambda item: item[:2])[1:] if fatal else None

    @property
    def silent(self) -> dict[int, float]:
        """Return the ranks that have said nothing for long while others go on, and for how many seconds."""
        if self.of[0].end or not self.of[0].run:
            return {}
        newest, begun = self.newest, self.of[0].run["t"]
        quiet = {
            number: newest - (self.of[number].now if number in self.of else begun)
            for number in range(self.world)
            if number not in self.of or not self.of[number].end
        }
        return {number: seconds for number, seconds in quiet.items() if seconds > SILENCE}

    @property
    def gone(self) -> list[int]:
        """Return the ranks that left no end record, once rank 0 has."""
        if not self.of[0].end:
            return []
        return [number for number in range(self.world) if number not in self.of or not self.of[number].end]

    def places(self) -> dict[int, tuple[int, float, int]]:
        """Return the position of each rank at the latest moment that all have reported: see `Rank.reached`."""
        silent = self.silent
        speaking = {number: rank for number, rank in self.of.items() if rank.heard and number not in silent}
        moment = min((rank.heard for rank in speaking.values()), default=0.0)
        reached = {number: rank.reached(moment) for number, rank in speaking.items()}
        return {number: place for number, place in reached.items() if place}

    def behind(self) -> dict[int, int]:
        """Return the ranks that are behind the foremost, by how many iterations at least; one is no news."""
        places = self.places()
        foremost = max((least for least, _, _ in places.values()), default=0)
        return {number: foremost - most for number, (_, _, most) in places.items() if foremost - most > 1}

    def mean_skew(self) -> tuple[int, float, float] | None:
        """Return the rank that was slowest over the whole attempt, by how many ns, of an iteration of how many.

        None where not all ranks have iterated.
        """
        totals = {number: rank.total for number, rank in self.of.items() if rank.total.iters}
        if len(totals) < max(self.world, 2):
            return None
        slowest, cost = surplus(totals)
        return slowest, max(cost, 0.0), totals[slowest].whole

    def _wait(self, number: int, record: Said, message: _Said) -> None:
        """Keep what a rank says until it is clear who says the same."""
        words = _words(record)
        if words in self._waiting:
            self._waiting[words][1].append(number)
        elif words not in self._said:
            self._waiting[words] = (message, [number])

    def _hear_error(self, number: int, record: Error, journal: Journal) -> None:
        if record["action"] == "raise":
            self.of[number].fatal = record
        if (words := _words(record)) not in self._said:
            self._remember(words)
            place = f"{record['hook']} @ {record['point']}, " if record["hook"] else ""
            text = f"{place}{BECAME[record['action']]}: {record['type']}: {one_line(record['text'])}"
            journal.add(record["t"], "error", named([number]), text, record["traceback"], own=True)

    def _hear_end(self, number: int, record: End) -> None:
        """An end for a reason that no error record tells is a user's mistake, which need not be on all machines."""
        rank = self.of[number]
        rank.end = record
        if record["status"] == "failed" and rank.fatal is None:
            text = one_line(record["reason"]) or "failed"
            self._wait(number, record, _Said(record["t"], "error", text, record["reason"]))

    def _remember(self, words: tuple[str, ...]) -> None:
        self._said[words] = None
        if len(self._said) > REMEMBERED:
            del self._said[next(iter(self._said))]

    def _release(self, journal: Journal) -> None:
        """Tell what has waited long enough for rank 0 to say it, too."""
        if not self._waiting:
            return
        due = self.newest - ALIKE if not self.of[0].end else self.newest
        for words, (message, numbers) in list(self._waiting.items()):
            if message.t <= due:
                del self._waiting[words]
                self._remember(words)
                journal.add(message.t, message.kind, named(numbers), message.text, message.detail, own=True)


def _words(record: Said) -> tuple[str, ...]:
    """Return what is alike in records that say the same."""
    match record["k"]:
        case "message":
            return "message", record["level"], record["source"], record["text"]
        case "error":
            return "error", record["hook"], record["point"], record["type"], record["text"]
        case "end":
            return "end", record["reason"]


def named(numbers: Iterable[int]) -> str:
    """Return "rank 2", or "ranks 1, 3", or "ranks 1-3"."""
    result = sorted(numbers)
    if len(result) == 1:
        return f"rank {result[0]}"
    if len(result) > 2 and result[-1] - result[0] == len(result) - 1:
        return f"ranks {result[0]}-{result[-1]}"
    return f"ranks {', '.join(map(str, result))}"
