"""The faces without a screen: plain lines, raw lines, the summary."""

from __future__ import annotations

import io
import json
import re
import threading
from pathlib import Path

import pytest

from hookflow.events.log import Appender
from hookflow.events.rundir import RunDir
from hookflow.monitor import feed, plain
from hookflow.monitor.summary import print_folded, print_summary
from tests.golden_files import check_golden
from tests.limits import LIMIT
from tests.monitor.fake_run import BEGAN, TRACEBACK, Training, make


def told(run: RunDir) -> tuple[int, str]:
    out = io.StringIO()
    return plain.follow(run, out), out.getvalue()


def test_the_lines_of_a_whole_run(whole: RunDir) -> None:
    code, text = told(whole)
    assert code == 0
    check_golden("monitor/plain.txt", text.replace(str(whole.path), "RUN"))


def test_every_line_can_be_found_and_none_moves_the_cursor(tmp_path: Path) -> None:
    run = make(tmp_path)
    evil = {"k": "message", "t": 1.8e9, "it": 1, "ep": 1, "level": "warn", "source": "evil", "text": "a\x1b[2Jb\rc\nd"}
    lines = run.events.read_text().splitlines()
    run.events.write_text("\n".join([*lines[:-1], json.dumps(evil), lines[-1]]) + "\n")
    _, text = told(run)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    body = [line for line in text.splitlines() if not line.startswith(("✓", " "))]
    assert all(re.match(r"\d\d:\d\d:\d\d [a-z]+ ", line) for line in body)


def test_made_up_data_are_named_and_real_ones_are_not(tmp_path: Path) -> None:
    assert "SYNTHETIC" in told(make(tmp_path / "a"))[1]
    assert "SYNTHETIC" not in told(make(tmp_path / "b", synthetic=False))[1]


def test_an_epoch_longer_than_ten_seconds_is_told_of_on_the_way(tmp_path: Path) -> None:
    run = make(tmp_path, upto=0)
    log = Appender(run.events)
    for records in Training(0.0, step=0.25).records():
        log.append({**record, "t": record["t"] * 20} for record in records)
    log.close()
    run.sign(pid=1, host="elsewhere")
    _, text = told(run)
    assert text.count(" train ") > 8 * 4


def test_before_an_iteration_has_been_timed_no_speed_is_told(tmp_path: Path) -> None:
    run = make(tmp_path, upto=0)
    log = Appender(run.events)
    at = {"t": BEGAN + plain.EVERY, "it": 0, "ep": 0}
    waits = {"bi": 0, "bn": 98, "samples": 0, "phases": {"data": 10**9}, "iters": [0, 0, 0, 0, {}], "hooks": {}}
    log.append([{"k": "run", **at, "t": BEGAN}, {"k": "frame", **at, "stage": "train", **waits, "cost": 0}])
    log.append([{"k": "end", **at}])
    log.close()
    run.sign(pid=1, host="elsewhere")
    (line,) = (line for line in told(run)[1].splitlines() if " train " in line)
    assert line.endswith(" train      epoch 1  iter 0")


def test_a_log_that_lacks_keys_is_told_as_far_as_it_goes(tmp_path: Path) -> None:
    run = make(tmp_path, upto=0)
    log = Appender(run.events)
    bare = {"t": 1.8e9, "it": 3, "ep": 0}
    log.append([{"k": "run", **bare, "data": {"train": {"name": "toy"}}}, {"k": "message", **bare}])
    log.append([{"k": "scalars", **bare, "v": {"loss": float("nan")}}, {"k": "epoch", **bare, "seconds": 1.0}])
    log.append([{"k": "end", **bare}])
    log.close()
    run.sign(pid=1, host="elsewhere")
    code, text = told(run)
    assert code == 1
    assert "data       train: toy  0 examples in 0 batches" in text
    unreadable = '1 line of its logs cannot be read and was passed over (events.jsonl: record "message": level: '
    assert unreadable in text
    assert "warn       loss: loss is NaN at iteration 3" in text
    assert "  loss NaN" in text


def test_a_run_that_vanished_leaves_with_one(tmp_path: Path) -> None:
    run = make(tmp_path, upto=40)
    run.sign_process()
    run.sign(process_started=1.0)
    code, text = told(run)
    assert code == feed.LOST
    assert "lost" in text
    assert "left no end record" in text


@pytest.mark.parametrize("last", [0, 3])
def test_a_parent_follows_its_child_to_the_last_record(tmp_path: Path, last: int) -> None:
    """The end of an earlier attempt, which stands in the log from the start, does not end the following."""
    run = make(tmp_path)
    asked = []

    def child_exit() -> int | None:
        asked.append(1)
        if len(asked) == 2:
            log = Appender(run.events)
            end = {"status": "failed" if last else "finished", "exit": last, "reason": "", "seconds": 1.0}
            log.append([{"k": "end", "t": 1.8e9, "it": 1, "ep": 0, **end}])
            log.close()
            return last
        return None

    out = io.StringIO()
    assert plain.follow(run, out, child_exit=child_exit) == last
    assert out.getvalue().count(" end ") == 1


def test_a_traceback_that_is_printed_and_recorded_between_two_looks_is_told_once(tmp_path: Path) -> None:
    run = make(tmp_path, upto=30)
    failed = {"hook": "h", "point": "after_val", "type": "OSError", "text": "no", "action": "raise", "at": ""}
    asked = []

    def interrupts() -> int:
        """Come between the look at what was printed and the look at the log."""
        if not asked:
            asked.append(1)
            run.output.write_text("one\n" + TRACEBACK)
            log = Appender(run.events)
            log.append([{"k": "error", "t": 1.8e9, "it": 98, "ep": 1, "traceback": TRACEBACK, **failed}])
            log.close()
        return 0

    out = io.StringIO()
    codes = iter([None, 1])
    assert plain.follow(run, out, child_exit=lambda: next(codes, 1), interrupts=interrupts) == 1
    lines = out.getvalue().splitlines()
    assert [line for line in lines if "Traceback (most" in line] == ["output     | Traceback (most recent call last):"]
    assert lines.index("output     | one") < next(k for k, line in enumerate(lines) if " error " in line)


def test_a_run_is_followed_while_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "PERIOD", 0.01)
    run = make(tmp_path, upto=30)
    run.sign_process()
    out = io.StringIO()
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(plain.follow(run, out)))
    thread.start()
    log = Appender(run.events)
    end = {"status": "stopped", "exit": 0, "reason": "asked to", "seconds": 1.0}
    log.append([{"k": "end", "t": run.describe()["process_started"] + 1, "it": 98, "ep": 1, **end}])
    log.close()
    thread.join(LIMIT)
    assert codes == [0]
    assert "stopped after " in out.getvalue()
    assert ": asked to\n" in out.getvalue()


def test_raw_lines_are_the_log(whole: RunDir) -> None:
    out = io.StringIO()
    assert plain.follow_json(whole, out) == 0
    assert out.getvalue() == whole.events.read_text()


def test_the_summary_says_how_it_went_and_how_to_look_again(whole: RunDir) -> None:
    out = io.StringIO()
    print_summary(whole, out)
    check_golden("monitor/summary.txt", out.getvalue().replace(str(whole.path), "RUN"))
    assert 6 <= len(out.getvalue().splitlines()) <= 10


def test_of_a_run_without_iterations_no_hook_is_outside_them(tmp_path: Path) -> None:
    out = io.StringIO()
    print_summary(make(tmp_path, upto=2), out)
    [costs] = [line for line in out.getvalue().splitlines() if "costliest" in line]
    assert costs.startswith("  costliest hooks: seed 0.")


class Terminal(io.StringIO):
    """Takes what is printed, as a terminal does."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [20, 60])
def test_on_a_narrow_terminal_a_command_stays_whole(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out, command = Terminal(), "hookflow run --resume 20261122-174805-edcf"
    print_folded([f"  resume from iteration 500: {command}", "  the reason: hooks flow no longer"], out)
    lines = out.getvalue().splitlines()
    assert f"    {command}" in lines
    assert all(len(line) <= columns for line in lines if command not in line)
