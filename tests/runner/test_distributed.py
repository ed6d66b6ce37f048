"""What is decided for several ranks, before there are any."""

import io
import pickle
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from hookflow.errors import UserError, Where
from hookflow.hooks.checkpoint_files import _MetadataUnpickler, read_weights
from hookflow.pipeline.load import parse
from hookflow.pipeline.schema import DistributedSection
from hookflow.runner.builder.build import choose_strategy, with_sync_batch_norm
from hookflow.runner.data.loader_parts import BatchSharding
from hookflow.runner.distributed.consensus import RankConsensus
from hookflow.runner.distributed.fsdp import find_repeated_block, list_units, split_layers
from hookflow.runner.distributed.parallel import full_state, in_buckets, local_state
from hookflow.runner.distributed.rendezvous import (
    RankLayout,
    backend_of,
    compute_data_layout,
    device_of,
)
from hookflow.runner.model.selectors import find_unmatched_units
from tests.conftest import TOY

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)


def here(key: str) -> Where:
    return Where("p.toml", 1, 1) if key else Where("p.toml")


@pytest.mark.parametrize(
    ("gpus", "wanted", "ranks", "expected"),
    [
        (2, "auto", RankLayout(3, 4, local=1), GPU),
        (2, "cuda", RankLayout(3, 4, local=1), GPU),
        (2, "cuda", RankLayout(2, 4, local=2), "this is process 3 on a machine with 2 GPUs"),
        (2, "cuda:1", RankLayout(0, 2), '"cuda:1" is one GPU, and there are 2 processes'),
        (2, "cuda:1, by gloo", RankLayout(0, 2), GPU),
        (2, "cuda:1", RankLayout(), GPU),
        (
            2,
            "cuda:2",
            RankLayout(),
            'p.toml:1:1: run.device = "cuda:2", but there is no such device here',
        ),
        (2, "cpu", RankLayout(1, 2, local=1), CPU),
        (0, "auto", RankLayout(1, 2, local=1), CPU),
        (0, "cuda", RankLayout(1, 2, local=1), "there is no such device here"),
    ],
)
def test_each_rank_has_the_gpu_of_its_number_on_its_machine(
    monkeypatch: pytest.MonkeyPatch,
    gpus: int,
    wanted: str,
    ranks: RankLayout,
    expected: torch.device | str,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    device, _, backend = wanted.partition(", by ")
    if isinstance(expected, torch.device):
        assert device_of(device, ranks, backend, here) == expected
    else:
        with pytest.raises(UserError, match=expected):
            device_of(device, ranks, backend, here)


class OnGpu(torch.Tensor):
    """A tensor that is to lie on a GPU: as such it must not be pickled."""

    def cpu(self, *how: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


class Meeting(RankConsensus):
    """One of two ranks, which are threads of this process."""

    def __init__(self, rank: int, barrier: Barrier, sent: dict[int, Any]) -> None:
        self.ranks = RankLayout(rank, 2)
        self.barrier, self.sent = barrier, sent

    def all_gather_object(self, mine: Any) -> list[Any]:
        self.sent[self.ranks.rank] = mine
        self.barrier.wait(60)
        everyone = [self.sent[rank] for rank in range(2)]
        self.barrier.wait(60)
        return everyone


def test_each_rank_keeps_what_it_has_of_its_own_in_the_host_s_memory() -> None:
    """Of the states of hooks those that differ, if only in an order:
    the average of the weights is kept once.
    """
    window = torch.zeros(2000, dtype=torch.bfloat16)
    window[7] = 1
    hooks = [
        {
            "log": OrderedDict(total=[window.roll(rank).as_subclass(OnGpu)]),
            "ema": {"average": torch.ones(())},
        }
        for rank in range(2)
    ]
    own: dict[str, Any] = {"gradients": {"optimizer": [window.as_subclass(OnGpu), None]}}
    barrier, sent = Barrier(2), dict[int, Any]()

    def saved(rank: int) -> dict[str, Any]:
        return full_state(
            {**own, "hooks": hooks[rank]}, Meeting(rank, barrier, sent), ["gradients"], ["hooks"]
        )

    with ThreadPoolExecutor(2) as pool:
        state, _ = pool.map(saved, range(2))
    for rank in range(2):
        restored = local_state(state, RankLayout(rank, 2), ["hooks"])
        assert torch.equal(restored["hooks"]["log"]["total"][0], window.roll(rank))
    (other,) = state["ranks"]
    assert list(other["hooks"]) == ["log"]
    assert type(other["hooks"]["log"]) is OrderedDict
    assert [
        type(tensor)
        for tensor in (*other["hooks"]["log"]["total"], other["gradients"]["optimizer"][0])
    ] == [torch.Tensor] * 2
    assert type(state["gradients"]["optimizer"][0]) is OnGpu, (
        "its own goes with all that is copied at once"
    )


def test_a_sum_is_taken_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    reduced: list[torch.Tensor] = []
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: reduced.append(tensor))
    strategy = choose_strategy(
        DistributedSection(), RankLayout(0, 2), "fp32", here, print, own_steps=False
    )
    for value in (torch.ones(2), 1.0):  # nccl refuses what lies in the host's memory
        assert strategy.all_reduce(value, torch.device("meta")).device.type == "meta"
    assert all(tensor.is_meta for tensor in reduced)


def test_keys_are_for_their_strategy_and_shares_have_an_example() -> None:
    with pytest.raises(ValueError, match='static_graph is for strategy = "ddp"'):
        DistributedSection(strategy="fsdp", static_graph=True)
    text = TOY.read_text() + '\n[distributed]\nstrategy = "fsdp"\n'
    with pytest.raises(UserError, match=r"toy.toml:\d+:2: \[distributed\]: with strategy = "):
        parse(text, TOY, ("run.inference_mode=true",))
    with pytest.raises(ValueError, match="batches of 3 cannot be sharded across 4 ranks"):
        BatchSharding(40, 3, drop_last=False, world=4)


def test_layers_are_split_over_neighbours_that_have_the_same_share_of_a_batch() -> None:
    section = DistributedSection(strategy="fsdp", parallelize="./net.py:split", tensor_parallel=2)
    shares = [compute_data_layout(section, RankLayout(rank, 4), here) for rank in range(4)]
    assert [(share.rank, share.world) for share in shares] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert compute_data_layout(section, RankLayout(), here) == RankLayout(), (
        "one process ignores it"
    )
    with pytest.raises(UserError, match="3 ranks cannot be divided into groups of 2"):
        compute_data_layout(section, RankLayout(0, 3), here)
    for wrong, expected in (
        ({"parallelize": "./net.py:split"}, "need one another"),
        ({"tensor_parallel": 2}, "need one another"),
        (
            {"parallelize": "./net.py:split", "tensor_parallel": 2, "replicas": 2},
            "cannot be combined with replicas",
        ),
        (
            {"parallelize": "./net.py:split", "tensor_parallel": 2, "strategy": "ddp"},
            "DDP averages no gradients",
        ),
    ):
        with pytest.raises(ValueError, match=expected):
            DistributedSection.model_validate({"strategy": "fsdp", **wrong})


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        (lambda net: None, "splits no parameter: the ranks of a group would compute the same"),
        (lambda net: net.append(nn.Linear(2, 2)), "adds, removes or renames parameters"),
        (lambda net: net.no_such_layer, "has no attribute"),
    ],
)
def test_what_splits_no_layer_is_refused(split: Any, expected: str) -> None:
    network = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(UserError, match=expected):
        split_layers(network, lambda: split(network), here("distributed.parallelize"))


def test_the_backend_fits_the_device() -> None:
    asked = {backend: DistributedSection(backend=backend) for backend in ("auto", "gloo", "nccl")}  # type: ignore[arg-type]
    assert [backend_of(asked["auto"], device, here) for device in (CPU, GPU)] == ["gloo", "nccl"]
    assert [backend_of(asked["gloo"], device, here) for device in (CPU, GPU)] == ["gloo", "gloo"]
    assert backend_of(asked["nccl"], GPU, here) == "nccl"
    with pytest.raises(UserError, match="this run computes on cpu"):
        backend_of(asked["nccl"], CPU, here)
    with pytest.raises(UserError, match="FSDP cannot gather its shards on a GPU by gloo"):
        backend_of(DistributedSection(strategy="fsdp", backend="gloo"), GPU, here)


def test_synchronised_batch_norms_keep_their_state_and_names() -> None:
    """Whatever their settings, at any depth; and only where they can
    be computed, which no CPU can.
    """
    model = nn.Sequential()
    model.add_module("conv", nn.Conv2d(3, 4, 1))
    model.add_module(
        "norms", nn.ModuleList([nn.BatchNorm2d(4, eps=0.1, momentum=None), nn.BatchNorm1d(4)])
    )
    model.add_module("bare", nn.BatchNorm2d(4, affine=False, track_running_stats=False).eval())
    model.add_module("other", nn.InstanceNorm2d(4, affine=True))
    model.norms[1].weight.requires_grad_(False)  # type: ignore[index, union-attr]
    parameters, state = dict(model.named_parameters()), model.state_dict()
    with pytest.raises(UserError, match="SyncBatchNorm requires a GPU"):
        with_sync_batch_norm(model, CPU, here("distributed.sync_batch_norm"))
    converted: Any = with_sync_batch_norm(model, GPU, here("distributed.sync_batch_norm"))
    norms = [*converted.norms, converted.bare]
    assert [type(module) for module in norms] == [nn.SyncBatchNorm] * 3
    assert [(norm.eps, norm.momentum, norm.training) for norm in norms] == [
        (0.1, None, True),
        (1e-5, 0.1, True),
        (1e-5, 0.1, False),
    ]
    assert type(converted.other) is nn.InstanceNorm2d
    assert all(parameter is parameters[name] for name, parameter in converted.named_parameters())
    assert converted.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in converted.state_dict().items())
    assert {norm.process_group for norm in norms} == {None}, "the statistics are those of all ranks"


def test_units_are_the_outermost_that_a_glob_matches() -> None:
    def layer() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2), nn.GELU())

    network = nn.Sequential()
    network.add_module("layers", nn.ModuleList([layer(), layer()]))
    first, second = network.layers  # type: ignore[misc]
    assert list_units(network, ["layers*"]) == list_units(network, ["layers.*"]) == [first, second]
    assert list_units(network, ["layers.*", "*.0.?"]) == [first, first[0], second]
    assert list_units(network, []) == []
    assert list_units(network, ["type:Linear"]) == [first[0], second[0]]
    assert find_repeated_block(network) == [], "a sequence is none, nor is a layer"
    assert find_repeated_block(
        nn.Sequential(*(nn.TransformerEncoderLayer(4, 2, 4) for _ in range(2)))
    ) == ["type:TransformerEncoderLayer"]
    (problem,) = find_unmatched_units(
        DistributedSection(strategy="fsdp", units=["layer.*"]), network, here
    )
    assert 'no module of the network matches "layer.*"' in problem.message


def test_what_names_the_shards_holds_data_alone(tmp_path: Path) -> None:
    torch.save({"model": {"weight": torch.empty(2, device="meta")}}, tmp_path / "training.pt")
    (tmp_path / ".metadata").write_bytes(pickle.dumps(dict.__repr__))
    with pytest.raises(UserError, match=r"holds more than data: builtins.getattr"):
        read_weights(tmp_path, "model")
    assert _MetadataUnpickler(io.BytesIO(b"cpathlib._local\nPosixPath\n(Va\ntR.")).load() == Path(
        "a"
    ), "as Python 3.13 has it"


def test_gradients_are_averaged_in_buckets_of_a_size() -> None:
    tensors = [torch.zeros(length) for length in (2, 3, 9, 1, 1)]  # 4 bytes a number
    buckets = [[tensor.numel() for tensor in bucket] for bucket in in_buckets(tensors, 20)]
    assert buckets == [[2, 3], [9], [1, 1]]
    assert [*in_buckets([], 20)] == []
