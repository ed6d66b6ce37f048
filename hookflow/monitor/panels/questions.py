"""The questions that `q` and `s` ask, in the middle of the screen."""

from __future__ import annotations

from collections.abc import Sequence

from textual.strip import Strip

from hookflow.monitor.style import boxed, row, wrapped
from hookflow.monitor.view import Scene

WIDTH = 56


def over(lines: Sequence[Strip], scene: Scene, width: int) -> list[Strip]:
    """Return the screen with the question in its middle."""
    wide = min(width, WIDTH)
    inner = wide - 2
    title, choices, note = _leave(scene) if scene.view.asking == "quit" else _stop(scene)
    wrong = wrapped(scene.health.sentence, inner - 4) if scene.health.bad else []
    body = [*(row(inner, "  ", (line, "warn")) for line in wrong), *[row(inner)] * bool(wrong)]
    body += [row(inner, (f"  {key:>4} ", "strong"), f" {what}") for key, what in choices]
    box = boxed(
        title,
        [row(inner), *body, row(inner, (f"        {note}", "dim")), row(inner)],
        wide,
        min(len(body) + 5, len(lines)),
        focused=True,
    )
    x, y = (width - wide) // 2, max((len(lines) - len(box)) // 2, 0)
    shown = list(lines)
    for place, strip in enumerate(box):
        under = lines[y + place]
        shown[y + place] = Strip.join([under.crop(0, x), strip, under.crop(x + wide, width)])
    return shown


def _leave(scene: Scene) -> tuple[str, list[tuple[str, str]], str]:
    stop = "stop the training after this iteration" if scene.health.condition != "stalled" else "stop the training …"
    choices = [("d", "detach: the training goes on (enter)"), ("s", stop), ("esc", "stay here")]
    return "leave the dashboard?", choices, f"later: hookflow watch {scene.known_as}"


def _stop(scene: Scene) -> tuple[str, list[tuple[str, str]], str]:
    choices = [("s", "stop after this iteration, with a checkpoint")]
    if scene.can_kill:
        choices.append(("k", "kill it: stops now, saves nothing"))
    choices.append(("esc", "no, let it train"))
    saved = scene.state.checkpoints
    newest = f"newest checkpoint: iteration {saved[-1].it}" if saved else "there is no checkpoint yet"
    return "stop the training?", choices, newest if scene.can_kill else f"later: hookflow run --resume {scene.known_as}"
