"""The ranks of a run: missing ranks, stragglers, and the rank that the others wait for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, cast

from hookflow.events.records import PHASES, End, Error, Frame, Record, Run, Told
from hookflow.graph.plan import Binding, Plan
from hookflow.monitor.durations import WINDOW, Beside, Booked, DeviceTimes, Minute, Timing
from hookflow.monitor.journal import BECAME, Journal, Kind
from hookflow.numbers import one_line, rough

MEETING: Mapping[str, tuple[str, ...]] = {"ddp": ("backward",), "fsdp": ("forward", "backward")}
"""Phases in which the ranks bring something together, and so wait for one another, by strategy."""

NO_PLAN = Plan("", (), (), ())
"""The plan before it is written."""

NO_RUN = cast("Run", {})
"""The run record before it is written; false, and nothing is in it."""


class Rank:
    """The state of one rank since its `run` record; in the phases of `meeting` it waits for the others."""

    def __init__(self, run: Run | None = None) -> None:
        self.run: Run = run or NO_RUN
        self.end: End | None = None
        self.fatal: Error | None = None  # the error that ended it
        self.now: float = self.run.get("t", 0.0)
        self.it: int = self.run.get("it", 0)
        self.trained = self.now  # the newest frame of the training
        self.minute = Minute()
        self.attempt = Booked()
        self.bindings: dict[int, Timing] = {}
        self.beside: dict[int, Beside] = {}
        self.device = DeviceTimes()
        self.meeting = MEETING.get(self.run.get("strategy", ""), MEETING["ddp"])

    @property
    def iters(self) -> int:
        """The training iterations of the last WINDOW seconds."""
        return self.minute.sums["iters"]

    @property
    def whole(self) -> float:
        """The ns of one of them."""
        return self.minute.sums["ns"] / self.iters if self.iters else 0.0

    @property
    def own(self) -> float:
        """The ns of one of them that this rank needs by itself, whatever the others do."""
        met = sum(self.minute.sums[phase] for phase in self.meeting)
        return (self.minute.sums["ns"] - met) / self.iters if self.iters else 0.0

    def timing(self, binding: int) -> Timing:
        """Return the timing of a binding; of one that has not fired yet, an empty one."""
        return self.bindings.get(binding) or Timing()

    def frame(self, record: Frame) -> None:
        t = record["t"]
        self.now, self.it = max(self.now, t), record["it"]
        if record["iters"][0] or any(record["phases"].values()):  # else the last minute of training stays
            self.minute.add(t, record["phases"], record["iters"], record["samples"], record["cost"])
            count, ns, *_ = record["iters"]
            self.attempt.book({**record["phases"], "iters": count, "ns": ns})
            self.trained = t
        for binding, entry in record["hooks"].items():
            if (timing := self.bindings.get(known := int(binding))) is None:
                timing = self.bindings[known] = Timing()
            timing.add(t, record["it"], entry)
        if "device" in record:
            self.device.add(t, record["device"])
        for binding, (count, total, longest, waiting, dropped) in record.get("beside", {}).items():
            self.beside.setdefault(int(binding), Beside()).add(count, total, longest, waiting, dropped)


def spent(rank: Rank, plan: Plan, binding: Binding) -> int:
    """Return the ns that firings of a binding took inside iterations of the last minute; 0 where it fires elsewhere."""
    return rank.timing(binding.id).spent(rank.trained - WINDOW) if plan.points.in_iteration(binding.point) else 0


SHARE, LEAST, STAYS = 0.05, 1e6, 0.6
"""The least waiting that is reported: a share of the iteration, and ns; STAYS of it, of a rank that is reported."""

ENOUGH = 3
"""Iterations of the last minute that there must be of each rank to judge."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """The others wait `cost` ns for this rank in each iteration of `whole` ns; `reason` is where it takes longer."""

    rank: int
    cost: float
    whole: float
    reason: str

    @property
    def sentence(self) -> str:
        times = f"{rough(self.cost / 1e6)} ms of each {rough(self.whole / 1e6)} ms iteration"
        return f"rank {self.rank} keeps the others waiting: {times}, in {self.reason}"

    @property
    def phrase(self) -> str:
        """The sentence for narrow places."""
        return f"rank {self.rank}: +{rough(self.cost / 1e6)} of {rough(self.whole / 1e6)} ms, {self.reason}"


def can_compare(ranks: Mapping[int, Rank]) -> bool:
    """Say whether all have iterated enough lately: not while they validate, pause or begin."""
    return len(ranks) > 1 and all(rank.iters >= ENOUGH for rank in ranks.values())


def reason(ranks: Mapping[int, Rank], plan: Plan, slowest: int) -> str:
    """Return the phase that takes this rank so much longer than the others, or the hook."""

    def longest(times: Mapping[int, Mapping[str, float]], names: Iterable[str]) -> str:
        def beyond(name: str) -> float:
            others = (own[name] for number, own in times.items() if number != slowest)
            return times[slowest][name] - median(others)

        return max(names, key=beyond, default="")

    booked = {number: (rank.minute.booked, rank.iters) for number, rank in ranks.items()}
    phases = {number: {phase: ns / iters for phase, ns in of.items()} for number, (of, iters) in booked.items()}
    phase = longest(phases, [phase for phase in PHASES if phase not in ranks[slowest].meeting])
    hooks = {number: dict.fromkeys((binding.hook for binding in plan.bindings), 0.0) for number in ranks}
    for number, times in hooks.items():
        for binding in plan.bindings:
            times[binding.hook] += spent(ranks[number], plan, binding) / ranks[number].iters
    return f"hook {longest(hooks, hooks[slowest])}" if phase == "hooks" and hooks[slowest] else phase


SILENCE, ALIKE, HOLD = 10.0, 3.0, 5.0
"""Seconds until a silent rank is named, until a message is not waited for on other ranks, and until a straggler counts.

The longest time between frames is two seconds.
"""

REMOTE_DELAY = 90.0
"""Seconds by which what another machine has written may be seen late.

A network file system keeps what it knows of a file for up to 60 s, and the clocks of two machines differ.
"""

REMEMBERED = 1000
"""Messages that are remembered, so that none is shown twice."""

Words = tuple[str, ...]


class _Waiting(NamedTuple):
    """A message that is shown once it is clear which ranks have it, and that rank 0 has not."""

    t: float
    kind: Kind
    text: str
    detail: str
    ranks: list[int]


class Ranks:
    """The ranks that have been heard of, by number; 0 is always there. Nothing of an earlier attempt is kept."""

    def __init__(self, first: Rank | None = None, others: Mapping[int, Rank] | None = None) -> None:
        self.of: dict[int, Rank] = {0: first or Rank(), **(others or {})}
        self.straggler: Straggler | None = None
        self._kept = self._looked = 0.0
        self._known: dict[Words, None] = {}
        self._waiting: dict[Words, _Waiting] = {}

    def again(self, run: Run) -> "Ranks":
        """Return the ranks of the attempt that rank 0 begins with `run`; some of the others may have begun before."""
        first = self.of[0]
        over = first.end["t"] if first.end else first.now if first.run else 0.0
        others = {number: rank for number, rank in self.of.items() if number and rank.run and rank.run["t"] > over}
        return Ranks(Rank(run), others)

    @property
    def world(self) -> int:
        """How many ranks there are, or as many as have been heard of."""
        return int(self.of[0].run.get("world") or max(self.of) + 1)

    @property
    def newest(self) -> float:
        """When any rank was last heard of."""
        return max(rank.now for rank in self.of.values())

    def hear(self, number: int, record: Record, journal: Journal) -> None:
        """Take a record of another rank than 0, unless it is of a kind that is shown of rank 0 alone."""
        if self.of[0].run and number >= self.world:
            return  # a log that an attempt with more ranks has left
        if record["k"] == "run":
            self.of[number] = Rank(record)
        rank = self.of.setdefault(number, Rank())
        match record["k"]:
            case "frame":
                rank.frame(record)
            case "message":
                self._wait(number, record, record["level"], f"{record['source']}: {record['text']}", "")
            case "error":
                rank.fatal = record if record["action"] == "raise" else rank.fatal
                if (words := _words(record)) not in self._known:
                    self._remember(words)
                    place = f"{record['hook']} @ {record['point']}, " if record["hook"] else ""
                    text = f"{place}{BECAME[record['action']]}: {record['type']}: {one_line(record['text'])}"
                    is_fatal = record["action"] == "raise"
                    facts = {"own": True, "ends_run": is_fatal}
                    journal.add(record["t"], "error", named([number]), text, record["traceback"], **facts)
            case "end":
                rank.end = record
                if record["status"] == "failed" and rank.fatal is None:  # a mistake, perhaps on one machine alone
                    self._wait(number, record, "error", one_line(record["reason"]) or "failed", record["reason"])
        rank.now, rank.it = max(rank.now, record["t"]), record.get("it", rank.it)
        self._release(journal)

    def hear_first(self, record: Told) -> None:
        """Note a message, an error or the end of rank 0: that of the others need not be shown again."""
        self._waiting.pop(_words(record), None)
        self._remember(_words(record))

    def look(self, t: float, plan: Plan, journal: Journal) -> None:
        """Judge, once a second of the run, how even the ranks are; the journal records each change."""
        self._release(journal)
        if t < self._looked + 1 or not can_compare(self.of):
            return
        self._kept = self._kept or t
        self._looked, held = t, self.straggler
        slowest = max(self.of, key=lambda number: self.of[number].own)
        others = median(rank.own for number, rank in self.of.items() if number != slowest)
        whole, cost = self.of[slowest].whole, self.of[slowest].own - others
        stays = held is not None and held.rank == slowest
        late = cost > max(SHARE * whole, LEAST) * (STAYS if stays else 1.0)
        unchanged = stays if late else held is None
        if not unchanged and t < self._kept + HOLD:
            return
        self._kept = t
        if late:
            why = held.reason if held and stays else reason(self.of, plan, slowest)
            self.straggler = Straggler(slowest, cost, whole, why)
            if not stays:
                journal.add(t, "warn", "ranks", self.straggler.sentence, own=True)
        elif held:
            self.straggler = None
            journal.add(t, "info", "ranks", "the ranks are even again", own=True)

    @property
    def first_failure(self) -> tuple[int, Error] | None:
        """The rank whose error came first, and the error: those of the others follow from it."""
        fatal = [(rank.fatal["t"], number, rank.fatal) for number, rank in self.of.items() if rank.fatal]
        return min(fatal, key=lambda item: item[:2])[1:] if fatal else None

    @property
    def silent(self) -> dict[int, float]:
        """The ranks that have written nothing for long while others go on, and for how many seconds."""
        if self.of[0].end or not self.of[0].run:
            return {}
        hosts = {rank.run.get("host") for rank in self.of.values() if rank.run}
        patience = SILENCE if len(hosts) < 2 else SILENCE + REMOTE_DELAY
        newest, begun = self.newest, self.of[0].run["t"]
        heard = {number: self.of[number].now if number in self.of else begun for number in self._unended}
        return {number: newest - t for number, t in heard.items() if newest - t > patience}

    @property
    def gone(self) -> list[int]:
        """The ranks that left no end record, once rank 0 has."""
        return self._unended if self.of[0].end else []

    @property
    def _unended(self) -> list[int]:
        return [number for number in range(self.world) if number not in self.of or not self.of[number].end]

    def _wait(self, number: int, record: Told, kind: Kind, text: str, detail: str) -> None:
        words = _words(record)
        if words in self._waiting:
            self._waiting[words].ranks.append(number)
        elif words not in self._known:
            self._waiting[words] = _Waiting(record["t"], kind, text, detail, [number])

    def _remember(self, words: Words) -> None:
        self._known[words] = None
        if len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]

    def _release(self, journal: Journal) -> None:
        """Show what has waited long enough for rank 0, which has not written the same."""
        if not self._waiting:
            return
        due = self.newest - ALIKE if not self.of[0].end else self.newest
        for words, message in list(self._waiting.items()):
            if message.t <= due:
                del self._waiting[words]
                self._remember(words)
                journal.add(message.t, message.kind, named(message.ranks), message.text, message.detail, own=True)


def _words(record: Told) -> Words:
    """Return what is alike in records that say the same."""
    fields = ("k", "level", "source", "hook", "point", "type", "text", "reason")
    return tuple(cast("Mapping[str, str]", record).get(field, "") for field in fields)


def named(numbers: Iterable[int]) -> str:
    """Return "rank 2", or "ranks 1, 3", or "ranks 1-3"."""
    result = sorted(numbers)
    if len(result) == 1:
        return f"rank {result[0]}"
    if len(result) > 2 and result[-1] - result[0] == len(result) - 1:
        return f"ranks {result[0]}-{result[-1]}"
    return f"ranks {', '.join(map(str, result))}"
