"""`dashboard.toml`: the user's keys and the looks of the dashboard.

The dashboard writes into it what is chosen by keys.
"""

import errno
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails
from textual.keys import Keys, _character_to_key

from hookflow.errors import Problem, UserError, nearest, nearest_or_all
from hookflow.events.rundir import short, user_folder, write_whole
from hookflow.monitor.style import ThemeName
from hookflow.pipeline.components import Section
from hookflow.pipeline.layers import parse_toml, read
from hookflow.pipeline.problems import describe_value_problem, key_of
from hookflow.pipeline.source_map import Key, SourceMap, format_key

ActionPages = Mapping[str, Collection[str]]
"""The pages of each action that keys may be given to, by its name; "" stands for every page."""

KEYS_ARE = 'a key is a character, or a name such as "f2", "shift+left" or "ctrl+b"'

Occasion = Literal["end", "failure", "stall"]
Panel = Literal["curves", "log"]


class Settings(Section):
    """The keys of `dashboard.toml`."""

    theme: ThemeName = "dark"
    """The colours."""
    mouse: bool = True
    """Whether the dashboard takes clicks and the wheel; else the terminal selects text."""
    notify: list[Occasion] = Field(default=[*get_args(Occasion)])
    """Events of a run watched live that the terminal announces, with the bell."""
    hidden: list[Panel] = Field(default=[])
    """Panels that the overview hides."""
    keys: dict[str, str | list[str]] = Field(default={})
    """Keys by the names of actions: one, or a list;
    an empty list leaves the action to the palette.
    """

    def make_keymap(self) -> dict[str, str]:
        """Return the keys by the names of actions, as Textual has them."""
        return {name: make_textual_keys(keys_of(keys), name) for name, keys in self.keys.items()}


def keys_of(keys: str | Sequence[str]) -> Sequence[str]:
    """Return a list, also where the file has one key alone."""
    if isinstance(keys, str):
        return [keys]
    return keys


def make_textual_keys(keys: Sequence[str], action: str) -> str:
    """Return keys with the names that Textual gives them.

    Where there are none, it is one that no keyboard has.
    """
    if not keys:
        return f"no-key-for-{action}"
    return ",".join(_character_to_key(key) if len(key) == 1 else key for key in keys)


@dataclass(frozen=True, slots=True)
class Preferences:
    """The settings, and the file that remembers those that are changed by keys.

    It is None where no file does.
    """

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
        text = ""
        if path.exists():
            text = path.read_text("utf-8")
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
    if folder is None:
        return None
    return folder / "dashboard.toml"


def load(actions: ActionPages) -> Preferences:
    """Return the user's settings, the defaults where there is no file.

    Raises UserError with every mistake in it.
    """
    path = path_of(os.environ)
    if path is None or not path.exists():
        return Preferences(path=path)
    tree, places = parse_toml(read(path), str(short(path)))
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        first = {key_of(each)[:2]: each for each in reversed(error.errors(include_url=False))}
        raise UserError(
            _make_problem(key, details, places) for key, details in first.items()
        ) from None
    problems = [*_find_wrong_keys(settings, actions, places)]
    if problems:
        raise UserError(problems)
    return Preferences(settings, path)


def _make_problem(key: Key, details: ErrorDetails, places: SourceMap) -> Problem:
    if details["type"] == "extra_forbidden":
        message = f'the file has no key "{key[-1]}"'
        hint = nearest_or_all(key[-1], Settings.model_fields)
    else:
        message, hint = describe_value_problem(details, format_key(key))
    return Problem(message, places.of(key), hint)


def _find_wrong_keys(
    settings: Settings, actions: ActionPages, places: SourceMap
) -> Iterator[Problem]:
    """Yield the actions and the keys that do not exist.

    Keys that are given to two actions of one page are yielded, too.
    """
    named = [key.value for key in Keys if key.value.isidentifier()]
    owners: dict[tuple[str, str], str] = {}
    for name, given in settings.keys.items():
        where = places.of(("keys", name))
        if name not in actions:
            yield Problem(f'there is no action "{name}"', where, nearest_or_all(name, actions))
        for key in keys_of(given):
            bare = key.split("+")[-1] if len(key) > 1 else key  # without "ctrl+", say
            if len(bare) != 1 and bare not in named:
                yield Problem(f'there is no key "{key}"', where, nearest(key, named) or KEYS_ARE)
            others = {owners.setdefault((page, key), name) for page in actions.get(name, ())} - {
                name
            }
            for other in sorted(others):
                line = places.of(("keys", other)).line
                yield Problem(
                    f'the key "{key}" is given to {other} already', where, f"in line {line}"
                )
