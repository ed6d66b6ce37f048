"""The app around the pages: what keys ask of the run, what is asked first, a replay, the palette,
the help, leaving.
"""

import asyncio
import json
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.command import Hit
from textual.events import Key
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Input
from textual.widgets._footer import FooterKey

from hookflow.cli.run import _show_dashboard
from hookflow.events.log import TailReader
from hookflow.events.rundir import RunDir
from hookflow.monitor import health, log_reader, process_watch, run_store
from hookflow.monitor.app import MonitorApp, list_bindings_by_page
from hookflow.monitor.bindings import REPLAY_KEYS
from hookflow.monitor.feed import LogFollower
from hookflow.monitor.palette import ActionProvider
from hookflow.monitor.run_store import RunStore
from hookflow.monitor.screens.dialogs import ChoiceDialog
from hookflow.monitor.screens.help import HelpScreen
from hookflow.monitor.settings import Preferences, Settings
from hookflow.monitor.terminal import DashboardResult
from hookflow.monitor.widgets.run_header import RunHeader
from hookflow.runner.distributed.failures import append_record
from tests.monitor.fake_run import append, end, gone, make, make_ranks, record
from tests.monitor.shown import NORMAL, WIDE, Visit, press, screen_text, settle, shown, visit
from tests.support.limits import LIMIT

ASKING = {
    "ctrl+p": "pause",
    "ctrl+n": "step",
    "ctrl+s": "checkpoint",
    "ctrl+v": "validate",
    "ctrl+t": "trace",
    "ctrl+o": "off",
}
"""By key the command that it sends."""


def commands(run: RunDir) -> list[str]:
    """Return the commands that were sent to a run, as one writes them."""
    if not run.commands.is_file():
        return []
    sent = [json.loads(line) for line in run.commands.read_text().splitlines()]
    return [" ".join([each["cmd"], *each["args"]]) for each in sent]


def notices(app: MonitorApp) -> list[str]:
    """Return what the app has said, the newest last."""
    return [notification.message for notification in app._notifications]


async def until(app: MonitorApp, pilot: Pilot[Any], text: str) -> None:
    """Wait until the screen has a text, or the app has said it."""
    deadline = time.monotonic() + LIMIT
    while text not in screen_text(app) and not any(text in notice for notice in notices(app)):
        assert time.monotonic() < deadline, screen_text(app)
        await asyncio.sleep(0.02)
        await settle(app, pilot)


def pressing(*keys: str) -> Visit:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, *keys)

    return do


def test_a_page_whose_widget_is_mounted_late_lets_it_be_mounted(
    going: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that looks again and again without giving the loop back froze the
    dashboard while a notice came.
    """
    looks: list[float] = []

    def is_mounted(self: RunHeader) -> bool:
        looks.append(time.monotonic())
        return len(looks) > MOST_LOOKS or time.monotonic() - looks[0] > 0.5

    async def update(app: MonitorApp, pilot: Pilot[Any]) -> None:
        monkeypatch.setattr(RunHeader, "is_mounted", property(is_mounted))
        assert app.page is not None
        app.page.update_run(now=True)
        await asyncio.sleep(1.0)

    visit(going, update)
    assert 2 <= len(looks) < MOST_LOOKS


MOST_LOOKS = 200
"""Looks at a widget in half a second; a page that never waits looks some ten thousand times."""


# What keys ask of the run


@pytest.mark.parametrize("pressed", ASKING)
def test_each_key_of_the_training_sends_its_command(going: RunDir, pressed: str) -> None:
    app = visit(going, pressing(pressed))
    (sent,) = commands(going)
    assert sent.split()[0] == ASKING[pressed]
    assert app.state.pending[0].cmd == ASKING[pressed]


def test_an_answer_is_shown_by_what_the_run_says(going: RunDir) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "ctrl+s")
        assert notices(app)[-1] == "◉ checkpoint requested"
        (request,) = (json.loads(line) for line in going.commands.read_text().splitlines())
        answer = {
            "id": request["id"],
            "cmd": "checkpoint",
            "sent": request["t"],
            "ok": True,
            "note": "as it was",
        }
        append(going, [record("ack", time.time(), 600, 6, args=[], **answer)])
        await until(app, pilot, "checkpoint done at iteration 600: as it was")
        assert app.state.pending == []

    visit(going, do)


def test_a_key_pressed_again_before_the_run_has_answered_asks_for_the_opposite(
    going: RunDir,
) -> None:
    visit(going, pressing("ctrl+p", "ctrl+p", "ctrl+p"))
    assert commands(going) == ["pause", "resume", "pause"]


def test_a_hook_is_switched_off_and_on_again(going: RunDir) -> None:
    visit(going, pressing("ctrl+o", "ctrl+o"))
    first, second = commands(going)
    assert first.split()[0] == "off"
    assert second == first.replace("off", "on")


@pytest.mark.parametrize("why", ["readonly", "over", "replay"])
def test_no_key_asks_anything_of_a_run_that_cannot_be_asked(
    request: pytest.FixtureRequest, why: str
) -> None:
    run: RunDir = request.getfixturevalue("going" if why == "readonly" else "whole")
    options: dict[str, Any] = {
        "readonly": {"readonly": True},
        "replay": {"replay": 1.0},
        "over": {},
    }[why]
    app = visit(run, pressing(*ASKING, "ctrl+x", "ctrl+r", "ctrl+e"), **options)
    assert commands(run) == []
    assert notices(app)


def test_a_run_directory_that_cannot_be_written_is_said(going: RunDir) -> None:
    going.commands.mkdir()
    app = visit(going, pressing("ctrl+s"))
    assert notices(app)[-1].startswith("cannot ask the run to checkpoint: ")


# What is asked first


def test_stop_asks_and_its_safe_answer_has_the_focus(going: RunDir) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        for keys in (("ctrl+x", "ctrl+x"), ("ctrl+x", "enter"), ("ctrl+x", "escape")):
            await press(app, pilot, *keys)
            assert commands(going) == [], f"{keys} stops nothing"
            if isinstance(app.screen, ChoiceDialog):
                await press(app, pilot, "escape")
        await press(app, pilot, "ctrl+x")
        assert "stop the training?" in screen_text(app)
        assert "kill" not in screen_text(app), "it has not been asked to stop yet"
        await press(app, pilot, "y")
        assert commands(going) == ["stop"]
        await press(app, pilot, "ctrl+x")
        assert "kill it: stops now, saves nothing" in screen_text(app), (
            "it has not stopped though asked to"
        )
        assert "newest checkpoint: iteration 392" in screen_text(app)

    visit(going, do)


@pytest.mark.parametrize(
    ("keys", "outcome", "sent"),
    [
        (("q", "d"), DashboardResult.DETACHED, []),
        (("q", "enter"), DashboardResult.DETACHED, []),
        (("ctrl+c", "enter"), DashboardResult.DETACHED, []),
        (("ctrl+q", "s"), DashboardResult.STOP, ["stop"]),
    ],
)
def test_leaving_asks_what_goes_on(
    going: RunDir, keys: tuple[str, ...], outcome: DashboardResult, sent: list[str]
) -> None:
    app = visit(going, pressing(keys[0], "escape", *keys[:1]))
    assert app.return_value is None, "esc stays"
    app = visit(going, pressing(*keys))
    assert app.return_value is outcome
    assert commands(going) == sent


def typed_text(app: MonitorApp) -> str:
    """Return what stands in the line to type in; "" where there is none yet."""
    return "".join(line.value for line in app.screen.query(Input))


TYPED_AT_ONCE = [
    (["q", "d"], lambda app: app.return_value is DashboardResult.DETACHED),
    (["slash", "e", "m", "a"], lambda app: typed_text(app) == "ema"),
    (["ctrl+e", "l", "r"], lambda app: typed_text(app).endswith("lr")),
    (["colon", "l", "o", "g"], lambda app: typed_text(app) == "log"),
    (
        ["2", "o"],
        lambda app: app.choices.by_order and app.page is not None and app.page.page_name == "hooks",
    ),
    (
        ["question_mark", "escape", "3"],
        lambda app: app.page is not None and app.page.page_name == "metrics",
    ),
]
"""Keys, and whether all of them have come to what the ones before them have opened."""


@pytest.mark.parametrize(
    ("keys", "is_done"), TYPED_AT_ONCE, ids=[each[0][0] for each in TYPED_AT_ONCE]
)
def test_keys_typed_at_once_come_to_what_they_open(
    going: RunDir, keys: list[str], is_done: Callable[[MonitorApp], bool]
) -> None:
    async def type_them(app: MonitorApp, pilot: Pilot[Any]) -> None:
        for name in keys:
            character = name if len(name) == 1 else None
            app.post_message(Key(name, character))
        until = time.monotonic() + LIMIT
        while not is_done(app):
            assert time.monotonic() < until
            await asyncio.sleep(0.01)

    visit(going, type_them)


def test_the_footer_offers_what_can_be_asked_of_the_run(going: RunDir) -> None:
    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        offered = {key.action for key in app.screen.query(FooterKey)}
        assert {"pause", "stop", "leave"} <= offered
        append(going, [end(t=time.time())])
        await until(app, pilot, "FINISHED")
        await settle(app, pilot)
        offered = {key.action for key in app.screen.query(FooterKey)}
        assert not {"pause", "command('checkpoint')", "stop"} & offered
        assert "leave" in offered
        await press(app, pilot, "ctrl+p")
        assert notices(app)[-1].startswith("the run is over"), "a key says why it does nothing"

    visit(going, look)


def test_the_footer_is_made_anew_only_where_its_keys_change(going: RunDir) -> None:
    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "3")
        before = [*app.screen.query(FooterKey)]
        app.screen.refresh_bindings()  # as a change of the focus does
        await settle(app, pilot)
        assert [*app.screen.query(FooterKey)] == before
        await press(app, pilot, "slash")
        assert [*app.screen.query(FooterKey)] != before, "the filter has keys of its own"

    visit(going, look)


def test_who_only_watches_leaves_without_a_question(going: RunDir) -> None:
    assert visit(going, pressing("q"), readonly=True).return_value is DashboardResult.DETACHED


def test_the_dashboard_of_a_run_that_is_over_closes_without_a_question(whole: RunDir) -> None:
    assert visit(whole, pressing("q")).return_value is DashboardResult.ENDED


def test_a_dashboard_that_cannot_ask_the_run_to_stop_stays_and_says_so(going: RunDir) -> None:
    going.commands.mkdir()
    app = visit(going, pressing("q", "s"))
    assert app.return_value is None
    assert "cannot ask the run to stop" in notices(app)[-1]


def test_a_question_about_a_training_goes_when_that_has_ended(going: RunDir) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "ctrl+x")
        append(going, [end(t=time.time(), it=777, ep=7)])
        await until(app, pilot, "✓ FINISHED")
        assert not isinstance(app.screen, ChoiceDialog)

    visit(going, do)


def test_rewind_offers_the_checkpoints_on_the_disk_as_they_were_when_it_asked(
    going: RunDir,
) -> None:
    def save(it: int) -> None:
        path = going.checkpoints / f"it{it:08}"
        path.mkdir(parents=True)
        saved = {"path": f"checkpoints/{path.name}", "names": ["last"], "bytes": 1, "ms": 1.0}
        append(going, [record("checkpoint", time.time(), it, 1, **saved)])

    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await settle(app, pilot)
        await press(app, pilot, "ctrl+r")
        assert screen_text(app).index("iteration 196") < screen_text(app).index("iteration 98")
        save(588)
        await settle(app, pilot)
        await press(app, pilot, "1")

    save(98)
    save(196)
    visit(going, do)
    assert commands(going) == ["rewind it00000196"]


def test_an_argument_is_set_by_what_is_typed(going: RunDir) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "ctrl+e")
        assert "clip.max_norm = 1.0" in screen_text(app)
        await press(app, pilot, *"2.5", "enter")

    visit(going, do)
    assert commands(going) == ["set clip.max_norm=2.5"]


def test_a_mistake_in_a_setting_is_said_and_not_sent(going: RunDir) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "ctrl+e")
        app.screen.query_one(Input).value = "clip.max_nrm=3"
        await press(app, pilot, "enter")

    app = visit(going, do)
    assert commands(going) == []
    assert 'does not declare "max_nrm" settable' in notices(app)[-1]


# A stalled run, and one that ends


@pytest.fixture
def stalled(tmp_path: Path) -> Iterator[tuple[RunDir, subprocess.Popen[bytes]]]:
    """A run that has made no progress for weeks, and its process."""
    run = make(tmp_path / "runs", upto=100)
    run.lock.touch()
    holding = "import sys, time; lock = open(sys.argv[1]); print(flush=True); time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", holding, run.lock], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        run.sign_process(process.pid)
        yield run, process
        process.kill()


def test_a_stalled_run_offers_to_kill_its_process(
    stalled: tuple[RunDir, subprocess.Popen[bytes]],
) -> None:
    run, process = stalled

    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await until(app, pilot, "STALLED")
        assert "no progress for" in screen_text(app)
        # To stop after this iteration and leave would leave it hanging.
        await press(app, pilot, "q", "s")
        assert "stop the training?" in screen_text(app)
        await press(app, pilot, "k")
        await until(app, pilot, "the process has ended")

    visit(run, do)
    assert process.wait() == -signal.SIGTERM
    assert commands(run) == []


def test_the_stacks_are_taken_when_they_are_shown_and_when_asked_for(
    stalled: tuple[RunDir, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = stalled
    taken: list[int] = []

    def spied(pid: int, output: Path) -> list[str]:
        taken.append(pid)
        return [f"spied {len(taken)} (a.py:3)"]

    monkeypatch.setattr(process_watch, "stack", spied)
    monkeypatch.setattr(process_watch, "read_training_places", lambda run, ranks: {0: (0, 42.0)})

    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "w")
        app.read_stacks()
        await until(app, pilot, "(a.py:3)")
        await app.workers.wait_for_complete()
        before = len(taken)
        await press(app, pilot, "enter")
        await app.workers.wait_for_complete()
        assert len(taken) > before
        await until(app, pilot, f"spied {len(taken)} (a.py:3)")

    assert "opened with --readonly" in shown(run, "w", readonly=True)
    assert not taken, "nothing is asked of a run that is only watched"
    visit(run, do)


def test_the_state_of_a_run_is_read_by_the_thread_that_folds_its_log(
    going: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read a percentile counts the frames that have come:
    two threads would count some of them twice.
    """
    threads: set[int] = set()
    state_of = run_store.RunStore.live_state.fget
    assert state_of is not None

    def spied(store: run_store.RunStore) -> Any:
        threads.add(threading.get_ident())
        return state_of(store)

    monkeypatch.setattr(run_store.RunStore, "live_state", property(spied))

    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        app.read_stacks()
        await app.workers.wait_for_complete()

    visit(going, do)
    assert threads == {threading.get_ident()}


def test_who_has_started_the_run_is_asked_how_it_ended(going: RunDir) -> None:
    def child_exit() -> int:
        if going.describe()["process_started"] != 1.0:
            going.sign(process_started=1.0)
            append_record(
                going,
                "end",
                700,
                status="failed",
                exit=137,
                reason="killed by SIGKILL",
                seconds=9.0,
            )
        return -9

    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await until(app, pilot, "✗ FAILED")
        assert "failed: killed by SIGKILL" in screen_text(app)

    assert visit(going, do, child_exit=child_exit).state.it == 700


def test_a_dashboard_that_crashes_says_that_the_training_goes_on(
    going: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def crash(app: MonitorApp) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(MonitorApp, "run", lambda app: App.run(app, headless=True))
    monkeypatch.setattr(MonitorApp, "_tick", crash)
    assert _show_dashboard(going, lambda: None) == 1
    assert _show_dashboard(going, lambda: -9) == -9
    out, errors = capsys.readouterr()
    assert errors.count("the dashboard has crashed; ") == 1
    assert "watch it: hookflow watch " in out


@pytest.mark.parametrize("newest", [False, True], ids=["from its beginning", "its newest first"])
def test_a_run_that_is_being_read_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newest: bool
) -> None:
    monkeypatch.setattr(run_store, "LONG_LOG", 0 if newest else 1 << 23)
    monkeypatch.setattr(log_reader, "RECENT_BYTES", 1 << 13)
    monkeypatch.setattr(TailReader, "chunk", 1 << 12)
    monkeypatch.setattr(run_store, "READ_CHUNK_BYTES", 1 << 10)
    monkeypatch.setattr(LogFollower.poll, "__defaults__", (0.0,))  # a record at a time

    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        app.store.poll()
        app.show_changes()
        await until(app, pilot, "READING")
        assert "reading 0 of 0 MB of the event log" in screen_text(app)
        app.store._live.read_all()
        await until(app, pilot, "? LOST")

    visit(gone(make(tmp_path, upto=60)), do, settled=False)


def test_a_run_is_not_judged_by_a_part_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TailReader, "chunk", 1 << 12)
    monkeypatch.setattr(LogFollower.poll, "__defaults__", (0.0,))  # a record at a time
    store = RunStore(gone(make(tmp_path, upto=60)))
    assert store.is_behind
    while store.is_behind:
        assert store.health.condition == "reading"
        store.poll()
    assert store.health.condition == "lost"


def test_a_run_that_has_been_read_stays_as_it_was_judged_until_more_of_it_is_read(
    going: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RunStore(going)
    while store.is_behind:
        store.poll()
    assert store.health.condition == "running"
    append(going, [record("warning", text=f"warning {number}") for number in range(3)])
    monkeypatch.setattr(LogFollower.poll, "__defaults__", (0.0,))
    monkeypatch.setattr(health, "PATIENCE", -1.0)  # by this alone it would stall
    store.poll()
    assert store.is_behind
    assert store.health.condition == "running"


# A replay


def test_a_replay_plays_pauses_steps_and_jumps(whole: RunDir) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        player = app.store.player
        assert player is not None
        last = player.recording.last - player.recording.first

        def passed() -> float:
            return (player.moment - player.recording.first) / last

        assert "REPLAY 0.25x ▶" in screen_text(app)
        await press(app, pilot, "space")
        assert not player.playing and "‖" in screen_text(app)
        await press(app, pilot, "right_parenthesis")
        assert passed() == 1.0 and "✓ FINISHED" in screen_text(app)
        await press(app, pilot, "comma")
        assert passed() < 1.0 and "✓ FINISHED" not in screen_text(app)
        await press(app, pilot, "full_stop", "shift+left")
        assert passed() == pytest.approx(0.95)
        await press(app, pilot, "shift+left", "shift+right")
        assert passed() == pytest.approx(0.95)
        await press(app, pilot, "left_parenthesis")
        assert passed() == 0.0
        await press(app, pilot, "greater_than_sign", "greater_than_sign", "less_than_sign")
        assert player.speed == 0.5
        await press(app, pilot, "right_curly_bracket")
        assert app.state.ep == 1
        await press(app, pilot, "I", *"400", "enter")
        assert 400 <= app.state.it < 420
        await press(app, pilot, "I", *"9999", "enter")
        assert notices(app)[-1] == "iteration 9999 is not in this recording"

    app = visit(whole, do, replay=0.25)
    assert commands(whole) == []
    assert app.return_value is None


def test_freeze_holds_the_view_and_a_command_lets_it_go_on(going: RunDir) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "space")
        assert "FROZEN +0" in screen_text(app)
        append(going, [record("frame", time.time(), 777, 7)])
        await until(app, pilot, "FROZEN +1")
        assert app.store.state.it < 777 == app.state.it
        await press(app, pilot, "ctrl+s")
        assert "FROZEN" not in screen_text(app)

    visit(going, do)


# Pages, the palette, the help


def test_each_digit_opens_its_page(going: RunDir) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        for digit, name in enumerate(app.MODES, start=1):
            await press(app, pilot, f"{digit}")
            assert app.page is not None and app.page.page_name == name

    visit(going, do)


def test_the_help_shows_the_page_in_focus_and_goes_by_the_same_key(going: RunDir) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "7", "question_mark")
        assert isinstance(app.screen, HelpScreen)
        await until(app, pilot, "give the run tags, as #word, and a note")
        assert "keys of this page: runs" in screen_text(app)
        await press(app, pilot, "question_mark")
        assert app.page is not None and app.page.page_name == "runs"

    visit(going, do)


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        ("abort", "stop"),
        ("save", "checkpoint"),
        ("evaluate", "validate"),
        ("halt", "pause"),
        ("profile", "trace"),
    ],
)
def test_the_palette_finds_an_action_by_the_words_that_users_say(
    going: RunDir, typed: str, sent: str
) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "colon", *typed)
        while not app.screen.query("CommandList").first().option_count:  # type: ignore[attr-defined]
            await asyncio.sleep(0.02)
        await press(app, pilot, "enter")
        await settle(app, pilot)
        if isinstance(app.screen, ChoiceDialog):
            await press(app, pilot, "y")

    visit(going, do)
    assert commands(going) == [sent]


@pytest.mark.parametrize(("typed", "page"), [("tra", "Trace"), ("met", "Metrics"), ("lo", "Log")])
def test_a_page_whose_name_begins_so_is_the_first_in_the_palette(
    going: RunDir, typed: str, page: str
) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        provider = ActionProvider(app.screen)
        hits = [hit async for hit in provider.search(typed) if isinstance(hit, Hit)]
        best, second = sorted((hit.score for hit in hits), reverse=True)[:2]
        assert best > second
        (first,) = (hit for hit in hits if hit.score == best)
        assert str(first.match_display).startswith(f"the page {page} ")

    visit(going, do)


def test_no_name_of_an_action_means_two_things() -> None:
    pages = list_bindings_by_page()
    of_all = {binding.id: binding.tooltip for binding in pages[""]}
    # A page leaves these keys to the timeline there.
    only_in_replay = {binding.id for binding in REPLAY_KEYS}
    of_every_run = [binding for binding in pages[""] if binding.id not in only_in_replay]
    keys_of_all = {key: binding.id for binding in of_every_run for key in binding.key.split(",")}
    for page, bindings in pages.items():
        for binding in bindings:
            assert of_all.get(binding.id, binding.tooltip) == binding.tooltip, binding.id
            for key in binding.key.split(",") if page else ():
                assert keys_of_all.get(key, binding.id) == binding.id, f"{key} of {page}"


# The terminal


def test_P_saves_a_picture(going: RunDir) -> None:  # noqa: N802  # the key
    app = visit(going, pressing("P"))
    (image,) = going.path.glob("screen-*.svg")
    picture = image.read_text("utf-8").replace("&#160;", " ")
    assert notices(app)[-1].startswith("saved ")
    assert "iteration" in picture and "hookflow cifar" in picture and "MonitorApp" not in picture
    assert picture.startswith('<svg xml:space="preserve" ')


@pytest.mark.parametrize("size", [WIDE, NORMAL])
def test_no_color_has_no_colour(
    going: RunDir, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        for key in ("1", "2", "3", "4", "5", "6", "7", "1", "question_mark", "escape", "q"):
            await press(app, pilot, key)
            image = app.export_screenshot()
            painted = {
                word
                for word in image.replace('"', " ").replace(";", " ").split()
                if word.startswith("#")
            }
            coloured = {
                ink for ink in painted if len(ink) == 7 and len({ink[1:3], ink[3:5], ink[5:7]}) > 1
            }
            assert coloured <= {"#ff5f57", "#febc2e", "#28c840", "#c5c8c6"}, (
                "only the frame of the image"
            )
        assert "SYNTHETIC" in screen_text(app)

    visit(going, do, size=size)


def test_nothing_is_shown_again_where_nothing_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PATIENCE", math.inf)
    run = make(tmp_path / "runs", upto=60, began=time.time() - 60)
    run.sign_process()

    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        app._sensor = None  # what the machine does changes all the time

        def is_new(*records: dict[str, Any]) -> bool:
            append(run, records)
            before = app.store.revision
            app.store.poll()
            return app.store.revision > before

        def frame(stage: str) -> dict[str, Any]:
            return record("frame", time.time(), 777, 7, stage=stage)

        await app.workers.wait_for_complete()
        is_new()
        assert is_new(frame("paused"))
        assert not is_new()
        assert not is_new(frame("paused")), "a frame of the pause"
        assert is_new(frame("train"))
        assert not is_new()
        assert is_new(end(t=time.time()))
        assert not is_new()

    visit(run, do)


@pytest.mark.parametrize("page", ["overview", "log", "trace", "hooks", "metrics"])
def test_a_page_has_all_of_another_theme_at_once(tmp_path: Path, page: str) -> None:
    run = make_ranks(tmp_path / "ranks", 2)
    looks = []

    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        app.clear_notifications()
        await settle(app, pilot)
        looks.append(app.screen._compositor.render_strips(app.size)[3:])

    async def switch(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "T")
        assert app.theme == "light"
        await look(app, pilot)

    visit(run, look, page=page, preferences=Preferences(Settings(theme="light")))
    visit(run, switch, page=page)
    opened, switched = looks
    assert switched == opened


def test_a_page_without_news_is_not_looked_through(
    whole: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        page = app.page
        assert page is not None
        looks: list[str] = []

        def look(kind: type[Widget]) -> list[Widget]:
            looks.append("widgets")
            return []

        with monkeypatch.context() as patch:
            patch.setattr(page, "walk_children", look)
            patch.setattr(page, "redraw_header", lambda: looks.append("header"))
            page.update_run()
            assert not looks
            app.store.revision += 1
            page._shown_at = math.inf  # the body is not due
            page.update_run()
        assert looks == ["widgets", "header"]

    visit(whole, do)
