"""The key bindings: the help text of each key, and its effect on the view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hookflow.monitor.journal import Entry
from hookflow.monitor.view import RANKS, Scene, charts

Action = Literal[
    "",
    "detach",
    "stop",
    "stop and leave",
    "kill",
    "checkpoint",
    "pause",
    "freeze",
    "suspend",
    "image",
    "play",
    "back",
    "on",
    "far back",
    "far on",
    "first",
    "last",
    "slower",
    "faster",
]
"""Requests of a key to the app, beyond the view."""


@dataclass(frozen=True, slots=True)
class Notice:
    """The answer of a key without effect."""

    text: str


@dataclass(frozen=True, slots=True)
class Key:
    """`names` as Textual calls them; `shown` as the help writes them; `only` says where it counts."""

    names: tuple[str, ...]
    shown: str
    about: str
    only: Literal["", "live", "replay", "question", "ranks"] = ""


KEYS = (
    Key(("question_mark",), "?", "this help"),
    Key(("1", "2", "3", "4", "5"), "1-5", "go to a panel; the same digit again makes it large"),
    Key(("6",), "6", "go to the ranks, the processes that train together; again makes them large", "ranks"),
    Key(("tab", "shift+tab"), "tab", "next panel"),
    Key(("z",), "z", "make the panel large, and small again"),
    Key(("0", "escape"), "0 esc", "back to the whole dashboard"),
    Key(("up", "down", "k", "j", "pageup", "pagedown"), "↑ ↓ k j", "move"),
    Key(("home", "end"), "home end", "to the first, to the last", "live"),
    Key(("h", "left", "right"), "← → h", "from the hooks to the points and back", "live"),
    Key(("h",), "h", "from the hooks to the points and back", "replay"),
    Key(("enter",), "enter", "a point's hooks; a hook's or an event's page"),
    Key(("space",), "space", "freeze the view; the data go on", "live"),
    Key(("p",), "p", "pause the training, and resume it", "live"),
    Key(("c",), "c", "save a checkpoint now", "live"),
    Key(("s",), "s", "stop the training (asks first)", "live"),
    Key(("space",), "space", "play and pause", "replay"),
    Key(("left", "right", "shift+left", "shift+right"), "← →", "a frame back and on; with shift 5 %", "replay"),
    Key(("comma", "full_stop", "home", "end"), ", .", "to the start, to the end; also home and end", "replay"),
    Key(("less_than_sign", "greater_than_sign"), "< >", "slower, faster", "replay"),
    Key(("e", "E"), "e E", "next and previous warning or error"),
    Key(("i",), "i", "images, texts and histograms that were logged: ↑ ↓ by name, [ ] by iteration; and back"),
    Key(("o",), "o", "what the training printed, and back"),
    Key(("f",), "f", "show the points where nothing is bound too, and hide them"),
    Key(("left_square_bracket", "right_square_bracket"), "[ ]", "previous and next metric, or image"),
    Key(("l",), "l", "logarithmic scale of the charts"),
    Key(("P",), "P", "save an image (SVG) in the run directory"),
    Key(("ctrl+z",), "ctrl-z", "suspend this screen alone, until the shell's fg"),
    Key(("q", "ctrl+c", "ctrl+q"), "q", "leave; asks whether the training goes on", "live"),
    Key(("q", "ctrl+c", "ctrl+q"), "q", "leave", "replay"),
    Key(("y", "n", "d"), "y n d", "answers where something is asked", "question"),  # as s, k, enter and escape are too
)

_SCRUB: dict[str, Action] = {
    "left": "back",
    "right": "on",
    "shift+left": "far back",
    "shift+right": "far on",
    "comma": "first",
    "full_stop": "last",
    "home": "first",
    "end": "last",
    "less_than_sign": "slower",
    "greater_than_sign": "faster",
    "space": "play",
}
_BY_NAME = {"up": -1, "k": -1, "down": 1, "j": 1}
_BY_ITERATION = {
    "left": -1,
    "right": 1,
    "home": -(10**6),
    "end": 10**6,
    "left_square_bracket": -1,
    "right_square_bracket": 1,
}
_STEPS = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -10, "pagedown": 10, "home": -(10**6), "end": 10**6}


def press(key: str, scene: Scene) -> Action | Notice:
    """Change the view as the key says; return what the app is to do or say, "" for nothing."""
    view = scene.view
    if key == "ctrl+z":
        return "suspend"
    if view.asking:
        return _answer(key, scene)
    if key in ("q", "ctrl+c", "ctrl+q"):
        return _leave(scene)
    if scene.replay and key in _SCRUB:
        return _SCRUB[key]
    if key in ("s", "p", "c"):
        return _command(key, scene)
    if key == "space":
        return "freeze"
    if key == "P":
        return "image"
    if key in ("e", "E"):
        return _trouble(1 if key == "e" else -1, scene)
    _look(key, scene)
    return ""


def _command(key: str, scene: Scene) -> Action | Notice:
    """Ask something of a run that can still hear it."""
    if scene.replay:
        return Notice("this is a replay: nothing can be asked of the run")
    if scene.health.over:
        return ""  # which the footer says
    if scene.readonly:
        return Notice("opened with --readonly: nothing is asked of the run")
    if key == "s":
        scene.view.asking = "stop"
        return ""
    return "pause" if key == "p" else "checkpoint"


def _answer(key: str, scene: Scene) -> Action:
    requested, scene.view.asking = scene.view.asking, ""
    if requested == "stop":
        if key == "k" and scene.can_kill:
            return "kill"
        return "stop" if key in ("s", "y") else ""
    if key in ("d", "enter", "q", "ctrl+c"):
        return "detach"
    if key == "s" and scene.health.condition == "stalled":  # it may never get to the end of this iteration
        scene.view.asking = "stop"
        return ""
    return "stop and leave" if key == "s" else ""


def _leave(scene: Scene) -> Action:
    """Ask only when there is something to choose."""
    if scene.replay or scene.readonly or scene.health.over:
        return "detach"
    scene.view.asking = "quit"
    return ""


def _look(key: str, scene: Scene) -> None:
    """Move about, which changes nothing but the view."""
    view = scene.view
    if view.page == "gallery" and key in (*_BY_NAME, *_BY_ITERATION):
        _turn(key, scene)
    elif key in _STEPS:
        _move(_STEPS[key], scene)
    elif key.isdigit() and int(key) in scene.panels:
        again, hidden = view.focus == int(key), int(key) not in scene.visible
        if view.page == "main":
            view.zoomed = not (again and view.zoomed) and (again or hidden)
        view.focus, view.page, view.scroll = int(key), "main", 0
    elif key in ("tab", "shift+tab"):
        step = 1 if key == "tab" else -1
        order = [number for number in scene.panels if view.zoomed or number in scene.visible or number == view.focus]
        view.focus = order[(order.index(view.focus) + step) % len(order)]
    elif key == "z":
        view.zoomed = not view.zoomed
    elif key in ("escape", "0"):
        _back(scene)
    elif key == "enter":
        _enter(scene)
    elif key in ("h", "left", "right"):
        view.focus = {1: 2, 2: 1}.get(view.focus, 2)
    elif key == "f":
        view.unbound = not view.unbound
    elif key in ("left_square_bracket", "right_square_bracket"):
        view.metric = (view.metric + (1 if key.startswith("right") else -1)) % max(len(charts(scene.state)), 1)
    elif key == "l":
        view.log = not view.log
    elif key == "question_mark":
        view.page, view.scroll = ("main" if view.page == "help" else "help"), 0
    elif key in ("o", "i"):
        page: Literal["output", "gallery"] = "output" if key == "o" else "gallery"
        view.page, view.scroll = ("main" if view.page == page else page), 0


def _back(scene: Scene) -> None:
    view = scene.view
    if view.page != "main":
        view.page = "main"
    elif view.zoomed:
        view.zoomed = False
    else:
        view.event = None
    view.scroll = 0


def _enter(scene: Scene) -> None:
    view = scene.view
    if view.page != "main":
        view.page = "main"
    elif view.focus == 1:
        view.focus = 2
    elif view.focus == 2:
        view.page = "hook"
    elif view.focus == 5:
        _open_event(scene)
    else:
        view.zoomed = not view.zoomed
    view.scroll = 0


def _open_event(scene: Scene) -> None:
    """Open an event's page; of something to look at, the gallery."""
    view, entry = scene.view, scene.entry
    shown = scene.state.gallery.find(entry.shows) if entry and entry.shows is not None else None
    view.page = "event"
    if shown:
        view.page, view.logged, view.shown = "gallery", (shown.record["k"], shown.record["name"]), shown.number


def _turn(key: str, scene: Scene) -> None:
    """Go to another name in the gallery, or to another iteration; from the last one on it follows the newest."""
    view, gallery, at = scene.view, scene.state.gallery, scene.shown
    if at is None or scene.logged is None:
        return
    if key in _BY_NAME:
        keys = gallery.keys
        view.logged, view.shown = keys[(keys.index(scene.logged) + _BY_NAME[key]) % len(keys)], None
    else:
        held = gallery.of(scene.logged)
        place = min(max(held.index(at) + _BY_ITERATION[key], 0), len(held) - 1)
        view.shown = held[place].number if place < len(held) - 1 else None
    view.scroll = 0


def _move(step: int, scene: Scene) -> None:
    view = scene.view
    if view.page != "main":
        down = -step if view.page == "output" else step  # which is read from its end
        view.scroll = min(max(view.scroll + down, 0), 10**6)
    elif view.focus == 1:
        shown = scene.shown_points
        at = shown.index(scene.point) if scene.point in shown else 0
        view.point, view.hook = shown[min(max(at + step, 0), len(shown) - 1)], 0
    elif view.focus == 2:
        view.hook = min(max(view.hook + step, 0), max(len(scene.plan.at(scene.point)) - 1, 0))
    elif view.focus == RANKS:
        view.rank = min(max(view.rank + step, 0), scene.state.ranks.world - 1)
    elif view.focus == 5:
        _pick(step, list(scene.state.journal), scene)


def _pick(step: int, entries: list[Entry], scene: Scene) -> None:
    """Move the cursor among the entries; beyond the last it follows the newest again."""
    if not entries:
        return
    at = len(entries) - 1
    if scene.view.event is not None:
        at = next((place for place, entry in enumerate(entries) if entry.number >= scene.view.event), at)
    at = max(at + step, 0)
    scene.view.event = entries[at].number if at < len(entries) else None


def _trouble(step: int, scene: Scene) -> Action | Notice:
    """Go to the next warning or error, round and round."""
    troubles = [entry.number for entry in scene.state.journal if entry.trouble]
    if not troubles:
        return Notice("no warnings or errors")
    at = scene.view.event
    if step > 0:
        following = [number for number in troubles if at is not None and number > at]
        scene.view.event = following[0] if following else troubles[0]
    else:
        earlier = [number for number in troubles if at is None or number < at]
        scene.view.event = earlier[-1] if earlier else troubles[-1]
    scene.view.focus, scene.view.page = 5, scene.view.page if scene.view.page == "event" else "main"
    return ""
