"""Processes that stand still (SIGSTOP): the run is told as stalled, and goes on where it was when they do."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil

from hookflow.events.rundir import RunDir
from hookflow.monitor.feed import Live
from hookflow.monitor.plain import StallWatch
from tests.conftest import NewRun, records, wait_for
from tests.processes import Training
from tests.runner.same import assert_each_once, assert_same_end
from tests.runner.test_loader_runs import over

EACH = 'hooks.each={use="./killers.py:each", points=["after_train_iter"]}'


def told(run: RunDir, seconds: float) -> tuple[str, str]:
    """Return what somebody who watches the run is told so many seconds after the training was last seen to get on."""
    live = Live(run)
    live.read_all()
    return StallWatch(run, live).look(live.state.moved + seconds) or ("", "")


def stopped(pid: int) -> bool:
    return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)


def test_a_training_that_is_stopped_goes_on(new_run: NewRun, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    waits = f'hooks.waits={{use="./disturbers.py:Waits", args={{mark="{mark}"}}}}'
    alone, run = new_run(EACH), new_run(EACH, waits)
    assert Training(alone).wait() == 0
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
    assert_same_end(alone, run)
    assert_each_once(run, "each", until=15)


def struck(new_run: NewRun, tmp_path: Path, number: signal.Signals) -> RunDir:
    """Return a run of which a data worker is sent a signal, once."""
    args = f'data.train.args={{mark="{tmp_path / "mark"}", number={number.value}}}'
    return new_run(EACH, over("Struck", workers=2), args)


def test_a_data_worker_that_is_killed_ends_the_run_which_is_resumed(new_run: NewRun, tmp_path: Path) -> None:
    alone, run = new_run(EACH, over("Clouds", workers=2)), struck(new_run, tmp_path, signal.SIGKILL)
    assert Training(alone).wait() == 0
    assert Training(run).wait() == 1
    assert "was killed by SIGKILL (signal 9): probably this machine was out of memory" in str(records(run, "end"))
    assert Training(run, resume=True).wait() == 0
    assert_same_end(alone, run)
    assert_each_once(run, "each", until=15)


def test_a_data_worker_that_is_stopped_is_waited_for(new_run: NewRun, tmp_path: Path) -> None:
    alone, run = new_run(EACH, over("Clouds", workers=2)), struck(new_run, tmp_path, signal.SIGSTOP)
    assert Training(alone).wait() == 0
    training = Training(run)
    wait_for((tmp_path / "mark").exists)
    worker = int((tmp_path / "mark").read_text())
    wait_for(lambda: stopped(worker))

    def stands_still() -> bool:
        frames = [(frame["it"], frame["bi"], frame["samples"]) for frame in records(run, "frame")]
        return len(frames) > 3 and len({frame[:2] for frame in frames[-3:]}) == 1 and not frames[-1][2]

    def is_told() -> bool:
        """Say whether the stall is told; it may be told sooner, of a start that takes its time, and then of a hook."""
        condition, sentence = told(run, 3600)
        return (condition, sentence.partition(", ")[2]) == ("stalled", "not inside a hook")

    wait_for(lambda: stands_still() and is_told())
    os.kill(worker, signal.SIGCONT)
    assert training.wait() == 0
    assert_same_end(alone, run)
    assert_each_once(run, "each", until=15)
