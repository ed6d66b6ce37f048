"""A hang is told in plain lines as in the dashboard: when it begins, ever more seldom, and when it is over."""

from __future__ import annotations

from pathlib import Path

from hookflow.events.log import Appender
from hookflow.monitor.feed import Live
from hookflow.monitor.plain import StallWatch
from tests.monitor.fake_run import Training, make


def test_a_hang_is_told_ever_more_seldom_and_when_it_is_over(tmp_path: Path) -> None:
    run = make(tmp_path, upto=30)
    run.sign_process()
    live = Live(run)
    while live.poll():
        pass
    began, watch = live.state.moved, StallWatch(run, live)
    told = {second: line for second in range(100) if (line := watch.look(began + second))}
    assert told == {second: ("stalled", f"no progress for {second} s") for second in (11, 22, 44, 88)}

    going = Training(began)
    going.t, going.it = began + 100, live.state.it + 1
    log = Appender(run.events)
    log.append([going._frame("train", live.state.batch + 1, live.state.batches, {}, 1)])
    log.close()
    live.poll()
    assert watch.look(began + 101) == ("running", "again, after 100 s")
    assert watch.look(began + 102) is None


def test_of_a_run_that_is_over_nothing_is_told(tmp_path: Path) -> None:
    run = make(tmp_path / "over")
    live = Live(run)
    while live.poll():
        pass
    watch = StallWatch(run, live)
    assert not any(watch.look(live.state.now + second) for second in range(100))
