"""The output of the training.

Its stdout and stderr share one file, which is read line by line as it grows.
"""

import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hookflow.events.reading import open_regular
from hookflow.text import ESCAPE_SEQUENCE, make_printable

READ_CHUNK_BYTES = 1 << 20
"""Bytes read at a time; also the longest line that is waited for."""

MAX_LINES = 10_000
"""Printed lines that are kept."""


def tidy(line: str) -> str:
    """Return a line as it looks in the end.

    For a progress bar, which is drawn again and again, that is the last state.
    """
    states = [part for part in ESCAPE_SEQUENCE.sub("", line).split("\r") if part.strip()]
    if not states:
        return ""
    return make_printable(states[-1]).rstrip()


class OutputReader:
    """Reads what has been printed since the last look.

    At first it reads at most `back` bytes of what was there before.
    """

    def __init__(self, path: Path, *, back: int | None = None) -> None:
        self._path = path
        self._at = 0
        if back is not None and path.exists():
            self._at = max(path.stat().st_size - back, 0)
        self._rest = b""

    @property
    def unfinished(self) -> str:
        """The line that has no end yet, as of a progress bar."""
        return tidy(self._rest.decode("utf-8", "replace"))

    def read(self, last: bool = False) -> list[str]:
        """Return the next whole lines; with `last` also one that was not ended."""
        try:
            with open_regular(self._path) as file:
                file.seek(self._at)
                data = file.read(-1 if last else READ_CHUNK_BYTES)
        except OSError:
            return []
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._rest and (last or len(self._rest) > READ_CHUNK_BYTES):
            lines.append(self._rest)
            self._rest = b""
        return [tidy(line.decode("utf-8", "replace")) for line in lines]


class PrintedLine(NamedTuple):
    """A printed line; `number` counts those that were read.

    `seen` is when it was read, in seconds since 1970; of what was there before, when the file was
    last written.
    `is_timed`: that is about when it was printed, too.
    """

    number: int
    seen: float
    is_timed: bool
    text: str


class PrintedOutput:
    """The last lines that the training printed, each with the time at which it was seen."""

    def __init__(self, path: Path) -> None:
        self.lines: deque[PrintedLine] = deque(maxlen=MAX_LINES)
        self.unfinished = ""
        self._path = path
        self._reader = OutputReader(path, back=READ_CHUNK_BYTES)
        self._next = 0
        self._has_looked = False

    @property
    def marker(self) -> tuple[int, str]:
        """A value that changes with each printed line."""
        return self._next, self.unfinished

    def poll(self, clock: float) -> None:
        """Read on at a moment, in seconds since 1970."""
        texts = self._reader.read()
        seen = clock
        if texts and not self._has_looked:
            seen = self._last_written(clock)
        for text in texts:
            self.lines.append(PrintedLine(self._next, seen, self._has_looked, text))
            self._next += 1
        self.unfinished = self._reader.unfinished
        self._has_looked = True

    def _last_written(self, clock: float) -> float:
        try:
            return self._path.stat().st_mtime
        except OSError:
            return clock


FRACTION_PATTERN = r"[-+]?(\d*\.\d|nan\b|inf\b)"
INTEGER_PATTERN = r"[-+]?\d+(e[-+]?\d+)?\s*(%|[,;|)]|$|\w+\s*[:=])"
MEASUREMENT_PATTERN = (
    rf"(?!['\")\]]*\s*[:=|]?\s*({FRACTION_PATTERN}|{INTEGER_PATTERN})"
    rf"|\s\w+\s*[:=]?\s*{FRACTION_PATTERN})"
)
"""A look ahead that refuses a number behind a word of an error.

There the word, or it and the next one, is the name of the number.
"""

LINE_BEGIN_PATTERN = r"^\W*(\d[\d:.,/TZ -]*\W*)?"
"""The begin of a line: brackets, and a time stamp."""

WARNING = re.compile(rf"\b(warn|warning|\w+Warning)\b{MEASUREMENT_PATTERN}", re.IGNORECASE)
ERROR = re.compile(
    rf"(?i:{LINE_BEGIN_PATTERN}(error|critical|fatal))\b(?i:{MEASUREMENT_PATTERN})"
    rf"|(?i:\b(error|critical|fatal)(?=[\])>]*:\s|[\])>]|\s(occurred|while|code)\b))(?i:{MEASUREMENT_PATTERN})"
    rf"|\b(ERROR|CRITICAL|FATAL)\b(?i:{MEASUREMENT_PATTERN})"
    rf"|(?i:\b(an|the|this|following|internal)\serrors?\b)(?i:{MEASUREMENT_PATTERN})"
    rf"|\w(Error|Exception)\b(?i:{MEASUREMENT_PATTERN})"
    rf"|\w(?i:error): \[Errno"
    rf"|\bTraceback\b"
)
"""The signs of an error in a printed line.

The word alone is none: it is in names of metrics, too.
"""

SUSPICIOUS_WORDS = re.compile("warn|error|critical|fatal|exception|traceback", re.IGNORECASE)
"""The parts of a line of a level: a quick look before the patterns."""

SEVERITY_LEVELS: Sequence[str] = ("info", "warn", "error")
"""How serious a line is, by its place here."""


def find_severity(text: str) -> int:
    """Return how serious a printed line is, by its words: a place in `SEVERITY_LEVELS`."""
    if not SUSPICIOUS_WORDS.search(text):
        return 0
    if ERROR.search(text):
        return 2
    if WARNING.search(text):
        return 1
    return 0
