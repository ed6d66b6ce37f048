"""What a run logs as calls of its writers, and which of those that earlier attempts have logged still stand."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from hookflow.events.log import Tail
from hookflow.events.reading import read_record
from hookflow.events.records import Record
from hookflow.events.rundir import RunDir

HEAD = struct.Struct("<QQ")
GAP = struct.Struct("<QQq")


class WriterProgress:
    """Calls are numbered as `hookflow.runner.logging.writer_replay.History` does it.

    `begun` is how many may have reached the writer, `safe` how many it had brought to their place; a file that is not
    there yet says that all of `calls` have been. But of the calls from one number up to another those alone have that
    are not after an iteration: `gaps` are such numbers, with the iteration at which the run was resumed then.
    """

    def __init__(self, path: Path, calls: int) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        kept = path.read_bytes()
        self.begun, self.safe = HEAD.unpack_from(kept) if len(kept) >= HEAD.size else (calls, calls)
        self.begun, self.safe = min(self.begun, calls), min(self.safe, calls)
        self.gaps: list[tuple[int, int, int]] = list(GAP.iter_unpack(kept[HEAD.size :]))

    def save(self, *, begun: int | None = None, safe: int | None = None) -> None:
        """Write down what has changed: with one call of the system, which a kill cannot tear."""
        self.begun = self.begun if begun is None else begun
        self.safe = self.safe if safe is None else safe
        os.pwrite(self._file, HEAD.pack(self.begun, self.safe), 0)

    def leave_out(self, begin: int, end: int, iteration: int) -> None:
        """Write down that of the calls from `begin` up to `end` those after the iteration are never made."""
        if begin < end:
            if not self.gaps:
                self.save()
            os.pwrite(self._file, GAP.pack(begin, end, iteration), HEAD.size + GAP.size * len(self.gaps))
            self.gaps.append((begin, end, iteration))

    def has_begun(self, number: int, iteration: int) -> bool:
        """Say whether a call of an iteration may have reached the writer."""
        return number < self.begun and not any(begin <= number < end and iteration > at for begin, end, at in self.gaps)

    def close(self) -> None:
        """Write nothing more."""
        os.close(self._file)


Series = tuple[str, str]
"""What is logged under one name: what kind of thing it is ("scalar", "image", …), and the name."""


class Call(NamedTuple):
    """Something to write: the method of a writer, the series and the iteration that it is of, the arguments."""

    method: str
    series: Series
    iteration: int
    args: tuple[Any, ...]


def calls_of(record: Record, folder: Path) -> Iterator[Call]:
    """Yield what a writer is to write of a record of the run in `folder`."""
    match record["k"]:
        case "scalars" | "metrics":
            prefix = f"{record['split']}/" if record["k"] == "metrics" else ""
            for name, value in record["v"].items():
                yield _call("scalar", f"{prefix}{name}", record, value)
        case "image" if record["figure"]:
            yield _call("figure", record["name"], record, folder / record["path"])
        case "image":
            yield _call("image", record["name"], record, folder / record["path"], record["caption"])
        case "text":
            yield _call("text", record["name"], record, record["text"])
        case "histogram":
            yield _call("histogram", record["name"], record, record["edges"], record["counts"])


def _call(verb: str, name: str, record: Any, *what: Any) -> Call:
    series = "image" if verb == "figure" else verb, name
    return Call(f"write_{verb}", series, record["it"], (name, *what, record["it"], record["ep"], record["t"]))


class LatestIteration:
    """Keeps back the calls of an iteration until it is over: where a scalar is logged again, the last value stands."""

    def __init__(self) -> None:
        self._calls: dict[object, tuple[int, Call]] = {}
        self._iteration = 0

    def add(self, number: int, call: Call) -> list[tuple[int, Call]]:
        """Take a call with its number; return those of an iteration that is over."""
        over = self.past(call.iteration)
        if not self._calls:
            self._iteration = call.iteration
        key = (call.series, call.iteration) if call.method == "write_scalar" else number
        self._calls.pop(key, None)  # so that the calls stay in the order of their numbers
        self._calls[key] = number, call
        return over

    def past(self, iteration: int) -> list[tuple[int, Call]]:
        """Return the calls that were kept back, if the run has come to a later iteration; none twice."""
        return self.all() if self._calls and iteration > self._iteration else []

    def all(self) -> list[tuple[int, Call]]:
        """Return the calls that were kept back, whatever may follow."""
        calls, self._calls = self._calls, {}
        return list(calls.values())


class History:
    """What earlier attempts at a run have logged, which resumes at `iteration` now.

    Calls have numbers, in the order of the event log; `calls` is how many there are. What was logged after the
    checkpoint that a later attempt resumed from does not stand any more.
    """

    def __init__(self, run_dir: RunDir, iteration: int) -> None:
        self.iteration = iteration
        self.calls = 0
        self._run_dir = run_dir
        begins: list[tuple[int, int]] = []
        for record in self._records():
            if record["k"] == "run":
                begins.append((self.calls, record.get("it", 0)))
            self.calls += sum(1 for _ in calls_of(record, run_dir.path))
        begins.append((self.calls, iteration))
        self._attempts = [(number, min(it for _, it in begins[k:])) for k, (number, _) in enumerate(begins)]
        """The first call of each attempt, and the earliest iteration at which it or a later one has begun."""

    def numbered(self) -> Iterator[tuple[int, Call]]:
        """Yield every call with its number, but those that the same attempt has superseded in the same iteration."""
        begins = {number for number, _ in self._attempts}
        latest = LatestIteration()
        every = (call for record in self._records() for call in calls_of(record, self._run_dir.path))
        for number, call in islice(enumerate(every), self.calls):  # what follows this attempt logs
            if number in begins:
                yield from latest.all()
            yield from latest.add(number, call)
        yield from latest.all()

    def standing(self) -> Iterator[tuple[int, Call]]:
        """Yield the calls that stand, no step of a series from two attempts."""
        attempts = iter(self._attempts)
        first, earliest = next(attempts)
        latest: dict[Series, int] = {}
        before: dict[Series, int] = {}
        for number, call in self.numbered():
            while number >= first:
                first, earliest = next(attempts)
                before = dict(latest)
            if before.get(call.series, -1) < call.iteration <= earliest:
                latest[call.series] = call.iteration
                yield number, call

    def _records(self) -> Iterator[Record]:
        log = Tail[Record](self._run_dir.events, _but_frames)
        log.grew = True
        while log.grew:
            yield from log.read()


def _but_frames(line: bytes) -> Record | None:
    """Return what a line of an event log says; frames, which are most of it, are left out."""
    return None if line.startswith(b'{"k":"frame"') else read_record(line)
