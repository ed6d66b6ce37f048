"""Validations: when they are due, and one pass over the data.

A pass yields means of the outputs and metrics of hooks.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from math import nan
from threading import Timer
from types import MappingProxyType
from typing import Any, Literal
from zlib import crc32

import torch

from hookflow.errors import first_few
from hookflow.graph.schedule import Measure
from hookflow.hooks.tensors import Weight, WeightedSum, enter_evaluation
from hookflow.metric_mode import is_formula
from hookflow.pipeline.condition import METRIC_PREFIX, MetricFormula, parse_formula
from hookflow.pipeline.values import Interval
from hookflow.runner.data.batches import in_set, sets_of, split_of
from hookflow.runner.device.random_state import RNGStream, derive_seed, restore_generators
from hookflow.runner.iteration.context import RunContext
from hookflow.runner.iteration.requests import SKIP_MARKER
from hookflow.runner.logging.timing import VALIDATION
from hookflow.runner.model.task import (
    as_number,
    check_outputs,
    find_evaluation,
    scalar,
    single_numbers,
)
from hookflow.runner.process.signals import WorkerHangError
from hookflow.runner.process.state import MetricDict, RunState

Sums = Mapping[str, tuple[float, float]]
"""By name: the sum, and its weight.

The weight counts batches if the task does not say what they weigh.
"""


class WeightedMeans:
    """The weighted mean of each number over the batches of a pass.

    Where a batch has neither a weight nor a size, all batches count alike. The sums stay on the
    device until the end. `exact` says that every weight will be known.
    """

    def __init__(self, exact: bool) -> None:
        self._exact = exact
        self._known = True
        self._over_weights = defaultdict[str, WeightedSum](WeightedSum)
        self._over_batches = defaultdict[str, WeightedSum](WeightedSum)

    def add(self, numbers: Mapping[str, Any], weight: Weight | None) -> None:
        """Take in the numbers of a batch, each of which is a mean over its `weight`.

        The weight is None if it is unknown.
        """
        self._known = self._known and weight is not None
        for name, value in numbers.items():
            if weight is not None:
                self._over_weights[name].add(value, weight)
            if not self._exact:
                self._over_batches[name].add(value, 1)

    def over_ranks(self, gather: Callable[[Sums], list[Sums]]) -> dict[str, float]:
        """Return the means over what all ranks have taken in.

        They are the same on all ranks, to the bit.
        """
        if self._known or self._exact:
            sums = self._over_weights
        else:
            sums = self._over_batches
        shares = gather(
            {name: (float(item.total), float(item.weight)) for name, item in sums.items()}
        )
        means = {}
        for name in dict.fromkeys(chain(*shares)):
            totals, weights = zip(*(share[name] for share in shares if name in share), strict=True)
            weight = sum(weights)
            means[name] = sum(totals) / weight if weight else nan  # nothing of it counted
        return means


class CheckedMetrics(MetricDict):
    """The metrics to which hooks add: what is no number raises at their line."""

    def __setitem__(self, name: str, value: Any) -> None:
        scalar(value, f'metrics["{name}"]')
        super().__setitem__(name, value)


class SplitMetrics(CheckedMetrics):
    """The metrics of all sets of a split, to which hooks add plain numbers."""

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        dict.__setitem__(self, name, as_number(value, f'metrics["{name}"]'))


def is_metric_slot(slot: str) -> bool:
    """Say whether a slot is a metric, or all of them."""
    return slot == "metrics" or slot.startswith(METRIC_PREFIX)


@dataclass
class EvaluationLoop:
    """Validates and tests. `should_abort` says after each batch whether a signal ends the pass."""

    context: RunContext
    run: Any
    should_abort: Callable[[int], bool]

    def __post_init__(self) -> None:
        self.parts = parts = self.context.parts
        self.state = self.context.state
        self.engine = self.context.engine
        self.evaluate = self._wrap_inference(self.context.computed(find_evaluation(parts.task)))
        self._told: set[str] = set()
        self._formulas: dict[str, MetricFormula] = {}
        for capabilities in parts.capabilities.values():
            for monitored in filter(is_formula, capabilities.monitors):
                self._formulas[monitored] = parse_formula(monitored)

    def _wrap_inference(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not self.parts.section.inference_mode:
            return function
        mode = torch.inference_mode()  # as a decorator it would make another one at each call

        def inferred(run: Any, batch: Any) -> Any:
            with mode:
                return function(run, batch)

        return inferred

    @torch.no_grad()
    def __call__(self, split: Literal["val", "test"], sets: Sequence[str] | None = None) -> bool:
        """Walk over the data of a split once, without gradients.

        The metrics are left in `RunState.metrics`. With several sets it walks over those in `sets`,
        or over all, one after another; the names of their metrics begin with that of the set.
        Return False when a signal has cut the walk short: then no metrics are there, and no
        `after_X` fires.
        """
        state = self.state
        fire = self.engine.fire
        began = time.perf_counter()
        batch_idx = state.batch_idx
        batches = state.batches
        entered = len(self.engine.arounds)
        latest = state.metrics, state.metrics_at
        modes = self.context.optimizer_modes
        with (
            self.context.timeline.excluded(VALIDATION),
            state.during(split),
            modes.evaluating() as point,
        ):
            fire(f"before_{split}")
            with enter_evaluation(self.parts.model):
                metrics = self._pass_over_sets(split, sets or sets_of(split, self.parts.data))
                if metrics is None:
                    state.metrics, state.metrics_at = latest
                    point.cut_short = True
                    self.engine.leave(entered)
                else:
                    metrics = self._fire_over_sets(split, metrics)
                    seconds = time.perf_counter() - began
                    self.context.log.put("metrics", split=split, v=metrics, seconds=seconds)
        state.split = "train"
        state.batch_idx = batch_idx
        state.batches = batches
        return metrics is not None

    def _pass_over_sets(self, split: str, sets: Sequence[str]) -> dict[str, float] | None:
        """Walk over each set, and return the metrics of all; None when a signal has come."""
        metrics: dict[str, float] = {}
        for name in sets:
            self.state.split = name
            metrics_of_set = self._pass(split)
            if metrics_of_set is None:
                return None
            for metric, value in metrics_of_set.items():
                metrics[in_set(name, metric)] = value
        return metrics

    def _fire_over_sets(self, split: str, of_sets: dict[str, float]) -> dict[str, float]:
        """Fire `after_X`, where hooks may add metrics over all sets; return the metrics with these.

        A formula that a hook monitors becomes a metric of its own, by its text. The metrics stay in
        `RunState.metrics`, where nothing can be added any more.
        """
        state = self.state
        metrics = SplitMetrics(of_sets)
        state.metrics = metrics
        self.engine.fire(f"after_{split}", metrics)
        result = dict(metrics)
        if any(
            is_metric_slot(slot)
            for binding in self.engine.plan.at(f"after_{split}")
            for slot in binding.writes
        ):
            result = self.broadcast_metrics(result)
        for text, formula in self._formulas.items():
            value = formula(lambda name: result.get(name.removeprefix(METRIC_PREFIX)))
            if value is not None:
                result[text] = value
        state.metrics = MappingProxyType(MetricDict(result))
        return result

    def seeded(self, name: str) -> AbstractContextManager[None]:
        """Seed the random generators for a pass over a set at this iteration.

        The training's generators are restored afterwards.
        """
        place = crc32(name.encode()), self.state.iter, self.parts.data_ranks.rank
        seed = derive_seed(self.parts.section.seed, RNGStream.EVALUATION, *place)
        return restore_generators(self.parts.device, seed)

    def _pass(self, split: str) -> dict[str, float] | None:
        """Walk over the current set, and return its metrics; None when a signal has come."""
        state = self.state
        task = self.parts.task
        with self.context.consensus.evaluation(), self.seeded(state.split):
            self.engine.fire(f"before_{split}_epoch")
            means = self._compute_means(split)
            if means is None:
                return None
            own = hasattr(task, "metrics")
            metrics = CheckedMetrics({**means, **(task.metrics(means) if own else {})})
            state.metrics = metrics
            state.metrics_at = state.iter
            self.engine.fire(f"after_{split}_epoch", metrics)
            result = {
                name: as_number(value, f'metrics["{name}"]') for name, value in metrics.items()
            }
            if own or self.engine.plan.at(f"after_{split}_epoch"):
                return self.broadcast_metrics(result)
            return result

    def broadcast_metrics(self, own: dict[str, float]) -> dict[str, float]:
        """Return the metrics of rank 0, by which all ranks decide.

        A warning names, once, each metric of which another rank has another value.
        """
        every = self.context.consensus.all_gather_object(own)
        for name in dict.fromkeys(chain(*every)):
            values = [f"{rank[name]:.6g}" if name in rank else "none" for rank in every]
            if name not in self._told and {*values[1:]} - {values[0], "none"}:
                self._told.add(name)
                self.context.log.say(
                    f'the ranks have different values of the metric "{name}": {first_few(values)};'
                    " that of rank 0 counts on all. A hook combines them with run.sum, run.mean or"
                    " torch.distributed.all_reduce",
                    "warn",
                )
        return every[0]

    def _compute_means(self, split: str) -> dict[str, float] | None:
        """Evaluate every batch, and return the means over the weights of all ranks.

        Returns None when a signal has come.
        """
        weigh = self.context.weigh
        means = WeightedMeans(weigh is not None or self.context.sizes[self.state.split].exact)
        after_iter = self.engine.call(f"after_{split}_iter")
        try:
            for index, batch in self._batches(f"before_{split}_iter"):
                weight: Weight | None = self.state.batch_size or None
                if weigh:
                    weight = self.state.batch_weight = weigh(batch)
                outputs = self.evaluate(self.run, batch)
                check_outputs(outputs, self.parts.task, "evaluate")
                means.add(single_numbers(outputs), weight)
                if after_iter:
                    after_iter(batch, index, outputs)
                if self.should_abort(index + 1):
                    return None
        except WorkerHangError:
            self.should_abort(self.state.batch_idx)
            return None
        return means.over_ranks(self.context.consensus.all_gather_object)

    def _batches(self, *points: str) -> Iterator[tuple[int, Any]]:
        """Yield each batch of the set with its index, as the hooks at these points leave it."""
        state = self.state
        sizes = self.context.sizes[state.split]
        data = self.parts.data[state.split]
        state.batches = len(data)
        hooked = [point for point in points if self.engine.plan.at(point)]  # on all ranks alike
        for index, batch in enumerate(self.context.epoch_of(state.split, 0)):
            state.batch_idx, state.batch_size = index, sizes.local(index, batch) or 0
            entered = len(self.engine.arounds)
            for point in hooked:
                batch = self.context.fire_with_batch(point, batch)
                if batch is SKIP_MARKER:
                    self.engine.leave(entered)
                    break
            else:
                yield index, batch

    @torch.no_grad()
    def predict(self, name: str, predict: Callable[[Any, Any], Any]) -> dict[str, torch.Tensor]:
        """Return what `predict` gives for a set of data.

        It is a row for each example, by name, in the memory of the host. Where the source knows the
        indices of its examples in the dataset, they are a column `index`, unless the prediction has
        one. There may be no targets, so the points of the split that offer outputs or metrics do
        not fire; those before them do. A hook at `after_predict_iter` may add columns.
        """
        from hookflow.hooks.builtin.predict import Predictions  # which no training needs

        entered = len(self.engine.arounds)
        predict = self._wrap_inference(predict)
        rows = Predictions("the task's predict has returned")
        split = split_of(name)
        fire = self.engine.fire
        self.state.split = name
        with self.state.during(split), self.seeded(name), self.context.optimizer_modes.evaluating():
            fire(f"before_{split}")
            with enter_evaluation(self.parts.model):
                fire(f"before_{split}_epoch")
                fire("before_predict")
                inside = len(self.engine.arounds)
                data = self.parts.data[name]
                indices = None
                if hasattr(data, "indices"):
                    indices = data.indices(0)
                for index, batch in self._batches(f"before_{split}_iter", "before_predict_iter"):
                    predicted = predict(self.run, batch)
                    if isinstance(predicted, Mapping):
                        columns = {}
                        if indices is not None:
                            columns["index"] = indices[index]
                        predicted = {**columns, **predicted}
                        fire("after_predict_iter", batch, index, predicted)
                    rows.add(predicted)
                    self.engine.leave(inside)
                fire("after_predict")
            self.engine.leave(entered)
        self.state.split = "train"
        return rows.all()


class ValSchedule:
    """Says when a validation on one set of data is due.

    It has no state but the counters of the run. An interval of time begins at `start` and at the
    end of each validation. When it is over, a thread of its own calls `request`.
    """

    def __init__(
        self, name: str, every: Interval, state: RunState, request: Callable[[], None]
    ) -> None:
        self._name = name
        self._every = every
        self._state = state
        self._request = request
        self._running = False
        self._timer: Timer | None = None
        self._measure: Measure | None = None
        if every.by_iterations and every.unit != "s":
            self._measure = Measure.of_interval(every, state.epoch_lengths)

    def next_iteration(self) -> float:
        """Return the iteration after which the next validation is due by count, or infinity."""
        measure = self._measure
        if measure:
            return measure.compute_reached_count(measure.multiple(self._state.iter) + 1)
        return float("inf")

    def due(self, *, epoch_done: bool) -> bool:
        """Return whether a validation is due after this iteration, or after this epoch.

        A training ends with a validation, however it is counted. Where a part of an epoch ends
        with the epoch, the validation comes after the epoch.
        """
        if epoch_done:
            return self._is_due_after_epoch()
        state = self._state
        is_due = self._has_entered_multiple() or state.finished
        if self._every.unit == "it":
            return is_due
        return is_due and not state.epoch_is_over

    def _is_due_after_epoch(self) -> bool:
        state = self._state
        every = self._every
        if every.unit == "ep":
            if every.by_iterations:
                is_due = self._has_entered_multiple()
            else:
                is_due = state.epoch % every.value == 0
            if is_due:
                return True
        return state.finished and state.validated.get(self._name) != state.iter

    def _has_entered_multiple(self) -> bool:
        """Return whether the latest iteration has entered another multiple of the interval."""
        measure = self._measure
        if measure is None:
            return False
        done = self._state.iter
        return measure.multiple(done) != measure.multiple(done - 1)

    def start(self) -> None:
        """Count time from here, until `stop`."""
        self._running = self._every.unit == "s"
        self.restart()

    def restart(self) -> None:
        """Count time anew, where it is counted."""
        if self._timer is not None:
            self._timer.cancel()
        if self._running:
            self._timer = Timer(float(self._every.value), self._request)
            self._timer.daemon = True
            self._timer.start()

    def stop(self) -> None:
        """Count no time any more."""
        self._running = False
        self.restart()
