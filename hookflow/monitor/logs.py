"""The event logs of all ranks as one, in the order of their stamps.

Of the other ranks than 0 only a part is of interest: what they log beside rank 0 is passed over unparsed, and where a
log is long only the heads of its older frames are read. So a run of many ranks opens quickly.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hookflow.events.log import CHUNK, Tail
from hookflow.events.rundir import RunDir

SHARED = (b'{"k":"scalars"', b'{"k":"metrics"', b'{"k":"epoch"', b'{"k":"checkpoint"', b'{"k":"ack"')
"""How lines begin that other ranks write too, and that are shown of rank 0 alone."""

_HEAD = re.compile(rb'\{"k":"frame",.*?"iters":\[\d+,\d+')
"""A frame as far as the sums of its iterations: without histograms and hooks."""

_NUMBER = re.compile(r"events\.rank(\d+)\.jsonl")


def logs_of_others(run: RunDir) -> dict[int, Path]:
    """Return the event logs of the ranks beside 0 that are there by now."""
    found = {
        int(match[1]): path for path in run.path.glob("events.rank*.jsonl") if (match := _NUMBER.fullmatch(path.name))
    }
    return dict(sorted(found.items()))


class Others(Tail):
    """Reads on in the log of another rank."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._recent = path.stat().st_size - CHUNK

    def parse(self, line: bytes) -> Any:
        if line.startswith(SHARED):
            return None
        if self.at <= self._recent and (head := _HEAD.match(line)):
            line = head[0] + b"]}"
        return json.loads(line)


class Logs:
    """Reads on in all of them; a log that comes late, or lags behind, harms nothing."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._tails: dict[int, Tail] = {0: Tail(run.events)}
        self._waiting: dict[int, deque[dict[str, Any]]] = {0: deque()}

    def read(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield what is new with the rank that has written it; of what is there, what is oldest first."""
        for rank, path in logs_of_others(self._run).items():
            if rank not in self._tails:
                self._tails[rank], self._waiting[rank] = Others(path), deque()
        more = dict(self._tails)  # those that may have more than was read
        while True:
            for rank, tail in list(more.items()):
                while not self._waiting[rank] and rank in more:
                    self._waiting[rank].extend(tail.read())
                    if not tail.grew:
                        del more[rank]
            heads = [(_stamp(records[0]), rank) for rank, records in self._waiting.items() if records]
            if not heads:
                return
            rank = min(heads)[1]
            yield rank, self._waiting[rank].popleft()


def _stamp(record: dict[str, Any]) -> float:
    """Return when a record was written; what says it in no way that can be read goes first."""
    t = record.get("t")
    return float(t) if isinstance(t, int | float) else 0.0
