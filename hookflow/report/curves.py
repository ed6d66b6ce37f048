"""The curves of a report: which there are, and as many of their points as a page has room for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hookflow.monitor.series import Series, ValueBucket, base_name
from hookflow.monitor.state import RunState

MAX_CHARTS = 40
"""Charts of a report."""

TARGET_POINTS = 12_000
"""Points of all lines together, about."""

MIN_LINE_POINTS, MAX_LINE_POINTS = 64, 512
"""Points of a line in a report of many lines, and in one of a few."""

Point = list[float]
"""[iteration, mean], or [iteration, mean, least, greatest] where these differ."""


@dataclass(frozen=True, slots=True)
class CurveLine:
    """A line of a chart; `style` is the class by which its colour is known."""

    style: str
    label: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Curve:
    """The curves of one chart; `best` is the iteration and the value of the best metric."""

    name: str
    lines: Sequence[CurveLine]
    best: tuple[int, float] | None = None


@dataclass(frozen=True, slots=True)
class CurveMark:
    """Something that happened at an iteration: a sign, and a text in words."""

    it: int
    sign: str
    text: str


@dataclass(frozen=True, slots=True)
class CurveSheet:
    """The charts of a page over one axis of iterations.

    `per_epoch` is the number of iterations of an epoch; 0 where it is not known, or runs differ in
    it. `left_out` are the names that have no chart.
    """

    first: float
    last: float
    per_epoch: int
    curves: Sequence[Curve]
    left_out: Sequence[str]
    marks: Sequence[CurveMark] = field(default_factory=list)


def group_series_by_name(state: RunState) -> Mapping[str, list[tuple[str, Series]]]:
    """Return the splits and their series by name.

    Monitored metrics come first, then the loss, other metrics, other scalars.
    """
    by_name: dict[str, list[tuple[str, Series]]] = {}
    for scalar, series in state.scalars.items():
        by_name.setdefault(base_name(scalar), []).append(("train", series))
    for metric, series in state.metrics.series.items():
        split = "val"
        if metric.startswith("test "):
            split = "test"
        by_name.setdefault(metric.removeprefix("test "), []).append((split, series))
    places = {name: place for place, name in enumerate(state.monitored)}

    def sort_key(name: str) -> tuple[int, bool, bool]:
        return places.get(name, len(places)), name != "loss", name not in state.metrics.by_name

    return {name: by_name[name] for name in sorted(by_name, key=sort_key)}


def compute_points_per_line(num_lines: int) -> int:
    """Return how many points each of so many lines has at most."""
    share = TARGET_POINTS // max(num_lines, 1)
    return min(max(share, MIN_LINE_POINTS), MAX_LINE_POINTS)


def sample_points(series: Series, max_points: int) -> list[Point]:
    """Return the points of at most so many stretches of a series that have values."""
    its = set(series.its)
    for hole in series.broken:
        its.update((hole.first, hole.last))
    if not its:
        return []
    begin = min(its) - 1
    edges: list[float] = [begin, *sorted(its)]
    if len(its) > max_points:
        extent = max(its) - begin
        edges = [begin + extent * k / max_points for k in range(max_points + 1)]
    return [_point_of(bucket) for bucket in series.split_at_edges(edges) if bucket is not None]


def _point_of(bucket: ValueBucket) -> Point:
    values = [bucket.mean]
    if bucket.low < bucket.high:
        values += [bucket.low, bucket.high]
    return [bucket.it, *(_as_exact_as_fp32(value) for value in values)]


def _as_exact_as_fp32(value: float) -> float:
    return float(f"{value:.7g}")


def make_curves(state: RunState) -> tuple[list[Curve], list[str]]:
    """Return the charts, and the names without one.

    A chart has the lines of the training, the validations and the tests.
    """
    series = group_series_by_name(state)
    names = list(series)
    shown = names[:MAX_CHARTS]
    max_points = compute_points_per_line(sum(len(series[name]) for name in shown))
    curves = []
    for name in shown:
        lines = [
            CurveLine(split, split, sample_points(each, max_points)) for split, each in series[name]
        ]
        best = state.metrics.best.get(name)
        curves.append(Curve(name, lines, (best.it, best.value) if best else None))
    return curves, names[MAX_CHARTS:]


def last_iteration(curves: Sequence[Curve]) -> float:
    """Return the last iteration of any point; 1 where there is none before it."""
    last = 1.0
    for curve in curves:
        for line in curve.lines:
            if line.points:
                last = max(last, *(point[0] for point in line.points))
    return last


MARK_PLACES = 60
"""Places beside one another at which marks of one sign do not touch."""


def list_marks(state: RunState) -> list[CurveMark]:
    """Return what happened on the way.

    Of marks of one sign that would touch, only the first is returned.
    """
    marks = []
    for saved in state.checkpoints:
        marks.append(CurveMark(saved["it"], "◆", saved["path"].rsplit("/", 1)[-1]))
    for entry in state.journal:
        if entry.trouble and entry.it:
            marks.append(CurveMark(entry.it, entry.glyph, entry.text))
    for number, attempt in enumerate(state.attempts[1:], start=2):
        marks.append(CurveMark(attempt.begin, "↻", f"attempt {number}"))
    kept = []
    for sign in "◆▲✗↻":
        by_place: dict[int, CurveMark] = {}
        for mark in marks:
            if mark.sign == sign:
                by_place.setdefault(round(MARK_PLACES * mark.it / max(state.it, 1)), mark)
        kept += sorted(by_place.values(), key=lambda mark: (mark.it, mark.text))
    return kept
