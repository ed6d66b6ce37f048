"""The pairs of an `around` as brackets down the rows of a drawing, from the half that enters to the one that leaves.

ema     ╭
freeze  │╭
log     ││
freeze  │╰
ema     ╰
"""

from __future__ import annotations

from collections.abc import Sequence

from hookflow.graph.plan import Binding


def pairs(bindings: Sequence[Binding]) -> list[tuple[int, int]]:
    """Return, for each `around` of which both halves are there, the places of the two."""
    entered: dict[tuple[str, str], int] = {}
    found = []
    for row, binding in enumerate(bindings):
        if binding.half == "enter":
            entered[binding.hook, binding.method] = row
        elif binding.half == "exit" and (binding.hook, binding.method) in entered:
            found.append((entered.pop((binding.hook, binding.method)), row))
    return sorted(found)


def rails(bindings: Sequence[Binding], limit: int) -> list[str]:
    """Return one text a binding, all equally wide. Pairs beyond `limit` at a time have no rail."""
    ends = dict(pairs(bindings))
    lanes: list[int | None] = []  # for each rail the row in which it ends
    drawn = []
    for row in range(len(bindings)):
        line = ["│" if end is not None else " " for end in lanes]
        if row in ends and (lane := _free(lanes, limit)) is not None:
            lanes[lane:] = [ends[row], *lanes[lane + 1 :]]
            line[lane:] = ["╭", *line[lane + 1 :]]
        if row in lanes:
            lane = lanes.index(row)
            lanes[lane], line[lane] = None, "╰"
        drawn.append("".join(line))
    return [line.ljust(len(lanes)) for line in drawn]


def _free(lanes: Sequence[int | None], limit: int) -> int | None:
    """Return the first rail that is free, or the place of a new one if there may be one more."""
    free = lanes.index(None) if None in lanes else len(lanes)
    return free if free < limit else None
