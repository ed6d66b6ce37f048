"""Hooks with triggers in a run: conditions, and what a hook watches at every visit of its point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hookflow.events.rundir import RunDir
from hookflow.hooks.base import Hook
from tests.conftest import NewRun, Trained, messages, records
from tests.processes import Training
from tests.runner.same import assert_same_end


def told(at: str, when: str, **more: object) -> str:
    written = "".join(f", {key}={value}" for key, value in more.items())
    quoted = when.replace('"', '\\"')
    return f'hooks.told={{use="./watchers.py:tells", points=["{at}"], when="{quoted}"{written}}}'


def fired(run_dir: RunDir) -> list[tuple[object, object]]:
    return [(r["it"], r["ep"]) for r in records(run_dir, "message") if r["text"] == "told"]


def logged(run_dir: RunDir, name: str) -> dict[object, float]:
    return {r["it"]: r["v"][name] for r in records(run_dir, "scalars") if name in r["v"]}  # type: ignore[index,operator]


def iterations(run_dir: RunDir) -> list[object]:
    return [it for it, _ in fired(run_dir)]


@pytest.mark.parametrize(
    ("at", "when", "expected"),
    [
        ("after_train_iter", "iter % 4 == 1 and epoch >= 1", [9, 13]),
        ("before_train_iter", "iter < 2 and rank == 0", [0, 1]),
        ("after_train_iter", "iter == max_iters - 1 or epoch == max_epochs", [14]),
        ("after_train_epoch", "epoch > 1", [10, 15]),
        ("after_train", "metrics.loss > 0 and metrics.accuracy >= 0", [15]),
        ("before_train_epoch", "accuracy >= 0", [5, 10]),
        ("after_val", "not (iter < 10)", [10, 15]),
        ("forward", "iter == 3", [3]),
    ],
)
def test_it_fires_only_where_the_condition_holds(trained: Trained, at: str, when: str, expected: list[int]) -> None:
    modules = {"modules": '["head"]'} if at == "forward" else {}
    run_dir = trained(told(at, when, **modules))
    assert iterations(run_dir) == expected
    assert not messages(run_dir, "warn")


def test_the_loss_is_that_of_the_iteration_at_hand(trained: Trained) -> None:
    every = "hooks.log.points=[{at='after_train_iter'}]"
    losses = logged(trained(every), "loss")
    middle = sorted(losses.values())[7]
    run_dir = trained(every, told("after_train_iter", f"loss > {middle!r}"))
    assert iterations(run_dir) == [it for it, loss in losses.items() if loss > middle]
    before = trained(every, told("before_train_iter", f"loss > {middle!r}"))
    assert iterations(before) == [it for it, loss in losses.items() if loss > middle and it != 15]


def test_a_name_that_is_no_identifier_is_quoted(trained: Trained) -> None:
    slashed = 'hooks.slashed={use="./watchers.py:logs_iter", points=["after_train_iter"]}'
    assert iterations(trained(slashed, told("after_train_iter", 'value("train/iter") == 4'))) == [4]


def test_a_multiple_at_which_it_does_not_hold_is_spent(trained: Trained) -> None:
    run_dir = trained(told("after_train_iter", "iter > 5", every=4))
    assert iterations(run_dir) == [8, 12], "not at 6, where it would hold first"


def test_who_is_not_due_is_not_asked(trained: Trained) -> None:
    assert not messages(trained(told("after_train_iter", "unheard > 1", every=100)), "warn")


@pytest.mark.parametrize(
    ("when", "hint"),
    [
        ("los > 1", 'did you mean "loss"?'),
        ("metrics.acuracy > 1", 'did you mean "metrics.accuracy"?'),
        ("logits > 1", ""),
        ("zzz > 1", "there are accuracy, grad_norm, loss, lr, metrics.accuracy, metrics.loss, samples_per_s"),
    ],
)
def test_a_name_that_nobody_ever_logs_is_told_at_the_end(trained: Trained, when: str, hint: str) -> None:
    run_dir = trained(told("after_train_iter", when), "run.sanity=false")
    assert not fired(run_dir)
    *_, line = messages(run_dir, "warn")  # those before it are what `check` warns of
    name = when.split()[0]
    assert str(line).startswith(f'hook "told": nobody has ever logged the "{name}" of its condition "{when}"; {hint}')


def test_what_was_missing_only_at_first_is_no_matter(trained: Trained) -> None:
    run_dir = trained(told("after_train_iter", "accuracy >= 0"))
    assert iterations(run_dir) == list(range(6, 16))
    assert not messages(run_dir, "warn")


def test_a_resumed_run_remembers_what_conditions_look_at(new_run: NewRun, trained: Trained, tmp_path: Path) -> None:
    """The condition is asked before the first iteration after the resume, of a loss from before it."""
    often = 'hooks.checkpoint.points=[{at="after_train_iter", every=3}]'
    overrides = [often, "run.max_epochs=4", told("before_train_iter", "loss < 1 or grad_norm < 0.9", every=2)]
    alone = trained(*overrides)
    strike = (
        f'hooks.strike={{use="./watchers.py:Interrupts", '
        f'args={{mark="{tmp_path / "mark"}", point="after_forward", at=12, number=9}}}}'
    )
    killed = new_run(*overrides, strike)
    assert Training(killed).wait() == -9
    assert Training(killed, resume=True).wait() == 0
    assert 12 in iterations(alone), "or this test says nothing"
    again = dict.fromkeys(it for it in iterations(killed) if it != 12)  # those after the checkpoint are done twice
    assert list(again) == [it for it in iterations(alone) if it != 12]
    everything = records(killed)
    resumed = everything[[k for k, record in enumerate(everything) if record["k"] == "run"][1] :]
    assert 12 in [record["it"] for record in resumed if record.get("text") == "told"], "it knows the loss from before"
    assert_same_end(alone, killed)


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
    return f'hooks.sees={{use="tests.runner.test_triggered:Sees", args={{{args}}}, {more}}}'


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
