"""docs/module-hooks.md: its examples do what the same functions do when they are registered by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookflow.events.rundir import RunDir
from hookflow.graph.points import POINTS
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import load
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.process.launch import prepare
from tests.conftest import TESTS

PAGE = (TESTS.parent / "docs" / "module-hooks.md").read_text("utf-8")
FILES = {name: text for text, name in re.findall(r"```\w+\n(# (\S+)\n.*?)```", PAGE, re.DOTALL)}
EXAMPLES = ("prints", "once", "clamps", "zeroes")

Weights = dict[str, torch.Tensor]
Trained = Callable[..., Weights]


@pytest.fixture
def trained(tmp_path: Path, train_here: Callable[..., int]) -> Trained:
    """Train an example of the page, with overrides, and return its last weights."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)

    def train(name: str, *overrides: str) -> Weights:
        loaded = load(tmp_path / f"{name}.toml", ["run.threads=1", "run.device=cpu", *overrides])
        run_dir = RunDir.create(tmp_path / "runs", name)
        prepare(loaded, compile_pipeline(loaded), run_dir, tmp_path)
        assert train_here(run_dir) == 0
        checkpoint = CheckpointStore(run_dir.checkpoints, {}).names()["last"]
        return torch.load(checkpoint / "model.pt", weights_only=True)  # type: ignore[no-any-return]

    return train


def test_every_example_is_tried() -> None:
    assert {name for name in FILES if name.endswith(".toml")} == {"base.toml", *(f"{name}.toml" for name in EXAMPLES)}


def test_all_points_inside_the_network_are_listed() -> None:
    listed = re.findall(r"^\| `(\w+)` \| `register_(\w+)_hook` \| ([^|]*) \|", PAGE, re.MULTILINE)
    assert [point for point, *_ in listed] == [point.name for point in POINTS if point.kind == "module"]
    for point, by, given in listed:
        assert point == by
        assert hasattr(nn.Module, f"register_{by}_hook")
        assert set(re.findall(r"`(\w+)`", given)) <= set(POINTS[point].offers)


def test_the_examples_do_what_the_page_says(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    """tests/runner/test_modules_pytorch.py compares such hooks with ones that are registered by hand."""
    base = trained("base")
    assert capsys.readouterr().out == ""
    trained("prints")
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in printed] == ["0.weight", "0.bias", "0", "1", "2.weight", "2.bias", "2"]
    assert all(torch.equal(weight, base[name]) for name, weight in trained("once").items())
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("Linear(in_features=16, out_features=1, bias=True) makes "), "it is removed afterwards"
    assert not torch.equal(trained("clamps")["2.weight"], base["2.weight"])
    first, later = trained("zeroes", "run.max_epochs=1"), trained("zeroes")
    torch.manual_seed(0)
    namespace: dict[str, Any] = {}
    exec(FILES["net.py"], namespace)
    untrained = namespace["Net"]().get_parameter("0.weight")
    assert torch.equal(first["0.weight"], untrained), "in the first epoch it learns nothing"
    assert not torch.equal(later["0.weight"], untrained)
