"""Runs for all tests of the dashboard."""

import asyncio
import math
import pickle
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import textual.app
import textual.pilot
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

from hookflow.events.rundir import RunDir
from hookflow.monitor import health
from hookflow.monitor.feed import LogFollower
from hookflow.monitor.state import RunState
from tests.monitor.fake_run import make
from tests.support.limits import LIMIT


async def _nothing_is_ready(*seconds: float) -> None:
    """Wait until every task of the loop waits, too:
    Textual's own looks at the clock, 20 ms at a time.
    """
    await asyncio.sleep(0)
    while asyncio.get_running_loop()._ready:  # type: ignore[attr-defined]
        await asyncio.sleep(0)


textual.pilot.Pilot._wait_for_screen.__defaults__ = (float(LIMIT),)
"""Textual's own limit for a screen to answer is 30 seconds, which a busy machine reaches."""

textual.app.wait_for_idle = textual.pilot.wait_for_idle = _nothing_is_ready  # type: ignore[attr-defined]

_parse_rules = Stylesheet._parse_rules
_parsed: dict[tuple[Any, ...], list[RuleSet]] = {}


def _parse_once(sheet: Stylesheet, *arguments: Any, **keywords: Any) -> list[RuleSet]:
    """Return the rules of a style sheet, which each page of each test would have parsed anew."""
    key = (tuple(sheet._variables.items()), arguments, tuple(keywords.items()))
    if key not in _parsed:
        _parsed[key] = _parse_rules(sheet, *arguments, **keywords)
    return _parsed[key]


Stylesheet._parse_rules = _parse_once  # type: ignore[method-assign]


@pytest.fixture
def whole(tmp_path: Path) -> RunDir:
    """A run that has finished."""
    return make(tmp_path / "runs")


@pytest.fixture
def going(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run that goes on: this process has signed for it.

    It does not count as stalled, however long a test takes.
    """
    monkeypatch.setattr(health, "PATIENCE", math.inf)
    run = make(tmp_path / "runs", upto=100, began=time.time())
    run.sign_process()
    return run


def read(run: RunDir) -> LogFollower:
    """Return what has been folded at the present end of the logs of a run."""
    live = LogFollower(run)
    live.read_all()
    return live


@cache
def _folded(
    upto: int | None, synthetic: bool, world: int, late: tuple[tuple[int, float], ...]
) -> bytes:
    with TemporaryDirectory() as folder:
        run = make(Path(folder), world=world, late=dict(late), upto=upto, synthetic=synthetic)
        return pickle.dumps(read(run).state)


def state_at(
    upto: int | None = 100,
    *,
    synthetic: bool = True,
    world: int = 1,
    late: Mapping[int, float] | None = None,
) -> RunState:
    """Return the state of a run after its first frames."""
    folded = _folded(upto, synthetic, world, tuple((late or {}).items()))
    state: RunState = pickle.loads(folded)  # noqa: S301
    return state
