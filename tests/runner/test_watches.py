"""`Hook.watches`: what a hook sees at every visit of a point, though it fires there now and then."""

from __future__ import annotations

from typing import Any

import pytest

from hookflow.hooks.base import Hook
from tests.conftest import Trained, records


class Sees(Hook):
    """Watches the iterations; says at which it fires, and which it has seen by then."""

    reads = ("outputs",)

    def __init__(self, fails_at: int = 0) -> None:
        self.seen: list[int] = []
        self.fails_at = fails_at
        self.watches = {"after_train_iter": self.see}

    def see(self, run: Any, outputs: Any) -> None:
        assert "loss" in outputs
        if run.iter == self.fails_at:
            raise RuntimeError("cannot look")
        self.seen.append(run.iter)

    def after_train_iter(self, run: Any, outputs: Any) -> None:
        run.say(f"{run.iter}: {self.seen}")


def sees(more: str, args: str = "") -> str:
    return f'hooks.sees={{use="tests.runner.test_watches:Sees", args={{{args}}}, {more}}}'


def said(run_dir: Any) -> list[object]:
    return [record["text"] for record in records(run_dir, "message") if record["source"] == "sees"]


# the first is fired by generated code, the second by the dispatcher
@pytest.mark.parametrize("trigger", ["every=3", 'every=3, when="iter > 0"'])
def test_every_iteration_is_seen_and_the_trigger_holds(trained: Trained, trigger: str) -> None:
    run_dir = trained(sees(trigger), "run.max_epochs=2", "data.train.args={examples=32}")
    assert said(run_dir) == ["3: [1, 2, 3]", "6: [1, 2, 3, 4, 5, 6]"]


@pytest.mark.parametrize("trigger", ["every=3", 'every=3, when="iter > 0"'])
def test_one_that_has_failed_is_switched_off(trained: Trained, trigger: str) -> None:
    off = sees(f'{trigger}, on_error="disable"', "fails_at=5")
    run_dir = trained(off, "run.max_epochs=2", "data.train.args={examples=32}")
    assert said(run_dir) == ["3: [1, 2, 3]"]
    assert [error["text"] for error in records(run_dir, "error")] == ["cannot look"]
