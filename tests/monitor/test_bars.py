"""Plain mode on a terminal: progress bars below the lines; anywhere else, the lines alone."""

from __future__ import annotations

import io
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from hookflow.events.rundir import RunDir
from hookflow.monitor.plain import Bar, Sheet, bars, can_show_bars, drawn
from hookflow.monitor.view import Scene
from tests.golden_files import check_golden
from tests.monitor.conftest import At
from tests.monitor.fake_run import append, end, make
from tests.monitor.test_plain import Terminal as Tty
from tests.monitor.test_screens import FRAME
from tests.monitor.test_terminal import Terminal


def lines(scene: Scene, width: int) -> str:
    console = Console(width=width)
    with console.capture() as shown:
        console.print(drawn([*bars(scene.state)], width))
    return "\n".join(line.rstrip() for line in shown.get().splitlines())


def stages(scene: At) -> Iterator[tuple[str, Scene]]:
    """Yield a run in its training, in its validation, paused, and before anything is known of its pace."""
    yield "train", scene(92)
    yield "val", scene(100)
    paused = scene(93)
    paused.state.apply({**FRAME, "k": "frame", "t": paused.state.now, "it": 300, "ep": 3, "stage": "paused"})  # type: ignore[arg-type]
    yield "paused", paused
    yield "begun", scene(1)


@pytest.mark.parametrize("width", [120, 80, 60, 30])
def test_the_bars(scene: At, width: int) -> None:
    assert lines(scene(0), width) == "", "a run that has not begun has none"
    shown = "".join(f"{name}:\n{lines(at, width)}\n" for name, at in stages(scene))
    check_golden(f"monitor/bars-{width}.txt", shown)


def test_they_fit_into_every_terminal(scene: At) -> None:
    for _, at in stages(scene):
        for width in range(30, 200, 9):
            assert max(map(cell_len, lines(at, width).splitlines())) <= width


def test_an_epoch_that_is_over_is_whole_until_the_next_begins(scene: At) -> None:
    def epoch(it: int, ep: int, stage: str) -> Bar:
        seen.state.apply({**FRAME, "k": "frame", "t": seen.state.now, "it": it, "ep": ep, "stage": stage})  # type: ignore[arg-type]
        (bar,) = (bar for bar in bars(seen.state) if bar.name.startswith("epoch"))
        return bar

    seen = scene(92)
    assert (epoch(587, 5, "train").done, epoch(588, 6, "val").done, epoch(589, 6, "train").done) == (97, 98, 1)
    assert epoch(783, 7, "train").done == 97
    seen.state.apply({"k": "epoch", "t": seen.state.now, "it": 784, "ep": 8, "seconds": 1.0})
    assert epoch(784, 8, "train") == Bar("epoch 8/8", 98, 98), "none comes after the last"


@pytest.fixture
def going(tmp_path: Path) -> RunDir:
    """A run that goes on: this process has signed for it."""
    run = make(tmp_path / "runs", upto=100, began=time.time())
    run.sign_process()
    return run


@pytest.fixture
def terminals(going: RunDir) -> Iterator[list[Terminal]]:
    """The run in plain mode, on two terminals."""
    command = (sys.executable, "-m", "hookflow", "watch", str(going.path), "--ui", "plain")
    shown = [Terminal(*command, COLORTERM="truecolor") for _ in range(2)]
    yield shown
    for terminal in shown:
        terminal.close()


def test_on_a_terminal_lines_scroll_above_bars(going: RunDir, terminals: list[Terminal]) -> None:
    terminal, left = terminals
    left.wait_for("epoch 6/8  ━")
    left.child.send_signal(signal.SIGINT)
    left.finish()
    assert not left.screen.cursor.hidden, "also after Ctrl-C"
    terminal.wait_for("14/20")  # the last of the bars
    *_, train, epoch, val = (line for line in terminal.screen.display if line.strip())
    assert re.match(r"train +━+╌+ +75%  588/784  35.0 it/s  ", train)
    assert re.match(r"epoch 6/8 +━+ +100% +98/98 ", epoch)
    assert re.match(r"val +━+╌+ +70% +14/20 ", val)
    assert terminal.screen.cursor.hidden
    last = {**FRAME, "t": time.time(), "it": 784, "ep": 8, "stage": "train", "bi": 98, "bn": 98}
    append(going, [{"k": "frame", **last}, end(time.time(), seconds=9.0)])
    assert terminal.finish() == 0
    shown = "\n".join(terminal.screen.display)
    assert "end        finished" in shown
    assert "best accuracy" in shown
    assert re.search(r"metric +last +best +at epoch +iteration", shown)
    assert re.search(r"^ +val accuracy +0\.\d+ +0\.\d+ +\d +\d+ *$", shown, re.MULTILINE)
    assert "╌" not in shown
    assert not terminal.screen.cursor.hidden
    assert re.search(
        r"train      epoch 6/8  iter 588/784  loss \S+  lr \S+$", _unwrapped(terminal.output), re.MULTILINE
    )


def _unwrapped(output: bytes) -> str:
    """Return what was printed without what styles it and moves the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", output.decode())


@pytest.mark.parametrize(("environment", "has_bars"), [({}, True), ({"CI": "1"}, False), ({"TERM": "dumb"}, False)])
def test_bars_are_for_a_terminal_that_can_show_them_and_a_person(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], has_bars: bool
) -> None:
    for name, value in {"TERM": "xterm-256color", **environment}.items():
        monkeypatch.setenv(name, value)
    assert can_show_bars(Tty()) is has_bars
    assert not can_show_bars(io.StringIO())


@pytest.mark.parametrize("no_colour", ["", "1"])
def test_without_colour_they_have_none(scene: At, monkeypatch: pytest.MonkeyPatch, no_colour: str) -> None:
    for name, value in {"TERM": "xterm-256color", "COLORTERM": "truecolor", "NO_COLOR": no_colour}.items():
        monkeypatch.setenv(name, value)
    out, seen = Tty(), scene()
    with Sheet(out, bars=True) as sheet:
        sheet.line("08:05:42 warn       ema: slow")
        sheet.show(seen.state)
    assert "ema: slow" in out.getvalue()
    assert bool(re.search(r"\x1b\[[0-9;]*38;", out.getvalue())) is not bool(no_colour)
