"""What differs between two trials, in what, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hookflow.runner.fingerprint import OF_SEVERAL, Leaves
from hookflow.runner.fingerprint import Path as Leaf
from hookflow.runner.probe import Visit
from hookflow.runner.trial import Trace

WORDS = {
    "model": "model",
    "gradients": "gradients",
    "modes": "training or evaluation mode of modules",
    "optimizer": "optimizer",
    "lr": "learning rates",
    "rng": "random generators",
    "metrics": "metrics",
    "outputs": "outputs",
    "batch": "batch",
    "checkpoint": "checkpoint",
    "logged": "logged",
    "task": "task",
}
"""What the parts of a trace are called, in the order in which they are told."""

NAMED = 3
"""How many values are named, of a part in which several differ."""


@dataclass(frozen=True, slots=True)
class Part:
    """`differing` of the `total` values of a part differ: the model, a hook's attributes, a file.

    `names` are the first of them. `source` is what one of the two trials has taken all of them from.
    """

    name: str
    differing: int
    total: int
    names: tuple[str, ...]
    source: str = ""

    def __str__(self) -> str:
        unit = "values" if self.name not in ("model", "gradients") else "tensors"
        of = f"{self.differing} of {self.total} {unit}"
        said = f"{self.name}: {', '.join(self.names)}" if self.differing <= NAMED < self.total else f"{self.name}: {of}"
        if self.total <= NAMED:
            said = f"{self.name}: {', '.join(self.names)}" if self.names != ("",) else self.name
        return f"{said}, from `{self.source}`" if self.source else said


@dataclass(frozen=True, slots=True)
class Difference:
    """What two trials differ in: first at `point`, in `parts`, and afterwards in what `later` names, too.

    `raised` says which of them has raised what, if that is how they differ.
    """

    point: str
    parts: tuple[Part, ...]
    later: tuple[str, ...] = ()
    raised: str = ""

    def __str__(self) -> str:
        if self.raised:
            return self.raised
        more = f" and {len(self.later) - NAMED} more" * (len(self.later) > NAMED)
        later = f"; later in {', '.join(self.later[:NAMED])}{more}" if self.later else ""
        return f"differ in {'; in '.join(map(str, self.parts))}{later}"


def difference(a: Trace, b: Trace, noise: frozenset[Leaf]) -> Difference | None:
    """Return what a trial and one of another order differ in, but for noise; None where no difference is seen."""
    found = list(_visits(a, b, noise))
    point = found[0][0].point if found else ""
    if a.raised != b.raised:
        ways = (("as it is", a), ("the other way round", b))
        said = "; ".join(f"{name} it raises {trace.raised}" for name, trace in ways if trace.raised)
        return Difference(point, (), raised=said)
    if not found:
        places = [[(visit.point, visit.iter) for visit in trace.visits] for trace in (a, b)]
        return None if places[0] == places[1] else Difference("", (), raised="differ in which points are fired")
    (one, other, differing), *rest = found
    parts = tuple(_parts(one.leaves, other.leaves, differing))
    later = dict.fromkeys(_part(leaf) for *_, leaves in rest for leaf in leaves)
    return Difference(point, parts, tuple(name for name in later if name not in {part.name for part in parts}))


def _visits(a: Trace, b: Trace, noise: frozenset[Leaf]) -> Iterator[tuple[Visit, Visit, list[Leaf]]]:
    """Yield the visits of the same place that differ, with the values that do."""
    for one, other in zip(a.visits, b.visits, strict=False):
        if (one.point, one.iter) != (other.point, other.iter):
            return
        if differing := [leaf for leaf in _differing(one.leaves, other.leaves) if whose(leaf) not in noise]:
            yield one, other, differing


def changing(a: Trace, b: Trace) -> frozenset[Leaf]:
    """Return what differs between two trials of the same order: times, and what follows from them."""
    visits = zip(a.visits, b.visits, strict=False)
    return frozenset(whose(leaf) for one, other in visits for leaf in _differing(one.leaves, other.leaves))


def whose(leaf: Leaf) -> Leaf:
    """Return what is compared or not as a whole: what a hook knows, or else the value alone.

    Of a hook with one value that depends on the time, the others may do so, too, now and then.
    """
    if leaf[:2] == ("checkpoint", "hooks"):
        leaf = leaf[1:]
    return leaf[:2] if leaf[0] == "hooks" else leaf


def _differing(a: Leaves, b: Leaves) -> list[Leaf]:
    return [] if a == b else [leaf for leaf in {**a, **b} if a.get(leaf) != b.get(leaf)]


def _part(leaf: Leaf) -> str:
    """Return the part that a value belongs to, as people call it."""
    if leaf[0] == "hooks":
        return f"`{leaf[1]}`"
    if leaf[0] == "files":
        return f"the file {leaf[1]}"
    return WORDS[leaf[0]]


def _within(leaf: Leaf) -> str:
    return ".".join(leaf[2:] if leaf[0] in ("hooks", "files") else leaf[1:])


def _parts(a: Leaves, b: Leaves, differing: Sequence[Leaf]) -> Iterator[Part]:
    grouped: dict[str, list[Leaf]] = {}
    for leaf in differing:
        grouped.setdefault(_part(leaf), []).append(leaf)
    totals: dict[str, int] = {}
    for leaf in {**a, **b}:
        totals[_part(leaf)] = totals.get(_part(leaf), 0) + 1
    order = [*WORDS.values()]
    for name in sorted(grouped, key=lambda name: (order.index(name) if name in order else len(order), name)):
        leaves = grouped[name]
        yield Part(name, len(leaves), totals[name], tuple(map(_within, leaves[:NAMED])), _source(a, b, leaves))


def _source(a: Leaves, b: Leaves, leaves: Sequence[Leaf]) -> str:
    """Return the attribute of a hook that holds, in one trial, what all of these values are in the other one."""
    values = [value for leaf in leaves for trace in (a, b) if (value := trace.get(leaf))]
    if any(leaf[0] == "hooks" for leaf in leaves) or not all(value.startswith(OF_SEVERAL) for value in values):
        return ""
    for here, there in ((a, b), (b, a)):
        held: dict[bytes, set[str]] = {}
        for leaf, value in there.items():
            if leaf[0] == "hooks":
                held.setdefault(value, set()).add(".".join(leaf[1:3]))
        found = [held.get(here[leaf], set()) if leaf in here else set() for leaf in leaves]
        if common := set.intersection(*found):
            return min(common)
    return ""
