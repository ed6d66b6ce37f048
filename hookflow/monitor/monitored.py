"""Which metrics a run is judged by: those that its hooks monitor. They are shown first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hookflow.graph.plan import Plan
from hookflow.metric_mode import mode_by_name


def monitored(plan: Plan) -> list[str]:
    """Return the metrics that hooks are given as `monitor` (checkpoint, early_stop), in the pipeline's order."""
    given = (hook.args.get("monitor") for hook in plan.hooks if isinstance(hook.args, Mapping))
    return list(dict.fromkeys(name for name in given if isinstance(name, str)))


def monitored_first(names: Iterable[str], plan: Plan) -> list[str]:
    """Return the names with the monitored ones first; the others stay in their order."""
    order = {name: place for place, name in enumerate(monitored(plan))}
    return sorted(names, key=lambda name: order.get(name, len(order)))


def in_order(metrics: Iterable[str], plan: Plan) -> list[str]:
    """Return metrics in the order in which they are shown: monitored ones, scores, losses."""
    return monitored_first(sorted(metrics, key=lower_is_better), plan)


def lower_is_better(metric: str) -> bool:
    """Say whether a metric of this name is a loss or an error."""
    return mode_by_name(metric) == "min"
