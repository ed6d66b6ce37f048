"""Pipelines with a hook of a source file that a test writes."""

from __future__ import annotations

from pathlib import Path

from hookflow.pipeline.load import Loaded, parse

HEAD = """
run = { name = "troubles", max_epochs = 1 }
model.use = "torch.nn:Identity"
optimizer.use = "torch.optim:SGD"
data.train.use = "cifar10"
"""
USE = 7
"""The line of the hook's `use`."""


def pipeline_with(folder: Path, code: str, table: str = "", name: str = "It") -> Loaded:
    """Return a pipeline with the hook "it", which is called `name` in a file of this code; other tables may follow."""
    file = f"h{len(list(folder.iterdir()))}.py"  # a file is imported once
    (folder / file).write_text(code)
    return parse(f'{HEAD}[hooks.it]\nuse = "./{file}:{name}"\n{table}\n', folder / "p.toml")
