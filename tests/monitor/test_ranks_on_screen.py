"""Several ranks on the faces: the panel at every size, its key, plain lines, the summary, the list of runs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from hookflow.cli.runs import runs
from hookflow.monitor import plain
from hookflow.monitor.health import examine
from hookflow.monitor.keys import KEYS
from tests.golden_files import check_golden
from tests.monitor.conftest import At
from tests.monitor.fake_run import BEGAN, append, end, make_ranks
from tests.monitor.test_keys import pressed
from tests.monitor.test_plain import in_turn, told
from tests.monitor.test_ranks import ERROR, MESSAGE, frame
from tests.monitor.test_screens import SIZES, drawn

LATE = {2: 0.2}


@pytest.mark.parametrize(("width", "height"), [*SIZES, (200, 60)])
def test_four_ranks_with_a_straggler_and_two_even_ones(scene: At, width: int, height: int) -> None:
    check_golden(f"monitor/ranks-4-{width}x{height}.txt", drawn(scene(world=4, late=LATE), width, height))
    if width < 200:
        check_golden(f"monitor/ranks-2-{width}x{height}.txt", drawn(scene(world=2), width, height))


@pytest.mark.parametrize(("width", "height"), [(120, 40), (80, 24)])
def test_the_panel_made_large(scene: At, width: int, height: int) -> None:
    large = scene(world=4, late=LATE)
    large.view.focus, large.view.zoomed, large.view.rank = 6, True, 2
    check_golden(f"monitor/zoom-ranks-{width}x{height}.txt", drawn(large, width, height))


def test_of_many_ranks_those_to_look_at_are_shown(scene: At) -> None:
    many = scene(world=16, late={11: 0.2, 5: 0.1})
    text = drawn(many, 120, 40)
    assert "▲ rank 11 keeps the others waiting" in text
    assert "+5.7 ms data" in text
    assert " 9 more " in text
    many.view.focus, many.view.rank = 6, 14
    assert "▸   14" in drawn(many, 120, 40)
    many.view.zoomed = True
    for width in (1, 60, 76, 300):
        for height in (1, 11, 31, 90):
            for many.view.focus, many.view.zoomed in ((2, False), (6, False), (6, True)):
                drawn(many, width, height)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_what_is_wrong_with_a_rank_is_named_at_every_size(scene: At, width: int, height: int) -> None:
    lost = scene(world=4)
    for second in range(1, 14):
        t = lost.state.now + 1
        for rank in (0, 1, 2):
            lost.state.apply(frame(t, it=600 + second), rank)
    assert "nothing from rank 3 for 13 s" in drawn(lost, width, height)
    lost.state.apply({**ERROR, "t": lost.state.now, "text": "bad label", "traceback": ""}, 1)
    assert "rank 1 failed: ValueError" in drawn(lost, width, height)
    lost.health = examine(lost.state, "gone", lost.state.now)
    assert "✗ FAILED" in drawn(lost, width, height)
    ended = scene(world=3)
    for rank in (0, 1):
        ended.state.apply(end(ended.state.now, 600, 6), rank)  # type: ignore[arg-type]
    assert "no end record from rank 2" in drawn(ended, width, height)


def test_a_stalled_run_names_the_rank_and_the_hook_it_is_stuck_in(scene: At) -> None:
    going = scene(world=4)
    ema = next(binding for binding in going.plan.bindings if binding.hook == "ema")
    stuck = examine(going.state, "alive", going.state.now + 60, going.plan, {0: (-1, 60.0), 2: (ema.id, 60.0)})
    assert stuck.sentence == f'rank 2: 60 s inside "ema" at {ema.point}'
    waits = {0: (ema.id + 1, 60.0), 1: (ema.id + 1, 60.0), 2: (ema.id, 60.0)}
    again = examine(going.state, "alive", going.state.now + 60, going.plan, waits)
    assert again.sentence == stuck.sentence, "the others are where they wait for it"
    either = examine(going.state, "alive", going.state.now + 60, going.plan, {0: waits[0], 2: waits[2]})
    assert 'rank 0: 60 s inside "schedule"' in either.sentence
    assert 'rank 2: 60 s inside "ema"' in either.sentence


def test_the_digit_goes_to_the_ranks_and_makes_them_large(scene: At) -> None:
    at, size = scene(world=4, late=LATE), (120, 60)
    small = pressed(at, "6", size=size)
    assert "┏━ [6] ranks" in small and "[2] hooks" in small
    assert "▸▲   2" in pressed(at, "down", "j", size=size)
    large = pressed(at, "6", size=size)
    assert "waits for the slowest" in large and "[2] hooks" not in large
    assert "┏━ [1] points" in pressed(at, "escape", "tab", size=size)
    assert "ms of an iteration without the backward pass" in pressed(at, "question_mark", "end", size=size)
    assert next(key for key in KEYS if key.only == "ranks").about in pressed(at, "home", size=size)
    assert "┏━ [6] ranks" in pressed(scene(world=4), "6", size=(60, 15)), "where they have no room beside others"


def test_plain_lines_tell_of_the_ranks_only_what_matters(tmp_path: Path) -> None:
    run = make_ranks(tmp_path, 4, late=LATE)
    error = {**ERROR, "t": BEGAN + 21, "action": "ignore", "text": "as told", "traceback": "Trace\nback"}
    append(run, [{**MESSAGE, "t": BEGAN + 20, "text": "slow disk"}, error], rank=3)
    check_golden("monitor/plain-ranks.txt", told(run).replace(str(run.path), "RUN"))
    out = io.StringIO()
    assert plain.follow_json(run, out) == 0
    assert out.getvalue() == run.events.read_text(), "raw lines are those of rank 0"


def test_an_error_of_another_rank_is_printed_though_rank_0_says_nothing_more(tmp_path: Path) -> None:
    run = make_ranks(tmp_path, 2, upto=60)
    error = {**ERROR, "t": BEGAN + 21, "text": "as told", "traceback": "Trace\nback"}
    text = told(run, code=1, child_exit=in_turn(None, lambda: append(run, [error], rank=1), 1))
    assert "error      rank 1: ends the run: ValueError: as told" in text
    assert "error      | back" in text


def test_the_list_of_runs_counts_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_ranks(tmp_path, 4, upto=60)
    run.sign_process()
    runs(dir=tmp_path)
    assert "stalled (4 ranks)" in capsys.readouterr().out
    append(run, [{**ERROR, "t": BEGAN + 30, "text": "as told", "traceback": ""}], rank=2)
    run.sign(process_started=1.0)
    runs(dir=tmp_path)
    assert "✗ failed (4 ranks)" in capsys.readouterr().out
