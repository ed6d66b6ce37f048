"""Append-only JSON lines: the one format of the event log and of the command log."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

CHUNK = 1 << 20
"""Bytes read at a time, so that opening the log of a long run leaves room for a key press in between."""


def encode(record: Mapping[str, Any]) -> str:
    """Return the record as one line of strict JSON; a number that is not finite becomes its name as a string.

    So does anything that JSON does not know: a log takes what it is given.
    """
    try:
        return json.dumps(record, separators=(",", ":"), allow_nan=False, default=str)
    except ValueError:
        return json.dumps(_finite(record), separators=(",", ":"), default=str)


def _finite(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case Mapping():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
    return value


class Appender:
    """Writes records to the end of a file, each batch in one write, so that many may write and none is torn."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._torn = False
        self._mend(path)

    def _mend(self, path: Path) -> None:
        """End a line that a killed writer left torn, so that it costs itself and not the next one too."""
        size = path.stat().st_size
        if size:
            with path.open("rb") as file:
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    os.write(self._file, b"\n")

    def append(self, records: Iterable[Mapping[str, Any]]) -> int:
        """Append the records and return how many bytes that took.

        Raises OSError when the disk does not take them all; the line that this tears costs no record that comes after.
        """
        data = ("\n" * self._torn + "".join(encode(record) + "\n" for record in records)).encode()
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        finally:
            self._torn = bool(rest) and (self._torn or len(rest) < len(data))
        return len(data)

    def close(self) -> None:
        os.close(self._file)


Line = TypeVar("Line")
"""What a log holds, by `hookflow.events.records`. That is not checked: another version may have written the log."""


class Tail(Generic[Line]):
    """Reads what has been appended since the last look; a line still being written waits for its end."""

    chunk = CHUNK

    def __init__(self, path: Path) -> None:
        self._path = path
        self.at = 0
        """Bytes read so far."""
        self.grew = False
        """Whether the last look has found something new."""
        self._rest = b""

    def read(self) -> list[Line]:
        """Return the next whole records, at most about `chunk` bytes of them; none when there is nothing new.

        A line that is not a JSON object (torn by a kill) is passed over.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self.at)
                data = file.read(self.chunk)
        except OSError:
            data = b""
        self.at += len(data)
        self.grew = bool(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        records: list[Line] = []
        for line in lines:
            try:
                record = self.parse(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                records.append(cast(Line, record))
        return records

    def parse(self, line: bytes) -> Any:
        """Return what a line says; None to pass over it. Raises ValueError for a line that says nothing."""
        return json.loads(line)

    def read_all(self) -> list[Line]:
        """Return everything from here to the present end of the file."""
        records: list[Line] = []
        while True:
            records += self.read()
            if not self.grew:
                return records
