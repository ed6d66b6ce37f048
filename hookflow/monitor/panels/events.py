"""The events, newest last, and the page of one."""

from __future__ import annotations

from collections.abc import Iterator

from textual.strip import Strip

from hookflow.events.records import Checkpoint
from hookflow.monitor.journal import Entry
from hookflow.monitor.style import boxed, definition, row, scrolled, window
from hookflow.monitor.view import Page, Scene, charts
from hookflow.numbers import clock, number, size, span
from hookflow.text import fit, wrapped

STYLES = {"info": "dim", "warn": "warn", "error": "error", "command": "command", "image": "command", "text": "good"}
STYLES |= dict.fromkeys(("checkpoint", "histogram"), "checkpoint")


def events(scene: Scene, width: int, height: int) -> list[Strip]:
    focused = scene.focus == 5
    hint = "e E older, newer ▲✗   enter" if focused else "e newest ▲✗"
    if scene.view.event is not None:
        hint = "end: newest"
    return boxed("[5] events", lines(scene, width - 2, height - 2, focused), width, height, focused, hint)


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
        (f" {fit(entry.source, source)} ", "picked" if picked else "strong" if entry.trouble else "dim"),
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
        return boxed("event", [row(inner, (" nothing has happened yet", "dim"))], width, height, True, "esc back")
    began = scene.state.run["t"] if scene.state.run else entry.t
    when = f"{span(entry.t - began)} after this attempt began" if entry.t >= began else "in an earlier attempt"
    when = when if entry.it is None else f"iteration {entry.it}, {when}"
    rows = [row(inner), *(row(inner, " ", (text, "strong")) for text in wrapped(entry.text, inner - 2))]
    rows += [row(inner, (f" {when}", "dim")), row(inner)]
    saved = next(
        (saved for saved in scene.state.checkpoints if (saved["path"], saved["t"]) == (entry.detail, entry.t)), None
    )
    if entry.kind == "metrics":
        rows += _compared(scene, entry, inner)
    elif saved is not None:
        facts = _checkpoint(scene, saved)
        rows += [line for name, value in facts for line in definition(inner, f" {name}", value, 12)]
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


def _checkpoint(scene: Scene, saved: Checkpoint) -> list[tuple[str, str]]:
    folder, it = scene.path / saved["path"], saved["it"]
    known, metrics_it = scene.state.metrics.newest_by(it)
    metrics = "   ".join(f"{name} {number(value)}" for name, value in known.items())
    metrics += f"   (of iteration {metrics_it})" * (metrics_it not in (0, it))
    facts = [
        ("names", f"{', '.join(saved['names']) or 'none'}   (when it was saved)"),
        ("iteration", f"{it}   after {saved['ep']} epoch{'s' * (saved['ep'] != 1)}"),
        ("metrics", metrics or "none yet"),
        ("size", f"{size(saved['bytes'])}, written in {saved['ms']:.0f} ms"),
        ("path", str(folder)),
        ("", ""),
    ]
    weights = scene.kept.get(folder.name)
    if not weights:
        return [*facts, ("removed", "it is not on the disk any more: newer or better ones have replaced it")]
    is_whole = weights[0].endswith(".pt")  # else there is a file for each rank
    file = f"<path>/{weights[0]}" if is_whole else "<path>"
    newest = "" if it == scene.state.checkpoints[-1]["it"] else "   (from the newest checkpoint, which this is not)"
    return [
        *facts,
        ("weights", ", ".join(weights)),
        *[("load them", f'torch.load("{file}", weights_only=True)')] * is_whole,
        ("train on", f'weights = "{file}"   under [model] in another pipeline'),
        ("resume", f"hookflow run --resume {scene.known_as}{newest}"),
        ("validate", f"hookflow val {scene.known_as}:{folder.name}"),
    ]


EVENTS = Page("events", events, move=_move, enter=_open)
EVENT = Page("event", event)
