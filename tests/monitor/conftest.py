"""One recording for all tests, and a scene of any moment of it."""

import asyncio
import math
import pickle
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import textual.app
import textual.pilot

from hookflow.events.now import NOWHERE
from hookflow.events.rundir import RunDir
from hookflow.monitor import health
from hookflow.monitor.feed import Live
from hookflow.monitor.health import Gpu, Machine
from hookflow.monitor.ranks import NO_PLAN
from hookflow.monitor.view import Scene, View
from tests.monitor.fake_run import make

MACHINE = Machine(38.0, 3.1, 22.0, 2.8, (Gpu(0, 93, 12 * 2**30, 80 * 2**30, 61, 412.0),))
At = Callable[..., Scene]


async def _nothing_is_ready(*seconds: float) -> None:
    """Wait until every task of the loop waits, too: Textual's own looks at the clock, 20 ms at a time."""
    await asyncio.sleep(0)
    while asyncio.get_running_loop()._ready:  # type: ignore[attr-defined]
        await asyncio.sleep(0)


textual.app.wait_for_idle = textual.pilot.wait_for_idle = _nothing_is_ready  # type: ignore[attr-defined]


@pytest.fixture
def whole(tmp_path: Path) -> RunDir:
    """A run that has finished."""
    return make(tmp_path / "runs")


@pytest.fixture
def going(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run that goes on: this process has signed for it. It does not count as stalled, however long a test takes."""
    monkeypatch.setattr(health, "PATIENCE", math.inf)
    run = make(tmp_path / "runs", upto=100, began=time.time())
    run.sign_process()
    return run


def read(run: RunDir) -> Live:
    """Return what has been folded at the present end of the logs of a run."""
    live = Live(run)
    live.read_all()
    return live


@cache
def _folded(upto: int | None, synthetic: bool, world: int, late: tuple[tuple[int, float], ...]) -> bytes:
    with TemporaryDirectory() as folder:
        run = make(Path(folder), world=world, late=dict(late), upto=upto, synthetic=synthetic)
        live = read(run)
        return pickle.dumps((run.id, live.state, live.plan or NO_PLAN))


@pytest.fixture
def scene() -> At:
    """Return a function that gives the scene of a run's first frames."""

    def at(upto: int | None = 100, *, still: float = 0.1, inside: int = NOWHERE, **made: Any) -> Scene:
        late = tuple(made.get("late", {}).items())
        name, state, plan = pickle.loads(_folded(upto, made.get("synthetic", True), made.get("world", 1), late))  # noqa: S301
        clock = state.now + still
        places = {0: (inside, still)}
        judged = health.examine(state, "alive", clock, plan, places)
        path = Path("runs/cifar", name)
        return Scene(state, plan, judged, View(), path, clock=clock, machine=MACHINE, inside=places)

    return at
