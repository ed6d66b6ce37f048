"""Observed reads and writes of hooks, compared with their declarations."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from hookflow.graph.plan import Binding, Plan
from hookflow.graph.slots import VERBS, Verb, commutes, owner_of, root, wider, widest
from hookflow.graph.why import Ambiguity, ambiguities, clash, key

MANY = 4
"""A hook that touches more parts of these slots is reported with the whole slot."""
CROWDED = ("outputs", "metrics", "checkpoint", "scalars")


@dataclass(frozen=True, slots=True)
class Slots:
    """Slots that are read, and slots that are written."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.reads or self.writes)

    def of(self, verb: Verb) -> tuple[str, ...]:
        return self.reads if verb == "reads" else self.writes

    def by_verb(self) -> Iterator[tuple[Verb, tuple[str, ...]]]:
        """Yield what is read, and what is written, if there is any."""
        yield from ((verb, self.of(verb)) for verb in VERBS if self.of(verb))

    def __or__(self, other: "Slots") -> "Slots":
        return Slots(_summed((*self.reads, *other.reads)), _summed((*self.writes, *other.writes)))


@dataclass(frozen=True, slots=True)
class Seen:
    """The slots touched by the firings of one binding."""

    binding: Binding
    firings: int
    touched: Slots


Method = tuple[str, str]
"""A hook and its method, for which slots are declared; of a plain function the method is empty."""


def missing(plan: Plan, observed: Sequence[Seen]) -> dict[Method, Slots]:
    """Return what methods were seen to touch that they do not declare.

    A declared write includes the read. A hook's own state is private until another hook touches it, and what it logs
    until another one reads that. A request to save needs no order outside of the iteration.
    """
    declared = {(binding.hook, binding.method): binding for binding in plan.bindings}
    shared = _shared(observed)
    touched: defaultdict[Method, Slots] = defaultdict(Slots)

    def matters(slot: str, binding: Binding) -> bool:
        point = plan.points[binding.point]
        if root(slot) == "checkpoint" and commutes(slot, point):
            return plan.points.in_iteration(point.name)
        return root(slot) not in ("hook", "scalars", "task") or _met(slot, shared)

    for seen in observed:
        binding = seen.binding
        both = seen.touched.reads, seen.touched.writes
        slots = Slots(*(tuple(slot for slot in touching if matters(slot, binding)) for touching in both))
        touched[binding.hook, binding.method] |= slots
    result = {}
    for method, slots in touched.items():
        reads, writes = declared[method].reads, declared[method].writes
        result[method] = Slots(
            tuple(slot for slot in slots.reads if not covered(slot, (*reads, *writes))),
            tuple(slot for slot in slots.writes if not covered(slot, writes)),
        )
    return {method: slots for method, slots in result.items() if slots}


def never_seen(observed: Sequence[Seen]) -> dict[str, Slots]:
    """Return, by hook that has fired, the declared slots that no firing of the hook has touched."""
    touched: defaultdict[str, Slots] = defaultdict(Slots)
    declared: defaultdict[str, Slots] = defaultdict(Slots)
    for seen in observed:
        if seen.firings:
            touched[seen.binding.hook] |= seen.touched
            declared[seen.binding.hook] |= Slots(seen.binding.reads, seen.binding.writes)
    result = {
        name: Slots(
            tuple(slot for slot in slots.reads if not _met(slot, touched[name].reads)),
            tuple(slot for slot in slots.writes if not _met(slot, touched[name].writes)),
        )
        for name, slots in declared.items()
    }
    return {name: slots for name, slots in result.items() if slots}


def with_observed(plan: Plan, observed: Sequence[Seen]) -> Plan:
    """Return the plan with what was seen beside what is declared. No edge follows from that."""
    more = missing(plan, observed)
    bindings = []
    for binding in plan.bindings:
        slots = more.get((binding.hook, binding.method), Slots())
        reads, writes = widest({*binding.reads, *slots.reads}), widest({*binding.writes, *slots.writes})
        bindings.append(replace(binding, reads=reads, writes=writes))
    return replace(plan, bindings=tuple(bindings))


def turned(observed: Plan, declared: Plan) -> Iterator[Ambiguity]:
    """Yield each pair that clashes by what was seen, and fires the other way round once that is declared."""
    for point in observed.order:
        places = {key(binding): k for k, binding in enumerate(declared.at(point))}
        for first, then in combinations(observed.at(point), 2):
            turns = first.hook != then.hook and places[key(then)] < places[key(first)]
            if turns and (slots := clash(observed.points[point], first, then)):
                yield Ambiguity(point, first, then, slots)


def undecided(observed: Plan, more: Mapping[Method, Slots]) -> Iterator[Ambiguity]:
    """Yield each pair of a hook that changes a slot, `first`, and one that reads it, where nothing states the order.

    Declarations would put the change first, and that may be the mistake: a saver that must not see it. A hook that
    alone writes a slot, without reading it, makes the value, and its readers wait for it. `more` are the slots not
    declared.
    """
    writers: dict[str, set[str]] = {}
    for binding in observed.bindings:
        for slot in binding.writes:
            writers.setdefault(slot, {owner_of(slot) or binding.hook}).add(binding.hook)
    for ambiguity in ambiguities(observed):
        for change, reader in ((ambiguity.first, ambiguity.then), (ambiguity.then, ambiguity.first)):
            new = [more.get((binding.hook, binding.method), Slots()) for binding in (change, reader)]
            changed = [slot for slot in new[0].writes if _met(slot, change.reads) or len(writers[slot]) > 1]
            read = (slot for slot in new[1].reads if _met(slot, changed) and not _met(slot, reader.writes))
            if slots := tuple(read):
                yield Ambiguity(ambiguity.point, change, reader, slots)


def without_reads(more: Mapping[Method, Slots], pairs: Iterable[Ambiguity]) -> dict[Method, Slots]:
    """Return the slots without those that the second hook of a pair reads: that would put the first one first."""
    held: dict[Method, set[str]] = {}
    for pair in pairs:
        held.setdefault((pair.then.hook, pair.then.method), set()).update(pair.slots)
    kept = {
        method: replace(slots, reads=tuple(slot for slot in slots.reads if slot not in held.get(method, ())))
        for method, slots in more.items()
    }
    return {method: slots for method, slots in kept.items() if slots}


def covered(slot: str, declared: Collection[str]) -> bool:
    """Say whether a slot, or one that it is a part of, is among those declared."""
    return slot in declared or any(other in declared for other in wider(slot))


def _met(slot: str, touched: Collection[str]) -> bool:
    """Say whether a slot, one that it is a part of, or a part of it was touched."""
    return covered(slot, touched) or any(slot in wider(other) for other in touched)


def _shared(observed: Iterable[Seen]) -> set[str]:
    """Return the slots of hooks and of the task that other hooks touch, and the logged numbers that hooks read."""
    result: set[str] = set()
    users: dict[str, set[str]] = {}
    written: set[str] = set()
    for seen in observed:
        binding, touched = seen.binding, seen.touched
        for slot in (*touched.reads, *touched.writes):
            if root(slot) == "task":
                users.setdefault(slot, set()).add(binding.hook)
        written |= {*touched.writes}
        result.update(slot for slot in (*binding.reads, *touched.reads) if root(slot) == "scalars")
        for slot in (*binding.reads, *binding.writes, *touched.reads, *touched.writes):
            if root(slot) == "hook" and owner_of(slot) != binding.hook:
                result.add(slot)
    return result | {slot for slot, hooks in users.items() if len(hooks) > 1 and slot in written}


def _summed(slots: Collection[str]) -> tuple[str, ...]:
    """Return slots without the parts of others among them; of many parts of one, that one."""
    parts = Counter(root(slot) for slot in {*slots} if slot != root(slot) and root(slot) in CROWDED)
    return widest({*slots, *(slot for slot, many in parts.items() if many > MANY)})
