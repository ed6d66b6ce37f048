"""How long the value of a slot lives, over the loop: who reads what is written only later, or is written in vain.

Order at one point is not all. What is read before anything writes it is the value of the round before: `metrics` read
at `after_train_epoch`, which fires ahead of the validation, are those of the last epoch. What lives on from round to
round, the weights and the state of hooks, is meant to be read so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from hookflow.errors import Problem, Where
from hookflow.graph.plan import Binding, Nodes, Plan
from hookflow.graph.points import Loop
from hookflow.graph.slots import SLOTS, Parts, root
from hookflow.pipeline.condition import METRICS, parse_condition

ANEW = ("batch", "outputs", "grads", "metrics", "scalars")
"""The slots that are made anew in each round: to read the one of the round before is seldom meant."""

LASTING = SLOTS.keys() - {*ANEW}
"""The slots that live on from round to round."""

RUNNER: Mapping[str, tuple[str, ...]] = {
    "batch": ("before_train_iter", "before_val_iter", "before_test_iter"),
    "outputs": ("global_forward_pre", "after_val_iter", "after_test_iter"),
    "grads": ("global_full_backward_pre",),
    "metrics": ("after_val_epoch", "after_test_epoch"),
}
"""Where the runner, or PyTorch, has written a slot when hooks fire there."""

SPENT: Mapping[str, tuple[str, ...]] = {"grads": ("after_optimizer_step", "after_train_iter")}
"""Where a slot has had its use in an iteration and is made anew before the next one: writing it there does nothing."""


@dataclass(frozen=True, slots=True)
class Stale:
    """`reader` reads `slot`, which is first written later, at `point`: by `writer`, or by the runner if that is None.

    So it reads what the round before has left; `round` is empty where there is no round before.
    """

    reader: Binding
    slot: str
    point: str
    writer: Binding | None
    round: str
    doubtful: bool
    """Whether it is hardly meant: nothing is there yet, or the slot is made anew in each round and this is what
    fires after something else of the round."""


@dataclass(frozen=True, slots=True)
class Vain:
    """`writer` writes `slot` where nobody uses it any more."""

    writer: Binding
    slot: str


@dataclass(frozen=True, slots=True)
class _Write:
    """Where in a round something is written; by the runner if `writer` is None."""

    place: int
    point: str
    writer: Binding | None


class Lifetimes:
    """What the hooks of a plan read and write over the loop."""

    def __init__(self, plan: Plan, validates_in_epoch: bool) -> None:
        self._plan = plan
        self.loop = Loop(plan.points, validates_in_epoch)
        self._parts = Parts((*RUNNER, *(slot for b in plan.bindings for slot in (*b.reads, *b.writes))))
        self._first: dict[str, _Write] = {}
        for slot, points in RUNNER.items():
            self._note(slot, (_Write(self.loop.place(point), point, None) for point in points))
        for binding in plan.bindings:
            for slot in _passing(binding.writes):
                self._note(slot, [_Write(self.loop.place(binding.point), binding.point, binding)])

    def _note(self, slot: str, writes: Iterable[_Write]) -> None:
        """Note where in a round a slot, and so each of its parts, is first written."""
        for write in writes:
            for part in self._parts.of([slot]):
                if part not in self._first or write.place < self._first[part].place:
                    self._first[part] = write

    def stale(self) -> Iterator[Stale]:
        """Yield who reads what the round before has left.

        A class may declare its slots for all of its methods: then the best of their points counts. A condition is asked
        at each.
        """
        fresh: set[tuple[str, str]] = set()
        late: dict[tuple[str, str], Stale] = {}
        for binding in self._plan.bindings:
            asked = _asked(binding)
            for slot in _passing(binding.reads):
                key = binding.hook, f"{slot} at {binding.point}" if slot in asked else slot
                if found := self._stale(binding, slot):
                    late.setdefault(key, found)
                else:
                    fresh.add(key)
        yield from (found for key, found in late.items() if key not in fresh)

    def _stale(self, reader: Binding, slot: str) -> Stale | None:
        writes = [self._first[part] for part in self._parts.of([slot]) if part in self._first]
        first = min(writes, key=lambda write: write.place, default=None)
        place = self.loop.place(reader.point)
        if first is None or place < 0 or first.place <= place:
            return None
        common = self.loop.common(reader.point, first.point)
        beside = self.loop.within(reader.point)[-1:] == (common,) and not reader.point.startswith("before_")
        doubtful = not common or (beside and root(slot) in ANEW)
        return Stale(reader, slot, first.point, first.writer, common, doubtful)

    def vain(self) -> Iterator[Vain]:
        """Yield who writes a slot at points alone where it has had its use, and that no hook reads behind it."""
        for slot, spent in SPENT.items():
            readers = (self.loop.place(b.point) for b in self._plan.bindings if slot in map(root, b.reads))
            last = max(readers, default=-1)
            writers: dict[str, list[Binding]] = {}
            for binding in self._plan.bindings:
                if slot in map(root, binding.writes):
                    writers.setdefault(binding.hook, []).append(binding)
            for several in writers.values():
                here = self.loop.place(several[0].point)
                if all(b.point in spent for b in several) and last < here:
                    yield Vain(several[0], slot)


def _passing(slots: Iterable[str]) -> Iterator[str]:
    """Yield the slots of which a value may be that of another round."""
    return (slot for slot in slots if root(slot) not in LASTING)


def _asked(binding: Binding) -> set[str]:
    """Return the slots that the condition of a binding may read."""
    names = parse_condition(binding.trigger.when).names if binding.trigger.when else ()
    return {f"{prefix}{name.removeprefix(METRICS)}" for name in names for prefix in (METRICS, "scalars.")}


def doubts(plan: Plan, nodes: Nodes, validates_in_epoch: bool) -> tuple[list[Problem], list[Problem]]:
    """Return warnings of what is hardly meant, and notes of what a reader of the plan may want to know."""
    lifetimes = Lifetimes(plan, validates_in_epoch)
    warnings: list[Problem] = []
    notes: list[Problem] = []
    for one in lifetimes.stale():
        told = _told(one, nodes[one.reader.hook].where)
        warnings += [told] if one.doubtful else []
        notes += [] if one.doubtful else [replace(told, hint="")]
    warnings += (_in_vain(one, nodes[one.writer.hook].where) for one in lifetimes.vain())
    return warnings, notes


def _told(one: Stale, where: Where) -> Problem:
    how = f' (when = "{one.reader.trigger.when}")' if one.slot in _asked(one.reader) else ""
    by = f' by "{one.writer.hook}"' if one.writer else ""
    what = f"what it reads is the last {one.round}'s" if one.round else "there is nothing to read yet"
    said = (
        f'hook "{one.reader.hook}" reads {one.slot} at {one.reader.point}{how}, and it is first written at {one.point}'
    )
    hint = f"fire it at {one.point} or later" + (f", if it is to read this {one.round}'s" if one.round else "")
    return Problem(f"{said}{by}: {what}", where, hint)


def _in_vain(one: Vain, where: Where) -> Problem:
    said = f'hook "{one.writer.hook}" writes {one.slot} at {one.writer.point}, when the step has already used them'
    return Problem(said, where, "fire it at before_optimizer_step")
