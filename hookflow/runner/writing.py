"""The writers of a run: made before the training, fed with what the event log is given, closed whatever happens.

The training thread calls no writer while it trains, and waits for none: the recorder's thread hands on what it
records, and each writer has a thread. Only the end of a run waits, and not for long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import tomli

from hookflow.events.records import Record
from hookflow.events.rundir import RunDir, count_attempts
from hookflow.runner.recorder import Recorder
from hookflow.runner.signals import Signals
from hookflow.runner.writer_history import Call, History, LatestIteration, calls_of
from hookflow.runner.writer_thread import WriterThread
from hookflow.writers.base import Writer

GRACE, CLOSING = 10.0, 5.0
"""Seconds that the end of a run waits for its writers to write what is left, and then for them to close."""


@contextmanager
def writing(
    makes: Mapping[str, Callable[[Mapping[str, Any]], Writer]],
    run_dir: RunDir,
    pipeline: Path,
    iteration: int,
    recorder: Recorder,
    signals: Signals,
) -> Iterator[Callable[[], None]]:
    """Make the writers, each by its name in `makes`; from a call of what is yielded on they write what is recorded.

    `pipeline` is the recorded file, and the run begins at `iteration`. Signals are ignored while the end waits for the
    writers.
    """
    if not makes:
        yield lambda: None
        return
    history = History(run_dir, iteration) if count_attempts(run_dir) else None
    threads = _made(makes, run_dir, pipeline, recorder, history)
    numbers = count(history.calls if history else 0)
    latest = LatestIteration()

    def give(calls: Sequence[tuple[int, Call]]) -> None:
        for number, call in calls:
            for thread in threads:
                thread.give(number, call)

    def hand_on(records: Sequence[Record]) -> None:
        for record in records:
            for call in calls_of(record, run_dir.path):
                give(latest.add(next(numbers), call))
            give(latest.past(record["it"]))

    def start() -> None:
        for thread in threads:
            thread.start()
        recorder.listener = hand_on

    try:
        yield start
    except BaseException:
        if recorder.listener is None:  # the resume was refused
            for thread in threads:
                thread.leave()
            threads = []
        raise
    finally:
        before, signals.ignored = signals.ignored, True
        recorder.flush(frame=False, patience=GRACE)
        recorder.listener = None
        give(latest.all())
        _finish(threads)
        for thread in threads:
            if said := thread.shortcomings():
                recorder.say(said, "warn")
        signals.ignored = before


def _made(
    makes: Mapping[str, Callable[[Mapping[str, Any]], Writer]],
    run_dir: RunDir,
    pipeline: Path,
    recorder: Recorder,
    history: History | None,
) -> list[WriterThread]:
    """Make all the writers; when one of them cannot be made, the others are closed."""
    config = tomli.loads(pipeline.read_text("utf-8"))
    threads = []
    with ExitStack() as opened:
        for name, make in makes.items():
            folder = run_dir.writers / name
            folder.mkdir(parents=True, exist_ok=True)
            writer = make({"dir": folder, "run_name": run_dir.path.parent.name, "run_id": run_dir.id})
            opened.callback(writer.close)
            threads.append(WriterThread(name, writer, config, folder, recorder, history))
        opened.pop_all()
    return threads


def _finish(threads: Sequence[WriterThread]) -> None:
    """Wait until all is written and closed, but no longer than GRACE and CLOSING."""
    for thread in threads:
        thread.finish()
    deadline = time.monotonic() + GRACE
    late = [thread for thread in threads if not thread.join(deadline - time.monotonic())]
    for thread in late:
        thread.hurry()
    deadline = time.monotonic() + CLOSING
    for thread in late:
        thread.join(deadline - time.monotonic())
