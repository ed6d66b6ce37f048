"""Puts keys into a pipeline file and leaves everything else in it as it is: comments, order, and spaces."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import tomli

from hookflow.pipeline.source_map import Key, dotted, headers, spans
from hookflow.pipeline.type_words import as_toml

_DOTS = re.compile(r"""\s*(?:(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')\s*\.\s*)*""")


def with_key(text: str, table: Key, key: str, value: Any) -> str:
    """Return a TOML text in which `key` of a table is `value`; where it has one, what that lacks is added to it.

    Raises ValueError where that would change anything else: then the text is written in a way that is not understood.
    """
    wanted = tomli.loads(text)
    there = wanted
    for name in table:
        there = there.setdefault(name, {})
    before = there.get(key)
    there[key] = value
    changed = _changed(text, table, key, before, value)
    if tomli.loads(changed) != wanted:
        raise ValueError(f"{dotted((*table, key))} cannot be put in")
    return changed


def _changed(text: str, table: Key, key: str, before: Any, value: Any) -> str:
    if before is None:
        return _inserted(text, table, f"{dotted((key,))} = {as_toml(value)}")
    path = (*table, key)
    if isinstance(before, Mapping) and isinstance(value, Mapping):
        for name, inner in value.items():
            text = text if before.get(name) == inner else with_key(text, path, name, inner)
        return text
    if isinstance(before, list) and isinstance(value, list) and value[: len(before)] == before:
        return _extended(text, path, len(before), ", ".join(map(as_toml, value[len(before) :])))
    begin, end = spans(text)[path]
    return f"{text[:begin]}{dotted((key,))} = {as_toml(value)}{text[end:]}"


def _extended(text: str, path: Key, length: int, items: str) -> str:
    """Add items to a list, behind the last one that it has."""
    found = spans(text)
    if length:
        _, end = found[*path, str(length - 1)]
        return f"{text[:end]}, {items}{text[end:]}"
    begin, end = found[path]
    opened = text.index("[", text.index("=", begin)) + 1
    return f"{text[:opened]}{items}{text[opened:end]}{text[end:]}"


def _inserted(text: str, table: Key, pair: str) -> str:
    """Insert a new pair behind the last one of the table that stands alone on its line, or in its braces."""
    pairs = [span for key, span in spans(text).items() if key[:-1] == table]
    if pairs:
        begin, end = max(pairs)
        line = text.rfind("\n", 0, begin) + 1
        dots = _DOTS.fullmatch(text, line, begin)
        if dots is None:
            return f"{text[:end]}, {pair}{text[end:]}"
        return _behind_line(text, end, dots.group() + pair)
    if table in (tables := headers(text)):
        return _behind_line(text, tables[table], pair)
    return f"{text.rstrip()}\n\n[{dotted(table)}]\n{pair}\n"


def _behind_line(text: str, at: int, line: str) -> str:
    """Insert a line behind the one at this character."""
    end = text.find("\n", at)
    newline = "\r\n" if "\r\n" in text else "\n"
    if end < 0:
        return f"{text}{newline}{line}{newline}"
    return f"{text[: end + 1]}{line}{newline}{text[end + 1 :]}"
