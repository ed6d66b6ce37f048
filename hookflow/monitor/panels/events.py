"""The events: as a list, newest last, as the page of one, and as marks on the timeline."""

from collections.abc import Iterator, Sequence
from functools import partial

from textual.strip import Strip

from hookflow.events.records import Checkpoint
from hookflow.monitor.charts import Axis, Mark, marks_on, parts_of
from hookflow.monitor.journal import GLYPHS, Entry, Moment
from hookflow.monitor.style import Part, boxed, definition, empty, row, scrolled, window
from hookflow.monitor.view import Action, Notice, Page, Prompt, Scene, charts
from hookflow.numbers import clock, number, span
from hookflow.text import fit, fit_name, wrapped

STYLES = {"info": "dim", "warn": "warn", "error": "error", "command": "command", "image": "command", "text": "good"}
STYLES |= dict.fromkeys(("checkpoint", "histogram"), "checkpoint")


def events(scene: Scene, width: int, height: int) -> list[Strip]:
    focused = scene.focus == 3
    hint = "e E older, newer ▲✗   enter" if focused else "e newest ▲✗"
    if scene.view.event is not None:
        hint = "end: newest"
    return boxed("[3] events", lines(scene, width - 2, height - 2, focused), width, height, focused, hint)


def lines(scene: Scene, width: int, height: int, focused: bool) -> list[Strip]:
    """Return the rows of the list, without the box."""
    entries, picked = list(scene.state.journal), scene.entry
    part = slice(max(len(entries) - height, 0), None)
    if scene.view.event is not None and picked:
        part, focused = window(len(entries), height, entries.index(picked)), True
    shown = [_line(entry, width, focused and entry is picked) for entry in entries[part]]
    return shown or [row(width, (" nothing yet", "dim"))]


def _line(entry: Entry, width: int, picked: bool) -> Strip:
    source, at = min(max(width // 6, 10), 20), clock(entry.t) if width >= 56 else clock(entry.t)[:5]
    return row(
        width,
        ("▸" if picked else " ", "focus"),
        (f"{at} ", "dim"),
        (entry.glyph, STYLES.get(entry.kind, "")),
        (f" {fit_name(entry.source, source)} ", "picked" if picked else "strong" if entry.trouble else "dim"),
        (fit(entry.text, max(width - source - len(at) - 6, 1)), "picked" if picked else ""),
        picked=picked,
    )


def _move(scene: Scene, step: int) -> None:
    """Move the cursor; beyond the last event it follows the newest again."""
    if entries := list(scene.state.journal):
        at = len(entries) - 1
        if scene.view.event is not None:
            at = next((place for place, entry in enumerate(entries) if entry.number >= scene.view.event), at)
        at = max(at + step, 0)
        scene.view.event = entries[at].number if at < len(entries) else None


def _open(scene: Scene) -> None:
    """Open the event's page; of an image, a text or a histogram, the gallery."""
    view, entry = scene.view, scene.entry
    shown = scene.state.gallery.find(entry.shows) if entry and entry.shows is not None else None
    view.open("event")
    if shown:
        view.page, view.logged, view.shown = "gallery", (shown.record["k"], shown.record["name"]), shown.number


def event(scene: Scene, width: int, height: int) -> list[Strip]:
    entry, inner = scene.entry, width - 2
    if entry is None:
        return empty("event", "nothing has happened yet", width, height)
    began = scene.state.run["t"] if scene.state.run else entry.t
    when = f"{span(entry.t - began)} after this attempt began" if entry.t >= began else "in an earlier attempt"
    when = when if entry.it is None else f"iteration {entry.it}, {when}"
    rows = [row(inner), *(row(inner, " ", (text, "strong")) for text in wrapped(entry.text, inner - 2))]
    rows += [row(inner, (f" {when}", "dim")), row(inner)]
    of_entry = (each for each in scene.state.checkpoints if (each["path"], each["t"]) == (entry.detail, entry.t))
    saved = next(of_entry, None)
    if entry.kind == "metrics":
        rows += _compared(scene, entry, inner)
    elif saved is not None:
        for name, value in _checkpoint(scene, saved):
            rows += definition(inner, f" {name}", value, 12)
    else:
        rows += traceback(entry.detail, inner)
    return scrolled(f"{entry.glyph} {entry.source}  {clock(entry.t)}", rows, width, height, scene.view.scroll)


def traceback(text: str, width: int) -> list[Strip]:
    """Return the lines as they stand, cut into pieces that fit."""
    room = max(width - 2, 1)
    pieces = (line[at : at + room] for line in text.splitlines() for at in range(0, max(len(line), 1), room))
    return [row(width, " ", piece) for piece in pieces]


def _compared(scene: Scene, entry: Entry, width: int) -> Iterator[Strip]:
    """Yield the metrics of a validation or test beside those before it and the best ones."""
    state = scene.state
    yield row(width, (f" {'':<16} {'value':>9} {'before':>9} {'best':>9}", "dim"))
    for name in charts(state):
        values = state.metrics.by_name.get(name, [])
        before = [value for it, value in values if it < (entry.it or 0)]
        here = [value for it, value in values if it == entry.it]
        if here and name.startswith("test ") == (entry.source == "test"):
            best = state.metrics.best.get(name)
            figures = (f" {number(here[-1]):>9}", f" {number(before[-1]) if before else '–':>9}")
            text = f" {number(best.value):>9}   at iteration {best.it}" if best else ""
            yield row(width, f" {fit(name, 16)}", (figures[0], "strong"), (figures[1], "dim"), text)


def _checkpoint(scene: Scene, saved: Checkpoint) -> Iterator[tuple[str, str]]:
    folder, (known, it) = scene.path / saved["path"], scene.state.metrics.newest_by(saved["it"])
    metrics = "   ".join(f"{name} {number(value)}" for name, value in known.items())
    yield "metrics", f"{metrics}   (of iteration {it})" if known else "none yet"
    yield "path", str(folder)
    if weights := scene.kept.get(folder.name):
        yield "weights", ", ".join(weights)
        file = f"<path>/{weights[0]}" if weights[0].endswith(".pt") else "<path>"  # else there is a file for each rank
        yield "train on", f'weights = "{file}"   under [model] in another pipeline'
        yield "fork", f"hookflow fork {scene.known_as}:{folder.name}"
        yield "validate", f"hookflow val {scene.known_as}:{folder.name}"
    else:
        yield "removed", "it is not on the disk any more: newer or better ones have replaced it"


EVENTS = Page("events", events, move=_move, enter=_open)
EVENT = Page("event", event)

SIGNS = {"epoch": ("┼", "rest"), "metrics": (GLYPHS["metrics"], "val"), "run": ("↻", "command")}
SIGNS |= {kind: (GLYPHS[kind], kind) for kind in ("checkpoint", "warn", "error")}
"""By kind the sign and its style; later ones stand over earlier ones."""

TROUBLE, EPOCH = ("warn", "error"), ("epoch",)


def moments(scene: Scene) -> list[Moment]:
    """Return what the recording has, and the troubles that the monitor has seen in it so far, oldest first."""
    own = (Moment(entry.t, entry.kind) for entry in scene.state.journal if entry.own and entry.trouble)
    return sorted([*(scene.timeline.moments if scene.timeline else ()), *own])


def timeline(scene: Scene, width: int) -> list[Strip]:
    """Return the strip, of a recording."""
    line = scene.timeline
    if line is None:
        return []
    (first, _), (_, last) = line.attempts[0], line.attempts[-1]
    at, whole = max(scene.clock - first, 0.0), span(last - first)
    begun = f"{span(at)}.{int(at * 10) % 10}"
    room, axis = max(width - len(begun) - len(whole) - 6, 1), Axis(0.0, line.place(last))
    here = round(min(max(axis.place(line.place(scene.clock)), 0.0), 1.0) * (room - 1))
    shown = [moment for moment in moments(scene) if moment != (first, "run")]
    signs = [Mark(line.place(t), *SIGNS[of]) for of in SIGNS for t, kind in shown if kind == of]
    cells = {x: ("━", "bar") if x < here else ("─", "rest") for x in range(room)} | marks_on(axis, signs, room)
    cells[here] = ("●", "strong")
    parts: list[Part] = [(f" {begun} ", "strong"), ("├", "rest"), *parts_of(cells), ("┤", "rest"), (f" {whole}", "dim")]
    return [row(width, *parts)]


def _to(kinds: Sequence[str], step: int, scene: Scene) -> str | Notice:
    """Go to what of these kinds is before the moment, or after it."""
    times = [moment.t for moment in moments(scene) if moment.kind in kinds]
    ahead = [t for t in times if t > scene.clock] if step > 0 else [t for t in times if t < scene.clock][::-1]
    if not ahead:
        what = "warning or error" if kinds is TROUBLE else "end of an epoch"
        return Notice(f"no {what} {'after' if step > 0 else 'before'} this moment")
    return f"moment {ahead[0]!r}"


def _ask(scene: Scene) -> None:
    def submit(scene: Scene, text: str) -> str | Notice:
        it = text.strip().replace(",", "").replace("_", "")
        return f"iteration {it}" if it.isdecimal() else Notice(f'"{text}" is no iteration')

    scene.view.prompt = Prompt("go to iteration", submit)


NEAR_TROUBLE = "to the warning or error before this moment, and after it"
NEAR_EPOCH = "to the end of the epoch before, and of this one"
ACTIONS = (
    Action("trouble-before", "e", NEAR_TROUBLE, partial(_to, TROUBLE, -1), "replay"),
    Action("trouble-after", "E", NEAR_TROUBLE, partial(_to, TROUBLE, 1), "replay"),
    Action("epoch-before", "{", NEAR_EPOCH, partial(_to, EPOCH, -1), "replay"),
    Action("epoch-after", "}", NEAR_EPOCH, partial(_to, EPOCH, 1), "replay"),
    Action("iteration", "I", "to an iteration", _ask, "replay"),
)
"""The actions of a replay."""
