"""Images, histograms and texts that hooks have logged: one image, text or histogram, and the names of all."""

from collections.abc import Sequence
from functools import partial

from textual.strip import Strip

from hookflow.events.records import Histogram
from hookflow.monitor.charts import Pixels, half_blocks, ticks
from hookflow.monitor.journal import GLYPHS, Shown, extent
from hookflow.monitor.panels.events import STYLES as MARKED
from hookflow.monitor.style import SPARKS, STYLES, Part, beside, boxed, empty, filled, row, window
from hookflow.monitor.view import Action, Notice, Page, Scene
from hookflow.numbers import many
from hookflow.text import ESCAPE, fit_name, printable, wrapped

NAMES = 28
"""Cells for the names of all, where there is room."""

TILE = 24
"""Cells that an image beside others has at least."""


def gallery(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the page, with the names beside what is looked at where there is room for them."""
    shown = scene.shown
    if shown is None:
        message = "no image, text or histogram has been logged: call run.log_image, run.log_text or run.log_histogram"
        return empty("images, texts, histograms", message, width, height)
    record = shown.record
    inner, room = _room(width), max(height - 4, 0)
    wide = inner + 2
    facts: list[Part] = [(" iteration ", "dim"), (str(record["it"]), "strong")]
    facts.append((f"   {extent(record)}   {record['hook']}", "dim"))
    match record["k"]:
        case "text":
            texts = (printable(ESCAPE.sub("", line)) for line in record["text"].splitlines())
            lines = [row(inner, f" {line}") for text in texts for line in wrapped(text, max(inner - 2, 2))]
            lines = lines[min(scene.view.scroll, max(len(lines) - room, 0)) :]
        case "histogram":
            lines = _histogram(record, inner, room)
        case "image":
            facts.append(f"   {record['caption']}" * bool(record["caption"]))
            lines = _tiles(scene, beside_each_other(scene, width), inner, room)
    held = scene.state.gallery.of((record["k"], record["name"]))
    place = f"[ ] {held.index(shown) + 1} of {len(held)}" if len(held) > 1 else ""
    if len(held) > 1 and record["k"] == "image":
        place += "  b large" if scene.view.beside else "  b beside each other"
    heading = f"{GLYPHS[record['k']]} {printable(record['name'])}"
    page = boxed(heading, [row(inner, *facts), row(inner), *lines], wide, height, True, place)
    return page if wide == width else beside(_names(scene, NAMES, height), page)


def beside_each_other(scene: Scene, width: int) -> list[Shown]:
    """Return the images that are looked at on a screen so wide: one, or with it those before it, oldest first."""
    shown = scene.shown
    if scene.logged is None or shown is None or shown.record["k"] != "image":
        return []
    held = scene.state.gallery.of(scene.logged)
    count, at = _room(width) // TILE if scene.view.beside else 1, held.index(shown)
    return held[max(at + 1 - max(count, 1), 0) : at + 1]


def _room(width: int) -> int:
    """Return the cells inside the box of what is looked at."""
    return (width - NAMES if width >= 76 else width) - 2


def _tiles(scene: Scene, tiles: Sequence[Shown], width: int, height: int) -> list[Strip]:
    """Return the image, or several side by side, each below its iteration."""
    if len(tiles) == 1:
        return _image(scene.images.get(tiles[0].number, ""), width, height)
    wide, columns = width // len(tiles), []
    for shown in tiles:
        label: Part = (f"{shown.record['it']:^{wide}}", "strong" if shown is tiles[-1] else "dim")
        image = _image(scene.images.get(shown.number, ""), wide, height - 1)
        columns.append([row(wide, label), *filled(image, wide, height - 1)])
    return beside(*columns)


def _image(image: Pixels | str, width: int, height: int) -> list[Strip]:
    if isinstance(image, str):
        return [row(width, (f" {image}", "warn"))]
    if width < 3 or not height:
        return []
    drawn = half_blocks(image, width - 2, height)
    left = (width - drawn[0].cell_length) // 2
    return [Strip.join([row(left), line]).adjust_cell_length(width, STYLES[""]) for line in drawn]


def _names(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return a box with every name and how many there are of it; the one that is looked at stands out."""
    keys = scene.state.gallery.keys
    at = keys.index(scene.logged) if scene.logged else 0
    part = window(len(keys), max(height - 2, 0), at)
    lines = []
    for key in keys[part]:
        count, picked = f" {len(scene.state.gallery.of(key))}", key == scene.logged
        parts: list[Part] = [("▸" if picked else " ", "focus"), (f"{GLYPHS[key[0]]} ", MARKED[key[0]])]
        parts += [(fit_name(key[1], width - 6 - len(count)), "picked" if picked else ""), (count, "dim")]
        lines.append(row(width - 2, *parts, picked=picked))
    return boxed("logged", lines, width, height)


def _histogram(record: Histogram, width: int, height: int) -> list[Strip]:
    """Return a bar for each bin, with the edges of the first and the last, and the one in the middle."""
    room = width - 2 - LABEL
    if room < 4 or height < 3 or not record["counts"]:
        return []
    step = -(-len(record["counts"]) // room)  # neighbours are joined until there is room for each
    counts = [sum(record["counts"][k : k + step]) for k in range(0, len(record["counts"]), step)]
    edges = record["edges"]
    wide = min(room // len(counts), 6)
    gap = 1 if wide > 2 else 0
    rows, most = height - 2, max([*counts, 1])
    lines = []
    for y in range(rows):
        label = many(most) if y == 0 else "0" if y == rows - 1 else ""
        bars = "".join(_cell(count / most * rows * 8, rows - 1 - y) * (wide - gap) + " " * gap for count in counts)
        lines.append(row(width, (f"{label:>{LABEL}} ", "dim"), (bars, "train")))
    across = wide * len(counts)
    lines.append(row(width, " " * (LABEL + 1), ("─" * across, "rest")))
    left, middle, right = ticks([edges[0], (edges[0] + edges[-1]) / 2, edges[-1]], 9)
    gap = max(across - len(left) - len(middle) - len(right), 2)
    summary = f"{left}{' ' * (gap // 2)}{middle}{' ' * (gap - gap // 2)}{right}"
    return [*lines, row(width, " " * (LABEL + 1), (summary, "dim"))]


LABEL = 6
"""Cells for the numbers at the left of a histogram."""


def _cell(eighths: float, above: int) -> str:
    """Return what a bar of so many eighths of a row shows of itself in a row, so many rows above the lowest."""
    least = 1 if eighths and not above else 0  # never quite nothing
    filled = min(max(round(eighths) - 8 * above, least), 8)
    return SPARKS[filled - 1] if filled else " "


def _turn_name(step: int, scene: Scene) -> None:
    view, keys = scene.view, scene.state.gallery.keys
    if scene.logged is not None:
        view.logged, view.shown, view.scroll = keys[(keys.index(scene.logged) + step) % len(keys)], None, 0


def _turn_iteration(step: int, scene: Scene) -> None:
    """Go to an earlier or later item of the name; from the last one on it follows the newest."""
    if scene.logged is not None and scene.shown is not None:
        held = scene.state.gallery.of(scene.logged)
        place = min(max(held.index(scene.shown) + step, 0), len(held) - 1)
        scene.view.shown = held[place].number if place < len(held) - 1 else None
        scene.view.scroll = 0


def _turn_beside(scene: Scene) -> Notice | None:
    if scene.shown is None or scene.shown.record["k"] != "image":
        return Notice("only images stand beside each other")
    scene.view.beside = not scene.view.beside
    return None


def _hints(scene: Scene) -> list[tuple[str, str]]:
    if scene.shown is None:
        return []
    scrolls = scene.shown.record["k"] == "text"
    hints = [("previous-name next-name", "name"), ("earlier-item later-item", "iteration")]
    return [*hints, *[("page-up page-down", "scroll")] * scrolls]


GALLERY = Page(
    "gallery",
    gallery,
    "i",
    "images, texts and histograms that were logged",
    actions=(
        Action("previous-name", "up k", "to the name before, and to the next", partial(_turn_name, -1)),
        Action("next-name", "down j", "to the name before, and to the next", partial(_turn_name, 1)),
        Action("earlier-item", "[ left", "to the iteration before, and to the next", partial(_turn_iteration, -1)),
        Action("later-item", "] right", "to the iteration before, and to the next", partial(_turn_iteration, 1)),
        Action("first-item", "home", "to the first iteration, to the newest", partial(_turn_iteration, -(10**6))),
        Action("newest-item", "end", "to the first iteration, to the newest", partial(_turn_iteration, 10**6)),
        Action("beside", "b", "earlier images beside this one, and it alone", _turn_beside),
    ),
    hints=_hints,
)
