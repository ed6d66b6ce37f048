"""The header, the footer and the questions around every page."""

from collections.abc import Sequence
from pathlib import Path

from textual.strip import Strip

from hookflow.events.records import Checkpoint
from hookflow.monitor.keys import PANELS, current, footer_keys, panels
from hookflow.monitor.panels.runs import OF_A_RUN
from hookflow.monitor.style import CONDITION_STYLES, Part, bar, boxed, cells, row, spread
from hookflow.monitor.view import Scene
from hookflow.numbers import age, many, number, out_of, span, speed
from hookflow.text import wrapped

LEAST = 8
"""Cells for bars of progress below which there are none: they would show nothing."""


def title(scene: Scene, width: int) -> Strip:
    """Return the first row; what matters least goes first when there is no room."""
    state, health, run, journal = scene.state, scene.health, scene.state.run, scene.state.journal
    wide = width >= 100
    best = state.metrics.best
    scores = (f"best {name} {number(best[name].value)}" for name in state.monitored if name in best)
    items: list[tuple[int, tuple[str, str]]] = [
        (7 if wide else 3, ("hookflow", "title")),
        (8, (scene.path.parent.name, "strong")),
        (5, (f"#{scene.short_id}", "dim")),
        (6, (f"SHUFFLED {scene.plan.shuffle}" if scene.plan.shuffle is not None else "", "warn")),
        (9, (f"{health.glyph} {health.condition.upper()}", CONDITION_STYLES.get(health.condition, "warn"))),
        (8, (f"▲ {state.not_finite}" * bool(state.not_finite), "alarm")),
        (6, (span(state.elapsed), "")),
        (6, (f"{state.ranks.world} ranks" if scene.several else "", "")),
        (5 if wide else 2, (next(scores, ""), "good")),
        (4, (f"{run.get('device', '')} {run.get('precision', '')}".strip(), "dim")),
        (2, (f"pid {run['pid']}@{run['host']}" if run else "", "dim")),
        (1, (f"{run.get('model', '')} {many(run['params'])} params" if run.get("params") else "", "dim")),
    ]
    unreal = ["LIMITED"] * bool(state.limited) + ["SYNTHETIC"] * bool(state.synthetic)
    right: list[Part] = [
        *(part for word in unreal for part in ((f" {word}{' DATA' * (width >= 76)} ", "alarm"), " ")),
        (f"▲{journal.warnings} ", "warn" if journal.warnings else "faint"),
        (f"✗{journal.errors}", "error" if journal.errors else "faint"),
        " ",
        (f" {scene.badge} ", "badge" if scene.badge.startswith(("REPLAY", "FROZEN")) else "strong"),
    ]
    items = [item for item in items if item[1][0]]
    while len(items) > 1 and sum(cells(part) + 2 for _, part in items) > width - 1 - cells(*right):
        items.remove(min(items, key=lambda item: item[0]))
    return spread(width, [" ", *(part for _, item in items for part in (item, "  "))], right)


def progress(scene: Scene, width: int) -> Strip:
    """Return the second row: epochs, the pass at hand, speed, and the time that is left."""
    state, run, pace = scene.state, scene.state.run, scene.pace
    if not run:  # the last message, as of a download
        newest = scene.entry.text if scene.entry else "importing torch, building the model and the data"
        return row(width, (f" {scene.health.condition}: ", "dim"), newest)
    done = state.it / state.total_iters if state.total_iters else 0.0
    is_now = scene.health.condition in ("running", "paused")  # else the pace says nothing of now
    eta = (is_now and pace.left) or "–"
    rates: list[Part] = [f"{speed(pace.iters_per_s):>11}", "  "]
    if width >= 100:
        unknown = pace.iters_per_s and not pace.samples_per_s  # the number of examples in a batch is unknown
        rates += [f"{'–' if unknown else many(pace.samples_per_s):>5} samples/s", "  "]
    over = state.end or scene.health.over
    left_over: list[Part] = [] if over else [("ETA ", "dim"), (f"{eta:>10} ", "strong")]
    word = "epoch" if width >= 76 else "ep"
    if run.get("max_epochs"):
        whole, part = f"{word} {_right(state.epoch, run['max_epochs'])}", "iter"
    else:
        whole, part = f"iter {_right(state.it, state.total_iters)}", f"{word} {state.epoch},"
    batch = state.stage if state.end is None else ""
    known = batch in ("train", "val", "test") and state.batches > 0  # the first frame may come before the first batch
    if known:
        batch = f"{part if batch == 'train' else batch:{len(part)}} {_right(state.batch, state.batches)}"
    right = rates + left_over
    if len(f" {whole}  100%  {batch} ") + cells(*right) > width:  # numbers are shown whole, or not at all
        right = left_over
    if len(f" {whole}  100%  {batch} ") + cells(*right) > width:
        batch, known = "", False
    room = max(width - len(f" {whole}  100%  {batch}   ") - cells(*right), 0)
    room *= room >= LEAST
    first = min(room * 3 // 5 if known else room, 40)
    left: list[Part] = [f" {whole} ", *bar(first, done), (f" {100 * done:3.0f}%", "strong"), f"  {batch} "]
    left += bar(min(room - first, 30), state.batch / state.batches) if known else []
    return spread(width, left, right)


def _right(count: int, whole: int) -> str:
    """Return how many of all there are, aligned at the right: nothing moves as they become more."""
    return f"{out_of(count, whole):>{len(out_of(whole, whole))}}"


RECENT = 6.0
"""Seconds that the answer to a command stays in the footer."""


def footer(scene: Scene, width: int) -> Strip:
    message = None if scene.view.asking else _message(scene)
    parts: list[Part] = [" ", message, " "] if message else []
    left = width - cells(*parts)
    for names, word in _hints(scene):
        if not (key := footer_keys(scene, names)):
            continue
        left -= len(key) + len(word) + 2
        if left < 0:
            break
        parts += [(f" {key} ", "strong"), (word, "dim"), " "]
        left -= 1
    return row(width, *parts)


def _message(scene: Scene) -> Part | None:
    health = scene.health
    if scene.notice:
        return (scene.notice, "command")
    if scene.replay or (scene.view.page != "main" and current(scene).head):  # which is about other runs
        return None
    if health.over:
        style = CONDITION_STYLES.get(health.condition, "warn")
        return (f"{health.glyph} the run is over ({health.condition}); q leaves", style)
    if health.condition == "reading":
        return (health.sentence, "command")
    if pending := scene.state.pending:
        request = pending[-1]
        return (f"◉ {request.text} requested {age(scene.clock - request.at)} ago …", "command")
    for request in reversed(scene.state.requests.values()):
        if (answer := request.answer) and scene.clock - answer["t"] < RECENT:
            outcome, style = ("done", "good") if answer["ok"] else ("refused", "warn")
            note = f": {answer['note']}" if answer["note"] else ""
            return (f"◉ {request.text} {outcome} at iteration {answer['it']}{note}", style)
    if health.condition == "stalled" and not scene.readonly:
        return (f"{health.glyph} no progress: s stops it", "alarm")
    return None


def _hints(scene: Scene) -> list[tuple[str, str]]:
    """Return actions and words: first those that every screen has room for, of which most act on the run."""
    if scene.view.asking:
        return [("back", "back")]
    if scene.view.page != "main":
        return [("back", "back"), *current(scene).hints(scene), ("leave", "quit")]
    over = scene.health.over and not scene.replay  # what says that it is over says how to leave
    hints = [("help", "help"), *[("leave", "quit")] * (not over)]
    if scene.replay:
        hints += [("play", "play/pause"), ("frame-back frame-on", "step"), ("trouble-before trouble-after", "trouble")]
        hints += [("epoch-before epoch-after", "epoch"), ("iteration", "iteration"), ("slower faster", "speed")]
        hints += [("start end", "start/end")]
    elif scene.can_act:
        paused = [("pause", "resume"), ("step", "step")] if scene.state.stage == "paused" else [("pause", "pause")]
        hints += [("stop", "stop"), ("checkpoint", "checkpoint"), *paused]
    hints += [*[("older-trouble", "errors")] * (not scene.replay)]
    hints += [("page-gallery", "images")] * bool(scene.state.gallery.keys)
    hints += [("validate", "validate"), ("hook-off", "hook off"), ("page-trace", "trace")] * scene.can_act
    numbered = " ".join(f"panel-{PANELS[number].name}" for number in panels(scene) if number)
    hints += [("open", "open"), (numbered, "panel")]
    hints += [*[("freeze", "freeze")] * (not scene.replay), ("page-output", "output"), ("zoom", "zoom")]
    hints += [("previous-metric next-metric", "metric"), ("idle-points", "all points"), ("whole-run", "window")]
    return [*hints, ("image", "image")]


WIDTH = 56


def over(lines: Sequence[Strip], scene: Scene, width: int) -> list[Strip]:
    """Return the screen with the question in its middle."""
    wide = min(width, WIDTH)
    inner = wide - 2
    title, choices, note = _question(scene)
    wrong = wrapped(scene.health.sentence, inner - 4) if scene.health.bad else []
    body = [row(inner), *(row(inner, "  ", (line, "warn")) for line in wrong), *[row(inner)] * bool(wrong)]
    body += [row(inner, (f"  {key:>4} ", "strong"), f" {what}") for key, what in choices]
    body += [row(inner, (f"        {note}", "dim")), row(inner)]
    box = boxed(title, body, wide, min(len(body) + 2, len(lines)), focused=True)
    x, y = (width - wide) // 2, max((len(lines) - len(box)) // 2, 0)
    pairs = zip(lines[y:], box, strict=False)
    middle = [Strip.join([under.crop(0, x), strip, under.crop(x + wide, width)]) for under, strip in pairs]
    return [*lines[:y], *middle, *lines[y + len(box) :]]


def _way_back(saved: Checkpoint | None, name: str) -> str:
    return f"iteration {saved['it']}  {', '.join(saved['names'])}" if saved else name


def _question(scene: Scene) -> tuple[str, list[tuple[str, str]], str]:
    if scene.view.asking == "quit":
        stop = f"stop the training {'…' if scene.health.condition == 'stalled' else 'after this iteration'}"
        choices = [("d", "detach: the training goes on (enter)"), ("s", stop), ("esc", "stay here")]
        return "leave the dashboard?", choices, f"later: hookflow watch {scene.known_as}"
    if scene.view.asking in OF_A_RUN:
        title, answer = OF_A_RUN[scene.view.asking]
        return title, [("y", answer), ("esc", "no")], f"the run {scene.view.runs.at}"
    kill = [("k", "kill it: stops now, saves nothing")] * scene.can_kill
    if scene.view.asking == "rerun":
        choices = [("y", "here, in a process of its own"), ("c", "copy the command"), ("esc", "no")]
        return f"do iteration {scene.view.metrics.at} again?", choices, "it is compared with the recording, to the bit"
    if scene.view.asking == "rewind":
        names = {Path(saved["path"]).name: saved for saved in scene.state.checkpoints}
        offered = scene.view.offered or ()
        ways = [(f"{k}", _way_back(names.get(name), name)) for k, name in enumerate(offered, start=1)]
        return "go back to which checkpoint?", [*ways, ("esc", "stay here")], "what was trained after it is discarded"
    choices = [("s", "stop after this iteration, with a checkpoint"), *kill, ("esc", "no, let it train")]
    saved = scene.state.checkpoints
    newest = f"newest checkpoint: iteration {saved[-1]['it']}" if saved else "there is no checkpoint yet"
    return "stop the training?", choices, newest if scene.can_kill else f"later: hookflow run --resume {scene.known_as}"
