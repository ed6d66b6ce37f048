"""Slots over the rounds of the loop.

Hooks may read what the round before has left, and writes may come too late.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hookflow.errors import Problem
from hookflow.graph.plan import Binding, Nodes, Plan
from hookflow.graph.points import Loop
from hookflow.graph.slots import SLOT_DOCS, SlotParts, root
from hookflow.pipeline.condition import METRIC_PREFIX

TRANSIENT_SLOTS = ("batch", "outputs", "grads", "metrics", "scalars")
"""Slots that are new in each round: to read the one of the round before is seldom meant.

The others persist.
"""

RUNNER_WRITES: Mapping[str, tuple[str, ...]] = {
    "batch": ("before_train_iter", "before_val_iter", "before_test_iter", "before_predict_iter"),
    "outputs": ("global_forward_pre", "after_val_iter", "after_test_iter", "after_predict_iter"),
    "grads": ("global_full_backward_pre",),
    "metrics": ("after_val_epoch", "after_test_epoch"),
}
"""Where the runner, or PyTorch, has written a slot when hooks fire there."""

AFTER_STEP = ("after_optimizer_step", "after_train_iter")
"""Points at which gradients have been used: to write them there does nothing."""


@dataclass(frozen=True, slots=True)
class SlotWrite:
    """A write of a slot at `point`, by a hook's binding, or by the runner if `writer` is None.

    `place` is that of the point in a round of the loop.
    """

    place: int
    point: str
    writer: Binding | None


@dataclass(frozen=True, slots=True)
class StaleRead:
    """`reader` reads `slot`, which is first written later, at `point`, by `writer`.

    `writer` is None where the runner writes it. `reader` gets the value of the previous round;
    `round` is empty where there is no round before. It is `doubtful`, probably a mistake, if the
    slot has no value yet, or is new in each round and read after its last use.
    """

    reader: Binding
    slot: str
    point: str
    writer: Binding | None
    round: str
    doubtful: bool


class SlotLifetimes:
    """The reads and writes of all hooks over the loop."""

    def __init__(self, plan: Plan, validates_in_epoch: bool) -> None:
        self._plan = plan
        self.loop = Loop(plan.points, validates_in_epoch)
        touched = list(RUNNER_WRITES)
        for binding in plan.bindings:
            touched += binding.reads
            touched += binding.writes
        self._parts = SlotParts(touched)
        self._first_writes: dict[str, SlotWrite] = {}
        """Of each part of a slot, the first write in a round."""
        for slot, points in RUNNER_WRITES.items():
            for point in points:
                self._add_write(slot, point, None)
        for binding in plan.bindings:
            for slot in _iter_transient_slots(binding.writes):
                self._add_write(slot, binding.point, binding)

    def _add_write(self, slot: str, point: str, writer: Binding | None) -> None:
        write = SlotWrite(self.loop.place[point], point, writer)
        for part in self._parts.of([slot]):
            if part not in self._first_writes or write.place < self._first_writes[part].place:
                self._first_writes[part] = write

    def find_stale_reads(self) -> Iterator[StaleRead]:
        """Yield who reads what the round before has left.

        Among points that share a declaration it is the best one.
        """
        fresh: set[tuple[str, str]] = set()
        stale: dict[tuple[str, str], StaleRead] = {}
        for binding in self._plan.bindings:
            of_condition = _list_condition_slots(binding)
            for slot in _iter_transient_slots(binding.reads):
                declaration = (binding.hook, slot)
                if slot in of_condition:  # a condition belongs to one point
                    declaration = (binding.hook, f"{slot} at {binding.point}")
                result = self._find_stale(binding, slot)
                if result is None:
                    fresh.add(declaration)
                else:
                    stale.setdefault(declaration, result)
        for declaration, result in stale.items():
            if declaration not in fresh:
                yield result

    def _find_stale(self, reader: Binding, slot: str) -> StaleRead | None:
        writes = []
        for part in self._parts.of([slot]):
            if part in self._first_writes:
                writes.append(self._first_writes[part])
        if not writes:
            return None
        first = min(writes, key=lambda write: write.place)
        if not 0 <= self.loop.place[reader.point] < first.place:
            return None
        common = self.loop.common(reader.point, first.point)
        doubtful = not common
        if root(slot) in TRANSIENT_SLOTS and not reader.point.startswith("before_"):
            innermost = self.loop.within[reader.point][-1:]
            doubtful = doubtful or innermost == (common,)
        return StaleRead(reader, slot, first.point, first.writer, common, doubtful)

    def find_grads_after_step(self) -> Iterator[Binding]:
        """Yield the first binding of each hook that writes gradients only after the step.

        A hook is left out if another one reads these gradients.
        """
        last_read = -1
        writers: dict[str, list[Binding]] = {}
        for binding in self._plan.bindings:
            if any(root(slot) == "grads" for slot in binding.reads):
                last_read = max(last_read, self.loop.place[binding.point])
            if any(root(slot) == "grads" for slot in binding.writes):
                writers.setdefault(binding.hook, []).append(binding)
        for bound in writers.values():
            all_late = all(binding.point in AFTER_STEP for binding in bound)
            if all_late and last_read < self.loop.place[bound[0].point]:
                yield bound[0]


def find_doubtful_lifetimes(
    plan: Plan, nodes: Nodes, validates_in_epoch: bool
) -> tuple[list[Problem], list[Problem]]:
    """Return warnings of probable mistakes, and notes for readers of the plan."""
    lifetimes = SlotLifetimes(plan, validates_in_epoch)
    warnings: list[Problem] = []
    notes: list[Problem] = []
    for stale in lifetimes.find_stale_reads():
        where = nodes[stale.reader.hook].where
        message = _describe_stale(stale)
        if not stale.doubtful:
            notes.append(Problem(message, where))
            continue
        hint = f"fire it at {stale.point} or later"
        if stale.round:
            hint += f", if it is to read this {stale.round}'s"
        warnings.append(Problem(message, where, hint))
    for writer in lifetimes.find_grads_after_step():
        message = (
            f'hook "{writer.hook}" writes grads at {writer.point}, when the step has already used'
            " them"
        )
        warnings.append(
            Problem(message, nodes[writer.hook].where, "fire it at before_optimizer_step")
        )
    return warnings, notes


def _describe_stale(stale: StaleRead) -> str:
    reader = stale.reader
    message = f'hook "{reader.hook}" reads {stale.slot} at {reader.point}'
    if stale.slot in _list_condition_slots(reader):
        message += f' (when = "{reader.trigger.when}")'
    message += f", and it is first written at {stale.point}"
    if stale.writer is not None:
        message += f' by "{stale.writer.hook}"'
    if stale.round:
        return f"{message}: what it reads is the last {stale.round}'s"
    return f"{message}: there is nothing to read yet"


def _iter_transient_slots(slots: Iterable[str]) -> Iterator[str]:
    """Yield the slots of which a value may be that of another round."""
    for slot in slots:
        if root(slot) in TRANSIENT_SLOTS or root(slot) not in SLOT_DOCS:
            yield slot


def _list_condition_slots(binding: Binding) -> set[str]:
    """Return the slots that the condition of a binding may read."""
    if not binding.trigger.when:
        return set()
    slots = set()
    for name in binding.trigger.when.names:
        plain = name.removeprefix(METRIC_PREFIX)
        slots.add(f"{METRIC_PREFIX}{plain}")
        slots.add(f"scalars.{plain}")
    return slots
