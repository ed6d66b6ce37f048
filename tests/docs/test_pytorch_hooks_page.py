"""docs/pytorch_hooks.md: it names every point that PyTorch comes to, and its examples are hooks that train."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hookflow.events.rundir import RunDir
from hookflow.graph.points import POINTS
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from hookflow.runner.process.launch import prepare
from tests.conftest import TESTS, TOY

PAGE = (TESTS.parent / "docs" / "pytorch_hooks.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_every_point_is_named() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert {point.name for point in POINTS if point.nested and point.kind != "log"} <= named


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.partition("\n")[0])
def test_the_examples(example: str, tmp_path: Path, train_here: Callable[..., int]) -> None:
    """Each is added to the toy pipeline, with the functions that its comments define."""
    for file, function in re.findall(r'"\./(\w+\.py):\w+" +# (def .*)', example):
        with (tmp_path / file).open("a") as written:
            written.write(f"import torch\n{function}\n")
    (tmp_path / "toy.py").write_text((TESTS / "toy.py").read_text())
    text = TOY.read_text().replace("max_epochs = 3", "max_iters = 2\nthreads = 1")
    loaded = parse(f"{text}\n{example}", tmp_path / "toy.toml")
    run_dir = RunDir.create(tmp_path / "runs", "toy")
    prepare(loaded, compile_pipeline(loaded), run_dir, tmp_path)
    assert train_here(run_dir) == (2 if "compress" in example else 0), "in one process there is nothing to compress"
