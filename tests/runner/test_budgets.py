"""Costs of hooks: budgets, a warning when one is exceeded, and the time on an accelerator."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.cli.show import format_page
from hookflow.graph.render.loop import make_rows
from hookflow.hooks.compile import compile_pipeline
from hookflow.monitor.feed import LogFollower
from hookflow.monitor.hook_costs import row_cost
from hookflow.monitor.iteration_trace import read_trace
from hookflow.monitor.state import RunState as Shown
from hookflow.monitor.throughput import Throughput, find_bottleneck
from hookflow.pipeline.load import parse
from hookflow.runner.logging import budgets, recorder, timing
from hookflow.runner.logging.budgets import (
    MAX_INTERVAL_FACTOR,
    WARM_UP,
    WINDOW_SECONDS,
    BudgetController,
    HookThrottles,
)
from hookflow.runner.process.state import RunState
from hookflow.service.run_facts import RunFacts
from tests.conftest import TOY, NewRun, Train, Trained, messages, records, refusal, strikes
from tests.runner.same import final_state, logged
from tests.support.overrides import commander

FORWARD, HOOK = 0.0004, 0.0002
"""Seconds of the work that the forward pass, and the hook that clips gradients, launch. An
iteration of `toy.toml` takes longer, so that the device keeps up.
"""


busy_until = 0.0
"""When the work that is launched will be done, by `time.perf_counter`."""


class Event:
    def record(self) -> None:
        self.at = max(busy_until, time.perf_counter())

    def query(self) -> bool:
        return time.perf_counter() >= self.at

    def elapsed_time(self, end: "Event") -> float:
        return (end.at - self.at) * 1e3


def launching(seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that launches so much work, too."""

    def launch(*args: Any, **kwargs: Any) -> Any:
        global busy_until
        busy_until = max(busy_until, time.perf_counter()) + seconds
        return function(*args, **kwargs)

    return launch


def simulate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the clock of the device. The network of `toy.py` has two linear layers."""
    from hookflow.runner.iteration import context
    from hookflow.runner.logging.timing import DeviceClock

    monkeypatch.setattr(context, "_device_clock", lambda device: DeviceClock(Event))
    monkeypatch.setattr(torch.nn.Linear, "forward", launching(FORWARD / 2, torch.nn.Linear.forward))
    monkeypatch.setattr(
        torch.nn.utils,
        "clip_grads_with_norm_",
        launching(HOOK, torch.nn.utils.clip_grads_with_norm_),
    )


def made(*overrides: str) -> tuple[Any, list[str], HookThrottles]:
    """Return a function that takes a frame, the list of warnings,
    and how often throttled hooks fire.
    """
    loaded, warned = parse(TOY.read_text(), TOY, overrides), []
    plan = compile_pipeline(loaded)
    throttles = HookThrottles(plan, RunState(), lambda kind, **change: None)
    taken = BudgetController.of(
        loaded.pipeline, plan, lambda text, level: warned.append(text), throttles
    )
    ids = {f"{each.hook}@{each.point}": each.id for each in plan.bindings}

    def take(
        it: int, elapsed: float, iters: int, ms: float, **hooks: float | tuple[int, float, float]
    ) -> None:
        taken_by = {
            name: each if isinstance(each, tuple) else (iters, each, 0.0)
            for name, each in hooks.items()
        }
        fired = {
            f"{ids[name]}": [count, int(total * 1e6), int(longest * 1e6), 0, [0]]
            for name, (count, total, longest) in taken_by.items()
        }
        frame = {
            "it": it,
            "elapsed": elapsed,
            "iters": [iters, int(ms * 1e6), 0, 0, [0]],
            "hooks": fired,
        }
        assert taken is not None
        taken.take(frame)  # type: ignore[arg-type]
        for change in throttles.take():  # the safe point
            throttles.make(change)

    return take, warned, throttles


CLIP = "clip@before_optimizer_step"
ACCURACY = "accuracy@after_val_iter"


def test_a_share_is_held_over_the_window_and_warned_of_once() -> None:
    take, warned, _ = made('hooks.clip.budget="1%"')
    take(WARM_UP, 1.0, WARM_UP, 100.0, **{CLIP: 90.0})
    take(WARM_UP + 10, 2.0, 10, 100.0, **{CLIP: 0.9})
    assert not warned, "the first iterations do not count"
    take(WARM_UP + 20, 3.0, 10, 100.0, **{CLIP: 5.0})
    (warning,) = warned
    assert warning.startswith('hook "clip": 2.9 % of the iterations,')
    assert warning.endswith("the budget is 1%; most of it at before_optimizer_step")
    take(WARM_UP + 30, 4.0, 10, 100.0, **{CLIP: 5.0})
    assert len(warned) == 1
    take(WARM_UP + 40, 4.0 + WINDOW_SECONDS, 10, 100.0, **{CLIP: 0.1})
    take(WARM_UP + 50, 5.0 + WINDOW_SECONDS, 10, 100.0, **{CLIP: 0.1})
    take(WARM_UP + 60, 6.0 + WINDOW_SECONDS, 10, 100.0, **{CLIP: 9.0})
    assert len(warned) == 2, "it was kept in between"


def test_a_time_counts_by_iteration_and_all_hooks_may_have_a_budget() -> None:
    take, warned, _ = made('run.budget="0.5ms"', 'hooks.accuracy.budget="200us"')
    take(WARM_UP, 1.0, WARM_UP, 100.0)
    take(WARM_UP + 10, 2.0, 10, 100.0, **{CLIP: 3.0, ACCURACY: 1.9})
    assert not warned
    take(WARM_UP + 20, 3.0, 10, 100.0, **{CLIP: 3.0, ACCURACY: 2.3})
    assert [each.partition(":")[0] for each in warned] == ['hook "accuracy"', "all hooks together"]
    assert warned[1].endswith("0.5ms; most of it clip at before_optimizer_step")


class Slow:
    def after_train_iter(self, run: Any) -> None:
        time.sleep(0.005)


def test_a_run_warns(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "WARM_UP", 0)
    slow = f'hooks.slow={{use="{__file__}:Slow", budget="10%"}}'
    warned = [
        text for text in messages(trained(slow, "run.max_epochs=9"), "warn") if "budget" in text
    ]
    assert (
        len(warned) == 1
        and warned[0].startswith('hook "slow": ')
        and "at after_train_iter" in warned[0]
    )
    assert not [
        text for text in messages(trained(slow.replace("10%", "100%"))) if "budget is" in text
    ]


@pytest.mark.parametrize("written", ["0%", "1", "2s", "fast"])
def test_what_is_no_budget_is_refused(written: str) -> None:
    assert (
        f'"{written}" is no budget; write "1%"' in refusal(f'hooks.clip.budget="{written}"').message
    )


SLOW = f'hooks.slow={{use="{__file__}:Slow", budget="1%", over_budget="throttle"}}'
LOGS = "slow@after_train_iter"


def frames(
    take: Any, throttles: HookThrottles, seconds: int, each: float, since: float = 0.0
) -> list[int]:
    """Take a frame each second, of 100 iterations in 1,000 ms; `each` is a firing's ms.

    Return the frequencies.
    """
    seen = [throttles.every["slow"]]
    for second in range(seconds):
        fired = 100 // throttles.every["slow"]
        take(WARM_UP + second, since + second, 100, 1000.0, **{LOGS: (fired, fired * each, each)})
        if throttles.every["slow"] != seen[-1]:
            seen.append(throttles.every["slow"])
    return seen


def test_a_throttled_hook_fires_as_seldom_as_needed_and_more_often_once_that_is_calm() -> None:
    take, warned, throttles = made(SLOW)
    take(WARM_UP, 0.0, WARM_UP, 1000.0)
    assert frames(take, throttles, 100, 0.2) == [
        1,
        2,
    ], "2 % at each firing: half of them are within 1 %"
    assert frames(take, throttles, 100, 0.1, 100) == [2], (
        "0.5 %: at twice as many it would be no calm 1 %"
    )
    assert frames(take, throttles, 100, 0.03, 200) == [2, 1], "0.15 %, and 0.3 % at each"
    assert frames(take, throttles, 20, 0.9, 300) == [
        1,
        2,
        16,
    ], "9 %: what was calm before counts in the first step"
    assert frames(take, throttles, 250, 0.03, 320) == [
        16,
        8,
        4,
        2,
        1,
    ], "twice as often each minute, as it fires"
    assert not warned


def test_one_long_firing_changes_nothing_and_what_cannot_be_helped_is_warned_of() -> None:
    take, warned, throttles = made(SLOW)
    take(WARM_UP, 0.0, WARM_UP, 1000.0)
    for second in range(9):
        take(WARM_UP, second, 100, 1000.0, **{LOGS: (1, 500.0 if second == 4 else 1.0, 500.0)})
    assert throttles.every == {"slow": 1}
    for second in range(20):
        take(WARM_UP, 9 + second, 1, 10.0, **{LOGS: (3, 60_000.0, 20_000.0)})
    assert throttles.every == {"slow": MAX_INTERVAL_FACTOR}
    assert [text.partition(":")[0] for text in warned] == ['hook "slow"']


COUNTS = f'hooks.slow={{use="{__file__}:Counts", budget="1%", over_budget="throttle"}}'


class Counts:
    reads, writes = (), ()

    def after_train_iter(self, run: Any) -> None:
        time.sleep(0.005)
        run.log("seen", run.iter)


def fires(run_dir: Any) -> list[object]:
    return sorted(logged(run_dir, "seen"))  # type: ignore[type-var]


@pytest.fixture
def asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rank 0 ask for 1 of 4 firings as soon as it has measured at all."""
    from hookflow.runner.logging.budgets import FrequencyChange

    def take(self: Any, frame: Any) -> None:
        if frame["it"] and self._throttles.every["slow"] == 1:
            self._throttles.ask(FrequencyChange("slow", 4, "it took too long"))

    monkeypatch.setattr(BudgetController, "take", take)
    monkeypatch.setattr(recorder, "QUICKEST", 0.05)


@pytest.mark.usefixtures("asked_at_once")
def test_it_skips_firings_from_a_safe_point_and_a_resume_on(
    new_run: NewRun, train_here: Train, tmp_path: Any
) -> None:
    run_dir = new_run(COUNTS, "run.max_epochs=20", *strikes(tmp_path, 15, ("after_train_iter", 80)))
    assert train_here(run_dir) == 143
    (began,) = records(run_dir, "throttle")
    since = int(began["it"])  # type: ignore[call-overload]
    assert (began["hook"], began["every"]) == ("slow", 4)
    assert fires(run_dir) == [it for it in range(1, 81) if it <= since or it % 4 == 0]
    state = final_state(run_dir)
    assert state["throttles"] == {"slow": 4}
    assert train_here(run_dir, resume=True) == 0
    assert fires(run_dir) == [it for it in range(1, 101) if it <= since or it % 4 == 0]
    assert [(each["it"], each["every"]) for each in records(run_dir, "throttle")] == [
        (since, 4),
        (80, 4),
    ]
    page = "\n".join(format_page(RunFacts.read(run_dir)))
    assert re.search(
        r"throttled now, since iteration\n +80 +slow fires 1 of 4 times that it is due: as the"
        r" checkpoint",
        page,
    )


def throttled(hook: str) -> tuple[str, ...]:
    return f'hooks.{hook}.budget="1%"', f'hooks.{hook}.over_budget="throttle"'


@pytest.mark.parametrize(
    ("overrides", "obstacle"),
    [
        (throttled("clip"), "it writes grads at before_optimizer_step"),
        (throttled("schedule"), "it writes lr at before_train_iter"),
        (throttled("ema"), "it writes model at before_val"),
        (throttled("checkpoint"), "at no point of an iteration"),
        ((COUNTS, 'hooks.log.when="seen > 1"'), '"log" reads scalars.seen'),
        ((COUNTS, 'hooks.log.requires=["slow"]'), '"log" requires it'),
    ],
)
def test_what_must_fire_is_refused(overrides: tuple[str, ...], obstacle: str) -> None:
    problem = refusal(*overrides)
    assert "cannot fire less often: " in problem.message and obstacle in problem.message
    assert problem.where is not None


def test_who_comes_after_it_and_what_it_saves_is_named_and_it_needs_a_budget() -> None:
    plan = compile_pipeline(parse(TOY.read_text(), TOY, throttled("throughput")))
    assert plan.hook("throughput").throttle == "1%"
    assert any('"log" comes after "throughput"' in problem.message for problem in plan.warnings)
    assert not any("saves a state" in problem.message for problem in plan.notes)
    plan = compile_pipeline(parse(TOY.read_text(), TOY, throttled("log")))
    assert any('"log" saves a state' in problem.message for problem in plan.notes)
    without = refusal('hooks.clip.over_budget="throttle"').message
    assert "hooks.clip.over_budget: there is no budget that the hook could be over" in without


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)


@pytest.mark.parametrize(
    "more",
    [(), ("run.accumulate=2", "data.train.args={examples=32}")],
    ids=["plain", "accumulated"],
)
def test_phases_and_hooks_have_their_time_on_the_device(
    trained: Trained, more: tuple[str, ...]
) -> None:
    run = trained(*more)
    live = LogFollower(run)
    live.read_all()
    assert live.plan is not None
    device, batches, pace = live.state.first.device, 2 if more else 1, Throughput.of(live.state)
    costs = {
        row.binding.hook if row.binding else row.name: row_cost(
            live.state, live.plan, pace, row, whole_attempt=False
        )
        for row in make_rows(live.plan)
    }
    launched = 0.99e9 * (batches * FORWARD + HOOK)
    assert (costs["iteration"].device or 0.0) >= launched
    assert (costs["forward"].device or 0.0) >= 0.99e9 * batches * FORWARD
    assert (costs["clip"].device or 0.0) >= 0.99e9 * HOOK
    assert (device.phase("hooks") or 0.0) >= 0.99e9 * HOOK
    clip = next(each.id for each in live.plan.bindings if each.hook == "clip")
    assert 0.0 < (device.share([clip]) or 0.0) < 0.9


def test_sampled_iterations_are_some_and_none_without_events(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained()
    device = [frame["device"] for frame in records(run, "frame") if "device" in frame]
    iters = sum(frame["iters"][0] for frame in records(run, "frame"))
    assert 0 < sum(each["iters"] for each in device) <= iters
    assert all(fired <= each["iters"] for each in device for fired, _ in each["hooks"].values())
    monkeypatch.undo()
    assert not any("device" in frame for frame in records(trained(), "frame"))


@pytest.mark.parametrize(
    ("device", "synchronises", "word"),
    [
        (0.6, False, "launch-bound"),
        (0.6, True, "launch-bound"),
        (3.0, False, "compute-bound"),
        (3.0, True, "compute-bound"),
    ],
)
def test_a_device_that_waits_for_launches_is_told_from_one_that_computes(
    monkeypatch: pytest.MonkeyPatch, device: float, synchronises: bool, word: str
) -> None:
    """The device takes so many times as long for each kernel as the host for its launch."""
    host = busy = 0.0

    class Event:
        def record(self) -> None:
            self.at = max(host, busy)

        def query(self) -> bool:
            return host >= self.at

        def elapsed_time(self, end: "Event") -> float:
            return (end.at - self.at) * 1e3

    monkeypatch.setattr(timing, "perf_counter", lambda: host)
    clock = timing.DeviceClock(Event)  # type: ignore[arg-type]
    timeline = timing.DeviceTimeline(clock)
    books = timing.TimingAggregator(0, timeline, timing.DeviceTimingAggregator(clock))
    timeline.restart()
    for _ in range(200):
        stamps = []
        for launches in (5, 60, 80, 15):  # of the phases, 10 us each
            for _ in range(launches):
                host = max(host, busy - 1e-2) + 1e-5  # a full queue makes the host wait
                busy = max(host, busy) + device * 1e-5
            stamps.append(clock())
            if synchronises:  # as a hook after each phase
                host = max(host, busy)
                clock()
        timeline.iteration(*stamps, 8)
        host += 1e-5
    host = max(host, busy)
    books.update()
    state = Shown()
    assert books.device is not None
    record = books.device.take()
    assert record is not None
    state.first.device.add(1.0, record)
    state.first.minute.add(1.0, books.phases, books.iterations.take() or [], 8, 0)
    state.now = 1.0
    assert find_bottleneck(state, Throughput.of(state)) == word


def test_a_trace_has_the_device_on_a_track_of_its_own(trained: Trained, tmp_path: Path) -> None:
    run = trained(commander(tmp_path / "m", (3, "trace 4")))
    (path,) = run.traces.glob("*.json")
    traced = read_trace(path)
    assert not isinstance(traced, str) and [each.it for each in traced] == [4, 5, 6, 7]
    for each in traced:
        assert each.device is not None and each.device >= 0.99e6 * (FORWARD + HOOK)
        device = {row.label: row.device for row in each.rows}
        assert (
            device["forward"] >= 0.99e6 * FORWARD
            and device["clip @ before_optimizer_step"] >= 0.99e6 * HOOK
        )
    events = json.loads(path.read_text())["traceEvents"]
    forward = {
        track: [
            event["ts"] for event in events if event["name"] == "forward" and event["tid"] == track
        ]
        for track in (0, 1)
    }
    assert len(forward[0]) == len(forward[1]) == 4
    assert all(device >= host - 0.01 for host, device in zip(*forward.values(), strict=True)), (
        "before its launch"
    )
