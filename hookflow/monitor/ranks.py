"""All ranks of a run: what the others tell beside rank 0, who is missing, who is behind, whom the others wait for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from hookflow.events.records import End, Error, Message, Record, Run
from hookflow.graph.plan import Plan
from hookflow.monitor.formatting import one_line
from hookflow.monitor.journal import BECAME, Journal, Kind
from hookflow.monitor.rank import Rank
from hookflow.monitor.skew import Straggler, can_compare, find_straggler, reason, surplus

Said = Message | Error | End
"""What several ranks may say alike."""

SILENCE = 10.0
"""Seconds without a word while others go on, from which on a rank is named; the longest between frames is two."""

ALIKE = 3.0
"""Seconds that what a rank says waits, for others that say the same."""

HOLD = 5.0
"""Seconds that a straggler must be one before it is told of, and that it must have caught up."""

EXPLAINED = 30.0
"""Seconds for which the reason of a straggler is good: to find it takes longer than to find the straggler."""

REMEMBERED = 1000
"""Things said, back to which it is known that they have been."""


@dataclass(frozen=True, slots=True)
class _Said:
    """What is to be an entry of the journal."""

    t: float
    kind: Kind
    text: str
    detail: str = ""


class Ranks:
    """The ranks that have been heard of, by number; 0 is always there. Of an earlier attempt nothing is kept."""

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
        """Take a record of another rank than 0. What it shares with rank 0 (scalars, metrics, …) is passed over."""
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
        """Judge, once a second of the run, how even the ranks are; the journal is told when that changes."""
        self._release(journal)
        if t < self._looked + 1 or not can_compare(self.of):
            return
        self._kept = self._kept or t
        self._looked, held = t, self.straggler
        found = find_straggler(self.of, held.rank if held else None)
        same = (found.rank if found else None) == (held.rank if held else None)
        if not same and t < self._kept + HOLD:
            return
        if found and (not same or t >= self._explained + EXPLAINED):
            self._explained, found = t, replace(found, reason=reason(self.of, plan, found.rank))
        elif found and held:
            found = replace(found, reason=held.reason)
        self._kept, self.straggler = t, found
        if found and not same:
            journal.add(t, "warn", "ranks", found.sentence, own=True)
        elif held and not found:
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
        """Return where each rank was at one moment, the last that all have told of: see `Rank.reached`."""
        silent = self.silent
        speaking = {number: rank for number, rank in self.of.items() if rank.told and number not in silent}
        moment = min((rank.told for rank in speaking.values()), default=0.0)
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

    def _wait(self, number: int, record: Said, said: _Said) -> None:
        """Keep what a rank says until it is clear who says the same."""
        words = _words(record)
        if words in self._waiting:
            self._waiting[words][1].append(number)
        elif words not in self._said:
            self._waiting[words] = (said, [number])

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
        for words, (said, numbers) in list(self._waiting.items()):
            if said.t <= due:
                del self._waiting[words]
                self._remember(words)
                journal.add(said.t, said.kind, named(numbers), said.text, said.detail, own=True)


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
    found = sorted(numbers)
    if len(found) == 1:
        return f"rank {found[0]}"
    if len(found) > 2 and found[-1] - found[0] == len(found) - 1:
        return f"ranks {found[0]}-{found[-1]}"
    return f"ranks {', '.join(map(str, found))}"
