"""What conditions look at: the latest value of every number that some `when` of the plan names.

A name is that of a number given to `run.log`, or of a single number among the outputs of a training iteration (`loss`);
whichever came last counts. Where neither has ever come, it is a metric of the latest validation (or test), as
`metrics.NAME` is always.

Where several processes train together, a number is the mean over those ranks that have given it; so a condition holds
on all of them or on none. For a hook that fires on rank "zero" alone it is that rank's own, and so it is at `on_log`:
one rank may log what another does not.

**On CUDA a condition waits.** A number that the device computes has no value until the device has come so far; so a
binding whose `when` names one makes the training thread wait for it, each time that the binding is otherwise due. An
`every` beside the `when` makes that rare. Nothing is waited for on the CPU, nor where a condition names only what the
runner counts itself (`epoch`, `iter`, `max_epochs`, `max_iters`, `rank`) or metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hookflow.errors import nearest_or_all
from hookflow.graph.plan import Binding, Plan
from hookflow.hooks.builtin.means import sum_dtype
from hookflow.pipeline.condition import FACTS, METRICS, parse_condition
from hookflow.runner.distributed.strategy import Strategy
from hookflow.runner.loop.task import as_number, scalar
from hookflow.runner.process.state import RunState


class Scalars:
    """The numbers of one run. Only those that conditions name are kept, and a checkpoint keeps them too."""

    def __init__(self, plan: Plan, state: RunState, strategy: Strategy, device: torch.device, rank: int) -> None:
        self._state = state
        self._strategy = strategy
        self._device = device
        self._rank = rank
        conditions = (parse_condition(b.trigger.when) for b in plan.bindings if b.trigger.when)
        self.watched = frozenset(name for condition in conditions for name in condition.names)
        self._latest: dict[str, float | Tensor] = {}
        self._others: set[str] = set()
        self._unseen: dict[tuple[str, str], str] = {}
        self._on_all = frozenset(hook.name for hook in plan.hooks if hook.ranks == "all")

    def log(self, name: str, value: float | Tensor) -> None:
        """Take what was given to `run.log`."""
        if name in self.watched:
            self._latest[name] = value
        elif self.watched:
            self._others.add(name)

    def take(self, outputs: Mapping[str, Any]) -> None:
        """Take the single numbers among the outputs of a training iteration; they stay where they are computed."""
        if not self.watched:
            return
        for name, value in outputs.items():
            if isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1):
                self.log(name, scalar(value, name) if name in self.watched else 0.0)

    def condition(self, binding: Binding) -> Callable[[], bool]:
        """Return the question whether the condition of a binding, which has one, holds now."""
        condition = parse_condition(str(binding.trigger.when))
        over_ranks = self._strategy.several and binding.hook in self._on_all and binding.point != "on_log"
        named = sorted(name for name in condition.names if name not in FACTS and not name.startswith(METRICS))

        def holds() -> bool:
            numbers = self._over_ranks(named) if over_ranks and named else self._latest

            def look(name: str) -> float | None:
                value = self._value(name, numbers)
                if value is None:
                    self._unseen[binding.hook, name] = condition.text
                return value

            return condition(look)

        return holds

    def _over_ranks(self, names: Sequence[str]) -> Mapping[str, float]:
        """Return the mean of each number over the ranks that have it. All must ask, and each waits for the others."""
        given = [(self._number(name), 1.0) if name in self._latest else (0.0, 0.0) for name in names]
        found = self._strategy.all_reduce(
            torch.tensor(given, dtype=sum_dtype(self._device), device=self._device), self._device
        )
        return {name: total / ranks for name, (total, ranks) in zip(names, found.tolist(), strict=True) if ranks}

    def _number(self, name: str) -> float:
        return as_number(self._latest[name], f'"{name}" in a condition')

    def _value(self, name: str, numbers: Mapping[str, float | Tensor]) -> float | None:
        run = self._state
        if name in FACTS:
            if name == "rank":
                return float(self._rank)
            if name == "max_epochs" and run.max_epochs is None:
                return run.max_iters / run.iters_per_epoch
            return float(getattr(run, name))
        value = numbers.get(name, run.metrics.get(name.removeprefix(METRICS)))
        return None if value is None else as_number(value, f'"{name}" in a condition')

    def complaints(self) -> Iterator[str]:
        """Yield a line for each name that a condition has asked for, and that nobody has given a value to this day."""
        metrics = self._state.metrics
        known = {*self._latest, *self._others, *metrics, *(f"{METRICS}{name}" for name in metrics)}
        for (hook, name), text in self._unseen.items():
            if self._value(name, self._latest) is None:
                hint = nearest_or_all(name, sorted(known))
                yield f'hook "{hook}": nobody has ever logged the "{name}" of its condition "{text}"; {hint}'

    def state_dict(self) -> dict[str, float | Tensor]:
        return dict(self._latest)

    def load_state_dict(self, state: Mapping[str, float | Tensor]) -> None:
        """Take back what `state_dict` returned, of a run whose conditions may have named other numbers."""
        self._latest = {name: value for name, value in state.items() if name in self.watched}
