"""What `check --commute` and `bisect` say of pairs of hooks whose order makes a difference, or none that was seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hookflow.graph.turning import Pair, meeting_points, pair_of
from hookflow.graph.why import Ambiguity, ways_to_state
from hookflow.numbers import counted

if TYPE_CHECKING:
    from hookflow.graph.plan import Plan
    from hookflow.trials.commute import Commuted, Step

LEAKS = "one of them holds other values in two trials of one order, from the time or from an earlier trial"
"""Why a pair that has been tried is not judged."""

NOISE = 6
"""How many values are named that are not compared."""


def lines(plan: Plan, commuted: Commuted, settled: Sequence[Ambiguity]) -> Iterator[tuple[str, str]]:
    """Yield what trials have shown, under the names of the lines of `check`; `settled` are alarms that they lift."""
    for step in commuted.steps:
        yield "differs", f"{_named(step.pairs)}: {step.difference}"
        yield "", f"({'; '.join(ways(plan, step))})"
    same, differing = len(commuted.same), len({pair for step in commuted.steps for pair in step.pairs})
    if tried := same + differing + len(commuted.leaking):
        took = f"{counted(commuted.trials, 'trial')} of {commuted.seconds / commuted.trials:.1f} s"
        seen = f"{differing} made a difference, {same} did not"
        pairs = f"{counted(tried, 'pair')} without a declared order"
        yield "commute", f"{pairs}, fired both ways: {seen} ({took})"
    else:
        yield "commute", "no pair of hooks that fire is without a declared order"
    if settled:
        pairs = _named(pair_of(one.point, one.first, one.then) for one in settled)
        yield "", f"(so these need no edge, though they touch the same: {pairs})"
    for why, untried in _by_reason(commuted.untried).items():
        yield "", f"not tried, since {why}: {_named(untried)}"
    if commuted.leaking:
        yield "", f"not judged, since {LEAKS}: {_named(commuted.leaking)}"
    if commuted.unlooked:
        yield "", "there are more pairs than were looked at"
    if commuted.noise:
        more = f", and {len(commuted.noise) - NOISE} more" * (len(commuted.noise) > NOISE)
        yield "", f"not compared, since it differs in trials of one order: {', '.join(commuted.noise[:NOISE])}{more}"


def to_json(plan: Plan, commuted: Commuted) -> dict[str, Any]:
    """Return the same as plain lists, mappings and values."""
    return {
        "differ": [step_to_json(plan, step) for step in commuted.steps],
        "same": [_pair(pair) for pair in commuted.same],
        "not_judged": [_pair(pair) for pair in commuted.leaking],
        "untried": [_pair(pair) | {"why": why} for pair, why in commuted.untried],
        "more": commuted.unlooked,
        "not_compared": list(commuted.noise),
        "trials": commuted.trials,
        "seconds": round(commuted.seconds, 3),
    }


def step_to_json(plan: Plan, step: Step) -> dict[str, Any]:
    """Return the pairs of a step, what differs, and how a file says which order is right."""
    found = step.difference
    parts = [
        {"of": part.name, "differing": part.differing, "total": part.total, "names": part.names, "source": part.source}
        for part in found.parts
    ]
    return {
        "pairs": [_pair(pair) for pair in step.pairs],
        "at": found.point,
        "parts": parts,
        "later": list(found.later),
        "text": str(found),
        "hint": "; ".join(ways(plan, step)),
    }


def ways(plan: Plan, step: Step) -> Sequence[str]:
    """Return how a file says which order is right, or that either is.

    Of hooks that meet at several points, the edge is one of this point alone.
    """
    pair = step.pairs[0]
    first, then = pair.hooks
    meeting = meeting_points(plan, first, then)
    if len(meeting) == 1:
        return ways_to_state(first, then)
    here = [
        f'{a} first{now}: points = [{{ at = "{pair.point}", after = ["{a}"] }}, …] in [hooks.{b}]'
        for a, b, now in ((first, then, ", as now"), (then, first, ""))
    ]
    closings = {f"before_{opened}": closing for opened, closing in plan.points.pairs.items()}
    halves = next((both for both in closings.items() if pair.point in both and meeting.issuperset(both)), None)
    if halves and pair.first[1] == pair.then[1] == "whole":
        here.append(
            f"each as one method around_{halves[0].removeprefix('before_')}: what is entered first is left last"
        )
    return here


def _pair(pair: Pair) -> dict[str, str]:
    first, then = pair.hooks
    return {"point": pair.point, "first": first, "then": then}


def _named(pairs: Iterable[Pair]) -> str:
    """Return pairs in words, each once with all its points."""
    points: dict[tuple[str, str], list[str]] = {}
    for pair in pairs:
        points.setdefault(pair.hooks, []).append(pair.point)
    return "; ".join(f"{first} and {then} at {', '.join(at)}" for (first, then), at in points.items())


def _by_reason(untried: Iterable[tuple[Pair, str]]) -> Mapping[str, list[Pair]]:
    reasons: dict[str, list[Pair]] = {}
    for pair, why in untried:
        reasons.setdefault(why, []).append(pair)
    return reasons
