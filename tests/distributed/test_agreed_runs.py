"""What happens on one rank happens on all: stops, commands, and runs of which a rank is killed."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.events.rundir import RunDir, write_whole
from hookflow.runner.checkpoint.manifest import find_damage
from hookflow.runner.checkpoint.store import CheckpointStore
from tests.conftest import reason, records, wait_for
from tests.distributed.conftest import NewClouds, strikes
from tests.distributed.several import Ranks, carry_out, messages_of, printed, records_of
from tests.runner.same import assert_each_once, assert_same_end, final_state
from tests.support.kill_hooks import when_killed
from tests.support.limits import LIMIT
from tests.support.overrides import commander

REMEMBERS = 'hooks.remembers={use="./actors.py:Remembers"}'
OFTEN = 'hooks.checkpoint.points=[{at="after_train_iter", every=2}, "after_val"]'


CONTROL = 'writes=["control"], '


def acts(
    name: str, call: str, rank: int, at: int, point: str, args: str = "", more: str = CONTROL
) -> str:
    provided = f'call="{call}", rank={rank}, at={at}, args=[{args}]'
    return f'hooks.{name}={{use="./actors.py:acts", points=["{point}"], {more}args={{{provided}}}}}'


def ended(run_dir: RunDir) -> tuple[int, str]:
    """Return where and how the run has ended: the same on both ranks."""
    first, other = (
        (end["it"], end["status"])
        for end in (records_of(run_dir, "end", rank)[-1] for rank in (0, 1))
    )
    assert first == other
    return first


def test_who_acts_on_one_rank_acts_on_all(ranks_trained: NewClouds) -> None:
    run_dir = ranks_trained(
        REMEMBERS,
        acts("skips_batch", "skip_batch", 1, 1, "before_train_iter"),
        acts("skips_step", "skip_step", 1, 2, "after_backward"),
        acts("skips_later", "skip_step", 0, 2, "before_optimizer_step"),
        acts("ends_epoch", "stop_epoch", 0, 3, "after_train_iter", '"enough"'),
        acts("saves", "save_checkpoint", 1, 6, "after_train_iter", '"mine"'),
        acts("stops", "stop", 1, 8, "after_train_iter", '"enough of it"'),
    )
    assert ended(run_dir) == (8, "finished"), "where it was asked for, together"
    weights = [
        messages_of(run_dir, rank, "iteration ")[-1].partition(", drawn")[0] for rank in (0, 1)
    ]
    assert weights[0] == weights[1], "the weights have not drifted apart"
    (epoch,) = records_of(run_dir, "epoch", 1)
    assert epoch["it"] == 3
    (mine,) = [saved for saved in records_of(run_dir, "checkpoint") if "mine" in saved["names"]]
    assert mine["it"] == 6
    assert CheckpointStore(run_dir.checkpoints).names()["mine"].name == "it00000006"


def test_what_one_rank_does_undeclared_is_heard_later(ranks_trained: NewClouds) -> None:
    """A stop one iteration later, or two where the exchange in flight reports a checkpoint.

    The end of an epoch, asked for on rank 0 alone, when that epoch has closed: it does not end the
    next.
    """
    run_dir = ranks_trained(
        acts(
            "ends_epoch",
            "stop_epoch",
            0,
            6,
            "after_train_iter",
            '"enough"',
            CONTROL + 'ranks="zero", ',
        ),
        acts("stops", "stop", 1, 14, "after_train_iter", '"enough of it"', ""),
        "run.max_epochs=3",
    )
    assert ended(run_dir) in [(15, "finished"), (16, "finished")]
    for rank in (0, 1):
        assert [epoch["it"] for epoch in records_of(run_dir, "epoch", rank)] == [6, 12]


def test_a_run_that_one_rank_breaks_off_is_resumed_and_ends_like_one_that_was_not(
    new_clouds: NewClouds, ranks_trained: NewClouds, tmp_path: Path
) -> None:
    alone = ranks_trained(REMEMBERS, OFTEN, strikes(tmp_path / "mark", 10**6))
    broken = new_clouds(REMEMBERS, OFTEN, strikes(tmp_path / "mark", 2))
    assert carry_out(broken, 2) == [143, 143]
    assert ended(broken) == (4, "interrupted")
    assert CheckpointStore(broken.checkpoints).names()["last"].name == "it00000004"
    assert carry_out(broken, 2, resume=True) == [0, 0]
    last = [
        [messages_of(run, each, "iteration ")[-1] for each in (0, 1)] for run in (alone, broken)
    ]
    assert last[0] == last[1]
    assert last[0][0].partition("drawn")[2] != last[0][1].partition("drawn")[2]
    states: list[Any] = [final_state(run)["model"] for run in (alone, broken)]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


SHUFFLED = (
    'hooks.hasty={use="tests.support.process_hooks:Hasty"}',
    'model.use="./clouds.py:Normed"',
    "data.train.loader.drop_last=true",
    "run.sanity=false",  # which would fetch batches before the training begins
)


def hanging(split: str, mark: Path, at: int, *, always: bool = False) -> str:
    """Return an override for data of which a worker of rank 1 hangs."""
    args = f'{{examples=43, mark="{mark}", at={at}, always={str(always).lower()}}}'
    return (
        f'data.{split}={{use="./clouds.py:HangsOnce", args={args}, loader={{batch_size=8,'
        " workers=1}}"
    )


def marks_fetch_of(batch: int, mark: Path) -> str:
    """Return an override for a hook that leaves a mark when rank 1 is about to
    fetch a batch of the training data.
    """
    args = f'{{rank=1, at={batch}, mark="{mark}"}}'
    return f'hooks.marks={{use="./actors.py:marks_fetch", points=["before_fetch"], args={args}}}'


@pytest.mark.parametrize(
    ("split", "batch", "overrides"),
    [
        ("train", 3, ("run.accumulate=2",)),
        ("train", 2, ('distributed.strategy="fsdp"',)),
        ("train", 0, ('data.train.loader.sampler="./clouds.py:OwnOrder"',)),
        ("val", 0, ()),
    ],
    ids=[
        "accumulated",
        "sharded",
        "the first batch, in an order that a sampler remembers",
        "validation",
    ],
)
def test_a_batch_whose_worker_hangs_on_one_rank_is_fetched_by_another_and_the_ranks_save(
    new_clouds: NewClouds,
    ranks_trained: NewClouds,
    tmp_path: Path,
    split: str,
    batch: int,
    overrides: tuple[str, ...],
) -> None:
    mark, fetches = tmp_path / "hangs", tmp_path / "fetches"
    settings = (
        hanging(split, mark, 4 * batch + 1),
        marks_fetch_of(batch, fetches),
        *SHUFFLED,
        *overrides,
    )
    broken = new_clouds(*settings)
    with Ranks(broken, 2) as ranks:
        wait_for(lambda: mark.exists() and fetches.exists())
        for training in ranks.trainings:
            training.signal(signal.SIGTERM)
        assert ranks.wait() == [143, 143]
    it, status = ended(broken)
    assert status == "interrupted"
    assert CheckpointStore(broken.checkpoints).names()["last"].name.startswith(f"it{it:08d}")
    assert messages_of(
        broken, 1, "SIGTERM received, and no batch has come from the loader's workers"
    )
    assert carry_out(broken, 2, resume=True) == [0, 0], printed(broken, 0)
    assert_same_end(ranks_trained(*settings), broken)


def test_where_no_worker_gets_the_batch_that_is_said_and_a_second_ctrl_c_ends_the_ranks(
    new_clouds: NewClouds, tmp_path: Path
) -> None:
    broken = new_clouds(hanging("train", tmp_path / "hangs", 1, always=True), *SHUFFLED)
    with Ranks(broken, 2) as ranks:
        wait_for((tmp_path / "hangs").exists)
        for training in ranks.trainings:
            training.signal(signal.SIGINT)
        wait_for(lambda: messages_of(broken, 1, "no batch has come from the loader's workers"))
        for training in ranks.trainings:
            training.signal(signal.SIGINT)
        assert ranks.wait() == [130, 130]
    assert not records_of(broken, "checkpoint")


def test_ranks_that_wait_for_a_slow_worker_after_a_signal_finish_the_iteration_and_save(
    new_clouds: NewClouds, ranks_trained: NewClouds, tmp_path: Path
) -> None:
    """No other worker can fetch the batch where some data are no dataset with a loader."""
    mark = tmp_path / "waits"
    data = f'data.train={{use="./clouds.py:WaitsOnce", args={{examples=43, mark="{mark}"}}, '
    data += "loader={batch_size=8, workers=1}}"
    hasty = 'hooks.hasty={use="tests.support.process_hooks:Hasty"}'
    fetches = tmp_path / "fetches"
    no_sanity = "run.sanity=false"  # which would fetch that batch before the training begins
    settings = (
        data,
        'data.val={use="./clouds.py:own_batches"}',
        hasty,
        marks_fetch_of(2, fetches),
        no_sanity,
    )
    broken = new_clouds(*settings)
    with Ranks(broken, 2) as ranks:
        wait_for(lambda: mark.exists() and fetches.exists())
        for training in ranks.trainings:
            training.signal(signal.SIGTERM)
        wait_for(lambda: messages_of(broken, 1, "no batch has come from the loader's workers"))
        write_whole(mark, "go on")
        assert ranks.wait() == [143, 143]
    at, status = ended(broken)
    assert status == "interrupted" and at >= 3, "the third batch of rank 1 was the slow one"
    saved = CheckpointStore(broken.checkpoints).names()["last"].name
    assert saved.partition(".")[0] == f"it{at:08d}", (
        "the epoch may have been saved in the same iteration"
    )
    assert carry_out(broken, 2, resume=True) == [0, 0], printed(broken, 0)
    assert_same_end(ranks_trained(*settings), broken)


def test_commands_are_heard_by_the_first_and_obeyed_by_all(new_clouds: NewClouds) -> None:
    run_dir = new_clouds("run.max_epochs=10000")

    def ask(command: str) -> dict[str, Any]:
        with run_dir.commands.open("a") as file:
            file.write(
                json.dumps(
                    {"k": "command", "id": command, "cmd": command, "by": "a test", "t": 0.0}
                )
                + "\n"
            )

        def answers(rank: int) -> list[dict[str, Any]]:
            return [ack for ack in records_of(run_dir, "ack", rank) if ack["cmd"] == command]

        wait_for(lambda: all(answers(rank) for rank in (0, 1)))
        return answers(0)[0]

    with Ranks(run_dir, 2) as ranks:
        wait_for(lambda: bool(records_of(run_dir, "epoch", 1)))
        paused = ask("pause")
        assert ask("checkpoint")["it"] == paused["it"]
        ask("resume")
        ask("stop")
        assert ranks.wait() == [0, 0]
    assert ended(run_dir)[1] == "stopped"


BREAKS = 'hooks.breaks={use="./actors.py:Breaks", on_error="disable", points=["%s"], %s}'


@pytest.mark.parametrize(
    "overrides",
    [
        (BREAKS % ("after_train_iter", 'writes=["control"]'),),
        (BREAKS % ("after_train_iter", 'when="loss > 0"'),),
        (BREAKS % ("before_train_iter", 'writes=["batch", "control"]'), "run.accumulate=2"),
        (BREAKS % ("before_train_iter", 'writes=["batch"], when="loss > 0"'), "run.accumulate=2"),
        (BREAKS % ("forward", 'modules=["head"], writes=["checkpoint"]'),),
        (BREAKS % ("forward", 'modules=["head"], when="loss > 0"'),),
        (BREAKS % ("around_train_iter", 'writes=["control"]'),),
    ],
)
def test_a_hook_switched_off_on_one_rank_holds_up_none(
    ranks_trained: NewClouds, overrides: tuple[str, ...]
) -> None:
    run_dir = ranks_trained(f"distributed.timeout={LIMIT}", "run.max_epochs=1", *overrides)
    assert "is switched off" in run_dir.find_events_path(1).read_text()


EVERYTHING = [  # beside what the pipeline has: clipping, an average, accuracy
    'hooks.checkpoint.points=[{at="after_train_iter", every=3}, "after_val"]',
    'hooks.checkpoint.args={monitor={accuracy="max", loss="min"}, top=2, keep=2}',
    (
        'hooks.schedule={use="scheduler", args={chain=[{use="LinearLR", length="10%"},'
        ' {use="CosineAnnealingLR"}]}}'
    ),
    'hooks.seen={use="./clouds.py:far", points=["after_train_iter"], when="loss > 0.6", every=2}',
    'hooks.each={use="../support/kill_hooks.py:each", points=["after_train_iter"]}',
]
SETUPS = {
    "ddp": [
        "run.accumulate=2",
        'model.use="./clouds.py:Normed"',
        "data.train.loader.drop_last=true",
    ],
    "fsdp": ['distributed.strategy="fsdp"', "data.train.loader.workers=1"],
}
LONG = [pytest.param(setup, 2, 20, marks=pytest.mark.long) for setup in SETUPS]


@pytest.mark.parametrize(("setup", "seed", "kills"), [("ddp", 1, 2), *LONG])
def test_a_rank_killed_at_random(
    new_clouds: NewClouds,
    ranks_trained: NewClouds,
    tmp_path: Path,
    setup: str,
    seed: int,
    kills: int,
) -> None:
    early_stop = (
        f'{{use="early_stop", args={{monitor="loss", mode="min", patience={2 * kills},'
        " min_delta=0.1}}"
    )
    overrides = [
        *EVERYTHING,
        *SETUPS[setup],
        f"run.max_epochs={8 * kills}",
        f"hooks.early_stop={early_stop}",
    ]
    alone = ranks_trained(*overrides)
    assert "has not improved" in reason(alone), "early stopping, too, is put to the test"
    lots = tmp_path / "lots"
    lots.mkdir()
    args = f'{{folder="{lots}", seed={seed}, kills={kills}}}'
    killed = new_clouds(
        *overrides, f'hooks.killer={{use="../support/kill_hooks.py:RankKiller", args={args}}}'
    )
    for attempt in range(kills + 1):
        (lots / "attempt").write_text(str(attempt))
        codes = carry_out(killed, 2, resume=attempt > 0)
        assert (-9 in codes) == (attempt < kills), codes
        assert not [
            path for path in CheckpointStore(killed.checkpoints).all() if find_damage(path)
        ], "whole or absent"
    assert codes == [0, 0]
    assert_same_end(alone, killed)
    assert_each_once(killed, "each", until=int(str(records(killed, "end")[-1]["it"])))
    print(f"killed {kills} times: {dict(when_killed(lots))}")


def test_the_log_of_another_rank_is_written_before_the_checkpoint(new_clouds: NewClouds) -> None:
    """And what a killed process has left is cleared away by one of the ranks."""
    run_dir = new_clouds(
        'hooks.each={use="../support/kill_hooks.py:each", points=["after_train_iter"],'
        ' ranks="all"}',
        'hooks.killer.use="../support/kill_hooks.py:KillsRankOneAtTheCheckpoint"',
        'hooks.checkpoint.points=[{at="after_train_iter", every=3}]',
    )
    nobody = 4194305  # a pid more than any system has
    for number in range(1000):
        (run_dir.checkpoints / f".it{number:08d}.{nobody}").mkdir(parents=True)
    assert -9 in carry_out(run_dir, 2)
    logged = [
        record["v"]["each"] for record in records_of(run_dir, "scalars", 1) if "each" in record["v"]
    ]
    assert logged == [1, 2, 3]
    assert not [*run_dir.checkpoints.glob(f".it*.{nobody}")]


EVERY_FOURTH = 'hooks.checkpoint.points=[{at="after_train_iter", every=4}, "after_val"]'
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


def test_all_ranks_execute_a_command_and_a_resume_follows(
    new_clouds: NewClouds, tmp_path: Path
) -> None:
    alone, broken = (
        new_clouds(
            EVERY_FOURTH, commander(tmp_path / name, *SCRIPT), strikes(tmp_path / "mark", at)
        )
        for name, at in (("alone", 10**6), ("broken", 8))
    )
    assert carry_out(alone, 2) == [0, 0], printed(alone, 0)
    expected = [(it, text, "none" not in text) for it, text in SCRIPT]
    assert sorted(answered(alone, 0)) == sorted(answered(alone, 1)) == sorted(expected)
    assert [trace["iters"] for trace in records_of(alone, "trace", 1)] == [2]
    assert carry_out(broken, 2) == [143, 143]
    assert carry_out(broken, 2, resume=True) == [0, 0], printed(broken, 0)
    assert_same_end(alone, broken)


def test_all_ranks_go_back_to_a_checkpoint_and_end_as_if_they_had_not(
    new_clouds: NewClouds, tmp_path: Path
) -> None:
    (tmp_path / "alone.1").touch()
    script = (2, "set clip.max_norm=0.05"), (7, "rewind it00000004")
    alone, back = (
        new_clouds(
            EVERY_FOURTH, "hooks.checkpoint.args.keep=9", commander(tmp_path / name, *script)
        )
        for name in ("alone", "back")
    )
    assert carry_out(alone, 2) == [0, 0], printed(alone, 0)
    assert carry_out(back, 2) == [0, 0], printed(back, 0) + reason(back)
    for rank in (0, 1):
        assert [run["resumed_from"] for run in records_of(back, "run", rank)] == [
            None,
            "it00000004",
        ]
        assert any(
            "max_norm=0.05 stays set" in line for line in messages_of(back, rank, "clip.max_norm")
        )
    assert_same_end(alone, back)
