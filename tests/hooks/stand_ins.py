"""A run made of nothing but what a hook asks for,
and pipelines with a hook of a source file that a test writes.
"""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from hookflow.errors import UserError
from hookflow.graph.plan import Plan
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.by_epoch import EpochLengths
from hookflow.pipeline.load import Loaded, parse
from tests.support.built_in_hooks import SAMPLES, inline


class StandIn(SimpleNamespace):
    """A run of one process that keeps what hooks log, say and ask for."""

    def __init__(
        self, model: Any = None, optimizer: torch.optim.Optimizer | None = None, **other: Any
    ) -> None:
        self.logged: dict[str, list[float]] = {}
        self.messages: list[str] = []
        self.saved: list[str] = []
        self.moved: dict[str, int] = {}
        self.stopped: list[str] = []
        self.skipped = 0
        self.metrics: Mapping[str, float] = {}
        super().__init__(
            **{
                "model": model,
                "models": {"model": model},
                "optimizers": {} if optimizer is None else {"optimizer": optimizer},
                "device": torch.device("cpu"),
                "iter": 0,
                "epoch": 0,
                "max_iters": 20,
                "iters_per_epoch": 5,
                "epoch_lengths": EpochLengths.constant(other.get("iters_per_epoch", 5)),
                "world": 1,
                "rank": 0,
                "repeats": False,
                "data": {},
                "hooks": {},
                "task": None,
                **other,
            }
        )
        for group in optimizer.param_groups if optimizer is not None else ():
            group.setdefault("initial_lr", group["lr"])

    @property
    def last(self) -> dict[str, float]:
        """The newest number of each name that was logged."""
        return {name: values[-1] for name, values in self.logged.items()}

    def model_being_updated(self, model: str | None = None) -> nn.Module:
        return self.models[model or "model"]  # type: ignore[no-any-return]

    def metric(self, name: str) -> float:
        return self.metrics[name]

    def log(self, name: str, value: Any) -> None:
        self.logged.setdefault(name, []).append(float(value))

    def say(self, text: str, level: str = "info") -> None:
        self.messages.append(text)

    def save_checkpoint(
        self, *names: str, moved: Mapping[str, int] | None = None, **_: Any
    ) -> None:
        self.saved += names
        self.moved |= moved or {}

    def stop(self, reason: str) -> None:
        self.stopped.append(reason)

    def skip_step(self) -> None:
        self.skipped += 1

    def evaluate(self, batch: Any) -> Any:
        return self.task.evaluate(self, batch)

    def sum(self, value: Any) -> Any:
        return value

    def mean(self, value: Any) -> Any:
        return value


class OnCuda(torch.Tensor):
    """A tensor of the host that says it is one of a GPU."""

    is_cuda = True


NOW = [0.0]
"""The time of a clock that only the hook moves."""


def takes_a_second(run: Any) -> None:
    """Move the clock, and let the run come to a safe point after this iteration."""
    NOW[0] += 1
    run._state.attention = True


HEAD = """
run = { name = "troubles", max_epochs = 1 }
model.use = "torch.nn:Identity"
optimizer.use = "torch.optim:SGD"
data.train.use = "cifar10"
"""
USE = 7
"""The line of the hook's `use`."""


def pipeline_with(folder: Path, code: str, table: str = "", name: str = "It") -> Loaded:
    """Return a pipeline with the hook "it", which is called `name` in a file of this code;
    other tables may follow.
    """
    file = f"h{len(list(folder.iterdir()))}.py"  # a file is imported once
    (folder / file).write_text(code)
    return parse(f'{HEAD}[hooks.it]\nuse = "./{file}:{name}"\n{table}\n', folder / "p.toml")


IMPORTS = (
    "from enum import Enum\nfrom functools import *\nfrom pathlib import Path\nfrom torch import"
    " nn\n"
)
ARGUMENTS = {**SAMPLES, "comm_hook": {"algorithm": "fp16_compress"}}


def faults(folder: Path, code: str, table: str = "") -> list[str]:
    """Return what is said of the hook `It` of a file of this code."""
    try:
        compile_pipeline(pipeline_with(folder, IMPORTS + code, table))
    except UserError as error:
        return [
            f"{problem.where.line if problem.where else ''}: {problem.message}"
            for problem in error.problems
        ]
    return []


def plan(*uses: str, more: str = "") -> Plan:
    tables = "".join(
        f'[hooks.{use}]\nuse = "{use}"\nargs = {inline(ARGUMENTS.get(use, {}))}\n' for use in uses
    )
    return compile_pipeline(parse(HEAD + tables + more, Path("troubles.toml")))
