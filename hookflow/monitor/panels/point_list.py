"""The points of the loop: what is bound there, how much of the last minute went by there, and when."""

from __future__ import annotations

from textual.strip import Strip

from hookflow.monitor.formatting import percent
from hookflow.monitor.style import Part, boxed, fit, highlighted, row, window
from hookflow.monitor.timing import WINDOW
from hookflow.monitor.view import Scene

HEAT = " ░▒▓█"
THRESHOLDS = (0.001, 0.01, 0.1)
"""Shares of a stretch of time from which on the heat is one step hotter; any firing at all is the first step."""


def point_list(scene: Scene, width: int, height: int) -> list[Strip]:
    inner, room = width - 2, height - 3
    wide = inner >= 44
    cells = next(count for count in (60, 30, 20, 15, 12, 10, 6, 5, 4) if count <= max(inner - (36 if wide else 30), 4))
    name = inner - cells - (11 if wide else 8)
    shown = scene.shown_points
    picked = shown.index(scene.point) if scene.point in shown else 0
    part = window(len(shown), room, picked)
    head = (
        f" {fit('point', name)}{'  # ' if wide else ' '}{fit('last 60 s' if cells > 8 else '60 s', cells)} {'%it':>5}"
    )
    body = [_line(scene, point, name, cells, wide, inner) for point in shown[part]]
    hidden = len(scene.points) - len(shown)
    below = len(shown) - part.stop
    hint = (
        f"{f'↑ {part.start} ' * bool(part.start)}↓ {below} more"
        if below > 0
        else f"f shows {hidden} unbound"
        if hidden
        else "f hides unbound"
    )
    focused = scene.view.focus == 1
    return boxed("[1] points", [row(inner, (head, "dim")), *body], width, height, focused, hint)


def _line(scene: Scene, point: str, name: int, cells: int, wide: bool, inner: int) -> Strip:
    bound = scene.plan.at(point)
    here = point == scene.point
    label = " " * scene.plan.points[point].depth + point if wide else point
    counts = [scene.state.timing(binding.id).cells(scene.state.now, cells) for binding in bound]
    heat = [(sum(fired for fired, _ in cell), sum(ns for _, ns in cell)) for cell in zip(*counts, strict=True)]
    alive = any(fired for fired, _ in heat)
    style = "picked" if here else "" if alive else "dim" if bound else "faint"
    number = f" {len(bound) or '':>2} " if wide else " "
    parts: list[Part] = [("▸" if here else " ", "focus"), (fit(label, name), style), (number, "dim")]
    parts += [_heat(fired, ns / (WINDOW / cells * 1e9)) for fired, ns in heat] or [(" " * cells, "")]
    taken = percent(scene.share(*bound)) if alive and scene.plan.points.in_iteration(point) else "·" if bound else ""
    line = row(inner, *parts, (f" {taken:>5}", style if alive or here else "faint"))
    return highlighted(line) if here else line


def _heat(fired: int, share: float) -> Part:
    level = 1 + sum(share >= threshold for threshold in THRESHOLDS) if fired else 0
    return (HEAT[level], f"heat{level}" if level else "")
