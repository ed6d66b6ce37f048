"""The timeline of a recording: where the moment is that is shown, and what there is to go to."""

from collections.abc import Callable, Sequence

from textual.strip import Strip

from hookflow.monitor.charts import Axis, Cells, Mark, make_parts, place_marks
from hookflow.monitor.journal import KIND_GLYPHS, Moment, Timeline
from hookflow.monitor.run_store import RunStore
from hookflow.monitor.style import Part, row
from hookflow.monitor.widgets.strip_view import StripView
from hookflow.numbers import format_span

MOMENT_SIGNS = {
    "epoch": ("┼", "rest"),
    "metrics": (KIND_GLYPHS["metrics"], "val"),
    "run": ("↻", "command"),
    "checkpoint": (KIND_GLYPHS["checkpoint"], "checkpoint"),
    "warn": (KIND_GLYPHS["warn"], "warn"),
    "error": (KIND_GLYPHS["error"], "error"),
}
"""By the kind of a moment its sign and style; later ones stand over earlier ones."""


def list_moments(store: RunStore) -> list[Moment]:
    """Return the recording's moments, and the troubles that the monitor has seen so far.

    The oldest come first.
    """
    own = [
        Moment(entry.t, entry.kind) for entry in store.state.journal if entry.own and entry.trouble
    ]
    return sorted([*store.recorded_moments, *own])


def make_marks(moments: Sequence[Moment], timeline: Timeline) -> list[Mark]:
    """Return the moments as marks of the line, those that stand over others last."""
    marks = []
    for kind, (sign, style) in MOMENT_SIGNS.items():
        for moment in moments:
            if moment.kind == kind:
                marks.append(Mark(timeline.place(moment.t), sign, style))
    return marks


class ReplayBar(StripView):
    """One row: the time since the beginning, the line with its marks, the length."""

    DEFAULT_CSS = "ReplayBar { height: 1; }"

    def __init__(self, store: Callable[[], RunStore]) -> None:
        super().__init__()
        self._get_store = store

    def draw(self, width: int, height: int) -> Sequence[Strip]:
        store = self._get_store()
        player = store.player
        if player is None:
            return []
        timeline = player.recording.timeline
        first, _end = timeline.attempts[0]
        _begin, last = timeline.attempts[-1]
        passed = max(player.moment - first, 0.0)
        tenths = int(passed * 10) % 10
        begun = f"{format_span(passed)}.{tenths}"
        whole = format_span(last - first)
        room = max(width - len(begun) - len(whole) - 6, 1)
        axis = Axis(0.0, timeline.place(last))
        place = axis.place(timeline.place(player.moment))
        share = min(max(place, 0.0), 1.0)
        here = round(share * (room - 1))
        moments = [moment for moment in list_moments(store) if moment != (first, "run")]
        marks = make_marks(moments, timeline)
        cells: Cells = {}
        for x in range(room):
            cells[x] = ("━", "bar") if x < here else ("─", "rest")
        cells |= place_marks(axis, marks, room)
        cells[here] = ("●", "strong")
        parts: list[Part] = [
            (f" {begun} ", "strong"),
            ("├", "rest"),
            *make_parts(cells),
            ("┤", "rest"),
        ]
        return [row(width, *parts, (f" {whole}", "dim"))]
