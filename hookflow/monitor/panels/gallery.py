"""Images, histograms and texts that hooks have logged: one image, text or histogram, and the names of all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from textual.strip import Strip

from hookflow.events.records import Histogram, Text
from hookflow.monitor.charts import Pixels, half_blocks, ticks
from hookflow.monitor.journal import GLYPHS, Logged, extent
from hookflow.monitor.panels.events import STYLES as MARKED
from hookflow.monitor.style import SPARKS, STYLES, Part, beside, boxed, highlighted, row, window
from hookflow.monitor.view import Scene
from hookflow.numbers import many
from hookflow.text import ESCAPE, fit, printable, wrapped

NAMES = 28
"""Cells for the names of all, where there is room."""


def gallery(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the page, with the names beside what is looked at where there is room for them."""
    shown = scene.shown
    if shown is None:
        message = "nothing has been logged to look at: run.log_image, run.log_text and run.log_histogram do"
        lines = [row(width - 2, f" {line}") for line in wrapped(message, width - 4)]
        return boxed("images, texts, histograms", lines, width, height, True, "esc back")
    record = shown.record
    wide = width - NAMES if width >= 76 else width
    held = scene.state.gallery.of((record["k"], record["name"]))
    place = f"[ ] {held.index(shown) + 1} of {len(held)}" if len(held) > 1 else ""
    room = max(height - 2, 0)
    lines = [_facts(record, wide - 2), row(wide - 2), *_content(scene, record, wide - 2, max(room - 2, 0))]
    page = boxed(f"{GLYPHS[record['k']]} {printable(record['name'])}", lines, wide, height, True, place)
    return page if wide == width else beside(_names(scene, NAMES, height), page)


def _names(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return a box with every name and how many there are of it; the one that is looked at stands out."""
    keys = scene.state.gallery.keys
    at = keys.index(scene.logged) if scene.logged else 0
    part = window(len(keys), max(height - 2, 0), at)
    lines = []
    for key in keys[part]:
        kind, name = key
        count = str(len(scene.state.gallery.of(key)))
        picked = key == scene.logged
        glyph = ("▸" if picked else " ", "focus"), (f"{GLYPHS[kind]} ", MARKED[kind])
        parts: list[Part] = [
            *glyph,
            (fit(name, width - 7 - len(count)), "picked" if picked else ""),
            (f" {count}", "dim"),
        ]
        line = row(width - 2, *parts)
        lines.append(highlighted(line) if picked else line)
    return boxed("logged", lines, width, height)


def _facts(record: Logged, width: int) -> Strip:
    """Return when it was logged, by whom, and what is known of it."""
    parts: list[Part] = [
        (" iteration ", "dim"),
        (str(record["it"]), "strong"),
        (f"   {extent(record)}   {record['hook']}", "dim"),
    ]
    if record["k"] == "image" and record["caption"]:
        parts.append(f"   {record['caption']}")
    return row(width, *parts)


def _content(scene: Scene, record: Logged, width: int, height: int) -> list[Strip]:
    match record["k"]:
        case "text":
            lines = _text(record, width)
            first = min(scene.view.scroll, max(len(lines) - height, 0))
            return lines[first:]
        case "histogram":
            return _histogram(record, width, height)
    return _image(scene.image, width, height)


def _image(image: Pixels | str, width: int, height: int) -> list[Strip]:
    """Return the image in the middle, or why there is none."""
    if isinstance(image, str):
        return [row(width, (f" {image}", "warn"))]
    if width < 3 or not height:
        return []
    drawn = half_blocks(image, width - 2, height)
    left = (width - drawn[0].cell_length) // 2
    return [Strip.join([row(left), line]).adjust_cell_length(width, STYLES[""]) for line in drawn]


def _text(record: Text, width: int) -> list[Strip]:
    """Return the text as it stands, its long lines wrapped."""
    room = max(width - 2, 2)
    lines = []
    for line in record["text"].splitlines():
        lines += wrapped(printable(ESCAPE.sub("", line)), room)
    return [row(width, f" {line}") for line in lines]


def _histogram(record: Histogram, width: int, height: int) -> list[Strip]:
    """Return a bar for each bin, with the edges of the first and the last, and the one in the middle."""
    room = width - 2 - LABEL
    if room < 4 or height < 3 or not record["counts"]:
        return []
    counts, edges = _merged(record["counts"], record["edges"], room)
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
    filled = min(max(round(eighths) - 8 * above, 0), 8)
    if not filled and eighths and not above:
        filled = 1  # never quite nothing
    return SPARKS[filled - 1] if filled else " "


def _merged(counts: Sequence[int], edges: Sequence[float], room: int) -> tuple[list[int], list[float]]:
    """Return the bins, neighbours joined until there is room for each."""
    step = -(-len(counts) // room)
    firsts = range(0, len(counts), step)
    bounds = [*firsts, len(counts)]
    return [sum(counts[a:b]) for a, b in pairwise(bounds)], [edges[k] for k in bounds]
