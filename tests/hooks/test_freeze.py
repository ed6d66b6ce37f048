"""Freezing: what is frozen keeps its weights and statistics, whatever the optimizer; then it trains on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.graph.why import ambiguities
from hookflow.hooks.builtin.freeze import Freeze, frozen_norms, frozen_parameters
from hookflow.hooks.compile import compile_pipeline
from hookflow.hooks.globs import named_parameters
from hookflow.pipeline.load import load
from hookflow.runner.checkpoint.store import read
from hookflow.runner.process.launch import prepare
from tests.conftest import TESTS, NewRun, records
from tests.hooks.stand_ins import StandIn
from tests.toy import Net, Tied

ADAMW = 'optimizer={use="torch.optim:AdamW", args={lr=0.01, weight_decay=0.5}}'


def body_after(run_dir: RunDir, it: int) -> list[Any]:
    """Return the weights and statistics of the net's body in a checkpoint."""
    state: Any = read(run_dir.checkpoints / f"it{it:08d}", torch.device("cpu"))["model"]
    return [tensor for name, tensor in state.items() if name.startswith("body")]


def frozen_run(new_run: NewRun, args: str, *overrides: str) -> RunDir:
    """Return a run of 15 iterations of which every state is saved."""
    saves = "hooks.checkpoint.points=['after_train_iter']", "hooks.checkpoint.args.keep=99"
    return new_run(f'hooks.freeze={{use="freeze", args={{{args}}}}}', *saves, *overrides)


def same(one: list[Any], other: list[Any]) -> bool:
    return all(map(torch.equal, one, other))


@pytest.mark.parametrize("optimizer", [[], [ADAMW]], ids=["SGD with momentum", "AdamW"])
def test_what_is_frozen_stays_as_it_is_and_trains_afterwards(
    new_run: NewRun, train_here: Any, optimizer: list[str]
) -> None:
    run_dir = frozen_run(new_run, 'params=["body.*"], begin="1ep", end="10it"', *optimizer)
    assert train_here(run_dir) == 0, records(run_dir, "error")
    assert not same(body_after(run_dir, 1), body_after(run_dir, 5))
    assert same(body_after(run_dir, 5), body_after(run_dir, 10))
    changed = [not torch.equal(*pair) for pair in zip(body_after(run_dir, 10), body_after(run_dir, 15), strict=True)]
    assert [changed[0], *changed[2:]] == [True] * 6  # the statistics too; a bias before a norm hardly matters


def test_norms_may_go_on_counting(new_run: NewRun, train_here: Any) -> None:
    run_dir = frozen_run(new_run, 'params=["body.*"], end="50%", norms=false')
    assert train_here(run_dir) == 0
    changed = [not torch.equal(*pair) for pair in zip(body_after(run_dir, 1), body_after(run_dir, 6), strict=True)]
    assert changed == [False] * 4 + [True] * 3  # the mean, the variance, the number of batches


def test_one_of_two_models_may_be_frozen_as_a_whole(tmp_path: Path, train_here: Any) -> None:
    freeze = 'hooks.freeze={use="freeze", args={params=["discriminator.*"], begin=5, end=15}}'
    loaded = load(TESTS / "gan.toml", [freeze, "hooks.checkpoint.args.keep=9"])
    run_dir = RunDir.create(tmp_path, "gan")
    prepare(loaded, compile_pipeline(loaded), run_dir, TESTS)
    assert train_here(run_dir) == 0, records(run_dir, "error")
    fifth, tenth, last = (read(run_dir.checkpoints / f"it{it:08d}", torch.device("cpu")) for it in (5, 10, 20))
    for one, other, changed in [(fifth, tenth, False), (tenth, last, True)]:
        weights: Any = (one["model_discriminator"], other["model_discriminator"])
        assert [not torch.equal(weights[0][name], weights[1][name]) for name in weights[0]] == [changed] * 4
    assert not torch.equal(fifth["model_generator"]["0.weight"], tenth["model_generator"]["0.weight"])


def test_several_unfreeze_a_net_part_by_part(new_run: NewRun, train_here: Any) -> None:
    norm = 'hooks.norm={use="freeze", args={params=["body.1.*"], end="1ep"}}'
    run_dir = frozen_run(new_run, 'params=["body.0.*"], end="2ep"', norm)
    loaded = load(run_dir.pipeline, recorded=True)
    assert not [each for each in ambiguities(compile_pipeline(loaded, TESTS)) if {"freeze", "norm"} & {each.first.hook}]
    assert train_here(run_dir) == 0, records(run_dir, "error")
    for one, other, changed in [(1, 5, []), (5, 10, [2, 3]), (10, 15, [0, 2, 3])]:
        pairs = zip(body_after(run_dir, one), body_after(run_dir, other), strict=True)
        assert [k for k, pair in enumerate(pairs) if not torch.equal(*pair) and k in (0, 2, 3)] == changed


def test_a_norm_is_frozen_with_all_of_its_parameters() -> None:
    net = Net()
    assert [*frozen_norms(net, ["body.*"])] == ["body.1"]
    assert [*frozen_norms(net, ["*.weight"])] == []
    assert [*frozen_norms(nn.Sequential(nn.BatchNorm1d(2, affine=False)), ["0.*"])] == ["0"]


def test_a_glob_that_picks_nothing_or_everything_is_refused() -> None:
    parameters = dict(Net().named_parameters())
    assert [*frozen_parameters(parameters, ["head.*", "*.1.weight"])] == ["body.1.weight", "head.weight", "head.bias"]
    with pytest.raises(UserError, match='no parameter that trains matches "boddy'):
        frozen_parameters(parameters, ["boddy.*"])
    with pytest.raises(UserError, match="every parameter of the network would be frozen"):
        frozen_parameters(parameters, ["*"])


def test_a_run_that_is_resumed_where_they_train_again_ends_as_if_left_alone(
    new_run: NewRun, train_here: Any, tmp_path: Path
) -> None:
    run_dir = frozen_run(new_run, 'params=["body.*"], begin="1ep", end="10it"')
    assert train_here(run_dir) == 0
    copy = RunDir(Path(shutil.copytree(run_dir.path, tmp_path / "copy", symlinks=True)))
    for path in copy.checkpoints.glob("it*"):
        if int(path.name[2:]) > 10:
            shutil.rmtree(path)
    assert train_here(copy, resume=True) == 0
    assert same(body_after(copy, 15), body_after(run_dir, 15))


def test_after_the_run_the_network_can_be_trained_by_others() -> None:
    net = Net()
    run, hook = StandIn(net, torch.optim.SGD(net.parameters(), 0.1)), Freeze(["body.*"])
    hook.before_train(run)
    assert not net.body[0].weight.requires_grad
    assert not net.body[1].training
    hook.after_run(run)
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert net.body[1].training


def test_tied_weights_are_picked_by_either_name() -> None:
    parameters = named_parameters(Tied())
    assert frozen_parameters(parameters, ["head.*"]) == {"head.weight": parameters["embed.weight"]}
    with pytest.raises(UserError, match="every parameter of the network would be frozen"):
        frozen_parameters(parameters, ["head.*", "middle.*"])
