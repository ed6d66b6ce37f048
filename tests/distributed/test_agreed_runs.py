"""What happens on one rank happens on all: real runs of two, in which one is asked for something and the other not."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.events.log import Tail
from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import load
from hookflow.runner.checkpoint.store import CheckpointStore, read
from hookflow.runner.process.launch import prepare
from tests.conftest import wait_for
from tests.distributed.several import Ranks, carry_out

HERE = Path(__file__).parent
CLOUDS = HERE / "clouds.toml"
REMEMBERS = 'hooks.remembers={use="./lonely.py:Remembers"}'
OFTEN = 'hooks.checkpoint.points=[{at="after_train_iter", every=2}, "after_val"]'
NewRun = Callable[..., RunDir]


@pytest.fixture
def new_run(tmp_path: Path) -> NewRun:
    """Make the directory of a run of clouds, in which every rank tells at the end of what it remembers."""

    def make(*overrides: str) -> RunDir:
        loaded = load(CLOUDS, (REMEMBERS, *overrides))
        run_dir = RunDir.create(tmp_path, "clouds")
        prepare(loaded, compile_pipeline(loaded), run_dir, HERE)
        return run_dir

    return make


def acts(name: str, call: str, rank: int, at: int, point: str, args: str = "") -> str:
    given = f'call="{call}", rank={rank}, at={at}, point="{point}", args=[{args}]'
    return f'hooks.{name}={{use="./lonely.py:Acts", args={{{given}}}}}'


def records(run_dir: RunDir, rank: int, kind: str) -> list[dict[str, Any]]:
    return [record for record in Tail(run_dir.events_of(rank)).read_all() if record["k"] == kind]


def last_words(run_dir: RunDir, rank: int) -> str:
    return str(
        [said["text"] for said in records(run_dir, rank, "message") if said["text"].startswith("iteration ")][-1]
    )


def ended(run_dir: RunDir, rank: int) -> tuple[int, str]:
    end = records(run_dir, rank, "end")[-1]
    return end["it"], end["status"]


def test_who_acts_on_one_rank_acts_on_all(new_run: NewRun) -> None:
    run_dir = new_run(
        acts("skips_batch", "skip_batch", 1, 1, "before_train_iter"),
        acts("skips_step", "skip_step", 1, 2, "after_backward"),
        acts("skips_later", "skip_step", 0, 2, "before_optimizer_step"),
        acts("ends_epoch", "stop_epoch", 0, 3, "after_train_iter", '"enough"'),
        acts("saves", "save_checkpoint", 1, 6, "after_train_iter", '"mine"'),
        acts("stops", "stop", 1, 8, "after_train_iter", '"enough of it"'),
    )
    assert carry_out(run_dir, 2) == [0, 0]
    assert ended(run_dir, 0) == ended(run_dir, 1) == (8, "finished"), "where it was asked for, together"
    words = [last_words(run_dir, rank).partition(", drawn")[0] for rank in (0, 1)]
    assert words[0] == words[1], "the weights have not drifted apart"
    (epoch,) = records(run_dir, 1, "epoch")
    assert epoch["it"] == 3
    (mine,) = [saved for saved in records(run_dir, 0, "checkpoint") if "mine" in saved["names"]]
    assert mine["it"] == 6
    assert CheckpointStore(run_dir.checkpoints).names()["mine"].name == "it00000006"


def test_a_stop_that_is_not_declared_on_one_rank_is_obeyed_on_all(new_run: NewRun) -> None:
    """It is heard one iteration later; two, where the exchange in flight told of a checkpoint that was just written."""
    stops = acts("stops", "stop", 1, 8, "after_train_iter", '"enough of it"')
    run_dir = new_run(stops.replace("use=", "writes=[], use="))
    assert carry_out(run_dir, 2) == [0, 0]
    assert ended(run_dir, 0) == ended(run_dir, 1) in [(9, "finished"), (10, "finished")]


def test_who_ends_an_epoch_that_is_over_does_not_end_the_next(new_run: NewRun) -> None:
    """A hook on rank 0 alone is heard by the others later: here when its epoch has closed."""
    ends = acts("ends_epoch", "stop_epoch", 0, 6, "after_train_iter", '"enough"')
    run_dir = new_run(f'{ends[:-1]}, ranks="zero"}}')
    assert carry_out(run_dir, 2) == [0, 0]
    for rank in (0, 1):
        assert [epoch["it"] for epoch in records(run_dir, rank, "epoch")] == [6, 12]


@pytest.mark.parametrize(
    ("number", "rank", "codes"),
    [
        pytest.param(signal.SIGTERM, 1, [143, 143], id="a signal for one"),
        pytest.param(signal.SIGKILL, 0, [-9, 1], id="one is killed"),
    ],
)
def test_a_run_that_is_broken_off_and_resumed_ends_like_one_that_was_not(
    new_run: NewRun, tmp_path: Path, number: int, rank: int, codes: list[int]
) -> None:
    strikes = (
        f'hooks.strikes={{use="./lonely.py:Strikes", args={{rank={rank}, at=2, number={int(number)}, mark="%s"}}}}'
    )
    (tmp_path / "was").touch()
    alone = new_run(OFTEN, strikes % (tmp_path / "was"))
    assert carry_out(alone, 2) == [0, 0]
    broken = new_run(OFTEN, strikes % (tmp_path / "mark"))
    assert sorted(carry_out(broken, 2)) == sorted(codes)
    if number == signal.SIGTERM:
        assert ended(broken, 0) == ended(broken, 1) == (4, "interrupted")
        assert CheckpointStore(broken.checkpoints).names()["last"].name == "it00000004"
    assert carry_out(broken, 2, resume=True) == [0, 0]
    for one in (0, 1):
        assert last_words(broken, one) == last_words(alone, one)
    assert last_words(alone, 0).partition("drawn")[2] != last_words(alone, 1).partition("drawn")[2]
    states = [read(CheckpointStore(run.checkpoints).names()["last"], torch.device("cpu")) for run in (alone, broken)]
    for name, tensor in states[0]["model"].items():
        assert torch.equal(tensor, states[1]["model"][name])


def test_commands_are_heard_by_the_first_and_obeyed_by_all(new_run: NewRun) -> None:
    run_dir = new_run("run.max_epochs=10000")

    def ask(command: str) -> dict[str, Any]:
        with run_dir.commands.open("a") as file:
            file.write(json.dumps({"k": "command", "id": command, "cmd": command, "by": "a test", "t": 0.0}) + "\n")
        wait_for(lambda: all(any(ack["cmd"] == command for ack in records(run_dir, rank, "ack")) for rank in (0, 1)))
        return next(ack for ack in records(run_dir, 0, "ack") if ack["cmd"] == command)

    with Ranks(run_dir, 2) as ranks:
        wait_for(lambda: bool(records(run_dir, 1, "epoch")))
        paused = ask("pause")
        saved = ask("checkpoint")
        assert saved["it"] == paused["it"]
        ask("resume")
        ask("stop")
        assert ranks.wait() == [0, 0]
    assert ended(run_dir, 0) == ended(run_dir, 1)
    assert ended(run_dir, 0)[1] == "stopped"
