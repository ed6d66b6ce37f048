"""The hooks of one point in the order of firing: who waits for whom, and what each one costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual.strip import Strip

from hookflow.events.records import PHASES
from hookflow.graph.plan import Binding
from hookflow.graph.render.text import gutter
from hookflow.graph.why import rows_of
from hookflow.monitor.health import Pace, bottleneck, verdict
from hookflow.monitor.series import WINDOW, Timing
from hookflow.monitor.style import Part, boxed, highlighted, row, sparks, spread, window
from hookflow.monitor.view import Scene
from hookflow.numbers import many, ms, percent, rough
from hookflow.text import fit

HEAT = " ░▒▓█"
THRESHOLDS = (0.001, 0.01, 0.1)
"""Shares of a stretch of time from which on the heat is one step hotter; any firing at all is the first step."""


def point_list(scene: Scene, width: int, height: int) -> list[Strip]:
    inner, room = width - 2, height - 3
    wide = inner >= 44
    cells = next(count for count in (60, 30, 20, 15, 12, 10, 6, 5, 4) if count <= max(inner - (36 if wide else 30), 4))
    name = inner - cells - (11 if wide else 8)
    shown = scene.shown_points
    picked = shown.index(scene.point) if scene.point in shown else 0
    part = window(len(shown), room, picked)
    head = (
        f" {fit('point', name)}{'  # ' if wide else ' '}{fit('last 60 s' if cells > 8 else '60 s', cells)} {'%it':>5}"
    )
    body = [_point_line(scene, point, name, cells, wide, inner) for point in shown[part]]
    hidden = len(scene.points) - len(shown)
    below = len(shown) - part.stop
    hint = (
        f"{f'↑ {part.start} ' * bool(part.start)}↓ {below} more"
        if below > 0
        else f"f shows {hidden} unbound"
        if hidden
        else "f hides unbound"
    )
    focused = scene.view.focus == 1
    return boxed("[1] points", [row(inner, (head, "dim")), *body], width, height, focused, hint)


def _point_line(scene: Scene, point: str, name: int, cells: int, wide: bool, inner: int) -> Strip:
    bound = scene.plan.at(point)
    here = point == scene.point
    label = " " * scene.plan.points[point].depth + point if wide else point
    counts = [scene.state.timing(binding.id).cells(scene.state.now, cells) for binding in bound]
    heat = [(sum(fired for fired, _ in cell), sum(ns for _, ns in cell)) for cell in zip(*counts, strict=True)]
    alive = any(fired for fired, _ in heat)
    style = "picked" if here else "" if alive else "dim" if bound else "faint"
    number = f" {len(bound) or '':>2} " if wide else " "
    parts: list[Part] = [("▸" if here else " ", "focus"), (fit(label, name), style), (number, "dim")]
    parts += [_heat(fired, ns / (WINDOW / cells * 1e9)) for fired, ns in heat] or [(" " * cells, "")]
    used = percent(scene.share(*bound)) if alive and scene.plan.points.in_iteration(point) else "·" if bound else ""
    line = row(inner, *parts, (f" {used:>5}", style if alive or here else "faint"))
    return highlighted(line) if here else line


def _heat(fired: int, share: float) -> Part:
    level = 1 + sum(share >= threshold for threshold in THRESHOLDS) if fired else 0
    return (HEAT[level], f"heat{level}" if level else "")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of figures: the lower the rank, the longer it stays when the room shrinks."""

    head: str
    width: int
    rank: int
    text: Callable[[Scene, Binding, Timing], str]


COLUMNS = (
    Column("count", 6, 7, lambda scene, binding, timing: many(timing.count) if timing.count else "·"),
    Column("last", 5, 5, lambda scene, binding, timing: _ms(timing, timing.last)),
    Column("p50", 5, 1, lambda scene, binding, timing: _ms(timing, timing.percentile(0.5))),
    Column("p95", 5, 3, lambda scene, binding, timing: _ms(timing, timing.percentile(0.95))),
    Column("max", 5, 6, lambda scene, binding, timing: _ms(timing, timing.longest)),
    Column("%it", 5, 2, lambda scene, binding, timing: _share(scene, binding)),
)
TREND_RANK, TREND_CELLS = 4, (60, 30, 20, 15, 12, 10, 6, 5)


def hooks(scene: Scene, width: int, height: int) -> list[Strip]:
    inner, room = width - 2, height - 3
    bound = scene.plan.at(scene.point)
    edges = gutter(len(bound), rows_of(scene.plan, scene.point))
    lead = max((len(prefix) for prefix in edges), default=0)
    name = min(max([4, *(cell_len(binding.hook) for binding in bound)]), 24 if inner >= 60 else 12)
    columns, cells = _choose(inner - 3 - lead - (1 if lead else 0) - name)
    head = " " * (1 + lead + bool(lead)) + fit("hook", name)
    head += (
        "".join(f" {column.head:>{column.width}}" for column in columns)
        + f" {fit('trend 60 s' if cells > 9 else '60 s', cells)}"
    )
    lines = [row(inner, (head, "dim"))]
    focused = scene.view.focus == 2
    at = bound.index(scene.picked) if scene.picked else 0
    part = window(len(bound), room, at)
    for binding, prefix in list(zip(bound, edges, strict=True))[part]:
        picked = binding is scene.picked and focused
        lines.append(_line(scene, binding, prefix + " " * bool(lead), name, columns, cells, picked, inner))
    if not bound:
        why = "nothing is bound to this point" if scene.plan.bindings else "no hooks are known yet"
        lines.append(row(inner, (f" {why}", "dim")))
    below = len(bound) - part.stop
    hint = f"↓ {below} more" if below > 0 else "ms  in order of firing ↓" if inner > 60 else "ms"
    return boxed(f"[2] hooks @ {scene.point}" if scene.point else "[2] hooks", lines, width, height, focused, hint)


def _choose(room: int) -> tuple[list[Column], int]:
    """Return the columns that have room, and how many cells the trend gets (none where there is no room)."""
    chosen: list[Column] = []
    cells = 0
    for rank in range(1, 8):
        if rank == TREND_RANK:
            cells = next((count for count in reversed(TREND_CELLS) if count + 1 <= room), 0)
            room -= cells + 1 if cells else 0
        elif (column := next(column for column in COLUMNS if column.rank == rank)).width + 1 <= room:
            chosen.append(column)
            room -= column.width + 1
    if cells:
        cells = next(count for count in TREND_CELLS if count <= cells + room)
    return [column for column in COLUMNS if column in chosen], cells


def _line(
    scene: Scene, binding: Binding, prefix: str, name: int, columns: list[Column], cells: int, picked: bool, width: int
) -> Strip:
    state, timing = scene.state, scene.state.timing(binding.id)
    parts: list[Part] = [("▸" if picked else " ", "focus"), (prefix, "edge")]
    parts += [(fit(binding.hook, name), "picked" if picked else "" if timing.count else "dim")]
    for column in columns:
        quiet = not timing.count or column.head in ("last", "count", "max")
        parts.append((f" {column.text(scene, binding, timing):>{column.width}}", "dim" if quiet else ""))
    if cells:
        parts += [" ", (trend(timing, state.now, cells), "train")]
    line = row(width, *parts, mark(scene, binding))
    return highlighted(line) if picked else line


def trend(timing: Timing, now: float, cells: int) -> str:
    """Return the mean duration of a firing over the last minute; half height is the usual one."""
    values = [ns / fired if fired else None for fired, ns in timing.cells(now, cells)]
    return sparks(values, timing.percentile(0.5))


def mark(scene: Scene, binding: Binding) -> Part:
    """Return a sign at the end of the row: it has failed, is off, or was much slower than usual a moment ago."""
    state, timing = scene.state, scene.state.timing(binding.id)
    if binding.hook in state.disabled:
        return ("⊘", "error")
    if (binding.hook, binding.point) in state.errors:
        return ("✗", "error")
    recent = timing.cells(state.now, WINDOW)[-10:]
    usual = timing.percentile(0.5)
    if timing.count > 20 and any(fired and ns / fired > 3 * usual for fired, ns in recent):
        return ("▲", "warn")
    return ""


def _ms(timing: Timing, ns: float) -> str:
    return ms(ns) if timing.count else "·"


def _share(scene: Scene, binding: Binding) -> str:
    used = scene.share(binding)
    return percent(used) if used else "·"


def slowest(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return a heading and as many bindings as there is room for, what took most of the last minute first."""
    wide = width >= 56
    cells = 12 if width >= 72 else 6 if wide else 4
    name = max(width - cells - (22 if wide else 16), 8)
    head = f" {fit('hook  point', name)}{'   p50' if wide else ''}   p95   %it 60 s"
    ranked = sorted(scene.plan.bindings, key=lambda binding: -scene.state.timing(binding.id).spent(scene.state.now))
    lines = [_slow_line(scene, binding, name, cells, wide, width) for binding in ranked[: height - 1]]
    return [row(width, (head, "dim")), *lines]


def _slow_line(scene: Scene, binding: Binding, name: int, cells: int, wide: bool, width: int) -> Strip:
    timing, used = scene.state.timing(binding.id), scene.share(binding)
    figures = [ms(timing.percentile(part)) if timing.count else "·" for part in ((0.5, 0.95) if wide else (0.95,))]
    figures.append(percent(used) if used else "·")
    style = "" if timing.spent(scene.state.now) else "dim"
    label = f"{fit(binding.hook, min(cell_len(binding.hook), max(name - 14, 6)))} {binding.point}"
    parts: list[Part] = [" ", (fit(label, name), style), ("".join(f" {figure:>5}" for figure in figures), style)]
    return row(width, *parts, " ", (trend(timing, scene.state.now, cells), "train"), mark(scene, binding))


FILLS = {"data": "░", "forward": "█", "backward": "▓", "optimizer": "▒", "hooks": "▚", "other": "╌"}


def anatomy(scene: Scene, width: int) -> list[Strip]:
    """Return a box of four rows."""
    pace = scene.pace
    title = f"iteration   p50 {ms(pace.p50):>5} ms   p95 {ms(pace.p95):>5} ms" if pace.p50 else "iteration"
    return boxed(title, anatomy_lines(scene, width - 2), width, 4, hint="shares of the last 60 s")


def anatomy_lines(scene: Scene, width: int) -> list[Strip]:
    """Return two rows: the bar, and its legend with the verdict; what is wrong takes the legend's place."""
    pace = scene.pace
    if scene.health.bad:
        sentence = scene.health.sentence
        wrong = row(width, (f" {fit(sentence, max(min(cell_len(sentence), width - 2), 0))} ", "alarm"))
        return [row(width, *_bar(pace, width)), wrong]
    if not pace.whole:
        return [row(width, *_bar(pace, width)), row(width, (" no training iteration yet", "dim"))]
    message = (
        verdict(scene.state, scene.plan, pace)
        if width >= 100
        else f"{bottleneck(scene.state, pace)} {rough(pace.p50 / 1e6)} ms/it"
    )
    wide = width >= 100
    legends = [_legend(pace, PHASES, wide), _legend(pace, PHASES[:-1], wide), _legend(pace, PHASES[:-1], False)]
    for legend in legends:
        if sum(len(text) for text, _ in legend) + len(message) + 3 <= width:
            return [row(width, *_bar(pace, width)), spread(width, legend, [(f"{message} ", "strong")])]
    return [row(width, *_bar(pace, width)), row(width, *legends[-1])]


def _legend(pace: Pace, phases: Sequence[str], wide: bool) -> list[tuple[str, str]]:
    parts = []
    for phase in phases:
        word = phase if wide else {"forward": "fwd", "backward": "bwd", "optimizer": "opt"}.get(phase, phase)
        parts += [(f" {FILLS[phase]} ", phase), (f"{word} ", "dim"), (f"{100 * pace.phases[phase]:2.0f}%", "")]
    return parts


def _bar(pace: Pace, width: int) -> list[Part]:
    """Return the phases at their lengths; rounding errors stay invisible."""
    parts: list[Part] = []
    at, total = 0, 0.0
    for phase in PHASES:
        total += pace.phases[phase]
        end = round(min(max(total, at / width), 1.0) * width)  # whatever a log says
        parts.append((FILLS[phase] * (end - at), phase))
        at = end
    return parts if at else [("╌" * width, "rest")]
