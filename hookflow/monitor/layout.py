"""The layout of the panels, for a terminal of any size. Pure functions from a scene and a size to rows."""

from __future__ import annotations

from collections.abc import Callable

from textual.strip import Strip

from hookflow.monitor import prompt
from hookflow.monitor.keys import current
from hookflow.monitor.panels.events import events
from hookflow.monitor.panels.events import lines as event_lines
from hookflow.monitor.panels.frame import footer, over, progress, title
from hookflow.monitor.panels.graph import below, graph, needed
from hookflow.monitor.panels.hooks import anatomy_lines, hooks, point_list, slowest
from hookflow.monitor.panels.metrics import metrics, strips
from hookflow.monitor.panels.now import above
from hookflow.monitor.panels.ranks import line as ranks_line
from hookflow.monitor.panels.ranks import panel as ranks
from hookflow.monitor.panels.system import system
from hookflow.monitor.panels.timeline import timeline
from hookflow.monitor.pointer import marked
from hookflow.monitor.style import beside, boxed, filled, row
from hookflow.monitor.view import Scene, charts

AROUND = 3
"""Rows above and below the body: title, progress, footer."""

LEAST_WITH_RANKS = 11
"""Rows that the middle of a medium screen must have, for the ranks to have a box in it and not just a line."""

MACHINE, RANKS = 4, 6
"""The numbers of panels, as keys have them."""


def screen(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return exactly `height` rows of exactly `width` cells."""
    strip = timeline(scene, width)
    room = max(height - AROUND - len(strip), 0)
    whole = scene.view.page == "main" and not scene.view.zoomed
    stalled = above(scene, width, room) if whole else []
    room -= len(stalled)
    draw = _layout(width, room) if whole else current(scene).draw
    body = filled(draw(scene, width, room) if room else [], width, room)
    body = marked(body, scene.view.search) if scene.view.search else body
    head = current(scene).head if scene.view.page != "main" else None
    top = head(scene, width) if head else [title(scene, width), progress(scene, width)]
    rows = filled([*top, *strip, *stalled, *body][: height - 1], width, height - 1)
    rows = [*rows, footer(scene, width)]
    if scene.view.prompt:
        return prompt.over(rows, scene, scene.view.prompt, width)
    return filled(over(rows, scene, width), width, height) if scene.view.asking else rows


def visible(width: int, height: int, *, several: bool = False) -> tuple[int, ...]:
    """Return the panels that a terminal of this size shows side by side; each of the others fills it alone."""
    room = height - AROUND
    draw = _layout(width, room)
    if draw is _small:
        return ()
    if draw is _large:
        bottom = (3, 5) if width < WIDE else (3, MACHINE, 5)
        return (0, *(bottom if width >= 100 else (5,)), *(RANKS,) * (several and _room_for_ranks(room) > 0))
    return (1, 2, 5, *(RANKS,) * (several and _middle(room) >= LEAST_WITH_RANKS))


WIDE = 160
"""The width from which on the machine is beside the metrics and the events."""


def _large(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the graph, below it the hook at the cursor, then what happens."""
    team: list[Strip] = []
    if scene.several:
        room = min(_room_for_ranks(height), scene.state.ranks.world + 3)
        team = ranks(scene, width, room) if room >= 4 else [ranks_line(scene, width)]
    rows = [*anatomy_lines(scene, width)[height < 45 :], *team]  # its bar is in the rows of the phases, too
    spare = max(height - len(rows) - needed(scene, width) - _bottom(height) - 6, 0)
    reasons = 6 + min(spare, 4)
    bottom = _bottom(height) + min(spare - min(spare, 4), 10)
    rows += graph(scene, width, height - len(rows) - bottom - reasons, scene.focus == 0)
    rows += below(scene, width, reasons)
    if width < 100:
        return [*rows, *strips(scene, width, 1), *events(scene, width, bottom - 1)]
    if width < WIDE:
        left = width * 9 // 20
        return [*rows, *beside(metrics(scene, left, bottom), events(scene, width - left, bottom))]
    left, machine = width * 2 // 5, 50
    right = events(scene, width - left - machine, bottom)
    return [*rows, *beside(metrics(scene, left, bottom), system(scene, machine, bottom), right)]


def _bottom(height: int) -> int:
    return 6 if height < 36 else 7


def _room_for_ranks(height: int) -> int:
    """Return the rows that the ranks may take of a large body; none when that would leave too few for the others."""
    room = height - 4 - _bottom(height) - 16
    return room if room >= 5 else 0


def _costliest(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the costliest hooks in a box, where there is room for one."""
    return boxed("costliest of all points", slowest(scene, width - 2, height - 2), width, height) * (height >= 5)


def _middle(height: int) -> int:
    """Return the rows between the anatomy and the last scalars of a body of medium size."""
    return height - 3 - (5 if height < 26 else 7)


def _medium(scene: Scene, width: int, height: int) -> list[Strip]:
    middle = _middle(height)
    boxed_ranks = scene.several and middle >= LEAST_WITH_RANKS
    single = [ranks_line(scene, width)] if scene.several and not boxed_ranks else []
    middle -= len(single)
    longest = max((len(point) for point in scene.shown_points), default=0)
    left = min(max(longest + 14, 31), 36) if width < 100 else 46
    right = width - left
    spare = middle - max(len(scene.plan.at(scene.point)) + 3, 6)
    if boxed_ranks:
        below = ranks(scene, right, min(scene.state.ranks.world + 3, max(spare if spare >= 5 else 0, middle - 7)))
    else:
        below = _costliest(scene, right, spare)
    rows = [
        *anatomy_lines(scene, width),
        *single,
        *beside(point_list(scene, left, middle), [*hooks(scene, right, middle - len(below)), *below]),
        *strips(scene, width, 1),
    ]
    return [*rows, *events(scene, width, height - len(rows))]


def _small(scene: Scene, width: int, height: int) -> list[Strip]:
    tail = 2 if height >= 8 else 0
    single = [ranks_line(scene, width)] if scene.several else []
    values = strips(scene, width, 1) if height >= 8 and charts(scene.state) else []
    costly = slowest(scene, width, max(height - 2 - len(single) - len(values) - tail - 1, 1))
    rows = [*anatomy_lines(scene, width), *values, *single, *costly]
    rows = filled(rows, width, max(height - tail - 1, 0))
    return [*rows, row(width, ("─" * width, "border")), *event_lines(scene, width, tail, False)] if tail else rows


def _layout(width: int, height: int) -> Callable[[Scene, int, int], list[Strip]]:
    if width >= 76 and height >= 27:
        return _large
    return _medium if width >= 76 and height >= 18 else _small
