"""Budgets of hooks: a warning when one is exceeded, and again only after it was kept."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hookflow.errors import UserError
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from hookflow.runner.logging import budgets
from hookflow.runner.logging.budgets import WARM_UP, WINDOW, Budgets
from tests.conftest import TOY, Trained, messages


def made(*overrides: str) -> tuple[Any, list[str]]:
    """Return the budgets of a pipeline, and the list of their warnings."""
    loaded, warned = parse(TOY.read_text(), TOY, overrides), []
    plan = compile_pipeline(loaded)
    taken = Budgets.of(loaded.pipeline, plan, lambda text, level: warned.append(text))
    ids = {f"{each.hook}@{each.point}": each.id for each in plan.bindings}

    def take(it: int, elapsed: float, iters: int, ms: float, **hooks: float) -> None:
        fired = {f"{ids[name]}": [iters, int(each * 1e6), 0, 0, [0]] for name, each in hooks.items()}
        frame = {"it": it, "elapsed": elapsed, "iters": [iters, int(ms * 1e6), 0, 0, [0]], "hooks": fired}
        assert taken is not None
        taken.take(frame)  # type: ignore[arg-type]

    return take, warned


CLIP = "clip@before_optimizer_step"
ACCURACY = "accuracy@after_val_iter"


def test_a_share_is_held_over_the_window_and_warned_of_once() -> None:
    take, warned = made('hooks.clip.budget="1%"')
    take(WARM_UP, 1.0, WARM_UP, 100.0, **{CLIP: 90.0})
    take(WARM_UP + 10, 2.0, 10, 100.0, **{CLIP: 0.9})
    assert not warned, "the first iterations do not count"
    take(WARM_UP + 20, 3.0, 10, 100.0, **{CLIP: 5.0})
    (warning,) = warned
    assert warning.startswith('hook "clip": 2.9 % of the iterations,')
    assert warning.endswith("each, and the budget is 1%; most of it at before_optimizer_step")
    take(WARM_UP + 30, 4.0, 10, 100.0, **{CLIP: 5.0})
    assert len(warned) == 1
    take(WARM_UP + 40, 4.0 + WINDOW, 10, 100.0, **{CLIP: 0.1})
    take(WARM_UP + 50, 5.0 + WINDOW, 10, 100.0, **{CLIP: 0.1})
    take(WARM_UP + 60, 6.0 + WINDOW, 10, 100.0, **{CLIP: 9.0})
    assert len(warned) == 2, "it was kept in between"


def test_a_time_counts_by_iteration_and_all_hooks_may_have_a_budget() -> None:
    take, warned = made('run.budget="0.5ms"', 'hooks.accuracy.budget="200us"')
    take(WARM_UP, 1.0, WARM_UP, 100.0)
    take(WARM_UP + 10, 2.0, 10, 100.0, **{CLIP: 3.0, ACCURACY: 1.9})
    assert not warned
    take(WARM_UP + 20, 3.0, 10, 100.0, **{CLIP: 3.0, ACCURACY: 2.3})
    assert [each.partition(":")[0] for each in warned] == ['hook "accuracy"', "all hooks together"]
    assert warned[1].endswith("and the budget is 0.5ms; most of it clip at before_optimizer_step")


class Slow:
    def after_train_iter(self, run: Any) -> None:
        time.sleep(0.02)


def test_a_run_warns(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "WARM_UP", 0)
    slow = f'hooks.slow={{use="{__file__}:Slow", budget="10%"}}'
    warned = [text for text in messages(trained(slow, "run.max_epochs=9"), "warn") if "budget" in text]
    assert len(warned) == 1 and warned[0].startswith('hook "slow": ') and "at after_train_iter" in warned[0]
    assert not [text for text in messages(trained(slow.replace("10%", "100%"))) if "budget is" in text]


@pytest.mark.parametrize("written", ["0%", "1", "2s", "fast"])
def test_what_is_no_budget_is_refused(written: str) -> None:
    with pytest.raises(UserError, match=f'"{written}" is no budget; write "1%"'):
        parse(TOY.read_text(), TOY, [f'hooks.clip.budget="{written}"'])
