"""Percentiles of durations (p50, p95), from histograms whose bins add up: any stretch of a run has its own.

A bin keeps the top three bits of a duration in nanoseconds: four bins an octave, each 14 to 25 % wide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

BINS = 256
"""More than a duration of 64 bits can reach."""


def bin_of(ns: int) -> int:
    """Return the bin of a duration of `ns` nanoseconds; never falls as `ns` grows."""
    exponent = ns.bit_length() - 3
    return (exponent << 2) + (ns >> exponent) if exponent > 0 else ns


def bounds(index: int) -> tuple[int, int]:
    """Return the first duration in a bin and the first one beyond it, in nanoseconds."""
    if index < 8:
        return index, index + 1
    exponent = (index >> 2) - 1
    return (index & 3 | 4) << exponent, ((index & 3 | 4) + 1) << exponent


def packed(filled: Sequence[int], counts: Sequence[int]) -> list[int]:
    """Return bins as a frame has them: the first bin, and the counts from there on; -n passes over n empty bins."""
    result, at = [*filled[:1]] or [0], filled[0] if filled else 0
    for index, count in zip(filled, counts, strict=True):
        result += [count] if index == at else [at - index, count]
        at = index + 1
    return result


def add_packed(counts: dict[int, int], bins: Sequence[int], sign: Literal[1, -1] = 1) -> None:
    """Add the bins of a frame to the counts by bin, or take them away again."""
    index = bins[0]
    for count in bins[1:]:
        if count < 0:
            index -= count
        elif index < BINS:
            counts[index] = counts.get(index, 0) + sign * count
            index += 1


def percentile(counts: Mapping[int, int], share: float) -> float:
    """Return the duration in nanoseconds below which `share` (0 to 1) of the counted ones lie, to a bin's width.

    Returns 0.0 when nothing has been counted.
    """
    rank = share * sum(counts.values())
    below = 0
    for index in sorted(counts):
        low, high = bounds(index)
        if below + counts[index] >= rank and counts[index]:
            return low + (high - low) * max(rank - below, 0) / counts[index]
        below += counts[index]
    return 0.0
