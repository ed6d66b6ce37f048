"""Images, figures, texts and histograms: what is recorded of them, and that the training thread does none of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hookflow.png import encode_png
from hookflow.runner.logging import media
from hookflow.runner.logging.media import copied, drawn, pixels
from tests.conftest import Trained, messages, reason, records
from tests.limits import LIMIT

LOGS = 'hooks.logs={use="./loggers.py:Logs"}'
SHORT = "run.max_epochs=1"


def read(path: Path) -> Any:
    image = pytest.importorskip("PIL.Image", reason="reads PNG files; it comes with the extra dev")
    with image.open(path) as opened:
        return np.asarray(opened)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_png_reads_back_to_the_bit(channels: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    slope = np.linspace(0, 255, 40 * 30 * channels).reshape(30, 40, channels).astype(np.uint8)
    for name, array in {"noise": rng.integers(0, 256, (30, 40, channels), np.uint8), "slope": slope}.items():
        file = tmp_path / f"{name}.png"
        file.write_bytes(encode_png(array))
        assert np.array_equal(read(file).reshape(array.shape), array)


def test_one_of_each_is_recorded_as_it_was_by_a_thread_that_may_read_the_device_and_write(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: [threads.add(threading.current_thread().name), function(*args)][1]

    for name in ("pixels", "encode_png"):
        monkeypatch.setattr(media, name, watched(getattr(media, name)))
    run = trained(LOGS, SHORT)
    assert threads == {"hookflow-media"}
    images = records(run, "image")
    assert [(r["it"], r["caption"], r["hook"]) for r in images] == [(k, f"at {k}", "logs") for k in range(1, 6)]
    assert images[2]["path"] == "images/val/sample/it00000003.png"
    assert (images[2]["width"], images[2]["height"], images[2]["figure"]) == (5, 4, False)
    assert np.array_equal(read(run.path / str(images[2]["path"]))[0, 0], [3, 0, 0])
    histogram = records(run, "histogram")[-1]
    assert (histogram["it"], histogram["edges"], histogram["counts"]) == (5, [0.0, 1.0, 2.0], [1, 3])
    assert [r["text"] for r in records(run, "text")] == [f"iteration {k}" for k in range(1, 6)]


def test_what_there_is_no_room_for_is_dropped_and_told(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    given, close = threading.Event(), media.Media.close

    def slow(image: torch.Tensor) -> Any:
        assert given.wait(LIMIT)
        return pixels(image)

    def closed(logged: media.Media) -> None:
        given.set()
        close(logged)

    monkeypatch.setattr(media, "PLACES", 4)
    monkeypatch.setattr(media, "pixels", slow)
    monkeypatch.setattr(media.Media, "close", closed)
    run = trained('hooks.floods={use="./loggers.py:Floods", args={count=50}}', SHORT)
    written = len(records(run, "image"))
    assert written == 4 == len(list((run.path / "images/many").iterdir())), "each has a file of its own"
    told = messages(run, "warn")
    assert any("faster than they can be written" in text for text in told)
    assert any(text.startswith("46 logged images and histograms") for text in told)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("image", "TypeError: run.log_image(\"sample\", …) needs height × width × 1, 3 or 4 channels, last or first, "
        "not (2, 3, 4, 5); log the images of a batch one by one, or make a grid of them"),
        ("text", 'TypeError: run.log_text("sample", …) needs a string, not a int (3)'),
        ("histogram", "TypeError: run.log_histogram(\"sample\", …) needs numbers, not a str ('abc')"),
        ("figure", 'TypeError: run.log_figure("sample", …) needs a figure of matplotlib, not a Tensor (tensor([[0'),
    ],
)  # fmt: skip
def test_what_is_no_image_is_refused_where_it_is_logged(what: str, message: str, trained: Trained) -> None:
    wrong = f'hooks.wrong={{use="./loggers.py:logs_wrongly", args={{what="{what}"}}, points=["after_train_iter"]}}'
    run = trained(wrong, SHORT, code=1)
    assert reason(run).startswith(message)


def test_channels_may_come_first_or_last() -> None:
    wide = torch.rand(3, 8, 10)
    assert torch.equal(copied(wide, ""), wide.permute(1, 2, 0))
    assert torch.equal(copied(wide.permute(1, 2, 0), ""), wide.permute(1, 2, 0))
    assert copied(torch.zeros(8, 10), "").shape == (8, 10, 1)
    assert copied(torch.zeros(1, 8, 10), "").shape == (8, 10, 1)
    small = np.zeros((4, 7, 3), np.uint8)
    assert copied(small, "").shape == (4, 7, 3), "an array has them last where both would do"
    assert copied(torch.from_numpy(small), "").shape == (7, 3, 4), "a tensor first"


def test_values_become_bytes() -> None:
    values = torch.tensor([[-1.0, 0.0, 0.5, 1.0, 2.0, float("nan")]])
    assert pixels(copied(values, "")).ravel().tolist() == [0, 0, 128, 255, 255, 0]
    assert pixels(copied(values.bfloat16(), "")).ravel().tolist() == [0, 0, 128, 255, 255, 0]
    assert pixels(copied(torch.tensor([[True, False]]), "")).ravel().tolist() == [255, 0]
    assert pixels(copied(np.array([[7, 255]], np.uint8)[:, ::-1], "")).ravel().tolist() == [255, 7]
    with pytest.raises(TypeError, match="uint8, floating"):
        copied(torch.zeros(3, 3, dtype=torch.int64), "")


def test_an_image_of_pil_is_taken_with_its_palette() -> None:
    image = pytest.importorskip("PIL.Image", reason="it comes with the extra dev")
    red = image.new("RGB", (3, 2), (255, 0, 0))
    assert pixels(copied(red, "")).tolist() == pixels(copied(red.convert("P"), "")).tolist() == 2 * [3 * [[255, 0, 0]]]


def test_a_figure_keeps_its_canvas_and_is_drawn() -> None:
    figures = pytest.importorskip("matplotlib.figure", reason="it comes with the extra dev")
    figure = figures.Figure(figsize=(3, 2), dpi=50)
    figure.add_subplot().plot([0, 1], color="red")
    before = figure.canvas
    image = drawn(figure, "")
    assert figure.canvas is before
    assert image.shape == (100, 150, 4)
    assert image[..., :3].unique().numel() > 2
