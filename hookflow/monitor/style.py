"""Styled rows of an exact width, boxes around them, and rows side by side.

Every segment carries a style: Textual's filter for NO_COLOR fails on one that has none.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from hookflow.text import cut, fit, printable, wrapped

ThemeName = Literal["dark", "light", "colour-blind"]


class Theme(NamedTuple):
    """The ground, that of the row of the cursor, and the inks."""

    ground: str
    cursor: str
    inks: Mapping[str, str]


GROUNDS = (("#11151a", "#22384a"), ("#fbfbf9", "#d6e6f2"), ("#0d1117", "#24344f"))
TABLE = {
    "": ("#c6cdd5", "#2b3138", "#d3d6da"),
    "dim": ("#7d8894", "#5b646e", "#8b929b"),
    "faint": ("#4a535d", "#9aa2aa", "#4d535c"),
    "strong": ("bold #f2f5f8", "bold #000000", "bold #ffffff"),
    "border": ("#38414b", "#c4cad0", "#3a414b"),
    "focus": ("#56b4e9", "#0072b2", "#6aa8ff"),
    "title": ("#98a4b0", "#4c555e", "#a2a9b3"),
    "picked": ("bold #ffffff", "bold #000000", "bold #ffffff"),
    "good": ("bold #3fc59b", "bold #00705a", "bold #6aa8ff"),
    "warn": ("bold #e69f00", "bold #925b00", "bold #ffd60a"),
    "error": ("bold underline #ff7a45", "bold underline #7d0012", "bold underline #0d1117 on #f2f5f8"),
    "alarm": ("bold #11151a on #e69f00", "bold #ffffff on #a34f00", "bold #0d1117 on #ffd60a"),
    "badge": ("bold #11151a on #56b4e9", "bold #ffffff on #0072b2", "bold #0d1117 on #6aa8ff"),
    "command": ("#56b4e9", "#0072b2", "#6aa8ff"),
    "checkpoint": ("#cc79a7", "#9c3d76", "#ffffff"),
    "train": ("#56b4e9", "#0072b2", "#6aa8ff"),
    "val": ("#e69f00", "#a85800", "#ffd60a"),
    "bar": ("#56b4e9", "#0072b2", "#6aa8ff"),
    "rest": ("#38414b", "#c4cad0", "#3a414b"),
    "edge": ("#7d94a8", "#5a7186", "#8b9bb0"),
    "data": ("#e69f00", "#a85800", "#ffd60a"),
    "forward": ("#56b4e9", "#0072b2", "#3d7be0"),
    "backward": ("#2f86c5", "#004f7c", "#9dc4ff"),
    "optimizer": ("#2aa883", "#00785a", "#a88c00"),
    "hooks": ("#cc79a7", "#9c3d76", "#ffffff"),
    "other": ("#6b7680", "#6b7680", "#6b7280"),
    "heat1": ("#31566e", "#8fbbd6", "#3a4a75"),
    "heat2": ("#3f7ea3", "#4f97c4", "#6f7480"),
    "heat3": ("#56b4e9", "#0072b2", "#b3a66b"),
    "heat4": ("#f0e442", "#a34f00", "#ffe14d"),
}
"""The inks of each meaning, by theme. Dark: colours of Okabe and Ito. Light: the same hues, as dark as a light ground
wants them. Colour-blind: blue, yellow and white alone, of distinct lightness; no meaning is in red or green."""

THEMES: Mapping[ThemeName, Theme] = {
    name: Theme(*grounds, {meaning: inks[place] for meaning, inks in TABLE.items()})
    for place, (name, grounds) in enumerate(zip(get_args(ThemeName), GROUNDS, strict=True))
}

INKS = THEMES["dark"].inks
"""For plain lines, on the ground of the user's terminal."""

STYLES: dict[str, Style] = {}
"""The styles of the theme in use, on its ground, by meaning; "cursor" is the ground of the row at the cursor."""


def use(name: ThemeName) -> None:
    """Draw in a theme from now on."""
    theme = THEMES[name]
    for meaning, style in theme.inks.items():
        STYLES[meaning] = Style.parse(style if " on " in style else f"{style} on {theme.ground}")
    STYLES["cursor"] = Style.parse(f"on {theme.cursor}")


def ground_colour() -> tuple[int, int, int]:
    """Return the red, green and blue of the ground, each from 0 to 255."""
    colour = STYLES[""].bgcolor
    assert colour is not None
    return colour.get_truecolor()


use("dark")

CONDITION_STYLES = {
    **dict.fromkeys(("running", "finished"), "good"),
    **dict.fromkeys(("stalled", "lost"), "alarm"),
    **dict.fromkeys(("failed", "refused", "unreadable"), "error"),
}
"""The style of a condition, where it is no warning."""

SIDES = ("train", "val", "checkpoint", "optimizer", "heat4", "hooks", "data", "strong")
"""The styles of runs beside one another."""

Part = str | tuple[str, str]
"""Text in the plain style, or text and the name of a style."""


def row(width: int, *parts: Part, picked: bool = False) -> Strip:
    """Return the parts one after the other, filled up to `width` cells, or cut with an ellipsis.

    A `picked` row has the cursor.
    """
    segments, left = [], width
    for part in parts:
        text, style = (part, "") if isinstance(part, str) else part
        if text:
            segments.append(Segment(text := printable(text), STYLES[style]))
            left -= cell_len(text)
    if left > 0:
        segments.append(Segment(" " * left, STYLES[""]))
    strip = Strip(segments, width - min(left, 0))
    is_cut = left < 0 < width and not strip.crop(width).text.isspace()
    strip = strip.adjust_cell_length(width - is_cut)
    if is_cut:
        strip = Strip([*strip, Segment("…", STYLES["dim"])], width)
    return Strip(Segment.apply_style(strip, post_style=STYLES["cursor"]), width) if picked else strip


def cells(*parts: Part) -> int:
    """Return the width of the parts."""
    return sum(cell_len(part if isinstance(part, str) else part[0]) for part in parts)


def spread(width: int, left: Sequence[Part], right: Sequence[Part]) -> Strip:
    """Return a row with one group of parts at each end; the right one is kept when both do not fit."""
    wide = cells(*right)
    return Strip.join([row(max(width - wide, 0), *left), row(min(wide, width), *right)])


def beside(*columns: Sequence[Strip]) -> list[Strip]:
    """Return blocks of equal height as one."""
    return [Strip.join(strips) for strips in zip(*columns, strict=True)]


def boxed(
    title: str, lines: Sequence[Strip], width: int, height: int, focused: bool = False, hint: str = ""
) -> list[Strip]:
    """Return the lines in a box of the given outer size; a heavy one when it is focused.

    Parts of the hint, apart by two spaces, are left out from the last one on until it fits.
    """
    edge = "focus" if focused else "border"
    h, v, corners = ("━", "┃", "┏┓┗┛") if focused else ("─", "│", "╭╮╰╯")
    inner = width - 2
    title = cut(title, inner - 4)
    while hint and cell_len(hint) + cell_len(title) + 9 > inner:
        hint = hint.rpartition("  ")[0].rstrip()
    hint = f" {hint} " * bool(hint)
    line = h * max(inner - cell_len(title) - cell_len(hint) - 4, 0)
    heading: list[Part] = [(f"{corners[0]}{h} ", edge), (title, "strong" if focused else "title"), (f" {line}", edge)]
    top = row(width, *heading, (hint, "dim"), (f"{h}{corners[1]}", edge))
    side = Segment(v, STYLES[edge])
    body = [Strip([side, *line, side], width) for line in filled(lines, inner, max(height - 2, 0))]
    return [top, *body, row(width, (corners[2] + h * inner + corners[3], edge))][:height]


def empty(title: str, why: str, width: int, height: int, focused: bool = True) -> list[Strip]:
    """Return a box that says why it has nothing to show."""
    lines = [row(width - 2, (f" {line}", "dim")) for line in wrapped(why, max(width - 4, 1))]
    return boxed(title, lines, width, height, focused, "esc back" * focused)


def scrolled(title: str, lines: Sequence[Strip], width: int, height: int, scroll: int) -> list[Strip]:
    """Return lines in a box, from the line `scroll` on; it ends with the last one."""
    first = min(scroll, max(len(lines) - (height - 2), 0))
    more = len(lines) - first - (height - 2)
    return boxed(title, lines[first:], width, height, True, f"↓ {more} more" if more > 0 else "esc back")


def definition(width: int, name: str, text: str, column: int, style: str = "dim") -> list[Strip]:
    """Return a name, and its text from cell `column` on, in as many rows as its words take."""
    lines = wrapped(text, max(width - column - 1, 10))
    return [row(width, (fit(name if not place else "", column), style), line) for place, line in enumerate(lines)]


def filled(lines: Sequence[Strip], width: int, height: int) -> list[Strip]:
    """Return exactly `height` rows of exactly `width` cells."""
    shown = [line.adjust_cell_length(width, STYLES[""]) for line in lines[:height]]
    return [*shown, *(row(width) for _ in range(height - len(shown)))]


def window(count: int, height: int, picked: int) -> slice:
    """Return which of `count` rows to show in `height` so that the picked one is among them, near the middle."""
    first = min(max(picked - height // 2, 0), max(count - height, 0))
    return slice(first, first + height)


def bar(width: int, share: float) -> list[Part]:
    done = round(min(max(share, 0.0), 1.0) * width)
    return [("━" * done, "bar"), ("╌" * (width - done), "rest")]


SPARKS = "▁▂▃▄▅▆▇█"
