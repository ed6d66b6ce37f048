"""One hook at one point, or one event, in full."""

from __future__ import annotations

from textual.strip import Strip

from hookflow.events.histogram import bounds
from hookflow.graph.plan import Binding, PlannedHook
from hookflow.monitor.charts import ticks
from hookflow.monitor.journal import Entry
from hookflow.monitor.state import Saved
from hookflow.monitor.style import Part, boxed, row
from hookflow.monitor.view import Scene, charts
from hookflow.numbers import clock, ms, number, percent, plural, size, span
from hookflow.text import fit, wrapped


def checkpoint(scene: Scene, saved: Saved, width: int) -> list[Strip]:
    """Return the rows of the page."""
    return [line for name, value in _checkpoint_facts(scene, saved) for line in _rows(name, value, width)]


def _checkpoint_facts(scene: Scene, saved: Saved) -> list[tuple[str, str]]:
    folder = scene.path / saved.path
    metrics = "   ".join(f"{name} {number(value)}" for name, value in saved.metrics.items())
    if metrics and saved.metrics_it != saved.it:
        metrics += f"   (of iteration {saved.metrics_it})"
    facts = [
        ("names", f"{', '.join(saved.names) or 'none'}   (when it was saved)"),
        ("iteration", f"{saved.it}   after {saved.ep} epoch{'s' * (saved.ep != 1)}"),
        ("metrics", metrics or "none yet"),
        ("size", f"{size(saved.bytes)}, written in {saved.ms:.0f} ms"),
        ("path", str(folder)),
        ("", ""),
    ]
    weights = scene.kept.get(folder.name)
    if not weights:
        return [*facts, ("removed", "it is not on the disk any more: newer or better ones have replaced it")]
    newest = "" if saved.it == scene.state.checkpoints[-1].it else "   (from the newest checkpoint, which this is not)"
    return [
        *facts,
        ("weights", ", ".join(weights)),
        ("load them", f'torch.load("<path>/{weights[0]}", weights_only=True)'),
        ("train on", f'weights = "<path>/{weights[0]}"   under [model] in another pipeline'),
        ("resume", f"hookflow run --resume {scene.known_as}{newest}"),
        ("validate", f"hookflow val {scene.known_as}:{folder.name}"),
    ]


def _rows(name: str, value: str, width: int) -> list[Strip]:
    """Return a fact in as many rows as its words take."""
    return [
        row(width, (f" {name if not part else '':<11}", "dim"), text)
        for part, text in enumerate(wrapped(value, width - 13))
    ]


def detail(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the page that the view asks for, scrolled."""
    inner = width - 2
    if scene.view.page == "event":
        title, lines = _event(scene, inner)
    else:
        title, lines = _hook(scene, inner)
    first = min(scene.view.scroll, max(len(lines) - (height - 2), 0))
    more = len(lines) - first - (height - 2)
    return boxed(title, lines[first:], width, height, True, f"↓ {more} more" if more > 0 else "esc back")


def _event(scene: Scene, width: int) -> tuple[str, list[Strip]]:
    entry = scene.entry
    if entry is None:
        return "event", [row(width, (" nothing has happened yet", "dim"))]
    lines = [row(width)]
    lines += [row(width, " ", (text, "strong")) for text in wrapped(entry.text, width - 2)]
    lines += [row(width, (f" {_when(scene, entry)}", "dim")), row(width)]
    if entry.kind == "metrics":
        return f"{entry.glyph} {entry.source}  {clock(entry.t)}", [*lines, *_compared(scene, entry, width)]
    saved = next((saved for saved in scene.state.checkpoints if (saved.path, saved.t) == (entry.detail, entry.t)), None)
    if saved is not None:
        return f"{entry.glyph} {entry.source}  {clock(entry.t)}", [*lines, *checkpoint(scene, saved, width)]
    lines += [row(width, " ", part) for line in entry.detail.splitlines() for part in _cut(line, width - 2)]
    return f"{entry.glyph} {entry.source}  {clock(entry.t)}", lines


def _when(scene: Scene, entry: Entry) -> str:
    """Return how far the run was."""
    began = scene.state.run["t"] if scene.state.run else entry.t
    after = f"{span(entry.t - began)} after this attempt began" if entry.t >= began else "in an earlier attempt"
    return after if entry.it is None else f"iteration {entry.it}, {after}"


def _compared(scene: Scene, entry: Entry, width: int) -> list[Strip]:
    """Return the metrics of a validation or test beside those before it and the best ones."""
    state = scene.state
    lines = [row(width, (f" {'':<16} {'value':>9} {'before':>9} {'best':>9}", "dim"))]
    for name in charts(state):
        before = [value for it, value in state.metrics.by_name.get(name, []) if it < (entry.it or 0)]
        here = [value for it, value in state.metrics.by_name.get(name, []) if it == entry.it]
        if here and name.startswith("test ") == (entry.source == "test"):
            best = state.metrics.best.get(name)
            figures = (f" {number(here[-1]):>9}", f" {number(before[-1]) if before else '–':>9}")
            text = f" {number(best.value):>9}   at iteration {best.it}" if best else ""
            lines.append(row(width, f" {fit(name, 16)}", (figures[0], "strong"), (figures[1], "dim"), text))
    return lines


def _hook(scene: Scene, width: int) -> tuple[str, list[Strip]]:
    binding = scene.picked
    if binding is None:
        return "hook", [row(width, (" no hook is bound to this point", "dim"))]
    lines = [row(width), *_facts(scene, binding, width), row(width), *_edges(scene, binding, width), row(width)]
    lines += _histogram(scene, binding, width)
    error = scene.state.errors.get((binding.hook, binding.point))
    if error is not None:
        lines += [row(width), row(width, (f" ✗ last error, iteration {error['it']}", "error"))]
        lines += [row(width, " ", part) for line in error["traceback"].splitlines() for part in _cut(line, width - 2)]
    return f"hook {binding.hook} @ {binding.point}", lines


def _facts(scene: Scene, binding: Binding, width: int) -> list[Strip]:
    hook, timing = scene.plan.hook(binding.hook), scene.state.timing(binding.id)
    inside = scene.plan.points.in_iteration(binding.point)
    used = f"{percent(scene.share(binding))} %" if inside else "none: it fires outside iterations"
    figures = (
        f"{timing.count} {plural(timing.count, 'firing')}   last {ms(timing.last)}   p50 {ms(timing.percentile(0.5))}"
        f"   p95 {ms(timing.percentile(0.95))}   max {ms(timing.longest)} ms   share {used}"
    )
    facts = {
        "what": f"{hook.use}   {hook.about}",
        "declared": hook.where,
        "arguments": hook.written_args or "none",
        "fires": (f"{binding.trigger}" or "always") + (", on rank 0 alone" if hook.ranks == "zero" else ""),
        "method": f"{binding.method or hook.use}({', '.join(binding.takes)})"
        + ("" if binding.half == "whole" else f"  {binding.half}"),
        "phase": binding.phase + (f"   (an edge moves it from {hook.phase})" if _moved(binding, hook) else ""),
        "reads": ", ".join(binding.reads) or "nothing declared",
        "writes": ", ".join(binding.writes) or "nothing declared",
        "on error": f"{hook.on_error}{'   (now switched off)' if binding.hook in scene.state.disabled else ''}",
        "time": figures if timing.count else "has not fired yet",
    }
    return [
        row(width, (f" {name:<10}" if not part else " " * 11, "dim"), text)
        for name, value in facts.items()
        for part, text in enumerate(wrapped(value, width - 12))
    ]


def _edges(scene: Scene, binding: Binding, width: int) -> list[Strip]:
    given_way = dict.fromkeys(
        provided.edge for provided in scene.plan.given_way if provided.edge.point == binding.point
    )
    by_id = {other.id: other for other in scene.plan.at(binding.point)}
    parts = (part for bundle in scene.plan.bundles_at(binding.point) for part in bundle.touching({binding.id}))
    bundled = (part.edge(*bounds) for part in parts for bounds in part.pairs(by_id))
    lines = []
    for edge in (*scene.plan.edges_at(binding.point), *bundled, *given_way):
        if binding.id in (edge.first_id, edge.then_id):
            after = edge.then_id == binding.id
            other = edge.first if after else edge.then
            text: list[Part] = [(f" {'after' if after else 'before':<10}", "dim"), (fit(other, 24), "")]
            source = f"flow: {', '.join(edge.slots)}" if edge.kind == "flow" else f"{edge.kind}: {edge.where}"
            lines.append(row(width, *text, (f" {source}{', given way' * (edge in given_way)}", "dim")))
    return lines or [row(width, (f" {'edges':<10}", "dim"), "none: only phase and the file's order place it")]


def _moved(binding: Binding, hook: PlannedHook) -> bool:
    """Say whether a hook fires in another phase than its own; the second half of an `around` mirrors it anyway."""
    return binding.half != "exit" and binding.phase != hook.phase


def _histogram(scene: Scene, binding: Binding, width: int) -> list[Strip]:
    """Return a bar for each duration that occurred, the quickest first."""
    bins = scene.state.timing(binding.id).bins
    if not bins:
        return []
    lines = [row(width, (" duration in ms, firings", "dim"))]
    before = min(bins)
    edges = ticks([bounds(index)[0] / 1e6 for index in sorted(bins)], 9)
    for index, edge in zip(sorted(bins), edges, strict=True):
        if index > before + 1:
            lines.append(row(width, (f"{'⋮':>10}", "dim")))
        bar = _blocks(bins[index] / max(bins.values()), max(width - 30, 1))
        lines.append(row(width, (f" {edge:>9} ", "dim"), (bar, "train"), f"{bins[index]:>9}"))
        before = index
    return lines


def _blocks(share: float, width: int) -> str:
    """Return a bar of that share of the width, to an eighth of a cell; never quite nothing."""
    eighths = max(round(share * width * 8), 1)
    return fit("█" * (eighths // 8) + "▏▎▍▌▋▊▉"[eighths % 8 - 1 : eighths % 8], width)


def _cut(line: str, width: int) -> list[str]:
    """Return a line of a traceback in pieces that fit, as it stands."""
    return [line[at : at + width] for at in range(0, len(line), width)] or [""]
