"""The header, the footer and the questions around every page."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from textual.strip import Strip

from hookflow.monitor.keys import KEYS
from hookflow.monitor.series import monitored
from hookflow.monitor.style import Part, bar, boxed, row, spread
from hookflow.monitor.view import Scene
from hookflow.numbers import age, many, number, out_of, span
from hookflow.text import fit, wrapped

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
        unknown = pace.iters_per_s and not pace.samples_per_s  # the number of examples in a batch is unknown
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
    used = (
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
    room = max(width - used, 0)
    first = min(room * 3 // 5 if known else room, 40)
    left: list[Part] = [" ", (whole, ""), " ", *bar(first, done), (f" {100 * done:3.0f}%", "strong"), "  "]
    left += [(batch, ""), " "]
    left += bar(min(room - first, 30), state.batch / state.batches) if known else []
    return spread(width, left, right)


def _before(scene: Scene, width: int) -> Strip:
    """Return what is known before the run has begun: the last message, as of a download."""
    newest = scene.entry.text if scene.entry else "importing torch, building the model and the data"
    return row(width, (f" {scene.health.condition}: ", "dim"), (fit(newest, max(width - 13, 1)), ""))


RECENT = 6.0
"""Seconds that the answer to a command stays in the footer."""


def footer(scene: Scene, width: int) -> Strip:
    message = _says(scene)
    parts: list[Part] = [" ", message, " "] if message else []
    left = width - sum(cell_len(part if isinstance(part, str) else part[0]) for part in parts)
    for key, word in _keys(scene):
        left -= len(key) + len(word) + 2
        if left < 0:
            break
        parts += [(f" {key} ", "strong"), (word, "dim"), " "]
        left -= 1
    return row(width, *parts)


def _says(scene: Scene) -> Part | None:
    if scene.view.asking:
        return None
    if scene.notice:
        return (scene.notice, "command")
    if scene.replay:
        return None
    if scene.health.over:
        return (f"{scene.health.glyph} the run is over ({scene.health.condition}); q leaves", "alarm")
    if pending := scene.state.pending:
        request = pending[-1]
        return (f"◉ {request.cmd} requested {age(scene.clock - request.asked)} ago …", "command")
    for request in reversed(scene.state.requests.values()):
        if request.answer and scene.clock - request.answer["t"] < RECENT:
            outcome = "done" if request.answer["ok"] else f"refused: {request.answer['note']}"
            return (f"◉ {request.cmd} {outcome} at iteration {request.answer['it']}", "good")
    if scene.health.condition == "stalled" and not scene.readonly:
        return (f"{scene.health.glyph} no progress: s stops it", "alarm")
    return None


def _keys(scene: Scene) -> list[tuple[str, str]]:
    """Return keys and words: first those that every screen has room for, of which most act on the run."""
    if scene.view.asking:
        return [("esc", "back")]
    if scene.view.page == "gallery" and scene.shown:
        scroll = [("pgup pgdn", "scroll")] if scene.shown.record["k"] == "text" else []
        return [("esc", "back"), ("↑ ↓", "name"), ("[ ]", "iteration"), *scroll, ("q", "quit")]
    if scene.view.page != "main":
        return [("esc", "back"), ("↑ ↓", "scroll"), ("q", "quit")]
    keys = [("?", "help")]
    keys += [] if scene.health.over and not scene.replay else [("q", "quit")]  # what says that it is over says this too
    if scene.replay:
        keys += [("space", "play/pause"), ("← →", "step"), ("< >", "speed"), (", .", "start/end")]
    elif not scene.readonly and not scene.health.over:
        keys += [("s", "stop"), ("c", "checkpoint"), ("p", "resume" if scene.state.stage == "paused" else "pause")]
    keys += [("e", "errors"), *([("i", "images")] if scene.state.gallery.keys else [])]
    keys += [("enter", "open"), (f"1-{scene.panels[-1]}", "panel")]
    keys += [] if scene.replay else [("space", "freeze")]
    return [*keys, ("o", "output"), ("z", "zoom"), ("[ ]", "metric"), ("f", "all points"), ("P", "image")]


WIDTH = 56


def over(lines: Sequence[Strip], scene: Scene, width: int) -> list[Strip]:
    """Return the screen with the question in its middle."""
    wide = min(width, WIDTH)
    inner = wide - 2
    title, choices, note = _leave(scene) if scene.view.asking == "quit" else _stop(scene)
    wrong = wrapped(scene.health.sentence, inner - 4) if scene.health.bad else []
    body = [*(row(inner, "  ", (line, "warn")) for line in wrong), *[row(inner)] * bool(wrong)]
    body += [row(inner, (f"  {key:>4} ", "strong"), f" {what}") for key, what in choices]
    box = boxed(
        title,
        [row(inner), *body, row(inner, (f"        {note}", "dim")), row(inner)],
        wide,
        min(len(body) + 5, len(lines)),
        focused=True,
    )
    x, y = (width - wide) // 2, max((len(lines) - len(box)) // 2, 0)
    shown = list(lines)
    for place, strip in enumerate(box):
        under = lines[y + place]
        shown[y + place] = Strip.join([under.crop(0, x), strip, under.crop(x + wide, width)])
    return shown


def _leave(scene: Scene) -> tuple[str, list[tuple[str, str]], str]:
    stop = "stop the training after this iteration" if scene.health.condition != "stalled" else "stop the training …"
    choices = [("d", "detach: the training goes on (enter)"), ("s", stop), ("esc", "stay here")]
    return "leave the dashboard?", choices, f"later: hookflow watch {scene.known_as}"


def _stop(scene: Scene) -> tuple[str, list[tuple[str, str]], str]:
    choices = [("s", "stop after this iteration, with a checkpoint")]
    if scene.can_kill:
        choices.append(("k", "kill it: stops now, saves nothing"))
    choices.append(("esc", "no, let it train"))
    saved = scene.state.checkpoints
    newest = f"newest checkpoint: iteration {saved[-1].it}" if saved else "there is no checkpoint yet"
    return "stop the training?", choices, newest if scene.can_kill else f"later: hookflow run --resume {scene.known_as}"


NUMBERS = (
    ("p50, p95, max", "half, 95 %, all of the firings since this attempt began took at most so long; ms"),
    ("last", "the last firing, ms"),
    ("count", "firings since this attempt began"),
    (
        "%it",
        "share of the time in training iterations, last 60 s; · for what fires outside them, as in validation",
    ),
    ("60 s", "hooks: the mean firing in each stretch of the last minute; half height is the p50"),
    ("heat ░▒▓█", "points: share of each stretch spent there: any, from 0.1 %, from 1 %, from 10 %"),
    ("epoch", "the one that is worked on, with its validation; after the end, those done"),
    ("0:00:00", "time since this attempt began, at the top"),
    ("it/s", "training iterations per second of iteration time, last 60 s; validation left out"),
    ("ETA", "iterations left, at the pace of the last 60 s, plus validation and saving in proportion so far"),
    ("iteration", "half and 95 % of the last minute's iterations took at most so long"),
    ("data", "the training thread waited for the next batch"),
    (
        "fwd bwd opt",
        "forward pass with the loss, backward pass, optimizer step; waiting for the GPU is booked where it happens",
    ),
    ("hooks, other", "all firings inside iterations: the %it of all hooks added up; whatever else the loop did"),
    ("verdict", "what iterations wait for; then all hooks together and the costliest, as %it"),
    ("charts", "a line for the training (means of neighbours), ◇ for each validation, ◆ for each checkpoint"),
    ("★", "the best value of this metric so far; which is better follows from its name or a hook's `mode`"),
    ("recorder", "time that writing the event log took, in its own thread"),
)

RANK_NUMBERS = (
    ("rank-2-bound", "iterations wait for that rank, see the ranks"),
    ("several ranks", "all but the panel of the ranks, and what is said to be another's, is of rank 0 alone"),
    ("ranks: it", "the iteration at one moment, the last that all have told of"),
    (
        "ranks: own",
        "ms of an iteration without the backward pass (FSDP: and the forward pass), where ranks wait for one another",
    ),
    ("ranks: ·", "of the backward pass, what a rank waits for the slowest: what its own time is below that one's"),
    ("ranks: +ms", "what the slowest needs beyond the median of the others, and in which phase or hook"),
)

SIGNS = (
    ("● ○ ‖ ◐ ?", "running, starting, paused, stalled (no progress), lost (process gone without an end)"),
    ("✓ ■ ✗", "finished, stopped, failed"),
    ("· ◇ ◆ ◉ ▲ ✗", "events: note, validation, checkpoint, command answered, warning, error"),
    ("▣ ¶ ▟", "logged to be looked at: image, text, histogram"),
    ("▲ ✗ ⊘", "hooks: a firing took over 3x the p50 within 10 s; has failed; is switched off after an error"),
    ("┌ │ └ ▶", "the hook at ▶ waits for the hooks whose lanes reach it; ├ ┼ join, │ only passes"),
)


def help_page(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the help, scrolled as the view says."""
    inner = width - 2
    lines: list[Strip] = []
    if splits := scene.state.synthetic:
        text = f"SYNTHETIC {', '.join(splits)} data: accuracy and loss say nothing about the real data set"
        lines += [*(row(inner, " ", (f" {part} ", "alarm")) for part in wrapped(text, max(inner - 4, 10))), row(inner)]
    modes = ["", "replay" if scene.replay else "live", *(["ranks"] if scene.several else [])]
    lines.append(row(inner, (" keys", "title")))
    lines += [part for key in KEYS if key.only in modes for part in _lines(inner, key.shown, key.about)]
    lines += [row(inner), row(inner, (" numbers", "title"))]
    numbers = (*NUMBERS, *RANK_NUMBERS) if scene.several else NUMBERS
    lines += [part for name, about in numbers for part in _lines(inner, name, about)]
    lines += [row(inner), row(inner, (" signs", "title"))]
    lines += [part for name, about in SIGNS for part in _lines(inner, name, about)]
    first = min(scene.view.scroll, max(len(lines) - (height - 2), 0))
    more = len(lines) - first - (height - 2)
    return boxed("help", lines[first:], width, height, True, f"↓ {more} more" if more > 0 else "esc back")


def _line(width: int, name: str, about: str) -> Strip:
    return row(width, (f"  {fit(name, 15)}", "strong"), about)


def _lines(width: int, name: str, about: str) -> list[Strip]:
    """Return a definition in as many rows as its words take."""
    lines = wrapped(about, max(width - 18, 10))
    return [_line(width, name if place == 0 else "", text) for place, text in enumerate(lines)]
