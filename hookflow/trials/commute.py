"""Find the unordered pairs of hooks whose order makes a difference, by firing each pair both ways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hookflow.errors import Problem, UserError
from hookflow.events.records import Level
from hookflow.graph.plan import Plan
from hookflow.graph.why import Pair, brought_together, neighbouring, swapped, swaps_between, turned, unordered
from hookflow.hooks.registry import BUILT_IN
from hookflow.pipeline.load import Loaded
from hookflow.runner.observe.tensors import Leaves
from hookflow.runner.observe.tensors import Path as Leaf
from hookflow.trials.trial import SECONDS, TRIALS, EnoughError, Trace, Trials, Visit, trials

PARTS = ("model", "grads", "modes", "optimizer", "lr", "rng", "metrics", "outputs", "batch", "checkpoint", "logged")
"""The parts of a trace in the order of reports; hooks, files and the task follow."""

WORDS = {
    "grads": "gradients",
    "modes": "training or evaluation mode of modules",
    "lr": "learning rates",
    "rng": "random generators",
}
"""Names of parts in reports, where they are not called so themselves."""

NAMED = 3
"""How many values are named, of a part in which several differ."""


def difference(a: Trace, b: Trace, noise: frozenset[Leaf]) -> str:
    """Return the difference between the trials of two orders in words, without noise; "" where they are equal."""
    result = list(_visits(a, b, noise))
    if a.raised != b.raised:
        ways = (("as it is", a), ("the other way round", b))
        return "; ".join(f"{name} it raises {trace.raised}" for name, trace in ways if trace.raised)
    if not result:
        places = [[(visit.point, visit.iter) for visit in trace.visits] for trace in (a, b)]
        return "" if places[0] == places[1] else "differ in which points are fired"
    (item, other, differing), *rest = result
    parts = dict(_parts(item.leaves, other.leaves, differing))
    every = dict.fromkeys(_part(leaf) for *_, leaves in rest for leaf in leaves)
    later = [name for name in every if name not in parts]
    more = f" and {len(later) - NAMED} more" * (len(later) > NAMED)
    then = f"; later in {', '.join(later[:NAMED])}{more}" * bool(later)
    return f"differ in {'; in '.join(parts.values())}{then}"


def _visits(a: Trace, b: Trace, noise: frozenset[Leaf] = frozenset()) -> Iterator[tuple[Visit, Visit, list[Leaf]]]:
    for item, other in zip(a.visits, b.visits, strict=False):
        if (item.point, item.iter) != (other.point, other.iter):
            return
        here, there = item.leaves, other.leaves
        differing = [
            leaf for leaf in {**here, **there} if here.get(leaf) != there.get(leaf) and unit_of(leaf) not in noise
        ]
        if differing:
            yield item, other, differing


def changing(a: Trace, b: Trace) -> frozenset[Leaf]:
    """Return what differs between two trials of the same order: times, and what follows from them."""
    return frozenset(unit_of(leaf) for *_, leaves in _visits(a, b) for leaf in leaves)


def unit_of(leaf: Leaf) -> Leaf:
    """Return the unit that is noise or not: all values of a hook, which may depend on one another, or one value."""
    own = leaf[1:] if leaf[:2] == ("checkpoint", "hooks") else leaf
    return own[:2] if own[0] == "hooks" else leaf


def _part(leaf: Leaf) -> str:
    names = {"hooks": f"`{leaf[1]}`", "files": f"the file {leaf[1]}"} if len(leaf) > 1 else {}
    return names.get(leaf[0]) or WORDS.get(leaf[0], leaf[0])


def _parts(a: Leaves, b: Leaves, differing: Sequence[Leaf]) -> Iterator[tuple[str, str]]:
    grouped: dict[str, list[Leaf]] = {}
    for leaf in differing:
        grouped.setdefault(_part(leaf), []).append(leaf)
    totals = Counter(map(_part, {**a, **b}))
    order = {WORDS.get(part, part): place for place, part in enumerate(PARTS)}
    for name in sorted(grouped, key=lambda name: (order.get(name, len(order)), name)):
        leaves = grouped[name]
        names = [".".join(leaf[2:] if leaf[0] in ("hooks", "files") else leaf[1:]) for leaf in leaves]
        text = f"{name}: {', '.join(names)}".removesuffix(": ")
        if len(leaves) > NAMED:
            unit = "tensors" if name in ("model", "gradients") else "values"
            text = f"{name}: {len(leaves)} of {totals[name]} {unit}"
        yield name, text


@dataclass(frozen=True, slots=True)
class Step:
    """The smallest change of the order that makes a difference: `pairs` are those that it turns, mostly one."""

    pairs: tuple[Pair, ...]
    difference: str


@dataclass(frozen=True, slots=True)
class Commuted:
    """The results of trials: the `steps` that differ, the pairs that make no difference (`same`), and the rest.

    `noise` differs between two trials of the same order, and so do hooks of the `leaking` pairs. `untried` pairs have
    their reason.
    """

    steps: tuple[Step, ...]
    same: tuple[Pair, ...]
    leaking: tuple[Pair, ...]
    untried: tuple[tuple[Pair, str], ...]
    noise: tuple[str, ...]
    trials: int
    seconds: float


def commute(loaded: Loaded, plan: Plan, base: Path, say: Callable[[str, Level], None]) -> Commuted:
    """Try every pair that nothing orders. `say` takes the messages of the run; files are relative to `base`.

    Exceptions in the order of the plan propagate, as in a dry run.
    """
    pairs = list(unordered(plan))
    if not pairs:
        return Commuted((), (), (), (), noise=(), trials=0, seconds=0.0)
    with trials(loaded, plan, base, say) as made:
        search = _Search(made, plan)
        steps, same, left = search.all([pair for pair in pairs if search.fires(pair)])
        silent = ((pair, "one of them does not fire in a trial") for pair in pairs if not search.fires(pair))
        leaking = tuple(pair for pair in same if search.leaks(pair))
        same = [pair for pair in same if pair not in leaking]
        noise = tuple(sorted(".".join(leaf[1:] if leaf[0] == "hooks" else leaf) for leaf in search.noise))
        return Commuted(tuple(steps), tuple(same), leaking, (*silent, *left), noise, made.count, made.seconds)


class _Search:
    """Compares orders of one pipeline. Differences between two trials of the same order are noise, and not compared."""

    def __init__(self, made: Trials, plan: Plan) -> None:
        self._made = made
        self._plan = plan
        self._first = made.again(plan, may_raise=False)
        self.noise = changing(self._first, made.again(plan, may_raise=False))
        self._free = frozenset(unordered(plan))
        if loud := sorted({leaf[0] for leaf in self.noise} & {"model", "grads", "optimizer", "lr", "rng"}):
            message = f"two runs of the same order differ in {' and '.join(loud)}, so other orders cannot be judged"
            raise UserError(Problem(message, hint="set run.deterministic = true, or look for what depends on the time"))

    def fires(self, pair: Pair) -> bool:
        """Say whether both of a pair have fired."""
        return {(pair.point, pair.first), (pair.point, pair.then)} <= self._first.fired

    def leaks(self, pair: Pair) -> bool:
        """Say whether noise may hide a difference between a pair: the state of one is noise, by code of the user.

        Built-in hooks keep nothing from trial to trial: their noise is the time.
        """
        hooks = [self._plan.hook(name) for name in pair.hooks]
        own = [hook for hook in hooks if not {hook.use}.intersection((*BUILT_IN, *BUILT_IN.values()))]
        return any(("hooks", hook.name) in self.noise for hook in own)

    def _steps(self, begin: Plan, swaps: Sequence[Pair], low: int, high: int) -> Iterator[Step]:
        """Yield the smallest steps that differ between the orders after `low` and `high` swaps, by halving."""
        a, b = (self._made.compiled(swapped(begin, swaps[:done])) for done in (low, high))
        if not difference(self._made.of(a), self._made.of(b), self.noise):
            return
        if high - low > 1:
            half = (low + high) // 2
            yield from self._steps(begin, swaps, low, half)
            yield from self._steps(begin, swaps, half, high)
        elif result := self._confirmed(a, b):
            yield result

    def _confirmed(self, a: Plan, b: Plan) -> Step | None:
        """Return the step between two orders if it makes the same difference once more, the declared order first."""
        if turned(a, b)[0] not in turned(self._plan, b):  # it has been turned before, and this turns it back
            a, b = b, a
        self.noise |= changing(self._made.of(a), self._made.again(a)) | changing(self._made.of(b), self._made.again(b))
        result = difference(self._made.of(a), self._made.of(b), self.noise)
        return Step(tuple(turned(a, b)), result) if result else None

    def all(self, pairs: Sequence[Pair]) -> tuple[list[Step], list[Pair], list[tuple[Pair, str]]]:
        """Turn each of these pairs once; return the steps that differ, the equal pairs, and the untried with reasons.

        Each round turns all pairs that stand side by side, as in a sort. Then it turns the differing ones back: the
        next round starts from an order with the results of the declared one.
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
                swaps_made = swaps_between(begin, order)
                steps.extend(self._steps(begin, swaps_made, 0, len(swaps_made)))
                differing = {pair for step in steps for pair in step.pairs}
                same += [pair for pair in tried if pair not in differing]
                if not differing.isdisjoint(tried):
                    kept = [pair for pair in swaps if differing.isdisjoint((pair, pair.turned))]
                    order = self._made.compiled(swapped(begin, kept))
                stuck += [] if tried else [pair for pair in left if pair in swaps or pair.turned in swaps]
                left = {pair: None for pair in left if pair not in tried and pair not in stuck}
        except EnoughError:
            why = f"the limit of {TRIALS} trials, or {SECONDS:g} s, was reached"
            return steps, same, [(pair, why) for pair in left]
        why = "no order was found in which one follows right upon the other"
        return steps, same, [(pair, why) for pair in (*stuck, *left)]

    def _with_neighbours(self, order: Plan, pairs: Collection[Pair]) -> Plan | None:
        """Return an order in which some of the pairs stand side by side: this one, the declared one, or another."""
        for begin in (order, self._plan):
            if neighbouring(begin, pairs):
                return begin
        together = self._made.compiled(brought_together(self._plan, pairs, self._free))
        return together if neighbouring(together, pairs) else None
