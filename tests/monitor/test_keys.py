"""Every key, pressed in the real app."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot

from hookflow.cli.run import _dashboard
from hookflow.events.rundir import RunDir
from hookflow.monitor import health
from hookflow.monitor.app import RATE, MonitorApp, Outcome
from hookflow.monitor.feed import Live
from hookflow.monitor.keys import KEYS
from hookflow.runner.distributed.failures import appending
from tests.limits import LIMIT
from tests.monitor.fake_run import LiveRun, make

Visit = Callable[[MonitorApp, Pilot[Any]], Awaitable[None]]


async def _stay(app: MonitorApp, what: Visit, size: tuple[int, int] = (120, 40)) -> None:
    async with app.run_test(size=size) as pilot:
        await what(app, pilot)


def visit(run: RunDir, what: Visit, size: tuple[int, int] = (120, 40), **options: Any) -> MonitorApp:
    """Open the app on a run, do something in it, and leave it."""
    app = MonitorApp(run, **options)

    async def read_first(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await pilot.pause()
        while app._player is None and app._live.poll():  # the whole log, however long that takes
            pass
        app._paint()
        await what(app, pilot)

    asyncio.run(_stay(app, read_first, size))
    return app


def shown(app: MonitorApp) -> str:
    return "\n".join(strip.text for strip in app._canvas._rows)


def commands(run: RunDir) -> list[str]:
    return [json.loads(line)["cmd"] for line in run.commands.read_text().splitlines()] if run.commands.exists() else []


@pytest.fixture
def going(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run that goes on: this process has signed for it. It does not count as stalled, however long a test takes."""
    monkeypatch.setattr(health, "PATIENCE", math.inf)
    run = make(tmp_path / "runs", upto=100, began=time.time())
    run.sign_process()
    return run


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


def test_the_digits_focus_panels_and_zoom_them(going: RunDir) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        for digit, name in zip("12345", ("points", "hooks", "metrics", "system", "events"), strict=True):
            await pilot.press(digit if digit != "2" else "1", digit)
            assert f"┏━ [{digit}] {name}" in shown(app) or app._view.zoomed
            app._view.zoomed = False
            await pilot.press(digit)
            assert app._view.zoomed
            assert f"┏━ [{digit}] {name}" in shown(app)
            await pilot.press("escape")
            assert not app._view.zoomed

    visit(going, what)


def test_tab_goes_round_and_z_zooms(going: RunDir) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await pilot.press("tab")
        assert "┏━ [3] metrics" in shown(app)
        await pilot.press("shift+tab", "shift+tab")
        assert "┏━ [1] points" in shown(app)
        await pilot.press("z")
        assert "[2] hooks" not in shown(app)
        await pilot.press("0")
        assert "[2] hooks" in shown(app)

    visit(going, what)


def test_a_digit_shows_a_panel_that_a_small_terminal_leaves_out_at_once(going: RunDir) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        for digit, name in (("3", "metrics"), ("4", "system")):
            await pilot.press(digit)
            assert f"┏━ [{digit}] {name}" in shown(app)
            await pilot.press("1")
            assert "[2] hooks" in shown(app)
        await pilot.press("tab", "tab")
        assert "┏━ [5] events" in shown(app)
        await pilot.press("tab")
        assert "┏━ [1] points" in shown(app)

    visit(going, what, size=(80, 24))


def test_the_help_of_a_replay_does_not_speak_of_a_training_that_goes_on(whole: RunDir) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await pilot.press("question_mark")
        assert "goes on" not in shown(app)
        assert "← → h" not in shown(app)
        assert all(key.about in shown(app) for key in KEYS if key.only in ("", "replay"))

    visit(whole, what, size=(120, 60), replay=1.0)


def test_arrows_move_and_enter_drills_down_to_one_hook_and_escape_back(going: RunDir) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        assert "hooks @ after_train_iter" in shown(app)
        await pilot.press("h", "up")
        assert "hooks @ after_backward" in shown(app)
        await pilot.press("j", "enter", "down", "k", "j")
        assert app._view.focus == 2
        await pilot.press("enter")
        assert "hook ema @ after_train_iter" in shown(app)
        assert "cifar.toml:50" in shown(app)
        await pilot.press("escape", "end", "enter")
        assert "hook log @ after_train_iter" in shown(app)
        assert "every 10" in shown(app)
        await pilot.press("enter", "home", "right")
        assert app._view.focus == 1

    visit(going, what)


def test_e_finds_the_error_and_enter_shows_its_traceback(going: RunDir) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await pilot.press("E", "enter")
        assert "self.canvas.write(image)" in shown(app)
        await pilot.press("escape", "e")
        first = app._scene().entry
        await pilot.press("e")
        second = app._scene().entry
        assert first is not None
        assert second is not None
        assert first.trouble
        assert second.trouble
        assert second.number > first.number
        await pilot.press("end")
        assert app._view.event is None

    visit(going, what)


@pytest.mark.parametrize("replay", [None, 1.0])
def test_e_says_so_where_there_is_nothing_to_find(tmp_path: Path, replay: float | None) -> None:
    run = make(tmp_path / "runs", upto=10, synthetic=False)

    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        for key in ("e", "E"):
            app._say("")
            await pilot.press(key)
            assert "no warnings or errors" in shown(app)

    visit(run, what, replay=replay)


def test_the_help_defines_every_key_and_scrolls(going: RunDir) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await pilot.press("question_mark")
        assert all(key.about in shown(app) for key in KEYS if key.only in ("", "live"))
        assert "SYNTHETIC train, val data" in shown(app)
        await pilot.press("pagedown", "pagedown")
        assert "signs" in shown(app)
        await pilot.press("question_mark")
        assert "[2] hooks" in shown(app)

    visit(going, what)


def test_o_shows_what_the_training_prints(going: RunDir) -> None:
    going.output.write_text("".join(f"step {number}\n" for number in range(100)))

    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await pilot.press("o")
        assert "step 99" in shown(app)
        await pilot.press("up")
        assert "step 99" not in shown(app)
        assert "step 98" in shown(app)
        with going.output.open("a") as log:
            log.write("step 100\n")
        await pilot.press("end")
        assert "step 100" in shown(app)
        await pilot.press("o")
        assert "step 98" not in shown(app)

    visit(going, what)


def test_f_shows_and_hides_unbound_points(going: RunDir) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        assert "before_save_checkpoint" not in shown(app)
        await pilot.press("f", "1", "end")
        assert "after_run" in shown(app)
        await pilot.press("f")
        assert "before_test" not in shown(app)

    visit(going, what)


def test_brackets_choose_the_metric_and_l_the_scale(going: RunDir) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        assert "loss " in shown(app)
        assert "lr " not in shown(app)
        await pilot.press("right_square_bracket")
        assert "lr " in shown(app)
        await pilot.press("left_square_bracket", "l")
        assert "loss log" in shown(app)

    visit(going, what)


def test_space_freezes_the_view_while_the_data_go_on(going: RunDir) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await pilot.press("space")
        before = shown(app).split("SYNTHETIC")[0]
        with going.events.open("a") as log:
            frame = next(line for line in going.events.read_text().splitlines() if '"k":"frame"' in line)
            log.write(frame.replace('"it":0', '"it":777') + "\n")
        app._tick()
        assert "FROZEN +1" in shown(app)
        assert shown(app).split("SYNTHETIC")[0] == before
        assert app.state.it == 777
        await pilot.press("space")
        assert "FROZEN" not in shown(app)

    visit(going, what)


def test_commands_are_sent_and_shown_until_they_are_answered(going: RunDir) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await pilot.press("c")
        assert "◉ checkpoint requested" in shown(app)
        await pilot.press("p", "s")
        assert "stop the training?" in shown(app)
        assert "kill" not in shown(app)
        await pilot.press("n", "s", "k", "s", "escape")
        assert "stop the training?" not in shown(app)
        await pilot.press("s", "s")

    visit(going, what)
    assert commands(going) == ["checkpoint", "pause", "stop"]


def test_a_run_that_has_not_stopped_though_asked_to_can_be_killed(going: RunDir) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await pilot.press("s", "y", "s")
        assert "k  kill it" in shown(app)
        assert "newest checkpoint: iteration 392" in shown(app)

    visit(going, what)
    assert commands(going) == ["stop"]


def test_a_stalled_run_offers_to_kill_its_process(stalled: tuple[RunDir, subprocess.Popen[bytes]]) -> None:
    run, process = stalled

    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        assert "no progress: s stops it" in shown(app)
        await pilot.press("q", "s")  # to stop after this iteration and leave would leave it hanging
        assert "stop the training?" in shown(app)
        assert "no progress for" in shown(app)
        await pilot.press("escape", "s", "k")
        until = time.monotonic() + LIMIT
        for told in ("the process has ended", "? LOST"):
            while told not in shown(app):
                assert time.monotonic() < until
                await pilot.pause(0.05)
        await pilot.press("c", "s")

    visit(run, what)
    assert process.wait() == -signal.SIGTERM
    assert commands(run) == []


def test_nobody_is_killed_who_only_watches(stalled: tuple[RunDir, subprocess.Popen[bytes]]) -> None:
    run, process = stalled

    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await pilot.press("s", "k")
        assert "opened with --readonly" in shown(app)

    visit(run, what, readonly=True)
    assert process.poll() is None


def test_p_resumes_a_paused_run(going: RunDir) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        app.state.stage = "paused"
        await pilot.press("p")

    visit(going, what)
    assert commands(going) == ["resume"]


def test_readonly_asks_nothing_of_the_run(going: RunDir) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await pilot.press("c", "p", "s", "y", "q")

    app = visit(going, what, readonly=True)
    assert commands(going) == []
    assert app.return_value is Outcome.DETACHED


@pytest.mark.parametrize("opener", ["q", "ctrl+c", "ctrl+q"])
@pytest.mark.parametrize(
    ("answer", "outcome", "sent"),
    [("d", Outcome.DETACHED, []), ("enter", Outcome.DETACHED, []), ("s", Outcome.STOP, ["stop"])],
)
def test_leaving_asks_whether_the_training_goes_on(
    going: RunDir, opener: str, answer: str, outcome: Outcome, sent: list[str]
) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await pilot.press(opener)
        assert "leave the dashboard?" in shown(app)
        await pilot.press("escape")
        assert "leave the dashboard?" not in shown(app)
        await pilot.press(opener, answer)

    app = visit(going, what)
    assert app.return_value is outcome
    assert commands(going) == sent


def test_after_the_end_the_screen_stays_until_q(whole: RunDir) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        assert "✓ FINISHED" in shown(app)
        assert "ENDED" in shown(app)
        await pilot.press("c", "s", "q")

    app = visit(whole, what)
    assert app.return_value is Outcome.ENDED
    assert commands(whole) == []


def test_a_long_log_is_read_by_one_chain_of_timers(whole: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    polls: list[float] = []
    waiting: list[float] = []
    most: list[int] = []
    set_timer = MonitorApp.set_timer

    def poll(live: Live) -> bool:
        polls.append(time.monotonic())
        return True

    def count(app: MonitorApp, delay: float, tick: Callable[[], None]) -> Any:
        def come() -> None:
            waiting.remove(delay)
            tick()

        waiting.append(delay)
        most.append(len(waiting))
        return set_timer(app, delay, come)

    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        begun = time.monotonic()
        while polls[-1] < begun + 3 / RATE:
            await pilot.pause()

    monkeypatch.setattr(MonitorApp, "set_timer", count)
    monkeypatch.setattr(Live, "poll", poll)
    asyncio.run(_stay(MonitorApp(whole), what))
    assert max(most) == 1


def test_who_has_started_the_run_is_asked_how_it_ended(going: RunDir) -> None:
    def child_exit() -> int:
        if going.describe()["process_started"] != 1.0:
            going.sign(process_started=1.0)
            appending(going, 700)("end", status="failed", exit=137, reason="killed by SIGKILL", seconds=9.0)
        return -9

    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        while "✗ FAILED" not in shown(app):
            await pilot.pause(0.01)
        assert "failed: killed by SIGKILL" in shown(app)
        assert app.state.it == 700

    visit(going, what, child_exit=child_exit)


def test_a_dashboard_that_crashes_says_that_the_training_goes_on(
    going: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MonitorApp, "run", lambda app: App.run(app, headless=True))
    monkeypatch.setattr(MonitorApp, "_paint", lambda app: 1 / 0)
    assert _dashboard(going, lambda: None, time.time()) == 1  # type: ignore[arg-type]
    assert _dashboard(going, lambda: -9, time.time()) == -9  # type: ignore[arg-type]
    out, errors = capsys.readouterr()
    assert errors.count("the dashboard has crashed; the training goes on: hookflow watch ") == 1
    assert "the run goes on; watch it: hookflow watch " in out


def test_a_run_whose_process_is_gone_is_lost(tmp_path: Path) -> None:
    run = make(tmp_path, upto=50)
    run.sign_process()
    run.sign(process_started=1.0)

    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        assert "? LOST" in shown(app)
        assert "left no end record" in shown(app)

    visit(run, what)


def test_P_saves_a_picture(going: RunDir) -> None:  # noqa: N802  # the key is a capital
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await pilot.press("P")
        assert "saved " in shown(app)

    visit(going, what)
    (image,) = going.path.glob("screen-*.svg")
    drawn = image.read_text("utf-8").replace("&#160;", " ")
    assert "after_train_iter" in drawn
    assert "hookflow cifar" in drawn
    assert "MonitorApp" not in drawn


def test_a_run_directory_that_may_not_be_written_says_so(going: RunDir) -> None:
    going.commands.mkdir()

    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await pilot.press("c")
        assert "cannot ask the run to checkpoint" in shown(app)

    visit(going, what)


def test_replay_plays_pauses_steps_and_jumps(whole: RunDir) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        assert "REPLAY 0.25x ▶" in shown(app)
        await pilot.press("space")
        assert "‖" in shown(app)
        await pilot.press("full_stop")
        assert "✓ FINISHED" in shown(app)
        last = app.state.frames
        await pilot.press("left")
        assert app.state.frames == last - 1
        await pilot.press("end", "shift+left")
        whole_length, at = app.state.now, app._player.moment if app._player else 0.0
        assert whole_length - at < 0.06 * 32
        far = app.state.frames
        assert far < last - 3
        await pilot.press("shift+left", "shift+right")
        assert app.state.frames == far
        await pilot.press("shift+right")
        assert app.state.frames == last
        assert "/ 0:00:32" in shown(app)
        assert "0:00:32.0 /" in shown(app)
        await pilot.press("comma")
        assert app.state.frames == 0
        assert app._view.focus == 2
        await pilot.press("h")
        assert app._view.focus == 1
        await pilot.press("greater_than_sign", "greater_than_sign", "less_than_sign")
        assert "REPLAY 0.5x" in shown(app)
        await pilot.press("c")
        assert "this is a replay" in shown(app)
        await pilot.press("s", "q")

    app = visit(whole, what, replay=0.25)
    assert app.return_value is Outcome.ENDED
    assert commands(whole) == []


@pytest.mark.parametrize("size", [(120, 40), (60, 15)])
def test_no_color_has_no_colour_and_loses_nothing(
    going: RunDir, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        for key in ("1", "2", "3", "4", "5", "question_mark", "escape", "2", "enter", "escape", "q"):
            await pilot.press(key)
            image = app.export_screenshot()
            painted = {word for word in image.replace('"', " ").replace(";", " ").split() if word.startswith("#")}
            inked = {
                colour for colour in painted if len(colour) == 7 and len({colour[1:3], colour[3:5], colour[5:7]}) > 1
            }
            assert inked <= {"#ff5f57", "#febc2e", "#28c840", "#c5c8c6"}, "only the frame of the image"
        assert "SYNTHETIC" in shown(app)

    visit(going, what, size=size)


def test_a_live_run_answers_and_the_answer_is_shown(tmp_path: Path) -> None:
    async def what(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await pilot.press("c")
        until = time.monotonic() + LIMIT
        while "◉ checkpoint done at iteration" not in shown(app):
            assert time.monotonic() < until
            await pilot.pause(0.05)
        assert app.state.pending == []

    with LiveRun(tmp_path) as live:
        visit(live.run, what)
