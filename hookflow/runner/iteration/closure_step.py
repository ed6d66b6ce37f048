"""The step of an optimizer that computes the loss itself, by a closure, as often as it needs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hookflow.errors import Problem, UserError
from hookflow.graph.slots import root
from hookflow.runner.dispatch.dispatcher import HookCall
from hookflow.runner.iteration.context import RunContext
from hookflow.runner.iteration.update import OptimizerUpdate
from hookflow.runner.logging.timing import BACKWARD, OPTIMIZER

CLOSURE_POINT = "before_optimizer_step"


class _StepSkippedError(Exception):
    """Ends an optimizer's step from within its closure, before a weight has changed."""


class ClosureStepper:
    """Takes steps of optimizers that compute the loss several times, such as LBFGS and SAM.

    `before_optimizer_step` fires when the first gradients of a step are there: those that the task
    has computed before the step, or else those of the first call of the closure. At each later call
    the hooks that write gradients there fire again, so that the optimizer sees no gradient without
    them. `after_optimizer_step` fires once.
    """

    def __init__(self, context: RunContext, update: OptimizerUpdate) -> None:
        self._context = context
        self._update = update
        self._engine = context.engine
        self._timeline = context.timeline
        self._optimizers = context.parts.optimizers
        self._is_stepping = False
        self._is_checked = False
        self._has_warned = False
        self._gradient_writers: list[HookCall] | None = None

    def step(self, offered: tuple[Any, ...], name: str, closure: Callable[[], Any]) -> Any:
        """Let an optimizer step with a closure, which returns the loss.

        Returns what the optimizer returns. Where the step is left out it is the loss of the first
        call of the closure, None if there was none. Raises UserError in a run whose steps cannot
        have a closure, and when the optimizer has not called it.
        """
        self._check()
        self._is_stepping = True
        try:
            return self._step(offered, name, closure)
        finally:
            self._is_stepping = False

    def _step(self, offered: tuple[Any, ...], name: str, closure: Callable[[], Any]) -> Any:
        update = self._update
        update.stepping = (name,)
        has_begun = False
        first_loss = None

        def evaluate() -> Any:
            nonlocal has_begun, first_loss
            self._timeline.mark(OPTIMIZER)  # what the optimizer has computed since its last call
            update.begin_evaluation(name)
            with torch.enable_grad():
                loss = self._average_loss(closure())
            is_empty = update.finish_gradients((name,))
            if has_begun:
                self._fire_again(offered)
            else:
                first_loss = loss
                self._begin(offered, is_empty)
                has_begun = True
            self._timeline.mark(BACKWARD)
            return loss

        try:
            if update.has_unused_gradients_of(name):
                self._begin(offered, update.finish_gradients((name,)))
                has_begun = True
            result = self._optimizers[name].step(evaluate)
        except _StepSkippedError:
            update.finish_step((name,))
            update.record_skipped_step(True)
            return first_loss
        update.finish_step((name,))
        if not has_begun:
            kind = type(self._optimizers[name]).__name__
            raise UserError(
                Problem(
                    f"{kind} has stepped without a call of the closure",
                    hint="call run.step() for it",
                )
            )
        self._timeline.mark(OPTIMIZER)
        self._engine.fire("after_optimizer_step", *offered)
        return result

    def _begin(self, offered: tuple[Any, ...], is_empty: bool | Tensor) -> None:
        """Fire the point before the step.

        Raises _StepSkippedError if a hook skips the step, or if the batch weighs nothing.
        """
        update = self._update
        if self._context.requests.keeps_gradients:
            raise UserError(
                Problem(
                    "run.accumulate adds up the gradients of several batches; a closure is of one"
                )
            )
        if update.take_skip_request():
            raise _StepSkippedError
        # The host waits for the device here: an optimizer with a closure cannot skip a step by
        # itself.
        if bool(is_empty):
            update.empty_steps.note_left_out()
            raise _StepSkippedError
        entered = len(self._engine.arounds)
        dispatcher = self._engine.dispatcher
        if self._gradient_writers is None:
            self._gradient_writers = self._find_gradient_writers()
        # The dispatcher, and not the generated function: a trigger is evaluated once for all calls.
        dispatcher.call_all(self._engine.firings(CLOSURE_POINT), (dispatcher.run, *offered))
        if update.take_skip_request():
            self._engine.leave(entered)
            raise _StepSkippedError

    def _fire_again(self, offered: tuple[Any, ...]) -> None:
        """Let the hooks that write gradients have those of a later call of the closure."""
        dispatcher = self._engine.dispatcher
        for firing in self._gradient_writers or ():
            dispatcher.call_within(firing, (dispatcher.run, *offered))
        if self._update.take_skip_request() and not self._has_warned:
            self._has_warned = True
            message = (
                "run.skip_step has come at a later call of the closure, when the optimizer had"
                " begun to step"
            )
            self._context.log.say(f"{message}: the step was taken", "warn")

    def _find_gradient_writers(self) -> list[HookCall]:
        """Return the hooks that write gradients before a step.

        From here on each is evaluated once an iteration.
        """
        writers = []
        for firing in self._engine.firings(CLOSURE_POINT):
            written = [root(slot) for slot in firing.binding.writes]
            if firing.binding.half == "whole" and "grads" in written:
                firing.ask_once_per_iteration(self._context.state)
                writers.append(firing)
        return writers

    def _average_loss(self, loss: Any) -> Any:
        """Return the loss of the whole batch.

        A line search decides by it, and all ranks must decide alike.
        """
        strategy = self._context.parts.strategy
        if not strategy.several:
            return loss
        weighted = loss * self._update.loss_weight
        return (
            strategy.all_reduce(weighted, self._context.parts.device)
            / self._context.parts.data_ranks.world
        )

    def _check(self) -> None:
        """Raise UserError where a step with a closure cannot be taken."""
        if self._is_stepping:
            raise UserError(Problem("run.step has been called within the closure of a step"))
        if self._is_checked:
            return
        check_closures(self._update.guard is not None, self._context)
        self._is_checked = True


def check_closures(checks_gradients: bool, context: RunContext) -> None:
    """Raise UserError in a run whose optimizers cannot be given a closure.

    `checks_gradients` says whether steps are left out for gradients that are not finite.
    """
    parts = context.parts
    if checks_gradients:
        cause = 'run.on_nan = "skip"'
        if parts.precision == "fp16":
            cause = 'run.precision = "fp16"'
        message = (
            f"{cause} cannot leave out a step with a closure, within which the weights have moved"
            " already"
        )
        raise UserError(
            Problem(message, hint='run.precision = "bf16" or "fp32", and run.on_nan = "raise"')
        )
    for name, capabilities in parts.capabilities.items():
        if capabilities.accumulates:
            message = (
                f'hook "{name}" adds up the gradients of several batches, and a closure computes'
                " those of one"
            )
            raise UserError(Problem(message, hint=f"hooks.{name}.enabled = false"))
