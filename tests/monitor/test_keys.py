"""Every key: what it changes in the view, and in the real app what it asks of the run."""

import asyncio
import json
import math
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.worker import WorkerCancelled

from hookflow.cli.run import _dashboard
from hookflow.events.log import Tail
from hookflow.events.rundir import RunDir
from hookflow.monitor import app as dashboard
from hookflow.monitor import feed, health
from hookflow.monitor.app import MonitorApp
from hookflow.monitor.durations import Firings, Lately
from hookflow.monitor.feed import Live
from hookflow.monitor.health import Health, Sensor
from hookflow.monitor.keys import ACTIONS, EVERY, OF_PAGES, PAGES, footer_keys, press, spelled
from hookflow.monitor.layout import visible
from hookflow.monitor.panels import rerun
from hookflow.monitor.summary import summary
from hookflow.monitor.terminal import Outcome
from hookflow.monitor.view import Action, Line, Notice, Scene
from hookflow.runner.distributed.failures import append_record
from tests.limits import LIMIT
from tests.monitor.conftest import At, read
from tests.monitor.fake_run import append, end, gone, make, record
from tests.monitor.test_screens import drawn

Visit = Callable[[MonitorApp, Pilot[Any]], Awaitable[None]]


def pressed(scene: Scene, *keys: str, size: tuple[int, int] = (120, 40)) -> str:
    """Return the screen after these keys, none of which has asked the app for anything."""
    scene.visible = visible(*size, several=scene.several, hidden=scene.view.panels.hidden)
    assert [press(key, scene, key if len(key) == 1 else "") for key in keys] == [""] * len(keys)
    return drawn(scene, *size)


def test_the_digits_focus_panels_and_zoom_them(scene: At) -> None:
    at, size = scene(), (200, 60)
    for digit, name in enumerate(("metrics", "system", "events"), 1):
        for zoomed in (False, True):
            assert f"┏━ [{digit}] {name}" in pressed(at, f"{digit}", size=size)
            assert at.view.zoomed == zoomed
        assert "[3] events" in pressed(at, "escape", size=size)
        assert replace(at, visible=(0,)).focus == 0, "a panel without room has no keys"
    assert press("4", at) == Notice("one process trains: there are no ranks to show")
    assert "┏━ [g] graph" in pressed(at, "escape"), "where the graph is, it has the keys until a digit gives them away"
    assert "┏━ [2] system" in pressed(at, "2"), "a panel without room beside the graph is large"


def test_panels_are_hidden_and_resized(scene: At) -> None:
    at = scene()
    before = pressed(at)
    assert press("H", at) == Notice("only these panels can be hidden: metrics, system, events, ranks")
    assert press("3", at) == "" and press("H", at) == "remember hidden"
    after = pressed(at)
    assert at.view.panels.hidden == ("events",) and "[3] events" not in after and "[1] metrics" in after
    assert "[3] events" in pressed(at, "3"), "its key shows it large"
    assert press("H", at) == "remember hidden" and pressed(at) == before

    def top(screen: str) -> int:
        return next(row for row, line in enumerate(screen.splitlines()) if "[1] metrics" in line)

    assert press("plus", at) == press("plus", at) == "remember lower"
    assert top(pressed(at)) == top(before) - 2
    for _ in range(60):
        press("minus", at)
    least = pressed(at)
    assert top(least) > top(before) and "[g] graph" in least and at.view.panels.lower == -50
    for size in ((80, 24), (100, 40), (200, 60), (60, 15)):
        pressed(at, size=size)
        for name in ("events", "metrics", "system"):
            at.view.panels = replace(at.view.panels, hidden=(*at.view.panels.hidden, name), lower=50)
            pressed(at, size=size)
        at.view.panels = replace(at.view.panels, hidden=(), lower=-50)
    assert press("z", at) == "" and press("plus", at) == Notice("there is no lower panel to resize here")


def write(scene: Scene, text: str) -> None:
    """Type a text into the line that is open."""
    for character in text:
        press(character, scene, character)


WALKS = {
    "tab, z, 0": [
        ("tab", "┏━ [1] metrics", ""),
        ("shift+tab shift+tab", "┏━ [3] events", ""),
        ("z", "┏━ [3] events", "[1] metrics"),
        ("0", "[1] metrics", ""),
    ],
    "arrows, enter, escape": [
        ("down k j j enter", "hook schedule @ after_train_iter", "hook log"),
        ("escape down down enter", "hook log @ after_train_iter", "hook schedule"),
        ("", "every 10", ""),
        ("enter", "┏━ [g] graph", ""),
    ],
    "o": [("o", "step 99", ""), ("up", "step 98", "step 99"), ("end", "step 99", ""), ("o", "[g] graph", "step 98")],
    "f": [
        ("", "[g] graph", "before_save_checkpoint"),
        ("f z end", "before_test", ""),
        ("f", "[g] graph", "before_test"),
    ],
    "[ ] l": [
        ("", "loss", "lr "),
        ("right_square_bracket " * 2, "lr ", ""),
        ("left_square_bracket " * 2 + "l", "loss log", ""),
    ],
    "graph": [
        ("tab shift+tab", "┏━ [g] graph", ""),
        ("home enter", "hook seed @ before_run", ""),
        ("escape down enter", "hook timer @ before_train_iter", ""),
        ("escape end up", "why ema @ after_val", ""),
        ("z", "┏━ [g] graph", "[3] events"),
        ("escape", "┏━ [g] graph", ""),
        ("g", "why ema @ after_val", "[3] events"),
        ("f", "before_test_epoch", ""),
        ("f slash v i s", "/ vis", "timer"),
        ("enter v", "of the run: v", "nan_guard"),
        ("slash ctrl+u x x x", "nothing matches", ""),
        ("escape slash ctrl+u enter g", "[3] events", "/ vis"),
    ],
    "digits on a small terminal": [
        ("1", "┏━ [1] metrics", "[g] graph"),
        ("3", "[g] graph", ""),
        ("2", "┏━ [2] system", "[g] graph"),
        ("3 2", "stem   Any    64×3×3×3       1,728   6.9 kB  frozen", ""),
        ("escape tab", "┏━ [3] events", ""),
        ("tab", "┏━ [g] graph", ""),
    ],
}
"""By keys: some of them, a text that the screen shows after them, and a text that it does not show."""


@pytest.mark.parametrize("walk", WALKS)
def test_keys_show_what_the_help_says(scene: At, walk: str) -> None:
    at, size = scene(), (80, 24) if "small" in walk else (120, 40 if "[ ]" in walk or walk.startswith("graph") else 29)
    at.output = [Line(number, 0, "", f"step {number}") for number in range(100)]
    for keys, there, absent in WALKS[walk]:
        page = pressed(at, *keys.split(), size=size)
        assert there in page, page
        assert not absent or absent not in page, page


def test_every_action_has_a_name_a_sentence_and_a_key_that_it_shares_with_none(scene: At) -> None:
    names = [action.name for action in (*ACTIONS, *chain.from_iterable(OF_PAGES.values()))]
    assert len(names) == len(set(names)) == len(EVERY)
    for action in EVERY.values():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", action.name) and action.about and action.about[-1] != "."
        assert all(key == spelled(key) for key in action.keys.split()), "as the table has it"
    for layer in (*(only_in(mode) for mode in ("live", "replay")), *OF_PAGES.values()):
        keys = [key for action in layer for key in action.keys.split()]
        assert sorted(keys) == sorted(set(keys)), "the same key twice"
    for replay, name in product((False, True), PAGES):
        at = scene()
        at.replay, at.view.page = replay, name
        for hint in (hint for hint, _ in PAGES[name].hints(at)):
            assert all(each in EVERY for each in hint.split()) and (replay or footer_keys(at, hint)), (
                "a footer names actions"
            )


def only_in(mode: str) -> list[Action]:
    return [action for action in ACTIONS if action.only in (mode, *("", "ranks") * (mode == "live"))]


def test_the_help_defines_every_key_and_scrolls(scene: At) -> None:
    at = scene()
    first = pressed(at, "question_mark", size=(120, 150))
    assert all(key.about in first for key in EVERY.values() if key.only in ("", "live", "question"))
    assert "SYNTHETIC train, val data" in first
    assert "keys of the page runs" in pressed(at, "end")
    assert "[g] graph" in pressed(at, "question_mark")
    at.replay = True
    replayed = pressed(at, "question_mark", size=(120, 150))
    assert all(key.about in replayed for key in EVERY.values() if key.only == "replay")
    assert "validate now" not in replayed


def test_the_cursor_goes_to_the_hook_that_ended_the_run_and_stays_where_the_user_has_moved_it(scene: At) -> None:
    at = scene()
    at.state.apply(record("error", hook="early_stop", point="after_val"))
    for moved, where in (("before_val", ("ema", "before_val")), ("", ("early_stop", "after_val"))):
        at.view.point = moved
        picked = replace(at).picked
        assert picked is not None
        assert (picked.hook, picked.point) == where


def test_the_iteration_at_the_cursor_can_be_done_again(scene: At) -> None:
    at = scene()
    at.view.open("metrics")
    pressed(at, "left")
    copied = f"copy text hookflow rerun {at.known_as} --at {at.view.metrics.at} --with grad_norm"
    for answer, action in (("n", ""), ("c", copied), ("y", "rerun")):
        assert press("R", at) == ""
        assert f"do iteration {at.view.metrics.at} again?" in pressed(at)
        assert press(answer, at) == action
    at.readonly = True
    assert press("R", at) == copied


def test_an_iteration_is_done_again_by_a_process_whose_report_is_shown(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    walk(
        make(tmp_path / "runs"),
        ("m left R", "again?"),
        ("y", "it runs"),
        ("j", "✗ it failed, with exit code 2", "it runs", "Traceback"),
        ("k", "no such file"),
        ("escape", "metrics"),
    )


def test_a_key_without_an_action_says_so(scene: At) -> None:
    at = scene()
    for key, shown in {"Z": "Z", "f9": "f9", "shift+down": "shift+down", "circumflex_accent": "^"}.items():
        assert press(key, at) == Notice(f"{shown} does nothing here; ? lists the keys")
    at.view.focus = 1
    assert press("down", at) == Notice("there is nothing to move in here")


def test_e_finds_the_error_and_enter_shows_its_traceback(scene: At) -> None:
    at = scene()
    assert "self.canvas.write(image)" in pressed(at, "e", "enter"), "the newest"
    newest = at.entry
    pressed(at, "escape", "e")
    assert newest is not None and at.entry is not None
    assert newest.trouble and at.entry.trouble
    assert at.entry.number < newest.number
    pressed(at, "E")
    assert at.entry is newest
    pressed(at, "end")
    assert at.view.event is None
    at = scene(10, synthetic=False)
    assert [press(key, at) for key in "eE"] == [Notice("no warnings or errors")] * 2


def visit(run: RunDir, what: Visit, size: tuple[int, int] = (120, 40), **options: Any) -> MonitorApp:
    """Open the app on a run, do something in it, and leave it."""
    app = MonitorApp(run, **options)

    async def stay() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            if app._player is None:
                app._live.read_all()  # the whole log, however long that takes
            app._paint()
            await what(app, pilot)

    asyncio.run(stay())
    return app


def shown(app: MonitorApp) -> str:
    return "\n".join(strip.text for strip in app._canvas._rows)


async def until_shown(app: MonitorApp, pilot: Pilot[Any], text: str) -> None:
    until = time.monotonic() + LIMIT
    while text not in shown(app):
        assert time.monotonic() < until, shown(app)
        await pilot.pause(0.01)


def walk(run: RunDir, *steps: tuple[str, ...], **options: Any) -> MonitorApp:
    """Press keys in the app, until it shows the text that each step has next to them, and none of the texts after."""

    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        for keys, there, *absent in steps:
            await pilot.press(*keys.split())
            await until_shown(app, pilot, there)
            assert not any(text in shown(app) for text in absent)

    return visit(run, what, **options)


def commands(run: RunDir) -> list[str]:
    """Return the commands that a run was sent, with their arguments."""
    lines = map(json.loads, run.commands.read_text().splitlines()) if run.commands.exists() else ()
    return [" ".join([line["cmd"], *line["args"]]) for line in lines]


@pytest.fixture
def stalled(tmp_path: Path) -> Iterator[tuple[RunDir, subprocess.Popen[bytes]]]:
    """A run that has made no progress for weeks, and its process."""
    run = make(tmp_path / "runs", upto=100)
    run.lock.touch()
    holding = "import sys, time; lock = open(sys.argv[1]); print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", holding, run.lock], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        run.sign_process(process.pid)
        yield run, process
        process.kill()


def test_space_freezes_the_view_while_the_data_go_on(going: RunDir) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await pilot.press("space")
        before = shown(app).split("SYNTHETIC")[0]
        append(going, [record("frame", time.time(), 777, 7)])
        app._tick()
        assert "FROZEN +1" in shown(app)
        assert shown(app).split("SYNTHETIC")[0] == before
        assert app.state.it == 777
        await pilot.press("space")
        assert "FROZEN" not in shown(app)
        await pilot.press("space", "x", "x")
        assert "FROZEN" not in shown(app), "what is sent to the run, and its answer, are to be seen"

    visit(going, what)
    assert [command.split()[0] for command in commands(going)] == ["off", "on"]


def test_commands_are_sent_and_shown_until_they_are_answered(going: RunDir) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await pilot.press("c")
        assert "◉ checkpoint requested" in shown(app)
        (request,) = (json.loads(line) for line in going.commands.read_text().splitlines())
        answer = {"id": request["id"], "cmd": "checkpoint", "sent": request["t"], "ok": True, "note": "as it was"}
        append(going, [record("ack", time.time(), 600, 6, **answer)])
        await until_shown(app, pilot, "◉ checkpoint done at iteration 600: as it was")
        assert app.state.pending == []

    visit(going, what)
    walk(
        going,
        ("p s", "stop the training?", "kill"),
        ("n s k s escape", "[g] graph", "stop the training?"),
        ("s s s", "k  kill it"),  # it has not stopped though asked to
        ("", "newest checkpoint: iteration 392"),
    )
    append(going, [record("frame", time.time(), 600, 6, stage="paused")])
    walk(going, ("p", "resume requested"))
    assert commands(going) == ["checkpoint", "pause", "stop", "resume"]


def test_a_rerun_replaces_the_one_before(going: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    makes_a_folder = ["timeit", "-n", "1", "-r", "1", "import tempfile; tempfile.mkdtemp(prefix='made-')"]
    monkeypatch.setattr(rerun, "as_typed", lambda *_: makes_a_folder)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        for _ in range(2):
            app._do("rerun")
            while not app._rerun or not app._rerun.over:
                await pilot.pause(0.05)
        await until_shown(app, pilot, "done: every number")
        (folder,) = tmp_path.glob("hookflow-rerun-*")
        assert {path.name[:5] for path in folder.iterdir()} == {"made-", "outpu"}

    visit(going, what)


ASKING = {"V": "validate", "S": "step", "x": "off ema", "t t": "trace", "p": "pause", "c": "checkpoint"}


def test_a_key_for_each_command_is_pending_until_it_is_answered(going: RunDir) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await pilot.press("down")
        for keys, command in ASKING.items():
            await pilot.press(*keys.split())
            assert f"◉ {command} requested" in shown(app)
        await pilot.press("escape", "equals_sign")
        assert "clip.max_norm=  now 1.0" in shown(app), "every settable argument, with its value"
        await pilot.press(*"clip.", "tab", *"half", "enter")
        assert "◉ set clip.max_norm=half requested" in shown(app), "whether it is a number only the run knows"
        await pilot.press("equals_sign", *"ema.decay=1", "enter")
        assert 'hook "ema" does not declare "decay" settable' in shown(app)
        await pilot.press("B")
        assert "go back to which checkpoint?" in shown(app)
        await pilot.press("1", "B", "9", "B", "escape")

    for name in ("it00000098", "it00000196"):
        weights = going.checkpoints / name / "model.pt"
        weights.parent.mkdir(parents=True)
        weights.touch()
    visit(going, what)
    assert commands(going) == [*ASKING.values(), "set clip.max_norm=half", "rewind it00000196"]


def test_a_rewind_goes_to_the_checkpoint_that_was_shown_though_another_is_saved_meanwhile(going: RunDir) -> None:
    def save(it: int) -> None:
        weights = going.checkpoints / f"it{it:08}" / "model.pt"
        weights.parent.mkdir(parents=True)
        weights.touch()

    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await pilot.press("B")
        save(588)
        app._paint()
        await pilot.press("1", "B", "1")

    save(98)
    save(196)
    visit(going, what)
    assert commands(going) == ["rewind it00000196", "rewind it00000588"]


@pytest.mark.parametrize(("page", "size"), [("trace", (120, 40)), ("main", (60, 15))])
def test_no_hook_is_switched_off_out_of_sight(scene: At, page: str, size: tuple[int, int]) -> None:
    at = replace(scene(), visible=visible(*size))
    at.view.open(page)
    assert press("x", at) == Notice("no hook is at the cursor here: g shows them")
    assert press("g", at) == ""
    assert str(press("x", at)).startswith("send off ")


def test_no_hook_is_switched_off_behind_a_panel_that_is_large(scene: At) -> None:
    at = scene()
    at.visible = visible(120, 40)
    assert press("3", at) == press("z", at) == ""
    assert at.view.zoomed and at.view.page == "main"
    assert isinstance(press("x", at), Notice)
    assert press("0", at) == ""
    assert str(press("x", at)).startswith("send off ")


@pytest.mark.parametrize("page", ["main", "graph"])
def test_a_hook_that_the_filter_hides_is_neither_switched_off_nor_opened(scene: At, page: str) -> None:
    at = scene()
    at.view.open(page)
    at.view.point, at.view.hook = "after_backward", 0
    assert at.picked is not None and at.picked.hook == "clip"
    pressed(at, "slash", *"accuracy", "enter")
    for key in ("x", "enter"):
        assert isinstance(press(key, at), Notice)
    assert at.view.page == page
    pressed(at, "down")
    assert press("x", at) == "send off accuracy"


def test_a_key_pressed_again_before_the_run_has_answered_asks_for_the_opposite(scene: At) -> None:
    at = scene()
    for key in ("x", "p"):
        answers = []
        for number in range(3):
            answers.append(sent := str(press(key, at)))
            _, command, *args = sent.split()
            at.state.apply_command({"id": f"{key}{number}", "cmd": command, "args": args, "t": at.clock, "by": "me"})
        assert answers[0] == answers[2] != answers[1], answers


@pytest.mark.parametrize("why", ["readonly", "over", "replay"])
def test_no_key_asks_anything_of_a_run_that_cannot_be_asked(scene: At, why: str) -> None:
    at = scene()
    at.readonly, at.replay = why == "readonly", why == "replay"
    at.health = Health("stopped") if why == "over" else at.health
    at.view.page = "trace"
    assert isinstance(press("t", at), Notice)
    at.view.open("main")
    for keys in ASKING:
        for key in keys.split()[:1]:
            answer = press(key, at)
            assert key == "t" or (isinstance(answer, Notice) and answer.text), key
            at.view.open("main")
    for key in ("B", "s"):
        press(key, at)
        assert at.view.asking == "", "nothing is asked of the user either"


def test_the_waterfall_goes_from_one_iteration_to_the_next(going: RunDir) -> None:
    def span(it: int, name: str, place: str, ts: float, dur: float) -> dict[str, Any]:
        return {"ph": "X", "name": name, "cat": place, "ts": ts, "dur": dur, "args": {"iteration": it}}

    events = [{"ph": "M", "name": "process_name", "args": {"name": "rank 0"}}]
    for it in (601, 602):
        start = it * 1e4
        events += [span(it, "iteration", "iteration", start, 9000.0), span(it, "forward", "phase", start, 5000.0)]
        events += [span(it, "probe", "forward", start + 100 * k, 50.0) for k in range(3)]
    going.traces.mkdir()
    (going.traces / "it00000601.json").write_text(json.dumps({"traceEvents": events}))
    (going.traces / "it00000701.json").write_text("[]")
    record = {"k": "trace", "it": 602, "ep": 6, "path": "traces/it00000601.json", "first": 601, "iters": 2}
    sent = {"id": "1", "cmd": "trace", "args": ["2"], "t": time.time(), "by": "me"}
    going.commands.write_text(json.dumps(sent) + "\n")
    answer = {"id": "1", "cmd": "trace", "args": ["2"], "ok": True, "note": "iterations 601 to 602", "sent": 0.0}
    append(going, [{**answer, "k": "ack", "it": 600, "ep": 6, "t": time.time()}])
    walk(going, ("t", "tracing iterations 601 to 602: 600 is done"))
    append(going, [{**record, "t": time.time()}])
    second = ("right", "iteration 602  9.000 ms  2/2", "iteration 601")
    walk(going, ("t", "iteration 601  9.000 ms  1/2"), second, ("right", "2/2"), ("left", "probe @ forward ×3", "2/2"))
    append(going, [{**record, "t": time.time(), "path": "traces/it00000701.json"}])
    walk(going, ("t", "it00000701.json is no trace of hookflow"))


def test_the_stack_of_a_stall_is_shown_once_it_is_known(
    stalled: tuple[RunDir, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = stalled
    taken: list[int] = []

    def spied(pid: int, output: Path) -> list[str]:
        taken.append(pid)
        return [f"spied {len(taken)} (a.py:3)"]

    monkeypatch.setattr(health, "stack", spied)
    monkeypatch.setattr(health, "look_inside", lambda run, ranks: {0: (0, 42.0)})
    walk(run, ("w", "opened with --readonly"), readonly=True)
    assert not taken, "nothing is asked of a run that is only watched"
    walk(run, ("", "spied 1 (a.py:3)"), ("w", "┏━ now, at "), ("enter", "spied 2 (a.py:3)"))
    assert len(taken) == 2, "it is taken once, and when it is asked for"


def test_the_state_of_a_run_is_read_by_the_thread_that_folds_its_log(
    stalled: tuple[RunDir, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read a percentile counts the frames that have come: two threads would count some of them twice."""
    run, _ = stalled
    readers: set[int] = set()
    since = Lately.since

    def spied(window: Lately, second: int) -> Firings:
        readers.add(threading.get_ident())
        return since(window, second)

    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        app._sense(Sensor())
        while app.workers:
            with suppress(WorkerCancelled):  # the next look, by the clock, has taken its place
                await app.workers.wait_for_complete()

    monkeypatch.setattr(Lately, "since", spied)
    visit(run, what)
    assert readers == {threading.get_ident()}


def test_a_stalled_run_offers_to_kill_its_process(stalled: tuple[RunDir, subprocess.Popen[bytes]]) -> None:
    run, process = stalled

    notice = "opened with --readonly"
    watched = walk(run, ("s", notice), ("k", "[g] graph", notice), ("c p y q", ""), readonly=True)
    assert watched.return_value is Outcome.DETACHED
    assert process.poll() is None, "nobody kills who only watches"
    walk(
        run,
        ("", "no progress: s stops it"),
        ("q s", "stop the training?"),  # to stop after this iteration and leave would leave it hanging
        ("", "no progress for"),
        ("escape s k", "the process has ended"),
        ("", "? LOST"),
        ("c s", ""),
    )
    assert process.wait() == -signal.SIGTERM
    assert commands(run) == []


@pytest.mark.parametrize(
    ("opener", "answer", "outcome", "sent"),
    [
        ("q", "d", Outcome.DETACHED, []),
        ("ctrl+c", "enter", Outcome.DETACHED, []),
        ("ctrl+c", "ctrl+c", Outcome.DETACHED, []),
        ("ctrl+q", "s", Outcome.STOP, ["stop"]),
    ],
)
def test_leaving_asks_what_goes_on(going: RunDir, opener: str, answer: str, outcome: Outcome, sent: list[str]) -> None:
    question = "leave the dashboard?"
    app = walk(going, (opener, question), ("escape", "[g] graph", question), (f"{opener} {answer}", ""))
    assert app.return_value is outcome
    assert commands(going) == sent


STOPS = {
    "not asked": (None, True),
    "asked": ({}, False),
    "acknowledged": ({"ok": True}, False),
    "refused": ({"ok": False}, True),
    "asked of an earlier attempt": ({"t": 1.0}, True),
}
"""What is known of a request to stop, and whether the run goes on as far as anybody can say."""


@pytest.mark.parametrize("known", STOPS)
def test_the_summary_says_whether_the_run_was_asked_to_stop(going: RunDir, known: str) -> None:
    facts, goes_on = STOPS[known]
    if facts is not None:
        sent = {"id": "1", "cmd": "stop", "args": [], "t": facts.get("t", time.time()), "by": "me"}
        going.commands.write_text(json.dumps(sent) + "\n")
    if facts and "ok" in facts:
        answer = {"id": "1", "cmd": "stop", "args": [], "sent": time.time(), "note": "", "ok": facts["ok"]}
        append(going, [record("ack", time.time(), 600, 6, **answer)])
    live = read(going)
    last = summary(going, live.state, live.plan)[-1]
    assert ("the run goes on" in last) == goes_on
    assert ("asked to stop" in last) == (not goes_on)


def test_a_dashboard_that_cannot_ask_the_run_to_stop_stays_and_says_so(going: RunDir) -> None:
    going.commands.mkdir()
    app = walk(going, ("q s", "cannot ask the run to stop"))
    assert app.return_value is None, "nobody has left it"


@pytest.mark.parametrize("opener", ["q", "s"])
def test_a_question_about_a_training_goes_when_that_has_ended(going: RunDir, opener: str) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await pilot.press(opener)
        assert "the training?" in shown(app) or "leave the dashboard?" in shown(app)
        append(going, [end(t=time.time(), it=777, ep=7)])
        await until_shown(app, pilot, "the run is over")
        assert app._view.asking == "" and "the training?" not in shown(app)

    visit(going, what)


@pytest.mark.parametrize("newest", [False, True], ids=["from its beginning", "its newest first"])
def test_a_run_that_is_being_read_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newest: bool) -> None:
    monkeypatch.setattr(dashboard, "LONG", 0 if newest else 1 << 23)
    monkeypatch.setattr(feed, "RECENT", 1 << 13)
    monkeypatch.setattr(Tail, "chunk", 1 << 12)
    monkeypatch.setattr(dashboard, "CHUNK", 1 << 10)
    monkeypatch.setattr(Live.poll, "__defaults__", (0.0,))  # a record at a time
    shows = MonitorApp(gone(make(tmp_path, upto=60)))

    async def stay() -> None:
        async with shows.run_test(size=(120, 40)) as pilot:
            await until_shown(shows, pilot, "○ READING")
            assert shown(shows).count("reading 0 of 0 MB of the event log") == 2, "on every page, in its footer"
            assert "LIVE" in shown(shows)
            if newest:
                last = read(shows.run_dir).state.it
                await until_shown(shows, pilot, f"it {last}")
                assert shows._live.state.it < last
                assert "older curves and times follow" in shown(shows)
            shows._live.read_all()
            await until_shown(shows, pilot, "? LOST")

    asyncio.run(stay())


def test_a_screen_is_painted_only_when_something_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "PATIENCE", math.inf)
    run = make(tmp_path / "runs", upto=60, began=time.time() - 60)
    run.sign_process()

    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        app._sensor = None  # what the machine does changes all the time

        def paints(*records: dict[str, Any]) -> bool:
            append(run, records)
            before = app._painted
            app._tick()
            return app._painted > before

        def frame(stage: str) -> dict[str, Any]:
            return record("frame", time.time(), 777, 7, stage=stage)

        await app.workers.wait_for_complete()
        paints()
        assert paints(frame("paused"))
        assert not paints()
        assert not paints(frame("paused")), "a frame of the pause"
        app.say("a notice")
        assert paints()
        app.say("")
        assert paints()
        assert paints(frame("train"))
        assert not paints()
        assert paints(end(t=time.time()))
        assert not paints()

    visit(run, what)


def test_after_the_end_the_screen_stays_until_q(whole: RunDir) -> None:
    app = walk(whole, ("", "✓ FINISHED"), ("", "ENDED"), ("c s q", ""))
    assert app.return_value is Outcome.ENDED
    assert commands(whole) == []


def test_who_has_started_the_run_is_asked_how_it_ended(going: RunDir) -> None:
    def child_exit() -> int:
        if going.describe()["process_started"] != 1.0:
            going.sign(process_started=1.0)
            append_record(going, "end", 700, status="failed", exit=137, reason="killed by SIGKILL", seconds=9.0)
        return -9

    app = walk(going, ("", "✗ FAILED"), ("", "failed: killed by SIGKILL"), child_exit=child_exit)
    assert app.state.it == 700


def test_a_dashboard_that_crashes_says_that_the_training_goes_on(
    going: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MonitorApp, "run", lambda app: App.run(app, headless=True))
    monkeypatch.setattr(MonitorApp, "_paint", lambda app: 1 / 0)
    assert _dashboard(going, lambda: None) == 1
    assert _dashboard(going, lambda: -9) == -9
    out, errors = capsys.readouterr()
    assert errors.count("the dashboard has crashed; the training goes on: hookflow watch ") == 1
    assert "the run goes on; watch it: hookflow watch " in out


def test_P_saves_a_picture_and_a_run_that_may_not_be_written_says_so(going: RunDir) -> None:  # noqa: N802  # the key
    going.commands.mkdir()
    walk(going, ("P", "saved "), ("c", "cannot ask the run to checkpoint"))
    (image,) = going.path.glob("screen-*.svg")
    picture = image.read_text("utf-8").replace("&#160;", " ")
    assert "after_train_iter" in picture and "hookflow cifar" in picture and "MonitorApp" not in picture
    assert picture.startswith('<svg xml:space="preserve" ')


def test_replay_plays_pauses_steps_and_jumps(whole: RunDir) -> None:
    app = walk(
        whole,
        ("", "REPLAY 0.25x ▶"),
        ("space", "‖"),
        ("full_stop", "✓ FINISHED"),
        ("left", " 0:00:31.7 ├", "✓ FINISHED"),
        ("end shift+left", " 0:00:30.4 ├"),
        ("shift+left shift+right", " 0:00:30.4 ├"),
        ("shift+right", " 0:00:32.0 ├"),
        ("comma", " 0:00:00.0 ├"),
        ("greater_than_sign greater_than_sign less_than_sign", "REPLAY 0.5x"),
        ("c", "this is a replay"),
        ("s q", ""),
        replay=0.25,
    )
    assert app.return_value is Outcome.ENDED
    assert commands(whole) == []


@pytest.mark.parametrize("size", [(200, 60), (60, 15)])
def test_no_color_has_no_colour(going: RunDir, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        for key in ("1", "2", "3", "question_mark", "escape", "enter", "escape", "g", "q"):
            await pilot.press(key)
            image = app.export_screenshot()
            painted = {word for word in image.replace('"', " ").replace(";", " ").split() if word.startswith("#")}
            inked = {ink for ink in painted if len(ink) == 7 and len({ink[1:3], ink[3:5], ink[5:7]}) > 1}
            assert inked <= {"#ff5f57", "#febc2e", "#28c840", "#c5c8c6"}, "only the frame of the image"
        assert "SYNTHETIC" in shown(app)

    visit(going, what, size=size)
