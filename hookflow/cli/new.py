"""`hookflow new`: create the files of a new pipeline or hook."""

from __future__ import annotations

import keyword
import re
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from hookflow.cli.output import echo
from hookflow.errors import Problem, UserError, Where
from hookflow.hooks.registry import BUILT_IN


class Kind(StrEnum):
    """The kinds of files."""

    pipeline = "pipeline"
    hook = "hook"


PIPELINE = {
    "NAME.toml": """\
# Train it:  hookflow run NAME.toml        Look at its graph:  hookflow graph NAME.toml

[run]
name = "NAME"
max_epochs = 5                          # or max_iters = 2_000

[model]
use = "./NAME.py:Net"                   # a class or function of the file beside this one, or "package.module:Name"
args = { width = 64 }

[optimizer]
use = "torch.optim:AdamW"
args = { lr = 3e-3 }

[data.train]
use = "./NAME.py:points"                # makes a Dataset; `loader` makes batches of it
args = { examples = 4096, seed = 0 }
loader = { batch_size = 64 }

[data.val]
use = "./NAME.py:points"
args = { examples = 1024, seed = 1 }
loader = { batch_size = 256 }

# [task]                                # what a batch becomes: left out, classification by cross-entropy
# use = "./NAME.py:step"

[hooks.accuracy]
use = "accuracy"

[hooks.log]
use = "log"
points = [{ at = "after_train_iter", every = 20 }]

[hooks.checkpoint]
use = "checkpoint"
args = { monitor = "accuracy" }
""",
    "NAME.py": '''\
"""The model and the data of NAME.toml."""

import torch
from torch import nn
from torch.utils.data import TensorDataset


class Net(nn.Sequential):
    """Two layers, from a point of the plane to the logits of two classes."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))


def points(examples: int, seed: int) -> TensorDataset:
    """Return random points, each with the class 1 if it lies in a circle; put your own data in their place."""
    where = torch.randn(examples, 2, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(where, (where.norm(dim=1) < 1.2).long())


def step(run, batch):
    """Return the loss of a batch: a task of your own. NAME.toml names it in [task]."""
    inputs, target = batch
    logits = run.model(inputs)
    return {"loss": nn.functional.cross_entropy(logits, target), "logits": logits, "target": target}
''',
}
HOOK = {
    "NAME.py": '''\
"""A hook for hookflow. A pipeline names it: use = "./NAME.py:CLASS"."""

import torch

from hookflow.hooks.base import Hook


class CLASS(Hook):
    """Logs the norm of the weights."""

    reads = ("model",)  # it fires after hooks that write the model at the same point

    def __init__(self, p: float = 2.0) -> None:
        self.p = p

    def after_train_iter(self, run) -> None:
        norms = [weights.detach().norm(self.p) for weights in run.model.parameters()]
        run.log("NAME", torch.stack(norms).norm(self.p))
''',
    "NAME.toml": """\
# A small training to try the hook in:  hookflow run NAME.toml

[run]
name = "NAME"
max_epochs = 4

[model]
use = "hookflow.zoo.circle:Net"

[optimizer]
use = "torch.optim:Adam"
args = { lr = 0.02 }

[data.train]
use = "circle"

[data.val]
use = "circle"
args = { split = "val" }

[hooks.NAME]
use = "./NAME.py:CLASS"
args = { p = 2.0 }
every = 10                              # iterations, since it fires at a point of iterations

[hooks.log]
use = "log"
points = [{ at = "after_train_iter", every = 10 }]
""",
    "test_NAME.py": '''\
"""Run it with: pytest test_NAME.py"""

import pathlib
import subprocess
import sys
import types

import torch
from NAME import CLASS


def test_it_logs_the_norm_of_the_weights():
    model = torch.nn.Linear(2, 1, bias=False)
    model.weight.data = torch.tensor([[3.0, 4.0]])
    logged = {}
    CLASS().after_train_iter(types.SimpleNamespace(model=model, log=logged.__setitem__))
    assert logged["NAME"].item() == 5.0


def test_a_pipeline_trains_with_it(tmp_path):
    pipeline = pathlib.Path(__file__).with_name("NAME.toml")
    command = [sys.executable, "-m", "hookflow", "run", str(pipeline), "--set=run.max_epochs=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NAME" in next(tmp_path.glob("runs/*/*/events.jsonl")).read_text()
''',
}
NEXT = {
    Kind.pipeline: (
        "train it with `hookflow run {name}.toml`;",
        "the model and the data in {name}.py are examples: put your own in their place",
    ),
    Kind.hook: (
        "try it with `hookflow run {name}.toml`, test it with `pytest test_{name}.py`;",
        'in a pipeline of yours: [hooks.{name}] with use = "./{name}.py:{type_name}"',
    ),
}


def new(
    kind: Annotated[Kind, typer.Argument(metavar="pipeline|hook", help="What to make.", show_default=False)],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, and that of its files.", show_default=False)],
) -> None:
    """Make a pipeline or a hook to begin with.

    NAME.toml and NAME.py, which train at once, are written into the current folder; no file is overwritten. A hook
    comes with its test, test_NAME.py.

    Example: `hookflow new pipeline spirals`
    """
    type_name = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    blanks = {"NAME": name, "CLASS": type_name}
    texts = PIPELINE if kind is Kind.pipeline else HOOK
    files = {Path(file.replace("NAME", name)): text for file, text in texts.items()}
    _refuse(kind, name, files)
    for path, text in files.items():
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(re.sub("NAME|CLASS", lambda blank: blanks[blank[0]], text))
        except OSError as error:
            raise UserError(Problem(f"cannot be written: {error.strerror}", Where(str(path)))) from None
    echo(f"wrote {', '.join(map(str, files))}")
    for line in NEXT[kind]:
        echo(line.format(name=name, type_name=type_name))


def _refuse(kind: Kind, name: str, files: dict[Path, str]) -> None:
    """Raise UserError where the name cannot be that of a Python module, means another one, or a file is there."""
    where = Where("NAME")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or keyword.iskeyword(name):
        hint = "letters, digits and _, a letter first: it names a Python file and a class"
        raise UserError(Problem(f'"{name}" cannot be a name', where, hint))
    if there := [path for path in files if path.exists() or path.is_symlink()]:
        raise UserError([Problem("is there already, and is not overwritten", Where(str(path))) for path in there])
    if kind is Kind.hook and name in BUILT_IN:
        raise UserError(Problem(f'"{name}" is a built-in hook', where, "choose another name"))
    if (module := find_spec(name)) is not None and module.origin is not None:  # a mere folder hides nothing
        message = f'"{name}" is the name of a Python module: a file {name}.py here would hide it'
        raise UserError(Problem(message, where, "choose another name"))
