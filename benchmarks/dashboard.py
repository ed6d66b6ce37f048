"""The cost of the dashboard beside a training of 20 hooks at 1,000 iterations a second: a table in
Markdown.

    make bench-dashboard              ARGS="--seconds 30 --megabytes 192 --rate 1000"

A real training runs, and a real viewer (`hookflow watch`) in a pseudo-terminal of 120x40: while the
training goes on, with other work on the machine, while it is paused, and after its end. Processor
time is that of the viewer's process, in hundredths of a core. Then what the training has logged is
repeated, with other times and iterations, until the log has as many megabytes; it is opened and
sought in, as `watch` and `replay` do. How to read the figures:
`docs/explanation/benchmarks/dashboard.md`.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from hookflow.events.commands import send
from hookflow.events.log import LogAppender
from hookflow.events.reading import read_record
from hookflow.events.rundir import RunDir, all_runs
from hookflow.monitor.feed import LogFollower
from hookflow.monitor.recording import Recording

HERE = Path(__file__).resolve()
COLUMNS, ROWS = 120, 40
Figure = tuple[str, float, str, float | None]
"""A name, a figure with its unit, and the most that it may be."""

SETTLES = 10.0
"""Seconds after which a viewer has come to rest."""
POINTS = ("before_train_iter", "after_backward", "after_optimizer_step", "after_train_iter")
PIPELINE = f"""
[run]
name = "watched"
default_hooks = false
max_iters = 100_000_000
threads = 1
device = "cpu"
[model]
use = "{HERE}:net"
[optimizer]
use = "torch.optim:SGD"
args = {{ lr = 0.01 }}
[data.train]
use = "{HERE}:Paced"
args = {{ rate = RATE }}
[hooks.log]
use = "log"
points = [{{ at = "after_train_iter", every = 10 }}]
""" + "".join(
    f'[hooks.n{k}]\nuse = "{HERE}:nothing"\npoints = ["{POINTS[k % len(POINTS)]}"]\n'
    for k in range(19)
)


def net() -> Any:
    from torch import nn

    return nn.Linear(32, 10)


def nothing() -> None:
    """Do nothing, at any point."""


class Paced:
    """A batch of noise, so many times a second."""

    def __init__(self, rate: float) -> None:
        import torch

        self.rate = rate
        self.batch = torch.randn(8, 32), torch.randint(10, (8,))

    def __len__(self) -> int:
        return 100_000

    def __iter__(self) -> Iterator[Any]:
        due = time.perf_counter()
        for _ in range(len(self)):
            # What it lags behind it makes up for.
            due = max(due + 1 / self.rate, time.perf_counter() - 0.1)
            if (early := due - time.perf_counter()) > 0:
                time.sleep(early)
            yield self.batch


class Viewer:
    """A `hookflow watch` in a pseudo-terminal, and what it has painted."""

    def __init__(self, run: RunDir, *command: str) -> None:
        self._terminal, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        words = [sys.executable, "-m", "hookflow", *(command or ("watch",)), str(run.path)]
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self.began = time.perf_counter()
        self._child = subprocess.Popen(words, stdin=end, stdout=end, stderr=end, env=environment)
        os.close(end)
        self.process = psutil.Process(self._child.pid)
        self.painted = 0
        self.shown = b""
        self._collect_news = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while data := os.read(self._terminal, 1 << 16):
                with self._collect_news:
                    self.painted += len(data)
                    self.shown = (self.shown + data)[-200_000:]
                    self._collect_news.notify_all()
        except OSError:  # the child has closed it
            return

    def wait_for(self, text: bytes, seconds: float = 300.0) -> float:
        """Return after how many seconds since its start it has painted a text."""
        with self._collect_news:
            if not self._collect_news.wait_for(lambda: text in self.shown, seconds):
                raise SystemExit(f"the viewer has not shown {text!r} in {seconds:.0f} s")
        return time.perf_counter() - self.began

    def press(self, key: str) -> float:
        """Press a key; return the ms until something is painted."""
        with self._collect_news:
            before, began = self.painted, time.perf_counter()
            os.write(self._terminal, key.encode())
            self._collect_news.wait_for(lambda: self.painted > before, 5.0)
            return 1000 * (time.perf_counter() - began)

    def costs(self, seconds: float) -> tuple[float, float]:
        """Return the hundredths of a core and the bytes a second that the next seconds take."""
        began, cpu, painted = time.perf_counter(), self.process.cpu_times(), self.painted
        time.sleep(seconds)
        took, now = time.perf_counter() - began, self.process.cpu_times()
        return 100 * (now.user + now.system - cpu.user - cpu.system) / took, (
            self.painted - painted
        ) / took

    def close(self) -> None:
        self._child.kill()
        self._child.wait()
        os.close(self._terminal)


@contextmanager
def viewing(run: RunDir, *command: str) -> Iterator[Viewer]:
    viewer = Viewer(run, *command)
    try:
        yield viewer
    finally:
        viewer.close()


@contextmanager
def burning(processes: int) -> Iterator[None]:
    """Keep so many cores busy."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def train(folder: Path, rate: float) -> RunDir:
    """Begin a training and return it."""
    (folder / "watched.toml").write_text(PIPELINE.replace("RATE", str(rate)))
    command = [sys.executable, "-m", "hookflow", "run", "watched.toml", "--detach"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (run,) = all_runs(folder / "runs")
    return run


def until(run: RunDir, condition: Callable[[LogFollower], bool]) -> LogFollower:
    """Return the run as soon as something is so."""
    live = LogFollower(run)
    while not condition(live):
        live.read_all()
        time.sleep(0.1)
    return live


def watched(run: RunDir, seconds: float) -> Iterator[Figure]:
    """Yield the figures of a viewer beside the training."""
    live = until(run, lambda live: live.state.it > 2000)
    with viewing(run) as viewer:
        viewer.wait_for(b"RUNNING")
        time.sleep(SETTLES)
        live.read_all()
        size, began, it = run.events.stat().st_size, live.state.now, live.state.it
        cpu, painted = viewer.costs(seconds)
        live.read_all()
        took = live.state.now - began
        yield "iterations a second of the training", (live.state.it - it) / took, "", None
        yield "viewer while it trains", cpu, "% of a core", 4
        yield "painted while it trains", painted / 1e3, "KB/s", 40
        yield "log", (run.events.stat().st_size - size) / took * 3600 / 1e6, "MB/h", 15
        with burning(os.cpu_count() or 1):
            keys = []
            for key in 30 * "jk":
                time.sleep(random.uniform(0.1, 0.3))
                keys.append(viewer.press(key))
        yield "key to paint, machine busy, median", statistics.median(keys), "ms", None
        yield "key to paint, machine busy, 95 %", statistics.quantiles(keys, n=20)[-1], "ms", 60
        send(run, "pause")
        until(run, lambda live: live.state.stage == "paused")
        time.sleep(SETTLES)
        yield "viewer while it is paused", viewer.costs(seconds)[0], "% of a core", 0.5
        send(run, "stop")
        until(run, lambda live: live.state.end is not None)
        time.sleep(SETTLES)
        yield "viewer after its end", viewer.costs(seconds)[0], "% of a core", 0.5
        yield "memory of the viewer", viewer.process.memory_info().rss / 1e6, "MB", 90


def repeat(run: RunDir, megabytes: float) -> None:
    """Repeat what is between the first and the last record of a log,
    until it has so many megabytes.
    """
    first, *lines = run.events.read_bytes().splitlines()
    every: list[Any] = [*map(read_record, lines)]
    at = next(at for at, record in enumerate(every) if record["k"] == "end")
    end, records = (
        every[at],
        [record for record in every[:at] if record["k"] in ("frame", "scalars")],
    )
    seconds, its = records[-1]["t"] - records[0]["t"], records[-1]["it"] - records[0]["it"]
    run.events.write_bytes(first + b"\n")
    log, size, times = LogAppender(run.events), 0, 0
    while size < megabytes * 1e6:
        more = {"t": times * seconds, "it": times * its, "elapsed": times * seconds}
        shifted = [
            record | {key: record[key] + more[key] for key in more.keys() & record.keys()}
            for record in records
        ]
        size += log.append(shifted)
        times += 1
    log.append([end | {"t": shifted[-1]["t"], "it": shifted[-1]["it"]}])
    log.close()


def opened(run: RunDir) -> Iterator[Figure]:
    """Yield how long it takes to open a long log, the first time and again,
    and to go to any moment of it.
    """
    for which, most in (("first", None), ("again", 1.0)):
        began = time.perf_counter()
        LogFollower(run, kept=True).read_all()
        yield f"open to watch, {which}", time.perf_counter() - began, "s", most
        began = time.perf_counter()
        recording = Recording(run)
        yield f"open to replay, {which}", time.perf_counter() - began, "s", most
        recording.seek(recording.last)
        chance, seeks = random.Random(0), []
        for _ in range(30):
            moment = chance.uniform(recording.first, recording.last)
            began = time.perf_counter()
            recording.seek(moment)
            seeks.append(time.perf_counter() - began)
        yield (
            f"seek, {which}, the slowest of {len(seeks)}",
            max(seeks),
            "s",
            0.1 if which == "again" else most,
        )
    with viewing(run) as viewer:
        yield "from the command to the whole screen", viewer.wait_for(b"STOPPED"), "s", None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="of each measurement of the viewer (30)"
    )
    parser.add_argument("--megabytes", type=float, default=192.0, help="of the long log (192)")
    parser.add_argument(
        "--rate", type=float, default=1000.0, help="iterations a second of the training (1000)"
    )
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print("| | figure | at most |\n| --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        run = train(Path(folder), options.rate)
        try:
            show(watched(run, options.seconds))
            repeat(run, options.megabytes)
            show(opened(run))
        finally:
            if run.life() == "alive":
                send(run, "stop")
                until(run, lambda live: live.state.end is not None)


def show(figures: Iterator[Figure]) -> None:
    for name, figure, unit, most in figures:
        print(
            f"| {name} | {figure:.3g} {unit} | {'' if most is None else f'{most:g} {unit}'} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
