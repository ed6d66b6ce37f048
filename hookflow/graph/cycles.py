"""A cycle of stated edges, as a user reads it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hookflow.errors import Where
from hookflow.graph.dataflow import EdgeStatement
from hookflow.graph.plan import DeclaredBinding

HALF_VERBS = {"whole": "", "enter": " (entering {method})", "exit": " (leaving {method})"}


@dataclass(frozen=True, slots=True)
class OrderingCycle:
    """A cycle at `point`: its names in the order around it, and each edge's first hook and place.

    A cycle of arounds may have edges at both of their points. Edges stated at the entry then run
    against the walk: the first entered is the last left.
    """

    point: str
    names: tuple[str, ...]
    steps: tuple[tuple[str, Where], ...]
    hints: tuple[str, ...]


def describe_cycle(
    inward: Sequence[EdgeStatement],
    bound: Sequence[DeclaredBinding],
    points: Sequence[str],
    closing: Collection[int],
) -> OrderingCycle:
    """Return a cycle in the order of firing at its point.

    Where an edge is stated at the second of two points, it is that point.

    `inward` are its edges as the graph has them, `bound` the bindings by their rows.
    """
    steps = list(inward)
    point = points[0]
    if any(step.then in closing for step in steps):
        point = points[1]
        steps.reverse()
    start = min(range(len(steps)), key=lambda k: steps[k].first)
    steps = [*steps[start:], *steps[:start]]
    stated_at = [bound[step.then].point for step in steps]
    is_mixed = any(other != point for other in stated_at)

    names: list[str] = []
    hints: list[str] = []
    for number, step in enumerate(steps):
        at = stated_at[number]
        next_at = stated_at[(number + 1) % len(steps)]
        first = _label(bound[step.first])
        then = _label(bound[step.then])
        place = ""
        if is_mixed:
            place = f" at {at}"
        group = ""
        if step.group:
            group = f" (group:{step.group})"
        hints.append(f"{first} before {then}{place}: {step.where}{group}")
        if at == point:
            names.append(first)
            if next_at != point:
                names.append(then)
    if is_mixed:
        hints.append("what is entered first is left last")
        hints.append(
            f'an edge may be that of one method alone: points = [{{ at = "{point}", after = ["…"]'
            " }, …]"
        )
    if any(step.kind == "class" for step in steps):
        hints.append(
            "what a class says, the file can overrule: after = [] or before = [] in the hook's"
            " table"
        )

    walk = [name.replace('"', "") for name in (*names, names[0])]
    sources = [(_label(bound[step.first]), step.where) for step in steps]
    return OrderingCycle(point, tuple(walk), tuple(sources), tuple(hints))


def _label(binding: DeclaredBinding) -> str:
    verb = HALF_VERBS[binding.half].format(method=binding.method)
    return f'"{binding.hook}"{verb}'
