"""Where the training is now: the hook and stack of each rank of this machine; and the trace of iterations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

from rich.cells import cell_len
from textual.strip import Strip

from hookflow.events.commands import TRACED
from hookflow.monitor.durations import Row
from hookflow.monitor.health import guilty, inside_of
from hookflow.monitor.panels.hooks import FILLS
from hookflow.monitor.style import boxed, row, scrolled
from hookflow.monitor.view import Action, Notice, Page, Scene, send
from hookflow.numbers import clock, ms, out_of
from hookflow.text import fit

BELOW = 6
"""Rows of the box that stands above the dashboard of a run that stalls."""


def page(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the page: the ranks that hold up the others come first."""
    inner, title = width - 2, "now"
    if why := _refused(scene):
        return boxed(title, [row(inner, (f" {why}", "dim"))], width, height, True, "esc back")
    if not scene.stacks:
        return boxed(title, [row(inner, (" looking …", "dim"))], width, height, True, "esc back")
    lines: list[Strip] = []
    first = guilty(scene.state, scene.plan, scene.inside)
    for rank in sorted(scene.stacks, key=lambda rank: (rank not in first, rank)):
        lines += [
            row(inner, (f" {_place(scene, rank)}", "warn" if rank in first else "strong")),
            *_frames(scene, rank, inner),
        ]
    return scrolled(f"{title}, at {clock(scene.looked)}", lines, width, height, scene.view.scroll)


def above(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return a box with the stack of the rank that holds up the training, while it stalls and there is room."""
    rank = next(iter(guilty(scene.state, scene.plan, scene.inside)), 0)
    if scene.health.condition != "stalled" or rank not in scene.stacks or height < 3 * BELOW:
        return []
    lines = [row(width - 2, (f" {_place(scene, rank)}", "warn")), *_frames(scene, rank, width - 2)]
    return boxed("stack of the training thread", lines[: BELOW - 2], width, BELOW, hint="w all of it")


def _place(scene: Scene, rank: int) -> str:
    """Return in which hook a rank is, and for how long."""
    return f"rank {rank}: " * scene.several + inside_of(scene.plan, *scene.inside.get(rank, (-1, 0.0)))


def _frames(scene: Scene, rank: int, width: int) -> Iterator[Strip]:
    frames = scene.stacks[rank] or ["its stack is not known: install py-spy"]
    for frame in frames:
        yield row(width, (f"   {fit(frame, width - 4)}", ""))


def _refused(scene: Scene) -> str:
    """Return why there is no stack; empty where there is one."""
    if scene.replay:
        return "this is a replay: the stack is that of a process that goes on"
    if scene.health.over:
        return "the run is over"
    if scene.remote:
        return "the run is on another machine: `hookflow now` shows its stack there"
    return "opened with --readonly: nothing is asked of the run" if scene.readonly else ""


def _look(scene: Scene) -> str | Notice:
    why = _refused(scene)
    return Notice(why) if why else "look"


NOW = Page(
    "now",
    page,
    "w",
    "where the training is now: the hook and the stack of each rank",
    enter=_look,
    actions=(Action("look-again", "enter", "take the stacks again", _look),),
    hints=lambda scene: [("look-again", "look again"), ("up down", "scroll")],
)


OTHERS = {"hook": ("▚", "hooks"), "outside": ("▶", "dim")}
"""The characters and styles of what is no phase."""

FIGURES = 15
"""Cells for the duration and the share of a row, with those around them."""


def waterfall(scene: Scene, width: int, height: int) -> list[Strip]:
    inner, room = width - 2, height - 3
    if isinstance(scene.trace, str) or not scene.trace:
        why = scene.trace or "no iteration is traced yet" + f": t traces the next {TRACED}" * scene.can_act
        return boxed("trace", [row(inner), row(inner, (f" {why}", "dim"))], width, height, True, "esc back")
    at = min(scene.view.traced, len(scene.trace) - 1)
    traced = scene.trace[at]
    name = min(max((cell_len(_label(each)) for each in traced.rows), default=0), inner * 2 // 5)
    first = min(scene.view.scroll, max(len(traced.rows) - room, 0))
    shown = traced.rows[first : first + room]
    lines = [_axis(traced.micros, name, inner), *(_line(each, traced.micros, name, inner) for each in shown)]
    title = f"trace  iteration {traced.it}  {ms(traced.micros * 1e3)} ms  {out_of(at + 1, len(scene.trace))}"
    below = len(traced.rows) - first - len(shown)
    return boxed(title, lines, width, height, True, f"↓ {below} more" if below else "esc back")


def _label(each: Row) -> str:
    times = f" ×{len(each.parts)}" if len(each.parts) > 1 else ""
    return f"{'  ' * each.depth}{each.name}{times}"


def _axis(micros: float, name: int, inner: int) -> Strip:
    """Return the head: the times at the quarters of the iteration, in milliseconds."""
    wide = inner - name - FIGURES
    marks = [f"│{ms(micros * 1e3 * k / 4)}" for k in range(4 if wide >= 40 else 1)]
    places = [round(wide * k / len(marks)) for k in range(len(marks) + 1)]
    scale = "".join(f"{mark:<{stop - start}}" for mark, (start, stop) in zip(marks, pairwise(places), strict=True))
    return row(inner, (f" {fit('', name)}    ms   %it  {scale}", "dim"))


def _line(each: Row, micros: float, name: int, inner: int) -> Strip:
    wide = inner - name - FIGURES
    cells = [" "] * wide
    fill, style = OTHERS.get(each.kind) or (FILLS[each.kind], each.kind)
    for begin, duration in each.parts:
        start = min(int(begin / micros * wide), wide - 1)
        stop = min(max(round((begin + duration) / micros * wide), start + 1), wide)
        cells[start:stop] = [fill if duration / micros * wide >= 0.5 else "▏"] * (stop - start)
    share = f"{100 * each.total / micros:5.1f}" if each.kind != "outside" else "    ·"
    figures = f" {fit(_label(each), name)} {ms(each.total * 1e3):>5} {share}  "
    return row(
        inner,
        (figures, "" if each.kind in OTHERS else "strong"),
        ("".join(cells), "dim" if style == "outside" else style),
    )


def _turn(step: int, scene: Scene) -> None:
    count = len(scene.trace) if not isinstance(scene.trace, str) else 0
    scene.view.traced = min(max(min(scene.view.traced, count - 1) + step, 0), max(count - 1, 0))


def _capture(scene: Scene) -> str | Notice:
    scene.view.traced = 0
    return send(scene, "trace")


TRACE = Page(
    "trace",
    waterfall,
    "t",
    "the last traced iterations as a waterfall",
    actions=(
        Action("trace", "t", f"trace the next {TRACED} iterations", _capture),
        Action("earlier-trace", "left [", "to the traced iteration before, and to the next", partial(_turn, -1)),
        Action("later-trace", "right ]", "to the traced iteration before, and to the next", partial(_turn, 1)),
        Action("first-trace", "home", "to the first traced iteration, to the last", partial(_turn, -(10**6))),
        Action("last-trace", "end", "to the first traced iteration, to the last", partial(_turn, 10**6)),
    ),
    hints=lambda scene: [
        ("earlier-trace later-trace", "iteration"),
        ("up down", "scroll"),
        *[("trace", f"trace {TRACED} more")] * scene.can_act,
    ],
)
