"""The last row: what needs an answer, what is wrong, what was just asked; else the keys."""

from __future__ import annotations

from textual.strip import Strip

from hookflow.monitor.paint import Part, row
from hookflow.monitor.view import Scene
from hookflow.monitor.words import age

RECENT = 6.0
"""Seconds that the answer to a command stays in the footer."""


def footer(scene: Scene, width: int) -> Strip:
    said = _says(scene)
    parts: list[Part] = [" ", said, "  "] if said else []
    left = width - sum(len(part if isinstance(part, str) else part[0]) for part in parts)
    for key, word in _keys(scene):
        left -= len(key) + len(word) + 4
        if left < 0:
            break
        parts += [(f" {key} ", "strong"), (f"{word}  ", "dim")]
    return row(width, *parts)


def _says(scene: Scene) -> Part | None:
    if scene.view.asking == "stop":
        return ("stop the training after this iteration?  y yes   n no", "alarm")
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
    return None


def _keys(scene: Scene) -> list[tuple[str, str]]:
    """Return keys and words, what matters most first."""
    if scene.view.asking:
        return []
    if scene.view.page != "main":
        return [("esc", "back"), ("↑ ↓", "scroll"), ("q", "quit")]
    panels = f"1-{scene.panels[-1]}"
    if scene.replay:
        keys = [("?", "help"), ("space", "play/pause"), ("← →", "step"), (", .", "start/end"), ("< >", "speed")]
        return [*keys, (panels, "panel"), ("q", "quit")]
    keys = [("?", "help"), ("q", "quit" if scene.health.over or scene.readonly else "detach/stop"), (panels, "panel")]
    keys += [("enter", "detail"), ("space", "freeze")]
    if not scene.readonly and not scene.health.over:
        keys += [("p", "resume" if scene.state.stage == "paused" else "pause"), ("c", "checkpoint"), ("s", "stop")]
    return [*keys, ("e", "next ▲✗"), ("o", "output"), ("f", "all points"), ("[ ]", "metric"), ("P", "picture")]
