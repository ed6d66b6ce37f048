"""Hooks with triggers in a run: conditions, and what a hook watches at every visit of its point."""

from __future__ import annotations

from typing import Any

import pytest

from hookflow.events.rundir import RunDir
from hookflow.hooks.base import Hook
from tests.conftest import NewRun, Trained, messages, records


def told(at: str, when: str, name: str = "told", **more: object) -> str:
    """Return an override for a hook that says where it fires."""
    written = "".join(f", {key}={value}" for key, value in more.items())
    quoted = when.replace('"', '\\"')
    return f'hooks.{name}={{use="./watchers.py:tells", points=["{at}"], when="{quoted}"{written}}}'


def logged(run_dir: RunDir, name: str) -> dict[object, float]:
    return {r["it"]: r["v"][name] for r in records(run_dir, "scalars") if name in r["v"]}  # type: ignore[index,operator]


def iterations(run_dir: RunDir, name: str = "told") -> list[object]:
    """Return the iterations that were done when a hook fired."""
    return [r["it"] for r in records(run_dir, "message") if (r["text"], r["source"]) == ("told", name)]


CONDITIONS: list[tuple[str, str, dict[str, object], list[int]]] = [
    ("after_train_iter", "iter % 4 == 1 and epoch >= 1", {}, [9, 13]),
    ("before_train_iter", "iter < 2 and rank == 0", {}, [0, 1]),
    ("after_train_iter", "iter == max_iters - 1 or epoch == max_epochs", {}, [14]),
    ("after_train_epoch", "epoch > 1", {}, [10, 15]),
    ("after_train", "metrics.loss > 0 and metrics.accuracy >= 0", {}, [15]),
    ("before_train_epoch", "accuracy >= 0", {}, [5, 10]),
    ("after_val", "not (iter < 10)", {}, [10, 15]),
    ("forward", "iter == 3", {"modules": '["head"]'}, [3]),
    ("after_train_iter", 'value("train/iter") == 4', {}, [4]),  # quoted, since it is no identifier
    ("after_train_iter", "iter > 5", {"every": 4}, [8, 12]),  # not at 6, where it would hold first
    ("after_train_iter", "unheard > 1", {"every": 100}, []),  # never due, so never asked
    ("after_train_iter", "accuracy >= 0", {}, [*range(6, 16)]),  # which is missing at first
]


def test_each_fires_only_where_its_condition_holds(trained: Trained) -> None:
    slashed = 'hooks.slashed={use="./watchers.py:logs_iter", points=["after_train_iter"], phase="first"}'
    hooks = [told(at, when, f"told{k}", **more) for k, (at, when, more, _) in enumerate(CONDITIONS)]
    run_dir = trained(slashed, *hooks)
    fired = {when: iterations(run_dir, f"told{k}") for k, (_, when, *_) in enumerate(CONDITIONS)}
    assert fired == {when: expected for _, when, _, expected in CONDITIONS}
    assert not messages(run_dir, "warn")


def test_the_loss_is_that_of_the_iteration_at_hand(trained: Trained) -> None:
    every = "hooks.log.points=[{at='after_train_iter'}]"
    losses = logged(trained(every), "loss")
    middle = sorted(losses.values())[7]
    when = f"loss > {middle!r}"
    run_dir = trained(every, told("after_train_iter", when), told("before_train_iter", when, "before"))
    above = [it for it, loss in losses.items() if loss > middle]
    assert iterations(run_dir) == above
    assert iterations(run_dir, "before") == [it for it in above if it != 15]


UNHEARD = {
    "los > 1": 'did you mean "loss"?',
    "metrics.acuracy > 1": 'did you mean "metrics.accuracy"?',
    "logits > 1": "",
    "zzz > 1": "there are accuracy, grad_norm, loss, lr, metrics.accuracy, metrics.loss, samples_per_s",
}


def test_names_that_nobody_ever_logs_are_told_at_the_end(trained: Trained) -> None:
    hooks = [told("after_train_iter", when, f"told{k}") for k, when in enumerate(UNHEARD)]
    run_dir = trained(*hooks, "run.sanity=false")
    assert "told" not in messages(run_dir)
    lines = messages(run_dir, "warn")[-len(UNHEARD) :]  # those before are what `check` warns of
    for k, (when, hint) in enumerate(UNHEARD.items()):
        start = f'hook "told{k}": nobody has ever logged the "{when.split()[0]}" of its condition "{when}"; {hint}'
        assert [line for line in lines if line.startswith(start)], (start, lines)


def test_a_resumed_run_remembers_what_conditions_look_at(resumes_alike: NewRun) -> None:
    """The condition is asked before the first iteration after the resume, of a loss from before it."""
    asked = told("before_train_iter", "loss < 1 or grad_norm < 0.9", every=2)
    everything = records(resumes_alike("run.max_epochs=4", asked, point="after_forward", at=11))
    begins = [k for k, record in enumerate(everything) if record["k"] == "run"]
    assert 12 in [record["it"] for record in everything[begins[1] :] if record.get("text") == "told"]


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
