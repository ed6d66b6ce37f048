"""The layout of the panels, for a terminal of any size. Pure functions from a scene and a size to rows."""

from __future__ import annotations

from collections.abc import Callable

from textual.strip import Strip

from hookflow.monitor.panels.detail import detail
from hookflow.monitor.panels.events import events, output
from hookflow.monitor.panels.events import lines as event_lines
from hookflow.monitor.panels.frame import footer, help_page, over, progress, title
from hookflow.monitor.panels.gallery import gallery
from hookflow.monitor.panels.hooks import anatomy, anatomy_lines, hooks, point_list, slowest
from hookflow.monitor.panels.metrics import metrics, strips
from hookflow.monitor.panels.ranks import line as ranks_line
from hookflow.monitor.panels.ranks import ranks
from hookflow.monitor.panels.system import system
from hookflow.monitor.style import beside, boxed, filled, row
from hookflow.monitor.view import RANKS, Scene, charts

AROUND = 3
"""Rows above and below the body: title, progress, footer."""

LEAST_WITH_RANKS = 11
"""Rows that the middle of a medium screen must have, for the ranks to have a box in it and not just a line."""

Panel = Callable[[Scene, int, int], list[Strip]]

PANELS: dict[int, Panel] = {1: point_list, 2: hooks, 3: metrics, 4: system, 5: events, 6: ranks}


def screen(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return exactly `height` rows of exactly `width` cells."""
    top = [title(scene, width), progress(scene, width)]
    room = height - AROUND
    body = filled(_body(scene, width, room) if room > 0 else [], width, max(room, 0))
    rows = filled([*top, *body][: height - 1], width, height - 1)
    rows = [*rows, footer(scene, width)]
    return filled(over(rows, scene, width), width, height) if scene.view.asking else rows


def _body(scene: Scene, width: int, height: int) -> list[Strip]:
    view = scene.view
    if view.page == "help":
        return help_page(scene, width, height)
    if view.page == "output":
        return output(scene, width, height)
    if view.page == "gallery":
        return gallery(scene, width, height)
    if view.page != "main":
        return detail(scene, width, height)
    if view.zoomed:
        return PANELS[view.focus](scene, width, height)
    return {"large": _large, "medium": _medium, "small": _small}[_size(width, height)](scene, width, height)


def _size(width: int, height: int) -> str:
    """Return how much of the dashboard a body of this size has room for."""
    if width >= 100 and height >= 27:
        return "large"
    return "medium" if width >= 76 and height >= 18 else "small"


def visible(width: int, height: int, *, several: bool = False) -> tuple[int, ...]:
    """Return the panels that a terminal of this size shows side by side; each of the others fills it alone.

    `several` ranks have a panel of their own.
    """
    room = height - AROUND
    size = _size(width, room)
    shown = {"large": (1, 2, 3, 4, 5), "medium": (1, 2, 5), "small": ()}[size]
    fits = {"large": _room_for_ranks(room) > 0, "medium": _middle(room) >= LEAST_WITH_RANKS, "small": False}[size]
    return (*shown, RANKS) if several and fits else shown


def _large(scene: Scene, width: int, height: int) -> list[Strip]:
    bottom = _bottom(height)
    team = _team(scene, width, min(_room_for_ranks(height), scene.state.ranks.world + 3))
    middle = height - 4 - bottom - len(team)
    left = 50 if width < 150 else min(width // 3, 74)
    right = width - left
    tall = min(max(len(scene.plan.at(scene.point)) + 3, 6), middle - 9)
    listed = min(len(scene.shown_points) + 3, middle)
    spare = middle - listed if middle - listed >= 5 else 0
    costly = boxed("costliest of all points", slowest(scene, left - 2, spare - 2), left, spare) if spare else []
    return [
        *anatomy(scene, width),
        *team,
        *beside(
            [*point_list(scene, left, middle - spare), *costly],
            [*hooks(scene, right, tall), *metrics(scene, right, middle - tall)],
        ),
        *beside(system(scene, left, bottom), events(scene, right, bottom)),
    ]


def _bottom(height: int) -> int:
    """Return the rows of the lowest panels."""
    return 7 if height < 45 else 10


def _room_for_ranks(height: int) -> int:
    """Return the rows that the ranks may take of a large body; none when that would leave too few for the others."""
    room = height - 4 - _bottom(height) - 16
    return room if room >= 5 else 0


def _team(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the ranks in a box of so many rows, or in one row where there is no room; nothing for a rank alone."""
    if not scene.several:
        return []
    return ranks(scene, width, height) if height >= 4 else [ranks_line(scene, width)]


def _middle(height: int) -> int:
    """Return the rows between the anatomy and the last scalars of a body of medium size."""
    return height - 3 - (5 if height < 26 else 7)


def _medium(scene: Scene, width: int, height: int) -> list[Strip]:
    tail, middle = (5 if height < 26 else 7), _middle(height)
    boxed_ranks = scene.several and middle >= LEAST_WITH_RANKS
    single = [ranks_line(scene, width)] if scene.several and not boxed_ranks else []
    middle -= len(single)
    longest = max((len(point) for point in scene.shown_points), default=0)
    left = min(max(longest + 14, 31), 36) if width < 100 else 46
    right = width - left
    spare = max(middle - max(len(scene.plan.at(scene.point)) + 3, 6), 0)
    spare = spare if spare >= 5 else 0
    if boxed_ranks:
        spare = min(scene.state.ranks.world + 3, max(spare, middle - 7))
        below = ranks(scene, right, spare)
    else:
        below = boxed("costliest of all points", slowest(scene, right - 2, spare - 2), right, spare) if spare else []
    return [
        *anatomy_lines(scene, width),
        *single,
        *beside(point_list(scene, left, middle), [*hooks(scene, right, middle - spare), *below]),
        *strips(scene, width, 1),
        *events(scene, width, tail),
    ]


def _small(scene: Scene, width: int, height: int) -> list[Strip]:
    tail = 2 if height >= 8 else 0
    single = [ranks_line(scene, width)] if scene.several else []
    values = strips(scene, width, 1) if height >= 8 and charts(scene.state) else []
    costly = slowest(scene, width, max(height - 2 - len(single) - len(values) - tail - 1, 1))
    rows = [*anatomy_lines(scene, width), *values, *single, *costly]
    rows = filled(rows, width, max(height - tail - 1, 0))
    return [*rows, row(width, ("─" * width, "border")), *event_lines(scene, width, tail, False)] if tail else rows
