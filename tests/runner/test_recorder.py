"""The recorder and what is logged: numbers, media, hooks at `on_log`;
a disk that fails harms no training.
"""

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hookflow.events.log import TailReader, event_log
from hookflow.events.records import TEXT_LIMIT
from hookflow.events.rundir import RunDir
from hookflow.png import encode_png
from hookflow.runner.device.cuda import event_of_stream
from hookflow.runner.logging import media
from hookflow.runner.logging import recorder as module
from hookflow.runner.logging.media import copy_image, read_pixels, render_figure
from hookflow.runner.logging.recorder import EventRecorder
from hookflow.runner.logging.timing import Timeline, TimingAggregator
from hookflow.runner.model.task import scalar
from hookflow.service.runs import read_recorded_plan
from tests.conftest import TESTS, NewRun, Trained, messages, reason, records
from tests.distributed.several import carry_out
from tests.hooks.stand_ins import OnCuda
from tests.runner.same import curve
from tests.support.limits import LIMIT


class LogsAt:
    """Logs the iterations done at points inside iterations and outside of them."""

    def before_train_epoch(self, run: Any) -> None:
        run.log("epoch", run.iter)

    def before_train_iter(self, run: Any) -> None:
        run.log("fetched", run.iter)

    def after_backward(self, run: Any) -> None:
        run.log("backward", run.iter)

    def after_train_iter(self, run: Any) -> None:
        run.log("done", run.iter)

    def after_val_iter(self, run: Any) -> None:
        run.log("val", run.iter)


WRONG = {
    "image": torch.zeros(2, 3, 4, 5),
    "text": 3,
    "histogram": "abc",
    "figure": torch.zeros(3, 3),
}


def logs_wrongly(run: Any, what: str) -> None:
    getattr(run, f"log_{what}")("sample", WRONG[what])


class Floods:
    def __init__(self, count: int) -> None:
        self.count = count

    def before_train(self, run: Any) -> None:
        for _ in range(self.count):
            run.log_image("many", torch.zeros(2, 2))


class LogsAlone:
    """Logs a number on the first rank, and on no other."""

    ranks = "zero"

    def after_train_iter(self, run: Any) -> None:
        run.log("alone", float(run.iter))


class Says:
    def on_log(self, run: Any, name: str, value: Any) -> None:
        run.say(f"{name} {float(value)}")


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path, "toy")


@pytest.fixture
def recorder(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> Iterator[EventRecorder]:
    """A recorder whose thread flushes when it is closed alone."""
    monkeypatch.setattr(module, "POLL_PERIOD_SECONDS", LIMIT)
    made = EventRecorder(run_dir, lambda command: None)
    made.start()
    yield made
    made.close()


def read(run_dir: RunDir) -> list[dict[str, Any]]:
    return TailReader(run_dir.events).read_all()


def fail(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_a_full_disk_costs_is_told(
    run_dir: RunDir, recorder: EventRecorder, monkeypatch: pytest.MonkeyPatch
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


def test_a_torn_line_costs_no_later_one(
    run_dir: RunDir, recorder: EventRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(
            os, "write", lambda file, data: write(file, data[:9]) if len(data) > 30 else fail()
        )
        recorder.put("epoch", torn="x" * 12)
        recorder.flush()
    recorder.put("metrics")
    recorder.flush()
    assert [record["k"] for record in read(run_dir)] == ["message", "metrics"]


def test_a_disk_that_hangs_does_not_keep_the_process(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(os, "write", lambda file, data: answered.wait(60) and len(data))
    recorder = EventRecorder(run_dir, lambda command: None)
    recorder.put("end")
    recorder.start()
    recorder.close()
    assert read(run_dir) == []
    answered.set()


class BusyDevice:
    """An event of a device that computes until it is told to end."""

    def __init__(self) -> None:
        self.waited_for, self.done = threading.Event(), threading.Event()

    def synchronize(self) -> None:
        self.waited_for.set()
        assert self.done.wait(LIMIT)


def test_the_training_logs_on_while_a_flush_waits_for_the_device(
    run_dir: RunDir, recorder: EventRecorder
) -> None:
    device = BusyDevice()
    recorder.scalar("first", torch.ones(()), device, place=(1, 0))
    flushing = Thread(target=recorder.flush)
    flushing.start()
    assert device.waited_for.wait(LIMIT)
    recorder.scalar("second", torch.full((), 2.0), place=(2, 0))
    recorder.say("the training goes on")
    assert flushing.is_alive() and not read(run_dir)
    assert not recorder.flush(patience=0)
    device.done.set()
    flushing.join(LIMIT)
    recorder.flush()
    logged = [
        (record["it"], record["v"])
        for record in event_log(run_dir.events).read_all()
        if record["k"] == "scalars"
    ]
    assert logged == [(1, {"first": 1.0}), (2, {"second": 2.0})]
    assert messages(run_dir) == ["the training goes on"]


def test_a_device_that_hangs_does_not_keep_the_process_and_is_named(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.1)
    device = BusyDevice()
    recorder = EventRecorder(run_dir, lambda command: None)
    recorder.scalar("number", torch.ones(()), device)
    recorder.start()
    flushing = Thread(target=recorder.flush)
    flushing.start()
    assert device.waited_for.wait(LIMIT)
    recorder.close()
    assert "the device" in capsys.readouterr().err
    device.done.set()
    flushing.join(LIMIT)


def test_numbers_of_every_kind_are_brought_over_exactly(
    run_dir: RunDir, recorder: EventRecorder
) -> None:
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
        name: float(value.item() if hasattr(value, "item") else value)
        for name, value in values.items()
    }


def test_a_number_that_cannot_be_read_costs_no_other_one_and_is_said_once(
    run_dir: RunDir, recorder: EventRecorder
) -> None:
    sparse = torch.ones(1).to_sparse()
    for _ in range(2):
        for name, value in {
            "a": torch.ones(1),
            "sparse": sparse,
            "b": torch.ones(1),
            "c": 3.0,
        }.items():
            recorder.scalar(name, value)
        recorder.scalar("meta", torch.ones((), device="meta"))
        recorder.flush()
    log = event_log(run_dir.events).read_all()
    assert [record["v"] for record in log if record["k"] == "scalars"] == [
        {"a": 1.0, "b": 1.0, "c": 3.0}
    ] * 2
    told = [record["text"] for record in log if record["k"] == "message"]
    assert [text.partition(":")[0] for text in told] == [
        f'the logged number "{name}" cannot be read' for name in ("sparse", "meta")
    ]


def test_a_number_of_a_stream_of_the_users_own_is_read_once_it_is_computed(
    run_dir: RunDir, recorder: EventRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = torch.zeros(1).as_subclass(OnCuda)
    stream = SimpleNamespace(
        record_event=lambda: SimpleNamespace(synchronize=lambda: number.fill_(3))
    )
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    assert (
        event_of_stream(number) is event_of_stream(torch.zeros(1)) is event_of_stream(1.0) is None
    )
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    recorder.scalar("n", number, event_of_stream(number))
    recorder.flush()
    assert [record["v"] for record in read(run_dir)] == [{"n": 3.0}]


def test_a_number_has_the_epoch_that_it_was_logged_in_whenever_it_is_written(
    run_dir: RunDir, recorder: EventRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = [5, 0]
    monkeypatch.setattr(recorder, "_read_place", lambda: tuple(place))
    recorder.scalar("loss", 1.0)
    place[1] = 1
    recorder.scalar("val_seconds", 0.5)
    recorder.flush()
    assert [(r["it"], r["ep"], r["v"]) for r in read(run_dir)] == [
        (5, 0, {"loss": 1.0}),
        (5, 1, {"val_seconds": 0.5}),
    ]


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


def test_no_string_holds_up_a_reader(
    run_dir: RunDir, recorder: EventRecorder, capsys: pytest.CaptureFixture[str]
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
    cut = [
        value
        for record in every
        for value in record.values()
        if isinstance(value, str) and len(value) > 1000
    ]
    assert len(every) == 5
    assert len(cut) == 7
    for value in cut:
        kept, _, mark = value.partition("…")
        assert (
            len(value.encode()) <= TEXT_LIMIT and "é" in kept and mark.endswith(" bytes left out]")
        )
    assert len(capsys.readouterr().err) <= TEXT_LIMIT, "nor printed"


def test_a_log_that_was_removed_is_begun_anew_and_says_so(
    run_dir: RunDir, recorder: EventRecorder
) -> None:
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
    assert str(said["text"]).startswith("the event log was removed")
    assert [record["k"] for record in others] == ["metrics", "end"]
    assert [record["k"] for record in live.read()] == [
        "run",
        "message",
        "metrics",
        "end",
    ], "who follows it reads on"


def test_firings_are_recorded_from_the_beginning_of_each_attempt(
    run_dir: RunDir, recorder: EventRecorder
) -> None:
    """Also of one in the same process, after `rewind`."""
    books = TimingAggregator(1, Timeline())
    recorder.watch(books, SimpleNamespace(iter=3, epoch=1, stage="train", batch_idx=1, batches=2))  # type: ignore[arg-type]
    recorder._hooks_due = 600.0  # the attempt before has taken so long
    recorder.put("run")
    books.cells[0].add(np.array([1000]))
    recorder.flush()
    assert [record["hooks"].keys() for record in read(run_dir) if record["k"] == "frame"] == [{"0"}]


LOGS = 'hooks.logs={use="./logging_hooks.py:Logs"}'
SHORT = "run.max_epochs=1"


def read_png(path: Path) -> Any:
    image = pytest.importorskip("PIL.Image", reason="reads PNG files; it comes with the extra dev")
    with image.open(path) as opened:
        return np.asarray(opened)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_png_reads_back_to_the_bit(channels: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    slope = np.linspace(0, 255, 40 * 30 * channels).reshape(30, 40, channels).astype(np.uint8)
    for name, array in {
        "noise": rng.integers(0, 256, (30, 40, channels), np.uint8),
        "slope": slope,
    }.items():
        file = tmp_path / f"{name}.png"
        file.write_bytes(encode_png(array))
        assert np.array_equal(read_png(file).reshape(array.shape), array)


def test_one_of_each_is_recorded_as_it_was_by_a_thread_that_may_read_the_device_and_write(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: [threads.add(threading.current_thread().name), function(*args)][1]

    for name in ("read_pixels", "encode_png"):
        monkeypatch.setattr(media, name, watched(getattr(media, name)))
    run = trained(LOGS, SHORT)
    assert threads == {"hookflow-media"}
    images = records(run, "image")
    assert [(r["it"], r["caption"], r["hook"]) for r in images] == [
        (k, f"at {k}", "logs") for k in range(1, 6)
    ]
    assert images[2]["path"] == "images/val/sample/it00000003.png"
    assert (images[2]["width"], images[2]["height"], images[2]["figure"]) == (5, 4, False)
    assert np.array_equal(read_png(run.path / str(images[2]["path"]))[0, 0], [3, 0, 0])
    histogram = records(run, "histogram")[-1]
    assert (histogram["it"], histogram["edges"], histogram["counts"]) == (
        5,
        [0.0, 1.0, 2.0],
        [1, 3],
    )
    assert [r["text"] for r in records(run, "text")] == [f"iteration {k}" for k in range(1, 6)]


@pytest.mark.parametrize("form", ["run.accumulate=1", "run.accumulate=2"])
def test_a_number_is_of_the_iteration_under_way_until_that_is_done(
    trained: Trained, form: str
) -> None:
    run = trained('hooks.at={use="tests.runner.test_recorder:LogsAt"}', SHORT, form)
    logged = [(name, it - done) for (it, _, name), done in curve(run).items() if name in LATER]
    assert {name: {late for other, late in logged if other == name} for name in LATER} == LATER


LATER = {"epoch": {0}, "fetched": {1}, "backward": {1}, "done": {0}, "val": {0}}
"""By how much the iteration of a number is above the iterations done when it was logged."""


def test_what_there_is_no_room_for_is_dropped_and_told(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, close = threading.Event(), media.MediaRecorder.close

    def slow(image: torch.Tensor) -> Any:
        assert given.wait(LIMIT)
        return read_pixels(image)

    def closed(logged: media.MediaRecorder) -> None:
        given.set()
        close(logged)

    monkeypatch.setattr(media, "MAX_QUEUED_ITEMS", 4)
    monkeypatch.setattr(media, "read_pixels", slow)
    monkeypatch.setattr(media.MediaRecorder, "close", closed)
    run = trained('hooks.floods={use="tests.runner.test_recorder:Floods", args={count=50}}', SHORT)
    written = len(records(run, "image"))
    assert written == 4 == len(list((run.path / "images/many").iterdir())), (
        "each has a file of its own"
    )
    told = messages(run, "warn")
    assert any("faster than they can be written" in text for text in told)
    assert any(text.startswith("46 logged images and histograms") for text in told)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            "image",
            'TypeError: run.log_image("sample", …) needs height × width × 1, 3 or 4 channels, last'
            " or first, not (2, 3, 4, 5); log the images of a batch one by one, or make a grid of"
            " them",
        ),
        ("text", 'TypeError: run.log_text("sample", …) needs a string, not a int (3)'),
        (
            "histogram",
            "TypeError: run.log_histogram(\"sample\", …) needs numbers, not a str ('abc')",
        ),
        (
            "figure",
            'TypeError: run.log_figure("sample", …) needs a figure of matplotlib, not a Tensor'
            " (tensor([[0",
        ),
    ],
)
def test_what_is_no_image_is_refused_where_it_is_logged(
    what: str, message: str, trained: Trained
) -> None:
    wrong = (
        f'hooks.wrong={{use="tests.runner.test_recorder:logs_wrongly", args={{what="{what}"}},'
        ' points=["after_train_iter"]}'
    )
    run = trained(wrong, SHORT, code=1)
    assert reason(run).startswith(message)


def test_channels_may_come_first_or_last_and_values_become_bytes() -> None:
    wide = torch.rand(3, 8, 10)
    assert torch.equal(copy_image(wide, ""), wide.permute(1, 2, 0))
    assert torch.equal(copy_image(wide.permute(1, 2, 0), ""), wide.permute(1, 2, 0))
    assert copy_image(torch.zeros(8, 10), "").shape == (8, 10, 1)
    assert copy_image(torch.zeros(1, 8, 10), "").shape == (8, 10, 1)
    small = np.zeros((4, 7, 3), np.uint8)
    assert copy_image(small, "").shape == (4, 7, 3), "an array has them last where both would do"
    assert copy_image(torch.from_numpy(small), "").shape == (7, 3, 4), "a tensor first"
    values = torch.tensor([[-1.0, 0.0, 0.5, 1.0, 2.0, float("nan")]])
    assert read_pixels(copy_image(values, "")).ravel().tolist() == [0, 0, 128, 255, 255, 0]
    assert read_pixels(copy_image(values.bfloat16(), "")).ravel().tolist() == [
        0,
        0,
        128,
        255,
        255,
        0,
    ]
    assert read_pixels(copy_image(torch.tensor([[True, False]]), "")).ravel().tolist() == [255, 0]
    assert read_pixels(
        copy_image(np.array([[7, 255]], np.uint8)[:, ::-1], "")
    ).ravel().tolist() == [255, 7]
    with pytest.raises(TypeError, match="uint8, floating"):
        copy_image(torch.zeros(3, 3, dtype=torch.int64), "")


def test_an_image_of_pil_is_taken_with_its_palette() -> None:
    image = pytest.importorskip("PIL.Image", reason="it comes with the extra dev")
    red = image.new("RGB", (3, 2), (255, 0, 0))
    assert (
        read_pixels(copy_image(red, "")).tolist()
        == read_pixels(copy_image(red.convert("P"), "")).tolist()
        == 2 * [3 * [[255, 0, 0]]]
    )


def test_a_figure_keeps_its_canvas_and_is_drawn() -> None:
    figures = pytest.importorskip("matplotlib.figure", reason="it comes with the extra dev")
    figure = figures.Figure(figsize=(3, 2), dpi=50)
    figure.add_subplot().plot([0, 1], color="red")
    before = figure.canvas
    image = render_figure(figure, "")
    assert figure.canvas is before
    assert image.shape == (100, 150, 4)
    assert image[..., :3].unique().numel() > 2


CLOUDS = TESTS / "distributed" / "clouds.toml"
BRIEF = ("run.max_epochs=1", "data.train.args={examples=32}")
LISTENS = 'hooks.listens={use="tests.runner.test_recorder:Listens"%s}'
OFTEN = "hooks.log={use='log'}"


class Listens:
    heard: list[tuple[int, str, Any]]

    def before_run(self) -> None:
        Listens.heard = []

    def on_log(self, run: Any, name: str, value: Any) -> None:
        Listens.heard.append((run.iter, name, value))
        run.log(f"again_{name}", value)


class Gradients:
    parameters = ("*.weight",)

    def post_accumulate_grad(self, run: Any) -> None:
        run.log("seen", 1.0)
        run.say("seen")
        alone = Thread(target=run.log, args=("alone", 1.0))
        alone.start()
        alone.join()


class Fails:
    def on_log(self, name: str) -> None:
        if name == "loss":
            raise RuntimeError("a loss")


class Stops:
    writes = ("control",)

    def on_log(self, run: Any, name: str) -> None:
        if name == "loss" and run.iter == 3:
            run.stop("heard enough")


def logged(run_dir: RunDir) -> dict[tuple[Any, str], Any]:
    result = {}
    for record in records(run_dir, "scalars"):
        result.update({(record["it"], name): value for name, value in record["v"].items()})  # type: ignore[attr-defined]
    return result


def test_every_number_is_offered_with_its_iteration_and_what_is_logged_there_is_not(
    trained: Trained,
) -> None:
    recorded = logged(trained(LISTENS % "", OFTEN, *BRIEF))
    again = {key for key in recorded if key[1].startswith("again_")}
    heard = {(it + (name == "grad_norm"), name): float(value) for it, name, value in Listens.heard}
    assert heard == {key: value for key, value in recorded.items() if key not in again}
    assert {(it, f"again_{name}") for it, name in heard} == again
    assert {name for _, name in heard} >= {"loss", "lr", "samples_per_s", "grad_norm"}
    kinds = {name: type(value) for _, name, value in Listens.heard}
    assert (kinds["loss"], kinds["lr"]) == (torch.Tensor, float), "nobody has waited for the loss"


def test_triggers_hold_and_its_time_is_its_own(trained: Trained) -> None:
    run_dir = trained(LISTENS % ", every=3", OFTEN, *BRIEF)
    offered = [key for key in logged(run_dir) if not key[1].startswith("again_")]
    assert len(Listens.heard) == len(offered) // 3
    frames = records(run_dir, "frame")
    checks: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for frame in frames:
        checks.update(frame.get("checks", {}))  # type: ignore[attr-defined]
        totals.update({binding: entry[1] for binding, entry in frame["hooks"].items()})  # type: ignore[attr-defined]
    (listens,) = read_recorded_plan(run_dir).at("on_log")
    assert 0 < checks[str(listens.id)] < totals[str(listens.id)]


@pytest.mark.parametrize(("on_error", "code"), [("raise", 1), ("ignore", 0), ("disable", 0)])
def test_what_raises_there_is_the_fault_of_who_listens(
    trained: Trained, on_error: str, code: int
) -> None:
    fails = f'hooks.fails={{use="tests.runner.test_recorder:Fails", on_error="{on_error}"}}'
    run_dir = trained(fails, OFTEN, *BRIEF, code=code)
    errors = records(run_dir, "error")
    assert {(error["hook"], error["point"], error["action"]) for error in errors} == {
        ("fails", "on_log", on_error)
    }
    losses = [key for key in logged(run_dir) if key[1] == "loss"]
    assert len(errors) == (len(losses) if on_error == "ignore" else 1)


def test_a_stop_asked_for_there_is_granted_after_the_iteration(trained: Trained) -> None:
    (end,) = records(
        trained('hooks.stops={use="tests.runner.test_recorder:Stops"}', OFTEN, *BRIEF), "end"
    )
    assert (end["it"], end["status"], end["reason"]) == (3, "finished", "heard enough")


def test_a_rank_that_logs_alone_waits_for_no_other(new_run: NewRun) -> None:
    """A condition there looks at its own numbers: asking the others would hang."""
    alone = 'hooks.alone={use="tests.runner.test_recorder:LogsAlone"}'
    says = 'hooks.says={use="tests.runner.test_recorder:Says", when="alone > 4"}'
    off = [f"hooks.{name}.enabled=false" for name in ("log", "ema", "clip")]
    run_dir = new_run(alone, says, *off, "run.max_epochs=1", pipeline=CLOUDS)
    assert carry_out(run_dir, 2) == [0, 0]
    said = [record["text"] for record in records(run_dir, "message") if record["source"] == "says"]
    assert said == ["alone 5.0", "alone 6.0"]


def test_a_hook_in_the_thread_of_autograd_is_like_any_other(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CUDA the gradients are not computed in the training thread.

    What a hook's own thread logs is not offered.
    """
    backward = torch.Tensor.backward

    def elsewhere(*args: Any, **named: Any) -> None:
        thread = Thread(target=backward, args=args, kwargs=named)
        thread.start()
        thread.join()

    monkeypatch.setattr(torch.Tensor, "backward", elsewhere)
    run_dir = trained(
        *BRIEF, LISTENS % "", 'hooks.gradients={use="tests.runner.test_recorder:Gradients"}'
    )
    heard = {name for _, name, _ in Listens.heard}
    assert "seen" in heard and "alone" not in heard
    assert {r["source"] for r in records(run_dir, "message") if r["text"] == "seen"} == {
        "gradients"
    }
