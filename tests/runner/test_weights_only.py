"""`weights_only` and `frozen` of `checkpoint`: what is saved in part, and what can be done with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.api.recorded import RecordedRun
from hookflow.cli.fork import forked
from hookflow.cli.resume import Changes
from hookflow.errors import UserError
from hookflow.hooks.checkpoint_files import read_weights
from hookflow.runner.checkpoint.store import CheckpointStore, read
from tests.cli.conftest import invoke, refused
from tests.conftest import NewRun, Train, Trained, messages, reason, records
from tests.runner.same import assert_same, final_state
from tests.runner.test_commands import answers, commander
from tests.toy import Frozen, Net

WEIGHTS = 'hooks.checkpoint.args={monitor={loss="min", accuracy="max"}, top=2, weights_only=true}'
WHOLE = 'hooks.checkpoint.args={monitor={loss="min", accuracy="max"}, top=2, keep="all"}'


def test_the_best_hold_the_weights_of_the_whole_ones(trained: Trained) -> None:
    run_dir, whole = trained(WEIGHTS), trained(WHOLE)
    names, others = ({name: path.name for name, path in CheckpointStore(each.checkpoints).names().items()}
                     for each in (run_dir, whole))  # fmt: skip
    assert {name: path.removeprefix("weights-") for name, path in names.items()} == others
    assert {name for name, path in names.items() if path.startswith("weights-")} == names.keys() - {"last"}
    there = {path.name for path in run_dir.checkpoints.iterdir() if not path.is_symlink()}
    assert there == {*names.values()}, "what has no name any more is removed"
    for name in names.keys() - {"last"}:
        state: Any = read(run_dir.checkpoints / names[name])
        full: Any = read(whole.checkpoints / others[name])
        assert not [key for key in state if key.startswith("optimizer")]
        for key in ("model", "model_ema"):
            assert all(torch.equal(full[key][item], value) for item, value in state[key].items())


def test_they_are_evaluated_loaded_and_forked(trained: Trained, train_here: Train) -> None:
    run_dir = trained(WEIGHTS)
    best = RecordedRun(run_dir).checkpoint("best-loss")
    net = best.load_into(Net(), "ema")
    assert all(
        torch.equal(value, read_weights(best.path, "model_ema")[name]) for name, value in net.state_dict().items()
    )
    measured = {record["it"]: record["v"] for record in records(run_dir, "metrics") if record["split"] == "val"}  # type: ignore[index]
    assert json.loads(invoke("val", best.path, "--format", "json"))["metrics"] == measured[best.iter]
    (listed,) = [each for each in json.loads(invoke("checkpoints", run_dir.path, "--format", "json"))
                 if "best-loss" in each["names"]]  # fmt: skip
    assert Path(listed["path"]).name == best.path.name and not listed["damage"]
    fork = forked(str(best.path), None, Changes(("run.max_epochs=5",)))
    assert train_here(fork) == 0, reason(fork)
    assert any('has no state of the optimizer "optimizer": it starts without one' in text for text in messages(fork))
    assert records(fork, "end")[-1]["ep"] == 5


def test_no_run_resumes_from_them(trained: Trained, tmp_path: Path) -> None:
    run_dir = trained(WEIGHTS, commander(tmp_path / "mark", (9, "rewind best-loss")))
    ((_, _, ok, note),) = answers(run_dir)
    assert not ok and "has no state of the optimizers, so a run cannot go back to it" in note
    best = CheckpointStore(run_dir.checkpoints).names()["best-loss"]
    assert "is a checkpoint, and a resumed run goes on from its newest whole one" in refused("run", "--resume", best)


def test_a_run_that_saves_them_is_resumed_to_the_bit(new_run: NewRun, train_here: Train, resumes_alike: Any) -> None:
    run_dir = resumes_alike(WEIGHTS, point="after_train_iter", at=12)
    state: Any = final_state(run_dir)
    assert state["hooks"]["checkpoint"]["best"]


def test_they_are_for_the_best(tmp_path: Path, new_run: NewRun) -> None:
    shutil.copy(Path(__file__).parents[1] / "toy.toml", tmp_path / "toy.toml")
    text = refused("check", tmp_path / "toy.toml", "--set", "hooks.checkpoint.args={weights_only=true}")
    assert "weights_only is for the best: it needs monitor" in text


APART = ("model.use=./toy.py:Frozen", 'hooks.checkpoint.args={monitor="accuracy", frozen=false, restore_best=true}')


def test_what_is_frozen_is_left_out_and_comes_from_the_model(trained: Trained, train_here: Train) -> None:
    whole, apart = trained(APART[0]), trained(*APART)
    full, last = (RecordedRun(each).checkpoint("last") for each in (whole, apart))
    for name in ("model", "model_ema"):
        left_out = set(read_weights(full.path, name)) - read_weights(last.path, name).keys()
        assert left_out == {name for name, p in Frozen().named_parameters() if not p.requires_grad}
    net, other = full.load_into(Frozen()), Frozen()
    permuted = {name: value.flip(0) for name, value in net.head.state_dict().items()}
    for head in (other.head.state_dict(), permuted):
        other.head.load_state_dict(head)
        with pytest.raises(UserError, match="this model has others"):
            last.load_into(other)
    other.head.load_state_dict(net.head.state_dict())
    assert_same(dict(last.load_into(other).state_dict()), dict(net.state_dict()))
    measured = {record["it"]: record["v"] for record in records(apart, "metrics") if record["split"] == "val"}  # type: ignore[index]
    best = RecordedRun(apart).checkpoint("best")
    assert json.loads(invoke("val", best.path, "--format", "json"))["metrics"] == measured[best.iter]
    fork = forked(str(best.path), None, Changes(("run.max_epochs=5", "optimizer.args.lr=0.05")))
    assert train_here(fork) == 0, reason(fork)


def test_a_run_that_leaves_them_out_is_resumed_to_the_bit(trained: Trained, resumes_alike: Any) -> None:
    weights = trained(APART[0]).checkpoints / "last" / "model.pt"
    run_dir = resumes_alike(*APART, f'model.weights.file="{weights}"', point="after_train_iter", at=12)
    assert "head.weight" not in read_weights(run_dir.checkpoints / "last", "model")


def test_what_is_trained_after_all_is_saved(trained: Trained) -> None:
    run_dir = trained(*APART, 'hooks.shift={use="tests.runner.test_weights_only:shift", points=["before_train_epoch"]}')
    weights = read_weights(run_dir.checkpoints / "last", "model")
    assert "head.weight" in weights and "head.bias" not in weights


def shift(run: Any) -> None:
    with torch.no_grad():
        run.model.head.weight.add_(1)
