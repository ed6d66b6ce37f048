"""Runs whose hooks PyTorch calls, beside the same runs with those hooks registered by hand, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.events.rundir import RunDir
from hookflow.pipeline.source_map import as_toml
from hookflow.runner.builder.components import Parts
from hookflow.runner.dispatch import torch_hooks
from hookflow.runner.loop import trainer
from hookflow.runner.process.state import RunState
from tests.conftest import Train, records
from tests.runner.same import final_state

ByHand = Callable[[Parts, RunState], Iterable[Any]]
SHORT = ("run.max_iters=2", "run.val_every=2", "hooks.clip.enabled=false", "hooks.log.points=['after_train_iter']")
SWAP = ("max_epochs = 3\n", "")
CALLS: list[Any] = []
"""What the hooks of a test have seen, in the order of their calls."""


def hook(name: str, use: Callable[..., Any], *points: str, **keys: Any) -> str:
    """Return an override that puts a function or class at these points."""
    table = {"use": f"{use.__module__}:{use.__qualname__}", **({"points": list(points)} if points else {}), **keys}
    return f"hooks.{name}={as_toml(table)}"


def calls_of(train_here: Train, run_dir: RunDir) -> list[Any]:
    """Train, and return what the hooks have seen."""
    CALLS.clear()
    assert train_here(run_dir) == 0, records(run_dir, "error")
    return list(CALLS)


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch, train_here: Train) -> Callable[[RunDir, ByHand], list[Any]]:
    """Train with hooks that are registered by hand in place of the pipeline's, and return what they have seen."""

    def train(run_dir: RunDir, by_hand: ByHand) -> list[Any]:
        def register(parts: Parts, engine: object, state: RunState) -> ExitStack:
            stack = ExitStack()
            for handle in by_hand(parts, state):
                stack.callback(handle.remove)
            return stack

        with monkeypatch.context() as patched:
            patched.setattr(trainer, "register_hooks", register)
            return calls_of(train_here, run_dir)

    return train


def weights(run_dir: RunDir) -> dict[str, torch.Tensor]:
    return final_state(run_dir)["model"]  # type: ignore[return-value]


def assert_same_weights(one: RunDir, other: RunDir, *, but: RunDir | None = None) -> None:
    first, second = weights(one), weights(other)
    assert all(torch.equal(first[name], second[name]) for name in first)
    if but is not None:
        third = weights(but)
        assert not all(torch.equal(first[name], third[name]) for name in first), "the hooks change something"


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[Parts]:
    """Return what each run of the test is made of, to look at when it has ended."""
    found: list[Parts] = []

    def register(parts: Parts, *more: Any) -> ExitStack:
        found.append(parts)
        return torch_hooks.register_hooks(parts, *more)

    monkeypatch.setattr(trainer, "register_hooks", register)
    return found


def interrupted(tmp_path: Path, at: int) -> str:
    args = f'{{mark="{tmp_path / "mark"}", point="after_train_iter", at={at}}}'
    return f'hooks.strike={{use="./watchers.py:Interrupts", args={args}}}'
