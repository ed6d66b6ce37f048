"""Hooks over two ranks: what they do, and log, is what they do in one process, and nobody hangs."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from hookflow.errors import UserError, Where
from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import load
from hookflow.pipeline.schema import DistributedSection
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.dispatch.torch_hooks import check_comm_hook
from hookflow.runner.distributed.fsdp import FSDPStrategy
from hookflow.runner.distributed.parallel import DDPAtStepStrategy, DDPStrategy
from tests.conftest import reason, records
from tests.distributed.clouds import Clouds, Normed
from tests.distributed.conftest import CLOUDS, NewClouds, TrainBoth, assert_alike
from tests.distributed.several import carry_out, messages_of, printed, records_of
from tests.runner.same import assert_same, curve, final_state

SHORT = ("run.max_epochs=1", "data.train.args.examples=32")
FSDP_STRATEGY = 'distributed.strategy="fsdp"'
BUILT_IN = [
    'hooks.log={use="log", args={window=3, mean="epoch"}}',
    'hooks.rates={use="lr_monitor", args={also=["momentum"]}}',
    'hooks.norms={use="grad_norm"}',
    'hooks.params={use="param_stats", args={histogram=true}, every=4}',
    'hooks.activations={use="activation_stats"}',
    'hooks.confusion={use="confusion_matrix"}',
    'hooks.memory={use="memory"}',
    'hooks.env={use="env_info"}',
    'hooks.profiler={use="profiler", args={wait=1, warmup=1, active=1}}',
    'hooks.limit={use="time_limit", args={limit="1h"}}',
    'hooks.spikes={use="spike_guard", args={window=3}}',
    'task={use="../support/own_tasks.py:spikes", args={at=[7]}}',
    'hooks.empty={use="empty_cache"}',
    'hooks.export={use="export"}',
    'hooks.predict={use="predict", args={outputs=["target"]}}',
    'data.test={use="./clouds.py:Clouds", args={examples=22, seed=8}, loader={batch_size=8}}',
    "run.test=true",
]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "split"])
def test_built_in_hooks_record_as_in_one_process(
    train_both: TrainBoth, split_layers: list[str], strategy: str
) -> None:
    """With split layers, in two groups of two ranks."""
    split = strategy == "split"
    distributed = split_layers if split else [f'distributed.strategy="{strategy}"']
    alone, together = train_both(*BUILT_IN, *distributed, world=4 if split else 2)
    one, two = (  # the activations are those of a rank's share of the batch
        {key: value for key, value in curve(run).items() if not key[2].startswith("activation/")}
        for run in (alone, together)
    )
    assert two == pytest.approx(one, rel=1e-4, abs=1e-5)
    assert {name.split("/")[0] for _, _, name in one} >= {
        "lr",
        "momentum",
        "grad_norm",
        "param",
        "loss_epoch",
    }
    for kind in ("text", "histogram"):
        result = [
            [
                (r["it"], r["name"], r.get("text"))
                for r in records(run, kind)
                if r["name"] != "environment"
            ]
            for run in (alone, together)
        ]
        assert result[0] == result[1], kind
    spikes = [
        [r["it"] for r in records(run, "message") if "has spiked" in str(r["text"])]
        for run in (alone, together)
    ]
    assert spikes[0] == spikes[1]
    assert 7 in spikes[0]
    (path,) = (together.path / "export").iterdir()
    expected: Any = final_state(together)["model"]
    assert all(
        torch.equal(tensor, expected[name])
        for name, tensor in torch.load(path, weights_only=True).items()
    )
    assert len(list((together.path / "profile").iterdir())) == 1
    predicted = [np.load(path)["target"] for path in together.path.glob("predictions*")]
    assert [*map(len, predicted)] == [11, 11]


MANY = [f"{letter}{k}" for letter in "ab" for k in range(20)]


@pytest.mark.parametrize("args", ["{}", '{mean="epoch"}', "{window=3}"])
@pytest.mark.parametrize(
    ("names", "agree"),
    [
        ([["a", "b"], ["b", "a"]], True),
        ([MANY, MANY[::-1]], True),
        ([["a"], ["b"]], False),
        ([["a"], ["a", "b"]], False),
    ],
    ids=["another order", "many", "others", "more"],
)
def test_numbers_are_averaged_by_name_or_refused(
    ranks_trained: NewClouds, names: list[list[str]], agree: bool, args: str
) -> None:
    task = f'task={{use="./clouds.py:NamesNumbers", args={{names={json.dumps(names)}}}}}'
    logs = f'hooks.log={{use="log", args={args}}}'
    others = "hooks.accuracy.enabled=false", "hooks.checkpoint.args={}", *SHORT
    run_dir = ranks_trained(task, logs, *others, codes=[0, 0] if agree else [2, 2])
    if agree:
        wrong = {
            key: value
            for key, value in curve(run_dir).items()
            if key[2][0] in "ab"
            if value != ord(key[2][0])
        }
        assert not wrong
    else:
        assert "numbers of different names" in reason(run_dir)


def test_weights_and_metrics_are_those_of_one_process(train_both: TrainBoth) -> None:
    """Of the last batch the ranks have unequal shares."""
    f1 = 'f1={use="MulticlassF1Score", args={num_classes=3}}'
    alone, together = train_both(
        'hooks.freeze={use="freeze", args={params=["body.*"], begin="2it", end="1ep"}}',
        'hooks.swa={use="swa", args={begin="1ep", every="2it"}}',
        'hooks.schedule={use="param_schedule", args={weight_decay=[[0, 0.01], ["100%", 0.1]]}}',
        f'hooks.metrics={{use="metrics", args={{metrics={{{f1}}}}}}}',
        'hooks.accumulation={use="accumulation_schedule", args={batches=[["1ep", 2]]}}',
        "hooks.ema.enabled=false",
    )
    assert_alike(alone, together, "model", "model_swa")
    assert any(name == "f1" for *_, name in curve(together))


def test_statistics_are_those_of_all_ranks(train_both: TrainBoth) -> None:
    """While it trains, and of the weights that are judged.

    A norm needs two examples on each rank.
    """

    def first(run_dir: RunDir) -> Any:
        return json.loads(messages_of(run_dir, 0, "statistics")[0].removeprefix("statistics "))

    alone, together = train_both(
        'model.use="./clouds.py:Normed"',
        "data.train.args.examples=44",
        'hooks.sync={use="sync_buffers"}',
        'hooks.says={use="./clouds.py:statistics", points=["after_train_iter"]}',
        'hooks.precise={use="precise_bn"}',
        "hooks.ema.enabled=false",
        "run.max_epochs=1",
    )
    assert first(together) == pytest.approx(first(alone), abs=1e-5)
    state: Any = final_state(together)["model"]
    net = Normed()
    net.load_state_dict(state)
    with torch.no_grad():
        # An epoch has every example; its seed is that of the run.
        provided = net.body[:3](Clouds(44, seed=0).inputs)
    torch.testing.assert_close(state["body.3.running_mean"], provided.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state["body.3.running_var"], provided.var(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "task",
    [(), ('task.use="tests.support.runner_snapshots:StepsEveryThird"',)],
    ids=["DDPStrategy", "DDP at the step"],
)
def test_parameters_that_a_hook_adds_are_those_of_rank_0(
    train_both: TrainBoth, task: tuple[str, ...]
) -> None:
    """The hook draws other weights on each rank."""
    alone, together = train_both(
        'hooks.surgeon={use="./../support/model_changes.py:Surgeon"}',
        "hooks.ema.enabled=false",
        *task,
    )
    torch.testing.assert_close(
        final_state(alone)["model"], final_state(together)["model"], rtol=1e-4, atol=1e-5
    )


def test_pytorchs_hooks_with_ddp(ranks_trained: NewClouds) -> None:
    """At each backward pass a gradient is this rank's own;
    a bucket is averaged once an iteration, by our hook.
    """
    comm = 'hooks.comm={use="./actors.py:compressed", points=["ddp_comm"], from=1}'
    probes = 'hooks.probes={use="./actors.py:Gradients"}'
    modules = 'hooks.modules={use="./actors.py:forwards", points=["forward"], modules=["*"]}'
    everything = 'hooks.everything={use="./actors.py:forwards", points=["global_forward"]}'
    run_dir = ranks_trained(*SHORT, comm, probes, modules, everything, "run.accumulate=2")
    for rank in (0, 1):
        inside = ["body.0", "body.1", "body.2", "body", "head"]
        passes = [
            f"forward {name}" for name in [*(each for name in inside for each in (name, name)), ""]
        ]
        assert messages_of(run_dir, rank, "forward")[: len(passes)] == passes, "none of a wrapper"
        each = ["came 0", "added 0 Tensor"] * 2 + ["stepping 0"]
        assert messages_of(run_dir, rank, "came", "added", "stepping", "model")[:5] == each
        assert messages_of(run_dir, rank, "model") == ["model 1 True"], (
            "one bucket; not due in the first iteration"
        )


def test_pytorchs_hooks_with_fsdp(ranks_trained: NewClouds) -> None:
    """A gradient is added once an iteration, averaged and sharded."""
    probes = (
        'hooks.probes={use="./actors.py:Gradients", points=["post_accumulate_grad",'
        ' "before_optimizer_step"]}'
    )
    run_dir = ranks_trained(*SHORT, FSDP_STRATEGY, probes, "run.accumulate=2")
    for rank in (0, 1):
        each = [text for it in (0, 1) for text in (f"added {it} DTensor", f"stepping {it}")]
        assert messages_of(run_dir, rank, "added", "stepping") == each


def test_power_sgd_is_resumed(ranks_trained: NewClouds, tmp_path: object) -> None:
    """It begins anew, and says so; the ranks do not drift apart."""
    args = '{algorithm="power_sgd", matrix_rank=2, start=2}'
    overrides = (
        f'hooks.comm={{use="comm_hook", args={args}}}',
        'hooks.tells={use="./clouds.py:Tells"}',
    )
    stops = f'hooks.stops={{use="./clouds.py:Stops", args={{at=4, mark="{tmp_path}/mark"}}}}'
    run_dir = ranks_trained("run.max_epochs=2", "data.train.args.examples=32", *overrides, stops)
    assert carry_out(run_dir, 2, resume=True) == [0, 0], printed(run_dir, 0)
    restarts = "PowerSGD's state is not saved: it restarts after two iterations of exact all-reduce"
    assert messages_of(run_dir, 0, "PowerSGD") == [restarts]
    assert messages_of(run_dir, 0, "weights") == messages_of(run_dir, 1, "weights")


def test_a_communication_hook_without_buckets_or_a_future_is_refused(
    ranks_trained: NewClouds,
) -> None:
    plan = compile_pipeline(
        load(CLOUDS, ['hooks.comm={use="./actors.py:compressed", points=["ddp_comm"]}'])
    )
    check_comm_hook(plan, DDPStrategy(DistributedSection()), Where)
    for strategy in (
        FSDPStrategy(DistributedSection(units=[], strategy="fsdp"), "fp32", print),
        DDPAtStepStrategy(),
    ):
        with pytest.raises(
            UserError, match='hook "comm" has nothing to do at ddp_comm: only several ranks'
        ):
            check_comm_hook(plan, strategy, Where)
    run_dir = ranks_trained(
        *SHORT, 'hooks.comm={use="./actors.py:nothing", points=["ddp_comm"]}', codes=[1, 1]
    )
    assert 'hook "comm" must return a torch.futures.Future' in printed(run_dir, 0)
    error, *_ = records_of(run_dir, "error")
    assert (error["hook"], error["point"]) == ("comm", "ddp_comm")


WATCHES = 'hooks.watches={use="../support/offloaded_hooks.py:Watches", args={wait=%s}, %s}'


def test_offloaded_hooks_leave_the_weights_as_they_are_to_the_bit(ranks_trained: NewClouds) -> None:
    here = ranks_trained(*SHORT, WATCHES % (0, "every=1"))
    beside = ranks_trained(*SHORT, WATCHES % (0.003, "offload=true, queue=3"))
    process = ranks_trained(*SHORT, WATCHES % (0, 'offload="process"'))
    for run_dir in (beside, process):
        assert_same(final_state(here)["model"], final_state(run_dir)["model"])
    for rank in (0, 1):
        for name in ("weights", "grads", "seen_loss", "inputs"):
            numbers = [scalars_of(run_dir, rank, name) for run_dir in (here, beside, process)]
            assert numbers[0] == numbers[1] == numbers[2], f"{name} of rank {rank}"
        assert {*scalars_of(here, rank, "alone").values()} == {0.0}
        assert {*scalars_of(beside, rank, "alone").values()} == {1.0}


def scalars_of(run_dir: RunDir, rank: int, name: str) -> dict[int, float]:
    result = {
        record["it"]: record["v"][name]
        for record in records_of(run_dir, "scalars", rank)
        if name in record["v"]
    }
    assert result
    return result


def test_an_offloaded_hook_that_reads_a_sharded_network_is_refused(new_clouds: NewClouds) -> None:
    run_dir = new_clouds(WATCHES % (0, "offload=true"), FSDP_STRATEGY)
    assert carry_out(run_dir, 2) == [2, 2]
    assert 'hook "watches" cannot be offloaded' in reason(run_dir)


def test_all_ranks_skip_the_same_firings_of_a_throttled_hook(ranks_trained: NewClouds) -> None:
    """It sums over the ranks: a rank that fires alone would wait
    for the other until the timeout.
    """
    throttled = 'points=["after_train_iter"], budget="1%", over_budget="throttle"'
    sums = f'hooks.sums={{use="../support/offloaded_hooks.py:sums", {throttled}}}'
    run_dir = ranks_trained("run.max_epochs=40", sums)
    first, other = (
        [(r["it"], r["every"]) for r in records_of(run_dir, "throttle", rank)] for rank in (0, 1)
    )
    assert first and first == other
    seen, also = (scalars_of(run_dir, rank, "sums") for rank in (0, 1))
    assert seen == also
    assert len(seen) < 240


def test_a_metric_of_a_hook_is_that_of_the_first_rank_on_all(ranks_trained: NewClouds) -> None:
    """Also one that the first rank alone makes.

    Else the ranks would disagree on which checkpoint is the best.
    """
    run_dir = ranks_trained(
        'hooks.own={use="./actors.py:own_metrics", points=["after_val_epoch"],'
        ' writes=["metrics.own"]}',
        'hooks.once={use="./actors.py:metric_of_one", points=["after_val_epoch"], ranks="zero"}',
        'hooks.checkpoint.args={monitor={own="max", once="max"}}',
        'hooks.early_stop={use="early_stop", args={monitor="once", mode="max"}}',
    )
    measured = [[record["v"] for record in records_of(run_dir, "metrics", rank)] for rank in (0, 1)]
    assert measured[0] == measured[1]
    assert [(values["own"], values["once"]) for values in measured[0]] == [(-6, 1), (-12, 1)]
    assert CheckpointStore(run_dir.checkpoints).names()["best-own"].name == "it00000006"
    told = [messages_of(run_dir, rank, "the ranks") for rank in (0, 1)]
    assert told[0] == told[1]
    assert [
        text.partition("; that of rank 0 counts on all. A hook combines them")[0]
        for text in told[0]
    ] == [
        f'the ranks have different values of the metric "{name}": {values}'
        for name, values in (("own", "-6, 6"), ("theirs", "none, 1"))
    ]
