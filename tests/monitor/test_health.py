"""Whether a run is well is asked of the system and of its progress, never guessed from a missing end."""

from __future__ import annotations

from hookflow.events.now import NOWHERE
from hookflow.monitor.health import PATIENCE_AT_FIRST, examine
from hookflow.monitor.state import RunState
from tests.monitor.fake_run import BEGAN, Training, plan


def state(frames: int) -> RunState:
    found = RunState()
    for _, records in zip(range(frames), Training(BEGAN).records(), strict=False):
        for record in records:
            found.apply(record)
    return found


def test_running_then_stalled_inside_a_hook() -> None:
    going = state(30)
    assert examine(going, "alive", going.now + 1).condition == "running"
    ema = next(binding for binding in plan().bindings if binding.hook == "ema")
    stuck = examine(going, "alive", going.now + 60, plan(), {0: (ema.id, 60.0)})
    assert stuck.condition == "stalled"
    assert stuck.sentence == f'60 s inside "ema" at {ema.point}'
    assert "not inside a hook" in examine(going, "alive", going.now + 60, plan(), {0: (NOWHERE, 60.0)}).sentence


def test_frames_without_progress_are_no_sign_of_life() -> None:
    going = state(30)
    still = Training(BEGAN)
    still.it, still.ep, still.t = going.it, going.ep, going.now
    before = going.moved
    for _ in range(400):
        going.apply(still._frame("train", going.batch, going.batches, {}))
    assert going.moved == before
    assert examine(going, "alive", going.now).condition == "stalled"


def test_the_first_iteration_may_take_its_time() -> None:
    fresh = state(2)
    assert examine(fresh, "alive", fresh.now + PATIENCE_AT_FIRST - 1).condition == "starting"
    assert examine(fresh, "alive", fresh.now + PATIENCE_AT_FIRST + 1).condition == "stalled"


def test_the_condition_is_what_the_process_and_the_log_say() -> None:
    paused, over = state(30), state(10_000)
    paused.stage = "paused"
    assert examine(paused, "alive", paused.now + 1000).condition == "paused"
    assert examine(RunState(), "not started", BEGAN).condition == "starting"
    assert examine(RunState(), "gone", BEGAN).condition == "lost"
    assert examine(paused, "gone", BEGAN).condition == "lost"
    assert examine(over, "gone", BEGAN).condition == "finished"
    assert examine(over, "remote", BEGAN).over
