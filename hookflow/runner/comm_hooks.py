"""DDP's communication hook: the binding at `ddp_comm` says how the ranks average each bucket of gradients.

PyTorch takes one such hook for a model, and it must be called on all ranks alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hookflow.errors import Problem, UserError, Where
from hookflow.graph.plan import Plan
from hookflow.hooks.table import POINT
from hookflow.runner.distributed.strategy import Strategy
from hookflow.runner.engine import Engine
from hookflow.runner.firing import Call, Firing
from hookflow.runner.state import RunState


def check_comm_hook(plan: Plan, strategy: Strategy, place: Callable[[str], Where]) -> None:
    """Raise UserError where the plan has a communication hook, and no DDP calls it."""
    for binding in plan.at(POINT):
        if strategy.no_buckets:
            said = f'hook "{binding.hook}" has nothing to do at {POINT}: {strategy.no_buckets}'
            hint = f"leave it out: --without {binding.hook}"
            raise UserError(Problem(said, place(f"hooks.{binding.hook}.use"), hint))


def attach_to_ddp(models: Mapping[str, nn.Module], strategy: Strategy, engine: Engine, state: RunState) -> None:
    """Let the binding at `ddp_comm`, if there is one, average the gradients. DDP keeps it as long as it is there."""
    for firing in engine.firings(POINT) if strategy.bucketed else ():
        firing.ask_once_per_iteration(state)
        firing.call = _checked(firing)
        for name, model in models.items():
            if model in strategy.bucketed:
                model.register_comm_hook(None, _averaging(firing, name, engine, state))  # type: ignore[operator]


def _averaging(firing: Firing, name: str, engine: Engine, state: RunState) -> Callable[..., Any]:
    """Return a hook for the buckets of one model: what the binding returns, or the mean where it is not due."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.distributed.distributed_c10d import _get_default_group

    dispatcher, group = engine.dispatcher, _get_default_group()

    def average(_, bucket):  # type: ignore[no-untyped-def] # PyTorch would look at annotations, and not know these
        future = None
        if state.stage == "train":
            future = dispatcher.call_within(firing, (dispatcher.run, name, group, group, bucket))
        return allreduce_hook(group, bucket) if future is None else future

    return average


def _checked(firing: Firing) -> Call:
    """Return the call of a binding, which must return a Future."""
    call, hook = firing.call, firing.binding.hook

    def checked(offered: Sequence[Any]) -> object:
        future = call(offered)
        if not isinstance(future, torch._C.Future):
            said = f'hook "{hook}" must return a torch.futures.Future of the bucket at {POINT}, not {future!r:.40}'
            raise TypeError(said)
        return future

    return checked
