"""Runs whose hooks PyTorch calls, beside the same runs with those hooks
registered by hand, in plain PyTorch.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from hookflow.events.rundir import RunDir
from hookflow.pipeline.source_map import as_toml
from hookflow.runner.builder.components import RunComponents
from hookflow.runner.loop import trainer
from hookflow.runner.process.state import RunState
from tests.conftest import Trained
from tests.runner.same import final_state

ByHand = Callable[[RunComponents, RunState], Iterable[Any]]
Ran = Callable[..., tuple[RunDir, list[Any]]]
SHORT = (
    "run.max_iters=2",
    "run.val_every=2",
    "hooks.clip.enabled=false",
    "hooks.log.points=['after_train_iter']",
)
SWAP = ("max_epochs = 3\n", "")
CALLS: list[Any] = []
"""What the hooks of a test have seen, in the order of their calls."""


def hook(name: str, use: Callable[..., Any], *points: str, **keys: Any) -> str:
    """Return an override that puts a function or class at these points."""
    table = {
        "use": f"{use.__module__}:{use.__qualname__}",
        **({"points": list(points)} if points else {}),
        **keys,
    }
    return f"hooks.{name}={as_toml(table)}"


@pytest.fixture
def ran(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Train, with hooks that are registered `by_hand` in place of the pipeline's;
    return what they saw.
    """

    def run(*overrides: str, by_hand: ByHand | None = None, **how: Any) -> tuple[RunDir, list[Any]]:
        def register(
            parts: RunComponents, engine: object, state: RunState, undoing: ExitStack
        ) -> None:
            for handle in by_hand(parts, state) if by_hand else ():
                undoing.callback(handle.remove)

        CALLS.clear()
        with monkeypatch.context() as patched:
            if by_hand:
                patched.setattr(trainer, "register_hooks", register)
            run_dir = trained(*overrides, **{"swap": SWAP, **how})
        return run_dir, list(CALLS)

    return run


def weights(run_dir: RunDir) -> dict[str, torch.Tensor]:
    return final_state(run_dir)["model"]  # type: ignore[return-value]


def assert_same_weights(one: RunDir, other: RunDir, *, but: RunDir | None = None) -> None:
    first, second = weights(one), weights(other)
    assert all(torch.equal(first[name], second[name]) for name in first)
    if but is not None:
        third = weights(but)
        assert not all(torch.equal(first[name], third[name]) for name in first), (
            "the hooks change something"
        )


def notes_name(name: str | None) -> None:
    CALLS.append(name)
