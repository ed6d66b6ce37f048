"""A validation in a user's loop: the points around it, its metrics, and the requests until then."""

import time
from collections.abc import Iterable, Iterator, MutableMapping, Sized
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any

import torch

from hookflow.attached.loop import (
    VALIDATION_SET,
    AttachedLoop,
    CutValidation,
    IterationPhase,
    LoopStopped,
)
from hookflow.errors import Problem, UserError
from hookflow.hooks.tensors import enter_evaluation
from hookflow.runner.data.batches import size_of
from hookflow.runner.iteration.requests import SKIP_MARKER
from hookflow.runner.logging.timing import VALIDATION
from hookflow.runner.loop.evaluation import CheckedMetrics, WeightedMeans
from hookflow.runner.model.task import as_number, single_numbers
from hookflow.runner.process.state import MetricDict


class AttachedValidation:
    """The validations of a user's loop, which walks over the data itself.

    Each is computed on random numbers of its own, without gradients and with the models in
    evaluation. A run that is resumed behind it goes on as one that was never interrupted. A
    validation that the checkpoint has already is not counted a second time.
    """

    def __init__(self, loop: AttachedLoop, resumed_at: int | None) -> None:
        self._loop = loop
        self._resumed_at = resumed_at
        self._state = loop.state
        self._engine = loop.engine
        self._context = loop.context
        self._checkpoints = loop.trainer.checkpoints
        self._means = WeightedMeans(exact=False)
        """The means of what is reported in the current validation."""

    @property
    def is_due(self) -> bool:
        """Whether a command or a hook asks for a validation, or a resumed run begins with one."""
        return bool(self._loop.safe_point.control.validation_due or self._state.validation_due)

    @contextmanager
    def run(self) -> Iterator[MutableMapping[str, Any]]:
        """Fire a validation's points around a block that puts the metrics into a dict.

        Raises UserError in the middle of an iteration, unless another trainer validates there.
        """
        loop = self._loop
        state = self._state
        if loop.is_validating:
            raise UserError(Problem("a validation is under way already"))
        loop.close_validation()
        if loop.phase is IterationPhase.STEPPED or loop.has_left_out_step:
            loop.close()
        elif loop.phase is IterationPhase.OPEN and not loop.is_driven:
            message = "a validation in the middle of an iteration has no state that could be saved"
            hint = (
                "validate before the first forward pass of an iteration, or after the optimizer's"
                " step"
            )
            raise UserError(Problem(message, hint=hint))
        is_counted_already = (
            self._resumed_at == state.iter == state.validated.get(VALIDATION_SET)
            and not self.is_due
        )
        with self._enter_evaluation():
            if is_counted_already:
                yield MetricDict()
            else:
                yield from self._record_metrics()
        if not is_counted_already:
            self._process()
        loop.context.timeline.restart()

    @contextmanager
    def _enter_evaluation(self) -> Iterator[None]:
        """Compute without gradients, on random numbers of this place.

        The models are in evaluation.
        """
        loop = self._loop
        context = self._context
        state = self._state
        batch_idx = state.batch_idx
        batches = state.batches
        iterating = state.iterating
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(context.timeline.excluded(VALIDATION))
            stack.enter_context(context.optimizer_modes.evaluating())
            stack.enter_context(context.consensus.evaluation())
            stack.enter_context(loop.trainer.evaluation.seeded(VALIDATION_SET))
            loop.is_validating = True
            state.iterating = False  # what is logged here is of the weights before the iteration
            try:
                yield
            finally:
                loop.is_validating = False
                state.split = "train"
                state.batch_idx = batch_idx
                state.batches = batches
                state.iterating = iterating

    def _record_metrics(self) -> Iterator[MutableMapping[str, Any]]:
        """Yield the dict of metrics, between the points of a validation.

        The metrics that it holds then are recorded.
        """
        state = self._state
        fire = self._engine.fire
        due = state.validation_due
        state.validation_due = ()
        validated_before = state.validated.get(VALIDATION_SET)
        entered = len(self._engine.arounds)
        loop = self._loop
        self._checkpoints.keep_state(validation_due=due or (VALIDATION_SET,))
        state.validated[VALIDATION_SET] = state.iter
        began = time.perf_counter()
        try:
            with state.during("val"):
                state.split = VALIDATION_SET
                fire("before_val")
                with enter_evaluation(self._context.parts.model):
                    fire("before_val_epoch")
                    metrics = CheckedMetrics()
                    self._means = WeightedMeans(exact=False)
                    yield metrics
                    means = self._means.over_ranks(self._context.consensus.all_gather_object)
                    for name, mean in means.items():
                        metrics.setdefault(name, mean)  # what the block has set itself stands
                    state.metrics = metrics
                    state.metrics_at = state.iter
                    fire("after_val_epoch", metrics)
                    result = {
                        name: as_number(value, f'metrics["{name}"]')
                        for name, value in metrics.items()
                    }
                    result = loop.trainer.evaluation.broadcast_metrics(result)
                    state.metrics = MappingProxyType(MetricDict(result))
                    fire("after_val", state.metrics)
                    self._context.log.put(
                        "metrics",
                        split=VALIDATION_SET,
                        v=result,
                        seconds=time.perf_counter() - began,
                    )
        except BaseException as error:
            loop.cut_validation = CutValidation(entered, validated_before, type(error))
            raise
        self._checkpoints.forget_kept_state()

    def _process(self) -> None:
        """Do what has been asked for by the end of a validation.

        Raises LoopStopped where the run stops here. A trainer that drives the loop stops by itself.
        """
        loop = self._loop
        control = loop.safe_point.control
        safe_point = loop.safe_point
        commanded = control.validation_due
        control.validation_due = False
        if commanded:
            self._context.requests.save(["last"])
            self._checkpoints.save()
            self._checkpoints.report()
        control.answer()
        safe_point.process(wait=True)
        stop = safe_point.stop
        if stop is not None and stop.status != "finished" and not loop.is_driven:
            raise LoopStopped(stop.reason)

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a validation, each between its two points.

        The means of what is reported are its metrics. Within a block of `run.validation()` they are
        over the batches of all its loaders, and among its metrics. Raises UserError where hooks
        need the outputs of a batch, and `run.report` has not been called.
        """
        if self._loop.is_validating:
            yield from self._iterate_batches(loader)
            return
        with self.run():
            yield from self._iterate_batches(loader)

    def _iterate_batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        state = self._state
        loop = self._loop
        needy = [b.hook for b in self._engine.plan.at("after_val_iter") if "outputs" in b.takes]
        counts = state.stage == "val"
        state.batches = len(loader) if isinstance(loader, Sized) else 0
        for index, batch in enumerate(loader):
            state.batch_idx = index
            state.batch_size = size_of(batch) or 0
            entered = len(self._engine.arounds)
            if counts:
                batch = self._context.fire_with_batch("before_val_iter", batch)
            if batch is SKIP_MARKER:
                self._engine.leave(entered)
                continue
            loop.reported = {}
            yield batch
            outputs = dict(loop.reported)
            if not counts:
                continue
            if needy and not outputs:
                message = (
                    f'the hook "{needy[0]}" needs the outputs of a validation batch, and nothing'
                    " was reported"
                )
                raise UserError(
                    Problem(
                        message,
                        hint='in the loop over run.val(loader): run.report({"logits": logits})',
                    )
                )
            self._means.add(single_numbers(outputs), state.batch_size or None)
            self._engine.fire("after_val_iter", batch, index, outputs)
        loop.reported = {}
