"""The command palette: actions by a fuzzy search of their names, and commands to the run with their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from textual.fuzzy import FuzzySearch

from hookflow.events.commands import COMMANDS
from hookflow.monitor.view import Action, Notice, Prompt, Scene, send, setting_now
from hookflow.text import fit

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
    known |= {
        name: f"{fit(command.takes, KEYS_WIDE)} {command.about}"
        for name, command in COMMANDS.items()
        if name not in known
    }
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
