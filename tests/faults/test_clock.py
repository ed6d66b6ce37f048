"""A clock that is set back, and processes that stand still:
nothing of the run is lost, and it is told.
"""

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from hookflow.events.log import LogAppender
from hookflow.events.reading import read_record
from hookflow.events.run_lock import release
from hookflow.events.rundir import RunDir
from hookflow.monitor.feed import LogFollower
from hookflow.monitor.recording import Recording
from hookflow.monitor.stall_watch import StallWatch
from hookflow.monitor.state import RunState
from hookflow.runner.process.launch import claim
from tests.conftest import NewRun, Train, Trained, messages, records, wait_for
from tests.monitor.fake_run import make
from tests.runner.same import assert_each_once, assert_same_end
from tests.support.overrides import over
from tests.support.processes import Training

HOUR = 3600.0
EACH = 'hooks.each={use="./kill_hooks.py:each", points=["after_train_iter"]}'


@pytest.mark.parametrize(
    ("by", "expected"),
    [(-HOUR, "set back by 3600 s"), (HOUR, "set forward by 3600 s, or the machine slept")],
)
def test_a_clock_that_is_set_while_a_run_trains(
    new_run: NewRun,
    train_here: Train,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    by: float,
    expected: str,
) -> None:
    mark = tmp_path / "mark"
    alone = new_run(EACH)
    run = new_run(EACH, f'hooks.waits={{use="./process_hooks.py:Waits", args={{mark="{mark}"}}}}')
    assert train_here(alone) == 0
    clock = time.time
    set_by: list[float] = []

    def go_on() -> None:
        wait_for(mark.exists)
        set_by.append(by)
        wait_for(lambda: any("the clock was set" in text for text in messages(run)))
        mark.unlink()

    monkeypatch.setattr(time, "time", lambda: clock() + sum(set_by))
    person = threading.Thread(target=go_on)
    person.start()
    assert train_here(run) == 0
    person.join()
    (reported,) = [text for text in messages(run) if "the clock was set" in text]
    assert expected in reported
    assert_same_end(alone, run)
    assert_each_once(run, "each", until=15)
    state = RunState()
    for record in records(run):
        state.apply(record)  # type: ignore[arg-type]
    assert state.end is not None
    assert state.frames == len(records(run, "frame"))
    assert 0 <= state.elapsed < 600, "it took no hour"
    assert not any(" 1:0" in entry.text for entry in state.journal.since(0))


def test_a_clock_that_is_set_after_the_last_frame_makes_no_run_longer() -> None:
    state = RunState()
    state.apply(read_record('{"k":"run","t":1000.0,"it":0,"ep":0}'))
    state.apply(
        {
            "k": "message",
            "t": 1010.0 + HOUR,
            "it": 0,
            "ep": 0,
            "level": "info",
            "source": "a",
            "text": "",
        }
    )
    end = {"status": "finished", "exit": 0, "reason": "", "seconds": 14.0}
    state.apply({"k": "end", "t": 1012.0 + HOUR, "it": 3, "ep": 0, **end})  # type: ignore[arg-type,typeddict-item]
    assert state.elapsed == 14.0


def test_who_watches_goes_on(tmp_path: Path) -> None:
    run = make(tmp_path, upto=100)
    run.sign_process()
    live = LogFollower(run)
    live.read_all()
    before, elapsed, frames = live.state.now, live.state.elapsed, live.state.frames
    watch = StallWatch(run, live)
    assert watch.look(before) is None
    log = LogAppender(run.events)
    again = records(run, "frame")[-20:]
    log.append([{**record, "t": record["t"] - HOUR} for record in again])  # type: ignore[operator]
    live.read_all()
    state = live.state
    assert state.frames == frames + len(again)
    assert before - HOUR - 10 < state.now <= before - HOUR
    assert elapsed <= state.elapsed < elapsed + 20
    assert state.first.iters == sum(record["iters"][0] for record in again), (
        "the last minute is the last minute by the new clock"
    )
    assert watch.look(state.now + 60) == ("stalled", "no progress for 60 s")
    recording = Recording(run)
    recording.seek(recording.last)
    assert recording.state.frames == state.frames


def test_a_run_whose_process_seems_to_have_started_at_another_time_lives(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "toy")
    run.sign_process()
    run.sign(process_started=run.describe()["process_started"] + HOUR)
    assert run.life() == "gone", "another process has the pid by now"
    locks = claim(run)
    assert run.life() == "alive", (
        "it holds the lock: the system reckons its start by the clock that was set"
    )
    release(locks)


def told(run: RunDir, seconds: float) -> tuple[str, str]:
    """Return what somebody who watches the run is told so many seconds after the
    training was last seen to get on.
    """
    live = LogFollower(run)
    live.read_all()
    return StallWatch(run, live).look(live.state.moved + seconds) or ("", "")


def stopped(pid: int) -> bool:
    return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)


def test_a_training_that_is_stopped_goes_on(
    undisturbed: Trained, new_run: NewRun, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    waits = f'hooks.waits={{use="./process_hooks.py:Waits", args={{mark="{mark}"}}}}'
    run = new_run(EACH, waits)
    training = Training(run)
    wait_for(mark.exists)
    pid = int(mark.read_text())
    wait_for(lambda: any(frame["it"] == 7 for frame in records(run, "frame")))
    training.signal(signal.SIGSTOP)
    wait_for(lambda: stopped(pid))
    assert run.life() == "alive"
    condition, sentence = told(run, 3600)
    assert condition == "stalled"
    assert 'inside "waits" at after_train_iter' in sentence
    mark.unlink()
    training.signal(signal.SIGCONT)
    wait_for(lambda: any(frame["it"] > 7 for frame in records(run, "frame")))
    assert training.wait() == 0
    assert_same_end(undisturbed(EACH), run)
    assert_each_once(run, "each", until=15)


def struck(new_run: NewRun, tmp_path: Path, number: signal.Signals) -> RunDir:
    """Return a run of which a data worker is sent a signal, once."""
    args = f'data.train.args={{mark="{tmp_path / "mark"}", number={number.value}}}'
    return new_run(EACH, over("Struck", workers=2), args)


def test_a_data_worker_that_is_killed_ends_the_run_which_is_resumed(
    undisturbed: Trained, new_run: NewRun, tmp_path: Path
) -> None:
    run = struck(new_run, tmp_path, signal.SIGKILL)
    assert Training(run).wait() == 1
    assert "was killed by SIGKILL (signal 9)" in str(records(run, "end"))
    assert Training(run, resume=True).wait() == 0
    assert_same_end(undisturbed(EACH, over("Clouds")), run)
    assert_each_once(run, "each", until=15)


def test_a_data_worker_that_is_stopped_is_waited_for(
    undisturbed: Trained, new_run: NewRun, tmp_path: Path
) -> None:
    run = struck(new_run, tmp_path, signal.SIGSTOP)
    training = Training(run)
    wait_for((tmp_path / "mark").exists)
    worker = int((tmp_path / "mark").read_text())
    wait_for(lambda: stopped(worker))

    def stands_still() -> bool:
        frames = [(frame["it"], frame["bi"], frame["samples"]) for frame in records(run, "frame")]
        return (
            len(frames) > 3 and len({frame[:2] for frame in frames[-3:]}) == 1 and not frames[-1][2]
        )

    def is_told() -> bool:
        """Say whether the stall is told; it may be told sooner, of a start that takes its time,
        and then of a hook.
        """
        condition, sentence = told(run, 3600)
        return (condition, sentence.partition(", ")[2]) == ("stalled", "not inside a hook")

    wait_for(lambda: stands_still() and is_told())
    os.kill(worker, signal.SIGCONT)
    assert training.wait() == 0
    assert_same_end(undisturbed(EACH, over("Clouds")), run)
    assert_each_once(run, "each", until=15)
