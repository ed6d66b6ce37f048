"""What the time of an iteration goes to, as one bar, and a verdict."""

from __future__ import annotations

from textual.strip import Strip

from hookflow.events.records import PHASES
from hookflow.monitor.pace import Pace, verdict
from hookflow.monitor.paint import Part, boxed, row, spread
from hookflow.monitor.view import Scene
from hookflow.monitor.words import ms, percent

FILLS = {"data": "░", "forward": "█", "backward": "▓", "optimizer": "▒", "hooks": "▚", "other": "╌"}


def anatomy(scene: Scene, width: int) -> list[Strip]:
    """Return a box of four rows."""
    pace = Pace.of(scene.state)
    title = f"iteration   p50 {ms(pace.p50):>5} ms   p95 {ms(pace.p95):>5} ms"
    return boxed(title, lines(scene, width - 2), width, 4, hint="shares of the last 60 s")


def lines(scene: Scene, width: int) -> list[Strip]:
    """Return two rows: the bar, and its legend with the verdict."""
    pace = Pace.of(scene.state)
    legend: list[Part] = []
    for phase in PHASES:
        short = phase if width >= 110 else {"forward": "fwd", "backward": "bwd", "optimizer": "opt"}.get(phase, phase)
        if width >= 70 or phase != "other":
            figure = f"{percent(pace.phases[phase]):>4}" if width >= 100 else f"{100 * pace.phases[phase]:2.0f}"
            legend += [(f" {FILLS[phase]} ", phase), (f"{short} ", "dim"), (f"{figure}%", "")]
    said: list[Part] = []
    if width >= 76:
        words = scene.health.sentence or verdict(scene.state, scene.plan)
        said = [(f"{words} ", "alarm" if scene.health.bad else "strong")]
        if width < 100:
            said = [(f"{ms(pace.p50)} ms ", "strong")] if not scene.health.bad else said
    return [row(width, *_bar(pace, width)), spread(width, legend, said)]


def _bar(pace: Pace, width: int) -> list[Part]:
    """Return the phases at their lengths; rounding errors fall where nobody sees them."""
    parts: list[Part] = []
    at, total = 0, 0.0
    for phase in PHASES:
        total += pace.phases[phase]
        end = round(total * width)
        parts.append((FILLS[phase] * (end - at), phase))
        at = end
    return parts if at else [("╌" * width, "rest")]
