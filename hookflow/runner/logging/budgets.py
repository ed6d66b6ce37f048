"""Budgets of hooks: their time is held against a share of the iterations', by the thread that flushes the log."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hookflow.events.records import Frame
from hookflow.graph.plan import Plan
from hookflow.numbers import duration, percent

if TYPE_CHECKING:
    from hookflow.pipeline.schema import Pipeline
    from hookflow.pipeline.values import Budget

WINDOW = 60.0
"""Seconds over which the time is taken."""
WARM_UP = 50
"""Iterations that do not count: the first ones load and compile."""
CALM = 0.8
"""The share of a budget below which a hook that was over it counts as within it again."""
EVERY = ""
"""The budget of all hooks together goes by this name."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """The time of the iterations and of each binding between two frames, in ns."""

    at: float
    iters: int
    ns: int
    by_binding: Mapping[int, int]


class Budgets:
    """Warns when a hook, or all together, take more than their budget over the last WINDOW seconds."""

    def __init__(self, plan: Plan, limits: Mapping[str, Budget], say: Callable[..., None]) -> None:
        self._plan, self._limits, self._say = plan, limits, say
        self._samples: deque[_Sample] = deque()
        self._over: set[str] = set()
        self._warm = False

    @classmethod
    def of(cls, pipeline: Pipeline, plan: Plan, say: Callable[..., None]) -> Budgets | None:
        """Return the budgets of a pipeline; None where it has none."""
        from hookflow.pipeline.values import Budget

        limits = {name: Budget.parse(node.budget) for name, node in pipeline.hooks.items() if node.budget}
        limits = {name: limit for name, limit in limits.items() if any(hook.name == name for hook in plan.hooks)}
        if pipeline.run.budget:
            limits[EVERY] = Budget.parse(pipeline.run.budget)
        return cls(plan, limits, say) if limits else None

    def take(self, frame: Frame) -> None:
        """Take in a frame, and warn of each budget that is exceeded now and was not before."""
        if not self._warm:
            self._warm = frame["it"] >= WARM_UP
            return
        hooks = {int(id_): int(fired[1]) for id_, fired in frame["hooks"].items()}
        self._samples.append(_Sample(frame["elapsed"], int(frame["iters"][0]), int(frame["iters"][1]), hooks))
        while self._samples[0].at < frame["elapsed"] - WINDOW:
            self._samples.popleft()
        if not frame["hooks"] and not frame["iters"][0]:
            return
        for text in self._exceeded():
            self._say(text, "warn")

    def _exceeded(self) -> Iterator[str]:
        iters, ns = sum(each.iters for each in self._samples), sum(each.ns for each in self._samples)
        spent: Counter[int] = Counter()
        for each in self._samples:
            spent.update(each.by_binding)
        for name, budget in self._limits.items() if ns and spent else ():
            own = Counter({b.id: spent[b.id] for b in self._plan.bindings if name in (EVERY, b.hook)})
            used = own.total() / budget.ns(iters, ns)
            if used > 1 and name not in self._over:
                costliest = self._plan.bindings[own.most_common(1)[0][0]]
                who = f'hook "{name}"' if name else "all hooks together"
                at = f"{costliest.hook} at {costliest.point}" if name == EVERY else f"at {costliest.point}"
                share = f"{percent(own.total() / ns)} % of the iterations, {duration(own.total() / iters)} each"
                yield f"{who}: {share}, and the budget is {budget}; most of it {at}"
                self._over.add(name)
            elif used < CALM:
                self._over.discard(name)
