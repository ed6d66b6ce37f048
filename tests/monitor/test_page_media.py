"""The page of media: images, texts and histograms that were logged, and each of its keys."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from textual.pilot import Pilot

from hookflow.events.rundir import RunDir
from hookflow.monitor.app import MonitorApp
from hookflow.monitor.images import PixelImage, half_blocks, read_image
from hookflow.monitor.journal import MAX_KEPT_ENTRIES, MediaGallery
from hookflow.monitor.state import RunState
from hookflow.png import decode_png, encode_png
from tests.monitor.fake_run import BEGAN, append
from tests.monitor.shown import (
    NORMAL,
    Size,
    check_screens,
    press,
    screen_text,
    settle,
    shown,
    visit,
)

VERSE = (
    "It was the best of times,\nit was the worst of times.\n\n    indented\n\tby a tab\n数据数据"
    + "数据" * 40
)


def stamped(kind: str, it: int, hook: str = "draw", **fields: Any) -> dict[str, Any]:
    return {
        "k": kind,
        "t": BEGAN + it / 36,
        "it": it,
        "ep": it // 98,
        "name": "sample",
        "hook": hook,
        **fields,
    }


def image(
    it: int, name: str = "rendered/ring", width: int = 24, height: int = 16, caption: str = ""
) -> dict[str, Any]:
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
    return (
        np.where(abs(distance - 0.6)[..., None] < 0.25, colours * 255, 12)
        .clip(0, 255)
        .astype(np.uint8)
    )


SOLID = np.array([17, 21, 26])  # what lies behind everything


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (33, 64)])
def test_grey_and_transparent_images_are_shown_before_the_ground(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    def seen(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        path = tmp_path / "image.png"
        path.write_bytes(encode_png(pixels))
        image = read_image(path)
        assert isinstance(image, PixelImage)
        return image.rgb

    random = np.random.default_rng(0)
    grey, colour = (random.integers(0, 256, (*size, channels), np.uint8) for channels in (1, 3))
    assert (seen(grey) == np.repeat(grey, 3, axis=2)).all()
    assert (seen(colour) == colour).all()
    opaque, clear = (
        np.concatenate([colour, np.full((*size, 1), alpha, np.uint8)], axis=2) for alpha in (255, 0)
    )
    assert (decode_png(encode_png(opaque)) == opaque).all()
    assert (seen(opaque) == colour).all()
    assert (seen(clear) == SOLID).all()


def test_what_is_no_image_of_a_run_says_why(tmp_path: Path) -> None:
    whole = encode_png(ring())
    path = tmp_path / "image.png"
    for data, why in (
        (b"GIF89a", "cannot be shown: not a PNG file"),
        (whole[:40], "cannot be shown"),
        (
            whole.replace(struct.pack(">II", 24, 16), struct.pack(">II", 24, 99)),
            "the file ends too early",
        ),
        (whole.replace(b"\x08\x02\x00\x00\x00", b"\x08\x02\x00\x00\x01"), "unsupported PNG format"),
    ):
        path.write_bytes(data)
        assert why in str(read_image(path))
    assert read_image(tmp_path / "gone.png") == "cannot be read: No such file or directory"


def colours(image: PixelImage, width: int, height: int) -> list[list[tuple[Any, Any]]]:
    """Return the upper and the lower colour of each cell of a drawn image."""
    return [
        [(style.color.triplet, style.bgcolor.triplet) for text, style, _ in strip for _ in text]  # type: ignore[union-attr]
        for strip in half_blocks(image, width, height)
    ]


def test_an_image_grows_by_a_whole_factor_and_shrinks_to_its_means() -> None:
    pixels = np.array(
        [[[255, 0, 0], [0, 255, 0], [0, 0, 255]], [[1, 2, 3], [4, 5, 6], [7, 8, 9]]], np.uint8
    )
    cells = colours(PixelImage(pixels), 10, 4)
    assert [len(row) for row in cells] == [9, 9, 9], "three times as large: of 3 × 2 pixels 9 × 6"
    assert cells[0][0] == ((255, 0, 0), (255, 0, 0))
    assert cells[1][4] == ((0, 255, 0), (4, 5, 6))
    assert cells[2][8] == ((7, 8, 9), (7, 8, 9))
    pixels = np.zeros((200, 400, 3), np.uint8)
    pixels[:, ::2] = 100
    cells = colours(PixelImage(pixels), 50, 50)
    assert (len(cells), len(cells[0])) == (13, 50), "25 pixels are 12 cells and a half"
    assert cells[0][0] == ((50, 50, 50), (50, 50, 50))
    assert cells[-1][0] == ((50, 50, 50), tuple(SOLID))


def test_the_newest_of_each_name_are_kept_and_what_is_logged_at_once_is_one_event() -> None:
    held = MediaGallery()
    for it in range(MAX_KEPT_ENTRIES + 10):
        held.add(image(it))  # type: ignore[arg-type]
    held.add(text(105))  # type: ignore[arg-type]
    kept = held.of(("image", "rendered/ring"))
    assert [shown.record["it"] for shown in kept] == list(range(10, MAX_KEPT_ENTRIES + 10))
    assert held.find(0) is None
    held.forget_after(20)
    assert [shown.record["it"] for shown in held.of(("image", "rendered/ring"))] == list(
        range(10, 21)
    )
    assert held.keys == [("image", "rendered/ring")]
    state = RunState()
    for it in (100, 200):
        for k in range(20):
            state.apply(histogram(it, f"layer{k}.weight"))  # type: ignore[arg-type]
        state.apply(image(it))  # type: ignore[arg-type]
    entries = list(state.journal)
    expected = [
        (kind, it, more) for it in (100, 200) for kind, more in (("histogram", 19), ("image", 0))
    ]
    assert [(entry.kind, entry.it, entry.more) for entry in entries] == expected
    assert entries[0].text == '"layer0.weight": 9.6k values, -0.3100 … 0.4200, and 19 more'
    assert state.it == 0, "they come late: they do not say how far the run is"


@pytest.fixture
def logging(whole: RunDir) -> RunDir:
    """A run that has logged something."""
    records = [
        image(100),
        image(200),
        image(300, caption="a [bold] ring"),
        text(300),
        histogram(100),
        histogram(300),
    ]
    append(whole, records)
    for record in records[:3]:
        path = whole.path / record["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_png(ring(record["width"], record["height"])))
    return whole


def after(run: RunDir, *keys: str, size: Size = NORMAL) -> str:
    """Return the page after these keys, its images drawn."""
    texts: list[str] = []

    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "4", *keys)
        await app.workers.wait_for_complete()
        await settle(app, pilot)
        texts.append(
            "\n".join([screen_text(app), *(notice.message for notice in app._notifications)])
        )

    visit(run, look, size=size)
    return texts[0]


@pytest.mark.parametrize(("kind", "keys"), [("text", ["down"]), ("histogram", ["down", "down"])])
def test_the_page(
    logging: RunDir, monkeypatch: pytest.MonkeyPatch, kind: str, keys: list[str]
) -> None:
    # A header with this memory.
    monkeypatch.setattr(MonitorApp, "_read_sensors_if_due", lambda app: None)
    check_screens(f"media-{kind}", logging, "4", *keys)


def test_a_run_without_media_says_how_to_log_them(whole: RunDir) -> None:
    assert "run.log_image" in shown(
        whole, "4", "left_square_bracket", "b", "home", "end", "pagedown", "y"
    )


def test_keys_go_through_the_items_of_a_name(logging: RunDir) -> None:
    newest = after(logging)
    assert "iteration 300" in newest and "24×16" in newest and "a [bold] ring" in newest
    assert "3 of 3" in newest and "▀▀▀" in newest
    assert "iteration 200" in after(logging, "left_square_bracket")
    assert "iteration 100" in after(logging, "left", "left", "left", "left")
    assert "iteration 200" in after(logging, "home", "right_square_bracket")
    assert "iteration 300" in after(logging, "home", "end")


def test_the_newest_item_is_followed_until_an_earlier_one_is_chosen(logging: RunDir) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "4", "down", "down")
        append(logging, [histogram(400)])
        app.store.poll()
        await settle(app, pilot)
        assert "iteration 400" in screen_text(app)
        await press(app, pilot, "home")
        append(logging, [histogram(500)])
        app.store.poll()
        await settle(app, pilot)
        assert "iteration 100" in screen_text(app)

    visit(logging, do)


def test_names_are_walked_and_filtered(logging: RunDir) -> None:
    assert "It was the best of times" in after(logging, "j")
    assert "9.6k values" in after(logging, "down", "down")
    assert "24×16" in after(logging, "down", "k")
    filtered = after(logging, "slash", *"head", "enter")
    assert "9.6k values" in filtered and "rendered/ring" not in filtered
    assert "no name matches" in after(logging, "slash", *"nothing", "enter")


def test_earlier_images_stand_beside_the_chosen_one(logging: RunDir) -> None:
    beside = after(logging, "b", size=(120, 40))
    above_images = [line.replace("│", " ").split() for line in beside.splitlines()]
    assert ["100", "200", "300"] in [words[-3:] for words in above_images]
    narrow = [
        line.replace("│", " ").split()[-2:]
        for line in after(logging, "b", size=NORMAL).splitlines()
    ]
    assert ["200", "300"] in narrow, "there is room for two"
    assert "only images stand beside each other" in after(logging, "down", "b")


def test_an_image_that_is_gone_says_so(logging: RunDir) -> None:
    for path in logging.path.glob("images/rendered/ring/*.png"):
        path.unlink()
    assert "cannot be read: No such file" in after(logging)


def test_another_page_chooses_an_item(logging: RunDir) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        app.choices.media_number = 4  # the first histogram
        await press(app, pilot, "4")
        assert "head.weight" in screen_text(app) and "iteration 100" in screen_text(app)

    visit(logging, do)


def test_what_was_logged_cannot_move_the_cursor(whole: RunDir) -> None:
    append(whole, [text(301, "\x1b[2J\x1b]0;mine\x07red\r\x9b31m\u202e\x00")])
    append(whole, [image(302, name="\x1b[2Jevil", caption="a\x1b[2Jb")])
    for keys in ((), ("down",)):
        assert all(line.isprintable() for line in after(whole, *keys).splitlines())


@pytest.mark.parametrize("size", [(1, 1), (20, 6), (60, 15), (200, 60)])
def test_it_is_drawn_at_any_size(logging: RunDir, size: Size) -> None:
    for keys in (("b",), ("down",), ("down", "down")):
        after(logging, *keys, size=size)
