"""One recording for all tests, and a scene of any moment of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from hookflow.events.now import NOWHERE
from hookflow.events.rundir import RunDir
from hookflow.monitor.feed import Live
from hookflow.monitor.health import examine
from hookflow.monitor.machine import Gpu, Machine
from hookflow.monitor.ranks import NO_PLAN
from hookflow.monitor.view import Scene, View
from tests.monitor.fake_run import make, make_ranks

MACHINE = Machine(38.0, 3.1, 22.0, 2.8, (Gpu(0, 93, 12 * 2**30, 80 * 2**30, 61, 412.0),))


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of day are drawn where the reader is; here the reader is in Greenwich."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def whole(tmp_path: Path) -> RunDir:
    """A run that has finished."""
    return make(tmp_path / "runs")


@pytest.fixture
def scene(tmp_path: Path) -> Callable[..., Scene]:
    """Return a function that gives the scene of a run's first frames."""

    def at(
        upto: int | None = 100,
        *,
        synthetic: bool = True,
        still: float = 0.1,
        inside: int = NOWHERE,
        world: int = 1,
        late: Mapping[int, float] | None = None,
    ) -> Scene:
        root = tmp_path / f"{upto}-{synthetic}-{world}"
        if world > 1:
            run = make_ranks(root, world, late=late, upto=upto, synthetic=synthetic)
        else:
            run = make(root, upto=upto, synthetic=synthetic)
        live = Live(run)
        while live.poll():
            pass
        clock = live.state.now + still
        health = examine(live.state, "alive", clock, live.plan, {0: (inside, still)})
        plan = live.plan or NO_PLAN
        return Scene(live.state, plan, health, View(), Path("runs/cifar", run.id), clock=clock, machine=MACHINE)

    return at
