"""Hooks in an optimizer's own `step`: bindings at `optimizer_step_pre` and `optimizer_step_post`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from hookflow.runner.engine import Engine
from hookflow.runner.firing import Firing
from hookflow.runner.state import RunState


def attach_to_optimizers(
    optimizers: Mapping[str, Optimizer], engine: Engine, state: RunState
) -> Iterator[RemovableHandle]:
    """Register every binding in an optimizer's step with PyTorch, in the plan's order; yield what takes each off."""
    for point in ("optimizer_step_pre", "optimizer_step_post"):
        for firing in engine.firings(point):
            firing.ask_once_per_iteration(state)
            for name, optimizer in optimizers.items():
                fire = _named(firing, name, engine)
                if point == "optimizer_step_pre":
                    yield optimizer.register_step_pre_hook(fire)
                else:
                    yield optimizer.register_step_post_hook(fire)


def _named(firing: Firing, name: str, engine: Engine) -> Callable[..., Any]:
    dispatcher = engine.dispatcher

    def fire(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return dispatcher.call_within(firing, (dispatcher.run, name, optimizer, args, kwargs))

    return fire
