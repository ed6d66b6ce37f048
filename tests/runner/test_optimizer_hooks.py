"""Hooks in an optimizer's step: against the same ones by hand, and within the points of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from hookflow.events.rundir import RunDir
from hookflow.runner.builder.components import Parts
from hookflow.runner.process.state import RunState
from tests.conftest import TOY, NewRun, Train
from tests.runner.by_hand import (
    CALLS,
    SHORT,
    SWAP,
    ByHand,
    calls_of,
    hook,
    plainly,
)

__all__ = ["plainly"]


class Steps:
    """Replaces the arguments of each step, so that it has a closure, and sees what comes of it."""

    def optimizer_step_pre(self, name: str, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        return with_closure(name, optimizer, args, kwargs)

    def optimizer_step_post(self, name: str, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        after_step(name, optimizer, args, kwargs)


def with_closure(name: str, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
    CALLS.append(("pre", name, type(optimizer).__name__, len(args)))
    return (*args, lambda: CALLS.append(("closure", name))), kwargs


def after_step(name: str, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    CALLS.append(
        ("post", name, len(args), float(sum(p.detach().sum() for g in optimizer.param_groups for p in g["params"])))
    )


class Around:
    """Sees where the run's own points of a step are."""

    def around_optimizer_step(self) -> Iterator[None]:
        CALLS.append("before_optimizer_step")
        yield
        CALLS.append("after_optimizer_step")


def in_steps(parts: Parts, state: RunState) -> Iterator[Any]:
    for name, optimizer in parts.optimizers.items():
        yield optimizer.register_step_pre_hook(lambda *offered, name=name: with_closure(name, *offered))
        yield optimizer.register_step_post_hook(lambda *offered, name=name: after_step(name, *offered))


GAN = (TOY.read_text(), (TOY.parent / "gan.toml").read_text())


@pytest.mark.parametrize("swap", [SWAP, GAN], ids=["one", "two that a task steps"])
def test_in_an_optimizers_step_as_by_hand(
    new_run: NewRun, train_here: Train, plainly: Callable[[RunDir, ByHand], list[Any]], swap: tuple[str, str]
) -> None:
    ends = "run.max_epochs=1" if swap is GAN else "run.max_iters=2"
    ours, plain = new_run(hook("steps", Steps), ends, swap=swap), new_run(ends, swap=swap)
    seen = calls_of(train_here, ours)
    assert seen == plainly(plain, in_steps)
    names = ["discriminator", "discriminator", "generator"] if swap is GAN else ["optimizer"] * 2
    assert [call[1] for call in seen if call[0] == "closure"][: len(names)] == names


class Direct:
    """A task whose last step is none of the run's."""

    steps_itself = True

    def step(self, run: Any, batch: Any) -> dict[str, torch.Tensor]:
        loss = run.model(batch[0]).square().mean()
        run.backward(loss)
        run.step()
        run.optimizer.step()
        return {"loss": loss}

    def evaluate(self, run: Any, batch: Any) -> dict[str, torch.Tensor]:
        return {"loss": run.model(batch[0]).square().mean()}


def test_they_fire_within_the_points_of_a_step_and_where_those_do_not(new_run: NewRun, train_here: Train) -> None:
    off = [f"hooks.{name}.enabled=false" for name in ("accuracy", "early_stop", "clip", "checkpoint")]
    task = f'task={{use="{__name__}:Direct"}}'
    run_dir = new_run(hook("steps", Steps), hook("around", Around), task, *off, "run.max_iters=1", swap=SWAP)
    seen = [call if isinstance(call, str) else call[0] for call in calls_of(train_here, run_dir)]
    step = ["pre", "closure", "post"]
    assert seen == ["before_optimizer_step", *step, "after_optimizer_step", *step]


class Closes:
    """Gives LBFGS the closure that it cannot do without."""

    def before_train_iter(self, batch: Any) -> None:
        self.batch = batch

    def optimizer_step_pre(self, run: Any, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            with torch.enable_grad():
                loss = nn.functional.cross_entropy(run.model(self.batch[0]), self.batch[1])
                loss.backward()
            CALLS.append(float(loss.detach()))
            return loss

        return (*args, closure), kwargs


def test_lbfgs_has_its_closure_from_a_hook(new_run: NewRun, train_here: Train) -> None:
    optimizer = 'optimizer={use="torch.optim:LBFGS", args={max_iter=4}}'
    run_dir = new_run(optimizer, hook("closes", Closes), *SHORT, "hooks.schedule.enabled=false", swap=SWAP)
    first, *_, last = calls_of(train_here, run_dir)
    assert last < first
