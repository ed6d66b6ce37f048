"""The recorder: a disk that fails or hangs harms no training, and what is lost is said."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hookflow.events.log import Tail, event_log
from hookflow.events.records import TEXT_LIMIT
from hookflow.events.rundir import RunDir
from hookflow.runner.logging import recorder as module
from hookflow.runner.logging.recorder import Recorder
from hookflow.runner.logging.timing import Books, Timeline
from hookflow.runner.loop.task import event_of_stream, scalar
from tests.hooks.stand_ins import OnCuda
from tests.limits import LIMIT


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path, "toy")


@pytest.fixture
def recorder(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """A recorder whose thread flushes when it is closed alone."""
    monkeypatch.setattr(module, "PERIOD", LIMIT)
    made = Recorder(run_dir, lambda command: None)
    made.start()
    yield made
    made.close()


def read(run_dir: RunDir) -> list[dict[str, Any]]:
    return Tail(run_dir.events).read_all()


def fail(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_a_full_disk_has_cost_is_said_once(
    run_dir: RunDir, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(os, "write", fail)
        recorder.put("epoch")
        recorder.flush()
        recorder.scalar("loss", 1.0)
        recorder.put("epoch")
        recorder.flush()
    recorder.put("metrics")
    recorder.flush()
    recorder.flush()
    said, kept = read(run_dir)
    assert said["k"] == "message"
    assert "No space left on device" in said["text"]
    assert "3 records" in said["text"]
    assert kept["k"] == "metrics"


def test_a_write_that_tears_a_line_costs_no_later_one(
    run_dir: RunDir, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, data: write(file, data[:9]) if len(data) > 30 else fail())
        recorder.put("epoch", torn="x" * 12)
        recorder.flush()
    recorder.put("metrics")
    recorder.flush()
    assert [record["k"] for record in read(run_dir)] == ["message", "metrics"]


def test_a_disk_that_hangs_does_not_keep_the_process(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(module, "GRACE", 0.1)
    monkeypatch.setattr(os, "write", lambda file, data: answered.wait(60) and len(data))
    recorder = Recorder(run_dir, lambda command: None)
    recorder.put("end")
    recorder.start()
    recorder.close()
    assert read(run_dir) == []
    answered.set()


def test_numbers_of_every_kind_are_brought_over_exactly(run_dir: RunDir, recorder: Recorder) -> None:
    values = {
        "float": 0.1,
        "integer": 3,
        "double": torch.tensor(0.1, dtype=torch.float64),
        "single": torch.tensor([0.5]),
        "half": torch.tensor(0.25, dtype=torch.bfloat16),
        "long": torch.tensor(2**40 + 1),
        "bool": torch.tensor(True),
        "matrix": torch.ones(1, 1),
        "plain bool": True,
        "of NumPy": np.float32(0.5),
        "array": np.ones(1),
    }
    for name, value in values.items():
        recorder.scalar(name, scalar(value, name))
    recorder.flush()
    (record,) = read(run_dir)
    assert record["v"] == {
        name: float(value.item() if hasattr(value, "item") else value) for name, value in values.items()
    }


def test_a_number_that_cannot_be_read_costs_no_other_one_and_is_said_once(run_dir: RunDir, recorder: Recorder) -> None:
    sparse = torch.ones(1).to_sparse()
    for _ in range(2):
        for name, value in {"a": torch.ones(1), "sparse": sparse, "b": torch.ones(1), "c": 3.0}.items():
            recorder.scalar(name, value)
        recorder.scalar("meta", torch.ones((), device="meta"))
        recorder.flush()
    log = event_log(run_dir.events).read_all()
    assert [record["v"] for record in log if record["k"] == "scalars"] == [{"a": 1.0, "b": 1.0, "c": 3.0}] * 2
    told = [record["text"] for record in log if record["k"] == "message"]
    assert [text.partition(":")[0] for text in told] == [
        f'the logged number "{name}" cannot be read' for name in ("sparse", "meta")
    ]


def test_a_number_of_a_stream_of_the_users_own_is_read_once_it_is_computed(
    run_dir: RunDir, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = torch.zeros(1).as_subclass(OnCuda)
    stream = SimpleNamespace(record_event=lambda: SimpleNamespace(synchronize=lambda: number.fill_(3)))
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    assert event_of_stream(number) is event_of_stream(torch.zeros(1)) is event_of_stream(1.0) is None
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    recorder.scalar("n", number, event_of_stream(number))
    recorder.flush()
    assert [record["v"] for record in read(run_dir)] == [{"n": 3.0}]


def test_a_number_has_the_epoch_that_it_was_logged_in_whenever_it_is_written(
    run_dir: RunDir, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = [5, 0]
    monkeypatch.setattr(recorder, "_place", lambda: tuple(place))
    recorder.scalar("loss", 1.0)
    place[1] = 1
    recorder.scalar("val_seconds", 0.5)
    recorder.flush()
    assert [(r["it"], r["ep"], r["v"]) for r in read(run_dir)] == [(5, 0, {"loss": 1.0}), (5, 1, {"val_seconds": 0.5})]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.ones(3), "not a Tensor of shape (3,)"),
        (torch.ones((), dtype=torch.complex64), "not a Tensor of shape ()"),
        ("3", "not a str ('3')"),
        (None, "not a NoneType (None)"),
        ([1.0], "not a list ([1.0])"),
        (np.ones(2), "not a ndarray of shape (2,)"),
    ],
    ids=repr,
)
def test_what_is_no_number_is_told_where_it_is_logged(value: Any, said: str) -> None:
    with pytest.raises(TypeError, match="grad_norm") as caught:
        scalar(value, 'run.log("grad_norm", …)')
    assert said in str(caught.value)


def test_no_string_is_recorded_that_would_hold_up_a_reader(
    run_dir: RunDir, recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    long, name = "é" * 2_500_000, "x" * 5_000_000
    try:
        raise ValueError(long)
    except ValueError as error:
        error.add_note(long)
        recorder.failure(error, hook="h", point="after_train_iter", action="ignore")
    recorder.say(long, "warn")
    recorder.put("text", name="sample", text=long, hook="h")
    recorder.put("ack", id="0", cmd=long, args=[], sent=1.0, ok=False, note=long)
    recorder.put("end", status="failed", exit=1, reason=long, seconds=1.0)
    recorder.flush()
    size = run_dir.events.stat().st_size
    recorder.scalar(name, 1.0)
    recorder.put("metrics", split="val", v={name: 1.0}, seconds=1.0)
    recorder.flush()
    assert run_dir.events.stat().st_size < size + 3 * TEXT_LIMIT
    *every, number, metrics = read(run_dir)
    assert list(number["v"]) == list(metrics["v"])
    cut = [value for record in every for value in record.values() if isinstance(value, str) and len(value) > 1000]
    assert len(every) == 5
    assert len(cut) == 7
    for value in cut:
        kept, _, mark = value.partition("…")
        assert len(value.encode()) <= TEXT_LIMIT and "é" in kept and mark.endswith(" bytes left out]")
    assert len(capsys.readouterr().err) <= TEXT_LIMIT, "nor printed"


def test_a_log_that_was_removed_is_begun_anew_and_says_so(run_dir: RunDir, recorder: Recorder) -> None:
    live = event_log(run_dir.events)
    recorder.put("run", pipeline="toy")
    recorder.put("epoch", seconds=1.0)
    recorder.flush()
    assert [record["k"] for record in live.read()] == ["run", "epoch"]
    run_dir.events.unlink()
    recorder.put("metrics", split="val", v={}, seconds=1.0)
    recorder.flush()
    recorder.put("end", status="finished", exit=0, reason="", seconds=1.0)
    recorder.flush()
    first, said, *others = read(run_dir)
    assert (first["k"], first["pipeline"]) == ("run", "toy")
    assert said["text"] == "the event log was removed while the run went on: what stood in it is lost"
    assert [record["k"] for record in others] == ["metrics", "end"]
    assert [record["k"] for record in live.read()] == ["run", "message", "metrics", "end"], "who follows it reads on"


def test_firings_are_recorded_from_the_beginning_of_each_attempt(run_dir: RunDir, recorder: Recorder) -> None:
    """Also of one in the same process, after `rewind`."""
    books = Books(1, Timeline())
    recorder.watch(books, SimpleNamespace(iter=3, epoch=1, stage="train", batch_idx=1, batches=2))  # type: ignore[arg-type]
    recorder._hooks_due = 600.0  # the attempt before has taken so long
    recorder.put("run")
    books.cells[0].add(np.array([1000]))
    recorder.flush()
    assert [record["hooks"].keys() for record in read(run_dir) if record["k"] == "frame"] == [{"0"}]
