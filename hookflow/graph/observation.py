"""Observed reads and writes of hooks, compared with their declarations."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from hookflow.graph.plan import Binding, Plan
from hookflow.graph.slots import (
    SLOT_VERBS,
    Verb,
    find_owner,
    is_commuting,
    iter_wider_slots,
    root,
    select_widest_slots,
)
from hookflow.graph.swaps import make_binding_key
from hookflow.graph.why import Ambiguity, find_ambiguities, find_clashing_slots

MAX_PARTS = 4
"""A hook that touches more parts of these slots is reported with the whole slot."""
CROWDED_SLOTS = ("outputs", "metrics", "checkpoint", "scalars")


@dataclass(frozen=True, slots=True)
class Slots:
    """Slots that are read, and slots that are written."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.reads or self.writes)

    def of(self, verb: Verb) -> tuple[str, ...]:
        if verb == "reads":
            return self.reads
        return self.writes

    def iter_by_verb(self) -> Iterator[tuple[Verb, tuple[str, ...]]]:
        """Yield what is read, and what is written, if there is any."""
        for verb in SLOT_VERBS:
            if self.of(verb):
                yield verb, self.of(verb)

    def __or__(self, other: "Slots") -> "Slots":
        return Slots(
            _merge_slots((*self.reads, *other.reads)), _merge_slots((*self.writes, *other.writes))
        )


@dataclass(frozen=True, slots=True)
class ObservedBinding:
    """The slots touched by the firings of one binding."""

    binding: Binding
    firings: int
    touched: Slots


Method = tuple[str, str]
"""A hook and its method, for which slots are declared; of a plain function the method is empty."""


def missing(plan: Plan, observed: Sequence[ObservedBinding]) -> dict[Method, Slots]:
    """Return what methods were seen to touch that they do not declare.

    A declared write includes the read.
    """
    declared = {(binding.hook, binding.method): binding for binding in plan.bindings}
    shared = _shared(observed)
    touched: defaultdict[Method, Slots] = defaultdict(Slots)
    for seen in observed:
        binding = seen.binding
        reads = [slot for slot in seen.touched.reads if _is_to_declare(plan, slot, binding, shared)]
        writes = [
            slot for slot in seen.touched.writes if _is_to_declare(plan, slot, binding, shared)
        ]
        touched[binding.hook, binding.method] |= Slots(tuple(reads), tuple(writes))
    result = {}
    for method, slots in touched.items():
        writes_declared = declared[method].writes
        any_declared = (*declared[method].reads, *writes_declared)
        reads = [slot for slot in slots.reads if not is_covered(slot, any_declared)]
        writes = [slot for slot in slots.writes if not is_covered(slot, writes_declared)]
        if reads or writes:
            result[method] = Slots(tuple(reads), tuple(writes))
    return result


def _is_to_declare(plan: Plan, slot: str, binding: Binding, shared: Collection[str]) -> bool:
    """Say whether a slot that a binding touches is to be declared.

    A hook's own state is private until another hook touches it, and what it logs until another one
    reads that. A request to save needs no order outside of the iteration.
    """
    point = plan.points[binding.point]
    kind = root(slot)
    if kind == "checkpoint" and is_commuting(slot, point):
        return plan.points.in_iteration(point.name)
    if kind in ("hook", "scalars", "task"):
        return _is_touched(slot, shared)
    return True


def find_unseen_slots(observed: Sequence[ObservedBinding]) -> dict[str, Slots]:
    """Return, by hook that has fired, the declared slots that no firing of the hook has touched."""
    touched: defaultdict[str, Slots] = defaultdict(Slots)
    declared: defaultdict[str, Slots] = defaultdict(Slots)
    for seen in observed:
        if seen.firings:
            touched[seen.binding.hook] |= seen.touched
            declared[seen.binding.hook] |= Slots(seen.binding.reads, seen.binding.writes)
    result = {}
    for name, slots in declared.items():
        reads = [slot for slot in slots.reads if not _is_touched(slot, touched[name].reads)]
        writes = [slot for slot in slots.writes if not _is_touched(slot, touched[name].writes)]
        if reads or writes:
            result[name] = Slots(tuple(reads), tuple(writes))
    return result


def with_observed(plan: Plan, observed: Sequence[ObservedBinding]) -> Plan:
    """Return the plan with what was seen beside what is declared. No edge follows from that."""
    more = missing(plan, observed)
    bindings = []
    for binding in plan.bindings:
        slots = more.get((binding.hook, binding.method), Slots())
        reads = select_widest_slots({*binding.reads, *slots.reads})
        writes = select_widest_slots({*binding.writes, *slots.writes})
        bindings.append(replace(binding, reads=reads, writes=writes))
    return replace(plan, bindings=tuple(bindings))


def find_turned_pairs(observed: Plan, declared: Plan) -> Iterator[Ambiguity]:
    """Yield each pair that clashes by what was seen and fires the other way once it is declared."""
    for point in observed.order:
        places = {
            make_binding_key(binding): place for place, binding in enumerate(declared.at(point))
        }
        for first, then in combinations(observed.at(point), 2):
            if (
                first.hook == then.hook
                or places[make_binding_key(first)] < places[make_binding_key(then)]
            ):
                continue
            slots = find_clashing_slots(observed.points[point], first, then)
            if slots:
                yield Ambiguity(point, first, then, slots)


def find_undecided_pairs(observed: Plan, more: Mapping[Method, Slots]) -> Iterator[Ambiguity]:
    """Yield each pair of a hook that changes a slot and one that reads it, in no stated order.

    The hook that changes it is `first`. Declarations would put the change first, and that may be
    the mistake: a saver that must not see it. A hook that alone writes a slot, without reading it,
    makes the value, and its readers wait for it. `more` are the slots not declared.
    """
    writers: dict[str, set[str]] = {}
    for binding in observed.bindings:
        for slot in binding.writes:
            owner = find_owner(slot) or binding.hook
            writers.setdefault(slot, {owner}).add(binding.hook)
    for ambiguity in find_ambiguities(observed):
        for change, reader in (
            (ambiguity.first, ambiguity.then),
            (ambiguity.then, ambiguity.first),
        ):
            new_writes = more.get((change.hook, change.method), Slots()).writes
            new_reads = more.get((reader.hook, reader.method), Slots()).reads
            changed = [
                slot
                for slot in new_writes
                if _is_touched(slot, change.reads) or len(writers[slot]) > 1
            ]
            read = [
                slot
                for slot in new_reads
                if _is_touched(slot, changed) and not _is_touched(slot, reader.writes)
            ]
            if read:
                yield Ambiguity(ambiguity.point, change, reader, tuple(read))


def without_reads(more: Mapping[Method, Slots], pairs: Iterable[Ambiguity]) -> dict[Method, Slots]:
    """Return the slots without those that the second hook of a pair reads.

    These would put the first hook first.
    """
    held: defaultdict[Method, set[str]] = defaultdict(set)
    for pair in pairs:
        held[pair.then.hook, pair.then.method].update(pair.slots)
    result = {}
    for method, slots in more.items():
        reads = [slot for slot in slots.reads if slot not in held[method]]
        kept = replace(slots, reads=tuple(reads))
        if kept:
            result[method] = kept
    return result


def is_covered(slot: str, declared: Collection[str]) -> bool:
    """Say whether a slot, or one that it is a part of, is among those declared."""
    return slot in declared or any(other in declared for other in iter_wider_slots(slot))


def _is_touched(slot: str, touched: Collection[str]) -> bool:
    """Say whether a slot, one that it is a part of, or a part of it was touched."""
    return is_covered(slot, touched) or any(slot in iter_wider_slots(other) for other in touched)


def _shared(observed: Iterable[ObservedBinding]) -> set[str]:
    """Return the shared slots of hooks and of the task.

    Slots are shared that other hooks touch, and logged numbers that hooks read.
    """
    shared: set[str] = set()
    users_of_task: defaultdict[str, set[str]] = defaultdict(set)
    written: set[str] = set()
    for seen in observed:
        binding = seen.binding
        written.update(seen.touched.writes)
        touched = {*seen.touched.reads, *seen.touched.writes}
        for slot in touched:
            if root(slot) == "task":
                users_of_task[slot].add(binding.hook)
        for slot in (*binding.reads, *seen.touched.reads):
            if root(slot) == "scalars":
                shared.add(slot)
        for slot in (*binding.reads, *binding.writes, *touched):
            if root(slot) == "hook" and find_owner(slot) != binding.hook:
                shared.add(slot)
    for slot, hooks in users_of_task.items():
        if len(hooks) > 1 and slot in written:
            shared.add(slot)
    return shared


def _merge_slots(slots: Collection[str]) -> tuple[str, ...]:
    """Return slots without the parts of others among them; of many parts of one, that one."""
    num_parts: Counter[str] = Counter()
    for slot in set(slots):
        if slot != root(slot) and root(slot) in CROWDED_SLOTS:
            num_parts[root(slot)] += 1
    crowded = [slot for slot, count in num_parts.items() if count > MAX_PARTS]
    return select_widest_slots({*slots, *crowded})
