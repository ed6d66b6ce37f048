"""The columns of scalars: every number comes back to the bit, with its iteration."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookflow.events.columns import Row, pack, series, unpack
from hookflow.events.log import encode
from hookflow.events.reading import read_record

NUMBERS = st.one_of(st.floats(width=64), st.floats(width=32), st.floats(width=16), st.sampled_from([0.0, -0.0, 0.1]))
"""Of every precision that is logged."""
ROWS = st.lists(
    st.tuples(
        st.floats(1.7e9, 1.9e9), st.integers(0, 2**40), st.dictionaries(st.sampled_from("abc"), NUMBERS, min_size=1)
    ),
    min_size=1,
    max_size=12,
)


def bits(row: Row) -> Any:
    """Return what identifies a row; all NaN are one."""
    numbers = {name: "nan" if math.isnan(value) else struct.pack("d", value) for name, value in row.v.items()}
    return round(1000 * row.t), row.it, row.ep, numbers


def through(record: Any) -> Any:
    """Return a record as it is read once it has been written."""
    return read_record(encode(record))


@given(ROWS, st.integers(0, 100))
def test_rows_are_read_as_they_were_packed(drawn: list[Any], epoch: int) -> None:
    rows = [Row(t, it, epoch, v) for t, it, v in drawn]
    record = through(pack(rows))
    assert list(map(bits, unpack(record))) == list(map(bits, rows))
    assert (record["it"], record["ep"]) == (rows[-1].it, epoch)


@given(ROWS)
def test_a_series_has_the_rows_in_which_its_name_was_logged(drawn: list[Any]) -> None:
    rows = [Row(t, it, 0, v) for t, it, v in drawn]
    got = {(name, it, str(value)) for name, its, values in series(pack(rows)) for it, value in zip(its, values)}  # noqa: B905
    assert got == {(name, row.it, str(value)) for row in rows for name, value in row.v.items()}


def test_what_a_column_says_once_is_written_once() -> None:
    losses = [struct.unpack("f", struct.pack("f", 2.3 - 0.01 * k))[0] for k in range(4)]
    rows = [Row(1.8e9 + 0.011 * k, 10 * k, 2, {"loss": losses[k], "lr": 0.1}) for k in range(4)]
    rows[2].v["grad_norm"] = 0.5
    assert json.loads(encode(pack(rows))) == {
        "k": "scalars",
        "t": 1800000000.033,
        "it": 30,
        "ep": 2,
        "rows": 4,
        "steps": 10,
        "ms": 11,
        "fp32": ["loss"],
        "v": {"loss": [2.29999995, 2.28999996, 2.27999997, 2.26999998], "lr": 0.1, "grad_norm": {"2": 0.5}},
    }


@pytest.mark.parametrize(
    "wrong",
    [{"v": {"a": [1.0]}}, {"v": {"a": {"2": 1.0}}}, {"steps": [1, 2]}, {"ms": []}, {"rows": 0}, {"rows": 2**20}],
    ids=str,
)
def test_columns_that_do_not_fit_their_rows_are_refused(wrong: dict[str, Any]) -> None:
    record = pack([Row(1.8e9, 1, 0, {"a": 1.0}), Row(1.8e9, 2, 0, {"a": 2.0})])
    with pytest.raises(ValueError, match="rows"):
        through(record | wrong)
