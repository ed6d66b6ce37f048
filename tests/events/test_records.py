"""What stands in the logs, held against the types that writers and readers go by;
columns come back to the bit.
"""

import json
import math
import random
import re
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookflow.events import records
from hookflow.events.log import LogAppender, TailReader, encode, event_log
from hookflow.events.packing import (
    NUM_BINS,
    Row,
    bin_of,
    bounds,
    compute_percentile,
    iter_series,
    pack,
    unpack,
)
from hookflow.events.reading import read_command, read_record
from hookflow.events.records import RECORD_KINDS, TEXT_LIMIT, DataInfo
from hookflow.events.rundir import RunDir
from hookflow.monitor.state import RunState
from hookflow.runner.distributed.failures import append_record
from hookflow.runner.logging.recorder import EventRecorder
from hookflow.runner.logging.timing import Timeline, TimingAggregator
from tests.support.random_records import TYPES, hostile_line


class Progress:
    iter, epoch, batch_idx, batches, iterating = 3, 1, 2, 5, False
    stage: records.Stage = "train"


def put_one_of_each(recorder: EventRecorder) -> None:
    """Put a record of each kind that the recorder is given; frames and scalars it makes itself."""
    put = recorder.put
    recorder.watch(TimingAggregator(2, Timeline()), Progress())
    data = DataInfo(name="points", examples=40, batches=5, batch_size=8, synthetic=True, note="")
    strings = dict.fromkeys(
        ("pipeline", "host", "python", "torch", "device", "precision", "model"), "some"
    )
    numbers = (
        "version",
        "pid",
        "params",
        "seed",
        "max_epochs",
        "max_iters",
        "iters_per_epoch",
        "world",
    )
    more: dict[str, Any] = {
        "data": {"train": data},
        "layers": [
            {
                "name": "a",
                "kind": "Linear",
                "shapes": "2",
                "parameters": 2,
                "trainable": 0,
                "bytes": 8,
            }
        ],
        "limited": {},
        "epoch_lengths": [[0, 5], [2, 3]],
        "modes": {},
        "resumed_from": None,
        "forked_from": None,
    }
    put("run", **strings, **dict.fromkeys(numbers, 1), **more, rank=0, strategy="")
    recorder.scalar("loss", 1.0)
    put("metrics", split="val", v={"accuracy": 0.5}, seconds=1.0)
    put("epoch", seconds=1.0)
    put("checkpoint", it=2, ep=0, path="checkpoints/it00000002", names=["last"], bytes=1, ms=1.0)
    size = {"width": 4, "height": 3}
    put(
        "image",
        it=2,
        ep=0,
        name="sample",
        path="images/a.png",
        **size,
        caption="a cat",
        figure=False,
        hook="images",
    )
    put("text", name="sample", text="Once", hook="samples")
    put("histogram", it=2, ep=0, name="weights", edges=[0.0, 0.5, 1.0], counts=[3, 4], hook="stats")
    put("trace", it=2, ep=0, path="traces/it00000001.json", first=1, iters=3)
    put("ack", id="0", cmd="trace", args=["3"], sent=0.0, ok=True, note="")
    put("throttle", hook="slow", every=4, why="3 % of the iterations")
    put("progress", hook="exports", name="shards", done=3, total=10, seconds=1.5, over=False)
    put("message", level="info", source="hookflow", text="hello")
    recorder.failure(ValueError("no"), hook="bad", point="after_train", action="ignore")
    put("end", status="finished", exit=0, reason="", seconds=1.0)
    put("refused", exit=1, reason="no", traceback="")
    recorder.flush()


@pytest.fixture
def written(tmp_path: Path) -> list[Any]:
    run_dir = RunDir.create(tmp_path, "toy")
    put_one_of_each(EventRecorder(run_dir, lambda command: None))
    return TailReader[Any](run_dir.events).read_all()


def test_each_kind_is_written_with_the_keys_of_its_type(written: list[Any]) -> None:
    assert {record["k"] for record in written} == RECORD_KINDS == set(TYPES)
    for record in written:
        kind = TYPES[record["k"]]
        assert kind.__required_keys__ <= record.keys() <= kind.__annotations__.keys(), record["k"]
        assert next(iter(record)) == "k", "readers pass over whole kinds by how their lines begin"
        beside = record["k"] in ("checkpoint", "image", "histogram", "trace")
        assert (record["it"], record["ep"]) == ((2, 0) if beside else (3, 1))


def test_what_is_no_such_record_is_refused() -> None:
    for damaged in (
        {},
        {"k": "tomorrow"},
        {"k": ["frame"]},
        {"k": "frame"},
        {"k": "end", "t": "now"},
        {"cmd": "stop"},
    ):
        with pytest.raises(ValueError):
            read_record(json.dumps(damaged))
    with pytest.raises(ValueError):
        read_command('{"cmd": "stop"}')


def test_a_record_of_any_type_and_size_is_refused_or_folded() -> None:
    chance, outcomes = random.Random(0), Counter[str]()
    for _ in range(60):
        state = RunState()
        for _ in range(40):
            try:
                record = read_record(hostile_line(chance))
            except ValueError:
                outcomes["refused"] += 1
                continue
            state.apply(record, chance.choice([0, 0, 0, 1, 5]))
            outcomes[record["k"]] += 1
    assert outcomes.keys() >= RECORD_KINDS | {"refused"}, "unknown kinds are let through"


@pytest.mark.parametrize(
    ("kind", "key", "value", "why"),
    [
        ("run", "world", 2**31, "world: Input should be less than 16385"),
        ("frame", "iters", [1, 2, 3, 4, [256, 1]], "iters.4.0"),
        ("frame", "hooks", {"x": [0, 0, 0, 0, [0]]}, "hooks.x"),
        ("histogram", "edges", [1.0, 0.0, 2.0], "edges that do not fit the bins"),
        ("histogram", "edges", [0.0], "edges that do not fit the bins"),
        ("image", "path", None, "path: Input should be a valid string"),
        ("end", "exit", 300, "exit: Input should be less than 256"),
        ("scalars", "v", {"loss": "much"}, "v.loss"),
        ("message", "t", 1e30, "t: Input should be less than"),
    ],
)
def test_what_a_record_declares_is_held(
    written: list[Any], kind: str, key: str, value: Any, why: str
) -> None:
    record = next(record for record in written if record["k"] == kind)
    assert json.loads(encode(read_record(json.dumps(record)))) == record
    with pytest.raises(ValueError, match=re.escape(f'record "{kind}": {why}')):
        read_record(json.dumps(record | {key: value}))


def test_what_is_appended_from_outside_goes_on_from_the_last_record(
    written: list[Any], tmp_path: Path
) -> None:
    (run_dir,) = (RunDir(path.parent) for path in tmp_path.glob("toy/*/events.jsonl"))
    append_record(run_dir, "message", level="warn", source="hookflow", text="again")
    last = TailReader[Any](run_dir.events).read_all()[-1]
    assert (last["k"], last["it"], last["ep"], last["text"]) == ("message", 3, 1, "again")


def test_what_is_appended_is_read_once_and_a_torn_line_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = TailReader(path)
    assert tail.read() == [], "no file is no news"
    path.write_bytes(b'{"k":"a"}\n{"k":')
    assert [r["k"] for r in tail.read()] == ["a"]
    with path.open("ab") as file:
        file.write(b'"b"}\n')
    assert [r["k"] for r in tail.read()] == ["b"]
    assert tail.read() == []
    path = tmp_path / "log"
    path.write_bytes(b'{"k":"a"}\n{"k":"to')
    log = LogAppender(path)
    log.append([{"k": "b"}])
    log.close()
    assert [r["k"] for r in TailReader(path).read_all()] == ["a", "b"]


def test_numbers_that_json_does_not_know_become_words_and_long_strings_are_cut() -> None:
    line = encode({"v": {"loss": float("nan"), "lr": [1.0, float("inf")]}})
    assert json.loads(line, parse_constant=lambda name: 1 / 0) == {
        "v": {"loss": "nan", "lr": [1.0, "inf"]}
    }
    long = "é" * 1_000_000
    record = json.loads(
        encode({"v": {long: float("nan"), "loss": 1.5}, "names": [long, "a"], "n": [1, True, None]})
    )
    name, loss = record["v"]
    assert record["v"] == {name: "nan", "loss": 1.5}
    assert loss == "loss"
    assert record["names"] == [name, "a"]
    assert record["n"] == [1, True, None]
    assert name.endswith(" bytes left out]")
    assert len(name.encode()) <= TEXT_LIMIT
    many = {"edges": [0.5] * TEXT_LIMIT}
    assert json.loads(encode(many)) == many


@pytest.mark.parametrize("text", ["a\udcffb", "\ud83d", "x\udc00\ud800y", "\U0001f600 é"])
def test_what_is_written_can_be_read(tmp_path: Path, text: str) -> None:
    log = LogAppender(tmp_path / "log")
    log.append(
        [{"k": "message", "t": 1.0, "it": 0, "ep": 0, "level": "info", "source": "a", "text": text}]
    )
    log.close()
    (record,) = event_log(tmp_path / "log").read()
    assert record["text"] == re.sub("[\ud800-\udfff]", "\ufffd", text)  # type: ignore[typeddict-item]


@given(st.integers(min_value=0, max_value=2**62))
def test_a_duration_lies_in_its_bin_which_is_at_most_a_quarter_wide_and_touches_the_next(
    ns: int,
) -> None:
    index = bin_of(ns)
    low, high = bounds(index)
    assert low <= ns < high == bounds(index + 1)[0]
    assert ns < 8 or high <= low * 1.25
    assert index < NUM_BINS


@given(
    st.lists(st.integers(min_value=8, max_value=10**10), min_size=1, max_size=50),
    st.floats(0.01, 1),
)
def test_a_percentile_is_right_to_a_bins_width(seen: list[int], share: float) -> None:
    counts: dict[int, int] = {}
    for ns in seen:
        counts[bin_of(ns)] = counts.get(bin_of(ns), 0) + 1
    rank = max(-(-share * len(seen) // 1), 1)
    exact = sorted(seen)[int(rank) - 1]
    assert exact / 1.26 <= compute_percentile(counts, share) <= exact * 1.26
    assert compute_percentile({}, share) == 0.0


NUMBERS = st.one_of(
    st.floats(width=64), st.floats(width=32), st.floats(width=16), st.sampled_from([0.0, -0.0, 0.1])
)
"""Of every precision that is logged."""
ROWS = st.lists(
    st.tuples(
        st.floats(1.7e9, 1.9e9),
        st.integers(0, 2**40),
        st.dictionaries(st.sampled_from("abc"), NUMBERS, min_size=1),
    ),
    min_size=1,
    max_size=12,
)


def bits(row: Row) -> Any:
    """Return what identifies a row; all NaN are one."""
    numbers = {
        name: "nan" if math.isnan(value) else struct.pack("d", value)
        for name, value in row.v.items()
    }
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
    got = {
        (name, it, str(value))
        for name, its, values in iter_series(pack(rows))
        for it, value in zip(its, values, strict=True)
    }
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
        "v": {
            "loss": [2.29999995, 2.28999996, 2.27999997, 2.26999998],
            "lr": 0.1,
            "grad_norm": {"2": 0.5},
        },
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"v": {"a": [1.0]}},
        {"v": {"a": {"2": 1.0}}},
        {"steps": [1, 2]},
        {"ms": []},
        {"rows": 0},
        {"rows": 2**20},
    ],
    ids=str,
)
def test_columns_that_do_not_fit_their_rows_are_refused(wrong: dict[str, Any]) -> None:
    record = pack([Row(1.8e9, 1, 0, {"a": 1.0}), Row(1.8e9, 2, 0, {"a": 2.0})])
    with pytest.raises(ValueError, match="rows"):
        through(record | wrong)
