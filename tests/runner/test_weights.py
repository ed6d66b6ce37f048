"""Weights alone: out of a checkpoint into plain PyTorch, and out of a plain file into a run."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.runner.checkpoint.store import CheckpointStore
from tests.conftest import NewRun, records
from tests.toy import Net

Train = Callable[..., int]
DOCS = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text("utf-8")


def reason(run_dir: Any) -> str:
    return str(records(run_dir, "end")[-1]["reason"])


@pytest.mark.parametrize("file", ["model.pt", "model_ema.pt"])
def test_two_lines_load_them_into_plain_pytorch(
    new_run: NewRun, train_here: Train, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    run_dir = new_run("run.max_epochs=1")
    assert train_here(run_dir) == 0
    (block,) = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
    lines = [line for line in block.splitlines() if line and not line.startswith("#")]
    assert len(lines) == 2
    monkeypatch.chdir(run_dir.checkpoints / "last")
    model = Net()
    exec("\n".join(lines).replace("model.pt", file), {"torch": torch, "model": model})
    saved = torch.load(file, weights_only=True)
    assert all(torch.equal(tensor, saved[name]) for name, tensor in model.state_dict().items())


def test_a_plain_file_is_what_a_run_begins_with(new_run: NewRun, train_here: Train, tmp_path: Path) -> None:
    torch.manual_seed(3)
    weights = Net().state_dict()
    torch.save(weights, tmp_path / "weights.pt")
    begins = f'model.weights="{tmp_path / "weights.pt"}"'
    run_dir = new_run(begins, "run.max_epochs=1", "optimizer.args={lr=0.0}")
    assert train_here(run_dir) == 0
    ended = torch.load(CheckpointStore(run_dir.checkpoints).names()["last"] / "model.pt", weights_only=True)
    assert torch.equal(ended["head.weight"], weights["head.weight"])


def test_what_does_not_fit_is_told_at_once_with_the_nearest_names(
    new_run: NewRun, train_here: Train, tmp_path: Path
) -> None:
    weights = Net().state_dict()
    weights["haed.weight"] = weights.pop("head.weight")
    weights["head.bias"] = torch.zeros(4)
    torch.save(weights, tmp_path / "weights.pt")
    run_dir = new_run(f'model.weights="{tmp_path / "weights.pt"}"')
    assert train_here(run_dir) == 2
    said = reason(run_dir)
    assert 'the weights have "haed.weight", and the model does not' in said
    assert 'did you mean "head.weight"?' in said
    assert 'the weights lack "head.weight"' in said
    assert '"head.bias" in the shape (4,), and the model in (3,)' in said


class Evil:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("pwned"),)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no file"),
        (b"", "is no file that torch.save has written"),
        (b"not a zip at all", "holds more than data"),
        (pickle.dumps(Evil(), protocol=2), "holds more than data"),
        ([1, 2], "holds no state_dict, but a list"),
        ({"a": Evil()}, "holds more than data"),
    ],
    ids=["missing", "empty", "text", "pickle", "list", "evil"],
)
def test_what_is_no_state_dict_is_refused_in_words(
    new_run: NewRun,
    train_here: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: object,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if isinstance(content, bytes):
        Path("weights.pt").write_bytes(content)
    elif content is not None:
        torch.save(content, "weights.pt")
    run_dir = new_run('model.weights="weights.pt"')
    assert train_here(run_dir) == 2
    assert said in reason(run_dir)
    assert not Path("pwned").exists(), "nothing of it has run"
    assert not records(run_dir, "error")
