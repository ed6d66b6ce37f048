"""What the training prints reaches whoever watches, a line at a time, and moves no cursor."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from hookflow.events.log import Appender
from hookflow.events.rundir import RunDir
from hookflow.monitor import plain
from hookflow.monitor.plain import CHUNK, Output, last_lines, tidy
from tests.monitor.fake_run import BEGAN, TRACEBACK, make


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
    output = Output(path)
    assert output.read() == []
    with path.open("ab", buffering=0) as file:
        file.write(b"one\ntw")
        assert output.read() == ["one"]
        file.write(b"o\n50 %\r")
        assert output.read() == ["two"]
        file.write(b"100 %")
        assert output.read() == []
        assert output.read(last=True) == ["100 %"]
        file.write(b"x" * (CHUNK + 1))
        assert output.read() == []
        assert output.read() == ["x" * (CHUNK + 1)], "no line is waited for without end"


def test_the_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    assert last_lines(path, 5) == []
    path.write_text("".join(f"line {n}\n" for n in range(20_000)))
    assert last_lines(path, 3) == ["line 19997", "line 19998", "line 19999"]
    path.write_text("one\ntwo")
    assert last_lines(path, 5) == ["one", "two"]
    path.write_text("")
    assert last_lines(path, 5) == []


def told(run: RunDir, **options: object) -> str:
    out = io.StringIO()
    plain.follow(run, out, **options)  # type: ignore[arg-type]
    return out.getvalue()


def test_plain_lines_relay_what_was_printed(whole: RunDir) -> None:
    whole.output.write_text("hello from a hook\n 1/2\r 2/2\nno end")
    text = told(whole)
    assert text.startswith("output     | hello from a hook\noutput     |  2/2\n")
    assert "\noutput     | no end\n" in text


def test_a_traceback_that_was_printed_is_not_told_again(whole: RunDir) -> None:
    assert told(whole).count("self.canvas.write(image)") == 1
    whole.output.write_text(TRACEBACK)
    text = told(whole)
    assert text.count("self.canvas.write(image)") == 1
    assert 'error      hook "visual" at after_val_epoch, iteration 294, hook switched off: OSError: ' in text


def again(run: RunDir) -> None:
    """Append a second attempt, which ends at once."""
    log = Appender(run.events)
    place = {"t": BEGAN + 100, "it": 784, "ep": 8}
    log.append([{"k": "run", **place, "data": {}, "resumed_from": "it000784"}])
    log.append([{"k": "end", **place, "status": "finished", "exit": 0, "reason": "", "seconds": 1.0}])
    log.close()


def test_of_a_resumed_run_only_the_newest_attempt_is_told(whole: RunDir) -> None:
    whole.output.write_text("printed long ago\n")
    again(whole)
    lines = told(whole).splitlines()
    assert lines[0] == "14:15:00 resumed    attempt 2"
    assert "resumed from it000784" in lines[1]
    assert not any(" train  " in line or "printed long ago" in line or "SYNTHETIC" in line for line in lines)


def test_a_parent_tells_nothing_of_the_attempts_before_its_own(whole: RunDir) -> None:
    whole.output.write_text("printed long ago\n")
    asked = []

    def child_exit() -> int | None:
        asked.append(1)
        if len(asked) == 1:
            again(whole)
            with whole.output.open("a") as file:
                file.write("printed now\n")
            return None
        return 0

    lines = told(whole, child_exit=child_exit).splitlines()
    assert lines[0].endswith(" resumed    attempt 2")
    assert sum(" run  " in line for line in lines) == 1
    assert "output     | printed now" in lines
    assert "output     | printed long ago" not in lines


def test_a_run_of_which_nothing_is_known_yet_is_told_from_its_beginning(tmp_path: Path) -> None:
    run = make(tmp_path, upto=0)
    run.sign_process()
    run.sign(process_started=1.0)
    run.output.write_text("downloading\n")
    assert told(run).startswith("output     | downloading\n")
