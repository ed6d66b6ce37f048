"""How the panels share a terminal of any size. Pure: a scene and a size give the rows of the whole screen."""

from __future__ import annotations

from collections.abc import Callable

from textual.strip import Strip

from hookflow.monitor.paint import beside, boxed, filled, row
from hookflow.monitor.panels import anatomy as anatomy_panel
from hookflow.monitor.panels.anatomy import anatomy
from hookflow.monitor.panels.detail import detail
from hookflow.monitor.panels.events import events
from hookflow.monitor.panels.events import lines as event_lines
from hookflow.monitor.panels.footer import footer
from hookflow.monitor.panels.header import progress, title
from hookflow.monitor.panels.help import help_page
from hookflow.monitor.panels.hooks import hooks
from hookflow.monitor.panels.leave import over
from hookflow.monitor.panels.metrics import metrics, strips
from hookflow.monitor.panels.output import output
from hookflow.monitor.panels.points import points
from hookflow.monitor.panels.slowest import slowest
from hookflow.monitor.panels.system import system
from hookflow.monitor.view import Scene

AROUND = 3
"""Rows above and below the body: title, progress, footer."""

Panel = Callable[[Scene, int, int], list[Strip]]

PANELS: dict[int, Panel] = {1: points, 2: hooks, 3: metrics, 4: system, 5: events}


def screen(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return exactly `height` rows of exactly `width` cells."""
    top = [title(scene, width), progress(scene, width)]
    room = height - AROUND
    body = filled(_body(scene, width, room) if room > 0 else [], width, max(room, 0))
    rows = filled([*top, *body][: height - 1], width, height - 1)
    rows = [*rows, footer(scene, width)]
    return filled(over(rows, scene, width), width, height) if scene.view.asking == "quit" else rows


def _body(scene: Scene, width: int, height: int) -> list[Strip]:
    view = scene.view
    if view.page == "help":
        return help_page(scene, width, height)
    if view.page == "output":
        return output(scene, width, height)
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


def visible(width: int, height: int) -> tuple[int, ...]:
    """Return the panels that a terminal of this size shows side by side; each of the others fills it alone."""
    return {"large": tuple(PANELS), "medium": (1, 2, 5), "small": ()}[_size(width, height - AROUND)]


def _large(scene: Scene, width: int, height: int) -> list[Strip]:
    bottom = 7 if height < 45 else 10
    middle = height - 4 - bottom
    left = 50 if width < 150 else min(width // 3, 74)
    right = width - left
    tall = min(max(len(scene.plan.at(scene.point)) + 3, 6), middle - 9)
    listed = min(len(scene.shown_points) + 3, middle)
    spare = middle - listed if middle - listed >= 5 else 0
    costly = boxed("costliest of all points", slowest(scene, left - 2, spare - 2), left, spare) if spare else []
    return [
        *anatomy(scene, width),
        *beside(
            [*points(scene, left, middle - spare), *costly],
            [*hooks(scene, right, tall), *metrics(scene, right, middle - tall)],
        ),
        *beside(system(scene, left, bottom), events(scene, right, bottom)),
    ]


def _medium(scene: Scene, width: int, height: int) -> list[Strip]:
    tail = 5 if height < 26 else 7
    middle = height - 2 - tail - 1
    longest = max((len(point) for point in scene.shown_points), default=0)
    left = min(max(longest + 14, 31), 36) if width < 100 else 46
    right = width - left
    spare = max(middle - max(len(scene.plan.at(scene.point)) + 3, 6), 0)
    spare = spare if spare >= 5 else 0
    costly = boxed("costliest of all points", slowest(scene, right - 2, spare - 2), right, spare) if spare else []
    return [
        *anatomy_panel.lines(scene, width),
        *beside(points(scene, left, middle), [*hooks(scene, right, middle - spare), *costly]),
        *strips(scene, width, 1),
        *events(scene, width, tail),
    ]


def _small(scene: Scene, width: int, height: int) -> list[Strip]:
    tail = 2 if height >= 8 else 0
    rows = [*anatomy_panel.lines(scene, width), *slowest(scene, width, max(height - 2 - tail - 1, 1))]
    rows = filled(rows, width, max(height - tail - 1, 0))
    return [*rows, row(width, ("─" * width, "border")), *event_lines(scene, width, tail, False)] if tail else rows
