"""The costliest bindings of all points, for screens too small for a list a point."""

from __future__ import annotations

from rich.cells import cell_len
from textual.strip import Strip

from hookflow.graph.plan import Binding
from hookflow.monitor.formatting import ms, percent
from hookflow.monitor.panels.hooks import mark, trend
from hookflow.monitor.style import Part, fit, row
from hookflow.monitor.view import Scene


def slowest(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return a heading and as many bindings as there is room for, what took most of the last minute first."""
    wide = width >= 56
    cells = 12 if width >= 72 else 6 if wide else 4
    name = max(width - cells - (22 if wide else 16), 8)
    head = f" {fit('hook  point', name)}{'   p50' if wide else ''}   p95   %it 60 s"
    ranked = sorted(scene.plan.bindings, key=lambda binding: -scene.state.timing(binding.id).spent(scene.state.now))
    lines = [_line(scene, binding, name, cells, wide, width) for binding in ranked[: height - 1]]
    return [row(width, (head, "dim")), *lines]


def _line(scene: Scene, binding: Binding, name: int, cells: int, wide: bool, width: int) -> Strip:
    timing, taken = scene.state.timing(binding.id), scene.share(binding)
    figures = [ms(timing.percentile(part)) if timing.count else "·" for part in ((0.5, 0.95) if wide else (0.95,))]
    figures.append(percent(taken) if taken else "·")
    style = "" if timing.spent(scene.state.now) else "dim"
    label = f"{fit(binding.hook, min(cell_len(binding.hook), max(name - 14, 6)))} {binding.point}"
    parts: list[Part] = [" ", (fit(label, name), style), ("".join(f" {figure:>5}" for figure in figures), style)]
    return row(width, *parts, " ", (trend(timing, scene.state.now, cells), "train"), mark(scene, binding))
