"""The metrics that hooks monitor: a metric by its name, or a formula of metrics."""

from __future__ import annotations

from hookflow.errors import Problem, UserError
from hookflow.hooks.run import Run
from hookflow.metric_mode import Mode, choose_mode, is_formula
from hookflow.pipeline.condition import (
    METRIC_PREFIX,
    ConditionError,
    list_metrics,
    parse_formula,
)


def monitored_mode(metric: str, stated: Mode | None = None, beside: str = "") -> Mode:
    """Return whether less or more of a metric, or of a formula, is better, as `choose_mode` does.

    Raises UserError also for a formula that cannot be read.
    """
    if is_formula(metric):
        try:
            parse_formula(metric)
        except ConditionError as error:
            raise UserError(Problem(f'the formula "{metric}": {error}', hint=error.hint)) from None
    return choose_mode(metric, stated, beside)


def read_latest_metric(run: Run, metric: str) -> float | None:
    """Return a metric of the latest validation, or the value of a formula of metrics.

    None where it is of a set that was not validated on then. Raises UserError with the nearest name
    when there is no such metric.
    """
    if is_formula(metric):
        return parse_formula(metric)(
            lambda name: read_latest_metric(run, name.removeprefix(METRIC_PREFIX))
        )
    name, slash, _ = metric.partition("/")
    if not slash or f"val.{name}" not in run.data or metric in run.metrics:
        return run.metric(metric)
    if any(other.startswith(f"{name}/") for other in run.metrics):
        return run.metric(metric)
    return None


def read_logged_value(run: Run, monitor: str) -> float:
    """Return the latest value of a logged scalar of the training, or of a formula of scalars.

    Raises UserError with the nearest name where none was logged.
    """
    if not is_formula(monitor):
        return run.scalar(monitor)
    value = parse_formula(monitor)(run.scalar)
    assert value is not None  # a scalar without a value raises
    return value


def read_new_value(run: Run, monitor: str, seen: int) -> tuple[float | None, int]:
    """Return the latest value of a logged scalar, or of a formula, and how often it was logged.

    The value is None where that is as often as was `seen`: it is an old one. A formula was logged
    as often as the rarest of its scalars. Raises UserError where none was logged.
    """
    count = min(run.times_logged(name) for name in list_metrics(monitor))
    if count > 0 and count == seen:
        return None, count
    return read_logged_value(run, monitor), count
