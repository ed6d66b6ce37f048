"""Several ranks train as one would at the same global batch: by real processes, over gloo."""

import signal
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import hookflow
from hookflow.cli.resume import PipelineChanges
from hookflow.cli.run import make_fork
from hookflow.errors import UserError, Where
from hookflow.pipeline.schema import DistributedSection
from hookflow.runner.checkpoint.manifest import find_damage
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.distributed import fsdp
from hookflow.zoo.tasks import Classification
from tests.conftest import TESTS, NewRun, Train, messages, reason, records
from tests.distributed.clouds import Normed
from tests.distributed.conftest import NewClouds, TrainBoth, assert_alike, strikes
from tests.distributed.several import carry_out, messages_of, printed, records_of
from tests.runner.same import assert_same, curve, final_state
from tests.support.numeric_faults import Upset
from tests.support.overrides import BY_HAND

FSDP = 'distributed.strategy="fsdp"'
REPLICAS = 'distributed={strategy="fsdp", replicas=2}'
UNITS = 'distributed.units=["body", "head"]'


class UpsetRank(Upset):
    def step(self, run: Any, batch: Any) -> dict[str, torch.Tensor]:
        return (
            super().step(run, batch)
            if run.rank == run.world - 1
            else Classification.step(self, run, batch)
        )


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param([], id="ddp"),
        pytest.param(
            ["distributed.static_graph=true", "distributed.gradient_as_bucket_view=true"],
            id="ddp, static",
        ),
        pytest.param(['hooks.sam={use="sam"}'], id="ddp, sharpness-aware"),
        pytest.param([FSDP, UNITS], id="fsdp"),
        pytest.param(
            ["run.accumulate=4", "data.train.loader.workers=1"], id="ddp, accumulated, by workers"
        ),
        pytest.param(
            ["run.accumulate=4", "data.train.loader.on_device=true", FSDP],
            id="fsdp, accumulated, on device",
        ),
    ],
)
def test_several_train_as_one(train_both: TrainBoth, overrides: list[str]) -> None:
    """Also where the shares of the last batch are not even."""
    assert_alike(*train_both(*overrides), "model", "model_ema")


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_student_of_a_frozen_teacher_trains_as_on_one(
    train_both: TrainBoth, strategy: str
) -> None:
    """Shards are saved whole, with those of the teacher."""
    networks = (
        '{teacher={use="./clouds.py:Plain", args={width=12}, frozen=true},'
        ' student={use="./clouds.py:Plain"}}'
    )
    overrides = [
        f"model={networks}",
        'task.use="./clouds.py:distilled"',
        f'distributed.strategy="{strategy}"',
    ]
    alone, together = train_both(*overrides)
    assert_alike(alone, together, "model_student")
    for run_dir, has_teacher in ((alone, False), (together, strategy == "fsdp")):
        teacher: Any = final_state(run_dir)["model_teacher"]
        assert ("head.weight" in teacher) is has_teacher


def test_samples_of_all_ranks_are_counted(train_both: TrainBoth) -> None:
    """Also where the shares of the last batch are not even: both count 43 examples in an epoch."""
    alone, together = train_both(
        'hooks.log.every="20 samples"', "hooks.log.points=['after_train_iter']"
    )
    assert_alike(alone, together, "model")
    for run_dir in (alone, together):
        position: Any = final_state(run_dir)["position"]
        assert position["samples"] == 86


def test_mixed_sets_train_as_one_though_they_are_ended_and_resumed(
    new_clouds: NewClouds, train_here: Train, tmp_path: Path
) -> None:
    """In an order that is drawn, with a worker, and shares of the last batch that are not even."""
    a = '{use="./clouds.py:Clouds", args={examples=43}, loader={batch_size=8, workers=1}}'
    b = '{use="./clouds.py:Clouds", args={examples=21, seed=2}, loader={batch_size=8}}'
    mixed = [f"data.train={{a={a}, b={b}}}", "data.mix={a=2, b=1}", 'data.mix_order="random"']
    alone = new_clouds(*mixed)
    assert train_here(alone) == 0
    together = new_clouds(*mixed, strikes(tmp_path / "mark", at=5))
    assert carry_out(together, 2) == [143, 143], printed(together, 0)
    assert carry_out(together, 2, resume=True) == [0, 0], printed(together, 0)
    assert any(name.startswith("b/") for _, _, name in curve(together))
    assert_alike(alone, together, "model", "model_ema")


def test_ranks_with_whole_batches_train_as_one_with_their_union(
    new_clouds: NewClouds, train_here: Train, ranks_trained: NewClouds, tmp_path: Path
) -> None:
    """Of any sizes; the last batch has too few for all, and is sharded."""
    alone, together = (
        [
            f'data.{split}={{use="./clouds.py:Clouds", args={{examples={count}}},'
            f' loader={{batch_sampler={{use="{TESTS}/support/data_loaders.py:Buckets",'
            f" args={{merged={merged}}}}}}}}}"
            for split, count in (("train", 44), ("val", 20))
        ]
        for merged in (2, 1)
    )
    stops = f'hooks.stops={{use="./clouds.py:Stops", args={{at=4, mark="{tmp_path / "mark"}"}}}}'
    one, both = new_clouds(*alone), ranks_trained(*together, stops)
    assert train_here(one) == 0
    assert train_here(both, resume=True) == 2
    text = "a batch_sampler shares out whole batches, and those of 2 ranks are others"
    assert text in records(both, "refused")[-1]["reason"]
    child = make_fork(
        str(both.checkpoints / "last"),
        None,
        PipelineChanges(("hooks.stops.enabled=false", "run.max_epochs=1")),
    )
    assert train_here(child) == 0, reason(child)
    text = "an epoch has 11 iterations: iteration 4 of the parent is 8 here"
    assert any(text in message for message in messages(child, "warn")), (
        "four pairs of batches are eight"
    )
    assert records(child, "end")[-1]["it"] == 11
    assert carry_out(both, 2, resume=True) == [0, 0], printed(both, 0)
    assert_alike(one, both, "model", "model_ema")


@pytest.mark.parametrize(
    ("strategy", "worlds"),
    [
        ("fsdp", (1, 2, 4, 1)),
        ("replicas", (4, 2, 1)),
        ("split", (4, 2, 1)),
        ("ddp", (1, 2, 1)),
    ],
    ids=str,
)
def test_a_checkpoint_goes_on_with_another_number_of_ranks(
    new_clouds: NewClouds,
    train_here: Train,
    split_layers: list[str],
    tmp_path: Path,
    strategy: str,
    worlds: tuple[int, ...],
) -> None:
    """Saved in the middle of an epoch."""
    ends = (2, 4, 8)[-len(worlds) + 1 :]
    args = {at: f'args={{at={at}, mark="{tmp_path / f"mark{at}"}"}}' for at in ends}
    stops = [f'hooks.stops{at}={{use="./clouds.py:Stops", {args[at]}}}' for at in ends]
    data = "data.train.args.examples=44"  # of which four ranks make as many batches as one
    model, split = split_layers if strategy == "split" else ['model.use="./clouds.py:Plain"', ""]
    distributed = {"replicas": REPLICAS, "split": split}.get(
        strategy, f'distributed.strategy="{strategy}"'
    )
    left_alone, changed = new_clouds(data, model), new_clouds(data, model, *stops, distributed)
    assert train_here(left_alone) == 0
    for number, world in enumerate(worlds):
        if world == 1:
            assert train_here(changed, resume=number > 0) == 0
        else:
            assert carry_out(changed, world, resume=number > 0) == [0] * world, printed(changed, 0)
    for before, after in pairwise(worlds):
        text = f"saved by {before} ranks, resumed on {after}: not bit-identical"
        assert len(messages_of(changed, 0, text)) == 1
    resumed = [None, *(f"it{at:08}" for at in ends)]
    assert [record["resumed_from"] for record in records(changed, "run")] == resumed
    assert_alike(left_alone, changed, "model", "model_ema")
    replicas = "FSDP keeps 2 replicas of the model, each sharded over {}"
    seen = [
        text for text in ("2 ranks", "1 rank") if messages_of(changed, 0, replicas.format(text))
    ]
    assert seen == ["2 ranks", "1 rank"] * (strategy == "replicas")


def test_replicas_divide_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    strategy = fsdp.FSDPStrategy(DistributedSection(strategy="fsdp", replicas=3), "fp32", print)
    with pytest.raises(UserError, match="4 ranks cannot hold 3 replicas of the model") as refused:
        strategy.parallelize(Normed(), [], torch.device("cpu"), Where)
    assert refused.value.problems[0].hint == "choose a divisor of 4"
    with pytest.raises(ValueError, match='replicas are for strategy = "fsdp"'):
        DistributedSection(replicas=2)


@pytest.mark.parametrize("computes", [False, True])
def test_weights_are_built_once_and_sharded_to_the_bit(
    train_both: TrainBoth, computes: bool
) -> None:
    """The other ranks build them on the meta device, unless the model computes with them."""
    drawn = 'data.train={use="./clouds.py:Drawn", args={examples=40}, loader={batch_size=8}}'
    model = f'model={{use="./clouds.py:Tied", args={{computes={str(computes).lower()}}}}}'
    built = 'hooks.built={use="./clouds.py:built", points=["before_train"]}'
    alone, together = train_both(model, drawn, built, FSDP, "optimizer.args.lr=0.0")
    assert_alike(alone, together)
    assert_same(final_state(alone)["model"], final_state(together)["model"])
    devices = ["cpu", "cpu" if computes else "meta"]
    assert [messages_of(together, rank, "built") for rank in (0, 1)] == [
        [f"built on {device}"] for device in devices
    ]
    assert [
        len(messages_of(together, rank, "the whole model is built on this rank")) for rank in (0, 1)
    ] == [
        0,
        computes,
    ]


def test_shards_are_resumed_to_the_bit_and_read_without_ranks(
    new_clouds: NewClouds, tmp_path: Path
) -> None:
    """In the middle of an epoch, with batch norm, dropout,
    and gradients that are looked at before each step.
    """
    stops = 'hooks.stops={use="./clouds.py:Stops", args={at=4, mark="%s"}}'
    often = (
        'hooks.checkpoint.points=[{at="after_train_iter", every=1}]',
        "data.train.args.examples=44",
    )
    normed = 'model.use="./clouds.py:Normed"'
    overrides = (*often, FSDP, UNITS, normed, 'run.on_nan="skip"')
    (tmp_path / "was").touch()
    left_alone, stopped = (
        new_clouds(*overrides, stops % (tmp_path / mark)) for mark in ("was", "mark")
    )
    assert carry_out(left_alone, 2) == carry_out(stopped, 2) == [0, 0], printed(stopped, 0)
    assert records(stopped, "end")[0]["it"] == 4
    assert carry_out(stopped, 2, resume=True) == [0, 0], printed(stopped, 0)
    assert curve(stopped) == curve(left_alone)
    states: list[Any] = [final_state(run_dir) for run_dir in (left_alone, stopped)]
    for part in ("model", "model_ema", "optimizer", "random", "ranks"):
        assert_same(states[0][part], states[1][part], part)
    record, _ = records(stopped, "run")
    assert (record["model"], record["params"]) == (
        "Normed",
        sum(p.numel() for p in Normed().parameters()),
    )

    folder = CheckpointStore(stopped.checkpoints).names()["last"]
    assert {path.name for path in folder.iterdir()} >= {".metadata", "__0_0.distcp", "__1_0.distcp"}
    assert not [*folder.glob("model*")], "nobody has gathered them"
    dcp_to_torch_save(folder, tmp_path / "whole.pt")
    assert_same(torch.load(tmp_path / "whole.pt")["model"], dict(states[1]["model"]))
    model, short = Normed(), ("run.max_iters=1", "run.max_epochs=null", "optimizer.args.lr=0.0")
    begun = new_clouds(normed, FSDP, f'model.weights="{folder}"', *short)
    hookflow.load_run(stopped.path).checkpoints[0].load_into(model, "ema")
    assert_same(dict(model.state_dict()), dict(states[1]["model_ema"]))
    assert carry_out(begun, 2) == [0, 0], "another run begins with them"
    for name in dict(model.named_parameters()):
        assert_same(final_state(begun)["model"][name], states[1]["model"][name])  # type: ignore[index]
    with (folder / "__1_0.distcp").open("r+b") as file:
        file.seek(1000)
        file.write(b"wrong")
    assert find_damage(folder) == "__1_0.distcp is not what was written"


def test_a_rank_fails_while_it_writes_shards(new_clouds: NewClouds, tmp_path: Path) -> None:
    """No half of a checkpoint is left, and the run is resumed from the one before,
    whatever it was that failed.
    """
    often = 'hooks.checkpoint.points=[{at="after_train_iter", every=2}]'
    args = 'args={at=4, number=%d, mark="%s"}'
    fails = (
        'hooks.fails={use="./actors.py:fails_to_write", points=["before_save_checkpoint"],'
        f" {args}}}"
    )
    states = []
    # It is killed, or its disk is full.
    for number, codes in ((signal.SIGKILL, [1, -9]), (0, [1, 1])):
        broken = new_clouds(FSDP, often, fails % (number, tmp_path / f"mark{number}"))
        assert carry_out(broken, 2) == codes, printed(broken, 0)
        assert ("No space left on device" in reason(broken)) == (number == 0)
        assert carry_out(broken, 2, resume=True) == [0, 0], printed(broken, 0)
        assert records(broken, "run")[1]["resumed_from"] == "it00000002"
        assert not [*broken.checkpoints.glob(".it*")]
        states.append(final_state(broken)["model"])
    assert_same(*states)


def test_shards_that_are_not_finite_are_no_checkpoint_to_resume_from(
    ranks_trained: NewClouds,
) -> None:
    run_dir = ranks_trained(
        FSDP, 'hooks.poisons={use="./actors.py:poisons", points=["before_save_checkpoint"]}'
    )
    (kept,) = run_dir.checkpoints.glob("nonfinite-it*")
    assert find_damage(kept) == ""
    assert "it00000012" not in {path.name for path in CheckpointStore(run_dir.checkpoints).all()}


def test_the_repeated_block_is_gathered_by_itself_in_the_precision_of_the_run(
    train_both: TrainBoth,
) -> None:
    """Its batch norms keep their precision."""
    computes = (
        'hooks.computes={use="./clouds.py:computes", points=["forward"], modules=["body.4.*"]}'
    )
    deep = 'model.use="./clouds.py:Deep"', "data.train.args.examples=44"
    _, together = train_both(*deep, FSDP, 'run.precision="bf16"', computes)
    for rank in (0, 1):
        picked = 'FSDP gathers 2 modules one by one: distributed.units = ["type:Block"]'
        assert messages_of(together, rank, "FSDP") == [picked]
        types = [
            "body.4.norm: torch.float32, torch.bfloat16",
            "body.4.layer: torch.bfloat16, torch.bfloat16",
        ]
        assert messages_of(together, rank, "body.4")[:2] == types
    assert {tensor.dtype for tensor in final_state(together)["model"].values()} == {
        torch.float32,
        torch.int64,
    }  # type: ignore[attr-defined]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_do_not_drift_apart(ranks_trained: NewClouds, strategy: str) -> None:
    """Whatever each draws, whatever a model keeps beside its parameters,
    and whichever loss a condition looks at.
    """
    far = 'use="./clouds.py:far", points=["after_train_iter"], when="loss > 0.9'
    tells = 'hooks.tells={use="./clouds.py:Tells"}'
    normed = 'model.use="./clouds.py:Normed"', "data.train.args.examples=44"
    run_dir = ranks_trained(
        *normed,
        f'distributed.strategy="{strategy}"',
        tells,
        f'hooks.far={{{far} and rank >= 0"}}',
        f'hooks.near={{{far}", ranks="zero"}}',
    )
    batches = [
        f"batch {here} of {2 * here}, 3.0, tensor([0.5000, 0.5000])" for here in (4, 4, 4, 4, 4, 2)
    ] * 2
    assert [messages_of(run_dir, rank, "batch") for rank in (0, 1)] == [batches, batches]
    drawn, weights = (
        [messages_of(run_dir, rank, word) for rank in (0, 1)] for word in ("drawn", "weights")
    )
    assert drawn[0] != drawn[1], "each draws for itself"
    if strategy == "ddp":
        assert weights[0] == weights[1], "and all have the same weights"
    assert [r["v"] for r in records_of(run_dir, "metrics")] == [
        r["v"] for r in records_of(run_dir, "metrics", 1)
    ]
    losses = {
        int(str(key[0])): value
        for key, value in curve(run_dir).items()
        if key[1:] == (None, "loss")
    }
    expected = [f"far at {it}" for it, loss in losses.items() if loss > 0.9]
    assert messages_of(run_dir, 1, "far") == expected
    assert 0 < len(expected) < len(losses)


def test_a_task_that_steps_itself_trains_alike(
    ranks_trained: NewClouds, train_both: TrainBoth
) -> None:
    both = 'use="./clouds.py:Plain"'
    step = 'use="torch.optim:SGD", args={lr=0.1}'
    overrides = [
        f"model={{first={{{both}}}, second={{{both}}}}}",
        f"optimizer={{first={{{step}}}, second={{{step}}}}}",
        'task.use="./clouds.py:Pair"',
        "hooks.accuracy.enabled=false",
        'hooks.checkpoint.args={monitor="loss"}',
    ]
    assert_alike(*train_both(*overrides))
    refused = ranks_trained(*overrides, FSDP, codes=[2, 2])
    assert "FSDP cannot train with a task " in reason(refused)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ['hooks.sums={use="./clouds.py:sums", points=["after_train_iter"], ranks="zero"}'],
            'the hook "sums" fires on rank 0 alone, and run.sum needs all ranks',
        ),
        (
            [
                'distributed={strategy="fsdp", parallelize="./clouds.py:split_nothing",'
                " tensor_parallel=2}"
            ],
            "distributed.parallelize: Parallelize plan key 'upp' could not be resolved",
        ),
        ([FSDP, 'distributed.units=["bodi"]'], 'no module of the network matches "bodi"'),
        (
            [FSDP, 'model.use="./clouds.py:Across"'],
            'cannot shard "body.0.weight": it uses the channels_last memory',
        ),
        (
            ['data.train={use="../support/data_loaders.py:a_list"}'],
            "which is not sharded across 2 ranks",
        ),
        (
            ['data.train={use="./clouds.py:uneven"}'],
            "different numbers of batches in an epoch: 3, 4",
        ),
        (
            [
                'task={use="./clouds.py:inside"}',
                "hooks.accuracy.enabled=false",
                "hooks.checkpoint.args={}",
            ],
            "the task calls a submodule of Plain, so gradients are not synchronised",
        ),
        (["distributed.sync_batch_norm=true"], "SyncBatchNorm requires a GPU"),
        (
            [
                "distributed.static_graph=true",
                'task.use="tests.support.runner_snapshots:StepsEveryThird"',
            ],
            "static_graph has no effect with a task that steps its optimizers itself",
        ),
        (['model.weights="nowhere.pt"'], "there is no file"),
        (
            ['hooks.surgeon.args={point="before_train_iter", at=2}'],
            "DDP takes no parameters after the first forward",
        ),
        ([FSDP, "hooks.surgeon.args={}"], "FSDP takes no parameters after the start"),
        (
            [FSDP, 'hooks.probes={use="./actors.py:Gradients"}'],
            "parameter_grad never fires with FSDP, whose gradients",
        ),
        (
            [
                FSDP,
                (
                    'hooks.scales={use="./touching.py:Scales", points=["forward_pre"],'
                    ' modules=["head"]}'
                ),
            ],
            'hook "scales" writes model at forward_pre: FSDP has gathered the weights there',
        ),
        (
            [
                FSDP,
                'task.use="./touching.py:penalised"',
                "hooks.accuracy.enabled=false",
                "hooks.checkpoint.args={}",
            ],
            'the loss is computed from the shards of "head.bias"',
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_told(
    ranks_trained: NewClouds, overrides: list[str], expected: str
) -> None:
    surgeon = 'hooks.surgeon.use="./../support/model_changes.py:Surgeon"', "hooks.ema.enabled=false"
    run_dir = ranks_trained(
        *(surgeon if "surgeon" in str(overrides) else ()), *overrides, codes=[2, 2]
    )
    assert expected in reason(run_dir)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("by", ["run.sum", "all_reduce"])
def test_a_mistake_on_one_rank_is_the_end_although_its_hooks_talk_to_the_others(
    ranks_trained: NewClouds, by: str, strategy: str
) -> None:
    fails = f'hooks.fails={{use="./actors.py:FailsAlone", args={{by="{by}"}}}}'
    run_dir = ranks_trained(
        fails, f'distributed.strategy="{strategy}"', "run.max_epochs=1", codes=[2, 2]
    )
    assert "rank 0 makes a mistake" in reason(run_dir)


def test_a_parameter_without_a_gradient_is_told_of(ranks_trained: NewClouds) -> None:
    run_dir = ranks_trained('model.use="./clouds.py:Unused"', codes=[1, 1])
    assert "find_unused_parameters" in reason(run_dir)
    for copes in (FSDP, "distributed.find_unused_parameters=true"):
        ranks_trained('model.use="./clouds.py:Unused"', copes, "run.max_epochs=1")


UPSET = (
    'task={use="tests.distributed.test_ranks_train:UpsetRank", args={batches=[2]}}',
    "run.max_epochs=1",
    "data.train.args.examples=40",
)


FINITE_GRADIENT = 'task.args.kind="finite gradient"'


@pytest.mark.parametrize(
    "more",
    [(), (FSDP,), (FSDP, 'run.precision="fp16"'), (FINITE_GRADIENT,)],
    ids=["ddp", "fsdp", "fsdp, fp16", "ddp, finite gradients"],
)
def test_no_rank_takes_a_step_that_is_not_finite_on_one(
    train_both: TrainBoth, more: tuple[str, ...]
) -> None:
    alone, together = train_both(*UPSET, 'run.on_nan="skip"', *more)
    for rank in (0, 1):
        assert len([text for text in messages_of(together, rank) if "takes no step" in text]) == 1
    states = [final_state(run_dir) for run_dir in (alone, together)]
    left_out = [state["step_guard"]["left_out"] for state in states]  # type: ignore[index]
    assert left_out[0] == left_out[1] > 0
    close = (
        {"rtol": 1e-2, "atol": 1e-3}
        if 'run.precision="fp16"' in more
        else {"rtol": 1e-4, "atol": 1e-5}
    )
    torch.testing.assert_close(states[0]["model"], states[1]["model"], **close)


def test_a_run_ends_with_the_words_of_the_rank_whose_loss_is_not_finite(
    ranks_trained: NewClouds,
) -> None:
    run_dir = ranks_trained(*UPSET, codes=[1, 1])
    assert reason(run_dir).startswith("rank 1: NonFiniteLossError: ")


def test_what_one_rank_raises_is_reported_by_its_name_and_once(ranks_trained: NewClouds) -> None:
    """Nothing is saved apart after the error, since that takes all ranks;
    what rank 0 was writing is whole.
    """
    points = 'hooks.checkpoint.points=[{at="after_train_iter", every=1}, "on_exception"]'
    raises = 'hooks.raises={use="./actors.py:Breaks", points=["before_train_iter"]}'
    run_dir = ranks_trained(points, "hooks.checkpoint.args.keep=1", raises, codes=[1, 1])
    (saved,) = CheckpointStore(run_dir.checkpoints).all()
    assert (saved.name, find_damage(saved)) == ("it00000002", "")
    (failure,) = messages_of(run_dir, 1, "no checkpoint could be saved after the error: ")
    assert failure.endswith("this one has raised")
    assert reason(run_dir) == "rank 1: RuntimeError: as told"
    assert not records_of(run_dir, "error"), "rank 0 has made no mistake"
    assert records_of(run_dir, "error", 1)[0]["hook"] == "raises"
    assert printed(run_dir, 1).startswith("rank 1:\nTraceback (most recent call last):")
    assert "Traceback" not in printed(run_dir, 0)


def test_who_waits_until_the_timeout_says_in_which_hook_and_where_the_other_is(
    new_clouds: NewClouds,
) -> None:
    stays = 'hooks.hang={use="./actors.py:stays", points=["after_train_iter"]}'
    means = 'hooks.ozm={use="./actors.py:means", points=["after_train_iter"], after=["hang"]}'
    run_dir = new_clouds(stays, means)
    assert carry_out(run_dir, 2)[0] == 1
    waits, stuck = (
        'in hook "ozm" at after_train_iter',
        'rank 1 is in hook "hang" at after_train_iter',
    )
    assert reason(run_dir) == f"rank 0: waited 1 s for the others, {waits}; {stuck}"
    assert records_of(run_dir, "error")[0]["hook"] == "ozm"
    assert "run.mean(1.0)" in printed(run_dir, 0), "the line of the user's that has waited"


COUNTS = 'task.use="./detection.py:Counts"'
OWN_LOADER = [BY_HAND % ("train", "own_loader"), BY_HAND % ("val", "SaysItsOwn")]


@pytest.fixture
def new_detection(new_run: NewRun) -> NewRun:
    """Make a new run of detection.toml."""
    return partial(new_run, pipeline=TESTS / "support" / "detection.toml")


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param([], id="a loader"),
        pytest.param(["run.accumulate=2"], id="a loader, accumulated"),
        pytest.param(OWN_LOADER, id="a loader of its own, and a source that says its own"),
        pytest.param(
            [BY_HAND % ("train", "SaysBoth"), "run.accumulate=3"],
            id="a source that says both, accumulated",
        ),
        pytest.param(
            [BY_HAND % ("train", "Silent"), BY_HAND % ("val", "Silent"), COUNTS], id="a task"
        ),
    ],
)
def test_lists_weigh_by_examples(
    new_detection: NewRun, train_here: Callable[..., int], overrides: list[str]
) -> None:
    """The last batch of three examples is not shared evenly."""
    alone, together = (new_detection(*overrides, "run.max_epochs=1") for _ in range(2))
    assert train_here(alone) == 0
    assert carry_out(together, 2) == [0, 0], printed(together, 0)
    assert_alike(alone, together, "model")
    if not any("accumulate" in override for override in overrides):
        for rank, last in enumerate((2, 1)):
            assert messages_of(together, rank, "size") == [
                f"size {size}" for size in (5, 5, 5, 5, last)
            ]


def test_over_ranks_it_must_be_known(new_detection: NewRun) -> None:
    run_dir = new_detection(BY_HAND % ("train", "Silent"))
    assert carry_out(run_dir, 2) == [2, 2], printed(run_dir, 0)
    assert "how many examples a batch of the train data" in reason(run_dir)
    assert "batch_size(index)" in reason(run_dir)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_fork(ranks_trained: NewClouds, strategy: str) -> None:
    """From the middle of an epoch, to the bit; and with another learning rate and batch size."""
    every = 'hooks.checkpoint.points=[{at="after_train_iter", every=4}]'
    parent = ranks_trained(
        f'distributed.strategy="{strategy}"', every, "hooks.checkpoint.args.keep=99"
    )
    unchanged, changed = (
        make_fork(str(parent.checkpoints / "it00000004"), None, PipelineChanges(overrides))
        for overrides in ((), ("optimizer.args.lr=0.01", "data.train.loader.batch_size=6"))
    )
    for child in (unchanged, changed):
        assert carry_out(child, 2) == [0, 0], printed(child, 0)
    assert_same(final_state(unchanged)["model"], final_state(parent)["model"])
    assert final_state(changed)["optimizer"]["param_groups"][0]["initial_lr"] == 0.01  # type: ignore[index]


PADDED = (
    'model={use="tests.support.language_model:Bigram"}',
    'optimizer={use="torch.optim:SGD", args={lr=1.0}}',
    (
        'data.val={use="tests.support.language_model:padded", args={seed=4, examples=10},'
        " loader={batch_size=4}}"
    ),
    "run.max_epochs=1",
    "hooks.accuracy.enabled=false",
    "hooks.ema.enabled=false",
    "hooks.checkpoint={use='checkpoint', args={}, after=[]}",
)
PADDED_DATA = (
    'data.train={use="tests.support.language_model:padded", args={seed=3, masked=[%s]}, '
    "loader={batch_size=%d, shuffle=false}}"
)


@pytest.mark.parametrize(
    "task", ["hookflow.zoo.tasks:LanguageModelling", "tests.support.language_model:StepsItself"]
)
@pytest.mark.parametrize(("masked", "batch_size"), [("", 8), ("1, 3, 5, 7", 8), ("0, 1, 2, 3", 4)])
def test_each_rank_weighs_as_much_as_counts_in_its_share(
    train_both: TrainBoth, task: str, masked: str, batch_size: int
) -> None:
    """With 1, 3, 5, 7 masked nothing counts on rank 1;
    with 0 to 3 in batches of 4 nothing does in the first step.
    """
    alone, together = train_both(*PADDED, f'task.use="{task}"', PADDED_DATA % (masked, batch_size))
    states = [final_state(run_dir)["model"] for run_dir in (alone, together)]
    torch.testing.assert_close(*states, rtol=1e-5, atol=1e-6)
    metrics = [records(run_dir, "metrics")[-1]["v"]["loss"] for run_dir in (alone, together)]  # type: ignore[index]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-6)
