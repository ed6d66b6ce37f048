"""Masks the values that the environment gives to pipelines, wherever a text may quote one.

An exception, a warning or what a hook prints may hold the value of `${env:TOKEN}`. The reference stands in its place in
all that is recorded and shown. The same is done for the forms in which a value is quoted: in Python, JSON and a URL.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, quote_plus

SHORTEST, LONG = 6, 12
"""Characters of the shortest value that is masked, and of the shortest that is masked within a word.

The value "8" stands in too many texts. A value that is masked in a word must not be a part of a checksum by chance.
"""

_values: dict[str, str] = {}
_references: dict[str, str] = {}
_pattern: re.Pattern[str] | None = None


def mask(values: Mapping[str, str]) -> None:
    """Mask the values of variables, by their names, from now on. One that is an existing path stays as it is."""
    _set(_values | {name: value for name, value in values.items() if not _is_path(value)})


def unmask(names: Iterable[str]) -> None:
    """Mask the values of these variables no more."""
    without = set(names)
    _set({name: value for name, value in _values.items() if name not in without})


def masked(text: str) -> str:
    """Return a text with `${env:NAME}` in the place of each value that is masked."""
    return text if _pattern is None else _pattern.sub(lambda match: _references[match[0]], text)


class MaskedStream(io.TextIOWrapper):
    """A stream that writes texts masked, each by itself."""

    def write(self, text: str, /) -> int:
        super().write(masked(text))
        return len(text)


def mask_streams() -> None:
    """Mask what this process prints from Python: to stdout and to stderr."""
    for name in ("stdout", "stderr"):
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            encoding, errors, by_line = stream.encoding, stream.errors, stream.line_buffering
            masks = MaskedStream(stream.detach(), encoding, errors, line_buffering=by_line)
            setattr(sys, name, masks)
            setattr(sys, f"__{name}__", masks)


def _set(values: dict[str, str]) -> None:
    global _values, _references, _pattern
    _values = values
    _references = {form: f"${{env:{name}}}" for name, value in values.items() for form in _forms(value)}
    parts = [_bounded(form) for form in sorted(_references, key=len, reverse=True)]
    _pattern = re.compile("|".join(parts)) if parts else None


def _forms(value: str) -> Iterator[str]:
    """Yield the forms in which texts quote a value, and each of its lines where it has several."""
    for part in {value, *value.splitlines()}:
        quoted = {repr(part)[1:-1], json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1]}
        yield from (form for form in quoted | {part, quote(part), quote(part, ""), quote_plus(part)} if _masks(form))


def _masks(form: str) -> bool:
    return len(form.strip()) >= SHORTEST


def _bounded(form: str) -> str:
    pattern = re.escape(form)
    return pattern if len(form) >= LONG else rf"(?<!\w){pattern}(?!\w)"


def _is_path(value: str) -> bool:
    with suppress(OSError, ValueError):
        return Path(value).is_absolute() and Path(value).exists()
    return False
