"""Metrics over the iterations: the panel, and the page that explores them; validations and checkpoints as marks."""

import math
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import NamedTuple

from textual.strip import Strip

from hookflow.metric_mode import mode_by_name
from hookflow.monitor.charts import LABEL, Axis, Curve, Mark, Scale, Unit, chart, draw, heat
from hookflow.monitor.panels.rerun import as_typed
from hookflow.monitor.series import Progress, Series
from hookflow.monitor.state import RunState
from hookflow.monitor.style import Part, beside, boxed, cells, empty, row, spread, window
from hookflow.monitor.view import Action, MetricChoices, Notice, Page, Prompt, Scene, base, charts, flip
from hookflow.numbers import number, rough
from hookflow.text import fit_name

Lines = list[tuple[str, Series]]
"""The series of one name, by style: "train" for the values of the training, "val" for those of validations."""

SIGNS = {"train": "⠤⠤", "val": "◇"}


def gathered(state: RunState) -> dict[str, Lines]:
    """Return what can be drawn, by name."""
    result: dict[str, Lines] = {}
    for scalar, series in state.scalars.items():
        result.setdefault(base(scalar), []).append(("train", series))
    for name, series in state.metrics.series.items():
        result.setdefault(name, []).append(("val", series))
    return result


def ends(*known: Series) -> list[int]:
    """Return the iterations of the first and the last values."""
    return [it for series in known for it in (*series.its[:1], *series.its[-1:])]


def edges(axis: Axis, progress: Progress, columns: int) -> list[float]:
    """Return the iterations between which the columns of a chart lie."""
    bounds = [progress.it(axis.first + (axis.last - axis.first) * k / columns) for k in range(columns + 1)]
    return [bounds[0] - 1, *bounds[1:]]  # a stretch is what comes after its first edge


def curves(lines: Lines, axis: Axis, progress: Progress, columns: int, smooth: float = 0.0) -> list[Curve]:
    """Return the lines in so many columns, with the extremes of each; those of the training are smoothed."""
    bounds, result = edges(axis, progress, columns), []
    for style, series in lines:
        seen = series.stretches(bounds)
        drawn = series.smoothed(smooth).stretches(bounds) if smooth and style == "train" else seen
        pairs = [(each, line) for each, line in zip(seen, drawn, strict=True) if each and line]
        points = [(progress.at(each.it), line.mean, each.low, each.high) for each, line in pairs]
        result.append(Curve(style, points, "◇" * (style == "val")))
    return result


def marks(state: RunState, progress: Progress) -> list[Mark]:
    """Return the checkpoints and the troubles of the training."""
    signs = [Mark(progress.at(saved["it"]), "◆", "checkpoint") for saved in state.checkpoints]
    troubles = [entry for entry in state.journal if entry.trouble and entry.it]
    troubles.sort(key=lambda entry: entry.kind, reverse=True)
    failing = state.it + 1  # the iteration that is not done is drawn at the end of the axis
    its = ((state.it if entry.it == failing else entry.it or 0, entry) for entry in troubles)
    return signs + [Mark(progress.at(it), entry.glyph, entry.kind) for it, entry in its]


def values(lines: Lines, at: float = math.inf, *, words: bool = True, extremes: bool = False) -> list[Part]:
    """Return the newest values up to an iteration."""
    parts: list[Part] = []
    for style, series in lines:
        if newest := series.at(at):
            value = series.last if at == math.inf else newest.mean
            parts += [(f"  {SIGNS[style]}", style), (f" {style}" * words, "dim")]
            parts.append((f" {number(value)}", "strong" if math.isfinite(value) else "error"))
            if extremes:
                parts.append((f" {number(newest.low)}…{number(newest.high)}" * (newest.low < newest.high), "dim"))
                parts.append((f" @ {newest.it}", "dim"))
    return parts


def metrics(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return a box with one chart, or with several beside each other where there is room."""
    names = charts(scene.state)
    inner, focused = width - 2, scene.focus == 1
    hint = f"[ ] next of {len(names)}  l {'linear' if scene.view.log else 'log'}" if len(names) > 1 else ""
    if not names or height < 7 or inner < 2 * LABEL:
        lines = [row(inner, (" no scalars yet" if not names else "", "dim")), *strips(scene, inner, height - 2)]
        return boxed("[1] metrics", lines[bool(names) :], width, height, focused, hint)
    count = max(min(inner // 34, len(names), 4), 1)
    first = scene.view.metric % len(names)
    shown = [names[(first + place) % len(names)] for place in range(count)]
    widths = [inner // count] * (count - 1) + [inner - (count - 1) * (inner // count)]
    known = gathered(scene.state)
    blocks = [_curve(scene, name, known[name], wide, height - 2) for name, wide in zip(shown, widths, strict=True)]
    return boxed("[1] metrics", beside(*blocks), width, height, focused, hint)


def strips(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the last values, as many as fit on one row, for screens without room for a chart."""
    parts: list[Part] = []
    left, known = width, gathered(scene.state)
    for place, name in enumerate(charts(scene.state)):
        curve = sparkline(known[name][0][1], width // 4, scene.view.log) if not place else ""
        words: list[Part] = ["  " * bool(parts), (f" {name}", "dim"), (f" {curve}" * bool(curve), "train")]
        for style, series in known[name]:
            words.append((" val" * (style == "val"), "dim"))
            words.append((f" {number(series.last)}", style if math.isfinite(series.last) else "error"))
        left -= cells(*words)
        if left < 0:
            break
        parts += words
    return [row(width, *parts)][:height]


def sparkline(series: Series, width: int, log: bool = False) -> str:
    """Return the means of the whole run as a line on one row."""
    if not series.its or width < 1:
        return ""
    first, last = series.its[0], series.its[-1]
    bounds = [first - 1 + (last - first + 1) * k / (2 * width) for k in range(2 * width + 1)]
    means = [(k, each.mean) for k, each in enumerate(series.stretches(bounds)) if each and math.isfinite(each.mean)]
    scale = Scale.of([mean for _, mean in means] or [0.0], log)
    (line,) = draw([(k / (2 * width - 1), scale.place(mean)) for k, mean in means], width, 1)
    return "".join(chr(0x2800 + dots) if dots else " " for dots in line)


def _curve(scene: Scene, name: str, lines: Lines, width: int, height: int) -> list[Strip]:
    """Return a chart of exactly this size, with the newest values in its heading."""
    axis = Axis.of(ends(*(series for _, series in lines)), scene.state.it, scene.state.total_iters)
    drawn = curves(lines, axis, Progress(), max(2 * (width - LABEL - 2), 1))
    heading: list[Part] = [" ", (fit_name(name, min(len(name), 16)), "strong"), (" log" * scene.view.log, "dim")]
    newest = values(lines)
    newest = newest if cells(*heading, *newest) + 2 <= width else values(lines, words=False)
    signs = marks(scene.state, Progress())
    rows = chart(drawn, axis, width, height - 1, log=scene.view.log, marks=signs)
    return [spread(width, heading, [*newest, " "]), *rows]


METRICS = Page("metrics", metrics, move=None, enter=partial(flip, "zoomed"))

SMALL_GROUP = 6
"""A group of more metrics is closed at first."""

SHOWN_HOLES = 3
"""Places that are named where values are not finite."""

SMOOTH = (0.0, 0.6, 0.9, 0.97)
UNITS: tuple[Unit, ...] = ("it", "epoch", "time")
NEAREST = 8
"""Iterations that a zoomed chart shows at least."""

OUTLIER, SETTLED = 3.0, 20
"""A layer stands out from OUTLIER times the median of its own values on, once it has SETTLED values."""

FIGURE = 9
"""Cells of a number of the tree."""


class Row(NamedTuple):
    """A row of the tree: a line of a metric, or a group, with the style and the values of each of its members."""

    name: str
    label: str
    members: Mapping[str, Lines]

    @property
    def is_group(self) -> bool:
        return self.name.endswith("/")

    @property
    def series(self) -> list[Series]:
        """The series that the figures are of: of each member of a group the first, else that of this row."""
        return [lines[0][1] for lines in self.members.values()]


def tree(known: Mapping[str, Lines], choices: MetricChoices, parent: str = "") -> Iterator[Row]:
    """Yield the rows of names that begin with `parent`; what several have in common up to a "/" is a group."""
    groups: dict[str, dict[str, Lines]] = {}
    for name, lines in known.items():
        head, slash, _ = name.removeprefix(parent).partition("/")
        groups.setdefault(parent + head + slash, {})[name] = lines
    indent = "  " * parent.count("/")
    for path, members in groups.items():
        if len(members) == 1:
            ((name, lines),) = members.items()
            yield Row(name, indent + name.removeprefix(parent), {name: lines})
            for style, series in lines[1:]:
                yield Row(f"{name} {style}", f"{indent}└ {SIGNS[style]} {style}", {name: [(style, series)]})
            continue
        opened = bool(choices.pattern) or (len(members) <= SMALL_GROUP) != (path in choices.turned)
        yield Row(path, f"{indent}{'▾' if opened else '▸'}{path.removeprefix(parent)} ({len(members)})", members)
        if opened:
            yield from tree(members, choices, path)


def matches(name: str, pattern: str) -> bool:
    """Say whether a name matches one of the words of a pattern, globs or parts of the name; all match none."""
    words = [word if set("*?[") & set(word) else f"*{word}*" for word in pattern.lower().split()]
    return not words or any(fnmatchcase(name.lower(), word) for word in words)


class Board:
    """The contents of the page: the metrics, the rows of the tree, the row of the cursor, the x-axis."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.choices = scene, scene.view.metrics
        self.known = gathered(scene.state)
        place = {name: at for at, name in enumerate(self.known)}  # in a group: as they were first logged
        order = sorted(charts(scene.state), key=lambda name: place[name] if "/" in name else -1)
        self.shown = {name: self.known[name] for name in order if matches(name, self.choices.pattern)}
        self.rows = list(tree(self.shown, self.choices))
        self.at = next((at for at, each in enumerate(self.rows) if each.name == self.choices.name), 0)
        self.picked = self.rows[self.at] if self.rows else Row("", "", {})
        self.ends = ends(*(series for name in self.picked.members for _, series in self.known[name]))
        self.progress = scene.state.progress(self.choices.unit)
        whole = Axis.of(self.ends, scene.state.it, scene.state.total_iters)
        first, last, at = int(whole.first), int(whole.last), self.choices.at
        size = max((last - first) >> self.choices.zoom, min(NEAREST, last - first))
        start = min(max((max(self.ends, default=last) if at is None else at) - size // 2, first), last - size)
        self.its = start, start + size
        self.axis = Axis(self.progress.at(start), self.progress.at(start + size), self.choices.unit)


def page(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the tree, with the chart beside or below it where there is room for both."""
    board = Board(scene)
    if not board.known:
        return empty("metrics", "no scalars yet: run.log(name, value) logs them", width, height)
    if board.choices.large and board.rows:
        return _picture(board, board.picked, width, height)
    if width >= 110:
        left = min(max(width * 2 // 5, 58), 84)
        return beside(_tree(board, left, height), _pictures(board, width - left, height))
    if width >= 76 and height >= 18:
        upper = min(max(height * 2 // 5, 7), len(board.rows) + 3)
        return [*_tree(board, width, upper), *_pictures(board, width, height - upper)]
    return _tree(board, width, height)


def _tree(board: Board, width: int, height: int) -> list[Strip]:
    inner, pattern = width - 2, board.choices.pattern
    headings = ("last", "min", "max", "best at") if inner >= 46 else ("last",)
    trend = min(inner - 62, 20) if inner >= 76 else 0
    label = max(inner - 2 - FIGURE * len(headings) - (trend + 2) * (trend > 0), 8)
    lines = [row(inner, (f" {'':<{label}}{''.join(f'{word:>{FIGURE}}' for word in headings)}", "dim"))]
    part = window(len(board.rows), max(height - 3, 0), board.at)
    for at, each in [*enumerate(board.rows)][part]:
        here, figures = at == board.at, _figures(board, each, label, trend)
        lines.append(row(inner, ("▸" if here else " ", "focus"), *figures, picked=here))
    lines += [row(inner, (f' no metric matches "{pattern}"', "warn"))] * (not board.rows)
    title = f"metrics: {len(board.shown)}" + f" of {len(board.known)}  / {pattern}" * bool(pattern)
    below = len(board.rows) - part.stop
    return boxed(title, lines, width, height, True, f"↓ {below} more" if below > 0 else "esc back")


def _figures(board: Board, each: Row, label: int, trend: int) -> Iterator[Part]:
    """Yield the cells of a row of the tree, those beyond the width of the page too."""
    low, high = min(series.low for series in each.series), max(series.high for series in each.series)
    name, ((style, series), *_) = next(iter(each.members.items()))
    mode = None if each.is_group else board.scene.state.monitored.get(name) or mode_by_name(name)
    yield (fit_name(each.label, label + FIGURE * each.is_group), "title" if each.is_group else "")
    if not each.is_group:
        yield (f"{number(series.last):>{FIGURE}}", "" if math.isfinite(series.last) else "error")
    for of, value in (("min", low), ("max", high)):
        yield (f"{number(value) if low <= high else '–':>{FIGURE}}", "good" if of == mode else "dim")
    best = f"{'★ ' * (style == 'val')}{series.best(mode)}" if mode and low <= high else ""
    yield (best.rjust(FIGURE), "good" if style == "val" else "dim")
    if not each.is_group:
        yield ("  " + sparkline(series, trend), style)


def _pictures(board: Board, width: int, height: int) -> list[Strip]:
    """Return the chart of the metric, and where there is room the heat of the group that it is in."""
    around = [each for each in board.rows if each.is_group and board.picked.name.startswith(each.name)]
    if not board.rows or height < 24 or not around or board.picked.is_group:
        return _picture(board, board.picked, width, height)
    lower = min(len(around[-1].members) + 3, height // 2)
    return [*_chart(board, width, height - lower), *_heat(board, around[-1], width, lower)]


def _picture(board: Board, each: Row, width: int, height: int) -> list[Strip]:
    return _heat(board, each, width, height) if each.is_group else _chart(board, width, height)


def _chart(board: Board, width: int, height: int) -> list[Strip]:
    """Return the picked metric's chart in a box, with the values at its cursor."""
    choices, axis, progress, at = board.choices, board.axis, board.progress, board.choices.at
    name = next(iter(board.picked.members), "")
    lines, inner = board.known.get(name, []), width - 2
    drawn = curves(lines, axis, progress, max(2 * (inner - 2 - LABEL), 1), choices.smooth)
    signs = marks(board.scene.state, progress)
    log = board.scene.view.log and all(series.low > 0 for _, series in lines)
    flags = [f"ema {choices.smooth}"] * bool(choices.smooth) + [f"×{2**choices.zoom}"] * bool(choices.zoom)
    flags += ["log" if log else "linear: not all above 0"] * board.scene.view.log
    it = max(board.ends, default=0) if at is None else at
    place = f" = {axis.label(progress.at(it))}" * (choices.unit != "it")
    newest = values(lines, math.inf if at is None else at, extremes=True)
    lost: list[Part] = [(f"  {words}", "error") for _, series in lines if (words := words_of_holes(series))]
    rows = chart(drawn, axis, inner, height - 3, log=log, marks=signs, cursor=None if at is None else progress.at(at))
    rows = [row(inner, " ", (f"it {it}", "strong"), (place, "dim"), *newest, *lost), *rows]
    return boxed(name, rows, width, height, choices.large, "  ".join(flags))


def words_of_holes(series: Series) -> str:
    """Return where values are not finite, the first ones and the newest; empty where all are finite."""
    holes = series.broken
    if not holes:
        return ""
    alike = all(hole.takes(holes[0].value) for hole in holes)
    kind = number(holes[0].value) if alike else "not finite"
    ends_in_hole = not math.isfinite(series.last)
    if ends_in_hole and len(holes) == 1:
        words = f"{kind} since it {holes[0].first}"
    else:
        places = [f"{hole.first}–{hole.last}" if hole.first < hole.last else str(hole.first) for hole in holes]
        shown = places if len(places) <= SHOWN_HOLES else [*places[: SHOWN_HOLES - 1], "…", places[-1]]
        words = f"{kind} at it {', '.join(shown)}"
    if ends_in_hole and series.its:
        words += f"; last finite at it {series.its[-1]}"
    return words


def _heat(board: Board, group: Row, width: int, height: int) -> list[Strip]:
    """Return a group's metrics as rows of shades over the axis, of each stretch the greatest value, in a box."""
    inner, axis, names, known, at = width - 2, board.axis, [*group.members], group.series, board.choices.at
    low, high = min(series.low for series in known), max(series.high for series in known)
    scale = Scale.of([low, high] if low <= high else [0.0], low > 0)
    label = min(max(map(len, names)) - len(group.name), max(inner // 4, 8))
    room = max(inner - label - 2 - FIGURE - len(" ▲×9.9"), 1)
    bounds, picked = edges(axis, board.progress, room), next(iter(board.picked.members))
    part = window(len(names), max(height - 3, 0), names.index(picked))
    rows = []
    for name, series in zip(names[part], known[part], strict=True):
        newest, here = series.at(math.inf if at is None else at), name == picked and not board.picked.is_group
        value = newest.mean if newest and at is not None else series.last
        times = value / series.median if len(series.its) >= SETTLED and series.median > 0 else 0.0
        shades = heat(_held(series, bounds), scale)
        rows.append(
            row(
                inner,
                ("▸" if here else " ", "focus"),
                (f"{fit_name(name.removeprefix(group.name), label)} ", "dim"),
                *(*shades, " " * (room - cells(*shades))),
                (f"{number(value):>{FIGURE}}", "" if math.isfinite(value) else "error"),
                (f" ▲×{rough(times)}" * (times >= OUTLIER), "warn"),
                picked=here,
            )
        )
    first, last = axis.label(axis.first), axis.label(axis.last)
    below = f"{'':<{label + 2}}{first}{' ' * max(room - len(first) - len(last), 1)}{last}"
    rows.append(row(inner, (f"{below}{'last' if at is None else f'it {at}':>{FIGURE}}", "dim")))
    title = f"{group.name}  {'log ' * scale.log}░ {number(scale.low)} … █ {number(scale.high)}"
    shown = f"{part.start + 1}–{part.stop} of {len(names)}" * (part.stop - part.start < len(names))
    return boxed(title, rows, width, height, board.choices.large, shown)


def _held(series: Series, bounds: Sequence[float]) -> list[float | None]:
    """Return the greatest value of each stretch, which holds until the next."""
    highs = [bucket.high if bucket else None for bucket in series.stretches(bounds)]
    known = [at for at, value in enumerate(highs) if value is not None]
    for at in range(known[0], known[-1]) if known else ():
        highs[at] = highs[at - 1] if highs[at] is None else highs[at]
    return highs


def _move(scene: Scene, step: int) -> None:
    board = Board(scene)
    if board.rows:
        board.choices.name = board.rows[min(max(board.at + step, 0), len(board.rows) - 1)].name


def _enter(scene: Scene) -> Notice | None:
    """Open or close a group, or make the chart large, and small again."""
    board = Board(scene)
    if board.choices.large or not board.picked.is_group:
        board.choices.large = not board.choices.large
    elif board.choices.pattern:
        return Notice("groups are open while a filter is set")
    else:
        board.choices.name = board.picked.name
        board.choices.turned ^= {board.picked.name}
    return None


def _read(steps: int, scene: Scene) -> Notice | None:
    """Move the cursor of the chart by hundredths; beyond the last value it follows the newest again."""
    board = Board(scene)
    at, (first, last) = board.choices.at, board.its
    if not board.ends or (at is None and steps > 0):
        return Notice("this is the newest value" if board.ends else "there are no values to read off")
    to = (max(board.ends) if at is None else at) + steps * max((last - first) // 100, 1)
    board.choices.at = max(to, min(board.ends)) if to < max(board.ends) else None
    return None


def _rerun(scene: Scene) -> str | Notice:
    """Ask whether to do the iteration at the cursor again; who may change nothing gets the command."""
    choices = scene.view.metrics
    if not Board(scene).ends:
        return Notice("there are no values to read off")
    choices.at = choices.at or scene.state.it  # the newest, as it was when the question was asked
    if scene.readonly:
        return f"copy text {rerun_command(scene)}"
    scene.view.asking = "rerun"
    return ""


def rerun_command(scene: Scene) -> str:
    return " ".join(as_typed(scene.known_as, scene.view.metrics.at or scene.state.it))


def _zoom(step: int, scene: Scene) -> Notice | None:
    choices, (first, last) = scene.view.metrics, Board(scene).its
    if step > 0 and last - first <= NEAREST:
        return Notice("the chart is as near as it gets")
    if step < 0 and not choices.zoom:
        return Notice("the chart shows the whole run")
    choices.zoom += step
    return None


def _smooth(scene: Scene) -> None:
    choices = scene.view.metrics
    choices.smooth = SMOOTH[(SMOOTH.index(choices.smooth) + 1) % len(SMOOTH)]


def _turn_unit(scene: Scene) -> Notice | None:
    choices = scene.view.metrics
    units = [unit for unit in UNITS if unit == "it" or scene.state.progress(unit).values[1:]]
    choices.unit = units[(units.index(choices.unit) + 1) % len(units)] if choices.unit in units else "it"
    return None if units[1:] else Notice("neither epochs nor seconds are known yet")


def _filter(scene: Scene) -> None:
    def apply(scene: Scene, text: str) -> None:
        scene.view.metrics.pattern = text.strip()

    scene.view.prompt = Prompt("/", lambda scene, text: None, apply, text=scene.view.metrics.pattern)


READ = "read values off the chart before and after; with shift further"
EXPLORER = Page(
    "metrics",
    page,
    "m",
    "all metrics: a tree, a chart to read values off, layers as heat; and back",
    move=_move,
    enter=_enter,
    pause=1.0,
    actions=(
        Action("cursor-back", "left", READ, partial(_read, -1)),
        Action("cursor-on", "right", READ, partial(_read, 1)),
        Action("cursor-far-back", "shift+left", READ, partial(_read, -10)),
        Action("cursor-far-on", "shift+right", READ, partial(_read, 10)),
        Action("zoom-in", "+ =", "zoom the chart in and out", partial(_zoom, 1)),
        Action("zoom-out", "-", "zoom the chart in and out", partial(_zoom, -1)),
        Action("row-before", "[", "to the metric before, and to the next", partial(_move, step=-1)),
        Action("row-after", "]", "to the metric before, and to the next", partial(_move, step=1)),
        Action("smooth", "s", "smooth the line of the training, more, and not at all", _smooth),
        Action("axis", "x", "axis in iterations, epochs or seconds", _turn_unit),
        Action("rerun", "R", "do the iteration at the cursor again, beside its recording (asks first)", _rerun),
        Action("filter-metrics", "/", "show the metrics whose names match globs or parts", _filter),
    ),
    hints=lambda scene: [
        *(("up down", "metric"), ("cursor-back cursor-on", "cursor"), ("filter-metrics", "filter")),
        *(("zoom-in zoom-out", "zoom"), ("smooth", "smooth"), ("log-scale", "log")),
        *(("axis", "it·epoch·time"), ("open", "open")),
    ],
)
