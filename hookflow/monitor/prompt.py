"""The line in which text is typed: what each key does to it, and how it is drawn with its candidates."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from textual.strip import Strip

from hookflow.monitor.style import Part, cells, row, spread, window
from hookflow.monitor.view import Notice, Prompt, Scene
from hookflow.text import fit, printable

SHOWN = 8
"""Candidates that are shown above the line at a time."""


def candidates(scene: Scene, prompt: Prompt) -> list[tuple[str, str]]:
    """Return what the text may be completed to, each with what is known about it."""
    matches = prompt.complete(scene, prompt.text) if prompt.complete else ()
    return [(match, "") if isinstance(match, str) else match for match in matches]


def edit(prompt: Prompt, scene: Scene, key: str, character: str) -> str | Notice:
    """Do what a key does while text is typed; return what the app is to do or say, "" for nothing."""
    match key:
        case "escape" | "ctrl+c":
            scene.view.prompt = None
            if prompt.live:
                prompt.live(scene, prompt.before)
        case "enter":
            scene.view.prompt = None  # first, as what is submitted may open another
            text = _picked(prompt, scene) if prompt.picked is not None else prompt.text
            return prompt.submit(scene, text) or ""
        case "up" | "down":
            if count := len(candidates(scene, prompt)):
                before = {"down": -1, "up": count}[key] if prompt.picked is None else prompt.picked
                prompt.picked = (before + (1 if key == "down" else -1)) % count
        case "tab":
            _type(prompt, scene, _picked(prompt, scene))
        case "backspace" | "ctrl+h":
            _type(prompt, scene, prompt.text[:-1])
        case "ctrl+u":
            _type(prompt, scene, "")
        case "ctrl+w":
            kept = prompt.text.rstrip()
            _type(prompt, scene, kept[: len(kept) - len(kept.split(" ")[-1])])
        case _:
            insert(prompt, scene, character)
    return ""


def insert(prompt: Prompt, scene: Scene, text: str) -> None:
    """Type text at the end of the line, as a paste does: its line breaks become blanks."""
    if text:
        _type(prompt, scene, prompt.text + printable(" ".join(text.splitlines())))


def _type(prompt: Prompt, scene: Scene, text: str) -> None:
    if text != prompt.text:
        prompt.text, prompt.picked = text, None
        if prompt.live:
            prompt.live(scene, text)


def _picked(prompt: Prompt, scene: Scene) -> str:
    matches = candidates(scene, prompt)
    return matches[min(prompt.picked or 0, len(matches) - 1)][0] if matches else prompt.text


def line(prompt: Prompt, width: int) -> Strip:
    """Return the line; of a text that is too long its end is shown."""
    hints: list[Part] = [(" enter ", "strong"), ("ok", "dim"), (" esc ", "strong"), ("back", "dim"), " "]
    if prompt.complete:
        hints = [(" tab ", "strong"), ("complete", "dim"), " ", *hints]
    hints = hints if width >= 50 else []
    before: list[Part] = [" ", (prompt.label, "command"), " " * (len(prompt.label) > 1)]
    room = max(width - cells(*before) - cells(*hints) - 2, 1)
    text, cut = prompt.text, ""
    while cell_len(cut + text) > room:
        text, cut = text[1:], "…"
    return spread(width, [*before, (cut, "dim"), (text, "strong"), ("█", "focus")], hints)


def over(lines: Sequence[Strip], scene: Scene, prompt: Prompt, width: int) -> list[Strip]:
    """Return the screen with the line as its last row, and the candidates above it."""
    matches = candidates(scene, prompt)
    shown = matches[window(len(matches), SHOWN, prompt.picked or 0)]
    wide = min(max((cell_len(name) for name, _ in shown), default=0), width // 2)
    rows: list[Strip] = []
    if prompt.complete:
        rows.append(row(width, ("─" * width, "border")))
        rows += [] if matches else [row(width, ("  nothing matches", "dim"))]
    picked = matches[prompt.picked] if prompt.picked is not None and prompt.picked < len(matches) else None
    for each in shown:
        name, about = each
        rows.append(row(width, f"  {fit(name, wide)}  ", (about, "dim"), picked=each is picked))
    rows = [*rows, line(prompt, width)][-len(lines) :]
    return [*lines[: len(lines) - len(rows)], *rows]
