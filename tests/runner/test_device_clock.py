"""The time on an accelerator, beside that of the host: on a simulated one; `test_cuda.py` has a real one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hookflow.graph.render.loop import rows
from hookflow.monitor.costs import cost
from hookflow.monitor.feed import Live
from hookflow.monitor.health import Pace
from hookflow.monitor.trace import read_trace
from tests.conftest import Trained, records
from tests.simulated_device import FORWARD, HOOK, simulate


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)


@pytest.mark.parametrize(
    "more", [(), ("run.accumulate=2", "data.train.args={examples=32}")], ids=["plain", "accumulated"]
)
def test_phases_and_hooks_have_their_time_on_the_device(trained: Trained, more: tuple[str, ...]) -> None:
    run = trained(*more)
    live = Live(run)
    live.read_all()
    assert live.plan is not None
    device, batches, pace = live.state.first.device, 2 if more else 1, Pace.of(live.state)
    costs = {
        row.binding.hook if row.binding else row.name: cost(live.state, live.plan, pace, row, whole=False).device or 0.0
        for row in rows(live.plan)
    }
    launched = 0.99e9 * (batches * FORWARD + HOOK)
    assert costs["iteration"] >= launched
    assert costs["forward"] >= 0.99e9 * batches * FORWARD
    assert costs["clip"] >= 0.99e9 * HOOK
    assert (device.phase("hooks") or 0.0) >= 0.99e9 * HOOK
    clip = next(each.id for each in live.plan.bindings if each.hook == "clip")
    assert 0.0 < (device.share([clip]) or 0.0) < 0.9


def test_sampled_iterations_are_some_of_all(trained: Trained) -> None:
    run = trained()
    device = [frame["device"] for frame in records(run, "frame") if "device" in frame]
    iters = sum(frame["iters"][0] for frame in records(run, "frame"))
    assert 0 < sum(each["iters"] for each in device) <= iters
    assert all(fired <= each["iters"] for each in device for fired, _ in each["hooks"].values())


def test_a_trace_has_the_device_on_a_track_of_its_own(trained: Trained, tmp_path: Path) -> None:
    commander = (
        f'hooks.commander={{use="./commander.py:Commander", args={{script=[[3, "trace 4"]], mark="{tmp_path}/m"}}}}'
    )
    run = trained(commander)
    (path,) = run.traces.glob("*.json")
    traced = read_trace(path)
    assert not isinstance(traced, str) and [each.it for each in traced] == [4, 5, 6, 7]
    for each in traced:
        assert each.device is not None and each.device >= 0.99e6 * (FORWARD + HOOK)
        device = {row.name: row.device for row in each.rows}
        assert device["forward"] >= 0.99e6 * FORWARD and device["clip @ before_optimizer_step"] >= 0.99e6 * HOOK
    events = json.loads(path.read_text())["traceEvents"]
    forward = {
        track: [event["ts"] for event in events if event["name"] == "forward" and event["tid"] == track]
        for track in (0, 1)
    }
    assert len(forward[0]) == len(forward[1]) == 4
    assert all(device >= host - 0.01 for host, device in zip(*forward.values(), strict=True)), "before its launch"


def test_a_device_without_events_costs_nothing(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert not any("device" in frame for frame in records(trained(), "frame"))
