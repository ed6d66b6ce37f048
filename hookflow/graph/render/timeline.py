"""An iteration as text: its critical chain, and its Gantt chart.

  begin      took  share
   0 µs   1.20 ms    4.7  data
1.20 ms   9.00 µs    0.0  timer at before_train_iter
"""

from collections.abc import Sequence
from typing import Protocol

from rich.cells import cell_len

from hookflow.graph.render.text import pad_text, plain
from hookflow.numbers import format_aligned, format_percent


class TimedSpan(Protocol):
    """A part of an iteration: what it is, where it stands, and how long it takes, in ns.

    `queued` is when firings in background were queued, `chain` what is on the critical chain; None
    where all is.
    """

    @property
    def label(self) -> str: ...
    @property
    def depth(self) -> int: ...
    @property
    def parts(self) -> Sequence[tuple[float, float]]: ...
    @property
    def begin(self) -> float: ...
    @property
    def total(self) -> float: ...
    @property
    def queued(self) -> Sequence[tuple[float, float]]: ...
    @property
    def chain(self) -> Sequence[tuple[float, float]] | None: ...


MIN_BAR_WIDTH = 20
FIGURES_WIDTH = 18  # behind a bar: a duration and a share, with the spaces around them

FULL_BAR, THIN_BAR = "█", "▏"
"""The bar of what takes a cell or more, and of what takes less."""

LIGHT_BAR, QUEUED_MARK = "░", "·"
"""The bar of what is not on the critical chain, and the sign of what is queued."""

CHAIN_MARK = "●"
"""Stands before what is on the critical chain."""

GANTT_LEGEND = (
    f"{CHAIN_MARK} {FULL_BAR} critical chain   {LIGHT_BAR} beside it   {QUEUED_MARK} queued"
)


def draw_chain(spans: Sequence[TimedSpan], total: float) -> list[str]:
    """Return a line for each span of a chain.

    It says when the span begins, how long it takes, and its share of the `total` ns in hundredths.
    """
    lines = [f"{'begin':>8} {'took':>8} {'share':>6}"]
    for span in spans:
        figures = _format_figures(span, total)
        lines.append(f"{format_aligned(span.begin)} {figures}  {plain(span.label)}")
    return lines


def draw_gantt(spans: Sequence[TimedSpan], total: float, width: int) -> list[str]:
    """Return a line for each span: its name, its bar, and how long it takes.

    The name is indented by what is around it. The bars are as wide as `width` columns leave room;
    names are cut where they would take more than half of it. Where not all is on the critical
    chain, what is has a mark, and a legend follows.
    """
    has_marks = any(span.chain is not None for span in spans)
    labels = []
    for span in spans:
        mark = ""
        if has_marks:
            mark = f"{CHAIN_MARK} " if span.chain else "  "
        indent = "  " * span.depth
        labels.append(mark + indent + plain(span.label))
    longest = max(map(cell_len, labels), default=0)
    label_width = min(longest, width // 2)
    room = width - label_width - FIGURES_WIDTH
    bar_width = max(room, MIN_BAR_WIDTH)
    lines = []
    for span, label in zip(spans, labels, strict=True):
        if cell_len(label) > label_width:
            label = label[: label_width - 1] + "…"
        bar = _bar_of(span, total, bar_width)
        lines.append(f"{pad_text(label, label_width)} {bar} {_format_figures(span, total)}")
    if has_marks:
        lines += ["", GANTT_LEGEND]
    return lines


def _format_figures(span: TimedSpan, total: float) -> str:
    """Return how long a span takes, and its share."""
    share = format_percent(span.total / total)
    return f"{format_aligned(span.total)} {share:>6}"


def _bar_of(span: TimedSpan, total: float, width: int) -> str:
    """Return a bar in which each part has the cells that it covers by half or more.

    A part has at least a thin sign.
    """
    cells = [" "] * width
    _fill_cells(cells, span.queued, total, QUEUED_MARK)
    if span.chain is None:
        _fill_cells(cells, span.parts, total, FULL_BAR)
    else:
        _fill_cells(cells, span.parts, total, LIGHT_BAR)
        on_chain = [*cells]
        _fill_cells(on_chain, span.chain, total, FULL_BAR)
        for at, cell in enumerate(on_chain):
            # A chain goes through queues, too, whose cells keep their sign.
            if cells[at] == LIGHT_BAR:
                cells[at] = cell
    return "".join(cells)


def _fill_cells(
    cells: list[str], parts: Sequence[tuple[float, float]], total: float, fill: str
) -> None:
    """Put a fill into the cells of each part, and a thin sign where it covers none by half."""
    width = len(cells)
    scale = width / total
    for begin, duration in parts:
        first = round(begin * scale)
        last = min(round((begin + duration) * scale), width)
        if first < last:
            cells[first:last] = fill * (last - first)
            continue
        at = min(int(begin * scale), width - 1)
        if cells[at] == " ":
            cells[at] = THIN_BAR
