"""Objects where a file has `use`: models, data, tasks and hooks that exist."""

import re
import tomllib
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookflow
from hookflow import Hook
from tests.conftest import TOY
from tests.conftest import hookflow_here as command
from tests.toy import Net, Points

INPUTS = torch.randn(32, 4, generator=torch.Generator().manual_seed(3))
EXAMPLES = TensorDataset(INPUTS, INPUTS[:, 0].gt(0).long())


class Counter(Hook):
    """Counts what it has seen."""

    def __init__(self, step: int) -> None:
        self.step, self.seen, self.name = step, 0, ""

    def after_train_iter(self, run: hookflow.Run) -> None:
        self.seen += self.step


class OwnTask:
    def step(self, run: hookflow.Run, batch: Any) -> dict[str, Any]:
        inputs, target = batch
        return {"loss": nn.functional.cross_entropy(run.model(inputs), target), "own": 1.0}


def pipeline(**parts: Any) -> dict[str, Any]:
    return {
        "run": {"name": "objects", "max_epochs": 2, "threads": 1},
        "model": {"use": Net, "args": {"width": 4}},
        "optimizer": {"use": torch.optim.SGD, "args": {"lr": 0.1}},
        "data": {"train": {"use": EXAMPLES, "loader": {"batch_size": 8}}},
        **parts,
    }


def train(tmp_path: Path, **parts: Any) -> Any:
    return hookflow.train(pipeline(**parts), "none", runs=tmp_path)


def test_a_model_that_exists_is_what_is_trained(tmp_path: Path) -> None:
    net = Net(6)
    before = net.head.weight.detach().clone()
    run = train(tmp_path, model={"use": net}, hooks={"save": {"use": "checkpoint"}})
    assert not torch.equal(net.head.weight, before)
    again = run.checkpoint().load_into(Net(6))
    assert all(torch.equal(mine, saved) for mine, saved in zip(net.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize(
    "source",
    [
        {"use": DataLoader(EXAMPLES, batch_size=8, shuffle=True)},
        {"use": [(INPUTS[:8], torch.zeros(8).long())] * 4},
        {"use": Points(0, torch.device("cpu"))},
        {"use": lambda seed: DataLoader(EXAMPLES, batch_size=8)},
        {
            "use": EXAMPLES,
            "loader": {"batch_size": 8, "collate": lambda examples: torch.utils.data.default_collate(examples)},
        },
    ],
    ids=["loader", "batches", "source", "function", "dataset"],
)
def test_data_that_exist_are_trained_on(tmp_path: Path, source: dict[str, Any]) -> None:
    assert train(tmp_path, data={"train": source, "val": {"use": DataLoader(EXAMPLES, 16)}}).status == "finished"


def test_a_task_that_exists_is_asked_for_its_loss(tmp_path: Path) -> None:
    log = {"log": {"use": "log"}}
    assert train(tmp_path, task={"use": OwnTask()}, hooks=log).scalars("own")["value"] == [1.0] * 8
    assert train(tmp_path, task={"use": OwnTask().step}, hooks=log).scalars("own")["value"] == [1.0] * 8


def test_functions_classes_and_instances_are_hooks(tmp_path: Path) -> None:
    seen: list[int] = []
    instance = Counter(2)

    def note(run: hookflow.Run) -> None:
        seen.append(run.iter)

    class Weighed(Hook):
        def after_run(self) -> None:
            seen.append(-1)

    hooks = {
        "note": {"use": note, "points": ["after_train_epoch"]},
        "some": {"use": partial(lambda run, to: to.append(run.epoch), to=seen), "points": ["after_train_epoch"]},
        "counter": {"use": instance, "every": 2},
        "other": {"use": Counter, "args": {"step": 3}},
        "weighed": {"use": Weighed},
    }
    run = train(tmp_path, hooks=hooks)
    assert seen == [4, 1, 8, 2, -1]
    assert (instance.seen, instance.name) == (8, "counter")
    recorded = tomllib.loads((run.dir / "pipeline.toml").read_text())
    assert recorded["model"]["use"] == "<object Net>"
    assert {use for hook in recorded["hooks"].values() if (use := hook["use"]).startswith("<object")} == {
        "<object note>", "<object partial>", "<object Counter>", "<object Counter 2>", "<object Weighed>"
    }  # fmt: skip
    assert run.plan.hook("counter").about == "Counts what it has seen."
    hookflow.train(hookflow.load(TOY, {"hooks.early_stop": {"use": Counter(2)}}), "none", runs=tmp_path)


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        ({"model": {"use": {}.keys()}}, r"model must be a torch\.nn.*Module, and this makes a dict_keys"),
        ({"model": {"use": Net(), "args": {"width": 3}}}, 'model takes no argument "width"'),
        ({"hooks": {"odd": {"use": Random()}}}, "Random has no method named like a point"),
        ({"hooks": {"odd": {"use": Counter(1), "args": {"step": 3}}}}, 'hook "odd" takes no argument "step"'),
        (
            {"optimizer": {"use": torch.optim.SGD(Net().parameters(), lr=0.1)}},
            r"optimizer\.use must make an optimizer.*\n.*give its class",
        ),
    ],
)
def test_an_object_that_does_not_fit_is_refused(tmp_path: Path, part: dict[str, Any], wrong: str) -> None:
    with pytest.raises(hookflow.UserError, match=wrong):
        train(tmp_path, **part)


def test_objects_are_only_here(tmp_path: Path) -> None:
    with pytest.raises(hookflow.UserError, match=r"process of its own has none of the objects.*<object Net>"):
        hookflow.train(pipeline(model={"use": Net()}), "none", runs=tmp_path, process=True)
    run = train(tmp_path / "runs", model={"use": Net()}, hooks={"save": {"use": "checkpoint"}})
    done = command("run", "--resume", run.id, "--set", "run.max_epochs=3", "--detach", cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.search(r'pipeline\.toml:\d+:1: "<object Net>" stands for an object of the Python', done.stderr)
    assert 'use = "./file.py:Name"' in done.stderr
    assert run.status == "finished", "what was refused has not been begun"
    assert command("compare", run.id, run.id, cwd=tmp_path).returncode == 0
