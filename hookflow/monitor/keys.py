"""The panels, the pages, and the actions: the table of all that keys do, which help, footer and docs are drawn from."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain, zip_longest

from textual.keys import key_to_character
from textual.strip import Strip

from hookflow.events.commands import COMMANDS as COMMANDS_OF_RUN
from hookflow.monitor.panels.compare import COMPARE
from hookflow.monitor.panels.events import ACTIONS as OF_TIMELINE
from hookflow.monitor.panels.events import EVENT, EVENTS
from hookflow.monitor.panels.gallery import GALLERY
from hookflow.monitor.panels.graph import GRAPH, HIDDEN, PANEL, picked_is_shown
from hookflow.monitor.panels.hooks import HOOK
from hookflow.monitor.panels.metrics import EXPLORER, METRICS, rerun_command
from hookflow.monitor.panels.now import NOW
from hookflow.monitor.panels.output import OUTPUT
from hookflow.monitor.panels.ranks import RANKS, SYSTEM
from hookflow.monitor.panels.rerun import RERUN
from hookflow.monitor.panels.runs import OF_A_RUN, RUNS
from hookflow.monitor.panels.waterfall import TRACE
from hookflow.monitor.prompt import Offer, ask, edit, settable
from hookflow.monitor.style import definition, row, scrolled
from hookflow.monitor.view import (
    Action,
    KeyMap,
    Notice,
    Page,
    Prompt,
    Scene,
    charts,
    flip,
    send,
    setting_now,
)
from hookflow.text import wrapped

NUMBERS = (
    ("attempt", "the run since it was started, or resumed last"),
    ("p50, p95, max", "median, 95th percentile and maximum of the firings of the last 60 s; v: of the attempt"),
    ("n, vs past", "calls of the attempt (log: each iteration); the median of the last 60 s divided by its median"),
    ("over the run", "the mean of each part of the run; a bar of three eighths is the median of the bars"),
    ("%it", "share of the time in training iterations, last 60 s; · for what fires outside them, as in validation"),
    ("epoch", "the current one, with its validation; after the end, those done"),
    ("0:00:00", "at the top: the time since this attempt began"),
    ("it/s, ms/it", "the mean of the training iterations of the last 60 s, without validation"),
    ("ETA", "time left at the paces of the last 10 s, the last 60 s and the attempt, with validation"),
    ("data", "the training thread waits for the next batch"),
    ("fwd bwd opt", "forward pass with the loss, backward pass, optimizer step; each with its waits for the GPU"),
    ("hooks, other", "all firings inside iterations; the rest of the loop"),
    ("compute-bound", "the largest of compute, data and hooks; then the %it of all hooks, and of the costliest"),
    ("charts", "a line for the training (means of neighbours), ◇ for each validation, ◆ for each checkpoint"),
    ("★", "the best value of this metric so far; which is better follows from its name or a hook's `mode`"),
    ("recorder", "time spent on writing the event log, in a thread of its own"),
)
OF_RANKS = (
    ("rank-2-bound", "iterations wait for that rank, see the panel of the ranks"),
    ("several ranks", "every number outside that panel is of rank 0, unless it names another"),
    ("ranks: it", "the iterations done, at the last moment that is known of all ranks"),
    ("ranks: own", "ms of an iteration without the passes in which ranks wait: backward, with FSDP also forward"),
    ("ranks: ·", "of the backward pass, what a rank waits for the slowest: what its own time is below that one's"),
    ("ranks: +ms", "what the slowest needs beyond the median of the others, and in which phase or hook"),
)
SIGNS = (
    ("● ○ ‖ ◐ ?", "running, starting, paused, stalled (no progress), lost (process gone without an end)"),
    ("✓ ■ ✗", "finished, stopped, failed"),
    ("· ◇ ◆ ◉ ▲ ✗", "events: note, validation, checkpoint, command answered, warning, error"),
    ("▣ ¶ ▟", "logged to be looked at: image, text, histogram"),
    ("▲ ✗ ⊘ ▾", "hooks: 1.5x as long as before, and 1 % of the iterations; failed; is off; skips firings for its cost"),
    ("┌ │ └ ▶", "the hook at ▶ waits for the hooks whose lanes reach it; ├ ┼ join, │ only passes"),
    ("╭ │ ╰, ┏ ┃ ┗", "the two halves of an around hook; a hook beside the training, until its results are there"),
)

Terms = Mapping[str, Sequence[tuple[str, str]]]


def help_page(scene: Scene, width: int, height: int, keys: Terms) -> list[Strip]:
    """Return the help, scrolled as the view says; `keys` has rows on keys by their titles."""
    inner = width - 2
    rows: list[Strip] = []
    if splits := scene.state.synthetic:
        text = f"SYNTHETIC {', '.join(splits)} data: accuracy and loss say nothing about the real data set"
        rows += [*(row(inner, " ", (f" {part} ", "alarm")) for part in wrapped(text, max(inner - 4, 10))), row(inner)]
    general, *of_pages = keys
    sections: Terms = {general: keys[general], "numbers": [*NUMBERS, *OF_RANKS * scene.several], "signs": SIGNS}
    for title, terms in {**sections, **{title: keys[title] for title in of_pages}}.items():
        rows += [row(inner)] * (title != general)
        rows.append(row(inner, (f" {title}", "title")))
        rows += [line for name, about in terms for line in definition(inner, f"  {name}", about, 17, "strong")]
    return scrolled("help", rows, width, height, scene.view.scroll)


HELP = Page("help", lambda scene, width, height: help_page(scene, width, height, key_rows(scene)), "?", "this help")
PANELS: dict[int, Page] = dict(enumerate((PANEL, METRICS, SYSTEM, EVENTS, RANKS)))
TOGGLED = (GRAPH, EXPLORER, TRACE, GALLERY, OUTPUT, NOW, RUNS)
PAGES = {page.name: page for page in (HOOK, EVENT, HELP, COMPARE, RERUN, *TOGGLED)}


def panels(scene: Scene) -> list[int]:
    """Return the panels that there are of this run."""
    return [number for number, panel in PANELS.items() if not panel.only or scene.several]


def current(scene: Scene) -> Page:
    """Return the page, or the panel in focus."""
    return PAGES.get(scene.view.page) or PANELS[scene.focus]


def _move(step: int, scene: Scene) -> Notice | None:
    move = current(scene).move
    return move(scene, step) if move else Notice("there is nothing to move in here")


def _enter(scene: Scene) -> str | Notice | None:
    answer = current(scene).enter(scene)
    scene.view.scroll = 0
    return answer


def _toggle(page: str, scene: Scene) -> None:
    scene.view.open("main" if scene.view.page == page else page)


def _focus(number: int, scene: Scene) -> Notice | None:
    """Go to a panel; one that is in focus, or has no room beside the others, becomes large."""
    view = scene.view
    if number not in panels(scene):
        known = bool(scene.state.run)
        return Notice("one process trains: there are no ranks to show" if known else "the ranks have not started yet")
    again, hidden = scene.focus == number, number not in scene.visible
    if view.page == "main":
        view.zoomed = not (again and view.zoomed) and (again or hidden)
    view.focus = number
    view.open("main")
    return None


HIDEABLE = ("metrics", "system", "events", "ranks")
"""Panels that may be hidden; without the others the dashboard has no cursor."""


def _hide(scene: Scene) -> str | Notice:
    """Hide the panel in focus, or show it again."""
    view, name = scene.view, PANELS[scene.focus].name
    if view.page != "main" or name not in HIDEABLE:
        return Notice(f"only these panels can be hidden: {', '.join(HIDEABLE)}")
    hidden = set(view.panels.hidden) ^ {name}
    view.panels = replace(view.panels, hidden=tuple(each for each in HIDEABLE if each in hidden))
    view.focus, view.zoomed = 0, False
    return "remember hidden"


def _resize(rows: int, scene: Scene) -> str | Notice:
    """Give the lower panels of the dashboard rows of the graph, or return them."""
    view = scene.view
    if view.page != "main" or view.zoomed or not {1, 2, 3} & {*scene.visible}:
        return Notice("there is no lower panel to resize here")
    view.panels = replace(view.panels, lower=min(max(view.panels.lower + rows, -MOST_ROWS), MOST_ROWS))
    return "remember lower"


def _next_panel(step: int, scene: Scene) -> None:
    view = scene.view
    order = [number for number in panels(scene) if view.zoomed or number in scene.visible or number == scene.focus]
    view.focus = order[(order.index(scene.focus) + step) % len(order)]


def _back(scene: Scene) -> None:
    view = scene.view
    if view.page == "main" and not view.zoomed:
        view.event, view.focus = None, 0
    view.search = ""
    view.zoomed = view.zoomed and view.page != "main"
    view.open(current(scene).above)


def _next_metric(step: int, scene: Scene) -> Notice | None:
    names = charts(scene.state)
    scene.view.metric = (scene.view.metric + step) % max(len(names), 1)
    return None if names[1:] else Notice("there is no other metric")


def _next_trouble(step: int, scene: Scene) -> Notice | None:
    """Go to the newest warning or error, then to older ones, or back; round and round."""
    view, at = scene.view, scene.view.event
    troubles = [entry.number for entry in scene.state.journal if entry.trouble]
    if not troubles:
        return Notice("no warnings or errors")
    if step < 0:
        view.event = next((number for number in troubles[::-1] if at is None or number < at), troubles[-1])
    else:
        view.event = next((number for number in troubles if at is not None and number > at), troubles[0])
    view.focus, view.page = 3, view.page if view.page == "event" else "main"
    return None


def _request(name: str, scene: Scene) -> str | Notice:
    """Send a command; ask first whether to, where it discards something."""
    action = send(scene, name)
    if isinstance(action, str) and COMMANDS_OF_RUN[name].destructive:
        scene.view.asking = name  # type: ignore[assignment]
        return ""
    return action


def _turned(scene: Scene, on: str, off: str, *args: str, is_on: bool) -> str:
    """Return which of two commands undoes the latest of them; the run may not have answered that yet."""
    sent = (request.cmd for request in reversed(scene.state.pending) if (*request.args,) == args)
    latest = next((command for command in sent if command in (on, off)), on if is_on else off)
    return off if latest == on else on


def _pause(scene: Scene) -> str | Notice:
    return _request(_turned(scene, "pause", "resume", is_on=scene.state.stage == "paused"), scene)


def _rewind(scene: Scene) -> str | Notice:
    """Ask which checkpoint to go back to; those that are offered stay the same until that is answered."""
    if not scene.state.checkpoints:
        return Notice("there is no checkpoint yet")
    scene.view.offered = None
    return _request("rewind", scene)


def _shows_graph(scene: Scene) -> bool:
    """Return whether the rows of the hooks are on the screen."""
    if scene.view.page != "main":
        return scene.view.page == GRAPH.name
    if scene.view.zoomed:
        return scene.focus == 0
    return 0 in scene.visible


def _switch(scene: Scene) -> str | Notice:
    """Switch the hook that the cursor is on off, or on again; of no hook that is out of sight."""
    if scene.view.page != HOOK.name and not _shows_graph(scene):
        return Notice("no hook is at the cursor here: g shows them")
    if scene.picked is None:
        return Notice("no hook is bound to this point")
    if scene.view.page != HOOK.name and not picked_is_shown(scene):
        return Notice(HIDDEN)
    hook = scene.picked.hook
    return send(scene, _turned(scene, "on", "off", hook, is_on=hook not in scene.state.disabled), hook)


def _set(scene: Scene) -> str | Notice:
    """Let an argument be typed, which the hook that the cursor is on declares settable, or another hook."""
    names = settable(scene)
    if not names:
        return Notice("no hook of this run declares an argument settable")

    def complete(scene: Scene, text: str) -> list[tuple[str, str]]:
        key = text.partition("=")[0]
        return [(f"{name}=", f"now {setting_now(scene, name)}") for name in names if key in name]

    first = f"{names[0]}=" if scene.picked and names[0].startswith(f"{scene.picked.hook}.") else ""
    scene.view.prompt = Prompt("set", lambda scene, text: send(scene, "set", text), complete=complete, text=first)
    return ""


def _leave(scene: Scene) -> str:
    if scene.replay or scene.readonly or scene.health.over:
        return "detach"
    scene.view.asking = "quit"
    return ""


def _answer(name: str, scene: Scene) -> str:
    question, scene.view.asking = scene.view.asking, ""
    if question == "stop":
        if name == "k" and scene.can_kill:
            return "kill"
        return "send stop" if name in ("s", "y") else ""
    if question in OF_A_RUN:
        return question if name == "y" else ""
    if question == "rerun":
        return {"y": question, "c": f"copy text {rerun_command(scene)}"}.get(name, "")
    if question == "rewind":
        offered = scene.view.offered or ()
        place = int(name) if name.isdecimal() else 0
        return f"send rewind {offered[place - 1]}" if 0 < place <= len(offered) else ""
    if name in ("d", "enter", "q", "ctrl+c"):
        return "detach"
    if name == "s" and scene.health.condition == "stalled":  # it may never get to the end of this iteration
        scene.view.asking = "stop"
        return ""
    return "stop and leave" if name == "s" else ""


KEYS_WIDE = 14
"""Cells of the help for the keys of an action; of more keys the first are shown."""

LARGE = "go to a panel; again: make it large"
TROUBLE = "to the newest warning or error, then to older ones; to newer ones"
MOST_ROWS = 50
"""Rows that the lower panels may get or give; a small terminal takes as many as it has."""
BEYOND = 10**6
"""Rows further than any list is long."""

ACTIONS: tuple[Action, ...] = (
    Action(HELP.name, HELP.key, HELP.about, partial(_toggle, HELP.name)),
    Action("palette", ":", "call an action by its name, or send a command to the run", lambda scene: _palette(scene)),
    *(Action(f"panel-{PANELS[at].name}", f"{at}", LARGE, partial(_focus, at)) for at in range(1, 4)),
    Action("panel-ranks", "4", "go to the ranks, the processes that train together", partial(_focus, 4), "ranks"),
    Action("next-panel", "tab", "next panel, and the one before", partial(_next_panel, 1)),
    Action("previous-panel", "shift+tab", "next panel, and the one before", partial(_next_panel, -1)),
    Action("zoom", "z", "make the panel large, and small again", partial(flip, "zoomed")),
    Action("hide-panel", "H", "hide the panel, and show it again; remembered", _hide),
    Action("lower-larger", "+", "give the lower panels a row more, a row less; remembered", partial(_resize, 1)),
    Action("lower-smaller", "-", "give the lower panels a row more, a row less; remembered", partial(_resize, -1)),
    Action("back", "escape 0", "back to the whole dashboard", _back),
    Action("up", "up k", "move", partial(_move, -1)),
    Action("down", "down j", "move", partial(_move, 1)),
    Action("page-up", "pageup", "move by ten rows", partial(_move, -10)),
    Action("page-down", "pagedown", "move by ten rows", partial(_move, 10)),
    Action("first", "home", "to the first, to the last", partial(_move, -BEYOND)),
    Action("last", "end", "to the first, to the last", partial(_move, BEYOND)),
    Action("open", "enter", "a hook's or an event's page", _enter),
    Action("freeze", "space", "freeze the view, until the next press or command", "freeze", "live"),
    Action("pause", "p", "pause the training, and resume it", _pause, "live"),
    Action("step", "S", "train one iteration of a paused training", partial(_request, "step"), "live"),
    Action("checkpoint", "c", "save a checkpoint now", partial(_request, "checkpoint"), "live"),
    Action("validate", "V", "validate now", partial(_request, "validate"), "live"),
    Action("hook-off", "x", "switch the hook at the cursor off, and on again", _switch, "live"),
    Action("set", "=", "set an argument that its hook declares settable", _set, "live"),
    Action("rewind", "B", "go back to a checkpoint (asks first)", _rewind, "live"),
    Action("stop", "s", "stop the training (asks first)", partial(_request, "stop"), "live"),
    Action("play", "space", "play and pause", "play", "replay"),
    Action("frame-back", "left", "a frame back and on; with shift 5 %", "back", "replay"),
    Action("frame-on", "right", "a frame back and on; with shift 5 %", "on", "replay"),
    Action("far-back", "shift+left", "a frame back and on; with shift 5 %", "far back", "replay"),
    Action("far-on", "shift+right", "a frame back and on; with shift 5 %", "far on", "replay"),
    Action("start", ", home", "to the start, to the end", "first", "replay"),
    Action("end", ". end", "to the start, to the end", "last", "replay"),
    Action("slower", "<", "slower, faster", "slower", "replay"),
    Action("faster", ">", "slower, faster", "faster", "replay"),
    *OF_TIMELINE,
    Action("older-trouble", "e", TROUBLE, partial(_next_trouble, -1), "live"),
    Action("newer-trouble", "E", TROUBLE, partial(_next_trouble, 1), "live"),
    *(Action(f"page-{page.name}", page.key, page.about, partial(_toggle, page.name)) for page in TOGGLED),
    Action("idle-points", "f", "show points where nothing fires, too, and hide them", partial(flip, "idle")),
    Action("whole-run", "v", "times of the hooks: of the last 60 s, or of the whole attempt", partial(flip, "whole")),
    Action("previous-metric", "[", "previous and next metric", partial(_next_metric, -1)),
    Action("next-metric", "]", "previous and next metric", partial(_next_metric, 1)),
    Action("log-scale", "l", "logarithmic scale of the charts", partial(flip, "log")),
    Action("search", "/", "search the rows for a text", "search"),
    Action("next-match", "n", "to the next row with the text, and to the one before", "find next"),
    Action("previous-match", "N", "to the next row with the text, and to the one before", "find previous"),
    Action("copy-row", "y", "copy the row at the cursor as text, or a panel without rows", "copy row"),
    Action("copy-panel", "Y", "copy the panel or page as text", "copy panel"),
    Action("mouse", "M", "give the mouse to the terminal, to select text, and back; remembered", "mouse"),
    Action("theme", "T", "the next theme: dark, light, colour-blind; remembered", "theme"),
    Action("image", "P", "save an image (SVG) in the run directory", "image"),
    Action("suspend", "ctrl+z", "suspend the dashboard, not the training; fg in the shell brings it back", "suspend"),
    Action("leave", "q ctrl+c ctrl+q", "leave; asks whether the training goes on, where it can be stopped", _leave),
    Action("answer", "y n d", "answers where something is asked", "", "question"),
)
"""The actions of every page."""

OF_PAGES = {page.name: tuple(page.actions) for page in PAGES.values() if page.actions}
EVERY = {action.name: action for action in (*ACTIONS, *chain.from_iterable(OF_PAGES.values()))}
"""All actions by their names, which `dashboard.toml` and the palette have, too."""

CHARACTERS = {"slash": "/", "backslash": "\\", "at": "@", "minus": "-", "plus": "+", "underscore": "_"}
"""Of keys for which Textual has names of its own."""
SYMBOLS = {"up": "↑", "down": "↓", "left": "←", "right": "→", "escape": "esc", "pageup": "pgup", "pagedown": "pgdn"}


@lru_cache
def spelled(key: str) -> str:
    """Return a key as the table has it: the character that it types, else the name that Textual gives it."""
    character = CHARACTERS.get(key) or key_to_character(key)
    return character if character and character.isprintable() and character != " " else key


@lru_cache
def bound(of_page: tuple[Action, ...], replay: bool, keymap: KeyMap) -> Mapping[str, Action]:
    """Return the actions by their keys: those of the page come first, then those of a replay, then those of all.

    Among these the user's keys come before those of the table.
    """
    given, result = dict(keymap), {}
    of_all = [action for action in ACTIONS if action.only not in ("replay", "question")]
    of_replay = [action for action in ACTIONS if replay and action.only == "replay"]
    for layer in (of_all, of_replay, of_page):
        for action in sorted(layer, key=lambda action: action.name in given):
            result.update(dict.fromkeys(given.get(action.name, action.keys.split()), action))
    return result


def bound_here(scene: Scene, page: str | None = None) -> Mapping[str, Action]:
    """Return what is bound on a page by its name; "" is one without actions of its own, None the one that is shown."""
    of_page = tuple(current(scene).actions) if page is None else OF_PAGES.get(page, ())
    return bound(of_page, scene.replay, scene.keymap)


def keys_of(scene: Scene, *names: str, page: str | None = None) -> list[str]:
    """Return the keys of actions, as the help shows them: the first of each action, then the second of each."""
    every, given = bound_here(scene, page), dict(scene.keymap)
    own = [(EVERY[name], given.get(name, EVERY[name].keys.split())) for name in names]
    keys = [[SYMBOLS.get(key, key) for key in row if every.get(key) is action] for action, row in own]
    return [key for row in zip_longest(*keys) for key in row if key]


def footer_keys(scene: Scene, names: str) -> str:
    """Return the first key of each of these actions, in as few characters as will do."""
    keys = [key for name in names.split() for key in keys_of(scene, name)[:1]]
    return f"{keys[0]}-{keys[-1]}" if len(keys) > 2 and "".join(keys).isdecimal() else " ".join(keys)


def key_rows(scene: Scene) -> Mapping[str, list[tuple[str, str]]]:
    """Return by title what the help says about keys: those of all pages, then those of each."""
    modes = ("", "replay" if scene.replay else "live", *("ranks",) * scene.several)
    general = [action for action in ACTIONS if action.only in modes]
    answers = [(action.keys, action.about) for action in ACTIONS if action.only == "question"]
    result = {"keys": [*_rows(scene, "", general), *answers]}
    for name, actions in OF_PAGES.items():
        result[f"keys of the page {name}"] = _rows(scene, name, actions)
    return result


def _rows(scene: Scene, page: str, actions: Iterable[Action]) -> list[tuple[str, str]]:
    groups: dict[str, list[str]] = {}
    for action in actions:
        groups.setdefault(action.about, []).append(action.name)
    rows = [(keys_of(scene, *names, page=page), about) for about, names in groups.items()]
    for keys, _ in rows:
        while len(" ".join(keys)) > KEYS_WIDE and keys[1:]:
            keys.pop()
    return [(" ".join(keys), about) for keys, about in rows if keys]


def _palette(scene: Scene) -> None:
    modes = ("", "replay" if scene.replay else "live", *("ranks",) * scene.several)
    actions = [*(action for action in ACTIONS if action.only in modes), *current(scene).actions]
    ask(scene, [Offer(each, " ".join(keys_of(scene, each.name))) for each in actions], do)


def do(action: Action, scene: Scene) -> str | Notice:
    """Execute an action; return what the app is to do or say, "" for nothing."""
    return action.do if isinstance(action.do, str) else action.do(scene) or ""


def press(name: str, scene: Scene, character: str = "") -> str | Notice:
    """Change the view as a key says; return what the app is to do or say, "" for nothing.

    `character` is what the key types, where text is typed.
    """
    if scene.view.prompt and name != "ctrl+z":
        return edit(scene.view.prompt, scene, name, character)
    if scene.view.asking and name != "ctrl+z":
        return _answer(name, scene)
    key = spelled(name)
    if action := bound_here(scene).get(key):
        return do(action, scene)
    helped = keys_of(scene, HELP.name)
    return Notice(f"{SYMBOLS.get(key, key)} does nothing here" + f"; {' '.join(helped)} lists the keys" * bool(helped))
