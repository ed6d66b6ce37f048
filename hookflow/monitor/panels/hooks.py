"""The hooks of one point in the order of firing: who waits for whom, and what each one costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.cells import cell_len
from textual.strip import Strip

from hookflow.graph.plan import Binding
from hookflow.graph.render.text import gutter
from hookflow.graph.why import rows_of
from hookflow.monitor.formatting import many, ms, percent
from hookflow.monitor.style import Part, boxed, fit, highlighted, row, sparks, window
from hookflow.monitor.timing import WINDOW, Timing
from hookflow.monitor.view import Scene


@dataclass(frozen=True, slots=True)
class Column:
    """A column of figures: the lower the rank, the longer it stays when the room shrinks."""

    head: str
    width: int
    rank: int
    text: Callable[[Scene, Binding, Timing], str]


COLUMNS = (
    Column("count", 6, 7, lambda scene, binding, timing: many(timing.count) if timing.count else "·"),
    Column("last", 5, 5, lambda scene, binding, timing: _ms(timing, timing.last)),
    Column("p50", 5, 1, lambda scene, binding, timing: _ms(timing, timing.percentile(0.5))),
    Column("p95", 5, 3, lambda scene, binding, timing: _ms(timing, timing.percentile(0.95))),
    Column("max", 5, 6, lambda scene, binding, timing: _ms(timing, timing.longest)),
    Column("%it", 5, 2, lambda scene, binding, timing: _share(scene, binding)),
)
TREND_RANK, TREND_CELLS = 4, (60, 30, 20, 15, 12, 10, 6, 5)


def hooks(scene: Scene, width: int, height: int) -> list[Strip]:
    inner, room = width - 2, height - 3
    bound = scene.plan.at(scene.point)
    edges = gutter(len(bound), rows_of(scene.plan, scene.point))
    lead = max((len(prefix) for prefix in edges), default=0)
    name = min(max([4, *(cell_len(binding.hook) for binding in bound)]), 24 if inner >= 60 else 12)
    columns, cells = _choose(inner - 3 - lead - (1 if lead else 0) - name)
    head = " " * (1 + lead + bool(lead)) + fit("hook", name)
    head += (
        "".join(f" {column.head:>{column.width}}" for column in columns)
        + f" {fit('trend 60 s' if cells > 9 else '60 s', cells)}"
    )
    lines = [row(inner, (head, "dim"))]
    focused = scene.view.focus == 2
    at = bound.index(scene.picked) if scene.picked else 0
    part = window(len(bound), room, at)
    for binding, prefix in list(zip(bound, edges, strict=True))[part]:
        picked = binding is scene.picked and focused
        lines.append(_line(scene, binding, prefix + " " * bool(lead), name, columns, cells, picked, inner))
    if not bound:
        why = "nothing is bound to this point" if scene.plan.bindings else "no hooks are known yet"
        lines.append(row(inner, (f" {why}", "dim")))
    below = len(bound) - part.stop
    hint = f"↓ {below} more" if below > 0 else "ms  in order of firing ↓" if inner > 60 else "ms"
    return boxed(f"[2] hooks @ {scene.point}" if scene.point else "[2] hooks", lines, width, height, focused, hint)


def _choose(room: int) -> tuple[list[Column], int]:
    """Return the columns that have room, and how many cells the trend gets (none where there is no room)."""
    chosen: list[Column] = []
    cells = 0
    for rank in range(1, 8):
        if rank == TREND_RANK:
            cells = next((count for count in reversed(TREND_CELLS) if count + 1 <= room), 0)
            room -= cells + 1 if cells else 0
        elif (column := next(column for column in COLUMNS if column.rank == rank)).width + 1 <= room:
            chosen.append(column)
            room -= column.width + 1
    if cells:
        cells = next(count for count in TREND_CELLS if count <= cells + room)
    return [column for column in COLUMNS if column in chosen], cells


def _line(
    scene: Scene, binding: Binding, prefix: str, name: int, columns: list[Column], cells: int, picked: bool, width: int
) -> Strip:
    state, timing = scene.state, scene.state.timing(binding.id)
    parts: list[Part] = [("▸" if picked else " ", "focus"), (prefix, "edge")]
    parts += [(fit(binding.hook, name), "picked" if picked else "" if timing.count else "dim")]
    for column in columns:
        quiet = not timing.count or column.head in ("last", "count", "max")
        parts.append((f" {column.text(scene, binding, timing):>{column.width}}", "dim" if quiet else ""))
    if cells:
        parts += [" ", (trend(timing, state.now, cells), "train")]
    line = row(width, *parts, mark(scene, binding))
    return highlighted(line) if picked else line


def trend(timing: Timing, now: float, cells: int) -> str:
    """Return the mean duration of a firing over the last minute; half height is the usual one."""
    values = [ns / fired if fired else None for fired, ns in timing.cells(now, cells)]
    return sparks(values, timing.percentile(0.5))


def mark(scene: Scene, binding: Binding) -> Part:
    """Return a sign at the end of the row: it has failed, is off, or was much slower than usual a moment ago."""
    state, timing = scene.state, scene.state.timing(binding.id)
    if binding.hook in state.disabled:
        return ("⊘", "error")
    if (binding.hook, binding.point) in state.errors:
        return ("✗", "error")
    recent = timing.cells(state.now, WINDOW)[-10:]
    usual = timing.percentile(0.5)
    if timing.count > 20 and any(fired and ns / fired > 3 * usual for fired, ns in recent):
        return ("▲", "warn")
    return ""


def _ms(timing: Timing, ns: float) -> str:
    return ms(ns) if timing.count else "·"


def _share(scene: Scene, binding: Binding) -> str:
    taken = scene.share(binding)
    return percent(taken) if taken else "·"
