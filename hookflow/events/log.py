"""Append-only JSON lines: the format of the event log and of the command log."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar, cast

from hookflow.events.reading import open_regular, read_object, read_record
from hookflow.events.records import TEXT_LIMIT, Record, shorten_text
from hookflow.numbers import mapped, strict_json
from hookflow.text import has_masks, mask_names, masked

MAX_LINE_BYTES = 1 << 22
"""Bytes of a line, from which on it is passed over; no record is as long."""

TEXT_KEYS = frozenset({"text", "traceback", "causes", "reason", "note", "caption"})
"""Keys of records whose values are for people."""

NAME_KEYS = frozenset({"name"})
"""Keys of records whose values are names that hooks and tasks have given."""

BY_NAME = frozenset({"v", "modes"})
"""Keys of records whose values are mappings by such names."""

MASKED_KEYS = TEXT_KEYS | NAME_KEYS | BY_NAME | {"fp32"}
"""Keys of records that `mask_record` looks at."""

AnyRecord = TypeVar("AnyRecord", bound=Mapping[str, Any])

_LONE_SURROGATE = re.compile(
    r"\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f])|(?<!\\ud[89ab][0-9a-f]{2})\\ud[c-f][0-9a-f]{2}"
)

READ_CHUNK_BYTES = 1 << 20
"""Bytes read at a time.

Opening the log of a long run then leaves room for a key press in between.
"""


def encode(record: Mapping[str, Any]) -> str:
    """Return the record as one line of strict JSON.

    Its strings are `shortened`, and its texts and names `masked`. Numbers that are not finite, and
    values that JSON does not know, become strings.
    """
    record = mask_record(record)
    line = strict_json(record, str, separators=(",", ":"), default=str)
    if len(line) > TEXT_LIMIT:  # a shorter line has no long string in it
        line = strict_json(mapped(record, _short), str, separators=(",", ":"), default=str)
    return readable(line)


def mask_record(record: AnyRecord) -> AnyRecord:
    """Return the record with its texts, and the names of what was logged, `masked`."""
    if not has_masks():
        return record
    result: dict[str, Any] = dict(record)
    for key in MASKED_KEYS & record.keys():
        value = record[key]
        if isinstance(value, str):
            result[key] = masked(value)
        elif isinstance(value, Mapping):
            result[key] = mask_names(value)
        elif isinstance(value, list):
            result[key] = [masked(item) if isinstance(item, str) else item for item in value]
    return cast("AnyRecord", result)


def readable(text: str) -> str:
    """Return JSON in ASCII without lone surrogates, which file names that are not UTF-8 contain."""
    text = text.replace("\x7f", r"\u007f")
    if "\\ud" in text:
        return _LONE_SURROGATE.sub(r"\\ufffd", text)
    return text


def _short(value: Any) -> Any:
    if value is None or isinstance(value, int | float):
        return value
    return shorten_text(str(value))


class LogAppender:
    """Writes records to the end of a file, each batch in one write.

    Many may then write, and none is torn.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = self._open()
        self.size = path.stat().st_size
        """Bytes of the file when it was opened."""
        with path.open("rb") as file:
            file.seek(max(self.size - 1, 0))
            self._torn = file.read(1) not in (b"", b"\n")

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def reopen_if_removed(self) -> bool:
        """Create the file again if it was removed, and return whether it was."""
        if os.fstat(self._file).st_nlink:
            return False
        removed = self._file
        self._file = self._open()
        self._torn = False
        os.close(removed)
        return True

    def append(self, records: Iterable[Mapping[str, Any]]) -> int:
        """Append the records and return how many bytes that took.

        Raises OSError when the disk does not take them all; the line that this tears costs no
        record that comes after.
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


def iter_whole_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a log, each with the byte that it starts at.

    Lines that are too long to be held are left out.
    """
    start = 0
    at_start = True
    while line := file.readline(MAX_LINE_BYTES):
        is_whole = line.endswith(b"\n")
        if at_start and (is_whole or len(line) < MAX_LINE_BYTES):
            yield start, line
        start += len(line)
        at_start = is_whole


Line = TypeVar("Line")
"""The records of a log, by `hookflow.events.records`."""


class TailReader(Generic[Line]):
    """Reads the records appended since the last look; a line still being written waits for its end.

    `parse` returns the record of a line, or None to leave it out; it raises ValueError for a line
    that is no record.
    """

    chunk = READ_CHUNK_BYTES

    def __init__(self, path: Path, parse: Callable[[bytes], Any] = read_object) -> None:
        self._path = path
        self._parse = parse
        self.passed_over = 0
        """Lines that were whole and no records, or too long."""
        self.complaint = ""
        """Where the first of them is, and why it cannot be read."""
        self.at = 0
        """Bytes read so far, to the end of a line."""
        self.grew = False
        """Whether the last look has found something new."""
        self._too_long = False
        self._inode = 0

    def read(self) -> list[Line]:
        """Return the next whole records, at most about `chunk` bytes of them.

        There are none when there is nothing new. A file that was removed and begun anew is read
        from its beginning.
        """
        try:
            with open_regular(self._path) as file:
                seen = os.fstat(file.fileno())
                if self._inode not in (0, seen.st_ino) or seen.st_size < self.at:
                    self.at = 0
                    self._too_long = False
                self._inode = seen.st_ino
                file.seek(self.at)
                data = file.read(self.chunk)
                if b"\n" not in data:
                    data += file.read(MAX_LINE_BYTES - len(data) + 1)
        except OSError:
            data = b""
        *lines, rest = data.split(b"\n")
        if lines and self._too_long:
            del lines[0]
            self._too_long = False
            self._pass_over(f"it has more than {MAX_LINE_BYTES} bytes")
        elif not lines and len(rest) > MAX_LINE_BYTES:
            self._too_long = True
            rest = b""
        self.grew = len(data) > len(rest)
        self.at += len(data) - len(rest)
        records: list[Line] = []
        for line in filter(None, lines):
            try:
                self._add_line(line, records)
            except ValueError as error:
                # An EOF within a line means that the process that wrote it was killed.
                if not str(error).startswith("EOF"):
                    self._pass_over(str(error))
        return records

    def _add_line(self, line: bytes, records: list[Line]) -> None:
        """Add the record of a line. Raises ValueError for a line that is no record."""
        record = self._parse(line)
        if record is not None:
            records.append(record)

    def _pass_over(self, why: str) -> None:
        self.passed_over += 1
        self.complaint = self.complaint or f"{self._path.name}: {why}"

    def read_all(self) -> list[Line]:
        """Return everything from here to the present end of the file."""
        records: list[Line] = []
        while True:
            records += self.read()
            if not self.grew:
                return records


def event_log(path: Path) -> TailReader[Record]:
    return TailReader(path, read_record)
