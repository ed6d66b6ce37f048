"""The page of a checkpoint: what it is, and what can be done with it."""

from __future__ import annotations

from textual.strip import Strip

from hookflow.monitor.formatting import number, size
from hookflow.monitor.state import Saved
from hookflow.monitor.style import row, wrapped
from hookflow.monitor.view import Scene


def checkpoint(scene: Scene, saved: Saved, width: int) -> list[Strip]:
    """Return the rows of the page."""
    return [line for name, value in _facts(scene, saved) for line in _rows(name, value, width)]


def _facts(scene: Scene, saved: Saved) -> list[tuple[str, str]]:
    folder = scene.path / saved.path
    metrics = "   ".join(f"{name} {number(value)}" for name, value in saved.metrics.items())
    if metrics and saved.metrics_it != saved.it:
        metrics += f"   (of iteration {saved.metrics_it})"
    facts = [
        ("names", f"{', '.join(saved.names) or 'none'}   (when it was saved)"),
        ("iteration", f"{saved.it}   after {saved.ep} epoch{'s' * (saved.ep != 1)}"),
        ("metrics", metrics or "none yet"),
        ("size", f"{size(saved.bytes)}, written in {saved.ms:.0f} ms"),
        ("path", str(folder)),
        ("", ""),
    ]
    weights = scene.kept.get(folder.name)
    if not weights:
        return [*facts, ("removed", "it is not on the disk any more: newer or better ones have replaced it")]
    newest = "" if saved.it == scene.state.checkpoints[-1].it else "   (from the newest checkpoint, which this is not)"
    return [
        *facts,
        ("weights", ", ".join(weights)),
        ("load them", f'torch.load("<path>/{weights[0]}", weights_only=True)'),
        ("train on", f'weights = "<path>/{weights[0]}"   under [model] in another pipeline'),
        ("resume", f"hookflow run --resume {scene.known_as}{newest}"),
        ("validate", f"hookflow val {scene.known_as}:{folder.name}"),
    ]


def _rows(name: str, value: str, width: int) -> list[Strip]:
    """Return a fact in as many rows as its words take."""
    return [
        row(width, (f" {name if not part else '':<11}", "dim"), text)
        for part, text in enumerate(wrapped(value, width - 13))
    ]
