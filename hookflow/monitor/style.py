"""Colours by meaning, and styled text: for the widgets of Textual, and as rows of an exact width.

Every segment carries a style: Textual's filter for NO_COLOR fails on one that has none.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.strip import Strip
from textual.theme import Theme

from hookflow.text import make_printable

ThemeName = Literal["dark", "light", "colour-blind"]


class Palette(NamedTuple):
    """The ground, that of the row of the cursor, and the inks."""

    ground: str
    cursor: str
    inks: Mapping[str, str]


GROUND_COLOURS = (("#11151a", "#22384a"), ("#fbfbf9", "#d6e6f2"), ("#0d1117", "#24344f"))
INK_TABLE = {
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
    "error": (
        "bold underline #ff7a45",
        "bold underline #7d0012",
        "bold underline #0d1117 on #f2f5f8",
    ),
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
"""The inks of each meaning, by theme.

The dark ones are colours of Okabe and Ito. The light ones have the same hues, as dark as a light
ground wants them. The colour-blind ones are blue, yellow and white alone, of distinct lightness; no
meaning is in red or green.
"""


def _make_palette(place: int) -> Palette:
    """Return the palette in one column of the table."""
    ground, cursor = GROUND_COLOURS[place]
    return Palette(ground, cursor, {meaning: inks[place] for meaning, inks in INK_TABLE.items()})


THEME_PALETTES: Mapping[ThemeName, Palette] = {
    name: _make_palette(place) for place, name in enumerate(get_args(ThemeName))
}

PLAIN_INKS = THEME_PALETTES["dark"].inks
"""For plain lines, on the ground of the user's terminal."""

INK_STYLES: dict[str, Style] = {}
"""The same without a ground, for text in Textual's widgets.

These have their own ground, such as that of the cursor.
"""

STYLES: dict[str, Style] = {}
"""The styles of the theme in use, on its ground, by meaning.

"cursor" is the ground of the row at the cursor.
"""


def use(name: ThemeName) -> None:
    """Draw in a theme from now on."""
    theme = THEME_PALETTES[name]
    for meaning, style in theme.inks.items():
        has_ground = " on " in style
        STYLES[meaning] = Style.parse(style if has_ground else f"{style} on {theme.ground}")
        INK_STYLES[meaning] = Style.parse(style) if meaning else Style()
    STYLES["cursor"] = Style.parse(f"on {theme.cursor}")


def make_textual_theme(name: ThemeName) -> Theme:
    """Return a theme for Textual's own widgets, in the same colours."""
    palette = THEME_PALETTES[name]
    colours = {meaning: style.split()[-1] for meaning, style in palette.inks.items()}
    return Theme(
        name,
        primary=colours["focus"],
        secondary=colours["checkpoint"],
        warning=colours["warn"],
        error=colours["error"],
        success=colours["good"],
        accent=colours["focus"],
        foreground=colours[""],
        background=palette.ground,
        surface=palette.ground,
        panel=palette.ground,
        dark=name != "light",
        variables={
            "border": colours["border"],
            "border-blurred": colours["border"],
            "block-cursor-background": palette.cursor,
            "block-cursor-foreground": colours["picked"],
            "block-cursor-blurred-background": palette.cursor,
            "block-cursor-blurred-foreground": colours[""],
            "block-hover-background": palette.cursor,
            "footer-background": palette.ground,
            "footer-item-background": palette.ground,
            "footer-description-background": palette.ground,
            "footer-key-background": palette.ground,
            "footer-key-foreground": colours["strong"],
            "footer-description-foreground": colours["dim"],
            "text-muted": colours["dim"],
            "scrollbar": colours["border"],
            "scrollbar-background": palette.ground,
            "scrollbar-corner-color": palette.ground,
            "scrollbar-hover": colours["dim"],
            "scrollbar-active": colours["focus"],
            "scrollbar-background-hover": palette.ground,
            "scrollbar-background-active": palette.ground,
        },
    )


def parse_ground_colour() -> tuple[int, int, int]:
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

RUN_STYLES = ("train", "val", "checkpoint", "optimizer", "heat4", "hooks", "data", "strong")
"""The styles of runs beside one another."""

Part = str | tuple[str, str]
"""Text in the plain style, or text and the name of a style."""


def content_and_style(part: Part) -> tuple[str, str]:
    """Return the text of a part, and the name of its style."""
    if isinstance(part, str):
        return part, ""
    return part


def text_of(*parts: Part) -> Text:
    """Return parts as one text, for Textual's widgets."""
    text = Text(no_wrap=True)
    for part in parts:
        content, style = content_and_style(part)
        text.append(make_printable(content), INK_STYLES[style])
    return text


def row(width: int, *parts: Part, picked: bool = False) -> Strip:
    """Return the parts one after the other, filled up to `width` cells, or cut with an ellipsis.

    A `picked` row has the cursor.
    """
    segments = []
    used = 0
    for part in parts:
        content, style = content_and_style(part)
        if content:
            shown = make_printable(content)
            segments.append(Segment(shown, STYLES[style]))
            used += cell_len(shown)
    if used < width:
        segments.append(Segment(" " * (width - used), STYLES[""]))
    strip = Strip(segments, max(used, width))
    if used > width:
        strip = _cut(strip, width)
    if picked:
        strip = Strip(Segment.apply_style(strip, post_style=STYLES["cursor"]), width)
    return strip


def _cut(strip: Strip, width: int) -> Strip:
    """Return the first `width` cells of a longer strip.

    The last of them is an ellipsis unless what was there is blank.
    """
    cropped = strip.adjust_cell_length(width)
    if width <= 0 or cropped.text.isspace():
        return cropped
    return Strip([*strip.adjust_cell_length(width - 1), Segment("…", STYLES["dim"])], width)


def count_cells(*parts: Part) -> int:
    """Return the width of the parts."""
    return sum(cell_len(content_and_style(part)[0]) for part in parts)


def join_ends(width: int, left: Sequence[Part], right: Sequence[Part]) -> Strip:
    """Return a row with one group of parts at each end.

    The right one is kept when both do not fit.
    """
    right_width = min(count_cells(*right), width)
    return Strip.join([row(width - right_width, *left), row(right_width, *right)])


def bar(width: int, share: float) -> list[Part]:
    """Return a bar of `width` cells, so much of it full."""
    done = round(min(max(share, 0.0), 1.0) * width)
    return [("━" * done, "bar"), ("╌" * (width - done), "rest")]


SPARK_BLOCKS = "▁▂▃▄▅▆▇█"
