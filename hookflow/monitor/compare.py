"""The differences between runs.

They are keys, environment, hooks, metrics, curves, and where the time of an iteration went.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import tomli

from hookflow.events.reading import read_object, read_regular
from hookflow.events.rundir import RunDir
from hookflow.graph.plan import Plan, PlanDifference, difference
from hookflow.monitor.feed import LogFollower
from hookflow.monitor.ranks import NO_PLAN
from hookflow.monitor.series import in_order
from hookflow.monitor.state import RunState
from hookflow.numbers import format_rough
from hookflow.pipeline.source_map import flat

RUN_LETTERS = "ABCDEFGH"
"""The names of runs beside one another; no more are compared at a time."""

OF_THE_LOG = ("python", "torch", "device", "precision", "host", "world", "strategy")
"""The keys of a run record that are of its environment."""


class ComparedRun:
    """A run beside others: what it was started with, and its log, which `live` folds."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.live = LogFollower(run, kept=True)
        self.tables: dict[str, Any] = {}
        with suppress(OSError, ValueError, RecursionError):
            self.tables = tomli.loads(read_regular(run.pipeline).decode())

    @property
    def state(self) -> RunState:
        return self.live.state

    @property
    def plan(self) -> Plan:
        return self.live.plan or NO_PLAN

    @property
    def short(self) -> str:
        """The end of the run's id."""
        return self.run.id.rsplit("-", 1)[-1]

    @property
    def environment(self) -> dict[str, Any]:
        """The versions, the machine and the code of the run, by dotted keys.

        It has what the run has recorded.
        """
        of_the_log = {key: value for key, value in self.state.run.items() if key in OF_THE_LOG}
        return env_info(self.run) | {"hookflow": self.run.describe().get("hookflow")} | of_the_log


def env_info(run: RunDir) -> dict[str, Any]:
    """Return what the hook `env_info` has recorded: versions, machine and code, by dotted keys."""
    try:
        return dict(flat(read_object(read_regular(run.path / "environment.json"))))
    except (OSError, ValueError):
        return {}


def find_differences(tables: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the keys in which tables differ, with the value of each table.

    It is None where a table has none.
    """
    differing = {}
    for key in _collect_keys(tables):
        values = [table.get(key) for table in tables]
        if any(value != values[0] for value in values):
            differing[key] = values
    return differing


def _collect_keys(tables: Iterable[Iterable[str]]) -> list[str]:
    """Return the keys of tables, each once, in the order in which they come."""
    return list(dict.fromkeys(chain.from_iterable(tables)))


def compare_plans(first: ComparedRun, other: ComparedRun) -> PlanDifference:
    """Return the keys, hooks, edges and orders in which the pipelines of two runs differ."""
    return difference((first.tables, first.plan), (other.tables, other.plan))


def changed_keys(results: Sequence[PlanDifference]) -> list[dict[str, Any]]:
    """Return of each run the keys in which one differs from the first.

    Hooks that are not in both are set aside.
    """
    of_first: dict[str, Any] = {}
    for result in results:
        of_first |= {change.key: change.old for change in result.keys}
    of_each = [of_first]
    for result in results:
        of_each.append(of_first | {change.key: change.new for change in result.keys})
    return of_each


def list_metrics(states: Sequence[RunState]) -> list[str]:
    """Return the metrics of runs: those that hooks monitor first."""
    names = _collect_keys(state.metrics.by_name for state in states)
    return in_order(names, _collect_keys(state.monitored for state in states))


def results(states: Sequence[RunState]) -> dict[str, dict[str, list[float | None]]]:
    """Return of each metric the "last" value of each run, and the "best" one.

    It is None where a run has none.
    """
    by_metric: dict[str, dict[str, list[float | None]]] = {}
    for name in list_metrics(states):
        last: list[float | None] = []
        best: list[float | None] = []
        for state in states:
            points = state.metrics.by_name.get(name)
            record = state.metrics.best.get(name)
            last.append(points[-1][1] if points else None)
            best.append(record.value if record else None)
        by_metric[name] = {"last": last, "best": best}
    return by_metric


@dataclass(frozen=True, slots=True)
class TimeRow:
    """A hook or a phase, and how many ns it takes in each run; None where it does not occur."""

    name: str
    ns: tuple[float | None, ...]

    @property
    def deltas(self) -> tuple[float, ...]:
        """The differences of the other runs from the first; what does not occur takes no time."""
        first = self.ns[0] or 0.0
        return tuple((other or 0.0) - first for other in self.ns[1:])

    @property
    def delta(self) -> float:
        """The largest of these differences."""
        return max(self.deltas, key=abs, default=0.0)

    @property
    def change(self) -> str:
        """The largest difference in words: new, gone, or how many times as long."""
        distances = [0.0, *map(abs, self.deltas)]
        first = self.ns[0]
        farthest = self.ns[distances.index(max(distances))]
        if first is None and farthest is None:
            return ""
        if first is None:
            return "new"
        if farthest is None:
            return "gone"
        shorter, longer = sorted((first, farthest))
        if not shorter or longer / shorter <= 1.1:
            return ""
        return f"×{format_rough(longer / shorter)} {'slower' if farthest > first else 'quicker'}"


def compute_times(runs: Sequence[ComparedRun]) -> list[TimeRow]:
    """Return where the time of an iteration went, over the last attempt of each run.

    The largest difference comes first. Hooks that fire elsewhere in the training are shared out
    over the iterations, too. Hooks that fire once are not: their share would shrink with the length
    of a run; see `compute_one_time_costs`. The whole iteration comes last.
    """
    rows = _make_rows([_time_per_iteration(run.state, run.plan) for run in runs])
    return sorted(rows, key=lambda row: (row.name == ITERATION_ROW, -abs(row.delta)))


def compute_one_time_costs(runs: Sequence[ComparedRun]) -> list[TimeRow]:
    """Return what hooks took before the training and after it, over the last attempt of each run.

    It is all of their time. The largest difference comes first.
    """
    rows = _make_rows([_sum_times(run.state, run.plan, recurring=False) for run in runs])
    return sorted(rows, key=lambda row: -abs(row.delta))


ITERATION_ROW = "iteration"


def _make_rows(spent: Sequence[Mapping[str, float]]) -> list[TimeRow]:
    """Return a row for each name, from the ns of each run by name."""
    return [TimeRow(name, tuple(each.get(name) for each in spent)) for name in _collect_keys(spent)]


def _sum_times(state: RunState, plan: Plan, *, recurring: bool) -> dict[str, float]:
    """Return the ns of the hooks by hook and point.

    They are of points in the training loop, or of those outside it.
    """
    totals: dict[str, float] = {}
    for binding in plan.bindings:
        ns = state.first.timing(binding.id).total
        if ns and plan.points.is_recurring(binding.point) == recurring:
            name = f"{binding.hook} @ {binding.point}"
            totals[name] = totals.get(name, 0.0) + ns
    return totals


def _time_per_iteration(state: RunState, plan: Plan) -> dict[str, float]:
    """Return the ns of an iteration by hook and point, and by phase."""
    attempt = state.first.attempt
    iters = attempt.sums["iters"]
    if not iters:
        return {}
    totals = _sum_times(state, plan, recurring=True)
    totals |= {phase: ns for phase, ns in attempt.by_phase.items() if phase != "hooks"}
    totals[ITERATION_ROW] = state.iterating
    return {name: ns / iters for name, ns in totals.items() if ns}


def list_metric_points(state: RunState, name: str) -> list[tuple[int, float]]:
    """Return the values of a metric, or of a scalar where no metric is called so, by iteration."""
    return state.metrics.by_name.get(name) or [*state.scalars.get(name, ())]


def names_of(runs: Iterable[ComparedRun]) -> list[str]:
    """Return what can be drawn of runs: their metrics, then their scalars."""
    states = [run.state for run in runs]
    return _collect_keys([list_metrics(states), *(state.scalar_names for state in states)])
