"""Budgets of hooks.

The thread that flushes the log compares their time with a share of the iterations'.

A hook that is over its budget is warned of, or throttled: it fires less often, from a safe point
on.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, log2
from typing import TYPE_CHECKING, NamedTuple

from hookflow.events.records import Frame
from hookflow.graph.offload import is_thinned
from hookflow.graph.plan import Binding, Plan
from hookflow.numbers import duration, format_percent
from hookflow.runner.process.state import RunState

if TYPE_CHECKING:
    from hookflow.pipeline.schema import Pipeline
    from hookflow.pipeline.values import Budget


class FrequencyChange(NamedTuple):
    """A hook fires at every so many times that it is due from now on, and why."""

    hook: str
    every: int
    why: str


class HookThrottles:
    """How often the throttled hooks of a run fire.

    `every` holds 1 where a hook fires whenever it is due. All ranks make the changes that rank 0
    asks for, at the same safe point; `record` makes a record of each.
    """

    def __init__(self, plan: Plan, state: RunState, record: Callable[..., None]) -> None:
        self.every = {hook.name: 1 for hook in plan.hooks if hook.throttle}
        self.asked: deque[FrequencyChange] = deque()
        self._state = state
        self._record = record

    def ask(self, change: FrequencyChange) -> None:
        """Ask for a change; any thread may."""
        self.asked.append(change)
        self._state.attention = True

    def take(self) -> list[FrequencyChange]:
        return [self.asked.popleft() for _ in range(len(self.asked))]

    def make(self, change: FrequencyChange) -> None:
        self.every[change.hook] = change.every
        self._record("throttle", **change._asdict())

    def state_dict(self) -> dict[str, int]:
        return dict(self.every)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Take back what `state_dict` returned.

        Hooks that are no longer throttled fire whenever they are due.
        """
        for hook in self.every:
            self.every[hook] = 1
            every = state.get(hook, 1)
            if every > 1:
                self.make(FrequencyChange(hook, every, "as the checkpoint has it"))


WINDOW_SECONDS = 60.0
"""Seconds over which the time is taken."""
WARM_UP = 50
"""Iterations that do not count: the first ones load and compile."""
CALM_SHARE = 0.8
"""The share of a budget below which a hook that was over it counts as within it again."""
MIN_FIRINGS = 3
"""The firings by which a throttled hook is judged at least."""
MAX_INTERVAL_FACTOR = 1024
"""A throttled hook fires at least at each so many times that it is due."""
ALL_HOOKS = ""
"""The name of the budget of all hooks together."""


@dataclass(frozen=True, slots=True)
class _FrameSample:
    """The time of the iterations and of each binding between two frames, in ns."""

    at: float
    iters: int
    ns: int
    by_binding: Mapping[int, int]


@dataclass(slots=True)
class _ThrottleTrial:
    """The costs of a throttled hook since `began`, all at one frequency."""

    began: float
    iters: int = 0
    ns: int = 0
    firings: dict[int, list[int]] = field(default_factory=dict)
    """By binding: how many, their ns, and the longest."""

    def add(self, frame: Frame) -> None:
        self.iters, self.ns = self.iters + int(frame["iters"][0]), self.ns + int(frame["iters"][1])
        for id_, (count, total, longest) in self.firings.items():
            new, more, highest, *_ = frame["hooks"].get(str(id_), (0, 0, 0))
            self.firings[id_] = [count + int(new), total + int(more), max(longest, int(highest))]

    @property
    def used(self) -> int:
        """The ns of the firings but the longest.

        The first one loads, and n of them have n - 1 times between them.
        """
        return sum(total - longest for _, total, longest in self.firings.values())


class BudgetController:
    """Warns when a hook, or all together, take more than their budget over the last WINDOW_SECONDS.

    A hook that keeps its budget by firing less often is judged by MIN_FIRINGS at least, all at one
    frequency. Over the budget it fires as seldom as needed, in powers of two. It fires twice as
    often again where that would take less than CALM_SHARE of the budget, as a whole WINDOW_SECONDS
    has it.
    """

    def __init__(
        self,
        plan: Plan,
        limits: "Mapping[str, Budget]",
        say: Callable[..., None],
        throttles: HookThrottles,
    ) -> None:
        self._plan = plan
        self._limits = limits
        self._say = say
        self._throttles = throttles
        self._trials: dict[str, _ThrottleTrial] = {}
        self._thinned = {each.id for each in plan.bindings if is_thinned(plan, each)}
        self._samples: deque[_FrameSample] = deque()
        self._over: set[str] = set()
        self._warm = False

    @classmethod
    def of(
        cls, pipeline: "Pipeline", plan: Plan, say: Callable[..., None], throttles: HookThrottles
    ) -> "BudgetController | None":
        limits = {name: node.budget for name, node in pipeline.hooks.items() if node.budget}
        limits = {
            name: limit
            for name, limit in limits.items()
            if any(hook.name == name for hook in plan.hooks)
        }
        if pipeline.run.budget:
            limits[ALL_HOOKS] = pipeline.run.budget
        if limits:
            return cls(plan, limits, say, throttles)
        return None

    def take(self, frame: Frame) -> None:
        if not self._warm:
            self._warm = frame["it"] >= WARM_UP
            return
        hooks = {int(id_): int(fired[1]) for id_, fired in frame["hooks"].items()}
        self._samples.append(
            _FrameSample(frame["elapsed"], int(frame["iters"][0]), int(frame["iters"][1]), hooks)
        )
        while self._samples[0].at < frame["elapsed"] - WINDOW_SECONDS:
            self._samples.popleft()
        if not frame["hooks"] and not frame["iters"][0]:
            return
        for text in self._find_exceeded():
            self._say(text, "warn")
        for hook in self._throttles.every:
            self._adjust_frequency(hook, frame)

    def _adjust_frequency(self, hook: str, frame: Frame) -> None:
        """Request another frequency of a throttled hook that is over its budget or far below."""
        now = frame["elapsed"]
        every = self._throttles.every[hook]
        budget = self._limits[hook]
        trial = self._trials.get(hook)
        if trial is None or any(change.hook == hook for change in self._throttles.asked):
            mine = [
                each.id
                for each in self._plan.bindings
                if each.hook == hook and each.id in self._thinned
            ]
            self._trials[hook] = _ThrottleTrial(now, firings={id_: [0, 0, 0] for id_ in mine})
            return
        trial.add(frame)
        if not trial.ns or max(count for count, *_ in trial.firings.values()) < MIN_FIRINGS:
            return
        used = trial.used / budget.ns(trial.iters, trial.ns)
        new = every
        if used > 1:
            new = min(2 ** ceil(log2(used * every)), MAX_INTERVAL_FACTOR)
        elif now - trial.began < WINDOW_SECONDS:
            return
        elif every > 1 and 2 * used < CALM_SHARE:
            new = every // 2
        del self._trials[hook]
        if new != every:
            share = format_percent(trial.used / trial.ns)
            took = f"{share} % of the iterations, {duration(trial.used / trial.iters)} each"
            self._throttles.ask(
                FrequencyChange(hook, new, f"it took {took}, and the budget is {budget}")
            )

    def _find_exceeded(self) -> Iterator[str]:
        iters = sum(each.iters for each in self._samples)
        ns = sum(each.ns for each in self._samples)
        spent: Counter[int] = Counter()
        for each in self._samples:
            spent.update(each.by_binding)
        if not ns or not spent:
            return
        for name, budget in self._limits.items():
            own = Counter({id_: spent[id_] for id_ in self._list_bindings_of(name)})
            used = own.total() / budget.ns(iters, ns)
            if used > 1 and name not in self._over:
                costliest = self._plan.bindings[own.most_common(1)[0][0]]
                who = f'hook "{name}"'
                at = f"at {costliest.point}"
                if name == ALL_HOOKS:
                    who = "all hooks together"
                    at = f"{costliest.hook} at {costliest.point}"
                share = format_percent(own.total() / ns)
                took = f"{share} % of the iterations, {duration(own.total() / iters)} each"
                yield f"{who}: {took}, and the budget is {budget}; most of it {at}"
                self._over.add(name)
            elif used < CALM_SHARE:
                self._over.discard(name)

    def _list_bindings_of(self, name: str) -> list[int]:
        """Return the bindings whose time counts for a budget: those of a hook, or of all hooks."""
        if name == ALL_HOOKS:
            return [each.id for each in self._plan.bindings]
        return [
            each.id
            for each in self._plan.bindings
            if each.hook == name and not self._is_skipping(each)
        ]

    def _is_skipping(self, binding: Binding) -> bool:
        """Return whether a binding skips firings for its cost.

        A warning comes where it can skip no more.
        """
        return (
            binding.id in self._thinned
            and self._throttles.every[binding.hook] < MAX_INTERVAL_FACTOR
        )
