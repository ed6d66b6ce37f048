"""The metrics of a run as lines over its iterations.

Each line is cut into the columns of a chart.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from hookflow.monitor.charts import Axis, Curve, Mark, Scale, draw
from hookflow.monitor.series import Progress, Series, ValueBucket, base_name, list_chart_names
from hookflow.monitor.state import RunState
from hookflow.numbers import number

Split = Literal["train", "val"]
"""Where values are from: hooks log them in the training, or validations measure them."""

SPLIT_SIGNS: Mapping[Split, str] = {"train": "⠤⠤", "val": "◇"}

MAX_NAMED_HOLES = 3
"""Places that are named where values are not finite."""


@dataclass(frozen=True, slots=True)
class MetricLine:
    """The values of a metric from one split."""

    split: Split
    series: Series


MetricLines = Sequence[MetricLine]
"""The data of one metric: the line of the training, that of the validations, or both."""


def gather_metrics(state: RunState) -> dict[str, list[MetricLine]]:
    """Return what can be drawn over the iterations, by name.

    It is in the order in which the names were first logged.
    """
    metrics: dict[str, list[MetricLine]] = {}
    for scalar, series in state.scalars.items():
        metrics.setdefault(base_name(scalar), []).append(MetricLine("train", series))
    for name, series in state.metrics.series.items():
        metrics.setdefault(name, []).append(MetricLine("val", series))
    return metrics


def first_metrics(state: RunState) -> list[str]:
    """Return the metrics with the most important first.

    These are the loss, the monitored ones, those of validations, others.
    """
    names = list_chart_names(state.scalars, state.metrics.series)
    monitored = [name for name in state.monitored if name in names]
    loss = [name for name in ("loss",) if name in names]
    return list(dict.fromkeys([*loss, *monitored, *names]))


def end_iterations(lines: Iterable[MetricLine]) -> list[int]:
    """Return the iterations of the first and the last value of each line."""
    iterations: list[int] = []
    for line in lines:
        its = line.series.its
        if its:
            iterations += [its[0], its[-1]]
    return iterations


def compute_column_edges(axis: Axis, progress: Progress, columns: int) -> list[float]:
    """Return the iterations between a chart's columns, one more than there are columns."""
    edges = []
    for column in range(columns + 1):
        edges.append(progress.it(axis.at(column / columns)))
    edges[0] -= 1  # a stretch is what comes after its first edge
    return edges


def make_curves(
    lines: MetricLines, axis: Axis, progress: Progress, columns: int, smoothing: float = 0.0
) -> list[Curve]:
    """Return the lines in so many columns, each with its extremes.

    Lines of the training are smoothed.

    `smoothing` is the factor of the moving average, from 0 to below 1.
    """
    edges = compute_column_edges(axis, progress, columns)
    curves = []
    for line in lines:
        seen = line.series.split_at_edges(edges)
        drawn = seen
        if smoothing > 0.0 and line.split == "train":
            drawn = line.series.smooth(smoothing).split_at_edges(edges)
        points = []
        for bucket, smoothed in zip(seen, drawn, strict=True):
            if bucket is not None and smoothed is not None:
                points.append((progress.at(bucket.it), smoothed.mean, bucket.low, bucket.high))
        sign = ""
        if line.split == "val":
            sign = "◇"
        curves.append(Curve(line.split, points, sign))
    return curves


def make_marks(state: RunState, progress: Progress) -> list[Mark]:
    """Return the checkpoints and the training's troubles as marks of an x-axis, errors last."""
    marks = [
        Mark(progress.at(checkpoint["it"]), "◆", "checkpoint") for checkpoint in state.checkpoints
    ]
    troubles = [entry for entry in state.journal if entry.trouble and entry.it]
    troubles.sort(key=lambda entry: entry.kind, reverse=True)
    for entry in troubles:
        assert entry.it is not None
        # An iteration that failed is not done, and is drawn at the end of the axis.
        it = min(entry.it, state.it)
        marks.append(Mark(progress.at(it), entry.glyph, entry.kind))
    return marks


def draw_sparkline(series: Series, width: int, *, log: bool = False) -> str:
    """Return the means of the whole run as a line on one row of `width` cells."""
    if not series.its or width < 1:
        return ""
    dots = 2 * width  # a cell is two dots wide
    first = series.its[0]
    last = series.its[-1]
    edges = [first - 1 + (last - first + 1) * dot / dots for dot in range(dots + 1)]
    means = _collect_finite_means(series.split_at_edges(edges))
    scale = Scale.of(list(means.values()) or [0.0], log)
    points = [(dot / (dots - 1), scale.place(mean)) for dot, mean in means.items()]
    (cells,) = draw(points, width, 1)
    return "".join(chr(0x2800 + bits) if bits else " " for bits in cells)


def _collect_finite_means(buckets: Sequence[ValueBucket | None]) -> dict[int, float]:
    """Return the means that are finite by their places."""
    means = {}
    for place, bucket in enumerate(buckets):
        if bucket is not None and math.isfinite(bucket.mean):
            means[place] = bucket.mean
    return means


def describe_holes(series: Series) -> str:
    """Return where values are not finite, the first places and the newest.

    The text is empty where all are finite.
    """
    holes = series.broken
    if not holes:
        return ""
    is_one_kind = all(hole.takes(holes[0].value) for hole in holes)
    kind = "not finite"
    if is_one_kind:
        kind = number(holes[0].value)
    ends_in_hole = not math.isfinite(series.last)
    if ends_in_hole and len(holes) == 1:
        words = f"{kind} since it {holes[0].first}"
    else:
        places = [
            f"{hole.first}" if hole.first == hole.last else f"{hole.first}–{hole.last}"
            for hole in holes
        ]
        if len(places) > MAX_NAMED_HOLES:
            places = [*places[: MAX_NAMED_HOLES - 1], "…", places[-1]]
        words = f"{kind} at it {', '.join(places)}"
    if ends_in_hole and series.its:
        words += f"; last finite at it {series.its[-1]}"
    return words


def matches(name: str, pattern: str) -> bool:
    """Return whether a name matches one of the words of a pattern: globs, or parts of the name.

    A pattern without a word lets every name through.
    """
    words = pattern.lower().split()
    if not words:
        return True
    for word in words:
        is_glob = any(sign in word for sign in "*?[")
        if is_glob:
            glob = word
        else:
            glob = f"*{word}*"
        if fnmatchcase(name.lower(), glob):
            return True
    return False
