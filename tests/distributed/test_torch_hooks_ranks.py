"""PyTorch's hooks over two ranks: how often they fire, and that a communication hook is PyTorch's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookflow.errors import UserError, Where
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import load
from hookflow.runner.dispatch.torch_hooks import check_comm_hook
from hookflow.runner.distributed.parallel import DDP, FSDP, DDPAtStep
from tests.distributed.conftest import NewClouds
from tests.distributed.several import carry_out, printed
from tests.distributed.test_ranks_train import FSDP as FSDP_STRATEGY
from tests.distributed.test_ranks_train import HERE, ending, records_of
from tests.runner.same import assert_same, final_state

SHORT = ("run.max_epochs=1", "data.train.args.examples=32")


def said(run_dir: object, rank: int, *words: str) -> list[str]:
    texts = [record["text"] for record in records_of(run_dir, rank, "message")]  # type: ignore[arg-type]
    return [text for text in texts if text.startswith(words)]


def test_with_ddp(new_clouds: NewClouds) -> None:
    """At each backward pass a gradient is this rank's own; a bucket is averaged once an iteration, by our hook."""
    comm = 'hooks.comm={use="./probes.py:compressed", points=["ddp_comm"], from=1}'
    probes = 'hooks.probes={use="./probes.py:Gradients"}'
    run_dir = new_clouds(*SHORT, comm, probes, "run.accumulate=2")
    assert carry_out(run_dir, 2) == [0, 0], printed(run_dir, 0)
    for rank in (0, 1):
        each = ["came 0", "added 0 Tensor"] * 2 + ["stepping 0"]
        assert said(run_dir, rank, "came", "added", "stepping", "model")[:5] == each
        assert said(run_dir, rank, "model") == ["model 1 True"], "one bucket; in the first iteration it is not due"


def test_a_communication_hook_is_pytorchs_own(new_clouds: NewClouds) -> None:
    ours = new_clouds(*SHORT, 'hooks.comm={use="comm_hook", args={algorithm="fp16_compress"}}')
    by_hand = new_clouds(*SHORT, 'hooks.by_hand={use="./probes.py:ByHand"}')
    for run_dir in (ours, by_hand):
        assert carry_out(run_dir, 2) == [0, 0], printed(run_dir, 0)
    assert_same(final_state(ours)["model"], final_state(by_hand)["model"])


def test_a_tensor_hook_that_fsdp_would_never_call(new_clouds: NewClouds) -> None:
    run_dir = new_clouds(*SHORT, FSDP_STRATEGY, 'hooks.probes={use="./probes.py:Gradients"}')
    assert carry_out(run_dir, 2) == [2, 2]
    assert 'hook "probes": parameter_grad never fires with FSDP, whose gradients are sharded' in str(ending(run_dir))


def test_power_sgd_is_resumed(new_clouds: NewClouds, tmp_path: Path) -> None:
    """It begins anew, and says so; the ranks do not drift apart."""
    args = '{algorithm="power_sgd", matrix_rank=2, start=2}'
    overrides = f'hooks.comm={{use="comm_hook", args={args}}}', 'hooks.tells={use="./clouds.py:Tells"}'
    stops = f'hooks.stops={{use="./clouds.py:Stops", args={{at=4, mark="{tmp_path / "mark"}"}}}}'
    run_dir = new_clouds("run.max_epochs=2", "data.train.args.examples=32", *overrides, stops)
    assert carry_out(run_dir, 2) == [0, 0], printed(run_dir, 0)
    assert carry_out(run_dir, 2, resume=True) == [0, 0], printed(run_dir, 0)
    assert said(run_dir, 0, "PowerSGD") == [
        "PowerSGD's state is not saved: it restarts after two iterations of exact all-reduce"
    ]
    assert said(run_dir, 0, "weights") == said(run_dir, 1, "weights")


def test_with_fsdp(new_clouds: NewClouds) -> None:
    """A gradient is added once an iteration, averaged and sharded."""
    run_dir = new_clouds(*SHORT, FSDP_STRATEGY, 'hooks.probes={use="./probes.py:OverFSDP"}', "run.accumulate=2")
    assert carry_out(run_dir, 2) == [0, 0], printed(run_dir, 0)
    for rank in (0, 1):
        each = [text for it in (0, 1) for text in (f"added {it} DTensor", f"stepping {it}")]
        assert said(run_dir, rank, "added", "stepping") == each


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        (FSDP([]), "FSDP shards gradients, and averages none in buckets"),
        (DDPAtStep(), "the task steps its optimizers itself, so that gradients are averaged at the step"),
        (DDP(), ""),
    ],
)
def test_where_there_are_no_buckets_it_is_refused(strategy: FSDP | DDPAtStep | DDP, why: str) -> None:
    comm = 'hooks.comm={use="./probes.py:compressed", points=["ddp_comm"]}'
    plan = compile_pipeline(load(HERE / "clouds.toml", [comm]))
    if not why:
        check_comm_hook(plan, strategy, Where)
    else:
        with pytest.raises(UserError, match=f'hook "comm" has nothing to do at ddp_comm: {why}'):
            check_comm_hook(plan, strategy, Where)


def test_one_that_returns_no_future(new_clouds: NewClouds) -> None:
    run_dir = new_clouds(*SHORT, 'hooks.comm={use="./probes.py:nothing", points=["ddp_comm"]}')
    assert carry_out(run_dir, 2) == [1, 1]
    assert 'hook "comm" must return a torch.futures.Future of the bucket at ddp_comm, not None' in printed(run_dir, 0)
    (error, *_) = records_of(run_dir, 0, "error")
    assert (error["hook"], error["point"]) == ("comm", "ddp_comm")
