"""Two hooks that share no point: in what order the loop comes to them, and what one hands on to the other."""

from __future__ import annotations

from dataclasses import dataclass

from hookflow.graph.keyed import Parts, widest
from hookflow.graph.lifetimes import Lifetimes
from hookflow.graph.plan import Plan


@dataclass(frozen=True, slots=True)
class Apart:
    """`first` fires before `then` in each `round` of the loop (once a run, where that is empty).

    Both are empty where the loop comes to the one and the other by turns, or to one of them at any time. `rows` are
    their points in the order of the loop, each with its hook and the round that it is in. `handed` are the slots that
    one hook writes and the other reads, with both, and whether that is what the round before has left.
    """

    first: str
    then: str
    round: str
    rows: tuple[tuple[str, str, str], ...]
    handed: tuple[tuple[str, str, tuple[str, ...], str], ...]


def apart(plan: Plan, a: str, b: str, validates_in_epoch: bool) -> Apart:
    """Return what the loop decides between two hooks."""
    lifetimes = Lifetimes(plan, validates_in_epoch)
    loop = lifetimes.loop
    bound = [(binding.point, binding.hook) for binding in plan.bindings if binding.hook in (a, b)]
    rows = tuple((point, hook, ("", *loop.within(point))[-1]) for point, hook in dict.fromkeys(bound))
    places = {name: [loop.place(point) for point, hook in bound if hook == name] for name in (a, b)}
    first, then = sorted((a, b), key=places.__getitem__)
    certain = min(places[first], default=-1) >= 0 and max(places[first]) < min(places[then])
    common = loop.common(*(point for point, _ in bound)) if certain else ""
    handed = []
    for writer, reader in ((a, b), (b, a)):
        writes = [slot for binding in plan.bindings if binding.hook == writer for slot in binding.writes]
        reads = [slot for binding in plan.bindings if binding.hook == reader for slot in binding.reads]
        parts = Parts((*writes, *reads))
        if slots := widest(parts.of(writes) & parts.of(reads)):
            late = {one.slot: one.round for one in lifetimes.stale() if one.reader.hook == reader}
            left = next((late[slot] for slot in reads if slot in late and parts.of([slot]) & parts.of(slots)), "")
            handed.append((writer, reader, slots, left))
    return Apart(first if certain else "", then if certain else "", common, rows, tuple(handed))
