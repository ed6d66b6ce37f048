"""An iteration as text: its critical chain, and its Gantt chart.

  begin      took  share
   0 µs   1.20 ms    4.7  data
1.20 ms   9.00 µs    0.0  timer at before_train_iter
"""

from collections.abc import Sequence
from typing import Protocol

from rich.cells import cell_len

from hookflow.graph.render.text import padded, plain
from hookflow.numbers import aligned, percent


class TimedSpan(Protocol):
    """A part of an iteration: what it is, where it stands, and how long it takes, in ns."""

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


MIN_BAR_WIDTH = 20
FIGURES_WIDTH = 18  # behind a bar: a duration and a share, with the spaces around them

FULL_BAR, THIN_BAR = "█", "▏"
"""The bar of what takes a cell or more, and of what takes less."""


def draw_chain(spans: Sequence[TimedSpan], total: float) -> list[str]:
    """Return a line for each span: when it begins, how long it takes, and its share of the `total` ns in hundredths."""
    lines = [f"{'begin':>8} {'took':>8} {'share':>6}"]
    for span in spans:
        figures = _figures_of(span, total)
        lines.append(f"{aligned(span.begin)} {figures}  {plain(span.label)}")
    return lines


def draw_gantt(spans: Sequence[TimedSpan], total: float, width: int) -> list[str]:
    """Return a line for each span: its name, indented by what is around it, its bar, and how long it takes.

    The bars are as wide as `width` columns leave room; names are cut where they would take more than half of it.
    """
    labels = []
    for span in spans:
        indent = "  " * span.depth
        labels.append(indent + plain(span.label))
    longest = max(map(cell_len, labels), default=0)
    label_width = min(longest, width // 2)
    room = width - label_width - FIGURES_WIDTH
    bar_width = max(room, MIN_BAR_WIDTH)
    lines = []
    for span, label in zip(spans, labels, strict=True):
        if cell_len(label) > label_width:
            label = label[: label_width - 1] + "…"
        bar = _bar_of(span.parts, total, bar_width)
        lines.append(f"{padded(label, label_width)} {bar} {_figures_of(span, total)}")
    return lines


def _figures_of(span: TimedSpan, total: float) -> str:
    """Return how long a span takes, and its share."""
    share = percent(span.total / total)
    return f"{aligned(span.total)} {share:>6}"


def _bar_of(parts: Sequence[tuple[float, float]], total: float, width: int) -> str:
    """Return a bar in which each part has the cells that it covers by half or more, and at least a thin sign."""
    cells = [" "] * width
    for begin, duration in parts:
        scale = width / total
        first = round(begin * scale)
        last = min(round((begin + duration) * scale), width)
        if first < last:
            cells[first:last] = FULL_BAR * (last - first)
            continue
        at = min(int(begin * scale), width - 1)
        if cells[at] == " ":
            cells[at] = THIN_BAR
    return "".join(cells)
