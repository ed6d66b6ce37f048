"""Runs without a screen: plain lines with what the training prints, bars on a terminal,
raw lines, the summary.
"""

import io
import json
import re
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hookflow.events.rundir import RunDir
from hookflow.monitor import feed, plain
from hookflow.monitor.feed import LogFollower
from hookflow.monitor.health import assess_health
from hookflow.monitor.plain import LineWriter
from hookflow.monitor.printed_output import READ_CHUNK_BYTES, OutputReader, tidy
from hookflow.monitor.progress_bars import (
    ProgressBar,
    can_show_bars,
    make_bars_table,
    make_progress_bars,
    names_as_they_came,
)
from hookflow.monitor.state import RunState
from hookflow.monitor.summary import print_summary
from hookflow.service.run_facts import RunFacts
from tests.monitor.conftest import read, state_at
from tests.monitor.fake_run import BEGAN, TRACEBACK, Training, append, end, gone, make, record
from tests.monitor.fake_run import plan as planned
from tests.support.golden_files import check_cases, check_golden
from tests.support.plain_output import in_turn, plain_lines
from tests.support.terminal import Terminal


def test_a_stream_of_unknown_length_has_no_number_of_examples(tmp_path: Path) -> None:
    begun = Training(BEGAN)._run()
    begun["data"]["train"] |= {"name": "Endless", "examples": 0}
    run = RunDir.create(tmp_path / "runs", "cifar")
    append(run, [begun, end()])
    assert "train: Endless  98 batches of 512" in plain_lines(run)
    assert ("train", "Endless, 98 batches") in RunFacts.read(run).iter_setting_facts()


def test_why_a_run_did_not_begin_is_left_to_who_has_started_it(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "runs", "cifar")
    append(run, [end(it=0, ep=0, status="failed", exit=2, reason="p.toml:1:1: no such device")])
    assert "refused: p.toml:1:1: no such device" in plain_lines(run, 2)
    assert "no such device" not in plain_lines(run, 2, child_exit=lambda: 2)


def test_the_lines_and_the_summary_of_a_whole_run_and_ambiguous_pairs_in_its_plan(
    whole: RunDir,
) -> None:
    check_golden("monitor/plain.txt", plain_lines(whole).replace(str(whole.path), "RUN"))
    check_golden("monitor/summary.txt", summed(whole).replace(str(whole.path), "RUN"))
    bindings = (replace(binding, writes=("model",)) for binding in planned().bindings)
    whole.plan.write_text(
        json.dumps(replace(planned(), bindings=tuple(bindings), edges=()).to_json())
    )
    assert re.search(r"plan .* 0 edges  \d+ ambiguous pairs?: hookflow check\n", plain_lines(whole))


def test_every_line_can_be_found_and_none_moves_the_cursor(tmp_path: Path) -> None:
    run = make(tmp_path, synthetic=False)
    evil = record("message", 1.8e9, 1, 1, source="evil", text="a\x1b[2Jb\rc\nd")
    lines = run.events.read_text().splitlines()
    run.events.write_text("\n".join([*lines[:-1], json.dumps(evil), lines[-1]]) + "\n")
    text = plain_lines(run)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    body = [line for line in text.splitlines() if not line.startswith(("✓", " "))]
    assert all(re.match(r"\d\d:\d\d:\d\d [a-z]+ ", line) for line in body)
    assert "SYNTHETIC" not in text


def test_an_epoch_longer_than_ten_seconds_is_told_of_on_the_way(tmp_path: Path) -> None:
    run = make(tmp_path, upto=0)
    append(
        run,
        *(
            [{**record, "t": record["t"] * 20} for record in records]
            for records in Training(0.0).records()
        ),
    )
    assert plain_lines(gone(run)).count(" train ") > 8 * 4


def test_before_an_iteration_has_been_timed_no_speed_is_told_but_what_was_printed(
    tmp_path: Path,
) -> None:
    run = make(tmp_path, upto=0)
    run.output.write_text("downloading\n")
    frame = record(
        "frame", BEGAN + plain.PROGRESS_INTERVAL, 0, 0, bi=0, bn=98, phases={"data": 10**9}
    )
    again = {**frame, "t": frame["t"] + plain.PROGRESS_INTERVAL}  # in the same iteration
    append(run, [record("run", BEGAN, 0, 0), frame, again, end(frame["t"], 0, 0)])
    printed, *lines = plain_lines(gone(run)).splitlines()
    assert printed == "output     | downloading"
    assert [line[9:] for line in lines if " train " in line] == ["train      epoch 1  iter 0"]


@pytest.mark.parametrize("last", [0, 3])
def test_a_parent_follows_its_child_to_the_last_record(tmp_path: Path, last: int) -> None:
    """The end of an earlier attempt, which stands in the log from the start,
    does not end the following.
    """
    run = make(tmp_path)

    def ending() -> int:
        append(run, [end(1.8e9, 1, 0, status="failed" if last else "finished", exit=last)])
        return last

    assert plain_lines(run, code=last, child_exit=in_turn(None, ending, last)).count(" end ") == 1


def test_a_traceback_that_is_printed_and_recorded_between_two_looks_is_told_once(
    tmp_path: Path,
) -> None:
    run = make(tmp_path, upto=30)
    failed = record(
        "error",
        1.8e9,
        98,
        1,
        hook="h",
        point="after_val",
        type="OSError",
        text="no",
        traceback=TRACEBACK,
    )

    def both() -> int:
        """Come between the look at what was printed and the look at the log."""
        run.output.write_text("one\n" + TRACEBACK)
        append(run, [failed])
        return 0

    text = plain_lines(run, code=1, child_exit=in_turn(None, 1), interrupts=in_turn(both, 0))
    lines = text.splitlines()
    assert [line for line in lines if "Traceback (most" in line] == [
        "output     | Traceback (most recent call last):"
    ]
    assert lines.index("output     | one") < next(
        k for k, line in enumerate(lines) if " error " in line
    )


def test_of_a_run_that_vanished_the_exit_code_is_one(tmp_path: Path) -> None:
    assert "left no end record" in plain_lines(gone(make(tmp_path, upto=40)), code=feed.EXIT_LOST)


def test_a_hang_is_told_ever_more_seldom_and_when_it_is_over(tmp_path: Path) -> None:
    run = make(tmp_path, upto=30)
    run.sign_process()
    live = read(run)
    began, watch = live.state.moved, plain.StallWatch(run, live)
    lines = {second: line for second in range(100) if (line := watch.look(began + second))}
    assert lines == {
        second: ("stalled", f"no progress for {second} s") for second in (11, 22, 44, 88)
    }

    going = Training(began)
    going.t, going.it = began + 100, live.state.it + 1
    append(run, [going._frame("train", live.state.batch + 1, live.state.batches, {}, 1)])
    live.read_all()
    assert watch.look(began + 101) == ("running", "again, after 100 s")
    assert watch.look(began + 102) is None
    append(run, [end(began + 103)])
    live.read_all()
    assert not any(watch.look(began + second) for second in range(103, 200)), "it is over"


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("plain text", "plain text"),
        ("\r 10 %|#   |\r 50 %|##  |\r100 %|####|", "100 %|####|"),
        ("100 %|####|\r", "100 %|####|"),
        ("\x1b[31mred\x1b[0m and \x1b]0;title\x07more", "red and more"),
        ("a\tb\x07\x00c", "a    b··c"),
        ("", ""),
    ],
)
def test_a_line_is_shown_as_it_looks_in_the_end(printed: str, shown: str) -> None:
    assert tidy(printed) == shown


def test_lines_come_whole_and_the_last_one_when_all_is_over(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    output = OutputReader(path)
    assert output.read() == []
    with path.open("ab", buffering=0) as file:
        file.write(b"one\ntw")
        assert output.read() == ["one"]
        file.write(b"o\n50 %\r")
        assert output.read() == ["two"]
        file.write(b"100 %")
        assert output.read() == []
        assert output.read(last=True) == ["100 %"]
        file.write(b"x" * (READ_CHUNK_BYTES + 1))
        assert output.read() == []
        assert output.read() == ["x" * (READ_CHUNK_BYTES + 1)], "no line is waited for without end"


def test_the_output_is_read_from_near_its_end_and_has_the_line_without_an_end(
    tmp_path: Path,
) -> None:
    path = tmp_path / "output.log"
    path.write_text("".join(f"line {n}\n" for n in range(20_000)) + "50 %")
    output = OutputReader(path, back=33)
    assert output.read() == [" 19997", "line 19998", "line 19999"]
    assert output.unfinished == "50 %"
    assert OutputReader(path, back=10**9).read()[0] == "line 0"
    assert OutputReader(tmp_path / "gone", back=5).read() == []


def test_plain_lines_relay_what_was_printed(whole: RunDir) -> None:
    whole.output.write_text(f"hello from a hook\n 1/2\r 2/2\n{TRACEBACK}no end")
    text = plain_lines(whole)
    assert text.startswith("output     | hello from a hook\noutput     |  2/2\n")
    assert "\noutput     | no end\n" in text
    assert text.count("self.canvas.write(image)") == 1, (
        "a traceback that was printed is not told again"
    )
    assert 'hook "visual" at after_val_epoch, iteration 294' in text


def again(run: RunDir) -> None:
    """Append a second attempt, which ends at once."""
    place = {"t": BEGAN + 100, "it": 784, "ep": 8}
    append(run, [{"k": "run", **place, "data": {}, "resumed_from": "it000784"}], [end(**place)])


def test_of_a_resumed_run_only_the_newest_attempt_is_told_also_to_its_parent(whole: RunDir) -> None:
    whole.output.write_text("printed long ago\n")

    def resume() -> None:
        again(whole)
        with whole.output.open("a") as file:
            file.write("printed now\n")

    lines = plain_lines(whole, child_exit=in_turn(resume, 0)).splitlines()
    assert lines[0].endswith(" resumed    attempt 2")
    assert sum(" run  " in line for line in lines) == 1
    assert "output     | printed now" in lines
    assert "output     | printed long ago" not in lines
    lines = plain_lines(whole).splitlines()
    assert lines[0] == "14:15:00 resumed    attempt 2"
    assert "resumed from it000784" in lines[1]
    assert not any(
        " train  " in line or "printed long ago" in line or "SYNTHETIC" in line for line in lines
    )


def summed(run: RunDir) -> str:
    out = io.StringIO()
    print_summary(run, out)
    return out.getvalue()


def test_of_a_run_without_iterations_no_hook_is_outside_them(tmp_path: Path) -> None:
    [costs] = [line for line in summed(make(tmp_path, upto=2)).splitlines() if "costliest" in line]
    assert costs.startswith("  costliest hooks: seed ") and "outside" not in costs


class Tty(io.StringIO):
    """Takes what is printed, as a terminal does."""

    def isatty(self) -> bool:
        return True


PLACE: dict[str, Any] = {"t": BEGAN + 12, "it": 130, "ep": 1}


def ended(root: Path, status: str, reason: str, **error: Any) -> str:
    """Return the summary of a run that ended so, after an error."""
    run = make(root, upto=40)
    failed = int(status == "failed")
    boom = {"hook": "boom", "point": "after_backward", "type": "KeyError", "traceback": TRACEBACK}
    append(run, [record("error", **PLACE, **boom, **error)] * bool(error))
    append(run, [end(**PLACE, status=status, exit=failed, reason=reason)])
    run.output.write_text(TRACEBACK)
    return summed(run)


def test_a_failed_hook_is_named_with_its_point_its_iteration_and_its_line(tmp_path: Path) -> None:
    at, causes = "/home/somebody/my hooks.py:12", "caused by OSError: gone\nat /home/x.py:3: read()"
    text = "'missing_key'"
    page = ended(
        tmp_path, "failed", f"KeyError: {text}", text=text, at=at, causes=causes, action="raise"
    )
    assert (
        "failed: hook \"boom\" at after_backward, iteration 130: KeyError: 'missing_key'\n" in page
    )
    assert (
        "  at /home/somebody/my hooks.py:12\n  caused by OSError: gone\n  at /home/x.py:3: read()\n"
        in page
    )
    assert "errors 1;" in page, "one mishap is one error"
    assert f"printed: {tmp_path}" in page


def test_of_an_error_of_many_lines_the_first_is_told_and_none_of_one_that_was_lived_with(
    tmp_path: Path,
) -> None:
    page = ended(tmp_path / "lived", "failed", "MemoryError: ", text="no", action="ignore")
    assert "failed: MemoryError" in page and "boom" not in page
    text = "half a page of iteration 130\nfollows"
    page = ended(tmp_path, "failed", f"KeyError: {text}", text=text, action="raise")
    assert "at after_backward: KeyError: half a page " in page, "its iteration is named once"
    lines = plain_lines(RunDir(tmp_path / "cifar" / "20260921-141320-a3f9"), code=1)
    assert "at after_backward, ends the run: KeyError: " in lines
    assert "iterations: KeyError: half a page " in lines


@pytest.mark.parametrize(
    ("status", "reason", "line"),
    [
        (
            "finished",
            "loss has not improved on 0.42 for 5 validations",
            "  stopped early: loss has not improved on",
        ),
        ("stopped", "stopped by somebody", "  stopped by somebody"),
        ("interrupted", "SIGTERM received", "  interrupted: SIGTERM received"),
    ],
)
def test_the_reason_is_given(tmp_path: Path, status: str, reason: str, line: str) -> None:
    assert line in ended(tmp_path, status, reason)
    live = LogFollower(RunDir(tmp_path / "cifar" / "20260921-141320-a3f9"))
    live.read_all()
    assert assess_health(live.state, "gone", 0.0).sentence.startswith(line.strip())


def lines(state: RunState, width: int) -> str:
    console = Console(width=width)
    with console.capture() as shown:
        console.print(make_bars_table([*make_progress_bars(state)], width))
    return "\n".join(line.rstrip() for line in shown.get().splitlines())


def stages() -> Iterator[tuple[str, RunState]]:
    """Yield a run in its training, in its validation, paused,
    and before anything is known of its pace.
    """
    yield "train", state_at(92)
    yield "val", state_at(100)
    paused = state_at(93)
    paused.apply(record("frame", paused.now, 300, 3, stage="paused"))
    yield "paused", paused
    yield "begun", state_at(1)


def test_the_bars() -> None:
    told = {}
    for width in (120, 80, 60, 30):
        assert lines(state_at(0), width) == "", "a run that has not begun has none"
        for name, at in stages():
            told[f"{name}, {width} columns"] = [lines(at, width)]
    check_cases("monitor/bars.txt", told)


def test_a_long_name_is_cut_and_a_new_number_moves_none_of_the_others(going: RunDir) -> None:
    long_name = "grad_norm/encoder.layers.0.self_attention.in_proj_weight"
    append(going, [record("scalars", time.time(), 600, 6, v={long_name: 1.5})])
    state = read(going).state
    loss, lr, cut = next(make_progress_bars(state)).numbers
    assert (loss.split()[0], lr.split()[0]) == ("loss", "lr")
    name, value = cut.split()
    assert value == "1.500"
    assert len(name) == 24
    assert name.startswith("grad_norm/")
    assert name.endswith("weight")
    append(going, [record("scalars", time.time(), 600, 6, v={"a": 1.0})])
    assert names_as_they_came(read(going).state) == ["loss", "lr", long_name, "a"]


def test_an_epoch_that_is_over_is_whole_until_the_next_begins() -> None:
    def epoch(it: int, ep: int, stage: str) -> ProgressBar:
        seen.apply(record("frame", seen.now, it, ep, stage=stage))
        (bar,) = (bar for bar in make_progress_bars(seen) if bar.name.startswith("epoch"))
        return bar

    seen = state_at(92)
    assert (
        epoch(587, 5, "train").done,
        epoch(588, 6, "val").done,
        epoch(589, 6, "train").done,
    ) == (97, 98, 1)
    assert epoch(783, 7, "train").done == 97
    seen.apply({"k": "epoch", "t": seen.now, "it": 784, "ep": 8, "seconds": 1.0})
    assert epoch(784, 8, "train") == ProgressBar("epoch 8/8", 98, 98), "none comes after the last"


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
    append(going, [record("frame", time.time(), bi=98, bn=98), end(time.time(), seconds=9.0)])
    assert terminal.finish() == 0
    shown = "\n".join(terminal.screen.display)
    assert "end        finished" in shown
    assert "best accuracy" in shown
    assert re.search(r"metric +last +best +at epoch +iteration", shown)
    assert re.search(r"^ +val accuracy +0\.\d+ +0\.\d+ +\d +\d+ *$", shown, re.MULTILINE)
    assert "╌" not in shown
    assert not terminal.screen.cursor.hidden
    unstyled = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", terminal.output.decode())
    assert re.search(
        r"train      epoch 6/8  iter 588/784  loss \S+  lr \S+$", unstyled, re.MULTILINE
    )


@pytest.mark.parametrize(
    ("environment", "has_bars"), [({}, True), ({"CI": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_bars_are_for_a_terminal_that_can_show_them_and_a_person(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], has_bars: bool
) -> None:
    for name, value in {"TERM": "xterm-256color", **environment}.items():
        monkeypatch.setenv(name, value)
    assert can_show_bars(Tty()) is has_bars
    assert not can_show_bars(io.StringIO())


@pytest.mark.parametrize("no_colour", ["", "1"])
def test_without_colour_they_have_none(monkeypatch: pytest.MonkeyPatch, no_colour: str) -> None:
    for name, value in {
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "NO_COLOR": no_colour,
    }.items():
        monkeypatch.setenv(name, value)
    out, seen = Tty(), state_at()
    with LineWriter(out, has_bars=True) as writer:
        writer.write("08:05:42 warn       ema: slow")
        writer.show_bars(seen)
    assert "ema: slow" in out.getvalue()
    assert bool(re.search(r"\x1b\[[0-9;]*38;", out.getvalue())) is not bool(no_colour)
