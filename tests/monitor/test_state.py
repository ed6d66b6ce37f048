"""The fold: what the screens say is what the log says, in bounded memory;
and whether the run is well.
"""

import json
import math
import random
from contextlib import suppress
from itertools import islice
from typing import Any

import pytest

from hookflow.events.now import NO_BINDING
from hookflow.events.packing import bin_of
from hookflow.events.reading import read_record
from hookflow.events.records import RECORD_KINDS, VERSION
from hookflow.monitor.durations import WINDOW_SECONDS, CallTiming
from hookflow.monitor.health import PATIENCE, PATIENCE_AT_FIRST, REMOTE_DELAY, assess_health
from hookflow.monitor.series import Series
from hookflow.monitor.state import RunState
from hookflow.monitor.throughput import (
    Throughput,
    TimeLeft,
    find_bottleneck,
    find_costliest_hooks,
    share,
)
from tests.monitor.fake_run import BEGAN, ITERS_PER_EPOCH, Training, plan, record


def records(until: float = math.inf, **options: Any) -> list[dict[str, Any]]:
    batches = Training(BEGAN, **options).records()
    return [record for batch in batches for record in batch if record["t"] <= BEGAN + until]


def folded(log: list[dict[str, Any]]) -> RunState:
    """Return the state after the lines of a log; those that cannot be read are passed over."""
    state = RunState()
    for each in log:
        with suppress(ValueError):
            state.apply(read_record(json.dumps(each)))
    return state


def validated(it: int, **values: float | str) -> Any:
    return {
        "k": "metrics",
        "t": BEGAN + it,
        "it": it,
        "ep": it,
        "split": "val",
        "v": values,
        "seconds": 1.0,
    }


def entry(ns: int) -> list[Any]:
    """Return what a frame has of one firing."""
    return [1, ns, ns, ns, [bin_of(ns), 1]]


def test_differences_add_up() -> None:
    log = records()
    state = folded(log)
    frames = [record for record in log if record["k"] == "frame"]
    for binding in plan().bindings:
        fired = [
            frame["hooks"][str(binding.id)] for frame in frames if str(binding.id) in frame["hooks"]
        ]
        timing = state.first.timing(binding.id)
        assert timing.count == sum(entry[0] for entry in fired)
        assert timing.totals().longest == max(entry[2] for entry in fired)
        assert timing.last == fired[-1][3]
        assert (
            0
            < timing.totals().percentile(0.5)
            <= timing.totals().percentile(0.95)
            <= timing.totals().longest
        )


def test_shares_are_of_the_last_minute_and_no_hook_costs_more_than_all() -> None:
    state = RunState()
    clip = next(binding for binding in plan().bindings if binding.hook == "clip")
    timing = state.first.bindings[clip.id] = CallTiming()
    for second in range(200):
        busy = 1_000_000 if second < 100 else 3_000_000
        timing.add(second, second, entry(busy))
        state.first.minute.add(second, {"forward": 60_000_000}, entry(100_000_000), 8, 0)
        state.now = state.first.now = second
    pace = Throughput.of(state)
    assert share(state, plan(), pace, clip) == pytest.approx(0.03)
    assert pace.iters_per_s == pytest.approx(10.0)
    assert pace.samples_per_s == pytest.approx(80.0)
    log = records()
    state = RunState()
    for each in log:
        state.apply(each)
        pace = Throughput.of(state)
        parts = [taken for _, taken in find_costliest_hooks(state, plan(), pace)]
        assert sum(parts) == pytest.approx(pace.phases["hooks"])
        assert sum(pace.phases.values()) == pytest.approx(1.0 if pace.whole else 0.0)


def test_the_epoch_is_the_one_that_is_worked_on_through_validations_and_pauses() -> None:
    state, seen = RunState(), []
    for each in records():
        state.apply(each)
        if not seen or seen[-1] != (state.epoch, state.stage):
            seen.append((state.epoch, state.stage))
    assert [epoch for epoch, _ in seen] == sorted(epoch for epoch, _ in seen)
    assert {epoch for epoch, stage in seen if stage == "train"} == set(range(1, 9))
    assert {epoch for epoch, stage in seen if stage in ("val", "save")} == set(range(1, 9))
    assert state.epoch == 8
    log = records(12.0)
    training = max(
        place for place, record in enumerate(log) if record.get("stage") == "train" and record["ep"]
    )
    state = folded(log[: training + 1])
    before = state.epoch
    assert before == state.ep + 1
    for stage in ("paused", "save", "train"):
        state.apply({**log[training], "stage": stage, "bi": 0, "bn": 0})
        assert state.epoch == before


def test_the_last_minute_stays_on_the_clock_and_forgets_what_was_before() -> None:
    timing = CallTiming()
    timing.add(10.0, 0, [0, 500, 0, 0, [0]])
    assert (timing.count, timing.total, timing.time_spent(0.0)) == (
        0,
        500,
        500,
    ), "the time of a trigger that said no"
    for second in range(1000, 1060):
        timing.add(second, second, entry(second))
    timing = CallTiming()
    for second in range(300):
        timing.add(second, second, entry(1_000_000 if second < 200 else 20_000_000))
    assert timing.totals().percentile(0.5) == pytest.approx(1e6, rel=0.2)
    assert timing.totals(299 - WINDOW_SECONDS).percentile(0.5) == pytest.approx(20e6, rel=0.2)
    assert (timing.totals().count, timing.totals(299 - WINDOW_SECONDS).count) == (
        300,
        WINDOW_SECONDS,
    )
    for second, ns in ((300, 10**9), (301, 30_000_000), (350, 20_000_000)):
        timing.add(second, second, entry(ns))
        assert timing.totals(second - WINDOW_SECONDS).longest == 10**9
    assert timing.totals(300).longest == 30_000_000, "the longest has left"
    assert (timing.totals(302).count, timing.totals(302).total, timing.totals(302).longest) == (
        1,
        20e6,
        20e6,
    )
    assert timing.totals(360).count == 0


@pytest.mark.parametrize(
    ("later", "slower"),
    [(1.0, False), (1.4, False), (2.0, True), (22.0, True)],
    ids=["even", "less", "more", "far"],
)
def test_a_hook_that_has_become_slower_says_since_when(later: float, slower: bool) -> None:
    timing, chance = CallTiming(), random.Random(0)

    def train(seconds: range, usual: float) -> None:
        for second in seconds:
            spike = 30 if second % 17 == 0 else 1  # as of a garbage collection
            timing.add(second, 10 * second, entry(int(usual * spike * chance.uniform(0.9, 1.1))))

    timing.add(-1, 0, entry(10**10))  # the first compiles something
    train(range(100), 1e6)
    assert timing.slowdown is None
    train(range(100, 200), later * 1e6)
    assert bool(timing.slowdown) is slower
    if timing.slowdown:
        assert 990 <= timing.slowdown.it <= 1020
        train(range(200, 230), 1e6)
        assert timing.slowdown is None, "it is as quick as before"


def test_memory_is_bounded_however_long_the_run() -> None:
    timing, state = CallTiming(), RunState()
    for step in range(20_000):
        timing.add(step, step, entry(100 + step % 7))
        state.journal.add(step, "info" if step else "error", "test", "text")
    assert len(timing._window.entries) + len(timing._uncounted) <= 4 * WINDOW_SECONDS
    assert len(list(state.journal)) == state.journal.LIMIT + 1
    assert next(iter(state.journal)).kind == "error", "what is wrong stays"


def test_a_loss_that_is_no_number_is_one_warning_and_never_the_best() -> None:
    state = folded(records(1.0, synthetic=False))
    for it in range(10, 14):
        state.apply(
            {"k": "scalars", "t": BEGAN + it, "it": it, "ep": 0, "v": {"loss": "nan", "lr": "inf"}}
        )
        state.apply({**validated(it, loss="nan", accuracy="inf"), "ep": 0})
    texts = [entry.text for entry in state.journal if entry.kind == "warn"]
    assert texts == [
        "loss is NaN at iteration 10",
        "lr is inf at iteration 10",
        "accuracy is inf at iteration 10",
    ]
    assert state.metrics.best == {}
    assert math.isnan(state.scalars["loss"].last)
    assert all(math.isfinite(value) for _, value in state.scalars["loss"]), "it is not drawn"
    state.apply({**records(0.0)[0], "t": BEGAN + 20})
    state.apply({"k": "scalars", "t": BEGAN + 21, "it": 1, "ep": 0, "v": {"loss": "nan"}})
    assert [entry.text for entry in state.journal][-1] == "loss is NaN at iteration 1"


def test_a_resumed_run_walks_its_stretch_again_and_has_the_best_up_to_there() -> None:
    log = records(12.0)
    state = folded(log)
    last = max(it for it, _ in state.scalars["loss"])
    again = {**log[0], "t": BEGAN + 100, "it": ITERS_PER_EPOCH, "ep": 1, "resumed_from": "last"}
    state.apply(again)
    assert state.it == ITERS_PER_EPOCH < last
    assert max(it for it, _ in state.scalars["loss"]) <= ITERS_PER_EPOCH
    assert all(
        it <= ITERS_PER_EPOCH for values in state.metrics.by_name.values() for it, _ in values
    )
    assert state.first.timing(0).count == 0
    assert state.elapsed == 0

    def best() -> dict[str, tuple[float, int]]:
        return {name: (best.value, best.it) for name, best in state.metrics.best.items()}

    state = RunState()
    for it, (loss, accuracy) in enumerate([(2.0, 0.1), (1.0, 0.5), (1.5, 0.3)], start=1):
        state.apply(validated(it, loss=loss, accuracy=accuracy))
    assert best() == {"loss": (1.0, 2), "accuracy": (0.5, 2)}
    state.apply(validated(4, loss=0.5, late=0.5))
    assert best()["loss"] == (0.5, 4)
    state.apply({**records(3.0)[0], "it": 2, "ep": 2, "resumed_from": "last"})
    assert best() == {"loss": (1.0, 2), "accuracy": (0.5, 2)}


def test_every_kind_of_record_is_handled_and_a_later_version_is_warned_of() -> None:
    assert [kind for kind in RECORD_KINDS if not hasattr(RunState, f"_on_{kind}")] == []
    state = folded([{**records()[0], "version": VERSION + 1}])
    warning = next(entry.text for entry in state.journal if entry.trouble)
    assert warning.endswith(f"reads format {VERSION}: what is new in it is not shown")


@pytest.mark.parametrize(
    ("modes", "best"), [({"score": "min"}, [1.0]), ({"score": "max"}, [2.0]), ({}, [])]
)
def test_a_hook_says_what_is_best_of_a_metric(modes: dict[str, str], best: list[float]) -> None:
    state = RunState()
    state.apply({**records(3.0)[0], "modes": modes})
    for it, value in enumerate([2.0, 1.0]):
        state.apply(validated(it, score=value))
    assert [best.value for best in state.metrics.best.values()] == best


def test_a_command_waits_until_the_run_answers_it() -> None:
    log = records(3.0)
    state = folded(log)
    state.apply_command(
        {"id": "0old", "cmd": "stop", "args": [], "t": BEGAN - 100, "by": "somebody"}
    )
    assert state.pending == []
    state.apply_command(
        {"id": "0new", "cmd": "checkpoint", "args": [], "t": BEGAN + 3, "by": "somebody"}
    )
    assert [request.cmd for request in state.pending] == ["checkpoint"]
    answer = {
        "id": "0new",
        "cmd": "checkpoint",
        "args": [],
        "sent": BEGAN + 3,
        "ok": True,
        "note": "",
    }
    state.apply(record("ack", BEGAN + 4, 80, 0, **answer))
    assert state.pending == []


def test_a_throttled_hook_is_noted_and_a_new_attempt_has_what_its_checkpoint_has() -> None:
    state = folded(records(3.0))

    def throttle(every: int, it: int = 80) -> tuple[str, str]:
        state.apply(
            record("throttle", BEGAN + 4, it, 0, hook="slow", every=every, why="it took long")
        )
        entry = list(state.journal)[-1]
        return entry.kind, entry.text

    assert throttle(8)[0] == "warn" and throttle(8)[1].startswith("fires 1 of 8 times")
    assert throttle(4, 90)[0] == "info"
    assert {hook: each["it"] for hook, each in state.throttled.items()} == {"slow": 90}
    state.apply({**records(3.0)[0], "resumed_from": "it00000080", "it": 80})
    assert not state.throttled
    throttle(4)
    assert throttle(1)[0] == "info" and throttle(1)[1].startswith("fires whenever it is due")
    assert not state.throttled


def test_the_time_left_counts_validation_and_the_bottleneck_names_what_is_waited_for() -> None:
    state = folded(records(20.0))
    pace, left = Throughput.of(state), state.total_iters - state.it
    assert pace.eta is not None
    assert left / pace.iters_per_s < pace.eta < 2 * left / pace.iters_per_s
    for bi in (0, 2):  # a tenth of the validation has taken as long as all before it
        state.apply(
            record(
                "frame", state.now + state.active * (bi > 0), state.it, 8, stage="val", bi=bi, bn=20
            )
        )
    assert (Throughput.of(state).eta or 0.0) > 9 * pace.eta
    assert Throughput.of(folded(records(0.3))).left == ""
    for phases, word in (
        ({"data": 60, "forward": 40}, "input-bound"),
        ({"hooks": 20, "forward": 30, "backward": 46, "data": 4}, "compute-bound"),
        ({"hooks": 60, "forward": 20, "backward": 20}, "hook-bound"),
    ):
        state = RunState()
        state.first.minute.add(1.0, phases, entry(100), 8, 0)
        state.now = 1.0
        assert find_bottleneck(state, Throughput.of(state)) == word
    state = folded(records(20.0))
    assert find_costliest_hooks(state, plan(), Throughput.of(state))[0][0] == "ema"


@pytest.mark.parametrize(
    ("etas", "left"), [((20, 44), "20–44 s"), ((420, 840), "7–14 min"), ((8000, 8100), "2.2 h")]
)
def test_the_time_left_is_a_range(etas: tuple[float, float], left: str) -> None:
    assert str(TimeLeft(etas[0], *etas)) == left


def after(frames: int) -> RunState:
    return folded(
        [record for batch in islice(Training(BEGAN).records(), frames) for record in batch]
    )


def test_frames_without_progress_are_no_sign_of_life() -> None:
    going = after(30)
    still = Training(BEGAN)
    still.it, still.ep, still.t = going.it, going.ep, going.now
    before = going.moved
    for _ in range(400):
        going.apply(still._frame("train", going.batch, going.batches, {}))
    assert going.moved == before
    assert assess_health(going, "alive", going.now).condition == "stalled"


def test_the_condition_is_what_the_process_and_the_log_say() -> None:
    fresh, going, paused, over = after(2), after(30), after(30), after(10_000)
    paused.stage = "paused"
    for state, life, seconds, condition in (
        (RunState(), "not started", 0.0, "starting"),
        (fresh, "alive", PATIENCE_AT_FIRST - 1, "starting"),
        (fresh, "alive", PATIENCE_AT_FIRST + 1, "stalled"),
        (going, "alive", 1.0, "running"),
        (going, "alive", PATIENCE + 1, "stalled"),
        # So long a network file system may show what it was.
        (going, "remote", PATIENCE + 60, "running"),
        (going, "remote", PATIENCE + REMOTE_DELAY + 1, "stalled"),
        (fresh, "remote", PATIENCE_AT_FIRST + 60, "starting"),
        (paused, "alive", 1000.0, "paused"),
        (RunState(), "gone", 0.0, "lost"),
        (paused, "gone", 0.0, "lost"),
        (over, "gone", 0.0, "finished"),
    ):
        assert assess_health(state, life, state.now + seconds).condition == condition  # type: ignore[arg-type]
    assert assess_health(over, "remote", over.now).over
    inside = assess_health(going, "alive", going.now + 60, plan(), {0: (NO_BINDING, 60.0)})
    assert (inside.condition, "not inside a hook" in inside.sentence) == ("stalled", True)


@pytest.mark.parametrize(
    ("frames", "waits"),
    [
        ("epoch (/env/lib/hookflow/runner/data/loader.py:156)", True),
        ("epoch (hookflow/runner/data/stream.py:376)", True),
        ("__next__ (torch/utils/data/dataloader.py:733)", True),  # in a loop of the user's own
        # This frame is below every training.
        ("call_explaining_worker_errors (hookflow/runner/data/workers.py:88)", False),
        ("forward (/home/me/net.py:7)", False),
        ("epoch (/home/me/epochs.py:7)", False),
    ],
)
def test_the_stack_says_whether_a_stalled_training_waits_for_data(frames: str, waits: bool) -> None:
    going = after(30)
    stack = ["poll (multiprocessing/connection.py:257)", frames, "<module> (runner/__main__.py:9)"]

    def describe(place: int) -> str:
        inside = {0: (place, 60.0)}
        now = going.now + 60
        return assess_health(
            going, "alive", now, plan(), inside, stacks={0: stack}
        ).sentence.rpartition(", ")[2]

    assert describe(NO_BINDING) == ("waiting for data" if waits else "not inside a hook")
    assert "inside" in describe(0), "a hook that reads a data set is a hook"


def test_a_scalar_that_a_resume_takes_back_has_no_last_value() -> None:
    """`hookflow runs` showed a value that was logged after the checkpoint of a rewind."""
    state = RunState()
    for name, its in {"often": range(1, 15), "once": [13], "early": [0]}.items():
        state.scalars[name] = Series()
        for it in its:
            state.scalars[name].add(it, float(it))
    state.scalars["broken"] = Series()
    state.scalars["broken"].add(9, math.inf)
    state.scalars["broken"].add(12, 1.0)
    state.it = 10
    state._drop_later_records()
    last = {name: series.last for name, series in state.scalars.items()}
    assert last == {"often": 10.0, "early": 0.0, "broken": math.inf}
