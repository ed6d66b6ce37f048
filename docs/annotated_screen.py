"""Draws numbers into the screenshot of the dashboard, and makes the table that says what they mean.

`make_screenshot.py` makes the screenshot, `dashboard.svg`. Each number is placed by a text of the
screen, so that a new screenshot needs no new coordinates.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from markdown_tables import table

FOLDER = Path(__file__).parent
SCREENSHOT = FOLDER / "dashboard.svg"
ANNOTATED = FOLDER / "dashboard-annotated.svg"
TEXT = re.compile(
    r'<text class="[^"]*" x="([\d.]+)" y="([\d.]+)" textLength="([\d.]+)"[^>]*>([^<]*)</text>'
)
VIEW = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')
SCREEN = re.compile(r'<g transform="translate\(([\d.]+), ([\d.]+)\)" clip-path')
"""Where the screen lies in the picture of the window."""

RADIUS = 11
CELL = 12.2
ROW = 24.4
MARGIN = 40
"""Pixels: of a circle, of a character's width, of a line, and beside the window."""


@dataclass(frozen=True)
class Annotation:
    """A place of the screen, found by the first text that matches, and what is to be seen there."""

    pattern: str
    meaning: str
    side: Literal["above", "after", "left margin", "right margin"]
    """Where the number stands, so that it hides nothing."""


ANNOTATIONS = (
    Annotation(
        r"^● \w+$", "How the run is: running, paused, stalled, finished, failed, …", "above"
    ),
    Annotation(
        r"^loss [\d.]",
        "The loss with its trend; the first metric that a hook monitors, with its best.",
        "above",
    ),
    Annotation(
        r"^ETA ", "The time left, as a range. Beside it: synthetic data, limits, warnings.", "above"
    ),
    Annotation(r"^ ?LIVE ?$", "Live, frozen, or a replay.", "above"),
    Annotation(r"^ ?iteration +\d", "Progress, speed and machine.", "left margin"),
    Annotation(r"data +[\d.]+ %", "What the time of an iteration goes to.", "left margin"),
    Annotation(r"-bound", "What the training mostly waits for.", "right margin"),
    Annotation(r"^ ?1 Overview", "The pages, with their keys.", "left margin"),
    Annotation(r"^ ?loss  [\d.]", "Curves: `◇` is a validation, `◆` a checkpoint.", "after"),
    Annotation(
        r"hooks by ",
        "The hooks, a row for each point; `o` switches between cost and order.",
        "after",
    ),
    Annotation(
        r"^ *mean ?$", "Time of a call in the last 60 seconds: mean and 95th percentile.", "above"
    ),
    Annotation(
        r"^ *share", "The share of the time in iterations; `·` is called outside of them.", "above"
    ),
    Annotation(r"^trend", "The trend of the mean; `3.1× slower` stands here, too.", "above"),
    Annotation(r"runs at ", "Why the hook at the cursor runs where it does.", "after"),
    Annotation(r"^it0", "The newest events.", "left margin"),
    Annotation(
        r"^ ?filter$",
        "Keys of this page; `?` has all of them, `:` every action by its name.",
        "left margin",
    ),
)


def annotated_screen() -> str:
    """Return the screenshot with a numbered circle at each annotation, in a wider picture."""
    screenshot = SCREENSHOT.read_text("utf-8")
    view, screen = VIEW.search(screenshot), SCREEN.search(screenshot)
    assert view is not None and screen is not None
    width = float(view[1])
    circles = []
    for number, annotation in enumerate(ANNOTATIONS, start=1):
        x, y = _centre_of(annotation, screenshot, width)
        circles.append(_circle(number, x, y))
    wider = f'viewBox="{-MARGIN} 0 {width + 2 * MARGIN:g} {view[2]}"'
    drawn = "\n".join(
        [f'<g transform="translate({screen[1]}, {screen[2]})">', *circles, "</g>", "</svg>"]
    )
    return screenshot.replace(view[0], wider, 1).replace("</svg>", drawn)


def _centre_of(annotation: Annotation, screenshot: str, width: float) -> tuple[float, float]:
    """Return the centre of a number's circle, in pixels of the screen;
    raise LookupError if no text matches.
    """
    for match in TEXT.finditer(screenshot):
        text = html.unescape(match[4]).replace("\N{NO-BREAK SPACE}", " ")
        if not re.search(annotation.pattern, text):
            continue
        begin, end = float(match[1]), float(match[1]) + float(match[3])
        begin += CELL * (len(text) - len(text.lstrip()))
        middle = float(match[2]) - 6
        if annotation.side == "above":
            return (begin + end) / 2, middle - ROW
        if annotation.side == "after":
            return end + RADIUS, middle
        if annotation.side == "left margin":
            return -MARGIN / 2 - 9, middle
        return width + MARGIN / 2 - 9, middle
    raise LookupError(f"no text of {SCREENSHOT.name} matches {annotation.pattern!r}")


def _circle(number: int, x: float, y: float) -> str:
    circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}" fill="#ffd43b" stroke="#11151a" />'
    label = (
        f'<text x="{x:.1f}" y="{y + 5:.1f}" font-family="arial" font-size="14" font-weight="bold" '
        f'text-anchor="middle" fill="#11151a">{number}</text>'
    )
    return circle + label


def annotation_table() -> str:
    """Return what the numbers mean, as a table."""
    rows = [
        (str(number), annotation.meaning) for number, annotation in enumerate(ANNOTATIONS, start=1)
    ]
    return table(("", "what it shows"), rows)
