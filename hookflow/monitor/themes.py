"""The themes: styles by meaning, in the syntax of Rich, on the ground of the screen.

Each theme's colours can be told apart by the colour-blind; whatever a colour says, a character says too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

ThemeName = Literal["dark", "light", "colour-blind"]


class Theme(NamedTuple):
    """The ground, that of the row of the cursor, and the inks."""

    ground: str
    cursor: str
    inks: Mapping[str, str]


DARK = Theme(
    "#11151a",
    "#22384a",
    {
        "": "#c6cdd5",
        "dim": "#7d8894",
        "faint": "#4a535d",
        "strong": "bold #f2f5f8",
        "border": "#38414b",
        "focus": "#56b4e9",
        "title": "#98a4b0",
        "picked": "bold #ffffff",
        "good": "bold #3fc59b",
        "warn": "bold #e69f00",
        "error": "bold underline #ff7a45",
        "alarm": "bold #11151a on #e69f00",
        "badge": "bold #11151a on #56b4e9",
        "command": "#56b4e9",
        "checkpoint": "#cc79a7",
        "train": "#56b4e9",
        "val": "#e69f00",
        "bar": "#56b4e9",
        "rest": "#38414b",
        "edge": "#7d94a8",
        "data": "#e69f00",
        "forward": "#56b4e9",
        "backward": "#2f86c5",
        "optimizer": "#2aa883",
        "hooks": "#cc79a7",
        "other": "#6b7680",
        "heat1": "#31566e",
        "heat2": "#3f7ea3",
        "heat3": "#56b4e9",
        "heat4": "#f0e442",
    },
)
"""Colours of Okabe and Ito."""

LIGHT = Theme(
    "#fbfbf9",
    "#d6e6f2",
    {
        "": "#2b3138",
        "dim": "#5b646e",
        "faint": "#9aa2aa",
        "strong": "bold #000000",
        "border": "#c4cad0",
        "focus": "#0072b2",
        "title": "#4c555e",
        "picked": "bold #000000",
        "good": "bold #00705a",
        "warn": "bold #925b00",
        "error": "bold underline #7d0012",
        "alarm": "bold #ffffff on #a34f00",
        "badge": "bold #ffffff on #0072b2",
        "command": "#0072b2",
        "checkpoint": "#9c3d76",
        "train": "#0072b2",
        "val": "#a85800",
        "bar": "#0072b2",
        "rest": "#c4cad0",
        "edge": "#5a7186",
        "data": "#a85800",
        "forward": "#0072b2",
        "backward": "#004f7c",
        "optimizer": "#00785a",
        "hooks": "#9c3d76",
        "other": "#6b7680",
        "heat1": "#8fbbd6",
        "heat2": "#4f97c4",
        "heat3": "#0072b2",
        "heat4": "#a34f00",
    },
)
"""The same hues, as dark as a light ground wants them."""

COLOUR_BLIND = Theme(
    "#0d1117",
    "#24344f",
    {
        "": "#d3d6da",
        "dim": "#8b929b",
        "faint": "#4d535c",
        "strong": "bold #ffffff",
        "border": "#3a414b",
        "focus": "#6aa8ff",
        "title": "#a2a9b3",
        "picked": "bold #ffffff",
        "good": "bold #6aa8ff",
        "warn": "bold #ffd60a",
        "error": "bold underline #0d1117 on #f2f5f8",
        "alarm": "bold #0d1117 on #ffd60a",
        "badge": "bold #0d1117 on #6aa8ff",
        "command": "#6aa8ff",
        "checkpoint": "#ffffff",
        "train": "#6aa8ff",
        "val": "#ffd60a",
        "bar": "#6aa8ff",
        "rest": "#3a414b",
        "edge": "#8b9bb0",
        "data": "#ffd60a",
        "forward": "#3d7be0",
        "backward": "#9dc4ff",
        "optimizer": "#a88c00",
        "hooks": "#ffffff",
        "other": "#6b7280",
        "heat1": "#3a4a75",
        "heat2": "#6f7480",
        "heat3": "#b3a66b",
        "heat4": "#ffe14d",
    },
)
"""Blue, yellow and white alone, of distinct lightness: no meaning is in red or green."""

THEMES: Mapping[ThemeName, Theme] = dict(zip(get_args(ThemeName), (DARK, LIGHT, COLOUR_BLIND), strict=True))
