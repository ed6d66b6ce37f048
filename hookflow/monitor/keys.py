"""The panels, the pages and the keys: for each key its command and its help."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from hookflow.events.commands import COMMANDS as COMMANDS_OF_RUN
from hookflow.events.commands import split_setting
from hookflow.monitor.panels.compare import COMPARE
from hookflow.monitor.panels.events import EVENT, EVENTS
from hookflow.monitor.panels.explorer import EXPLORER
from hookflow.monitor.panels.gallery import GALLERY
from hookflow.monitor.panels.help import Command, Key, help_page
from hookflow.monitor.panels.hooks import HOOK, HOOKS, POINTS
from hookflow.monitor.panels.metrics import METRICS
from hookflow.monitor.panels.output import OUTPUT
from hookflow.monitor.panels.ranks import RANKS
from hookflow.monitor.panels.runs import RUNS
from hookflow.monitor.panels.system import SYSTEM
from hookflow.monitor.panels.timeline import TO_EPOCH, TO_ITERATION, TO_TROUBLE
from hookflow.monitor.panels.waterfall import TRACE
from hookflow.monitor.prompt import edit
from hookflow.monitor.view import Notice, Page, Prompt, Scene, charts, flip, send, ways_back

HELP = Page("help", lambda scene, width, height: help_page(scene, width, height, KEYS), "?", "this help")
PANELS: dict[int, Page] = dict(enumerate((POINTS, HOOKS, METRICS, SYSTEM, EVENTS, RANKS), start=1))
TOGGLED = (EXPLORER, TRACE, GALLERY, OUTPUT, RUNS)
PAGES = {page.name: page for page in (HOOK, EVENT, HELP, COMPARE, *TOGGLED)}


def panels(scene: Scene) -> list[int]:
    """Return the panels that there are of this run."""
    return [number for number, panel in PANELS.items() if not panel.only or scene.several]


def current(scene: Scene) -> Page:
    """Return the page, or the panel in focus."""
    return PAGES.get(scene.view.page) or PANELS[scene.view.focus]


def _move(step: int, scene: Scene) -> None:
    current(scene).move(scene, step)


def _enter(scene: Scene) -> Notice | None:
    answer = current(scene).enter(scene)
    scene.view.scroll = 0
    return answer


def _toggle(page: str, scene: Scene) -> None:
    scene.view.open("main" if scene.view.page == page else page)


def _focus(number: int, scene: Scene) -> None:
    """Go to a panel; one that is in focus, or has no room beside the others, becomes large."""
    view = scene.view
    if number not in panels(scene):
        return
    again, hidden = view.focus == number, number not in scene.visible
    if view.page == "main":
        view.zoomed = not (again and view.zoomed) and (again or hidden)
    view.focus = number
    view.open("main")


def _next_panel(step: int, scene: Scene) -> None:
    view = scene.view
    order = [number for number in panels(scene) if view.zoomed or number in scene.visible or number == view.focus]
    view.focus = order[(order.index(view.focus) + step) % len(order)]


def _back(scene: Scene) -> None:
    view = scene.view
    if view.page == "main" and not view.zoomed:
        view.event = None
    view.zoomed = view.zoomed and view.page != "main"
    view.open("main")


def _swap(scene: Scene) -> None:
    scene.view.focus = {1: 2, 2: 1}.get(scene.view.focus, 2)


def _next_metric(step: int, scene: Scene) -> None:
    scene.view.metric = (scene.view.metric + step) % max(len(charts(scene.state)), 1)


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
    view.focus, view.page = 5, view.page if view.page == "event" else "main"
    return None


def _request(name: str, scene: Scene) -> str | Notice:
    """Send a command; ask first whether to, where it discards something."""
    action = send(scene, name)
    if isinstance(action, str) and COMMANDS_OF_RUN[name].destructive:
        scene.view.asking = name  # type: ignore[assignment]
        return ""
    return action


def _pause(scene: Scene) -> str | Notice:
    return _request("resume" if scene.state.stage == "paused" else "pause", scene)


def _rewind(scene: Scene) -> str | Notice:
    return _request("rewind", scene) if scene.state.checkpoints else Notice("there is no checkpoint yet")


def _switch(scene: Scene) -> str | Notice:
    """Switch the hook that the cursor is on off, or on again."""
    if scene.picked is None:
        return Notice("no hook is bound to this point")
    return send(scene, "on" if scene.picked.hook in scene.state.disabled else "off", scene.picked.hook)


def _set(scene: Scene) -> str | Notice:
    """Let an argument be typed, which the hook that the cursor is on declares settable, or another hook."""
    here = scene.picked.hook if scene.picked else ""
    names = [f"{hook}.{each}" for hook, names in scene.plan.settable.items() for each in names]
    if not names:
        return Notice("no hook of this run declares an argument settable")
    names.sort(key=lambda name: not name.startswith(f"{here}."))

    def complete(scene: Scene, text: str) -> list[tuple[str, str]]:
        key = text.partition("=")[0]
        return [(f"{name}=", f"now {_value(scene, name)}") for name in names if key in name]

    first = f"{names[0]}=" if names[0].startswith(f"{here}.") else ""
    scene.view.prompt = Prompt("set", lambda scene, text: send(scene, "set", text), complete=complete, text=first)
    return ""


def _value(scene: Scene, name: str) -> str:
    hook, _, argument = name.rpartition(".")
    if change := scene.state.setting(hook, argument):
        return split_setting(change["args"][0])[2]
    args = scene.plan.hook(hook).args
    return f"{args[argument]}" if isinstance(args, Mapping) and argument in args else "the default"


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
    if question == "rewind":
        return f"send rewind {back[int(name) - 1]}" if name in "123456"[: len(back := ways_back(scene))] else ""
    if name in ("d", "enter", "q", "ctrl+c"):
        return "detach"
    if name == "s" and scene.health.condition == "stalled":  # it may never get to the end of this iteration
        scene.view.asking = "stop"
        return ""
    return "stop and leave" if name == "s" else ""


STEPS = {"up": -1, "down": 1, "k": -1, "j": 1, "pageup": -10, "pagedown": 10}
ENDS = {"home": -(10**6), "end": 10**6}
FRAMES = {"left": "back", "right": "on", "shift+left": "far back", "shift+right": "far on"}
BOUNDS = {"comma": "first", "full_stop": "last", "home": "first", "end": "last"}
TROUBLES = {"e": partial(_next_trouble, -1), "E": partial(_next_trouble, 1)}
BRACKETS = {"left_square_bracket": partial(_next_metric, -1), "right_square_bracket": partial(_next_metric, 1)}
LEAVE: dict[str, Command | str] = dict.fromkeys(("q", "ctrl+c", "ctrl+q"), _leave)

KEYS: tuple[Key, ...] = (
    Key({"question_mark": partial(_toggle, HELP.name)}, HELP.key, HELP.about),
    Key({f"{number}": partial(_focus, number) for number in range(1, 6)}, "1-5", "go to a panel; again makes it large"),
    Key({"6": partial(_focus, 6)}, "6", "go to the ranks, the processes that train together", "ranks"),
    Key({"tab": partial(_next_panel, 1), "shift+tab": partial(_next_panel, -1)}, "tab", "next panel"),
    Key({"z": partial(flip, "zoomed")}, "z", "make the panel large, and small again"),
    Key({"0": _back, "escape": _back}, "0 esc", "back to the whole dashboard"),
    Key({name: partial(_move, step) for name, step in STEPS.items()}, "↑ ↓ k j", "move"),
    Key({name: partial(_move, step) for name, step in ENDS.items()}, "home end", "to the first, to the last", "live"),
    Key(dict.fromkeys(("h", "left", "right"), _swap), "← → h", "from the hooks to the points and back", "live"),
    Key({"h": _swap}, "h", "from the hooks to the points and back", "replay"),
    Key({"enter": _enter}, "enter", "a point's hooks; a hook's or an event's page"),
    Key({"space": "freeze"}, "space", "freeze the view; the data go on", "live"),
    Key({"p": _pause}, "p", "pause the training, and resume it", "live"),
    Key({"S": partial(_request, "step")}, "S", "train one iteration of a paused training", "live"),
    Key({"c": partial(_request, "checkpoint")}, "c", "save a checkpoint now", "live"),
    Key({"V": partial(_request, "validate")}, "V", "validate now", "live"),
    Key({"x": _switch}, "x", "switch the hook at the cursor off, and on again", "live"),
    Key({"equals_sign": _set}, "=", "set an argument that its hook declares settable", "live"),
    Key({"B": _rewind}, "B", "go back to a checkpoint (asks first)", "live"),
    Key({"s": partial(_request, "stop")}, "s", "stop the training (asks first)", "live"),
    Key({"space": "play"}, "space", "play and pause", "replay"),
    Key(FRAMES, "← →", "a frame back and on; with shift 5 %", "replay"),
    Key(BOUNDS, ", .", "to the start, to the end; also home and end", "replay"),
    Key({"less_than_sign": "slower", "greater_than_sign": "faster"}, "< >", "slower, faster", "replay"),
    Key(TO_TROUBLE, "e E", "to the warning or error before this moment, and after it", "replay"),
    Key(TO_EPOCH, "{ }", "to the end of the epoch before, and of this one", "replay"),
    Key(TO_ITERATION, "I", "to an iteration", "replay"),
    Key(TROUBLES, "e E", "newest warning or error, then older; newer", "live"),
    *(Key({page.key: partial(_toggle, page.name)}, page.key, page.about) for page in TOGGLED),
    Key({"f": partial(flip, "idle")}, "f", "show the points too where nothing fires, and hide them"),
    Key({"v": partial(flip, "whole")}, "v", "figures of the hooks: of the last 60 s, or of the whole run"),
    Key(BRACKETS, "[ ]", "previous and next metric, or image"),
    Key({"l": partial(flip, "log")}, "l", "logarithmic scale of the charts"),
    Key({"P": "image"}, "P", "save an image (SVG) in the run directory"),
    Key({"ctrl+z": "suspend"}, "ctrl-z", "suspend this screen alone, until the shell's fg"),
    Key(LEAVE, "q", "leave; asks whether the training goes on", "live"),
    Key(LEAVE, "q", "leave", "replay"),
    Key(dict.fromkeys("ynd", ""), "y n d", "answers where something is asked", "question"),
)
COMMANDS = {name: command for key in KEYS if key.only != "replay" for name, command in key.names.items()}
OF_REPLAY = {name: command for key in KEYS if key.only == "replay" for name, command in key.names.items()}


def press(name: str, scene: Scene, character: str = "") -> str | Notice:
    """Change the view as a key says; return what the app is to do or say, "" for nothing.

    The keys of the page come first, then those of a replay, then those of all. `character` is what the key types,
    where text is typed.
    """
    if scene.view.prompt and name != "ctrl+z":
        return edit(scene.view.prompt, scene, name, character)
    if scene.view.asking and name != "ctrl+z":
        return _answer(name, scene)
    command = current(scene).keys.get(name) or (scene.replay and OF_REPLAY.get(name)) or COMMANDS.get(name) or ""
    return command if isinstance(command, str) else command(scene) or ""
