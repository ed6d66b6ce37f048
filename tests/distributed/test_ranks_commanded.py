"""Commands over ranks: rank 0 hears them, and all execute them at the same iteration."""

from __future__ import annotations

import signal
from pathlib import Path

from hookflow.events.rundir import RunDir
from tests.conftest import reason
from tests.distributed.conftest import NewClouds
from tests.distributed.several import carry_out, messages_of, printed, records_of
from tests.runner.same import assert_same_end
from tests.runner.test_commands import commander

OFTEN = 'hooks.checkpoint.points=[{at="after_train_iter", every=4}, "after_val"]'
SCRIPT = (
    (1, "pause"),
    (1, "step"),
    (2, "set clip.max_norm=0.05"),
    (2, "set clip.max_norm=none"),
    (2, "resume"),
    (3, "off ema"),
    (4, "validate"),
    (5, "trace 2"),
    (7, "on ema"),
)


def answered(run_dir: RunDir, rank: int) -> list[tuple[int, str, bool]]:
    acks = records_of(run_dir, "ack", rank)
    return [(ack["it"], " ".join([ack["cmd"], *ack["args"]]), ack["ok"]) for ack in acks]


def test_all_ranks_execute_a_command_at_its_iteration_and_a_resume_follows(
    new_clouds: NewClouds, tmp_path: Path
) -> None:
    args = f'rank=1, at=8, number={int(signal.SIGTERM)}, mark="%s"'
    strikes = f'hooks.strikes={{use="./actors.py:strikes", points=["after_backward"], args={{{args}}}}}'
    (tmp_path / "was").touch()
    alone, broken = (
        new_clouds(OFTEN, commander(tmp_path / name, *SCRIPT), strikes % (tmp_path / mark))
        for name, mark in (("alone", "was"), ("broken", "mark"))
    )
    assert carry_out(alone, 2) == [0, 0], printed(alone, 0)
    expected = [(it, text, "none" not in text) for it, text in SCRIPT]
    assert sorted(answered(alone, 0)) == sorted(answered(alone, 1)) == sorted(expected)
    assert [trace["iters"] for trace in records_of(alone, "trace", 1)] == [2]
    assert carry_out(broken, 2) == [143, 143]
    assert carry_out(broken, 2, resume=True) == [0, 0], printed(broken, 0)
    assert_same_end(alone, broken)


def test_all_ranks_go_back_to_a_checkpoint_and_end_as_if_they_had_not(new_clouds: NewClouds, tmp_path: Path) -> None:
    (tmp_path / "alone.1").touch()
    script = (2, "set clip.max_norm=0.05"), (7, "rewind it00000004")
    alone, back = (
        new_clouds(OFTEN, "hooks.checkpoint.args.keep=9", commander(tmp_path / name, *script))
        for name in ("alone", "back")
    )
    assert carry_out(alone, 2) == [0, 0], printed(alone, 0)
    assert carry_out(back, 2) == [0, 0], printed(back, 0) + reason(back)
    for rank in (0, 1):
        assert [run["resumed_from"] for run in records_of(back, "run", rank)] == [None, "it00000004"]
        assert any("max_norm=0.05 stays set" in line for line in messages_of(back, rank, "clip.max_norm"))
    assert_same_end(alone, back)
