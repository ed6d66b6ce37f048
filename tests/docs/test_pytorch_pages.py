"""docs/pytorch_hooks.md and docs/module-hooks.md: they name PyTorch's points, and their examples train."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookflow.graph.points import POINTS
from hookflow.runner.checkpoint.store import CheckpointStore
from tests.conftest import TESTS, TOY, Trained

HOOKS, MODULES = ((TESTS.parent / "docs" / page).read_text("utf-8") for page in ("pytorch_hooks.md", "module-hooks.md"))
EXAMPLES = re.findall(r"^```toml\n(.*?)^```$", HOOKS, re.MULTILINE | re.DOTALL)
FILES = {name: text for text, name in re.findall(r"```\w+\n(# (\S+)\n.*?)```", MODULES, re.DOTALL)}


def test_every_point_is_named() -> None:
    named = set(re.findall(r"`(\w+)`", HOOKS))
    assert {point.name for point in POINTS if point.nested and point.kind != "log"} <= named
    listed = re.findall(r"^\| `(\w+)` \| `register_(\w+)_hook` \| ([^|]*) \|", MODULES, re.MULTILINE)
    assert [point for point, *_ in listed] == [point.name for point in POINTS if point.kind == "module"]
    for point, by, given in listed:
        assert point == by
        assert hasattr(nn.Module, f"register_{by}_hook")
        assert set(re.findall(r"`(\w+)`", given)) <= set(POINTS[point].offers)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.partition("\n")[0])
def test_the_examples(example: str, tmp_path: Path, trained: Trained) -> None:
    """Each is added to the toy pipeline, with the functions that its comments define."""
    for file, function in re.findall(r'"\./(\w+\.py):\w+" +# (def .*)', example):
        with (tmp_path / file).open("a") as written:
            written.write(f"import torch\n{function}\n")
    (tmp_path / "toy.py").write_text((TESTS / "toy.py").read_text())
    toy = TOY.read_text().replace("max_epochs = 3", "max_iters = 2")
    (tmp_path / "toy.toml").write_text(f"{toy}\n{example}")
    code = 2 if "compress" in example else 0  # in one process there is nothing to compress
    trained(code=code, pipeline=tmp_path / "toy.toml")


def test_the_examples_inside_modules_do_what_the_page_says(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """tests/runner/test_modules.py compares such hooks with ones that are registered by hand."""
    for file, text in FILES.items():
        (tmp_path / file).write_text(text)

    def weights(name: str, *overrides: str) -> dict[str, torch.Tensor]:
        run_dir = trained("run.device=cpu", *overrides, pipeline=tmp_path / f"{name}.toml")
        checkpoint = CheckpointStore(run_dir.checkpoints, {}).names()["last"]
        return torch.load(checkpoint / "model.pt", weights_only=True)  # type: ignore[no-any-return]

    examples = {"base", "prints", "once", "clamps", "zeroes"}
    assert {name for name in FILES if name.endswith(".toml")} == {f"{name}.toml" for name in examples}
    base = weights("base")
    assert capsys.readouterr().out == ""
    weights("prints")
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in printed] == ["0.weight", "0.bias", "0", "1", "2.weight", "2.bias", "2"]
    assert all(torch.equal(weight, base[name]) for name, weight in weights("once").items())
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("Linear(in_features=16, out_features=1, bias=True) makes "), "it is removed afterwards"
    assert not torch.equal(weights("clamps")["2.weight"], base["2.weight"])
    first, later = weights("zeroes", "run.max_epochs=1"), weights("zeroes")
    torch.manual_seed(0)
    namespace: dict[str, Any] = {}
    exec(FILES["net.py"], namespace)
    untrained = namespace["Net"]().get_parameter("0.weight")
    assert torch.equal(first["0.weight"], untrained), "in the first epoch it learns nothing"
    assert not torch.equal(later["0.weight"], untrained)
