"""`dashboard.toml`: the user's keys and the looks of the dashboard, which writes into it what is chosen by keys."""

import errno
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails
from textual.keys import Keys

from hookflow.errors import Problem, UserError, nearest, nearest_or_all
from hookflow.events.rundir import short, user_folder, write_whole
from hookflow.monitor.keys import ACTIONS, EVERY, OF_PAGES
from hookflow.monitor.style import ThemeName
from hookflow.monitor.view import Arrangement, KeyMap
from hookflow.pipeline.components import Section
from hookflow.pipeline.layers import read, tables
from hookflow.pipeline.problems import key_of, wrong_value
from hookflow.pipeline.source_map import Key, SourceMap, dotted

KEYS_ARE = 'a key is a character, or a name such as "f2", "shift+left" or "ctrl+b"'
FIXED = "answer"
"""The action that is none: the keys that answer questions."""

Occasion = Literal["end", "failure", "stall"]


class Settings(Section):
    """The keys of `dashboard.toml`."""

    theme: ThemeName = "dark"
    """The colours."""
    mouse: bool = True
    """Whether the dashboard takes clicks and the wheel; else the terminal selects text."""
    notify: list[Occasion] = Field(default=[*get_args(Occasion)])
    """Events of a run watched live that the terminal announces, with the bell."""
    hidden: list[Literal["metrics", "system", "events", "ranks"]] = Field(default=[])
    """Panels that the dashboard hides; a key of theirs shows them large."""
    lower: int = Field(default=0, ge=-50, le=50)
    """Rows more, or less, for the panels in the lower part of the dashboard."""
    keys: dict[str, str | list[str]] = Field(default={})
    """Keys by the names of actions: one, or a list; an empty list leaves the action to the palette."""

    @property
    def panels(self) -> Arrangement:
        """The panels as the view has them."""
        return Arrangement(tuple(self.hidden), self.lower)

    @property
    def keymap(self) -> KeyMap:
        """The keys as the table of actions has them."""
        return tuple((name, tuple([keys] if isinstance(keys, str) else keys)) for name, keys in self.keys.items())


@dataclass(frozen=True, slots=True)
class Preferences:
    """The settings, and the file that remembers those that are changed by keys (None: no file does)."""

    settings: Settings = field(default_factory=Settings)
    path: Path | None = None

    def changed(self, **changes: Any) -> Self:
        """Return what holds with these settings changed."""
        return replace(self, settings=self.settings.model_copy(update=changes))

    def remember(self, name: str, value: Any) -> None:
        """Write a setting into the file; all else there stays as it is. Raises OSError."""
        import tomlkit
        from tomlkit.exceptions import TOMLKitError

        if self.path is None:
            return
        path = self.path.resolve()  # it may be a link to a file that is kept elsewhere
        text = path.read_text("utf-8") if path.exists() else ""
        try:
            document = tomlkit.parse(text)
        except TOMLKitError:
            raise OSError(errno.EINVAL, f"{short(path)} is not TOML any more") from None
        document[name] = value
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, tomlkit.dumps(document))


def path_of(environ: Mapping[str, str]) -> Path | None:
    """Return where the file is: in the folder of the XDG base directories, below `hookflow`.

    None where the user has no home folder.
    """
    folder = user_folder("XDG_CONFIG_HOME", ".config", environ)
    return None if folder is None else folder / "dashboard.toml"


def load() -> Preferences:
    """Return the user's settings, the defaults where there is no file. Raises UserError with every mistake in it."""
    path = path_of(os.environ)
    if path is None or not path.exists():
        return Preferences(path=path)
    tree, places = tables(read(path), str(short(path)))
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        first = {key_of(each)[:2]: each for each in reversed(error.errors(include_url=False))}
        raise UserError(_problem(key, details, places) for key, details in first.items()) from None
    if wrong := [*_wrong_keys(settings.keymap, places)]:
        raise UserError(wrong)
    return Preferences(settings, path)


def _problem(key: Key, details: ErrorDetails, places: SourceMap) -> Problem:
    if details["type"] == "extra_forbidden":
        message, hint = f'the file has no key "{key[-1]}"', nearest_or_all(key[-1], Settings.model_fields)
    else:
        message, hint = wrong_value(details, dotted(key))
    return Problem(message, places.of(key), hint)


def _wrong_keys(keymap: KeyMap, places: SourceMap) -> Iterator[Problem]:
    """Yield the actions and the keys that there are not, and the keys that two actions of a page are given."""
    names, named = [name for name in EVERY if name != FIXED], [key.value for key in Keys if key.value.isidentifier()]
    for name, keys in keymap:
        where = places.of(("keys", name))
        if name not in names:
            yield Problem(f'there is no action "{name}"', where, nearest_or_all(name, names))
        for key in keys:
            bare = key.split("+")[-1] if len(key) > 1 else key  # without "ctrl+", say
            if len(bare) != 1 and bare not in named:
                yield Problem(f'there is no key "{key}"', where, nearest(key, named) or KEYS_ARE)
    for actions in (ACTIONS, *OF_PAGES.values()):
        in_replays = {action.name: action.only == "replay" for action in actions}
        owners: dict[tuple[str, bool], str] = {}
        for name, key in ((name, key) for name, keys in keymap if name in in_replays for key in keys):
            if (other := owners.setdefault((key, in_replays[name]), name)) != name:
                message = f'the key "{key}" is given to {other} already'
                yield Problem(message, places.of(("keys", name)), f"in line {places.of(('keys', other)).line}")
