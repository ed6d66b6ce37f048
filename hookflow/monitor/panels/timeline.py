"""The timeline of a recording: epochs, validations, checkpoints, attempts, troubles, and the moment that is shown."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from textual.strip import Strip

from hookflow.monitor.charts import Axis, Mark, marks_on, parts_of
from hookflow.monitor.journal import GLYPHS, Moment
from hookflow.monitor.style import Part, row
from hookflow.monitor.view import Action, Notice, Prompt, Scene
from hookflow.numbers import span

SIGNS = {"epoch": ("┼", "rest"), "metrics": (GLYPHS["metrics"], "val"), "run": ("↻", "command")}
SIGNS |= {kind: (GLYPHS[kind], kind) for kind in ("checkpoint", "warn", "error")}
"""By kind the sign and its style; later ones stand over earlier ones."""

TROUBLE, EPOCH = ("warn", "error"), ("epoch",)


def moments(scene: Scene) -> list[Moment]:
    """Return what the recording has, and the troubles that the monitor has seen in it so far, oldest first."""
    own = (Moment(entry.t, entry.kind) for entry in scene.state.journal if entry.own and entry.trouble)
    return sorted([*(scene.timeline.moments if scene.timeline else ()), *own])


def timeline(scene: Scene, width: int) -> list[Strip]:
    """Return the strip, of a recording."""
    line = scene.timeline
    if line is None:
        return []
    (first, _), (_, last) = line.attempts[0], line.attempts[-1]
    begun, whole = span(scene.clock - first), span(last - first)
    room, axis = max(width - len(begun) - len(whole) - 6, 1), Axis(0.0, line.place(last))
    here = round(min(max(axis.place(line.place(scene.clock)), 0.0), 1.0) * (room - 1))
    shown = [moment for moment in moments(scene) if moment != (first, "run")]
    signs = [Mark(line.place(t), *SIGNS[of]) for of in SIGNS for t, kind in shown if kind == of]
    cells = {x: ("━", "bar") if x < here else ("─", "rest") for x in range(room)} | marks_on(axis, signs, room)
    cells[here] = ("●", "strong")
    parts: list[Part] = [(f" {begun} ", "strong"), ("├", "rest"), *parts_of(cells), ("┤", "rest"), (f" {whole}", "dim")]
    return [row(width, *parts)]


def _to(kinds: Sequence[str], step: int, scene: Scene) -> str | Notice:
    """Go to what of these kinds is before the moment, or after it."""
    times = [moment.t for moment in moments(scene) if moment.kind in kinds]
    ahead = [t for t in times if t > scene.clock] if step > 0 else [t for t in times if t < scene.clock][::-1]
    if not ahead:
        what = "warning or error" if kinds is TROUBLE else "end of an epoch"
        return Notice(f"no {what} {'after' if step > 0 else 'before'} this moment")
    return f"moment {ahead[0]!r}"


def _ask(scene: Scene) -> None:
    def submit(scene: Scene, text: str) -> str | Notice:
        it = text.strip().replace(",", "").replace("_", "")
        return f"iteration {it}" if it.isdecimal() else Notice(f'"{text}" is no iteration')

    scene.view.prompt = Prompt("go to iteration", submit)


NEAR_TROUBLE = "to the warning or error before this moment, and after it"
NEAR_EPOCH = "to the end of the epoch before, and of this one"
ACTIONS = (
    Action("trouble-before", "e", NEAR_TROUBLE, partial(_to, TROUBLE, -1), "replay"),
    Action("trouble-after", "E", NEAR_TROUBLE, partial(_to, TROUBLE, 1), "replay"),
    Action("epoch-before", "{", NEAR_EPOCH, partial(_to, EPOCH, -1), "replay"),
    Action("epoch-after", "}", NEAR_EPOCH, partial(_to, EPOCH, 1), "replay"),
    Action("iteration", "I", "to an iteration", _ask, "replay"),
)
"""Of a replay."""
