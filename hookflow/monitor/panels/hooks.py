"""The hooks that cost most, why a hook fires where it does, its page, and the phases of an iteration."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from textual.strip import Strip

from hookflow.events.packing import bounds
from hookflow.events.records import PHASES
from hookflow.graph.offload import is_thinned
from hookflow.graph.plan import Binding, Plan, PlannedHook
from hookflow.graph.points import Loop
from hookflow.graph.render.text import place_of
from hookflow.graph.slots import wider
from hookflow.graph.why import neighbours
from hookflow.monitor.charts import heights
from hookflow.monitor.costs import COSTS, cost_of
from hookflow.monitor.health import bottleneck, verdict
from hookflow.monitor.panels.events import traceback
from hookflow.monitor.style import Part, cells, definition, empty, row, scrolled, spread
from hookflow.monitor.view import Page, Scene
from hookflow.numbers import aligned, duration, frequency, percent, plural, rough
from hookflow.text import cut, fit, fit_name


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


def slowest(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return a heading and as many bindings as there is room for, what took most of the last minute first."""
    room, past = (12, "over the run") if width >= 56 else (7, "the run")
    name = max(width - room - 18, 8)
    rows = [row(width, (f" {fit('hook @ point', name)}   p50      %it {past}", "dim"))]
    ranked = sorted(scene.plan.bindings, key=scene.spent, reverse=True)
    for binding in ranked[: height - 1]:
        each = cost_of(scene.state, scene.plan, scene.pace, binding, scene.view.whole)
        label = fit(f"{fit_name(binding.hook, min(cell_len(binding.hook), name))} @ {binding.point}", name)
        p50 = "·   " if each.ns is None else aligned(each.ns)
        share = "·" if each.share is None else percent(each.share)
        drawn = heights(scene.state.histories.of(binding).means(scene.state.it + 1, room))
        parts: list[Part] = [(f" {label} {p50:>8} {share:>5} ", "" if each.recent else "dim"), (drawn, "heat2")]
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


DECIDED = {"phase": "of an earlier phase", "file": "which the file has before it", "edge": ""}
"""Sentences about the hook above, where no edge leads from it."""


def tied(plan: Plan, binding: Binding, *, before: bool = False) -> dict[str, list[str]]:
    """Return the hooks for which a binding waits, or those that wait for it, by the places of the edges."""
    at_place: dict[str, dict[str, None]] = {}
    for edge in plan.edges_at(binding.point):
        if binding.id == (edge.first_id if before else edge.then_id):
            at_place.setdefault(place_of(edge), {})[edge.then if before else edge.first] = None
    return {place: [*hooks] for place, hooks in at_place.items()}


def reasons(scene: Scene, binding: Binding) -> Iterator[tuple[str, str]]:
    """Yield for whom it waits and what says so, who waits for it, the data that it reads and writes, its phase."""
    plan, point = scene.plan, binding.point
    for name in ("after", "before"):
        at_place = tied(plan, binding, before=name == "before")
        for place, hooks in at_place.items():
            yield name, f"{', '.join(hooks)}   {place}"
        if name == "after" and not at_place:
            answer = next((each for each in neighbours(plan, point) if each.then is binding), None)
            decided = answer and f"{answer.first.hook}, {DECIDED[answer.reason]}"
            yield "after", decided or "nothing: it is the first here"
        if name == "before" and not at_place:
            yield "before", "nothing here waits for it"
    for slot in binding.reads:
        yield "reads", f"{slot}{_writer(plan, binding, slot)}"
    if binding.writes:
        yield "writes", ", ".join(binding.writes)
    own = plan.hook(binding.hook).phase
    moved = binding.phase != own and binding.half != "exit"
    yield "phase", binding.phase + f"   an edge moves it from {own}" * moved
    yield "fires", (f"{binding.trigger}" or "always") + ", on rank 0 alone" * (plan.hook(binding.hook).ranks == "zero")
    for edge in dict.fromkeys(passed.edge for passed in plan.given_way if passed.edge.point == point):
        if binding.id in (edge.first_id, edge.then_id):
            yield "no edge", f"{edge.first} → {edge.then}   {place_of(edge)}, which gave way"


def _writer(plan: Plan, binding: Binding, slot: str) -> str:
    """Return who writes a slot last before a binding reads it, in this round of the loop or the one before."""
    loop = Loop(plan.points, validates_in_epoch=False)
    again = [each for each in plan.bindings[binding.id + 1 :] if loop.common(each.point, binding.point)]
    order = [*again, *plan.bindings[: binding.id]]
    touching = (each for each in order[::-1] if any(slot in (w, *wider(w)) or w in wider(slot) for w in each.writes))
    if not (writer := next(touching, None)):
        return ""
    where = "" if writer.point == binding.point else f" @ {writer.point}"
    return f"   written by {writer.hook}{where}"


def hook_page(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return a hook at one point in full: its last error, declaration, durations, and why it fires there."""
    binding, inner = scene.picked, width - 2
    if binding is None:
        return empty("hook", "no hook is bound to this point", width, height)
    lines = [row(inner)]
    if error := scene.state.errors.get((binding.hook, binding.point)):
        lines += [row(inner, (f" ✗ last error, iteration {error['it']}", "error"))]
        lines += [*traceback(error["traceback"], inner), row(inner)]
    for name, text in (*_facts(scene, binding), *reasons(scene, binding)):
        lines += definition(inner, f" {name}", text, 11)
    lines += [row(inner), *_histogram(scene, binding, inner)]
    return scrolled(f"hook {binding.hook} @ {binding.point}", lines, width, height, scene.view.scroll)


def _facts(scene: Scene, binding: Binding) -> Iterator[tuple[str, str]]:
    hook, timing = scene.plan.hook(binding.hook), scene.state.first.timing(binding.id)
    yield "what", f"{hook.use}   {hook.about}"
    yield "declared", hook.where
    yield "arguments", hook.written_args or "none"
    if changes := _changes(scene, hook):
        yield "set", ", ".join(changes)
    if is_thinned(scene.plan, binding):
        yield "throttled", _throttled(scene, hook)
    half = "" if binding.half == "whole" else f"  {binding.half}"
    yield "method", f"{binding.method or hook.use}({', '.join(binding.takes)}){half}"
    yield "on error", hook.on_error
    if (off := scene.state.disabled.get(binding.hook)) is not None:
        yield "off", f"since iteration {off}"
    for name, each in (("last 60 s", timing.firings(scene.since(binding))), ("attempt", timing.firings())):
        if each.count:
            figures = {"p50": each.percentile(0.5), "p95": each.percentile(0.95), "max": each.longest}
            took = "   ".join(f"{figure} {aligned(ns)}" for figure, ns in figures.items())
            yield name, f"{each.count} {plural(each.count, 'firing')}   {took}"
    if not timing.count:
        yield "attempt", "has not fired yet"
    if slower := timing.slower:
        yield "slower", f"{slower}: {duration(slower.ns)} a firing, {duration(slower.usual)} before"
    inside = scene.plan.points.in_iteration(binding.point)
    used = f"{percent(scene.share(binding))} %" if inside else "none: it fires outside iterations"
    yield "%it", f"{used}   last firing {duration(timing.last)}"
    if beside := scene.state.first.beside.get(binding.id):
        yield "beside", f"{beside}"


def _throttled(scene: Scene, hook: PlannedHook) -> str:
    """Return how often a throttled hook fires now."""
    since = scene.state.throttled.get(hook.name)
    now = f", since iteration {since['it']}" if since else ""
    return f"{frequency(since['every'] if since else 1)}{now}; its budget is {hook.throttle}"


def _changes(scene: Scene, hook: PlannedHook) -> list[str]:
    """Return the arguments that commands have set, with the iterations done then."""
    changes = [change for argument in hook.settable if (change := scene.state.setting(hook.name, argument))]
    return [f"{change['args'][0].removeprefix(f'{hook.name}.')} since iteration {change['it']}" for change in changes]


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


HOOK = Page("hook", hook_page)
