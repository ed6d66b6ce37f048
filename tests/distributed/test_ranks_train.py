"""Several ranks train as one would at the same global batch: by real processes, over gloo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.events.log import Tail
from hookflow.events.rundir import RunDir
from hookflow.runner.checkpoint.store import CheckpointStore
from tests.conftest import records
from tests.distributed.clouds import Plain
from tests.distributed.conftest import NewClouds
from tests.distributed.several import carry_out, printed
from tests.runner.same import assert_same, curve, final_state

HERE = Path(__file__).parent
FSDP = 'distributed.strategy="fsdp"'
UNITS = 'distributed.units=["body", "head"]'

TrainHere = Callable[..., int]


def assert_alike(one: RunDir, other: RunDir) -> None:
    """Compare what two runs have logged, measured and saved last, up to the rounding of sums in another order."""
    first, second = curve(one), curve(other)
    assert first.keys() == second.keys()
    assert second == pytest.approx(first, rel=1e-4, abs=1e-5)
    for part in ("model", "model_ema"):
        weights, others = (final_state(run_dir)[part] for run_dir in (one, other))
        torch.testing.assert_close(weights, others, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("world", "overrides"),
    [
        pytest.param(2, [], id="ddp"),
        pytest.param(2, [FSDP, UNITS], id="fsdp"),
        pytest.param(4, ["run.max_epochs=1"], id="four"),
        pytest.param(2, ["run.accumulate=4", "data.train.loader.workers=1"], id="ddp, accumulated, by workers"),
        pytest.param(
            2, ["run.accumulate=4", "data.train.loader.on_device=true", FSDP], id="fsdp, accumulated, on device"
        ),
    ],
)
def test_several_train_as_one(new_clouds: NewClouds, train_here: TrainHere, world: int, overrides: list[str]) -> None:
    """Also where the shares of the last batch are not even, and of four ranks one would have none of it."""
    alone, together = new_clouds(*overrides), new_clouds(*overrides)
    assert train_here(alone) == 0
    assert carry_out(together, world) == [0] * world, printed(together, 0)
    if world == 2:
        assert_alike(alone, together)
    else:  # three examples are left over: alone they are a batch, and for four the last but one has them, too
        curves = [
            {key: value for key, value in curve(run).items() if int(str(key[0])) < 4} for run in (alone, together)
        ]
        assert curves[1] == pytest.approx(curves[0], rel=1e-4, abs=1e-5)
        assert [records(run, "end")[0]["it"] for run in (alone, together)] == [6, 5]


@pytest.mark.parametrize(
    ("strategy", "worlds"), [("fsdp", (2, 1)), ("fsdp", (1, 2)), ("ddp", (2, 1)), ("ddp", (1, 2))], ids=str
)
def test_a_checkpoint_goes_on_with_another_number_of_ranks(
    new_clouds: NewClouds, train_here: TrainHere, tmp_path: Path, strategy: str, worlds: tuple[int, int]
) -> None:
    stops = f'hooks.stops={{use="./clouds.py:Stops", args={{at=8, mark="{tmp_path / "mark"}"}}}}'
    left_alone, changed = new_clouds(), new_clouds(stops, f'distributed.strategy="{strategy}"')
    assert train_here(left_alone) == 0
    for number, world in enumerate(worlds):
        if world == 1:
            assert train_here(changed, resume=number > 0) == 0
        else:
            assert carry_out(changed, world, resume=number > 0) == [0] * world, printed(changed, 0)
    assert records(changed, "end")[0]["it"] == 8
    said = f"saved by {worlds[0]} ranks, resumed on {worlds[1]}: not bit-identical"
    assert [record["text"] for record in records(changed, "message")].count(said) == 1
    assert records(changed, "run")[1]["resumed_from"] == "it00000008", "the last one, in the middle of an epoch"
    assert_alike(left_alone, changed)


def test_a_checkpoint_of_shares_is_read_by_plain_pytorch(new_clouds: NewClouds) -> None:
    run_dir = new_clouds(FSDP, UNITS, "run.max_epochs=1")
    assert carry_out(run_dir, 2) == [0, 0], printed(run_dir, 0)
    folder = CheckpointStore(run_dir.checkpoints).names()["last"]
    model = Plain()
    optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
    for name in ("model.pt", "model_ema.pt"):
        model.load_state_dict(torch.load(folder / name, weights_only=True))
    optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))
    (record,) = records(run_dir, "run")
    assert (record["model"], record["params"]) == ("Plain", sum(p.numel() for p in model.parameters()))


def test_shares_are_resumed_to_the_bit(new_clouds: NewClouds, tmp_path: Path) -> None:
    """In the middle of an epoch, with batch norm, dropout, and gradients that are looked at before each step."""
    stops = 'hooks.stops={use="./clouds.py:Stops", args={at=4, mark="%s"}}'
    often = 'hooks.checkpoint.points=[{at="after_train_iter", every=1}]', "data.train.args.examples=44"
    overrides = (*often, FSDP, UNITS, 'model.use="./clouds.py:Normed"', 'run.on_nan="skip"')
    (tmp_path / "was").touch()
    left_alone, stopped = (new_clouds(*overrides, stops % (tmp_path / mark)) for mark in ("was", "mark"))
    assert carry_out(left_alone, 2) == carry_out(stopped, 2) == [0, 0], printed(stopped, 0)
    assert records(stopped, "end")[0]["it"] == 4
    assert carry_out(stopped, 2, resume=True) == [0, 0], printed(stopped, 0)
    assert curve(stopped) == curve(left_alone)
    states = [final_state(run_dir) for run_dir in (left_alone, stopped)]
    for part in ("model", "model_ema", "optimizer", "random", "ranks"):
        assert_same(states[0][part], states[1][part], part)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_do_not_drift_apart(new_clouds: NewClouds, strategy: str) -> None:
    """Whatever each draws, and whatever a model keeps beside its parameters."""
    tells = 'hooks.tells={use="./clouds.py:Tells"}'
    normed = 'model.use="./clouds.py:Normed"', "data.train.args.examples=44"
    run_dir = new_clouds(*normed, f'distributed.strategy="{strategy}"', tells)
    assert carry_out(run_dir, 2) == [0, 0], printed(run_dir, 0)
    told = [[record["text"] for record in records_of(run_dir, rank, "message")] for rank in (0, 1)]
    sizes = [(4, 8)] * 5 + [(2, 4)]
    for rank in (0, 1):
        assert (
            told[rank][:-2] == [f"batch {here} of {whole}, 3.0, tensor([0.5000, 0.5000])" for here, whole in sizes] * 2
        )
    assert told[0][-1] != told[1][-1], "each draws for itself"
    if strategy == "ddp":
        assert told[0][-2] == told[1][-2], "and all have the same weights"
    assert [r["v"] for r in records_of(run_dir, 0, "metrics")] == [r["v"] for r in records_of(run_dir, 1, "metrics")]


def test_a_task_that_steps_itself_trains_alike(new_clouds: NewClouds, train_here: TrainHere) -> None:
    both = 'use="./clouds.py:Plain"'
    step = 'use="torch.optim:SGD", args={lr=0.1}'
    overrides = [
        f"model={{first={{{both}}}, second={{{both}}}}}",
        f"optimizer={{first={{{step}}}, second={{{step}}}}}",
        'task.use="./clouds.py:Pair"',
        "hooks.accuracy.enabled=false",
        'hooks.checkpoint.args={monitor="loss"}',
    ]
    alone, together = new_clouds(*overrides), new_clouds(*overrides)
    assert train_here(alone) == 0
    assert carry_out(together, 2) == [0, 0], printed(together, 0)
    first, second = curve(alone), curve(together)
    assert second == pytest.approx(first, rel=1e-4, abs=1e-5)
    refused = new_clouds(*overrides, FSDP)
    assert carry_out(refused, 2) == [2, 2]
    assert "FSDP cannot train with a task that steps its optimizers itself" in str(ending(refused))


def test_a_condition_holds_on_all_ranks_or_on_none(new_clouds: NewClouds) -> None:
    """Though of each rank's own loss it would hold elsewhere."""
    run_dir = new_clouds(
        'hooks.far={use="./clouds.py:far", points=["after_train_iter"], when="loss > 0.9 and rank >= 0"}',
        'hooks.near={use="./clouds.py:far", points=["after_train_iter"], when="loss > 0.9", ranks="zero"}',
    )
    assert carry_out(run_dir, 2) == [0, 0], printed(run_dir, 0)
    losses = {int(str(k[0])): value for k, value in curve(run_dir).items() if k[1:] == (None, "loss")}
    expected = [f"far at {it}" for it, loss in losses.items() if loss > 0.9]
    assert [record["text"] for record in records_of(run_dir, 1, "message")] == expected


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ['hooks.sums={use="./clouds.py:sums", points=["after_train_iter"], ranks="zero"}'],
            'the hook "sums" fires on rank 0 alone, and run.sum needs all ranks',
        ),
        (['distributed.backend="nccl"'], "requires CUDA, and this run computes on cpu"),
        ([FSDP, 'distributed.units=["bodi"]'], 'no module of the network matches "bodi"'),
        (
            [FSDP, 'model.use="./clouds.py:Across"'],
            'cannot shard "body.0.weight": it uses the channels_last memory format',
        ),
        (["data.val.loader.batch_size=1"], "batches of 1 cannot be sharded across 2 ranks"),
        (['data.train={use="../loaders.py:a_list"}'], "which is not sharded across 2 ranks"),
        (['data.train={use="./clouds.py:uneven"}'], "different numbers of batches in an epoch: 3, 4"),
        (
            ['task={use="./clouds.py:inside"}', "hooks.accuracy.enabled=false", "hooks.checkpoint.args={}"],
            "the task calls a submodule of Plain, so gradients are not synchronised",
        ),
    ],
    ids=["a sum on rank 0 alone", "nccl", "units", "channels", "batch size", "batches", "uneven", "past the network"],
)
def test_what_cannot_be_is_told(new_clouds: NewClouds, overrides: list[str], said: str) -> None:
    run_dir = new_clouds(*overrides)
    assert carry_out(run_dir, 2) == [2, 2], printed(run_dir, 0)
    assert said in str(ending(run_dir))


def test_a_parameter_without_a_gradient_is_told_of(new_clouds: NewClouds) -> None:
    run_dir = new_clouds('model.use="./clouds.py:Unused"')
    assert carry_out(run_dir, 2) == [1, 1]
    assert "freeze those that no loss reaches" in str(ending(run_dir))
    assert "find_unused_parameters" in printed(run_dir, 0) + printed(run_dir, 1), "PyTorch's own words are not lost"
    shares = new_clouds('model.use="./clouds.py:Unused"', FSDP, "run.max_epochs=1")
    assert carry_out(shares, 2) == [0, 0], printed(shares, 0)


def records_of(run_dir: RunDir, rank: int, kind: str) -> list[dict[str, Any]]:
    return [record for record in Tail(run_dir.events_of(rank)).read_all() if record["k"] == kind]


def ending(run_dir: RunDir) -> object:
    return records(run_dir, "end")[-1]["reason"]
