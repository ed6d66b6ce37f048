"""Images, texts and histograms that a run has logged: read, drawn, found by keys, told in lines."""

from __future__ import annotations

import io
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hookflow.events.rundir import RunDir
from hookflow.monitor import plain
from hookflow.monitor.charts import Pixels, half_blocks, read_image
from hookflow.monitor.journal import KEPT, Gallery
from hookflow.monitor.keys import press
from hookflow.monitor.layout import screen
from hookflow.monitor.panels.gallery import beside_each_other
from hookflow.monitor.state import RunState
from hookflow.monitor.view import Notice, Scene
from hookflow.png import decode_png, encode_png
from tests.conftest import hookflow_here
from tests.golden_files import check_golden
from tests.monitor.conftest import At
from tests.monitor.fake_run import BEGAN, append, end
from tests.monitor.test_keys import pressed, walk
from tests.monitor.test_screens import SIZES, drawn

VERSE = "It was the best of times,\nit was the worst of times.\n\n    indented\n\tby a tab\n数据数据" + "数据" * 40


def stamped(kind: str, it: int, hook: str = "draw", **fields: Any) -> dict[str, Any]:
    return {"k": kind, "t": BEGAN + it / 36, "it": it, "ep": it // 98, "name": "sample", "hook": hook, **fields}


def image(it: int, name: str = "rendered/ring", width: int = 24, height: int = 16, caption: str = "") -> dict[str, Any]:
    path = f"images/{name}/it{it:08}.png"
    size = {"width": width, "height": height}
    return stamped("image", it, name=name, path=path, caption=caption, figure=False, **size)


def text(it: int, words: str = VERSE) -> dict[str, Any]:
    return stamped("text", it, text=words)


def histogram(it: int, name: str = "head.weight", bins: int = 30) -> dict[str, Any]:
    counts = [round(900 * np.exp(-(((k - bins / 2) / bins * 5) ** 2))) for k in range(bins)]
    edges = np.linspace(-0.31, 0.42, bins + 1).round(4).tolist()
    return stamped("histogram", it, hook="stats", name=name, edges=edges, counts=counts)


def ring(width: int = 24, height: int = 16) -> NDArray[np.uint8]:
    """Return a ring of colours."""
    y, x = np.mgrid[0:height, 0:width]
    y, x = (y / height - 0.5) * 2, (x / width - 0.5) * 2
    distance = np.hypot(x, y)
    colours = np.stack([x / 2 + 0.5, y / 2 + 0.5, 1 - distance / 1.5], axis=-1)
    return np.where(abs(distance - 0.6)[..., None] < 0.25, colours * 255, 12).clip(0, 255).astype(np.uint8)


SOLID = np.array([17, 21, 26])  # what lies behind everything


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (33, 64)])
def test_grey_and_transparent_images_are_shown_before_the_ground(tmp_path: Path, size: tuple[int, int]) -> None:
    def seen(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        path = tmp_path / "image.png"
        path.write_bytes(encode_png(pixels))
        image = read_image(path)
        assert isinstance(image, Pixels)
        return image.rgb

    random = np.random.default_rng(0)
    grey, colour = (random.integers(0, 256, (*size, channels), np.uint8) for channels in (1, 3))
    assert (seen(grey) == np.repeat(grey, 3, axis=2)).all()
    assert (seen(colour) == colour).all()
    opaque, clear = (np.concatenate([colour, np.full((*size, 1), alpha, np.uint8)], axis=2) for alpha in (255, 0))
    assert (decode_png(encode_png(opaque)) == opaque).all()
    assert (seen(opaque) == colour).all()
    assert (seen(clear) == SOLID).all()


def test_what_is_no_image_of_a_run_says_why(tmp_path: Path) -> None:
    whole = encode_png(ring())
    path = tmp_path / "image.png"
    for data, why in (
        (b"GIF89a", "cannot be shown: not a PNG file"),
        (whole[:40], "cannot be shown"),
        (whole.replace(struct.pack(">II", 24, 16), struct.pack(">II", 24, 99)), "the file ends too early"),
        (whole.replace(b"\x08\x02\x00\x00\x00", b"\x08\x02\x00\x00\x01"), "unsupported PNG format"),
    ):
        path.write_bytes(data)
        assert why in str(read_image(path))
    assert read_image(tmp_path / "gone.png") == "cannot be read: No such file or directory"


def colours(image: Pixels, width: int, height: int) -> list[list[tuple[Any, Any]]]:
    """Return the upper and the lower colour of each cell of a drawn image."""
    return [
        [(style.color.triplet, style.bgcolor.triplet) for text, style, _ in strip for _ in text]  # type: ignore[union-attr]
        for strip in half_blocks(image, width, height)
    ]


def test_a_small_image_grows_by_a_whole_factor_and_keeps_its_colours() -> None:
    pixels = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255]], [[1, 2, 3], [4, 5, 6], [7, 8, 9]]], np.uint8)
    cells = colours(Pixels(pixels), 10, 4)
    assert [len(row) for row in cells] == [9, 9, 9], "three times as large: of 3 × 2 pixels 9 × 6"
    assert cells[0][0] == ((255, 0, 0), (255, 0, 0))
    assert cells[1][4] == ((0, 255, 0), (4, 5, 6))
    assert cells[2][8] == ((7, 8, 9), (7, 8, 9))


def test_of_a_large_image_means_are_shown_and_its_proportions_stay() -> None:
    pixels = np.zeros((200, 400, 3), np.uint8)
    pixels[:, ::2] = 100
    cells = colours(Pixels(pixels), 50, 50)
    assert (len(cells), len(cells[0])) == (13, 50), "25 pixels are 12 cells and a half"
    assert cells[0][0] == ((50, 50, 50), (50, 50, 50))
    assert cells[-1][0] == ((50, 50, 50), tuple(SOLID))


def gallery(scene: At, page: str) -> Scene:
    """Return a scene whose gallery shows one of a kind."""
    seen = scene()
    for record in (image(200), image(300, caption="a ring"), text(300), histogram(100), histogram(300)):
        seen.state.apply(record)  # type: ignore[arg-type]
    seen.view.page = "gallery"
    seen.images = dict.fromkeys(range(10), Pixels(ring()))
    seen.view.logged = next(key for key in seen.state.gallery.keys if key[0] == page)
    return seen


@pytest.mark.parametrize(("kind", "width", "height"), [(k, *s) for k in ("image", "text", "histogram") for s in SIZES])
def test_the_gallery(scene: At, kind: str, width: int, height: int) -> None:
    seen = gallery(scene, kind)
    check_golden(f"monitor/gallery-{kind}-{width}x{height}.txt", drawn(seen, width, height))
    for odd in (1, 2, 7, 20, 33, 75, 76, 300):
        for tall in (1, height // 4, 2 * height):
            drawn(seen, odd, tall)


def test_a_text_that_was_logged_cannot_move_the_cursor(scene: At) -> None:
    seen = gallery(scene, "text")
    seen.state.apply(text(301, "\x1b[2J\x1b]0;mine\x07red\r\x9b31m\u202e\x00"))  # type: ignore[arg-type]
    seen.state.apply(image(302, name="\x1b[2Jevil", caption="a\x1b[2Jb"))  # type: ignore[arg-type]
    for key in seen.state.gallery.keys:
        seen.view.logged = key
        assert all(strip.text.isprintable() for strip in screen(seen, 120, 40))
    for focus in (5, 2):
        seen.view.page, seen.view.focus = "main", focus
        assert all(strip.text.isprintable() for strip in screen(seen, 120, 40))


def test_the_newest_of_each_name_are_kept_and_a_resumed_run_forgets_what_it_logs_again() -> None:
    held = Gallery()
    for it in range(KEPT + 10):
        held.add(image(it))  # type: ignore[arg-type]
    held.add(text(105))  # type: ignore[arg-type]
    kept = held.of(("image", "rendered/ring"))
    assert [shown.record["it"] for shown in kept] == list(range(10, KEPT + 10))
    assert held.find(0) is None
    held.forget_after(20)
    assert [shown.record["it"] for shown in held.of(("image", "rendered/ring"))] == list(range(10, 21))
    assert held.keys == [("image", "rendered/ring")]


def test_what_a_hook_logs_of_a_kind_at_once_is_one_event() -> None:
    state = RunState()
    for it in (100, 200):
        for k in range(20):
            state.apply(histogram(it, f"layer{k}.weight"))  # type: ignore[arg-type]
        state.apply(image(it))  # type: ignore[arg-type]
    entries = list(state.journal)
    expected = [(kind, it, more) for it in (100, 200) for kind, more in (("histogram", 19), ("image", 0))]
    assert [(entry.kind, entry.it, entry.more) for entry in entries] == expected
    assert entries[0].text == '"layer0.weight": 9.6k values, -0.3100 … 0.4200, and 19 more'
    assert state.it == 0, "they come late: they do not say how far the run is"


def test_keys_go_through_names_and_iterations_and_back(scene: At) -> None:
    at = gallery(scene, "image")
    at.view.page, at.view.logged = "main", None
    assert "iteration 300   24×16   draw   a ring" in pressed(at, "i")
    assert "iteration 200   24×16   draw" in pressed(at, "left")
    assert "[ ] 1 of 2" in pressed(at, "left")
    assert "[ ] 2 of 2" in pressed(at, "right_square_bracket")
    assert at.view.shown is None, "it follows the newest again"
    assert "It was the best of times" in pressed(at, "down")
    assert "█████" in pressed(at, "down")
    assert "24×16" in pressed(at, "j")
    assert "[g] graph" in pressed(at, "i")
    at.view.event, at.view.focus = next(entry.number for entry in at.state.journal if entry.kind == "image"), 5
    assert "iteration 200   24×16   draw" in pressed(at, "enter"), "its event opens an image"
    assert "[5] events" in pressed(at, "escape")


@pytest.mark.parametrize("size", [*SIZES, (200, 60)])
def test_images_of_one_name_stand_beside_each_other(scene: At, size: tuple[int, int]) -> None:
    at = gallery(scene, "image")
    for it in range(400, 1000, 100):
        at.state.apply(image(it))  # type: ignore[arg-type]
    at.images = {number: Pixels(ring() // (1 + number % 3)) for number in range(20)}
    assert press("b", at) == ""
    check_golden(f"monitor/gallery-beside-{size[0]}x{size[1]}.txt", drawn(at, *size))
    tiles = {60: 2, 80: 2, 120: 3, 200: 7}
    its = [shown.record["it"] for shown in beside_each_other(at, size[0])]
    assert its == list(range(200, 1000, 100))[-tiles[size[0]] :]
    press("left_square_bracket", at)
    assert beside_each_other(at, size[0])[-1].record["it"] == 800
    press("b", at)
    assert len(beside_each_other(at, size[0])) == 1
    press("down", at)
    assert press("b", at) == Notice("only images stand beside each other")
    for width in (1, 2, 7, 30, 300):
        drawn(at, width, 12)


@pytest.fixture
def logging(going: RunDir) -> RunDir:
    """A run that goes on and has logged something."""
    records = [image(100), image(200, caption="later"), text(200), histogram(200)]
    append(going, [{**record, "t": time.time()} for record in records])
    for record in records[:2]:
        path = going.path / record["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_png(ring(record["width"], record["height"])))
    return going


def test_the_app_reads_images_and_says_where_a_file_is_gone(logging: RunDir) -> None:
    walk(logging, ("", " i images"), ("i", "▀▀▀"))
    for path in logging.path.glob("images/rendered/ring/*.png"):
        path.unlink()
    walk(logging, ("i left", "cannot be read: No such file or directory"))


def test_a_line_each_where_there_is_no_screen(logging: RunDir) -> None:
    append(logging, [end(time.time(), 200, 2)])
    out = io.StringIO()
    plain.follow(logging, out)
    lines = [line[9:] for line in out.getvalue().splitlines() if line[9:].startswith(("image", "text", "hist"))]
    assert lines == [
        'image      epoch 2/8  iter 100/784  "rendered/ring" 24×16 → images/rendered/ring/it00000100.png',
        'image      epoch 3/8  iter 200/784  "rendered/ring" 24×16 → images/rendered/ring/it00000200.png  later',
        'text       epoch 3/8  iter 200/784  "sample": It was the best of times, it was the worst of times. indente…',
        'histogram  epoch 3/8  iter 200/784  "head.weight": 9.6k values, -0.3100 … 0.4200',
    ]
    page = hookflow_here("show", str(logging.path), cwd=logging.path).stdout
    assert "image, text, histogram  kind" in page
    assert "rendered/ring           image      200" in page
