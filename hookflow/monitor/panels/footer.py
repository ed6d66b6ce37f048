"""The last row: what needs an answer, what is wrong, what was just asked; else the keys."""

from __future__ import annotations

from rich.cells import cell_len
from textual.strip import Strip

from hookflow.monitor.formatting import age
from hookflow.monitor.style import Part, row
from hookflow.monitor.view import Scene

RECENT = 6.0
"""Seconds that the answer to a command stays in the footer."""


def footer(scene: Scene, width: int) -> Strip:
    said = _says(scene)
    parts: list[Part] = [" ", said, " "] if said else []
    left = width - sum(cell_len(part if isinstance(part, str) else part[0]) for part in parts)
    for key, word in _keys(scene):
        left -= len(key) + len(word) + 2
        if left < 0:
            break
        parts += [(f" {key} ", "strong"), (word, "dim"), " "]
        left -= 1
    return row(width, *parts)


def _says(scene: Scene) -> Part | None:
    if scene.view.asking:
        return None
    if scene.notice:
        return (scene.notice, "command")
    if scene.replay:
        return None
    if scene.health.over:
        return (f"{scene.health.glyph} the run is over ({scene.health.condition}); q leaves", "alarm")
    if pending := scene.state.pending:
        request = pending[-1]
        return (f"◉ {request.cmd} requested {age(scene.clock - request.asked)} ago …", "command")
    for request in reversed(scene.state.requests.values()):
        if request.answer and scene.clock - request.answer["t"] < RECENT:
            outcome = "done" if request.answer["ok"] else f"refused: {request.answer['note']}"
            return (f"◉ {request.cmd} {outcome} at iteration {request.answer['it']}", "good")
    if scene.health.condition == "stalled" and not scene.readonly:
        return (f"{scene.health.glyph} no progress: s stops it", "alarm")
    return None


def _keys(scene: Scene) -> list[tuple[str, str]]:
    """Return keys and words: first those that every screen has room for, of which most act on the run."""
    if scene.view.asking:
        return [("esc", "back")]
    if scene.view.page == "gallery" and scene.shown:
        scroll = [("pgup pgdn", "scroll")] if scene.shown.record["k"] == "text" else []
        return [("esc", "back"), ("↑ ↓", "name"), ("[ ]", "iteration"), *scroll, ("q", "quit")]
    if scene.view.page != "main":
        return [("esc", "back"), ("↑ ↓", "scroll"), ("q", "quit")]
    keys = [("?", "help")]
    keys += [] if scene.health.over and not scene.replay else [("q", "quit")]  # what says that it is over says this too
    if scene.replay:
        keys += [("space", "play/pause"), ("← →", "step"), ("< >", "speed"), (", .", "start/end")]
    elif not scene.readonly and not scene.health.over:
        keys += [("s", "stop"), ("c", "checkpoint"), ("p", "resume" if scene.state.stage == "paused" else "pause")]
    keys += [("e", "errors"), *([("i", "images")] if scene.state.gallery.keys else [])]
    keys += [("enter", "open"), (f"1-{scene.panels[-1]}", "panel")]
    keys += [] if scene.replay else [("space", "freeze")]
    return [*keys, ("o", "output"), ("z", "zoom"), ("[ ]", "metric"), ("f", "all points"), ("P", "image")]
