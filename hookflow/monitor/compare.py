"""The differences between runs: keys, environment, hooks, metrics, curves, and where the time of an iteration went."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import tomli

from hookflow.events.reading import read_object, read_regular
from hookflow.events.rundir import RunDir
from hookflow.graph.plan import Difference, Plan, difference
from hookflow.monitor.feed import Live
from hookflow.monitor.ranks import NO_PLAN
from hookflow.monitor.series import in_order
from hookflow.monitor.state import RunState
from hookflow.numbers import rough
from hookflow.pipeline.source_map import flat

LETTERS = "ABCDEFGH"
"""The names of runs beside one another; no more are compared at a time."""

OF_THE_LOG = ("python", "torch", "device", "precision", "host", "world", "strategy")
"""The keys of a run record that are of its environment."""


class Side:
    """A run beside others: what it was started with, and its log, which `live` folds."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.live = Live(run, kept=True)
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
        """The versions, the machine and the code, as far as the run has recorded them, by dotted keys."""
        of_the_log = {key: value for key, value in self.state.run.items() if key in OF_THE_LOG}
        return env_info(self.run) | {"hookflow": self.run.describe().get("hookflow")} | of_the_log


def env_info(run: RunDir) -> dict[str, Any]:
    """Return what the hook of that name has recorded: versions, machine and code, by dotted keys."""
    try:
        return dict(flat(read_object(read_regular(run.path / "environment.json"))))
    except (OSError, ValueError):
        return {}


def unequal(tables: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the keys in which tables differ, with the value of each table; None where it has none."""
    keys = dict.fromkeys(key for table in tables for key in table)
    values = {key: [table.get(key) for table in tables] for key in keys}
    return {key: each for key, each in values.items() if any(value != each[0] for value in each)}


def plan_difference(first: Side, other: Side) -> Difference:
    """Return the keys, hooks, edges and orders in which the pipelines of two runs differ."""
    return difference((first.tables, first.plan), (other.tables, other.plan))


def changed_keys(results: Sequence[Difference]) -> list[dict[str, Any]]:
    """Return of each run the keys in which one differs from the first, hooks that are not in both aside."""
    changed = dict.fromkeys(change.key for result in results for change in result.keys)
    first = {change.key: change.old for result in results for change in result.keys}
    others = [{change.key: change.new for change in result.keys} for result in results]
    return [first, *({key: each.get(key, first[key]) for key in changed} for each in others)]


def metrics_of(states: Sequence[RunState]) -> list[str]:
    """Return the metrics of runs: those that hooks monitor first."""
    names = dict.fromkeys(name for state in states for name in state.metrics.by_name)
    return in_order(names, dict.fromkeys(name for state in states for name in state.monitored))


def results(states: Sequence[RunState]) -> dict[str, dict[str, list[float | None]]]:
    """Return of each metric the "last" value of each run, and the "best" one; None where a run has none."""
    best = [{name: record.value for name, record in state.metrics.best.items()} for state in states]
    last = [{name: points[-1][1] for name, points in state.metrics.by_name.items() if points} for state in states]
    both = {"last": last, "best": best}.items()
    return {name: {kind: [each.get(name) for each in of] for kind, of in both} for name in metrics_of(states)}


@dataclass(frozen=True, slots=True)
class Spent:
    """A hook or a phase, and how many ns it takes in each run; None where it does not occur."""

    name: str
    ns: tuple[float | None, ...]

    @property
    def deltas(self) -> tuple[float, ...]:
        """The differences of the other runs from the first; what does not occur takes no time."""
        first, *others = (each or 0.0 for each in self.ns)
        return tuple(each - first for each in others)

    @property
    def delta(self) -> float:
        """The largest of these differences."""
        return max(self.deltas, key=abs, default=0.0)

    @property
    def change(self) -> str:
        """The largest difference in words: new, gone, or how many times as long."""
        first, last = self.ns[0], max(self.ns, key=lambda ns: abs((ns or 0.0) - (self.ns[0] or 0.0)))
        if first is None or last is None:
            return "" if first is last else "new" if first is None else "gone"
        ratio = max(first, last) / min(first, last) if min(first, last) else 0.0
        return f"×{rough(ratio)} {'slower' if last > first else 'quicker'}" if ratio > 1.1 else ""


def times(sides: Sequence[Side]) -> list[Spent]:
    """Return where the time of an iteration went, over the last attempt of each run; the largest difference first.

    Hooks that fire elsewhere in the training are shared out over the iterations, too. What fires once is not: its share
    would be the smaller the longer a run is; see `times_once`. The whole iteration comes last.
    """
    rows = _rows([_spent(side.state, side.plan) for side in sides])
    return sorted(rows, key=lambda row: (row.name == WHOLE, -abs(row.delta)))


def times_once(sides: Sequence[Side]) -> list[Spent]:
    """Return what hooks took before the training and after it, over the last attempt of each run.

    It is all of their time. The largest difference comes first.
    """
    rows = _rows([_totals(side.state, side.plan, recurring=False) for side in sides])
    return sorted(rows, key=lambda row: -abs(row.delta))


WHOLE = "iteration"


def _rows(spent: Sequence[Mapping[str, float]]) -> list[Spent]:
    """Return a row for each name, from the ns of each run by name."""
    names = dict.fromkeys(name for each in spent for name in each)
    return [Spent(name, tuple(each.get(name) for each in spent)) for name in names]


def _totals(state: RunState, plan: Plan, *, recurring: bool) -> dict[str, float]:
    """Return the ns of the hooks by hook and point: of points in the training loop, or of those outside it."""
    totals: dict[str, float] = {}
    for binding in plan.bindings:
        ns = state.first.timing(binding.id).total
        if ns and plan.points.recurs(binding.point) == recurring:
            name = f"{binding.hook} @ {binding.point}"
            totals[name] = totals.get(name, 0.0) + ns
    return totals


def _spent(state: RunState, plan: Plan) -> dict[str, float]:
    """Return the ns of an iteration by hook and point, and by phase."""
    rank = state.first
    count = rank.attempt.sums["iters"]
    if not count:
        return {}
    totals = {name: ns / count for name, ns in _totals(state, plan, recurring=True).items()}
    totals |= {phase: ns / count for phase, ns in rank.attempt.booked.items() if phase != "hooks"}
    return {name: ns for name, ns in {**totals, WHOLE: state.iterating / count}.items() if ns}


def points_of(state: RunState, name: str) -> list[tuple[int, float]]:
    """Return the values of a metric, or of a scalar where no metric is called so, by iteration."""
    return state.metrics.by_name.get(name) or [*state.scalars.get(name, ())]


def names_of(sides: Iterable[Side]) -> list[str]:
    """Return what can be drawn of runs: their metrics, then their scalars."""
    states = [side.state for side in sides]
    return [*dict.fromkeys([*metrics_of(states), *(name for state in states for name in state.scalar_names)])]
