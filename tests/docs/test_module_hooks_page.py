"""docs/module-hooks.md: its examples do what the same functions do when they are registered by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
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

BY_HAND = """
from clamps import clamps
from net import Net
from zeroes import zeroes


def clamped():
    net = Net()
    net[2].register_forward_hook(clamps)
    return net


def zeroed():
    net = Net()
    net[2].register_full_backward_hook(zeroes)
    return net
"""


@pytest.fixture
def trained(tmp_path: Path, train_here: Callable[..., int]) -> Trained:
    """Train an example of the page, with overrides, and return its last weights."""
    for name, text in {**FILES, "by_hand.py": BY_HAND}.items():
        (tmp_path / name).write_text(text)

    def train(name: str, *overrides: str) -> Weights:
        loaded = load(tmp_path / f"{name}.toml", ["run.threads=1", "run.device=cpu", *overrides])
        run_dir = RunDir.create(tmp_path / "runs", name)
        prepare(loaded, compile_pipeline(loaded), run_dir, tmp_path)
        assert train_here(run_dir) == 0
        checkpoint = CheckpointStore(run_dir.checkpoints, {}).names()["last"]
        return torch.load(checkpoint / "model.pt", weights_only=True)  # type: ignore[no-any-return]

    return train


def from_page(name: str) -> dict[str, Any]:
    space: dict[str, Any] = {}
    exec(FILES[name], space)
    return space


def function(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = from_page(f"{name}.py")[name]
    return found


def first_batch() -> tuple[nn.Sequential, torch.Tensor]:
    """Return a net like that of the examples before it is trained, and as many examples as a batch has."""
    torch.manual_seed(0)
    net: nn.Sequential = from_page("net.py")["Net"]()
    return net, torch.randn(16, 2)


def test_every_example_is_tried() -> None:
    assert {name for name in FILES if name.endswith(".toml")} == {"base.toml", *(f"{name}.toml" for name in EXAMPLES)}


def test_all_points_inside_the_network_are_listed() -> None:
    listed = re.findall(r"^\| `(\w+)` \| `register_(\w+)_hook` \| ([^|]*) \|", PAGE, re.MULTILINE)
    assert [point for point, *_ in listed] == [point.name for point in POINTS if point.kind == "module"]
    for point, by, given in listed:
        assert point == by
        assert hasattr(nn.Module, f"register_{by}_hook")
        assert set(re.findall(r"`(\w+)`", given)) <= set(POINTS[point].offers)


def test_it_prints_every_child_as_by_hand(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    trained("prints")
    printed = capsys.readouterr().out.splitlines()
    net, inputs = first_batch()
    for name, child in net.named_children():
        child.register_forward_hook(
            lambda module, input, output, name=name: function("prints")(module, name, input, output)  # noqa: A006
        )
    net(inputs)
    assert printed == capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in printed] == ["0.weight", "0.bias", "0", "1", "2.weight", "2.bias", "2"]


def test_it_is_removed_after_the_first_batch(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    assert all(torch.equal(weight, trained("base")[name]) for name, weight in trained("once").items())
    (printed,) = capsys.readouterr().out.splitlines()
    assert printed.startswith("Linear(in_features=16, out_features=1, bias=True) makes ")
    removed: list[bool] = []
    run = SimpleNamespace(handle=SimpleNamespace(remove=lambda: removed.append(True)))
    function("once")(run, nn.Identity(), (), torch.ones(2))
    assert removed


def test_it_changes_the_output_as_by_hand(trained: Trained) -> None:
    clamped, by_hand = trained("clamps"), trained("base", "model.use=./by_hand.py:clamped")
    assert all(torch.equal(weight, by_hand[name]) for name, weight in clamped.items())
    assert not torch.equal(clamped["2.weight"], trained("base")["2.weight"])


def test_it_zeroes_the_gradient_as_by_hand_in_the_first_epoch(trained: Trained) -> None:
    one = "run.max_epochs=1"
    zeroed, by_hand = trained("zeroes", one), trained("base", one, "model.use=./by_hand.py:zeroed")
    assert all(torch.equal(weight, by_hand[name]) for name, weight in zeroed.items())
    net, _ = first_batch()
    assert torch.equal(zeroed["0.weight"], net.get_parameter("0.weight")), "it has learned nothing"
    assert not torch.equal(trained("zeroes")["0.weight"], net.get_parameter("0.weight")), "later it does"
