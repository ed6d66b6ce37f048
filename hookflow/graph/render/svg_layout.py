"""The place of each part of a plan in a picture, in pixels.

The parts are columns, rows, the ways of arrows, and rails.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from rich.cells import cell_len

from hookflow.graph.offload import iter_threads
from hookflow.graph.plan import Binding, Edge, EdgeKind, Plan
from hookflow.graph.points import Kind
from hookflow.graph.render.text import (
    columns,
    find_around_pairs,
    list_marks,
    list_slots,
    with_commas,
)
from hookflow.text import wrapped_phrases

NAME_CELL, NOTE_CELL, TITLE_CELL = 7.4, 6.2, 9.5
"""Width of a sign: monospaced at 12 and at 10 pixels, bold at 15.

It is wider than that of any common font.
"""
NAME_LINE, NOTE_LINE = 16, 13
PAD, MARGIN, INDENT = 8, 16, 16
BOX_HEIGHT = 22  # the height of a hook with up to two arrows
PORT_SPACING = 8  # between two arrows at a box
TRACK_SPACING = 8  # between two arrows that run downwards, or two rails
NOTE_CELLS = 72

POINT_KINDS: dict[Kind, str] = {
    "own": "own point",
    "module": "in the network",
    "state": "in the network",
    "global": "at every module",
    "parameter": "on parameters",
    "comm": "in DDP",
}
"""The line below the name of a point that not every trainer has."""

Position = tuple[float, float]
EdgeBundle = tuple[int, EdgeKind]
"""The edges of one kind that leave one binding, by its id: they share a track."""


@dataclass(slots=True)
class BindingRow:
    """A binding, its notes, and the bundles of edges whose arrows end and begin at its box."""

    binding: Binding
    notes: list[str]
    ins: list[EdgeBundle] = field(default_factory=list)
    outs: list[EdgeBundle] = field(default_factory=list)
    y: float = 0

    @property
    def width(self) -> float:
        return cell_len(self.binding.hook) * NAME_CELL + 2 * PAD

    @property
    def box_height(self) -> float:
        return max(BOX_HEIGHT, (self._num_ports + 1) * PORT_SPACING)

    @property
    def height(self) -> float:
        notes_height = len(self.notes) * NOTE_LINE + PAD
        return max(self.box_height, notes_height)

    @property
    def _num_ports(self) -> int:
        return len(self.ins) + len(self.outs)

    def end_port(self, bundle: EdgeBundle) -> float:
        """Return where an arrow ends, at the left of the box: above those that begin."""
        return self._compute_port_y(self.ins.index(bundle))

    def begin_port(self, bundle: EdgeBundle) -> float:
        """Return where an arrow begins, at the left of the box."""
        return self._compute_port_y(len(self.ins) + self.outs.index(bundle))

    def _compute_port_y(self, place: int) -> float:
        return self.y + self.box_height * (place + 1) / (self._num_ports + 1)


class RailSpan(NamedTuple):
    """A line on the right, from row to row.

    It is that of an around, or of the thread of an offloaded hook.
    """

    first: int
    last: int
    title: str
    is_thread: bool = False
    joins: bool = True


class PictureLayout:
    """The places of the rows of each point, the arrows with their tracks, and the rails."""

    def __init__(
        self, plan: Plan, top: float, times: Mapping[int, str] = MappingProxyType({})
    ) -> None:
        self.points = plan.bound_points
        self.bindings: list[Binding] = []
        for point in self.points:
            self.bindings += plan.at(point.name)
        self.rows: dict[int, BindingRow] = {}  # by the id of the binding
        for binding in self.bindings:
            self.rows[binding.id] = BindingRow(
                binding, _list_notes(plan, binding, times.get(binding.id))
            )
        self._place_edges(plan)
        self._place_columns()
        self._place_rows(plan, top)
        self._place_rails(plan)

    def _place_edges(self, plan: Plan) -> None:
        """Bundle the edges, and give each bundle a track."""
        bundles: dict[EdgeBundle, list[Edge]] = {}
        for edge in plan.edges:
            bundles.setdefault((edge.first_id, edge.kind), []).append(edge)
        place = {id_: k for k, id_ in enumerate(self.rows)}
        spans: dict[EdgeBundle, tuple[int, int]] = {}
        self._last_end: dict[EdgeBundle, int] = {}
        for bundle, edges in bundles.items():
            first_id, _ = bundle
            last = max(place[edge.then_id] for edge in edges)
            spans[bundle] = (place[first_id], last)
            self._last_end[bundle] = self.bindings[last].id
        ordered = sorted(spans, key=lambda bundle: (spans[bundle][0], -spans[bundle][1]))
        tracks = columns(spans[bundle] for bundle in ordered)
        self._tracks = dict(zip(ordered, tracks, strict=True))
        self.edges = {bundle: bundles[bundle] for bundle in ordered}
        self._num_tracks = {point.name: 0 for point in self.points}
        for bundle, edges in self.edges.items():
            first_id, _ = bundle
            self.rows[first_id].outs.append(bundle)
            for edge in edges:
                self.rows[edge.then_id].ins.append(bundle)
            point = edges[0].point
            self._num_tracks[point] = max(self._num_tracks[point], self._tracks[bundle] + 1)

    def _place_columns(self) -> None:
        """Give points, tracks, boxes, notes and rails their columns, from left to right."""
        outermost = min((point.depth for point in self.points), default=0)
        self.indents: dict[str, float] = {}
        labels_right: float = MARGIN
        for point in self.points:
            indent = MARGIN + INDENT * (point.depth - outermost)
            name_width = cell_len(point.name) * NAME_CELL
            kind_width = cell_len(POINT_KINDS.get(point.kind, "")) * NOTE_CELL
            self.indents[point.name] = indent
            labels_right = max(labels_right, indent + max(name_width, kind_width))
        self.boxes_x = labels_right + 2 * PAD
        num_tracks = max(self._num_tracks.values(), default=0)
        if num_tracks:
            self.boxes_x += num_tracks * TRACK_SPACING + 2 * PAD
        box_width = max((row.width for row in self.rows.values()), default=0)
        self.notes_x = self.boxes_x + box_width + PAD
        note_cells = 0
        for row in self.rows.values():
            for note in row.notes:
                note_cells = max(note_cells, cell_len(note))
        self.rails_x = self.notes_x + note_cells * NOTE_CELL + PAD

    def _place_rows(self, plan: Plan, top: float) -> None:
        """Give each row its place, and each point the lane behind its rows."""
        self.lanes: dict[str, tuple[float, float]] = {}
        for point in self.points:
            y = top + PAD / 2
            for binding in plan.at(point.name):
                row = self.rows[binding.id]
                row.y = y
                y += row.height + PAD / 2
            bottom = y
            if point.kind in POINT_KINDS:
                bottom = max(y, top + PAD / 2 + BOX_HEIGHT + NOTE_LINE)
            self.lanes[point.name] = top, bottom
            top = bottom + 4
        self.bottom = top

    def _place_rails(self, plan: Plan) -> None:
        """Give each rail, of an around or of a thread, its column."""
        spans = []
        for first, last in find_around_pairs(self.bindings):
            binding = self.bindings[first]
            spans.append(RailSpan(first, last, f"{binding.hook}: {binding.method}"))
        for thread in iter_threads(plan, self.bindings):
            title = f"{thread.hook}: at work beside the training until the run waits for it"
            spans.append(RailSpan(thread.first, thread.last, title, True, thread.joins))
        spans.sort()
        rail_columns = columns((span.first, span.last) for span in spans)
        self.rails = list(zip(spans, rail_columns, strict=True))
        num_columns = max(rail_columns, default=-1) + 1
        self.right = self.rails_x + (num_columns + 1) * TRACK_SPACING

    def corners(self, bundle: EdgeBundle, edge: Edge) -> list[Position]:
        """Return the way of an arrow: from its box to its track, down, and to its last box."""
        begin = self.rows[edge.first_id].begin_port(bundle)
        end = self.rows[edge.then_id].end_port(bundle)
        tracks_between = self._num_tracks[edge.point] - 1 - self._tracks[bundle]
        x = self.boxes_x - 2 * PAD - TRACK_SPACING * tracks_between
        return [(self.boxes_x, begin), (x, begin), (x, end), (self.boxes_x, end)]

    def is_continued(self, bundle: EdgeBundle, edge: Edge) -> bool:
        """Say whether the track of an arrow leads on to a box further down."""
        return edge.then_id != self._last_end[bundle]


def _list_notes(plan: Plan, binding: Binding, time: str | None) -> list[str]:
    """Return the lines beside a box: what the binding took, its marks, and its slots."""
    phrases = with_commas([*list_marks(plan, binding), *list_slots(binding)])
    notes = [line for line in wrapped_phrases(phrases, NOTE_CELLS) if line]
    if time:
        return [time, *notes]
    return notes
