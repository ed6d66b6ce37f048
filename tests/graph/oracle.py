"""What `docs/explanation/graph.md` says of order, done plainly: by rules, over and over, until
nothing new follows.

It knows nothing of how `hookflow.graph` goes about it. A place is a hook with one of its methods at
one of the two points; what must hold is a set of pairs of places, from which more follows:

- if A is before B and B before C, then A is before C;
- one around is entered before another exactly if it is left after it.

It is slow, and for a handful of hooks.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from hookflow.graph.plan import PHASES

OPENING, CLOSING = "before_val", "after_val"
Place = tuple[str, str, str]
"""A hook, a point, and how it stands there: "whole", "enter" or "exit"."""
Pair = tuple[Place, Place]


@dataclass(frozen=True)
class Described:
    """A hook as its author describes it.

    `near` are edges of one method alone, by the method's name.
    """

    name: str
    methods: tuple[str, ...]
    phase: str = "normal"
    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    near: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()

    def places(self) -> list[Place]:
        result: list[Place] = []
        for method in self.methods:
            if method == "around_val":
                result += [(self.name, OPENING, "enter"), (self.name, CLOSING, "exit")]
            else:
                result.append((self.name, method, "whole"))
        return result


def method_of(place: Place) -> str:
    return place[1] if place[2] == "whole" else "around_val"


class Oracle:
    """The order of a pipeline's hooks, or that there is none."""

    def __init__(self, hooks: Iterable[Described]) -> None:
        self.hooks = with_own_state(list(hooks))
        self.by_name = {hook.name: hook for hook in self.hooks}
        self.places = [place for hook in self.hooks for place in hook.places()]
        self.stated = {pair for pair in self._stated() if not both_exits(pair)}
        self.refused = contradictory(consequences(self.stated))
        if self.refused:
            return
        flows = self._flows() - self.stated
        implied = consequences(self.stated)
        self.contradicted = {(first, then) for first, then in flows if (then, first) in implied}
        rest = flows - self.contradicted
        together = consequences(self.stated | rest)
        self.circular = {(first, then) for first, then in rest if (then, first) in together}
        self.kept = rest - self.circular
        self.phases = self._phases()
        self.own = self._own()
        self.edges = self.stated | self.kept | self.own
        self.implied = consequences(self.edges)
        entered = self._opening()
        self.order = {OPENING: entered, CLOSING: self._closing(entered)}

    def _stated(self) -> Iterable[Pair]:
        for place in self.places:
            hook = self.by_name[place[0]]
            after, before = hook.near.get(method_of(place), ((), ()))
            for other in self.places:
                if other[1] == place[1] and other[0] != place[0]:
                    if other[0] in (*hook.after, *after):
                        yield other, place
                    if other[0] in (*hook.before, *before):
                        yield place, other

    def _flows(self) -> set[Pair]:
        """Return who writes what another one reads, unless that one writes it, and the first one
        reads it, too.

        To a second half that writes it, nothing is handed on.
        """
        return {
            (first, then)
            for first in self.places
            for then in self.places
            if first[1] == then[1] and first[0] != then[0] and not both_exits((first, then))
            for slot in common(self.by_name[first[0]].writes, self.by_name[then[0]].reads)
            if not (
                within(slot, self.by_name[then[0]].writes)
                and (then[2] == "exit" or within(slot, self.by_name[first[0]].reads))
            )
        }

    def _phases(self) -> dict[Place, int]:
        """Return the phase of each place: edges move a hook that wants less than those that it must
        stand beside.

        The second half of an around stands in the mirror of the first one's.
        """
        implied = consequences(self.stated | self.kept)
        phase = {place: PHASES.index(self.by_name[place[0]].phase) for place in self.places}
        plain = {place for place in self.places if place[1] == CLOSING and place[2] == "whole"}
        wanted = dict(phase)
        for place in plain:  # among plain methods alone: early ones pull those before them
            wanted[place] = min(
                [phase[place], *(phase[then] for then in plain if (place, then) in implied)],
                key=early,
            )
        inner = {
            p: 4 - wanted[p] if p in plain else wanted[p] for p in self.places if p[2] != "exit"
        }
        within = self._within(implied)
        pulled = {
            p: min([inner[p], *(inner[q] for q in inner if (p, q) in within and inner[q] < 2)])
            for p in inner
        }
        pushed = {
            p: max([pulled[p], *(pulled[q] for q in inner if (q, p) in within)]) for p in inner
        }
        result = {p: 4 - depth if p in plain else depth for p, depth in pushed.items()}
        return result | {p: 4 - result[entry(p)] for p in self.places if p[2] == "exit"}

    def _within(self, implied: set[Pair]) -> set[Pair]:
        """Return what lies further in than what, from both points: what is entered later,
        and what is left earlier.
        """
        steps = {
            (entry(then), entry(first)) if first[1] == CLOSING else (first, then)
            for first, then in implied
        }
        while more := {(a, d) for a, b in steps for c, d in steps if b == c} - steps:
            steps |= more
        return steps

    def _own(self) -> set[Pair]:
        """Return that arounds enclose the other methods of their hooks,
        where phase and edges leave that open.
        """
        pairs = set()
        for first in self.places:
            for then in self.places:
                own = first[:2] == then[:2] and (first[2], then[2]) in (
                    ("enter", "whole"),
                    ("whole", "exit"),
                )
                if own and self.phases[first] == self.phases[then]:
                    pairs.add((first, then))
        edges = self.stated | self.kept
        implied = consequences(edges)
        pairs = {(first, then) for first, then in pairs if (then, first) not in implied}
        together = consequences(edges | pairs)
        return {(first, then) for first, then in pairs if (then, first) not in together}

    def _opening(self) -> list[Place]:
        """Return who fires at the first point: what must come first does, then by phase,
        then as the file has it.
        """
        rest = [place for place in self.places if place[1] == OPENING]
        fired: list[Place] = []
        while rest:
            free = [p for p in rest if not any((q, p) in self.implied for q in rest)]
            fired.append(min(free, key=lambda p: (self.phases[p], self.places.index(p))))
            rest.remove(fired[-1])
        return fired

    def _closing(self, entered: list[Place]) -> list[Place]:
        """Return who fires at the second point: arounds in reverse,
        each once no plain method of its phase can fire.
        """
        rest = [place for place in self.places if place[1] == CLOSING]
        left = [leaving(place) for place in entered if place[2] == "enter"][::-1]
        fired: list[Place] = []
        while rest:
            free = [p for p in rest if not any((q, p) in self.implied for q in rest)]
            waiting = [p for p in left if p in rest]
            free = [p for p in free if p[2] == "whole" or p == waiting[0]]
            fired.append(
                min(free, key=lambda p: (self.phases[p], p[2] == "exit", self.places.index(p)))
            )
            rest.remove(fired[-1])
        return fired


def with_own_state(hooks: list[Described]) -> list[Described]:
    """Return the hooks with what each writes of its own state, where somebody reads that."""
    read = {slot for hook in hooks for slot in hook.reads}
    owned = {hook.name: f"hook.{hook.name}" for hook in hooks}
    return [
        replace(hook, writes=(*hook.writes, owned[hook.name])) if owned[hook.name] in read else hook
        for hook in hooks
    ]


def within(slot: str, slots: Iterable[str]) -> bool:
    """Say whether a slot is one of the others, or a part of one."""
    return any(slot == other or slot.startswith(f"{other}.") for other in slots)


def common(ones: Iterable[str], others: Iterable[str]) -> set[str]:
    """Return what both touch: of a slot and a part of it, the part."""
    ones, others = set(ones), set(others)
    return {slot for slot in ones | others if within(slot, ones) and within(slot, others)}


def early(phase: int) -> int:
    """Rank phases by how early they are; whatever is not early at all is alike."""
    return min(phase, 2)


def both_exits(pair: Pair) -> bool:
    return pair[0][2] == pair[1][2] == "exit"


def entry(place: Place) -> Place:
    """Return the first half of an around for the second."""
    return (place[0], OPENING, "enter") if place[2] == "exit" else place


def leaving(place: Place) -> Place:
    return place[0], CLOSING, "exit"


def consequences(edges: Iterable[Pair]) -> set[Pair]:
    """Return all that follows from edges."""
    known = set(edges)
    while True:
        more = {(a, d) for a, b in known for c, d in known if b == c}
        more |= {(leaving(b), leaving(a)) for a, b in known if a[2] == b[2] == "enter"}
        more |= {(entry(b), entry(a)) for a, b in known if a[2] == b[2] == "exit"}
        if more <= known:
            return known
        known |= more


def contradictory(known: set[Pair]) -> bool:
    return any((then, first) in known for first, then in known) or any(
        first == then for first, then in known
    )
