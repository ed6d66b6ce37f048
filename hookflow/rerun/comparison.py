"""A rerun.

Iterations of a recorded run are done again from a checkpoint and compared with the recording.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from hookflow.events.recorded_code import (
    RecordedCode,
    code_before,
    compare_code,
    find_latest_code,
    name_changes,
)
from hookflow.events.rundir import RunDir
from hookflow.service.runs import ScalarRow

MEASURED_METRICS = ("samples_per_s", "tokens_per_s", "mfu", "memory/*")
"""The numbers that a clock or the machine has made, and not the training."""

FACT_LABELS = {
    "torch": "PyTorch",
    "python": "Python",
    "device": "the device",
    "host": "the machine",
    "precision": "precision",
}
"""Facts in the first record of an attempt on which its bits depend."""


@dataclass(frozen=True, slots=True)
class NumberMismatch:
    """A number that is not the recorded one; None where it was not logged again."""

    iter: int
    name: str
    recorded: float
    now: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a rerun, from the iteration after `begin` up to and including `end`."""

    begin: int
    end: int
    names: Sequence[str]
    """The names of the numbers that were compared with the recording.

    `compared` is how many numbers.
    """
    compared: int
    unlike: Sequence[NumberMismatch]
    """The numbers that differ, the first one first."""
    measured: Sequence[str]
    """The names that were left out: a clock or the machine says them."""
    silent: Sequence[str]
    """The names that were left out since hooks were, and no other has logged them."""
    more: Mapping[str, Mapping[int, float]]
    """Numbers of the rerun beyond the recording, by name and iteration."""


def compare(
    recorded: Iterable[ScalarRow],
    again: Iterable[ScalarRow],
    begin: int,
    end: int,
    *,
    without: bool = False,
) -> Comparison:
    """Compare what a rerun has logged with the recording, to the bit.

    It has logged that after iteration `begin`, up to `end`. In a rerun `without` hooks of the run,
    a name that it has not logged at all was theirs.
    """
    was = _values_between(recorded, begin, end)
    now = _values_between(again, begin, end)
    recorded_names = {name for _, name in was}
    measured = {name for name in recorded_names if _is_measured(name)}
    silent: set[str] = set()
    if without:
        silent = recorded_names - measured - {name for _, name in now}

    compared_names: set[str] = set()
    compared = 0
    mismatches = []
    for (iteration, name), value in sorted(was.items()):
        if name in measured or name in silent:
            continue
        compared_names.add(name)
        compared += 1
        value_now = now.get((iteration, name))
        if not _same_bits(value, value_now):
            mismatches.append(NumberMismatch(iteration, name, value, value_now))

    more: dict[str, dict[int, float]] = {}
    for (iteration, name), value in sorted(now.items()):
        if name not in recorded_names and not _is_measured(name):
            more.setdefault(name, {})[iteration] = value
    return Comparison(
        begin,
        end,
        names=sorted(compared_names),
        compared=compared,
        unlike=mismatches,
        measured=sorted(measured),
        silent=sorted(silent),
        more=more,
    )


def _values_between(
    rows: Iterable[ScalarRow], begin: int, end: int
) -> dict[tuple[int, str], float]:
    """Return the numbers after iteration `begin`, up to `end`, by iteration and name."""
    values = {}
    for row in rows:
        if begin < row.iter <= end:
            values[row.iter, row.name] = row.value
    return values


def _is_measured(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in MEASURED_METRICS)


def find_causes(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences of the recorded attempt and the rerun that may change bits.

    They are those of the first records.
    """
    for key, label in FACT_LABELS.items():
        old_value = then.get(key)
        new_value = now.get(key)
        if old_value != new_value:
            yield f"{label} was {old_value}, and is {new_value}"


def code_causes(
    run: RunDir, used: RecordedCode | None, again: RunDir, begin: int, end: int
) -> Iterator[str]:
    """Yield where a rerun's code differs from the run's.

    The run ran it after iteration `begin` up to `end`.

    `used` is the recorded code that the rerun was to run; an attempt may have run other code in
    between.
    """
    now = find_latest_code(again)
    if used is None or now is None:
        yield "the code may have changed: it was not recorded"
        return
    changes = compare_code(used, now)
    if changes:
        yield f"the code is not that of the run: {name_changes(changes)}"
    for iteration in (begin + 1, end):
        then = code_before(run, iteration)
        if then is not None and then.number != used.number:
            changes = compare_code(then, used)
            if changes:
                yield f"iteration {iteration:,} was run with other code: {name_changes(changes)}"


def _same_bits(recorded: float, now: float | None) -> bool:
    """Say whether a number is the recorded one; all that are not numbers are alike."""
    if now is None:
        return False
    if math.isnan(recorded) and math.isnan(now):
        return True
    return struct.pack("d", recorded) == struct.pack("d", now)
