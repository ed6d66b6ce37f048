"""A traced iteration as a waterfall: each phase and firing in the order in which it began, over the time it took."""

from functools import partial
from itertools import pairwise

from rich.cells import cell_len
from textual.strip import Strip

from hookflow.events.commands import TRACED
from hookflow.monitor.costs import Spans, Traced
from hookflow.monitor.panels.hooks import FILLS
from hookflow.monitor.style import boxed, empty, row
from hookflow.monitor.view import Action, Notice, Page, Scene, send
from hookflow.numbers import ms, out_of
from hookflow.text import fit, fit_name

OTHERS = {"hook": ("▚", "hooks"), "outside": ("▶", "dim")}
"""The characters and styles of what is no phase."""

FIGURES = 15
"""Cells for the duration and the share of a row, with those around them."""


def waterfall(scene: Scene, width: int, height: int) -> list[Strip]:
    inner, room = width - 2, height - 3
    if not scene.trace:
        why = "no iteration is traced yet" + f": t traces the next {TRACED}" * scene.can_act
        return empty("trace", _going_on(scene) or why, width, height)
    if isinstance(scene.trace, str):
        return empty("trace", scene.trace, width, height)
    at = min(scene.view.traced, len(scene.trace) - 1)
    traced = scene.trace[at]
    name = min(max((cell_len(_label(each)) for each in traced.rows), default=0), inner * 2 // 5)
    first = min(scene.view.scroll, max(len(traced.rows) - room, 0))
    shown = traced.rows[first : first + room]
    lines = [_axis(traced, name, inner), *(_line(each, traced, name, inner) for each in shown)]
    device = f", {ms(traced.device * 1e3)} ms on the device" if traced.device is not None else ""
    title = f"trace  iteration {traced.it}  {ms(traced.micros * 1e3)} ms{device}  {out_of(at + 1, len(scene.trace))}"
    below = len(traced.rows) - first - len(shown)
    hint = _going_on(scene) or (f"↓ {below} more" if below else "esc back")
    return boxed(title, lines, width, height, True, hint)


def _going_on(scene: Scene) -> str:
    """Return which iterations are being traced now; empty where none are."""
    state, answers = scene.state, [each.answer for each in scene.state.requests.values() if each.cmd == "trace"]
    answer = answers[-1] if answers else None
    begun = max(state.run.get("t", 0.0), *(each["t"] for each in state.traces[-1:]), 0.0)
    is_traced = answer and answer["ok"] and answer["t"] > begun and not scene.health.over
    return f"tracing {answer['note']}: {state.it:,} is done" if answer and is_traced else ""


def _label(each: Spans) -> str:
    times = f" ×{len(each.parts)}" if len(each.parts) > 1 else ""
    return f"{'  ' * each.depth}{each.name}{times}"


def _axis(traced: Traced, name: int, inner: int) -> Strip:
    """Return the head: the times at the quarters of the iteration, in milliseconds."""
    micros, device = traced.micros, "" if traced.device is None else "  device"
    wide = inner - name - FIGURES - len(device)
    marks = [f"│{ms(micros * 1e3 * k / 4)}" for k in range(4 if wide >= 40 else 1)]
    places = [round(wide * k / len(marks)) for k in range(len(marks) + 1)]
    scale = "".join(f"{mark:<{stop - start}}" for mark, (start, stop) in zip(marks, pairwise(places), strict=True))
    return row(inner, (f" {fit('', name)}    ms{device}   %it  {scale}", "dim"))


def _line(each: Spans, traced: Traced, name: int, inner: int) -> Strip:
    micros, device = traced.micros, ""
    if traced.device is not None:
        device = f"{'·' if each.device is None else ms(each.device * 1e3):>8}"
    wide = inner - name - FIGURES - len(device)
    cells = [" "] * wide
    fill, style = OTHERS.get(each.kind) or (FILLS[each.kind], each.kind)
    for begin, duration in each.parts:
        start = min(int(begin / micros * wide), wide - 1)
        stop = min(max(round((begin + duration) / micros * wide), start + 1), wide)
        cells[start:stop] = [fill if duration / micros * wide >= 0.5 else "▏"] * (stop - start)
    share = f"{100 * each.total / micros:5.1f}" if each.kind != "outside" else "    ·"
    figures = f" {fit_name(_label(each), name)} {ms(each.total * 1e3):>5}{device} {share}  "
    return row(inner, (figures, "" if each.kind in OTHERS else "strong"), ("".join(cells), style))


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
