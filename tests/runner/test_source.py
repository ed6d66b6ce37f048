"""Data that is none of ours: a DataLoader, or any iterable of batches with a length."""

from __future__ import annotations

from collections import UserDict, namedtuple

import pytest
import torch

from hookflow.runner.data.source import Batches
from tests.conftest import NewRun, Trained, messages, reason, records
from tests.loaders import context, with_sampler

CPU = torch.device("cpu")
Pair = namedtuple("Pair", "inputs target")


def batches(made: object, channels_last: bool = False, device: torch.device = CPU) -> Batches:
    return Batches(made, context(device=device, channels_last=channels_last))


def train_on(name: str, **args: object) -> str:
    return f'data.train={{use="./loaders.py:{name}", args={{{",".join(f"{k}={v}" for k, v in args.items())}}}}}'


@pytest.mark.parametrize("name", ["shuffled", "with_generator", "with_sampler", "a_list"])
def test_it_is_trained_on_and_shown(trained: Trained, name: str) -> None:
    run_dir = trained(train_on(name))
    (run,) = records(run_dir, "run")
    info = run["data"]["train"]  # type: ignore[index]
    known = (24, 8) if name != "a_list" else (0, 0)
    assert (info["batches"], info["examples"], info["batch_size"]) == (3, *known)
    assert not info["synthetic"]
    assert records(run_dir, "end")[0]["it"] == 9


def test_batches_may_be_dicts(trained: Trained) -> None:
    task = 'task.use="./loaders.py:FromDicts"'
    off = [f"hooks.{name}.enabled=false" for name in ("accuracy", "early_stop", "checkpoint")]
    val = train_on("of_dicts").replace("train", "val")
    trained(train_on("of_dicts"), val, task, *off)


@pytest.mark.parametrize("name", ["shuffled", "with_generator", "with_sampler"])
@pytest.mark.parametrize(("point", "it"), [("after_train_epoch", 3), ("after_backward", 4)])
def test_a_resumed_run_has_the_batches_that_it_would_have_had(
    resumes_alike: NewRun, name: str, point: str, it: int
) -> None:
    broken = resumes_alike(train_on(name), point=point, at=it)
    again = [text for text in messages(broken) if "batches again to find the place" in text]
    assert len(again) == (1 if point == "after_backward" else 0)


def test_a_batch_of_a_tokenizer_becomes_a_dict() -> None:
    (batch,) = batches([UserDict(input_ids=torch.ones(2, 3, dtype=torch.int64))], device=torch.device("meta")).epoch(0)
    assert type(batch) is dict and batch["input_ids"].device.type == "meta"


def test_its_sampler_is_told_the_epoch() -> None:
    source = batches(with_sampler())
    first, again, second = (torch.cat([target for _, target in source.epoch(k)]) for k in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_every_tensor_of_a_batch_is_moved_and_nothing_else_is_touched() -> None:
    there = torch.device("meta")
    x = torch.ones(2)
    batch = {"a": x, "b": [x, (x, "text")], "c": Pair(x, 3), "d": None}
    (moved,) = batches([batch], device=there).epoch(0)
    assert [moved["a"].device, moved["b"][0].device, moved["b"][1][0].device, moved["c"].inputs.device] == [there] * 4
    assert (moved["b"][1][1], moved["c"].target, moved["d"]) == ("text", 3, None)
    assert isinstance(moved["b"][1], tuple)
    assert isinstance(moved["c"], Pair)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("too_short", "the dataset yields no batches"),
        ("stream", "this makes a DataLoader, which has no length"),
        ("dataset", "this makes a TensorDataset, which is a dataset: add `loader`"),
        ("splits", "this makes a dict, which yields no batches"),
        ("Half", "this makes a Half, whose info lacks examples, batches, batch_size, synthetic, note"),
        ("FromDicts", "this makes a FromDicts, which has no length"),
    ],
)
def test_what_is_no_data_is_told_with_its_place(trained: Trained, use: str, message: str) -> None:
    run_dir = trained(train_on(use), code=2)
    assert message in reason(run_dir)
    assert f"--set data.train: {message}" in reason(run_dir) or "data.train" in reason(run_dir)
    assert not records(run_dir, "run")


def test_fewer_batches_than_promised_are_an_error_and_more_are_left(trained: Trained) -> None:
    assert "promised 5 batches, and gave 3" in reason(trained(train_on("Says", promised=5), code=2))
    assert records(trained(train_on("Says", promised=2)), "end")[0]["it"] == 6
