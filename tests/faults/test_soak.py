"""Hours at full speed: neither the trainer nor the dashboard grows, the log keeps its size, and no
frame is missed.

It takes two hours, or as many seconds as the variable HOOKFLOW_SOAK of the environment says.
"""

import math
import os
import statistics
import sys
import time

import psutil
import pytest

from hookflow.events.commands import send
from hookflow.events.rundir import RunDir
from hookflow.monitor.feed import LogFollower
from hookflow.runner.process import launch
from tests.conftest import NewRun, records, wait_for
from tests.support.terminal import Terminal

SECONDS = float(os.environ.get("HOOKFLOW_SOAK", "7200"))
SAMPLES = 240
GROWTH = 16.0
"""MB that the straight line through the resident memory may rise by,
from the end of the first third on.
"""
FRAME, BOUND = 500, 130
"""Bytes of a frame on average at most, and for each binding in it;
a quarter more than docs/reference/events.md.
"""

LONG = [
    "run.max_epochs=1000000",
    "data.train.args.examples=4000",
    'hooks.log.points=[{at="after_train_iter", every=50}]',
    "hooks.early_stop.args.patience=1000000000",
]


class Watched:
    """A process, and what it has taken at each sample."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.hours: list[float] = []
        self.rss: list[float] = []
        self.handles: list[tuple[int, int]] = []

    def sample(self) -> None:
        self.hours.append(time.monotonic() / 3600)
        self.rss.append(self._process.memory_info().rss / 1e6)
        self.handles.append((self._process.num_fds(), self._process.num_threads()))

    def check(self) -> str:
        """Return what it took: memory, files and threads do not grow after the
        first third (at their least there).
        """
        third = len(self.rss) // 3
        slope = statistics.linear_regression(self.hours[third:], self.rss[third:]).slope
        parts = self.handles[:third], self.handles[2 * third :]
        early, late = ([min(kind) for kind in zip(*part, strict=True)] for part in parts)
        taken = (
            f"{self.rss[third]:.1f} to {self.rss[-1]:.1f} MB, {slope:+.1f} MB/h; files, threads"
            f" {early} to {late}"
        )
        assert slope * (self.hours[-1] - self.hours[third]) < GROWTH, taken
        assert all(count <= before for count, before in zip(late, early, strict=True)), taken
        return taken


def most_frames(seconds: float) -> float:
    """Return how many frames a run of that age has at most,
    as `docs/reference/events.md` promises.
    """
    grows = 2400 * math.log(min(max(seconds, 1200), 4800) / 1200)
    return min(seconds, 1200) * 2 + grows + max(seconds - 4800, 0) / 2 + 2


@pytest.mark.long
@pytest.mark.usefixtures("interpreters")  # a forked training looks and writes more often
def test_a_long_run_and_a_dashboard_over_it(new_run: NewRun) -> None:
    run = new_run(*LONG)
    training = launch.start(run, notifies=False)
    wait_for(lambda: bool(records(run, "checkpoint")))
    screen = Terminal(sys.executable, "-m", "hookflow", "watch", str(run.path))
    try:
        screen.wait_for("RUNNING")
        trainer, viewer = Watched(training.pid), Watched(screen.child.pid)
        began = time.monotonic()
        for k in range(SAMPLES):
            while time.monotonic() < began + SECONDS * (k + 1) / SAMPLES:
                time.sleep(0.2)
            assert training.poll() is None
            assert screen.child.poll() is None
            screen.drain()
            trainer.sample()
            viewer.sample()
        send(run, "stop")
        assert training.wait() == 0
    finally:
        screen.close()
        training.kill()
    print(f"trainer: {trainer.check()}\nviewer: {viewer.check()}\n{log_of(run)}")


def log_of(run: RunDir) -> str:
    """Return how large the log is, having looked whether that keeps to the promise,
    and whether a frame is missing.
    """
    (end,) = records(run, "end")
    frames = records(run, "frame")
    live = LogFollower(run)
    live.read_all()
    done = sum(frame["iters"][0] for frame in frames)  # type: ignore[index]
    assert done == end["it"], "each iteration is in one frame"
    assert live.state.frames == len(frames)
    seconds = float(str(end["seconds"]))
    assert len(frames) <= most_frames(seconds)
    written = [
        line for line in run.events.read_bytes().splitlines() if line.startswith(b'{"k":"frame"')
    ]
    assert len(written) == len(frames)
    size = sum(map(len, written))
    assert size <= sum(FRAME + BOUND * len(frame["hooks"]) for frame in frames)  # type: ignore[arg-type]
    return (
        f"{seconds:.0f} s, {end['it']} iterations, {len(frames)} frames of at most"
        f" {most_frames(seconds):.0f}, {size / len(frames):.0f} bytes each; the log has"
        f" {run.events.stat().st_size / 1e6:.2f} MB"
    )
