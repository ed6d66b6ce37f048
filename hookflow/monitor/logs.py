"""The event logs of all ranks as one, in the order of their stamps.

Of the other ranks than 0 only a part is of interest: what they log beside rank 0 is passed over unparsed, and where a
log is long only the heads of its older frames are read. So a run of many ranks opens quickly.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

from hookflow.events.log import Tail, event_log
from hookflow.events.reading import read_head, read_record
from hookflow.events.records import WORLD, Frame, Record
from hookflow.events.regular_file import open_regular
from hookflow.events.rundir import RunDir

SHARED = tuple(
    b'{"k":"%s"' % kind
    for kind in (b"scalars", b"metrics", b"epoch", b"checkpoint", b"image", b"text", b"histogram", b"ack")
)
"""How lines begin that other ranks write too, and that are shown of rank 0 alone."""

RECENT = 1 << 19
"""Bytes at the end of a log, when it is first looked at, that are read whole: some minutes of it."""

_HEAD = re.compile(rb'\{"k":"frame",.*?"iters":\[\d+,\d+')
"""A frame as far as the sums of its iterations: without histograms and hooks."""

_NUMBER = re.compile(r"events\.rank(\d{1,9})\.jsonl")


def logs_of_others(run: RunDir) -> dict[int, Path]:
    """Return the event logs of the ranks beside 0 that are there by now."""
    matches = {path: _NUMBER.fullmatch(path.name) for path in run.path.glob("events.rank*.jsonl")}
    logs = {int(match[1]): path for path, match in matches.items() if match}
    return {rank: logs[rank] for rank in sorted(logs) if 0 < rank < WORLD}


def refused(path: Path) -> str:
    """Return that a log cannot be read, and why; empty where it can."""
    try:
        open_regular(path).close()
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    return ""


class Others(Tail[Record]):
    """Reads on in the log of another rank."""

    chunk = 1 << 17

    def __init__(self, path: Path) -> None:
        super().__init__(path, self._part)
        self._recent = path.stat().st_size - RECENT

    def read(self) -> list[Record]:
        """Return what is next; the heads of frames that follow one another are added up into one."""
        records: list[Record] = []
        for record in super().read():
            if records and _is_head(record) and _is_head(last := records[-1]):
                records[-1] = _added(last, record)
            else:
                records.append(record)
        return records

    def _part(self, line: bytes) -> Record | None:
        """Return of a line what is of interest."""
        if line.startswith(SHARED):
            return None
        if self.at <= self._recent and (head := _HEAD.match(line)):
            return read_head(head[0] + b"]}")
        return read_record(line)


def _is_head(record: Record) -> TypeGuard[Frame]:
    return record["k"] == "frame" and "hooks" not in record


def _added(head: Frame, following: Frame) -> Frame:
    phases = {phase: ns + head["phases"].get(phase, 0) for phase, ns in following["phases"].items()}
    iters = [one + other for one, other in zip(head["iters"], following["iters"], strict=True)]
    return {**following, "phases": phases, "iters": iters}


class Logs:
    """Reads on in all of them; a log that comes late, or lags behind, harms nothing."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._tails: dict[int, Tail[Record]] = {0: event_log(run.events)}
        self._waiting: dict[int, deque[Record]] = {0: deque()}
        self.refused: dict[int, str] = {}
        """The logs of ranks that cannot be read, in words."""

    @property
    def passed_over(self) -> int:
        """Return how many lines were no records."""
        return sum(tail.passed_over for tail in self._tails.values())

    @property
    def complaint(self) -> str:
        """Return where one of them is, and why it cannot be read; nothing where there is none."""
        return next((tail.complaint for tail in self._tails.values() if tail.complaint), "")

    def read(self) -> Iterator[tuple[int, Record]]:
        """Yield what is new with the rank that has written it; of what is there, what is oldest first."""
        for rank, path in logs_of_others(self._run).items():
            if rank in self._tails:
                continue
            if why := refused(path):
                self.refused[rank] = why
            else:
                self._tails[rank], self._waiting[rank] = Others(path), deque()
        more = dict(self._tails)  # those that may have more than was read
        while True:
            for rank, tail in list(more.items()):
                while not self._waiting[rank] and rank in more:
                    self._waiting[rank].extend(tail.read())
                    if not tail.grew:
                        del more[rank]
            heads = [rank for rank, records in self._waiting.items() if records]
            if not heads:
                return
            rank = heads[0] if len(heads) == 1 else min(heads, key=lambda rank: self._waiting[rank][0]["t"])
            yield rank, self._waiting[rank].popleft()
