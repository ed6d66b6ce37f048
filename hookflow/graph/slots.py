"""Slots: named pieces of run state that hooks read and write, and their parts, such as `metrics.accuracy`."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from hookflow.errors import Problem, misspelt, nearest
from hookflow.graph.plan import Binding, Nodes, Plan
from hookflow.graph.points import Loop, Point
from hookflow.pipeline.condition import METRICS, parse_condition


def root(slot: str) -> str:
    return slot.partition(".")[0]


def wider(slot: str) -> Iterator[str]:
    """Yield the slots that a slot is a part of."""
    while "." in slot:
        slot = slot.rpartition(".")[0]
        yield slot


class Parts:
    """The slots that are touched at one point. Two hooks that touch the same slot share a name among the parts."""

    def __init__(self, names: Iterable[str]) -> None:
        self._parts: dict[str, list[str]] = {}
        for name in dict.fromkeys(names):
            for slot in (name, *wider(name)):
                self._parts.setdefault(slot, []).append(name)

    def of(self, slots: Iterable[str]) -> set[str]:
        """Return the slots with all of their parts that anybody touches."""
        return {part for slot in slots for part in self._parts[slot]}


def widest(slots: Collection[str]) -> tuple[str, ...]:
    """Return the slots without those that are a part of another one."""
    return tuple(sorted(slot for slot in slots if not any(other in slots for other in wider(slot))))


SLOTS: dict[str, str] = {
    "batch": "the current batch",
    "outputs": "what the task made of the batch: the loss, scalars, predictions",
    "grads": "the gradients of the parameters",
    "model": "the parameters and buffers of the network",
    "optimizer": "the optimizer's state and settings, but for the learning rates",
    "lr": "the learning rates of the parameter groups",
    "metrics": "what a validation or test has found",
    "checkpoint": "the state that is about to be saved, or has been read; elsewhere, that it is to be saved",
    "control": "whether and how the training goes on: a skipped batch or step, the end of an epoch or of the run",
    "rng": "the random generators",
    "scalars": "the numbers that conditions (`when`) name: outputs of the training, and what hooks log",
    "hook": "a hook's own state, by its name: `hook.ema`",
}

Verb = Literal["reads", "writes"]
"""The verbs of a hook and a slot."""

VERBS: tuple[Verb, ...] = ("reads", "writes")

OFFERED = ("batch", "outputs", "metrics", "checkpoint")
"""The slots that points give to hooks as arguments."""

ALIKE = ("model", "grads", "optimizer", "lr", "metrics")
"""The slots of which every one of the processes that train together must hold the same."""


def commutes(slot: str, point: Point) -> bool:
    """Say whether writers of a slot need no order at a point: those who ask there for a stop, a skip, or a save."""
    return root(slot) == "control" or (root(slot) == "checkpoint" and root(slot) not in point.offers)


MANY = 50
"""Where so many slots have one user alone, that is how the pipeline is made, and no slip of the pen."""


def doubtful_slots(nodes: Nodes, disabled: Collection[str]) -> Iterator[Problem]:
    """Yield a warning for each slot that is probably misspelt, and each that hooks read and no hook writes.

    Slots of the runner itself (`SLOTS`) need no hook that writes them; what conditions name is looked at elsewhere.
    """
    readers, writers = _users(nodes, "reads"), _users(nodes, "writes")
    written = {part for slot in writers for part in (slot, *wider(slot))}
    siblings: dict[str, list[str]] = {}
    for slot in sorted(writers):
        siblings.setdefault(slot.rpartition(".")[0], []).append(slot)
    unwritten: dict[str, list[str]] = {}
    for slot, names in readers.items():
        near = siblings.get(slot.rpartition(".")[0], [])
        if slot == "hook":
            message = f'hook "{names[0]}" names a slot "hook", which is the state of no hook'
            yield Problem(message, nodes[names[0]].where, 'name one: "hook.ema"')
        elif owner := owner_of(slot):
            if owner not in nodes and owner not in disabled:
                message = f'hook "{names[0]}" reads the state of a hook "{owner}", which is not in this pipeline'
                yield Problem(message, nodes[names[0]].where, nearest(owner, nodes))
        elif slot not in written and writers.keys().isdisjoint(wider(slot)) and root(slot) != "scalars":
            misspelt_one = len(near) < MANY and any(misspelt(slot, other) for other in near)
            if misspelt_one or (root(slot) not in SLOTS and root(slot) not in written):
                unwritten[slot] = names
    for slot, names in unwritten.items() if len(unwritten) < MANY else ():
        verb = "reads" if len(names) == 1 else "read"
        hooks = " and ".join(f'"{name}"' for name in names)
        message = f'{hooks} {verb} the slot "{slot}", which no hook writes'
        near = siblings.get(slot.rpartition(".")[0], [])
        yield Problem(message, nodes[names[0]].where, nearest(slot, near if "." in slot else {*SLOTS, *near}))
    yield from _misspelt_writes(readers, writers, nodes)


def _misspelt_writes(
    readers: Mapping[str, list[str]], writers: Mapping[str, list[str]], nodes: Nodes
) -> Iterator[Problem]:
    """Yield a warning for each slot that one hook alone touches, and whose name is nearly that of another slot."""
    names: dict[str, set[str]] = {}
    for slot, hooks in (*writers.items(), *readers.items()):
        names.setdefault(root(slot), set()).update(hooks)
    lone = [slot for slot in dict.fromkeys(map(root, writers)) if slot not in SLOTS and len(names[slot]) == 1]
    for k, slot in enumerate(lone) if len(lone) < MANY else ():
        others = (*SLOTS, *lone[:k], *(name for name in names if len(names[name]) > 1))
        if other := next((name for name in others if misspelt(slot, name)), ""):
            (hook,) = names[slot]
            yield Problem(f'hook "{hook}" alone touches a slot "{slot}"', nodes[hook].where, f'did you mean "{other}"?')


def with_own_state(nodes: Nodes) -> Nodes:
    """Return the nodes with what each hook writes of its own state, where another one reads that: `hook.ema`."""
    read = {owner_of(slot) for node in nodes.values() for bound in node.bound for slot in bound.reads}
    result = dict(nodes)
    for name in [name for name in nodes if name in read]:
        bound = (replace(b, writes=tuple(sorted({*b.writes, f"hook.{name}"}))) for b in nodes[name].bound)
        result[name] = replace(nodes[name], bound=tuple(bound))
    return result


def owner_of(slot: str) -> str | None:
    """Return the hook whose state a slot is: "ema" of `hook.ema`, also of a part of it; None for another slot."""
    kind, _, rest = slot.partition(".")
    return rest.partition(".")[0] if kind == "hook" and rest else None


def _users(nodes: Nodes, verb: Verb) -> dict[str, list[str]]:
    users: dict[str, dict[str, None]] = {}
    for name, node in nodes.items():
        for bound in node.bound:
            for slot in getattr(bound, verb):
                users.setdefault(slot, {})[name] = None
    return {slot: [*names] for slot, names in users.items()}


def drifting_slots(nodes: Nodes) -> Iterator[Problem]:
    """Yield a warning for each hook that fires on rank 0 alone and writes what must be the same on all ranks."""
    for name, node in nodes.items():
        written = {root(slot) for bound in node.bound for slot in bound.writes}
        if node.hook.ranks == "zero" and (apart := [slot for slot in ALIKE if slot in written]):
            message = (
                f'hook "{name}" fires on rank 0 alone and writes {", ".join(apart)}: several ranks would drift apart'
            )
            yield Problem(message, node.where, 'let it fire on all: ranks = "all"')


ANEW = ("batch", "outputs", "grads", "metrics", "scalars")
"""Slots that are new in each round: to read the one of the round before is seldom meant. The others persist."""

RUNNER: Mapping[str, tuple[str, ...]] = {
    "batch": ("before_train_iter", "before_val_iter", "before_test_iter", "before_predict_iter"),
    "outputs": ("global_forward_pre", "after_val_iter", "after_test_iter", "after_predict_iter"),
    "grads": ("global_full_backward_pre",),
    "metrics": ("after_val_epoch", "after_test_epoch"),
}
"""Where the runner, or PyTorch, has written a slot when hooks fire there."""

AFTER_STEP = ("after_optimizer_step", "after_train_iter")
"""Points at which gradients have been used: to write them there does nothing."""


@dataclass(frozen=True, slots=True)
class Stale:
    """`reader` reads `slot`, which is first written later, at `point`: by `writer`, or by the runner if that is None.

    It reads the value of the previous round; `round` is empty where there is no round before.
    """

    reader: Binding
    slot: str
    point: str
    writer: Binding | None
    round: str
    doubtful: bool
    """Whether it is probably a mistake: the slot has no value yet, or is new in each round and fires after its last
    use."""


class Lifetimes:
    """The reads and writes of all hooks over the loop."""

    def __init__(self, plan: Plan, validates_in_epoch: bool) -> None:
        self._plan = plan
        self.loop = Loop(plan.points, validates_in_epoch)
        self._parts = Parts((*RUNNER, *(slot for b in plan.bindings for slot in (*b.reads, *b.writes))))
        self._first: dict[str, tuple[int, str, Binding | None]] = {}
        """Of each part where in a round it is first written, at which point, and by which hook, or by the runner."""
        writes: list[tuple[str, str, Binding | None]] = []
        writes += ((slot, point, None) for slot, points in RUNNER.items() for point in points)
        writes += ((slot, b.point, b) for b in plan.bindings for slot in _passing(b.writes))
        for slot, point, writer in writes:
            place = self.loop.place[point]
            for part in self._parts.of([slot]):
                if part not in self._first or place < self._first[part][0]:
                    self._first[part] = place, point, writer

    def stale(self) -> Iterator[Stale]:
        """Yield who reads what the round before has left, at the best of the points that share a declaration."""
        fresh: set[tuple[str, str]] = set()
        late: dict[tuple[str, str], Stale] = {}
        for binding in self._plan.bindings:
            requested = _asked(binding)
            for slot in _passing(binding.reads):
                key = binding.hook, f"{slot} at {binding.point}" if slot in requested else slot
                if result := self._stale(binding, slot):
                    late.setdefault(key, result)
                else:
                    fresh.add(key)
        yield from (result for key, result in late.items() if key not in fresh)

    def _stale(self, reader: Binding, slot: str) -> Stale | None:
        writes = [self._first[part] for part in self._parts.of([slot]) if part in self._first]
        first, point, writer = min(writes, key=lambda write: write[0], default=(-1, "", None))
        if not 0 <= self.loop.place[reader.point] < first:
            return None
        common = self.loop.common(reader.point, point)
        beside = self.loop.within[reader.point][-1:] == (common,) and not reader.point.startswith("before_")
        return Stale(reader, slot, point, writer, common, not common or (beside and root(slot) in ANEW))

    def vain(self) -> Iterator[Binding]:
        """Yield the first binding of each hook that writes gradients only after the step, if no hook reads them."""
        reads = (self.loop.place[b.point] for b in self._plan.bindings if "grads" in map(root, b.reads))
        last = max(reads, default=-1)
        writers: dict[str, list[Binding]] = {}
        for binding in self._plan.bindings:
            if "grads" in map(root, binding.writes):
                writers.setdefault(binding.hook, []).append(binding)
        for bound in writers.values():
            if all(b.point in AFTER_STEP for b in bound) and last < self.loop.place[bound[0].point]:
                yield bound[0]


def _passing(slots: Iterable[str]) -> Iterator[str]:
    """Yield the slots of which a value may be that of another round."""
    return (slot for slot in slots if root(slot) in ANEW or root(slot) not in SLOTS)


def _asked(binding: Binding) -> set[str]:
    """Return the slots that the condition of a binding may read."""
    names = parse_condition(binding.trigger.when).names if binding.trigger.when else ()
    return {f"{prefix}{name.removeprefix(METRICS)}" for name in names for prefix in (METRICS, "scalars.")}


def doubts(plan: Plan, nodes: Nodes, validates_in_epoch: bool) -> tuple[list[Problem], list[Problem]]:
    """Return warnings of probable mistakes, and notes for readers of the plan."""
    lifetimes = Lifetimes(plan, validates_in_epoch)
    warnings: list[Problem] = []
    notes: list[Problem] = []
    for stale in lifetimes.stale():
        reader = stale.reader
        how = f' (when = "{reader.trigger.when}")' if stale.slot in _asked(reader) else ""
        message = (
            f'hook "{reader.hook}" reads {stale.slot} at {reader.point}{how}, and it is first written at {stale.point}'
        )
        message += f' by "{stale.writer.hook}"' if stale.writer else ""
        message += f": what it reads is the last {stale.round}'s" if stale.round else ": there is nothing to read yet"
        hint = f"fire it at {stale.point} or later"
        hint += f", if it is to read this {stale.round}'s" if stale.round else ""
        where = nodes[reader.hook].where
        if stale.doubtful:
            warnings.append(Problem(message, where, hint))
        else:
            notes.append(Problem(message, where))
    for writer in lifetimes.vain():
        message = f'hook "{writer.hook}" writes grads at {writer.point}, when the step has already used them'
        warnings.append(Problem(message, nodes[writer.hook].where, "fire it at before_optimizer_step"))
    return warnings, notes
