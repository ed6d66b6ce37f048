"""After which iterations ranks wait for one another, by what the plan says of its hooks."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import load
from hookflow.runner.distributed.settling import settled_iterations

CLOUDS = Path(__file__).parent / "clouds.toml"
ITERS_PER_EPOCH, MAX_ITERS = 5, 20


def settled(*overrides: str) -> list[int] | None:
    found = settled_iterations(compile_pipeline(load(CLOUDS, overrides)), ITERS_PER_EPOCH, MAX_ITERS)
    return None if found is None else [it for it in range(1, MAX_ITERS + 1) if found(it)]


def saves(at: str) -> str:
    return f"hooks.checkpoint.points=[{at}]"


def asks(*keys: str) -> str:
    return "hooks.asks={" + ", ".join(('use="./clouds.py:far"', 'writes=["control"]', *keys)) + "}"


@pytest.mark.parametrize(
    ("hooks", "expected"),
    [
        (saves('"after_train_epoch", "after_val"'), None),
        (saves('{at="after_train_iter", every=7}'), [7, 14]),
        (saves('{at="after_train_iter", every="2ep"}'), [10, 20]),
        (saves('{at="after_train_iter", every="25%"}'), [5, 10, 15, 20]),
        (saves('{at="after_train_iter", every="30s"}'), None),
        (asks('points=["after_train_epoch"]'), None),
        (asks('points=["after_train_iter"]', "every=10", 'when="loss > 3"'), [10, 20]),
        (asks('points=["before_train_iter"]', "every=10"), [1, 11]),
        (asks('points=["after_backward"]'), [*range(1, 21)]),
        (asks('points=["after_backward"]', 'ranks="zero"'), None),
    ],
)
def test_ranks_wait_where_hooks_may_ask(hooks: str, expected: list[int] | None) -> None:
    assert settled(hooks) == expected
