"""What a run's process printed: its `output.log`, a line at a time, fit for any terminal."""

from __future__ import annotations

import os
from pathlib import Path

from hookflow.events.regular_file import open_regular
from hookflow.excerpt import ESCAPE
from hookflow.monitor.style import clean

CHUNK = 1 << 20
"""Bytes read at a time; also the longest line that is waited for."""


def tidy(line: str) -> str:
    """Return a line as it looks in the end: of a progress bar, which goes back again and again, the last state."""
    states = [part for part in ESCAPE.sub("", line).split("\r") if part.strip()]
    return clean(states[-1].replace("\t", "    ")).rstrip() if states else ""


class Output:
    """Reads what has been printed since the last look."""

    def __init__(self, path: Path, *, from_now: bool = False) -> None:
        self._path = path
        self._at = path.stat().st_size if from_now and path.exists() else 0
        self._rest = b""

    def read(self, last: bool = False) -> list[str]:
        """Return the next whole lines; with `last` also one that nobody has ended. None when there is nothing new."""
        try:
            with open_regular(self._path) as file:
                file.seek(self._at)
                data = file.read(-1 if last else CHUNK)
        except OSError:
            return []
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._rest and (last or len(self._rest) > CHUNK):
            lines, self._rest = [*lines, self._rest], b""
        return [tidy(line.decode("utf-8", "replace")) for line in lines]


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines, `count` at most, and not further back than 64 kB."""
    try:
        with open_regular(path) as file:
            file.seek(max(file.seek(0, os.SEEK_END) - (1 << 16), 0))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [tidy(line) for line in text.removesuffix("\n").split("\n")[-count:]] if text else []
