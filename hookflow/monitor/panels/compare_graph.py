"""The loop of two runs or more, with what each row takes in each of them, side by side."""

from __future__ import annotations

from functools import partial

from textual.strip import Strip

from hookflow.graph.plan import Binding
from hookflow.graph.render.loop import Row, rows
from hookflow.monitor.compare import LETTERS, Side
from hookflow.monitor.costs import cost
from hookflow.monitor.health import Pace
from hookflow.monitor.history import ITERATION
from hookflow.monitor.panels.graph import Column, Table, heights
from hookflow.monitor.style import SIDES, Part, boxed
from hookflow.monitor.view import Scene
from hookflow.numbers import duration, rough

CHANGED = 1.5
"""How many times as long, or as short, a row takes in the last run that is worth a colour."""


def loop(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the rows of the first run's plan, and the medians of all runs."""
    sides, inner = scene.compared, width - 2
    shown = rows(sides[0].plan, lanes=width // 24 if width >= 76 else 0)
    table = Table(shown, inner, lambda each: each.name)
    columns = [Column(f"{letter}   ", 8, partial(_p50, side)) for letter, side in zip(LETTERS, sides, strict=False)]
    columns = columns[-max((table.room - 4) // 9, 1) :]
    columns.append(Column(f"{LETTERS[len(sides) - 1]} vs A", 7, partial(_change, sides[0], sides[-1])))
    room = (table.room - sum(each.width + 1 for each in columns)) // len(sides) - 2
    last = max(side.state.it for side in sides) + 1
    first = min(scene.view.scroll, max(len(shown) - (height - 3), 0))
    over = (
        "".join(f"{f'{letter} over the run':<{room + 2}}" for letter in LETTERS[: len(sides)]) if room >= LEAST else ""
    )
    body = [table.head(columns, over)]
    for each in shown[first : first + height - 3]:
        pasts = [_past(side, each, last, room) for side in sides] if room >= LEAST else []
        parts: list[Part] = [part for past, style in zip(pasts, SIDES, strict=False) for part in ((past, style), "  ")]
        body.append(table.line(each, " ", columns, parts, ""))
    below = len(shown) - first - (height - 3)
    hint = f"↓ {below} more   medians of the last attempts" if below > 0 else "medians of the last attempts"
    return boxed("the graph: " + " ".join(LETTERS[: len(sides)]), body, width, height, True, hint)


def _ns(side: Side, each: Row) -> float | None:
    binding = each.binding and _there(side, each.binding)
    if each.binding and not binding:
        return None
    here = Row(each.kind, each.name, each.within, binding)
    return cost(side.state, side.plan, Pace.of(side.state), here, whole=True).ns


def _there(side: Side, binding: Binding) -> Binding | None:
    """Return what is in a run what a binding is in the first."""
    names = (binding.hook, binding.method, binding.half)
    return next((each for each in side.plan.at(binding.point) if (each.hook, each.method, each.half) == names), None)


LEAST = 14
"""The cells that the history of a row has at least, where there is room for it."""


def _past(side: Side, each: Row, last: int, room: int) -> str:
    """Return the history of a row in a run, on an axis to the end of the longest."""
    binding = each.binding and _there(side, each.binding)
    if (each.binding and not binding) or (each.kind == "round" and each.name != ITERATION):
        return " " * room
    return heights(side.state.histories.of(binding or each.name).stretches(0, last, room))


def _p50(side: Side, each: Row) -> Part:
    ns = _ns(side, each)
    return duration(ns) if ns is not None else ("–" if each.binding else "", "faint")


def _change(first: Side, last: Side, each: Row) -> Part:
    before, after = _ns(first, each), _ns(last, each)
    if not before or not after:
        return ""
    times = after / before
    style = "warn" if times >= CHANGED else "good" if times <= 1 / CHANGED else "dim"
    return (f"×{times:.2f}" if times < 0.095 else f"×{rough(times)}", style)
