"""What the training printed, the newest line last."""

from __future__ import annotations

from textual.strip import Strip

from hookflow.monitor.style import boxed, fit, row
from hookflow.monitor.view import Scene


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
