"""Which steps of each name a run has logged so far: what a resumed run must not hand to its writers a second time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hookflow.events.log import Tail
from hookflow.events.reading import read_record
from hookflow.events.records import Record
from hookflow.events.rundir import RunDir

Series = tuple[str, str]
"""What is logged under one name: what kind of thing it is ("scalar", "image", …), and the name."""


class Steps(NamedTuple):
    """The latest iteration of each series: of all that was ever logged, and of what stands at one iteration."""

    ever: dict[Series, int]
    standing: dict[Series, int]


def steps(run_dir: RunDir, iteration: int) -> Steps:
    """Return what a run has logged, that resumes at `iteration` now.

    What an attempt logged after the checkpoint that a later one resumed from does not stand any more.
    """
    ever: dict[Series, int] = {}
    standing: dict[Series, int] = {}
    for record in _records(run_dir):
        if record["k"] == "run" and record.get("it", 0) < iteration:
            standing.clear()
        for series in series_of(record):
            it = record["it"]
            ever[series] = max(it, ever.get(series, it))
            if it == iteration:
                standing[series] = it
    return Steps(ever, standing)


def _but_frames(line: bytes) -> Record | None:
    """Return what a line of an event log says; frames, which are most of it, are left out."""
    return None if line.startswith(b'{"k":"frame"') else read_record(line)


def _records(run_dir: RunDir) -> Iterator[Record]:
    log = Tail[Record](run_dir.events, _but_frames)
    log.grew = True
    while log.grew:
        yield from log.read()


def series_of(record: Record) -> Iterator[Series]:
    """Yield the series that a record belongs to: none, one, or one for each of its scalars."""
    match record["k"]:
        case "scalars":
            yield from (("scalar", name) for name in record["v"])
        case "metrics":
            yield from (("scalar", f"{record['split']}/{name}") for name in record["v"])
        case "image" | "text" | "histogram":
            yield record["k"], record["name"]
