"""Reads the event logs of a run.

There is one reader for each log, with a filter, and one that merges those of all ranks.
"""

import re
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hookflow.events.log import TailReader
from hookflow.events.reading import open_regular, read_record
from hookflow.events.records import MAX_WORLD_SIZE, Record
from hookflow.events.rundir import RunDir

RECENT_BYTES = 1 << 19
"""Bytes at the end of a log, when it is first looked at, in which no record is old.

They span some minutes.
"""


def line_start(kind: str) -> bytes:
    """Return how the line of a record of this kind begins."""
    return b'{"k":"%s"' % kind.encode()


FRAME_START = line_start("frame")
SCALARS_START = line_start("scalars")
ATTEMPT_BOUND_STARTS = (line_start("run"), line_start("end"))
"""How the lines begin with which an attempt begins and ends."""

SHARED_KINDS = (
    "scalars",
    "metrics",
    "epoch",
    "checkpoint",
    "image",
    "text",
    "histogram",
    "trace",
    "ack",
    "throttle",
    "progress",
)
"""Kinds of records that other ranks write too, and that are shown of rank 0 alone."""

SHARED_STARTS = tuple(line_start(kind) for kind in SHARED_KINDS)


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Which lines of a log are left out before they are parsed, by how they begin.

    `never` are always left out, `old` before the last `RECENT_BYTES`. Of `thinned` the last one of
    each attempt is read, and of scalars the last one with each set of names.
    """

    never: tuple[bytes, ...] = ()
    old: tuple[bytes, ...] = ()
    thinned: tuple[bytes, ...] = ()


EVERY_RECORD = RecordFilter()
NEWEST_RECORDS = RecordFilter(old=(FRAME_START, SCALARS_START))
"""All but the old frames and scalars: a long log is read at once."""

OTHER_RANK = RecordFilter(never=SHARED_STARTS, old=(FRAME_START,))
SUMMARY_RECORDS = RecordFilter(thinned=(FRAME_START, SCALARS_START))
"""All but what makes up most of a log, and the last of that: how far the run is."""

OTHER_RANK_SUMMARY = RecordFilter(never=(FRAME_START, *SHARED_STARTS))


NOT_OF_NAMES = b"0123456789.,:+-e[]{}"
"""The characters of a line of scalars beside its names: numbers, and their separators."""

MAX_NAME_SETS = 64
"""How many lines of scalars with other names are kept, the latest ones."""


def _find_names(line: bytes) -> frozenset[bytes]:
    """Return the texts of a line by which its scalars are told from those of another one.

    Not every scalar is in the last line: one may be logged once in an epoch. The line is not
    parsed, which would take ten times as long. Names that differ in digits alone are one here.
    """
    texts = line.translate(None, NOT_OF_NAMES)
    return frozenset(texts.split(b'"'))


class LogReader(TailReader[Record]):
    """Reads on in one log.

    `recent` is the byte from which on records are not old.
    """

    def __init__(self, path: Path, record_filter: RecordFilter = EVERY_RECORD) -> None:
        super().__init__(path, read_record)
        self.recent = 0
        if record_filter.old:
            with suppress(OSError):
                self.recent = path.stat().st_size - RECENT_BYTES
        self._filter = record_filter
        self._all_left_out = record_filter.never + record_filter.old
        self._thinned: dict[object, bytes] = {}
        """The last lines that were left out, in their order.

        The key of a line is how it begins, or its names.
        """

    def _add_line(self, line: bytes, records: list[Record]) -> None:
        is_old = self.at <= self.recent
        if is_old:
            left_out = self._all_left_out
        else:
            left_out = self._filter.never
        if left_out and line.startswith(left_out):
            return
        if self._filter.thinned:
            for start in self._filter.thinned:
                if line.startswith(start):
                    self._keep_thinned(start, line)
                    return
            if line.startswith(ATTEMPT_BOUND_STARTS):
                records += self._take_thinned()
        super()._add_line(line, records)

    def _keep_thinned(self, start: bytes, line: bytes) -> None:
        key: object = start
        if start == SCALARS_START:
            key = _find_names(line)
        self._thinned.pop(key, None)
        self._thinned[key] = line
        if len(self._thinned) > MAX_NAME_SETS:
            oldest = next(iter(self._thinned))
            del self._thinned[oldest]

    def read_all(self) -> list[Record]:
        """Return everything from here to the present end of the file."""
        records = super().read_all()
        return records + self._take_thinned()

    def _take_thinned(self) -> list[Record]:
        """Return the last records of those that were left out.

        A line that is no record is passed over.
        """
        records = []
        for line in self._thinned.values():
            with suppress(ValueError):
                records.append(read_record(line))
        self._thinned.clear()
        return records


_NUMBER = re.compile(r"events\.rank(\d{1,9})\.jsonl")


class RankLog(NamedTuple):
    """The log of a rank other than 0; `problem` says why it cannot be read."""

    rank: int
    path: Path
    problem: str


def find_rank_logs(run: RunDir, known: Collection[int] = ()) -> list[RankLog]:
    """Return the logs that ranks beside 0, and beside those known, have by now."""
    numbered = []
    for path in run.path.glob("events.rank*.jsonl"):
        match = _NUMBER.fullmatch(path.name)
        if match is not None:
            numbered.append((int(match[1]), path))
    logs = []
    for rank, path in sorted(numbered):
        if 0 < rank < MAX_WORLD_SIZE and rank not in known:
            logs.append(RankLog(rank, path, _find_read_problem(path)))
    return logs


def _find_read_problem(path: Path) -> str:
    try:
        open_regular(path).close()
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    return ""


OTHER_RANK_CHUNK = 1 << 17
"""Bytes that are read at a time of the log of another rank: there may be many of these."""


def make_other_rank_reader(path: Path) -> LogReader:
    """Return a reader of the log of another rank."""
    reader = LogReader(path, OTHER_RANK)
    reader.chunk = OTHER_RANK_CHUNK
    return reader


class RunLogReader:
    """Reads on in the logs of all ranks; a log that comes late, or lags behind, harms nothing.

    `unreadable` are the logs of ranks that cannot be read, in words; the code that reports them
    takes them out.
    """

    def __init__(self, run: RunDir, record_filter: RecordFilter = EVERY_RECORD) -> None:
        self._run = run
        self.first = LogReader(run.events, record_filter)
        self.others: dict[int, LogReader] = {}
        self.waiting: dict[int, deque[Record]] = {0: deque()}
        """The records of each rank that were read, and are not yielded yet."""
        self._known: set[int] = set()
        self.unreadable: list[str] = []

    @property
    def readers(self) -> dict[int, LogReader]:
        """The readers of all ranks."""
        return {0: self.first, **self.others}

    def add_rank(self, rank: int, waiting: Collection[Record] = ()) -> LogReader:
        """Begin to read the log of another rank; `waiting` was read before."""
        reader = make_other_rank_reader(self._run.find_events_path(rank))
        self._known.add(rank)
        self.others[rank] = reader
        self.waiting[rank] = deque(waiting)
        return reader

    def read(self) -> Iterator[tuple[int, Record]]:
        """Yield what is new with the rank that has written it.

        The oldest record comes first.
        """
        self._find_new_ranks()
        unfinished = self.readers  # those that may have more than was read
        while True:
            self._fill(unfinished)
            ranks = [rank for rank, records in self.waiting.items() if records]
            if not ranks:
                return
            oldest = ranks[0]
            if len(ranks) > 1:
                oldest = min(ranks, key=lambda rank: self.waiting[rank][0]["t"])
            yield oldest, self.waiting[oldest].popleft()

    def _find_new_ranks(self) -> None:
        for log in find_rank_logs(self._run, self._known):
            if log.problem:
                self._known.add(log.rank)
                self.unreadable.append(log.problem)
            else:
                self.add_rank(log.rank)

    def _fill(self, unfinished: dict[int, LogReader]) -> None:
        """Read on where nothing waits; logs that are read to their end leave `unfinished`."""
        for rank in list(unfinished):
            while rank in unfinished and not self.waiting[rank]:
                reader = unfinished[rank]
                self.waiting[rank].extend(reader.read())
                if not reader.grew:
                    del unfinished[rank]
