"""The question that `q` asks."""

from __future__ import annotations

from collections.abc import Sequence

from textual.strip import Strip

from hookflow.monitor.paint import boxed, row
from hookflow.monitor.view import Scene

CHOICES = (
    ("d", "detach: the training goes on (enter)"),
    ("s", "stop the training after this iteration"),
    ("esc", "stay here"),
)


def over(lines: Sequence[Strip], scene: Scene, width: int) -> list[Strip]:
    """Return the screen with the question in its middle."""
    wide = min(width, 50)
    body = [row(wide - 2), *(row(wide - 2, (f"  {key:>4} ", "strong"), f" {what}") for key, what in CHOICES)]
    body += [row(wide - 2, (f"        later: hookflow watch {scene.id.rsplit('-', 1)[-1]}", "dim")), row(wide - 2)]
    box = boxed("leave the dashboard?", body, wide, min(len(body) + 2, len(lines)), focused=True)
    x, y = (width - wide) // 2, max((len(lines) - len(box)) // 2, 0)
    shown = list(lines)
    for place, strip in enumerate(box):
        under = lines[y + place]
        shown[y + place] = Strip.join([under.crop(0, x), strip, under.crop(x + wide, width)])
    return shown
