"""How records pack numbers.

These are the columns of a `scalars` record, and the durations of a frame in bins.

A column has a number for each row. It is a list; the number itself, where all rows have the same;
or {row: number}, where some rows have none. Numbers of fp32 are written with nine digits, and
rounded to fp32 when they are read.

A bin keeps the top three bits of a duration in nanoseconds: four bins an octave, each 14 to 25 %
wide. The bins of durations add up, so any stretch of a run has percentiles of its own.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple, TypeVar

from hookflow.events.records import Column, Rows, Scalars

Number = TypeVar("Number", int, float)


class Row(NamedTuple):
    """The numbers `v` that were logged at one iteration, by name.

    `t`, `it` and `ep` are those of a `Stamp`.
    """

    t: float
    it: int
    ep: int
    v: dict[str, float]


def pack(rows: Sequence[Row]) -> Scalars:
    """Return the record of rows of one epoch; their times are rounded to milliseconds."""
    columns: dict[str, dict[int, float]] = {}
    for place, row in enumerate(rows):
        for name, value in row.v.items():
            columns.setdefault(name, {})[place] = value
    packed_columns: dict[str, Column] = {}
    fp32_names: list[str] = []
    for name, column in columns.items():
        values = list(column.values())
        short_values = _shorten_fp32(values)
        if short_values is not None:
            fp32_names.append(name)
            values = short_values
        packed_columns[name] = _pack_column(list(column), values, len(rows))
    last = rows[-1]
    milliseconds = [round(1000 * row.t) for row in rows]
    columns_of_rows: Rows = {}
    if len(rows) > 1:
        steps = [after.it - before.it for before, after in pairwise(rows)]
        waits = [after - before for before, after in pairwise(milliseconds)]
        columns_of_rows = {"rows": len(rows), "steps": _collapse(steps), "ms": _collapse(waits)}
    if fp32_names:
        columns_of_rows["fp32"] = fp32_names
    time = milliseconds[-1] / 1000
    return {
        "k": "scalars",
        "t": time,
        "it": last.it,
        "ep": last.ep,
        **columns_of_rows,
        "v": packed_columns,
    }


def _shorten_fp32(values: list[float]) -> list[float] | None:
    """Return numbers of fp32 with nine digits, which give them back to the bit.

    It is None where that makes none shorter.
    """
    if _round_to_fp32(values) != values:
        return None  # numbers of fp64
    short_values = [float(f"{value:.9g}") for value in values]
    if short_values == values or _round_to_fp32(short_values) != values:
        return None
    return short_values


def _pack_column(places: Sequence[int], values: list[float], num_rows: int) -> Column:
    if len(values) == num_rows:
        return _collapse(values)
    return {str(place): value for place, value in zip(places, values, strict=True)}


def iter_series(record: Scalars) -> Iterator[tuple[str, list[int], list[float]]]:
    """Yield each name with the iterations at which it was logged, and the numbers."""
    iterations = compute_stamps(record, record["it"], record.get("steps", 0))
    for name, places, values in _columns(record):
        if len(places) == len(iterations):
            yield name, iterations, values
        else:
            yield name, [iterations[place] for place in places], values


def unpack(record: Scalars) -> list[Row]:
    """Return the rows that a record has packed."""
    iterations = compute_stamps(record, record["it"], record.get("steps", 0))
    milliseconds = compute_stamps(record, round(1000 * record["t"]), record.get("ms", 0))
    rows = []
    for time, iteration in zip(milliseconds, iterations, strict=True):
        rows.append(Row(time / 1000, iteration, record["ep"], {}))
    for name, places, values in _columns(record):
        for place, value in zip(places, values, strict=True):
            rows[place].v[name] = value
    return rows


def _columns(record: Scalars) -> Iterator[tuple[str, Sequence[int], list[float]]]:
    """Yield each name with the rows that have a number of it, and the numbers."""
    num_rows = record.get("rows", 1)
    fp32_names = record.get("fp32", ())
    for name, column in record["v"].items():
        places: Sequence[int] = range(num_rows)
        if isinstance(column, dict):
            places = [int(place) for place in column]
            values = [float(value) for value in column.values()]
        elif isinstance(column, list):
            values = [float(value) for value in column]
        else:
            values = [float(column)] * num_rows
        if name in fp32_names:
            values = _round_to_fp32(values)
        yield name, places, values


def compute_stamps(record: Scalars, last: int, steps: int | list[int]) -> list[int]:
    """Return what the rows are stamped with, from the last stamp and the steps between them."""
    num_steps = record.get("rows", 1) - 1
    if isinstance(steps, list):
        return list(accumulate(steps, initial=last - sum(steps)))
    first = last - num_steps * steps
    if steps > 0:  # the usual one, in one go
        return list(range(first, last + 1, steps))
    return [first + k * steps for k in range(num_steps + 1)]


def _collapse(values: list[Number]) -> Number | list[Number]:
    """Return the value that all are alike, to the bit; else the list."""
    type_code = "q"
    if isinstance(values[0], float):
        type_code = "d"
    repeated = array(type_code, values[:1] * len(values))
    if array(type_code, values).tobytes() == repeated.tobytes():
        return values[0]
    return values


def _round_to_fp32(values: list[float]) -> list[float]:
    return array("f", values).tolist()


NUM_BINS = 256
"""More than a duration of 64 bits can reach."""


def bin_of(ns: int) -> int:
    """Return the bin of a duration of `ns` nanoseconds; never falls as `ns` grows."""
    exponent = ns.bit_length() - 3
    if exponent <= 0:
        return ns
    return (exponent << 2) + (ns >> exponent)


def bounds(index: int) -> tuple[int, int]:
    """Return the first duration in a bin and the first one beyond it, in nanoseconds."""
    if index < 8:
        return index, index + 1
    exponent = (index >> 2) - 1
    leading_bits = index & 3 | 4
    return leading_bits << exponent, (leading_bits + 1) << exponent


def pack_bins(filled: Sequence[int], counts: Sequence[int]) -> list[int]:
    """Return bins as a frame has them.

    These are the first bin, and the counts from there on. -n passes over n empty bins.
    """
    if not filled:
        return [0]
    expected = filled[0]
    result = [expected]
    for index, count in zip(filled, counts, strict=True):
        if index != expected:
            result.append(expected - index)
        result.append(count)
        expected = index + 1
    return result


def add_packed(counts: dict[int, int], bins: Sequence[int], sign: Literal[1, -1] = 1) -> None:
    """Add the bins of a frame to the counts by bin, or take them away again."""
    index = bins[0]
    for count in bins[1:]:
        if count < 0:
            index -= count
        elif index < NUM_BINS:
            counts[index] = counts.get(index, 0) + sign * count
            index += 1


def compute_percentile(counts: Mapping[int, int], share: float) -> float:
    """Return the duration in ns below which `share` (0 to 1) of the counted ones are.

    It is right to a bin's width. Returns 0.0 when nothing has been counted.
    """
    rank = share * sum(counts.values())
    below = 0
    for index in sorted(counts):
        count = counts[index]
        if count and below + count >= rank:
            low, high = bounds(index)
            return low + (high - low) * max(rank - below, 0) / count
        below += count
    return 0.0
