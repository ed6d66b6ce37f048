"""Several ranks: their logs are merged, the slow one is named, and nobody is missed,
on the screen and in lines.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hookflow.events.log import encode
from hookflow.events.packing import bin_of
from hookflow.events.reading import read_record
from hookflow.events.rundir import RunDir
from hookflow.monitor import log_reader, plain
from hookflow.monitor.durations import WINDOW_SECONDS
from hookflow.monitor.health import PATIENCE, assess_health
from hookflow.monitor.ranks import HEARTBEAT_TIMEOUT, MIN_DURATION, REMOTE_DELAY, format_ranks
from hookflow.monitor.recording import Recording
from hookflow.monitor.state import RunState
from hookflow.monitor.summary import summary
from hookflow.monitor.throughput import Throughput, find_bottleneck
from tests.monitor.conftest import read, state_at
from tests.monitor.fake_run import BEGAN, append, append_rank, end, make_ranks, plan, record
from tests.support.golden_files import check_golden
from tests.support.plain_output import in_turn, plain_lines

ITERATION = 100_000_000
SHARES = {
    "data": 0.1,
    "forward": 0.3,
    "backward": 0.4,
    "optimizer": 0.1,
    "hooks": 0.05,
    "other": 0.05,
}
MESSAGE, ERROR = record("message", it=5, ep=0), record("error", it=5, ep=0)


def run_record(**facts: Any) -> Any:
    """Return the record with which a rank begins, as it is read."""
    return read_record(encode({"k": "run", "it": 0, "ep": 0, "device": "cpu", **facts}))


def begun(world: int, t: float = 0.0, **facts: Any) -> RunState:
    """Return a run that has just begun on all its ranks."""
    state = RunState()
    for rank in range(world):
        state.apply(run_record(t=t, rank=rank, world=world, **facts), rank)
    return state


def frame(
    t: float,
    *,
    iters: int = 10,
    it: int | None = None,
    hooks: Mapping[str, int] | None = None,
    **extra: float,
):  # type: ignore[no-untyped-def]
    """Return one second of iterations of 100 ms; `extra` ms a phase are taken from, or given to,
    the backward pass.
    """
    phases = {name: ITERATION * share for name, share in SHARES.items()}
    for phase, ms in extra.items():
        phases[phase.removeprefix("in_")] += ms * 1e6
        phases["backward"] -= ms * 1e6
    fired = {
        name: [iters, iters * ns, ns, ns, [bin_of(ns), iters]] for name, ns in (hooks or {}).items()
    }
    place = {
        "t": t,
        "it": int(10 * t) if it is None else it,
        "ep": 0,
        "stage": "train",
        "bi": 1,
        "bn": 10**6,
    }
    times = {"phases": {name: int(ns * iters) for name, ns in phases.items()}, "hooks": fired}
    whole = [iters, iters * ITERATION, ITERATION, ITERATION, [bin_of(ITERATION), iters]]
    return {"k": "frame", **place, "samples": 1, **times, "iters": whole, "cost": 0}


def train(state: RunState, seconds: range, *ranks: dict[str, Any]) -> None:
    """Let each rank train for so long, with what is special about it."""
    for t in seconds:
        for rank, special in reversed(list(enumerate(ranks))):
            state.apply(frame(float(t), **special), rank, plan())


def texts_of(state: RunState, source: str = "ranks") -> list[str]:
    return [entry.text for entry in state.journal if entry.source == source]


def test_the_rank_that_the_others_wait_for_is_named_with_its_phase_or_hook() -> None:
    state = begun(4)
    train(state, range(1, 20), {}, {}, {"data": 18.0}, {})
    sentence = "rank 2 keeps the others waiting: 18.0 ms of each 100 ms iteration, in data"
    assert texts_of(state) == [sentence]
    assert state.journal.warnings == 1
    assert find_bottleneck(state, Throughput.of(state)) == "rank-2-bound"
    state = begun(2)
    bindings = {b.hook: str(b.id) for b in plan().bindings if b.point == "after_train_iter"}
    every = dict.fromkeys(bindings.values(), 1_000_000)
    slow = every | {bindings["log"]: 12_000_000}
    train(state, range(1, 20), {"hooks": every}, {"hooks": slow, "in_hooks": 11.0})
    assert state.ranks.straggler is not None
    assert (state.ranks.straggler.rank, state.ranks.straggler.reason) == (1, "hook log")
    assert [format_ranks(ranks) for ranks in ([2], [3, 1], [1, 2, 3, 4])] == [
        "rank 2",
        "ranks 1, 3",
        "ranks 1-4",
    ]


def test_a_straggler_is_told_of_once_stays_for_less_and_goes_when_it_has_caught_up() -> None:
    for ms in (0.0, 4.9):
        even = begun(4)
        train(even, range(1, 30), {}, {"forward": ms}, {}, {})
        assert (even.ranks.straggler, texts_of(even)) == (None, []), "less than a twentieth"
    state = begun(2)
    train(state, range(1, int(MIN_DURATION)), {}, {"data": 8.0})
    assert texts_of(state) == [], "a moment makes no straggler"
    train(state, range(int(MIN_DURATION), 90), {}, {"data": 8.0})
    train(state, range(90, 190), {}, {"data": 4.0})
    assert len(texts_of(state)) == 1, "4 ms are too few to be told of, and enough to stay"
    train(state, range(190, 300), {}, {})
    assert len(texts_of(state)) == 2
    assert texts_of(state)[1] == "the ranks are balanced again"
    assert state.ranks.straggler is None


def test_samples_a_second_are_those_of_all_ranks() -> None:
    state = begun(4)
    state.apply({**frame(1.0), "samples": 30}, 0)
    assert Throughput.of(state).samples_per_s == pytest.approx(4 * 30), "as if all were like rank 0"
    for rank in (1, 2, 3):
        state.apply({**frame(1.0), "samples": 40}, rank)
    assert Throughput.of(state).samples_per_s == pytest.approx(30 + 3 * 40)


def test_no_rank_is_judged_while_nobody_trains_nor_by_the_forward_pass_but_under_fsdp() -> None:
    state = begun(2)
    train(state, range(1, 20), {}, {"data": 18.0})
    train(
        state,
        range(20, 20 + int(2 * WINDOW_SECONDS)),
        {"iters": 0, "it": 190},
        {"iters": 0, "it": 190},
    )
    assert state.ranks.straggler is not None
    assert len(texts_of(state)) == 1
    for strategy, found in (("fsdp", 1), ("ddp", None)):
        state = begun(2, strategy=strategy)
        train(state, range(1, 20), {"forward": 18.0}, {"data": 18.0})
        assert (state.ranks.straggler.rank if state.ranks.straggler else None) == found


def test_a_rank_that_falls_silent_or_never_said_anything_while_others_go_on_is_named() -> None:
    state = begun(3)
    train(state, range(1, 10), {}, {}, {})
    for t in range(10, 30):
        state.apply(frame(float(t)), 0)
        state.apply(frame(float(t)), 2)
    assert state.ranks.silent == {1: 20.0}
    state.apply(frame(30.0), 1)
    assert state.ranks.silent == {}
    state.apply(run_record(t=30.0, rank=1, world=3, host="elsewhere"), 1)
    for t in range(31, 100):  # so long its log may be seen late
        state.apply(frame(float(t)), 0)
        state.apply(frame(float(t)), 2)
    assert state.ranks.silent == {}
    state.apply(frame(31.0 + HEARTBEAT_TIMEOUT + REMOTE_DELAY), 0)
    assert state.ranks.silent.keys() == {1}
    state = RunState()
    state.apply(run_record(t=100.0, rank=0, world=2))
    state.apply(frame(100.0 + HEARTBEAT_TIMEOUT / 2), 0)
    assert state.ranks.silent == {}
    state.apply(frame(102.0 + HEARTBEAT_TIMEOUT), 0)
    assert state.ranks.silent == {1: HEARTBEAT_TIMEOUT + 2}


def test_what_all_ranks_say_is_shown_once_and_what_one_says_with_its_name() -> None:
    state = begun(4)
    for rank in (1, 2, 3, 0):
        state.apply({**MESSAGE, "t": 1.0, "text": "alike"}, rank)
    for rank in (3, 1):
        state.apply({**MESSAGE, "t": 2.0, "text": "ours"}, rank)
    train(state, range(3, 8), {}, {}, {}, {})
    state.apply({**MESSAGE, "t": 8.0, "text": "ours"}, 2)
    state.apply({**MESSAGE, "t": 8.0, "text": "mine"}, 2)
    train(state, range(9, 14), {}, {}, {}, {})
    assert [(entry.source, entry.text) for entry in state.journal if entry.kind == "warn"] == [
        ("data", "alike"),
        ("ranks 1, 3", "data: ours"),
        ("rank 2", "data: mine"),
    ]


def test_an_error_of_any_rank_is_seen_at_once_and_the_first_one_is_why_the_run_failed() -> None:
    state = begun(3)
    train(state, range(1, 5), {}, {}, {})
    state.apply({**ERROR, "t": 5.0, "text": "bad label", "traceback": 'File "x.py", line 7'}, 2)
    assert [(entry.source, entry.text) for entry in state.journal if entry.kind == "error"] == [
        ("rank 2", "ends the run: ValueError: bad label")
    ]
    stalled = assess_health(state, "alive", 5.0 + PATIENCE)
    assert stalled.condition == "stalled"
    assert stalled.sentence.endswith("; failed: rank 2, iteration 5: ValueError: bad label")
    for rank, text in ((0, "connection closed by peer"), (1, "connection closed by peer")):
        state.apply(
            {**ERROR, "t": 6.0 + rank, "type": "RuntimeError", "text": text, "traceback": ""}, rank
        )
    assert state.journal.errors == 2, "of what follows from it, one"
    state.apply(end(8.0, 40, 0, status="interrupted", exit=143, reason="SIGTERM"))  # type: ignore[arg-type]
    ended = assess_health(state, "gone", 9.0)
    assert ended.condition == "failed"
    assert ended.sentence == "failed: rank 2, iteration 5: ValueError: bad label"


def test_a_users_mistake_on_one_machine_is_shown_and_one_on_all_is_rank_0s() -> None:
    mistake: Any = end(1.0, 0, 0, status="failed", exit=2, reason="no data/\nhere")
    state = begun(2)
    state.apply(mistake, 1)
    state.apply({**mistake, "t": 1.1})
    assert [entry.source for entry in state.journal if entry.kind == "error"] == ["run"]
    state = begun(2)
    state.apply(mistake, 1)
    state.apply({**mistake, "t": 1.1, "status": "interrupted", "reason": "SIGTERM"})
    assert [
        (entry.source, entry.text, entry.detail) for entry in state.journal if entry.kind == "error"
    ] == [("rank 1", "no data/ …", "no data/\nhere")]


def test_a_new_attempt_forgets_the_old_ones_ranks_but_not_those_that_have_begun_before_rank_0() -> (
    None
):
    state = begun(4)
    train(state, range(1, 20), {}, {}, {"data": 18.0}, {})
    state.apply(run_record(t=100.0, rank=1, world=2), 1)
    state.apply(run_record(t=101.0, rank=0, world=2), 0)
    assert sorted(state.ranks.of) == [0, 1]
    assert state.ranks.straggler is None
    state.apply(frame(30.0), 3)
    assert state.ranks.world == 2


def test_replay_shows_of_all_ranks_what_the_live_view_showed(tmp_path: Path) -> None:
    run = make_ranks(tmp_path, 3, late={1: 0.2})
    live, recording = read(run), Recording(run)
    recording.seek(recording.last)
    assert recording.first == BEGAN
    assert recording.state.ranks.straggler == live.state.ranks.straggler is not None
    assert list(recording.state.journal) == list(live.state.journal)
    recording.seek(BEGAN + 2)
    assert recording.state.ranks.straggler is None
    assert sorted(recording.state.ranks.of) == [0, 1, 2]


def test_a_log_that_comes_late_and_one_that_lags_are_taken_when_they_come(tmp_path: Path) -> None:
    run = make_ranks(tmp_path, 1, upto=0)
    append_rank(run, 0, 3, upto=60, synthetic=False)
    append_rank(run, 1, 3, upto=20, synthetic=False)
    live = read(run)
    assert sorted(live.state.ranks.of) == [0, 1]
    assert live.state.ranks.silent.keys() == {2}
    append_rank(run, 2, 3, upto=60, synthetic=False)
    lines = run.find_events_path(2).read_bytes().splitlines(keepends=True)
    run.find_events_path(2).write_bytes(b"".join(lines[:-1]) + lines[-1][:50])
    live.read_all()
    assert live.state.ranks.silent == {}
    before = live.state.ranks.of[2].now
    with run.find_events_path(2).open("ab") as file:
        file.write(lines[-1][50:])
    live.read_all()
    assert live.state.ranks.of[2].now > before


def test_of_another_ranks_long_log_new_frames_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "RECENT_BYTES", 1 << 16)
    run = make_ranks(tmp_path, 1, upto=0)
    every = {str(b.id): 1_000_000 for b in plan().bindings}
    frames = [frame(float(t), hooks=every) for t in range(1, 300)]
    for rank in (0, 1):
        begin = {"k": "run", "t": 0.0, "it": 0, "ep": 0, "device": "cpu", "rank": rank, "world": 2}
        append(run, [begin, *frames], rank=rank)
    assert run.find_events_path(1).stat().st_size > 2 * log_reader.RECENT_BYTES
    live = read(run)
    first, other = live.state.ranks.of[0], live.state.ranks.of[1]
    assert other.minute.sums == first.minute.sums
    assert 0 < other.timing(0).count < first.timing(0).count


def test_a_log_of_another_version_is_followed(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    begin = {"k": "run", "t": 1.0, "it": 0, "ep": 0, "device": "cpu"}
    odd = [{"k": "news", "t": 2.0}, {"k": "frame"}, {"k": "message", "t": 3.0}, {"t": "soon"}, {}]
    for rank in (0, 1):
        append(run, [begin, *odd, {**frame(4.0), "new": 1}], rank=rank)
    live = read(run)
    assert live.state.now == 4.0
    assert live.state.unreadable == 8
    assert live.state.complaint == 'events.jsonl: record "frame": t: Field required'
    lines = "\n".join(summary(run, live.state, live.plan))
    assert (
        '8 lines of its logs cannot be read and were passed over (events.jsonl: record "frame": '
        in lines
    )
    assert live.state.ranks.world == 1


LATE = {2: 0.2}


def test_a_stalled_run_names_the_rank_and_the_hook_it_is_stuck_in() -> None:
    state, planned = state_at(world=4), plan()
    ema = next(binding for binding in planned.bindings if binding.hook == "ema")
    stuck = assess_health(
        state, "alive", state.now + 60, planned, {0: (-1, 60.0), 2: (ema.id, 60.0)}
    )
    assert stuck.sentence == f'rank 2: 60 s inside "ema" at {ema.point}'
    waits = {0: (ema.id + 1, 60.0), 1: (ema.id + 1, 60.0), 2: (ema.id, 60.0)}
    again = assess_health(state, "alive", state.now + 60, planned, waits)
    assert again.sentence == stuck.sentence, "the others are where they wait for it"
    either = assess_health(state, "alive", state.now + 60, planned, {0: waits[0], 2: waits[2]})
    assert 'rank 0: 60 s inside "schedule"' in either.sentence
    assert 'rank 2: 60 s inside "ema"' in either.sentence


def test_plain_lines_tell_of_the_ranks_only_what_matters(tmp_path: Path) -> None:
    run = make_ranks(tmp_path, 4, late=LATE)
    error = {
        **ERROR,
        "t": BEGAN + 21,
        "action": "ignore",
        "text": "as told",
        "traceback": "Trace\nback",
    }
    append(run, [{**MESSAGE, "t": BEGAN + 20, "text": "slow disk"}, error], rank=3)
    check_golden("monitor/plain-ranks.txt", plain_lines(run).replace(str(run.path), "RUN"))
    out = io.StringIO()
    assert plain.print_records(run, out) == 0
    assert out.getvalue() == run.events.read_text(), "raw lines are those of rank 0"


def test_an_error_of_another_rank_is_printed_though_rank_0_says_nothing_more(
    tmp_path: Path,
) -> None:
    run = make_ranks(tmp_path, 2, upto=60)
    error = {**ERROR, "t": BEGAN + 21, "text": "as told", "traceback": "Trace\nback"}
    text = plain_lines(
        run, code=1, child_exit=in_turn(None, lambda: append(run, [error], rank=1), 1)
    )
    assert "rank 1: ends the run: ValueError: as told" in text
    assert "error      | back" in text
