"""The costliest bindings of all points, for screens too small for a list a point."""

from __future__ import annotations

from textual.strip import Strip

from hookflow.monitor.pace import share
from hookflow.monitor.paint import fit, row
from hookflow.monitor.panels.hooks import mark, trend
from hookflow.monitor.view import Scene
from hookflow.monitor.words import ms, percent


def slowest(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return a heading and as many bindings as there is room for, the costliest of the last minute first."""
    name = max(min(width - 34, 40), 8)
    lines = [row(width, (f" {fit('costliest hooks', name)}   p50   p95   %it 60 s", "dim"))]
    ranked = sorted(scene.plan.bindings, key=lambda binding: -share(scene.state, binding.id))
    for binding in ranked[: height - 1]:
        timing = scene.state.timing(binding.id)
        p50, p95 = (ms(timing.percentile(part)) if timing.count else "·" for part in (0.5, 0.95))
        taken = share(scene.state, binding.id)
        figures = f" {p50:>5} {p95:>5} {percent(taken) if taken else '·':>5} "
        lines.append(
            row(
                width,
                " ",
                (fit(f"{binding.hook} @ {binding.point}", name), "" if taken else "dim"),
                (figures, "" if taken else "dim"),
                (trend(timing, scene.state.now, 12), "train"),
                mark(scene, binding),
            )
        )
    return lines
