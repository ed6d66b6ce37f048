"""Whom the others wait for. Iterations take all ranks equally long: who is early waits where they meet, in `backward`.

So the one to look for is the rank that needs most time by itself; what it needs beyond the others is what they wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from hookflow.events.records import PHASES
from hookflow.graph.plan import Plan
from hookflow.monitor.formatting import rough
from hookflow.monitor.rank import Rank, Work, booked, spent

SHARE, LEAST = 0.05, 1e6
"""What the waiting must cost to be told: this share of the iteration, and these ns."""

STAYS = 0.6
"""Of that, what is enough for a rank that has been told of, so that it does not come and go."""

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
    """Return the rank that the others wait for; None when they are even. `held` is the one told of last."""
    slowest, cost = surplus({number: rank.work for number, rank in ranks.items()})
    whole = ranks[slowest].work.whole
    if cost <= max(SHARE * whole, LEAST) * (STAYS if slowest == held else 1.0):
        return None
    return Straggler(slowest, cost, whole)


def reason(ranks: Mapping[int, Rank], plan: Plan, slowest: int) -> str:
    """Return the phase that takes this rank so much longer than the others, or the hook."""
    phases = {number: _each(booked(rank, plan), rank) for number, rank in ranks.items()}
    phase = _largest([phase for phase in PHASES if phase not in ranks[slowest].meeting], phases, slowest)
    if phase != "hooks":
        return phase
    hooks = {number: _each(_by_hook(rank, plan), rank) for number, rank in ranks.items()}
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


def _each(times: Mapping[str, float], rank: Rank) -> dict[str, float]:
    """Return times of the last minute as times of an iteration."""
    iters = rank.minute.sums(rank.now)["iters"] or 1
    return {name: ns / iters for name, ns in times.items()}
