"""The tables of a TOML text: values by key, and positions of keys.

TOML parsers do not report the positions.
"""

import json
import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, time
from typing import Any, Self

import tomli

from hookflow.errors import Where

Key = tuple[str, ...]
"""The way to a value: keys, and indices of lists as text."""

_BLANK_PATTERN = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_COMMA_PATTERN = re.compile(rf"{_BLANK_PATTERN.pattern},?{_BLANK_PATTERN.pattern}")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}' r"|'''.*?'{3,5}" r'|"(?:\\.|[^"\\])*"' r"|'[^']*'", re.DOTALL
)
_PLAIN_VALUE_PATTERN = re.compile(r"\d{4}-\d\d-\d\d \d\d:[^\s,\]}#]*|[^\s,\]}#]+")


def walk(tree: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every value with its key, in the order of the file.

    Each table and list is yielded, too, ahead of what it holds.
    """
    waiting: list[tuple[tuple[str, ...], Any]] = [((), tree)]
    while waiting:
        key, value = waiting.pop()
        yield key, value
        inner: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, Mapping):
            inner = value.items()
        elif isinstance(value, list):
            inner = enumerate(value)
        waiting += [((*key, str(name)), below) for name, below in inner][::-1]


def flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the plain values of a tree by their dotted keys; a list of plain values is one."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from flat(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for k, item in enumerate(value):
            yield from flat(item, f"{key}.{k}")
    else:
        yield key, value


class SourceMap:
    """The place of every key of a pipeline.

    It is a line of its file or of one that it extends, or what overrides the key.
    """

    def __init__(self, source: str) -> None:
        self._top = _PlaceNode(Where(source))

    @classmethod
    def in_text(cls, text: str, source: str) -> Self:
        """Return the places of all keys in a valid TOML text.

        `source` is the name to show for it.
        """
        places = cls(source)
        breaks = [-1, *(match.start() for match in re.finditer("\n", text))]
        for key, at in _TomlScanner(text).walk():
            line = bisect(breaks, at - 1)
            places._top.find_or_add(key, Where(source, line, at - breaks[line - 1]))
        return places

    @classmethod
    def in_tables(cls, tables: Mapping[str, Any], source: str) -> Self:
        """Return the places of all keys of tables that were given as such.

        Each key is in `source`, on no line.
        """
        places = cls(source)
        for key, _ in walk(tables):
            places._top.find_or_add(key, Where(source))
        return places

    def of(self, key: str | Sequence[str | int]) -> Where:
        """Return where `key` is, or else what encloses it.

        The key is a text such as "hooks.log.points.0.every", or its parts.
        """
        place = self._top
        for part in key.split(".") if isinstance(key, str) else map(str, key):
            if part not in place.below:
                break
            place = place.below[part]
        return place.where

    def put(self, key: Key, where: Where) -> None:
        """Set the place of `key` and of all below it to `where`.

        A new key sets the place of whatever encloses it, too.
        """
        self._top.find_or_add(key[:-1], where).below[key[-1]] = _PlaceNode(where)

    def take(self, key: Key, other: "SourceMap") -> None:
        """Set the place of `key` and of all below it to that in `other`.

        A new key sets the place of whatever encloses it, too.
        """
        theirs = other._top
        for part in key:
            theirs = theirs.below[part]
        self._top.find_or_add(key[:-1], theirs.where).below[key[-1]] = theirs


@dataclass(slots=True)
class _PlaceNode:
    """Where a key stands, and the keys below it."""

    where: Where
    below: "dict[str, _PlaceNode]" = field(default_factory=dict)

    def find_or_add(self, key: Key, where: Where) -> "_PlaceNode":
        """Return the place of a key below this one; what is new on the way stands at `where`."""
        place = self
        for part in key:
            if part not in place.below:
                place.below[part] = _PlaceNode(where)
            place = place.below[part]
        return place


def split_key(text: str) -> tuple[Key, str]:
    """Split `a."b".0 = rest` into the key and what follows the equals sign.

    Raises ValueError if it is none.
    """
    outline = _TomlScanner(text)
    key = tuple(name for name, _ in outline.names())
    if not outline.take("="):
        raise ValueError(text)
    return key, text[outline.at :].strip()


def format_key(key: Key) -> str:
    """Return the key as one may write it: the inverse of `split_key`."""
    return ".".join(part if _BARE_KEY.fullmatch(part) else as_toml(part) for part in key)


def as_toml(value: Any) -> str:
    """Return a plain value in one line of TOML; "null" for None, which TOML does not have."""
    match value:
        case Mapping():
            pairs = ", ".join(
                f"{format_key((str(key),))} = {as_toml(item)}" for key, item in value.items()
            )
            if pairs:
                return f"{{ {pairs} }}"
            return "{}"
        case list() | tuple():
            return f"[{', '.join(map(as_toml, value))}]"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case bool() | None:
            return json.dumps(value)
        case int() | float() | date() | time():
            return str(value)
    return repr(value)


class _TomlScanner:
    """Walks over a TOML text from front to back; `at` is the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._spots: list[tuple[Key, int]] = []
        self._table: Key = ()
        self._lengths: dict[Key, int] = {}

    def walk(self) -> list[tuple[Key, int]]:
        """Return every table, key and list item with the character at which it begins.

        An enclosing table or list comes before its items.
        """
        self._skip()
        while self.at < len(self.text):
            if self.take("[["):
                self._header("]]")
            elif self.take("["):
                self._header("]")
            else:
                self._read_pair(self._table)
            self._skip()
        return self._spots

    def names(self) -> Iterator[tuple[str, int]]:
        """Read a key with its dots and the blanks after it.

        Yields each name with where it begins.
        """
        more = True
        while more:
            self._skip()
            begin = self.at
            if self._at_string():
                yield tomli.loads(f"key = {self._match(_STRING)}")["key"], begin
            else:
                yield self._match(_BARE_KEY), begin
            self._skip()
            more = self.take(".")

    def _header(self, end: str) -> None:
        """Read a header up to its brackets' `end`.

        Where it leads through a list, it means the latest entry.
        """
        names = list(self.names())
        self.take(end)
        path: Key = ()
        for depth, (name, begin) in enumerate(names, start=1):
            path += (name,)
            self._spots.append((path, begin))
            if end == "]]" and depth == len(names):
                self._lengths[path] = self._lengths.get(path, 0) + 1
            if path in self._lengths:
                path += (str(self._lengths[path] - 1),)
                self._spots.append((path, begin))
        self._table = path

    def _read_pair(self, path: Key) -> None:
        for name, begin in self.names():
            path += (name,)
            self._spots.append((path, begin))
        self.take("=")
        self._skip()
        self._value(path)

    def _value(self, path: Key) -> None:
        if self.take("["):
            self._skip()
            index = 0
            while not self.take("]"):
                item = (*path, str(index))
                self._spots.append((item, self.at))
                self._value(item)
                self._match(_COMMA_PATTERN)
                index += 1
        elif self.take("{"):
            self._skip()
            while not self.take("}"):
                self._read_pair(path)
                self._match(_COMMA_PATTERN)
        elif self._at_string():
            self._match(_STRING)
        else:
            self._match(_PLAIN_VALUE_PATTERN)

    def take(self, token: str) -> bool:
        used = self.text.startswith(token, self.at)
        self.at += len(token) * used
        return used

    def _skip(self) -> None:
        self._match(_BLANK_PATTERN)

    def _at_string(self) -> bool:
        return self.text.startswith(('"', "'"), self.at)

    def _match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise ValueError(f"not TOML at character {self.at}")
        self.at = match.end()
        return match.group()
