"""The layout of the panels, for a terminal of any size. Pure functions from a scene and a size to rows."""

from collections.abc import Callable, Collection

from textual.strip import Strip

from hookflow.monitor import prompt
from hookflow.monitor.keys import PANELS, current
from hookflow.monitor.panels.events import events, timeline
from hookflow.monitor.panels.events import lines as event_lines
from hookflow.monitor.panels.frame import footer, over, progress, title
from hookflow.monitor.panels.graph import below, graph, needed
from hookflow.monitor.panels.hooks import anatomy_lines, slowest
from hookflow.monitor.panels.metrics import metrics, strips
from hookflow.monitor.panels.now import above
from hookflow.monitor.panels.ranks import line as ranks_line
from hookflow.monitor.panels.ranks import panel as ranks
from hookflow.monitor.panels.ranks import system
from hookflow.monitor.pointer import marked
from hookflow.monitor.style import beside, filled, row
from hookflow.monitor.view import Scene, charts

AROUND = 3
"""Rows above and below the body: title, progress, footer."""

METRICS, MACHINE, EVENTS, RANKS = 1, 2, 3, 4
"""The numbers of panels, as keys have them."""


def screen(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return exactly `height` rows of exactly `width` cells."""
    head = current(scene).head if scene.view.page != "main" else None
    strip = [] if head else timeline(scene, width)  # which is not of the runs that a head is about
    room = max(height - AROUND - len(strip), 0)
    whole = scene.view.page == "main" and not scene.view.zoomed
    stalled = above(scene, width, room) if whole else []
    room -= len(stalled)
    draw = _layout(width, room) if whole else current(scene).draw
    body = filled(draw(scene, width, room) if room else [], width, room)
    body = marked(body, scene.view.search) if scene.view.search else body
    top = head(scene, width) if head else [title(scene, width), progress(scene, width)]
    rows = filled([*top, *strip, *stalled, *body][: height - 1], width, height - 1)
    rows = [*rows, footer(scene, width)]
    if scene.view.prompt:
        return prompt.over(rows, scene, scene.view.prompt, width)
    return filled(over(rows, scene, width), width, height) if scene.view.asking else rows


def visible(width: int, height: int, *, several: bool = False, hidden: Collection[str] = ()) -> tuple[int, ...]:
    """Return the panels that a terminal of this size shows side by side; each of the others fills it alone."""
    room = height - AROUND
    if _layout(width, room) is _small:
        return ()
    lower = (METRICS, EVENTS) if width < WIDE else (METRICS, MACHINE, EVENTS)
    numbers = (0, *(lower if width >= 100 else (EVENTS,)), *(RANKS,) * (several and _room_for_ranks(room) > 0))
    return tuple(number for number in numbers if PANELS[number].name not in hidden)


LEAST_GRAPH, LEAST_LOWER = 6, 4
"""Rows that the graph and the panels below it keep, however they are resized."""

TALL = 27
"""The rows from which on the hook at the cursor is below the graph."""

WIDE = 160
"""The width from which on the machine is beside the metrics and the events."""


def _large(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the graph, below it the hook at the cursor, then what happens."""
    team: list[Strip] = []
    if scene.several and RANKS not in scene.visible:
        team = [ranks_line(scene, width)]
    elif scene.several:
        room = min(_room_for_ranks(height), scene.state.ranks.world + 3)
        team = ranks(scene, width, room)
    rows = [*anatomy_lines(scene, width)[height < 45 :], *team]  # its bar is in the rows of the phases, too
    least = _bottom(height) if {METRICS, MACHINE, EVENTS} & {*scene.visible} else 0
    spare = max(height - len(rows) - needed(scene, width) - least - 6, 0)
    reasons = 6 + min(spare, 4) if height >= TALL else 0
    lower = least + min(spare - min(spare, 4), 10)
    if least:
        room = height - len(rows) - reasons - LEAST_GRAPH
        lower = max(min(lower + scene.view.panels.lower, room), LEAST_LOWER)
    rows += graph(scene, width, height - len(rows) - lower - reasons, scene.focus == 0)
    rows += below(scene, width, reasons)
    return [*rows, *_lower(scene, width, lower)] if least else rows


def _lower(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the panels below the graph side by side, those that the user has not hidden."""
    if width < 100:
        return [*strips(scene, width, 1), *events(scene, width, height - 1)]
    draws = [
        draw for number, draw in ((METRICS, metrics), (MACHINE, system), (EVENTS, events)) if number in scene.visible
    ]
    left, machine = width * 9 // 20 if width < WIDE else width * 2 // 5, 50
    wide = {metrics: left, system: machine}
    widths = [wide.get(draw, 0) for draw in draws]
    widths[-1] = width - sum(widths[:-1])
    return beside(*(draw(scene, cells, height) for draw, cells in zip(draws, widths, strict=True)))


def _bottom(height: int) -> int:
    return 6 if height < 36 else 7


def _room_for_ranks(height: int) -> int:
    """Return the rows that the ranks may take of a large body; none when that would leave too few for the others."""
    room = height - 4 - _bottom(height) - 16
    return room if room >= 5 else 0


def _small(scene: Scene, width: int, height: int) -> list[Strip]:
    tail = 2 if height >= 8 else 0
    single = [ranks_line(scene, width)] if scene.several else []
    values = strips(scene, width, 1) if height >= 8 and charts(scene.state) else []
    costly = slowest(scene, width, max(height - 2 - len(single) - len(values) - tail - 1, 1))
    rows = [*anatomy_lines(scene, width), *values, *single, *costly]
    rows = filled(rows, width, max(height - tail - 1, 0))
    return [*rows, row(width, ("─" * width, "border")), *event_lines(scene, width, tail, False)] if tail else rows


def _layout(width: int, height: int) -> Callable[[Scene, int, int], list[Strip]]:
    return _large if width >= 76 and height >= 18 else _small
