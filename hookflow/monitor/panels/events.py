"""The events, newest last: validations, checkpoints, warnings, errors, answers to commands."""

from __future__ import annotations

from textual.strip import Strip

from hookflow.monitor.journal import Entry
from hookflow.monitor.style import boxed, highlighted, row, window
from hookflow.monitor.view import Scene
from hookflow.numbers import clock
from hookflow.text import fit

STYLES = {
    "info": "dim",
    "warn": "warn",
    "error": "error",
    "checkpoint": "checkpoint",
    "command": "command",
    "image": "command",
    "text": "good",
    "histogram": "checkpoint",
}


def events(scene: Scene, width: int, height: int) -> list[Strip]:
    focused = scene.view.focus == 5
    hint = "e E next, previous ▲✗   enter" if focused else "e next ▲✗"
    if scene.view.event is not None:
        hint = "end: newest"
    return boxed("[5] events", lines(scene, width - 2, height - 2, focused), width, height, focused, hint)


def lines(scene: Scene, width: int, height: int, focused: bool) -> list[Strip]:
    """Return the rows of the list, without the box."""
    entries, picked = list(scene.state.journal), scene.entry
    at = entries.index(picked) if picked else 0
    part = (
        window(len(entries), height, at) if scene.view.event is not None else slice(max(len(entries) - height, 0), None)
    )
    marked = picked if focused or scene.view.event is not None else None
    shown = [_line(entry, width, entry is marked) for entry in entries[part]]
    return shown or [row(width, (" nothing yet", "dim"))]


def _line(entry: Entry, width: int, picked: bool) -> Strip:
    style = STYLES.get(entry.kind, "")
    source = min(max(width // 6, 10), 20)
    line = row(
        width,
        ("▸" if picked else " ", "focus"),
        (f"{clock(entry.t)} ", "dim") if width >= 56 else (f"{clock(entry.t)[:5]} ", "dim"),
        (entry.glyph, style),
        (f" {fit(entry.source, source)} ", "picked" if picked else "strong" if entry.trouble else "dim"),
        (fit(entry.text, max(width - source - (14 if width >= 56 else 11), 1)), "picked" if picked else ""),
    )
    return highlighted(line) if picked else line


def output(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the page; the view's scroll counts lines back from the newest."""
    room = max(height - 2, 0)
    back = min(scene.view.scroll, max(len(scene.output) - room, 0))
    end = len(scene.output) - back
    lines = [row(width - 2, f" {fit(line, max(width - 4, 0))}") for line in scene.output[max(end - room, 0) : end]]
    hint = f"↓ {back} more" if back else "esc back"
    return boxed("output of the training", lines or [_nothing(width - 2)], width, height, True, hint)


def _nothing(width: int) -> Strip:
    return row(width, (" the training has printed nothing", "dim"))
