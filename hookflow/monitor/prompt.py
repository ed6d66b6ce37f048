"""The line in which text is typed, and the command palette that is typed into it: keys, candidates, drawing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rich.cells import cell_len
from textual.fuzzy import FuzzySearch
from textual.strip import Strip

from hookflow.events.commands import COMMANDS
from hookflow.monitor.style import Part, cells, row, spread, window
from hookflow.monitor.view import Action, Notice, Prompt, Scene, send, setting_now
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


KEYS_WIDE = 10
"""Cells of the keys of an action, before its sentence."""


class Offer(NamedTuple):
    """An action that can be called now, and its keys as they are shown."""

    action: Action
    keys: str


Do = Callable[[Action, Scene], str | Notice]


def ask(scene: Scene, offers: Iterable[Offer], do: Do, text: str = "") -> None:
    """Let a name be typed, and call `do` with the action that is meant."""
    by_name = {offer.action.name: offer for offer in offers}

    def complete(scene: Scene, text: str) -> Sequence[tuple[str, str]]:
        command, blank, argument = text.partition(" ")
        if blank and command in COMMANDS:
            return [(f"{command} {name}", about) for name, about in _arguments(scene, command) if argument in name]
        return _matches(by_name, text)

    def submit(scene: Scene, text: str) -> str | Notice:
        command, _, argument = text.strip().partition(" ")
        matches = _matches(by_name, text)
        name = command if command in COMMANDS or command in by_name else matches[0][0] if text and matches else ""
        if name in by_name and not argument:
            return do(by_name[name].action, scene)
        if name not in COMMANDS:
            return Notice(f'there is no action "{text}"') if text else ""
        if COMMANDS[name].destructive:
            return Notice(f"{name} takes no argument here: it asks")
        if not argument and COMMANDS[name].takes and not COMMANDS[name].takes.startswith("["):
            ask(scene, by_name.values(), do, f"{name} ")
            return ""
        return send(scene, name, *[argument] * bool(argument))

    scene.view.prompt = Prompt(":", submit, complete=complete, text=text)


@cache
def _search() -> FuzzySearch:
    return FuzzySearch()


def _matches(by_name: Mapping[str, Offer], text: str) -> list[tuple[str, str]]:
    """Return the actions and commands with the letters of a text in their names, the best first, then in sentences."""
    known = {name: f"{fit(offer.keys, KEYS_WIDE)} {offer.action.about}" for name, offer in by_name.items()}
    commands = {name: f"{fit(command.takes, KEYS_WIDE)} {command.about}" for name, command in COMMANDS.items()}
    known |= {name: about for name, about in commands.items() if name not in known}
    if not (wanted := text.strip().lower()):
        return [*known.items()]
    scores = {name: _search().match(wanted, name)[0] for name in known}
    named = sorted((name for name in known if scores[name]), key=lambda name: (name != wanted, -scores[name]))
    told_of = [name for name, about in known.items() if not scores[name] and wanted in about.lower()]
    return [(name, known[name]) for name in (*named, *told_of)]


def _arguments(scene: Scene, command: str) -> list[tuple[str, str]]:
    """Return what a command may be given, each with a word about it."""
    match COMMANDS[command].takes:
        case "HOOK":
            off = scene.state.disabled
            return [(hook.name, "is off" if hook.name in off else hook.about) for hook in scene.plan.hooks]
        case "HOOK.ARGUMENT=VALUE":
            return [(f"{name}=", f"now {setting_now(scene, name)}") for name in settable(scene)]
        case "[CHECKPOINT]":
            return [(Path(saved["path"]).name, ", ".join(saved["names"])) for saved in scene.state.checkpoints]
    return []


def settable(scene: Scene) -> list[str]:
    """Return the arguments that hooks of the run declare settable, those of the hook at the cursor first."""
    here = scene.picked.hook if scene.picked else ""
    names = [f"{hook}.{each}" for hook, names in scene.plan.settable.items() for each in names]
    return sorted(names, key=lambda name: not name.startswith(f"{here}."))
