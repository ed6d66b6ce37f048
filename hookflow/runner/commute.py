"""Which pairs of hooks, of all that nothing orders, make a difference: each is fired both ways, and compared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from hookflow.errors import Problem, UserError
from hookflow.events.records import Level
from hookflow.graph.plan import Plan
from hookflow.graph.turning import (
    Pair,
    brought_together,
    neighbouring,
    swapped,
    turned,
    unordered,
    way,
)
from hookflow.hooks.compile import compile_pipeline
from hookflow.hooks.registry import BUILT_IN
from hookflow.pipeline.load import Loaded
from hookflow.runner.comparison import Difference, changing, difference
from hookflow.runner.trial import SECONDS, TRIALS, EnoughError, Trials, trials

PAIRS = 5000
"""How many pairs are looked at."""

SILENT = "one of them does not fire in a trial"
APART = "no order was found in which one follows right upon the other"
ENOUGH = f"the limit of {TRIALS} trials, or {SECONDS:g} s, was reached"
"""Why a pair has not been tried."""

COMPARED = ("model", "gradients", "optimizer", "lr", "rng")
"""What must be the same in two trials of the same order: else nothing follows from a difference."""


@dataclass(frozen=True, slots=True)
class Step:
    """The smallest change of the order that makes a difference: `pairs` are those that it turns, mostly one."""

    pairs: tuple[Pair, ...]
    difference: Difference


@dataclass(frozen=True, slots=True)
class Commuted:
    """What trials of all orders have shown: the `steps` that differ, the pairs in which `same` is seen, and the rest.

    `leaking` are pairs that no trial can judge: one of the two holds other values in two trials of the same order.
    `untried` says why of each pair that has not been tried; `unlooked` whether there are more pairs than were looked
    at. `noise` are the values that differ between two trials of the same order.
    """

    steps: tuple[Step, ...]
    same: tuple[Pair, ...]
    leaking: tuple[Pair, ...]
    untried: tuple[tuple[Pair, str], ...]
    unlooked: bool
    noise: tuple[str, ...]
    trials: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Bisected:
    """The one `step` on the way from the declared order to that of a `seed` that makes a difference.

    None where no seed makes one; then `turned` are all pairs that some seed has turned, otherwise those of the one.
    """

    seed: int | None
    step: Step | None
    turned: tuple[Pair, ...]
    trials: int
    seconds: float


def commute(loaded: Loaded, plan: Plan, base: Path, say: Callable[[str, Level], None]) -> Commuted:
    """Try every pair that nothing orders. `say` takes the messages of the run; files are relative to `base`.

    What raises in the plan's own order goes through, as in a dry run.
    """
    found = list(islice(unordered(plan), PAIRS + 1))
    unlooked, pairs = len(found) > PAIRS, found[:PAIRS]
    if not pairs:
        return Commuted((), (), (), (), unlooked=False, noise=(), trials=0, seconds=0.0)
    with trials(loaded, plan, base, say) as made:
        search = _Search(made, plan)
        steps, same, left = search.all([pair for pair in pairs if search.fires(pair)])
        untried = [*((pair, SILENT) for pair in pairs if not search.fires(pair)), *left]
        leaking = tuple(pair for pair in same if search.leaks(pair))
        same = [pair for pair in same if pair not in leaking]
        return Commuted(
            tuple(steps), tuple(same), leaking, tuple(untried), unlooked, search.noise, made.count, made.seconds
        )


def bisect(loaded: Loaded, plan: Plan, seeds: Iterable[int], base: Path, say: Callable[[str, Level], None]) -> Bisected:
    """Find the pair that makes the order of the first such seed differ from that of the plan; else as `commute`."""
    every: dict[Pair, None] = {}
    with trials(loaded, plan, base, say) as made:
        search = _Search(made, plan)
        for seed in seeds:
            shuffled = compile_pipeline(loaded, base, seed)
            pairs = turned(plan, shuffled)
            if step := next(search.steps(plan, shuffled), None):
                return Bisected(seed, step, tuple(pairs), made.count, made.seconds)
            every.update(dict.fromkeys(pairs))
        return Bisected(None, None, tuple(every), made.count, made.seconds)


class _Search:
    """Compares orders of one pipeline. What differs between two trials of the same order is noise, and not compared."""

    def __init__(self, made: Trials, plan: Plan) -> None:
        self._made = made
        self._plan = plan
        self._first = made.again(plan, may_raise=False)
        self._noise = changing(self._first, made.again(plan, may_raise=False))
        self._free = frozenset(unordered(plan))
        if loud := sorted({leaf[0] for leaf in self._noise} & {*COMPARED}):
            said = f"two runs of the same order differ in {' and '.join(loud)}, so other orders cannot be judged"
            raise UserError(Problem(said, hint="set run.deterministic = true, or look for what depends on the time"))

    @property
    def noise(self) -> tuple[str, ...]:
        """What is not compared: hooks, by their names, and other values."""
        return tuple(sorted(".".join(leaf[1:] if leaf[0] == "hooks" else leaf) for leaf in self._noise))

    def fires(self, pair: Pair) -> bool:
        """Say whether both of a pair have fired."""
        return {(pair.point, pair.first), (pair.point, pair.then)} <= self._first.fired

    def leaks(self, pair: Pair) -> bool:
        """Say whether noise may hide a difference between a pair: the state of one is noise, by code of the user.

        Built-in hooks keep nothing from trial to trial: their noise is the time.
        """
        hooks = [self._plan.hook(name) for name in pair.hooks]
        own = [hook for hook in hooks if not {hook.use}.intersection((*BUILT_IN, *BUILT_IN.values()))]
        return any(("hooks", hook.name) in self._noise for hook in own)

    def differ(self, a: Plan, b: Plan) -> Difference | None:
        return difference(self._made.of(a), self._made.of(b), self._noise)

    def steps(self, a: Plan, b: Plan) -> Iterator[Step]:
        """Yield the smallest steps on the way from one order to another that make a difference, by halving the way."""
        swaps = way(a, b)
        yield from self._halved(a, swaps, 0, len(swaps))

    def _halved(self, begin: Plan, swaps: Sequence[Pair], low: int, high: int) -> Iterator[Step]:
        """Yield them between the orders after so many swaps and after so many."""
        a, b = (self._made.compiled(swapped(begin, swaps[:done])) for done in (low, high))
        if not self.differ(a, b):
            return
        if high - low > 1:
            half = (low + high) // 2
            yield from self._halved(begin, swaps, low, half)
            yield from self._halved(begin, swaps, half, high)
        elif found := self._confirmed(a, b):
            yield found

    def _confirmed(self, a: Plan, b: Plan) -> Step | None:
        """Return the step between two orders if it makes the same difference once more, the declared order first."""
        if turned(a, b)[0] not in turned(self._plan, b):  # it has been turned before, and this turns it back
            a, b = b, a
        self._noise |= changing(self._made.of(a), self._made.again(a)) | changing(self._made.of(b), self._made.again(b))
        found = self.differ(a, b)
        return Step(tuple(turned(a, b)), found) if found else None

    def all(self, pairs: Sequence[Pair]) -> tuple[list[Step], list[Pair], list[tuple[Pair, str]]]:
        """Turn each of these pairs once; return the steps that differ, the pairs that do not, and the rest with why.

        As many are turned at once as stand side by side, and the next from there on, as in a sort. What differs is
        turned back before: the others are tried in an order whose results are those of the declared one.
        """
        left = dict.fromkeys(pairs)
        steps: list[Step] = []
        same: list[Pair] = []
        stuck: list[Pair] = []
        order = self._plan
        try:
            while left and (begin := self._with_neighbours(order, left)):
                swaps = neighbouring(begin, left)
                order = self._made.compiled(swapped(begin, swaps))
                either = {either for pair in turned(begin, order) for either in (pair, pair.turned)}
                tried = [pair for pair in left if pair in either]
                steps.extend(self.steps(begin, order))
                differing = {pair for step in steps for pair in step.pairs}
                same += [pair for pair in tried if pair not in differing]
                if not differing.isdisjoint(tried):
                    kept = [pair for pair in swaps if differing.isdisjoint((pair, pair.turned))]
                    order = self._made.compiled(swapped(begin, kept))
                stuck += [] if tried else [pair for pair in left if pair in swaps or pair.turned in swaps]
                left = {pair: None for pair in left if pair not in tried and pair not in stuck}
        except EnoughError:
            return steps, same, [(pair, ENOUGH) for pair in left]
        return steps, same, [(pair, APART) for pair in (*stuck, *left)]

    def _with_neighbours(self, order: Plan, pairs: Collection[Pair]) -> Plan | None:
        """Return an order in which some of the pairs stand side by side: this one, the declared one, or another."""
        for begin in (order, self._plan):
            if neighbouring(begin, pairs):
                return begin
        together = self._made.compiled(brought_together(self._plan, pairs, self._free))
        return together if neighbouring(together, pairs) else None
