"""What the time of an iteration goes to, as one bar, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from textual.strip import Strip

from hookflow.events.records import PHASES
from hookflow.monitor.pace import Pace, bottleneck, verdict
from hookflow.monitor.style import Part, boxed, fit, row, spread
from hookflow.monitor.view import Scene
from hookflow.numbers import ms, rough

FILLS = {"data": "░", "forward": "█", "backward": "▓", "optimizer": "▒", "hooks": "▚", "other": "╌"}


def anatomy(scene: Scene, width: int) -> list[Strip]:
    """Return a box of four rows."""
    pace = scene.pace
    title = f"iteration   p50 {ms(pace.p50):>5} ms   p95 {ms(pace.p95):>5} ms" if pace.p50 else "iteration"
    return boxed(title, lines(scene, width - 2), width, 4, hint="shares of the last 60 s")


def lines(scene: Scene, width: int) -> list[Strip]:
    """Return two rows: the bar, and its legend with the verdict; what is wrong takes the legend's place."""
    pace = scene.pace
    if scene.health.bad:
        sentence = scene.health.sentence
        wrong = row(width, (f" {fit(sentence, max(min(cell_len(sentence), width - 2), 0))} ", "alarm"))
        return [row(width, *_bar(pace, width)), wrong]
    if not pace.whole:
        return [row(width, *_bar(pace, width)), row(width, (" no training iteration yet", "dim"))]
    said = (
        verdict(scene.state, scene.plan, pace)
        if width >= 100
        else f"{bottleneck(scene.state, pace)} {rough(pace.p50 / 1e6)} ms/it"
    )
    wide = width >= 100
    legends = [_legend(pace, PHASES, wide), _legend(pace, PHASES[:-1], wide), _legend(pace, PHASES[:-1], False)]
    for legend in legends:
        if sum(len(text) for text, _ in legend) + len(said) + 3 <= width:
            return [row(width, *_bar(pace, width)), spread(width, legend, [(f"{said} ", "strong")])]
    return [row(width, *_bar(pace, width)), row(width, *legends[-1])]


def _legend(pace: Pace, phases: Sequence[str], wide: bool) -> list[tuple[str, str]]:
    parts = []
    for phase in phases:
        word = phase if wide else {"forward": "fwd", "backward": "bwd", "optimizer": "opt"}.get(phase, phase)
        parts += [(f" {FILLS[phase]} ", phase), (f"{word} ", "dim"), (f"{100 * pace.phases[phase]:2.0f}%", "")]
    return parts


def _bar(pace: Pace, width: int) -> list[Part]:
    """Return the phases at their lengths; rounding errors fall where nobody sees them."""
    parts: list[Part] = []
    at, total = 0, 0.0
    for phase in PHASES:
        total += pace.phases[phase]
        end = round(min(max(total, at / width), 1.0) * width)  # whatever a log says
        parts.append((FILLS[phase] * (end - at), phase))
        at = end
    return parts if at else [("╌" * width, "rest")]
