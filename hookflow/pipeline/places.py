"""Which line of a TOML file a key stands on. TOML parsers do not say, so this reads the text once more.

The text must be valid TOML, as a parser has found it to be; only its outline is read here.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterator, Sequence
from typing import Self

import tomli

from hookflow.errors import Where

Key = tuple[str, ...]
"""The way to a value: keys, and indices of lists as text."""

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}' r"|'''.*?'{3,5}" r'|"(?:\\.|[^"\\])*"' r"|'[^']*'",
    re.DOTALL,
)
_PLAIN = re.compile(r"\d{4}-\d\d-\d\d \d\d:[^\s,\]}#]*|[^\s,\]}#]+")


class Places:
    """The place of every key of a pipeline: a line of its file, or the option that overrides it."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._known: dict[Key, Where] = {}

    @classmethod
    def in_text(cls, text: str, source: str) -> Self:
        """Return the places of all keys in a valid TOML text; `source` is the name to show for it."""
        places = cls(source)
        for key, line in _Outline(text).walk():
            places._known.setdefault(key, Where(source, line))
        return places

    def of(self, key: str | Sequence[str | int]) -> Where:
        """Return where `key` stands ("hooks.log.points.0.every", or its parts), or else what encloses it."""
        path = tuple(key.split(".")) if isinstance(key, str) else tuple(map(str, key))
        while path and path not in self._known:
            path = path[:-1]
        return self._known.get(path, Where(self._source))

    def put(self, key: Key, where: Where) -> None:
        """Say that `key` and all below it come from `where` now, and whatever encloses it if it is new."""
        for old in [known for known in self._known if known[: len(key)] == key]:
            del self._known[old]
        self._known[key] = where
        for end in range(1, len(key)):
            self._known.setdefault(key[:end], where)


def split_key(text: str) -> tuple[Key, str]:
    """Split `a."b".0 = rest` into the key and what follows the equals sign. Raises ValueError if it is none."""
    outline = _Outline(text)
    key = outline.key()
    if not outline._take("="):
        raise ValueError(text)
    return key, text[outline.at :].strip()


class _Outline:
    """Walks over a TOML text from front to back; `at` is the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._breaks = [match.start() for match in re.finditer("\n", text)]
        self._lengths: dict[Key, int] = {}

    def walk(self) -> Iterator[tuple[Key, int]]:
        """Yield every table, key and list item with its line; what encloses it first."""
        table: Key = ()
        self._skip()
        while self.at < len(self.text):
            line = self._line()
            if self._take("[["):
                table = self._next_table(self.key())
                self._take("]]")
                yield from _with_enclosing(table, line)
            elif self._take("["):
                table = self._current(self.key())
                self._take("]")
                yield from _with_enclosing(table, line)
            else:
                yield from self._pair(table)
            self._skip()

    def key(self) -> Key:
        """Read a key with its dots, and the blanks after it."""
        parts: list[str] = []
        while not parts or self._take("."):
            self._skip()
            if self._at_string():
                parts.append(tomli.loads(f"key = {self._match(_STRING)}")["key"])
            else:
                parts.append(self._match(_BARE_KEY))
            self._skip()
        return tuple(parts)

    def _current(self, keys: Key) -> Key:
        """Return the path of a table, with the index of the latest entry wherever it leads through a list."""
        path: Key = ()
        for key in keys:
            path += (key,)
            if path in self._lengths:
                path += (str(self._lengths[path] - 1),)
        return path

    def _next_table(self, keys: Key) -> Key:
        path = (*self._current(keys[:-1]), keys[-1])
        self._lengths[path] = self._lengths.get(path, 0) + 1
        return self._current(keys)

    def _pair(self, table: Key) -> Iterator[tuple[Key, int]]:
        line = self._line()
        path = table + self.key()
        self._take("=")
        self._skip()
        yield from _with_enclosing(path, line)
        yield from self._value(path)

    def _value(self, path: Key) -> Iterator[tuple[Key, int]]:
        if self._take("["):
            self._skip()
            index = 0
            while not self._take("]"):
                item = (*path, str(index))
                yield item, self._line()
                yield from self._value(item)
                self._comma()
                index += 1
        elif self._take("{"):
            self._skip()
            while not self._take("}"):
                yield from self._pair(path)
                self._comma()
        elif self._at_string():
            self._match(_STRING)
        else:
            self._match(_PLAIN)

    def _comma(self) -> None:
        self._skip()
        self._take(",")
        self._skip()

    def _take(self, token: str) -> bool:
        taken = self.text.startswith(token, self.at)
        self.at += len(token) * taken
        return taken

    def _skip(self) -> None:
        self._match(_BLANK)

    def _at_string(self) -> bool:
        return self.text.startswith(('"', "'"), self.at)

    def _match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise ValueError(f"not TOML at character {self.at}")
        self.at = match.end()
        return match.group()

    def _line(self) -> int:
        return bisect(self._breaks, self.at - 1) + 1


def _with_enclosing(path: Key, line: int) -> Iterator[tuple[Key, int]]:
    return ((path[:end], line) for end in range(1, len(path) + 1))
