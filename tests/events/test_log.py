import json
import re
from pathlib import Path

import pytest

from hookflow.events.log import Appender, Tail, encode, event_log
from hookflow.events.records import TEXT_LIMIT


def test_what_is_appended_is_read_once_and_a_line_without_its_end_waits(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    assert tail.read() == [], "no file is no news"
    path.write_bytes(b'{"k":"a"}\n{"k":')
    assert [r["k"] for r in tail.read()] == ["a"]
    with path.open("ab") as file:
        file.write(b'"b"}\n')
    assert [r["k"] for r in tail.read()] == ["b"]
    assert tail.read() == []


def test_a_torn_line_costs_itself_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b'{"k":"a"}\n{"k":"to')
    log = Appender(path)
    log.append([{"k": "b"}])
    log.close()
    assert [r["k"] for r in Tail(path).read_all()] == ["a", "b"]


def test_numbers_that_json_does_not_know_become_words() -> None:
    line = encode({"v": {"loss": float("nan"), "lr": [1.0, float("inf")]}})
    assert json.loads(line, parse_constant=lambda name: 1 / 0) == {"v": {"loss": "nan", "lr": [1.0, "inf"]}}


def test_a_string_or_name_that_would_hold_up_a_reader_is_cut_wherever_it_stands() -> None:
    long = "é" * 1_000_000
    record = json.loads(encode({"v": {long: float("nan"), "loss": 1.5}, "names": [long, "a"], "n": [1, True, None]}))
    name, loss = record["v"]
    assert record["v"] == {name: "nan", "loss": 1.5}
    assert loss == "loss"
    assert record["names"] == [name, "a"]
    assert record["n"] == [1, True, None]
    assert name.endswith(" bytes left out]")
    assert len(name.encode()) <= TEXT_LIMIT
    many = {"edges": [0.5] * TEXT_LIMIT}
    assert json.loads(encode(many)) == many


def test_more_than_a_chunk_is_read_whole(tmp_path: Path) -> None:
    log = Appender(tmp_path / "log")
    log.append([{"k": "x" * 1000, "n": n} for n in range(3000)])
    log.close()
    assert [r["n"] for r in Tail(tmp_path / "log").read_all()] == list(range(3000))


@pytest.mark.parametrize("text", ["a\udcffb", "\ud83d", "x\udc00\ud800y", "\U0001f600 é"])
def test_what_is_written_can_be_read(tmp_path: Path, text: str) -> None:
    log = Appender(tmp_path / "log")
    log.append([{"k": "message", "t": 1.0, "it": 0, "ep": 0, "level": "info", "source": "a", "text": text}])
    log.close()
    (record,) = event_log(tmp_path / "log").read()
    assert record["text"] == re.sub("[\ud800-\udfff]", "\ufffd", text)  # type: ignore[typeddict-item]
