"""How records pack numbers: the columns of a `scalars` record, and the durations of a frame in bins.

A column has a number for each row. It is a list; the number itself, where all rows have the same; or {row: number},
where some rows have none. Numbers of fp32 are written with nine digits, and rounded to fp32 when they are read.

A bin keeps the top three bits of a duration in nanoseconds: four bins an octave, each 14 to 25 % wide. The bins of
durations add up, so any stretch of a run has percentiles of its own.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple, TypeVar

from hookflow.events.records import Column, Rows, Scalars

Number = TypeVar("Number", int, float)


class Row(NamedTuple):
    """The numbers `v` that were logged at one iteration, by name; `t`, `it` and `ep` are those of a `Stamp`."""

    t: float
    it: int
    ep: int
    v: dict[str, float]


def pack(rows: Sequence[Row]) -> Scalars:
    """Return the record of rows of one epoch; their times are rounded to milliseconds."""
    ms = [round(1000 * row.t) for row in rows]
    columns: dict[str, dict[int, float]] = {}
    for place, row in enumerate(rows):
        for name, value in row.v.items():
            columns.setdefault(name, {})[place] = value
    v: dict[str, Column] = {}
    fp32: list[str] = []
    for name, column in columns.items():
        values = [*column.values()]
        nine = [float(f"{value:.9g}") for value in values] if _in_fp32(values) == values else values
        if nine != values and _in_fp32(nine) == values:
            fp32.append(name)
            values = nine
        v[name] = _once(values) if len(values) == len(rows) else dict(zip(map(str, column), values, strict=True))
    more: Rows = {"fp32": fp32} if fp32 else {}
    if len(rows) > 1:
        steps = [after.it - before.it for before, after in pairwise(rows)]
        waits = [after - before for before, after in pairwise(ms)]
        more = {"rows": len(rows), "steps": _once(steps), "ms": _once(waits), **more}
    return {"k": "scalars", "t": ms[-1] / 1000, "it": rows[-1].it, "ep": rows[-1].ep, **more, "v": v}


def series(record: Scalars) -> Iterator[tuple[str, list[int], list[float]]]:
    """Yield each name with the iterations at which it was logged, and the numbers."""
    its = stamps(record, record["it"], record.get("steps", 0))
    for name, places, values in _columns(record):
        yield name, its if len(places) == len(its) else [its[place] for place in places], values


def unpack(record: Scalars) -> list[Row]:
    its = stamps(record, record["it"], record.get("steps", 0))
    ms = stamps(record, round(1000 * record["t"]), record.get("ms", 0))
    rows = [Row(at / 1000, it, record["ep"], {}) for at, it in zip(ms, its, strict=True)]
    for name, places, values in _columns(record):
        for place, value in zip(places, values, strict=True):
            rows[place].v[name] = value
    return rows


def _columns(record: Scalars) -> Iterator[tuple[str, Sequence[int], list[float]]]:
    """Yield each name with the rows that have a number of it, and the numbers."""
    rows, fp32 = record.get("rows", 1), record.get("fp32", ())
    for name, column in record["v"].items():
        places: Sequence[int] = range(rows)
        match column:
            case dict():
                places, values = [*map(int, column)], [*map(float, column.values())]
            case list():
                values = [*map(float, column)]
            case _:
                values = [float(column)] * rows
        yield name, places, _in_fp32(values) if name in fp32 else values


def stamps(record: Scalars, last: int, steps: int | list[int]) -> list[int]:
    """Return what the rows are stamped with, from the last stamp and the steps between them."""
    rows = record.get("rows", 1)
    if not isinstance(steps, list) and steps > 0:
        return [*range(last - (rows - 1) * steps, last + 1, steps)]
    between = steps if isinstance(steps, list) else [steps] * (rows - 1)
    return [*accumulate(between, initial=last - sum(between))]


def _once(values: list[Number]) -> Number | list[Number]:
    """Return the value that all are alike, to the bit; else the list."""
    kind = "d" if isinstance(values[0], float) else "q"
    alike = array(kind, values).tobytes() == array(kind, values[:1] * len(values)).tobytes()
    return values[0] if alike else values


def _in_fp32(values: list[float]) -> list[float]:
    return array("f", values).tolist()


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
