"""The top of the screen: which run, how it is, how far it is."""

from __future__ import annotations

from rich.cells import cell_len
from textual.strip import Strip

from hookflow.monitor.formatting import many, number, out_of, span
from hookflow.monitor.monitored import monitored
from hookflow.monitor.style import Part, bar, fit, row, spread
from hookflow.monitor.view import Scene

CONDITION_STYLES = {
    "starting": "warn",
    "running": "good",
    "finished": "good",
    "stalled": "alarm",
    "lost": "alarm",
    "failed": "error",
    "unreadable": "error",
    "paused": "warn",
    "stopped": "warn",
    "interrupted": "warn",
}


def title(scene: Scene, width: int) -> Strip:
    """Return the first row; what matters least goes first when there is no room."""
    state, health = scene.state, scene.health
    run = state.run
    state_word: Part = (f"{health.glyph} {health.condition.upper()}", CONDITION_STYLES.get(health.condition, "strong"))
    badge = scene.badge if width >= 76 else scene.badge.split(" / ")[0]
    right: list[Part] = [
        *_counts(scene),
        (f" {badge} ", "badge" if scene.badge.startswith(("REPLAY", "FROZEN")) else "strong"),
    ]
    if state.synthetic:
        right = [(" SYNTHETIC DATA ", "alarm") if width >= 76 else (" SYNTHETIC ", "alarm"), " ", *right]
    if state.limited:
        right = [(" LIMITED DATA " if width >= 76 else " LIMITED ", "alarm"), " ", *right]
    items: list[tuple[int, Part]] = [
        (7 if width >= 100 else 3, ("hookflow", "title")),
        (8, (scene.path.parent.name, "strong")),
        (5, (f"#{scene.short_id}", "dim")),
        (6, (f"SHUFFLED {scene.plan.shuffle}" if scene.plan.shuffle is not None else "", "warn")),
        (9, state_word),
        (6, (span(state.elapsed), "")),
        (6, (f"{state.ranks.world} ranks" if scene.several else "", "")),
        (5 if width >= 100 else 2, (_best(scene), "good")),
        (4, (f"{run.get('device', '')} {run.get('precision', '')}".strip(), "dim")),
        (2, (f"pid {run['pid']}@{run['host']}" if run else "", "dim")),
        (1, (f"{run.get('model', '')} {many(run['params'])} params" if run.get("params") else "", "dim")),
    ]
    room = width - 1 - sum(cell_len(part if isinstance(part, str) else part[0]) for part in right)
    items = [item for item in items if item[1][0]]
    while len(items) > 1 and sum(cell_len(part[0]) + 2 for _, part in items) > room:
        items.remove(min(items, key=lambda item: item[0]))
    left: list[Part] = [" "]
    for _, part in items:
        left += [part, "  "]
    return spread(width, left, right)


def _best(scene: Scene) -> str:
    """Return the best value of the metric that the run is judged by, if there is one."""
    best = scene.state.metrics.best
    return next((f"best {name} {number(best[name].value)}" for name in monitored(scene.plan) if name in best), "")


def _counts(scene: Scene) -> list[Part]:
    journal = scene.state.journal
    return [
        (f"▲{journal.warnings} ", "warn" if journal.warnings else "faint"),
        (f"✗{journal.errors}", "error" if journal.errors else "faint"),
        " ",
    ]


def progress(scene: Scene, width: int) -> Strip:
    """Return the second row: epochs, the pass at hand, speed, and the time that is left."""
    state = scene.state
    if not state.run:
        return _before(scene, width)
    run, pace = state.run, scene.pace
    done = state.it / state.total_iters if state.total_iters else 0.0
    eta = "ended" if state.end else span(pace.eta) if pace.eta is not None else "–:––:––"
    right: list[Part] = [(f"{pace.iters_per_s:6.1f} it/s", ""), "  "]
    if width >= 100:
        unknown = pace.iters_per_s and not pace.samples_per_s  # nobody has said how many examples a batch has
        right += [(f"{'–' if unknown else many(pace.samples_per_s):>5} samples/s", ""), "  "]
    right += [("ETA ", "dim"), (f"{eta:>9} ", "strong")]
    if run.get("max_epochs"):
        whole = f"epoch {state.epoch:>{len(str(run['max_epochs']))}}/{run['max_epochs']}"
    else:
        whole = f"iter {out_of(state.it, state.total_iters):>{2 * len(str(state.total_iters)) + 1}}"
    if width < 76:
        whole = whole.replace("epoch", "ep")
    word = {"train": "iter", "val": "val ", "test": "test"}.get(state.stage)
    known = word is not None and state.batches > 0  # the first frame may come before the first batch
    batch = state.stage if state.end is None else ""
    if known:
        batch = f"{word} {state.batch:>{len(str(state.batches))}}/{state.batches}"
    taken = (
        1
        + len(whole)
        + 1
        + 5
        + 2
        + len(batch)
        + 1
        + 2
        + sum(len(part if isinstance(part, str) else part[0]) for part in right)
    )
    room = max(width - taken, 0)
    first = min(room * 3 // 5 if known else room, 40)
    left: list[Part] = [" ", (whole, ""), " ", *bar(first, done), (f" {100 * done:3.0f}%", "strong"), "  "]
    left += [(batch, ""), " "]
    left += bar(min(room - first, 30), state.batch / state.batches) if known else []
    return spread(width, left, right)


def _before(scene: Scene, width: int) -> Strip:
    """Return what is known before the run has begun: the last message, as of a download."""
    newest = scene.entry.text if scene.entry else "importing torch, building the model and the data"
    return row(width, (f" {scene.health.condition}: ", "dim"), (fit(newest, max(width - 13, 1)), ""))
