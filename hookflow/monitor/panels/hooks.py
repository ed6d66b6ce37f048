"""The points, the hooks of one in the order of firing with what each costs, and the page of a hook."""

import math
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from textual.strip import Strip

from hookflow.events.packing import bounds
from hookflow.events.records import PHASES
from hookflow.graph.offload import is_thinned
from hookflow.graph.plan import Binding, PlannedHook
from hookflow.graph.render.text import gutter
from hookflow.graph.why import rows_of
from hookflow.monitor.costs import COSTS
from hookflow.monitor.durations import WINDOW, Timing
from hookflow.monitor.health import bottleneck, verdict
from hookflow.monitor.panels.events import traceback
from hookflow.monitor.style import SPARKS, Part, boxed, cells, definition, empty, row, scrolled, spread, window
from hookflow.monitor.view import Page, Scene
from hookflow.numbers import aligned, duration, frequency, many, percent, plural, rough
from hookflow.text import cut, fit, fit_name

HEAT, THRESHOLDS = " ░▒▓█", (0.001, 0.01, 0.1)
"""Shares of a stretch of time from which on the heat is one step hotter; any firing at all is the first step."""


def point_list(scene: Scene, width: int, height: int) -> list[Strip]:
    inner, room = width - 2, height - 3
    wide = inner >= 44
    stretches = next(count for count in (*TRENDS, 4) if count <= max(inner - (36 if wide else 30), 4))
    name = inner - stretches - (11 if wide else 8)
    shown = scene.shown_points
    part = window(len(shown), room, shown.index(scene.point) if scene.point in shown else 0)
    past = fit("last 60 s" if stretches > 8 else "60 s", stretches)
    head = f" {fit('point', name)}{'  # ' if wide else ' '}{past} {'%it':>5}"
    body = [_point_line(scene, point, name, stretches, wide, inner) for point in shown[part]]
    hidden, below = len(scene.points) - len(shown), len(shown) - part.stop
    hint = f"f shows {hidden} idle" if hidden else "f hides idle"
    hint = f"{f'↑ {part.start} ' * bool(part.start)}↓ {below} more" if below > 0 else hint
    return boxed("[1] points", [row(inner, (head, "dim")), *body], width, height, scene.focus == 1, hint)


def _point_line(scene: Scene, point: str, name: int, stretches: int, wide: bool, inner: int) -> Strip:
    bound, here = scene.plan.at(point), point == scene.point
    label = " " * scene.plan.points[point].depth + point if wide else point
    counts = [scene.state.first.timing(binding.id).cells(scene.state.now, stretches) for binding in bound]
    heat = [(sum(fired for fired, _ in cell), sum(ns for _, ns in cell)) for cell in zip(*counts, strict=True)]
    alive = any(fired for fired, _ in heat)
    style = "picked" if here else "" if alive else "dim" if bound else "faint"
    parts: list[Part] = [("▸" if here else " ", "focus"), (fit_name(label, name), style)]
    parts.append((f" {len(bound) or '':>2} " if wide else " ", "dim"))
    for fired, ns in heat or [(0, 0)] * stretches:
        share = ns / (WINDOW / stretches * 1e9)
        level = 1 + sum(share >= threshold for threshold in THRESHOLDS) if fired else 0
        parts.append((HEAT[level], f"heat{level}" if level else ""))
    used = percent(scene.share(*bound)) if alive and scene.plan.points.in_iteration(point) else "·" if bound else ""
    return row(inner, *parts, (f" {used:>5}", style if alive or here else "faint"), picked=here)


def _move_point(scene: Scene, step: int) -> None:
    shown = scene.shown_points
    at = shown.index(scene.point) if scene.point in shown else 0
    scene.view.point, scene.view.hook = shown[min(max(at + step, 0), len(shown) - 1)], 0


WIDTHS = {"count": 5, "last": 8, "p50": 8, "p95": 8, "max": 8, "%it": 5}
"""The columns of figures, and the cells of each."""

BY_WORTH = ("p50", "%it", "trend", "p95", "last", "max", "count")
"""The columns in the order in which they get their room."""

TRENDS = (60, 30, 20, 15, 12, 10, 6, 5)
"""The cells that the trend may have."""


def hooks(scene: Scene, width: int, height: int) -> list[Strip]:
    inner, focused = width - 2, scene.focus == 2
    bound = scene.plan.at(scene.point)
    lanes = gutter(len(bound), rows_of(scene.plan, scene.point))
    lead = max((len(prefix) + 1 for prefix in lanes if prefix), default=0)
    name = min(max([4, *(cell_len(binding.hook) for binding in bound)]), 24 if inner >= 60 else 12)
    columns, stretches = _choose(inner - 3 - lead - name)
    head = " " * (1 + lead) + fit("hook", name) + "".join(f" {f'{column:>5}':<{WIDTHS[column]}}" for column in columns)
    head += f" {fit('trend 60 s' if stretches > 9 else '60 s', stretches)}"
    lines = [row(inner, (head, "dim"))]
    part = window(len(bound), height - 3, bound.index(scene.picked) if scene.picked else 0)
    for binding, prefix in list(zip(bound, lanes, strict=True))[part]:
        timing, picked = scene.state.first.timing(binding.id), binding is scene.picked and focused
        parts: list[Part] = [("▸" if picked else " ", "focus"), (prefix + " " * bool(lead), "edge")]
        parts.append((fit_name(binding.hook, name), "picked" if picked else "" if timing.count else "dim"))
        figures, recent = _figures(scene, binding)
        for column in columns:
            quiet = not recent or column in ("last", "count", "max")
            parts.append((f" {figures[column]:>{WIDTHS[column]}}", "dim" if quiet else ""))
        if stretches:
            parts += [" ", (trend(timing, scene.state.now, stretches), "train")]
        lines.append(row(inner, *parts, mark(scene, binding), picked=picked))
    if not bound:
        why = "nothing is bound to this point" if scene.plan.bindings else "no hooks are known yet"
        lines.append(row(inner, (f" {why}", "dim")))
    below = len(bound) - part.stop
    window_of = ("of the run: v" if scene.view.whole else "last 60 s: v") * (inner > 45)
    hint = f"↓ {below} more" if below > 0 else window_of
    if scene.picked and mark(scene, scene.picked) == ("▲", "warn"):
        hint = f"▲ {scene.state.first.timing(scene.picked.id).slower}"
    return boxed(f"[2] hooks @ {scene.point}" if scene.point else "[2] hooks", lines, width, height, focused, hint)


def _choose(room: int) -> tuple[list[str], int]:
    """Return the columns that have room, and how many cells the trend gets (none where there is no room)."""
    chosen = set()
    for name in BY_WORTH:
        if (wide := WIDTHS.get(name, TRENDS[-1])) < room:
            chosen.add(name)
            room -= wide + 1
    stretches = next(count for count in TRENDS if count <= TRENDS[-1] + room) if "trend" in chosen else 0
    return [name for name in WIDTHS if name in chosen], stretches


def _figures(scene: Scene, binding: Binding) -> tuple[dict[str, str], bool]:
    """Return the figures of the window, and whether it has any: those of what seldom fires are of the whole attempt."""
    timing, used = scene.state.first.timing(binding.id), scene.share(binding)
    shown = timing.firings(-math.inf if scene.view.whole else scene.since(binding))
    recent = shown.count > 0
    shown = shown if recent else timing.firings()
    ns = {"last": timing.last, "p50": shown.percentile(0.5), "p95": shown.percentile(0.95), "max": shown.longest}
    figures = {name: aligned(value) if shown.count else "·   " for name, value in ns.items()}
    return figures | {"count": many(shown.count) if shown.count else "·", "%it": percent(used) if used else "·"}, recent


def trend(timing: Timing, now: float, stretches: int) -> str:
    """Return the mean duration of a firing over the last minute: a character a stretch, a quarter high as usual."""
    top = 4 * timing.total / (timing.count or 1) or 1.0
    means = [ns / fired if fired else None for fired, ns in timing.cells(now, stretches)]
    return "".join(" " if mean is None else SPARKS[min(int(mean / top * 8), 7)] for mean in means)


def mark(scene: Scene, binding: Binding) -> Part:
    """Return a sign at the end of the row: it has failed, is off, or has become slower and costs something."""
    state, timing = scene.state, scene.state.first.timing(binding.id)
    if binding.hook in state.disabled:
        return ("⊘", "error")
    if (binding.hook, binding.point) in state.errors:
        return ("✗", "error")
    if binding.hook in state.throttled and is_thinned(scene.plan, binding):
        return ("▾", "warn")
    return ("▲", "warn") if timing.slower and scene.share(binding) >= COSTS else ""


def _move_hook(scene: Scene, step: int) -> None:
    scene.view.hook = min(max(scene.view.hook + step, 0), max(len(scene.plan.at(scene.point)) - 1, 0))


def slowest(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return a heading and as many bindings as there is room for, what took most of the last minute first."""
    stretches = 12 if width >= 72 else 6 if width >= 56 else 4
    name = max(width - stretches - 18, 8)
    rows = [row(width, (f" {fit('hook @ point', name)}   p50      %it 60 s", "dim"))]
    ranked = sorted(scene.plan.bindings, key=scene.spent, reverse=True)
    for binding in ranked[: height - 1]:
        known, _ = _figures(scene, binding)
        style = "" if scene.spent(binding) else "dim"
        label = fit(f"{fit_name(binding.hook, min(cell_len(binding.hook), name))} @ {binding.point}", name)
        past = trend(scene.state.first.timing(binding.id), scene.state.now, stretches)
        parts: list[Part] = [(f" {label} {known['p50']} {known['%it']:>5} ", style), (past, "train")]
        rows.append(row(width, *parts, mark(scene, binding)))
    return rows


FILLS = {"data": "░", "forward": "█", "backward": "▓", "optimizer": "▒", "hooks": "▚", "other": "╌"}
SHORT = {"forward": "fwd", "backward": "bwd", "optimizer": "opt"}


def anatomy_lines(scene: Scene, width: int) -> list[Strip]:
    """Return two rows: the bar, and its legend with the verdict, or with why the run ended.

    The sentence of a run that is in trouble takes the legend's place.
    """
    pace, health = scene.pace, scene.health
    bar = row(width, *(phase_bar([(FILLS[p], p, pace.phases[p] * width) for p in PHASES], width, pace.whole)))
    alone = row(width, (f" {cut(health.sentence, width - 2)} ", "alarm" if health.bad else "strong"))
    if health.sentence and (health.bad or not pace.iters_per_s):
        return [bar, alone]
    if not pace.iters_per_s:
        return [bar, row(width, (" no training iteration yet", "dim"))]
    wide = width >= 100
    message = f"{bottleneck(scene.state, pace)} {rough(1e3 / pace.iters_per_s)} ms/it"
    message = health.sentence or (verdict(scene.state, scene.plan, pace) if wide else message)
    for phases, short in ((PHASES, not wide), (PHASES[:-1], not wide), (PHASES[:-1], True)):
        legend: list[Part] = []
        for phase in phases:
            word = SHORT.get(phase, phase) if short else phase
            legend += [(f" {FILLS[phase]} ", phase), (f"{word} ", "dim"), (f"{100 * pace.phases[phase]:2.0f}%", "")]
        if cells(*legend) + len(message) + 3 <= width:
            return [bar, spread(width, legend, [(f"{message} ", "strong")])]
    if health.sentence:
        room = width - cells(*legend) - 3
        return [bar, spread(width, legend, [(f"{cut(message, room)} ", "strong")]) if room >= READABLE else alone]
    return [bar, row(width, *legend)]


READABLE = 20
"""Cells that a sentence needs beside the legend."""


def phase_bar(lengths: Sequence[tuple[str, str, float]], width: int, known: object = True) -> list[Part]:
    """Return stretches of one bar: each a character, a style and a length; rounding errors do not add up."""
    parts: list[Part] = []
    at, total = 0, 0.0
    for fill, style, length in lengths:
        total += length
        end = min(max(round(total), at), width)  # whatever a log says
        parts.append((fill * (end - at), style))
        at = end
    return [*parts, (" " * (width - at), "")] if known else [("╌" * width, "rest")]


def hook_page(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return a hook at one point in full: its declaration, edges, durations and last error."""
    binding, inner = scene.picked, width - 2
    if binding is None:
        return empty("hook", "no hook is bound to this point", width, height)
    unordered = row(inner, (f" {'edges':<10}", "dim"), "none: only phase and the file's order place it")
    lines = [row(inner)]
    if error := scene.state.errors.get((binding.hook, binding.point)):
        lines += [row(inner, (f" ✗ last error, iteration {error['it']}", "error"))]
        lines += [*traceback(error["traceback"], inner), row(inner)]
    lines += [*_facts(scene, binding, inner), row(inner)]
    lines += _edges(scene, binding, inner) or [unordered]
    lines += [row(inner), *_histogram(scene, binding, inner)]
    return scrolled(f"hook {binding.hook} @ {binding.point}", lines, width, height, scene.view.scroll)


def _facts(scene: Scene, binding: Binding, width: int) -> list[Strip]:
    hook, timing = scene.plan.hook(binding.hook), scene.state.first.timing(binding.id)
    inside = scene.plan.points.in_iteration(binding.point)
    used = f"{percent(scene.share(binding))} %" if inside else "none: it fires outside iterations"
    times = {"last 60 s": timing.firings(scene.since(binding)), "attempt": timing.firings()}
    figures = {
        name: f"{each.count} {plural(each.count, 'firing')}   p50 {aligned(each.percentile(0.5))}"
        f"   p95 {aligned(each.percentile(0.95))}   max {aligned(each.longest)}"
        for name, each in times.items()
        if each.count
    }
    if slower := timing.slower:
        figures["slower"] = f"{slower}: {duration(slower.ns)} a firing, {duration(slower.usual)} before"
    half = "" if binding.half == "whole" else f"  {binding.half}"
    moved = binding.half != "exit" and binding.phase != hook.phase  # the second half of an around mirrors it anyway
    facts = {
        "what": f"{hook.use}   {hook.about}",
        "declared": hook.where,
        "arguments": hook.written_args or "none",
        **({"set": ", ".join(changes)} if (changes := _changes(scene, hook)) else {}),
        "fires": (f"{binding.trigger}" or "always") + (", on rank 0 alone" if hook.ranks == "zero" else ""),
        **_throttled(scene, binding),
        "method": f"{binding.method or hook.use}({', '.join(binding.takes)}){half}",
        "phase": binding.phase + (f"   (an edge moves it from {hook.phase})" if moved else ""),
        "reads": ", ".join(binding.reads) or "nothing declared",
        "writes": ", ".join(binding.writes) or "nothing declared",
        "on error": hook.on_error,
        **({"off": f"since iteration {off}"} if (off := scene.state.disabled.get(binding.hook)) is not None else {}),
        **(figures or {"attempt": "has not fired yet"}),
        "%it": f"{used}   last firing {duration(timing.last)}",
        **({"beside": f"{beside}"} if (beside := scene.state.first.beside.get(binding.id)) else {}),
    }
    return [line for name, value in facts.items() for line in definition(width, f" {name}", value, 11)]


def _throttled(scene: Scene, binding: Binding) -> dict[str, str]:
    """Return how often a throttled binding fires now."""
    hook, since = scene.plan.hook(binding.hook), scene.state.throttled.get(binding.hook)
    if not is_thinned(scene.plan, binding):
        return {}
    now = f", since iteration {since['it']}" if since else ""
    return {"throttled": f"{frequency(since['every'] if since else 1)}{now}; its budget is {hook.throttle}"}


def _changes(scene: Scene, hook: PlannedHook) -> list[str]:
    """Return the arguments that commands have set, with the iterations done then."""
    changes = [change for argument in hook.settable if (change := scene.state.setting(hook.name, argument))]
    return [f"{change['args'][0].removeprefix(f'{hook.name}.')} since iteration {change['it']}" for change in changes]


def _edges(scene: Scene, binding: Binding, width: int) -> list[Strip]:
    point, plan = binding.point, scene.plan
    given_way = dict.fromkeys(provided.edge for provided in plan.given_way if provided.edge.point == point)
    lines = []
    for edge in (*plan.edges_at(point), *given_way):
        if binding.id in (edge.first_id, edge.then_id):
            after = edge.then_id == binding.id
            text: list[Part] = [(f" {'after' if after else 'before':<10}", "dim")]
            text.append(f"{edge.first if after else edge.then:<24}")
            source = f"flow: {', '.join(edge.slots)}" if edge.kind == "flow" else f"{edge.kind}: {edge.where}"
            lines.append(row(width, *text, (f" {source}{', given way' * (edge in given_way)}", "dim")))
    return lines


def _histogram(scene: Scene, binding: Binding, width: int) -> Iterator[Strip]:
    """Yield a bar for each duration that occurred, the quickest first, to an eighth of a cell."""
    firings = scene.state.first.timing(binding.id).firings()
    bins = sorted((index, fired) for index, fired in firings.bins.items() if fired)
    if not bins:
        return
    yield row(width, (" duration, firings", "dim"))
    most, room, before = max(count for _, count in bins), max(width - 30, 1), bins[0][0]
    for index, count in bins:
        if index > before + 1:
            yield row(width, (f"{'⋮':>10}", "dim"))
        eighths = max(round(count / most * room * 8), 1)
        bar = fit("█" * (eighths // 8) + "▏▎▍▌▋▊▉"[eighths % 8 - 1 : eighths % 8], room)
        yield row(width, (f" {aligned(bounds(index)[0])}  ", "dim"), (bar, "train"), f"{count:>9}")
        before = index


POINTS = Page("points", point_list, move=_move_point, enter=lambda scene: setattr(scene.view, "focus", 2))
HOOKS = Page("hooks", hooks, move=_move_hook, enter=lambda scene: scene.view.open("hook"))
HOOK = Page("hook", hook_page)
