"""The iterations of a user's loop.

Its calls, forward passes and optimizers' steps show the phases of an iteration.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hookflow.errors import Problem, UserError
from hookflow.runner.data.batches import size_of
from hookflow.runner.device.random_state import set_random_state
from hookflow.runner.iteration.requests import SKIP_MARKER
from hookflow.runner.logging.timing import BACKWARD, DATA, FORWARD, OPTIMIZER
from hookflow.runner.loop.trainer import Trainer
from hookflow.runner.process.signals import StopReason
from hookflow.runner.process.state import NO_BATCH

POINTS_OF_BACKWARD = ("after_forward", "before_backward", "after_backward")
"""The points that fire in `run.backward`, and in no `loss.backward()`."""


VALIDATION_SET = "val"
"""The set of data that the user's loop validates on."""


@dataclass(frozen=True)
class CutValidation:
    """A validation that the user's code has left before its end.

    It has left by `break`, or by an exception that it has caught.
    """

    entered: int
    """How many arounds were open before it."""
    validated_before: int | None
    """The iteration of the validation before it."""
    error: type[BaseException]
    """The exception that has left it: GeneratorExit, where that was `break`."""


class LoopStopped(BaseException):
    """Raised at the head of the user's `for` where the run stops before its end.

    `attach` lets it end there.
    """


class IterationPhase(Enum):
    """How far the iteration of the user's `for` is."""

    NONE = "outside of the loop"
    READY = "nothing has been computed"
    OPEN = "a forward pass, or run.batch, has begun it"
    STEPPED = "an optimizer has stepped"
    CLOSED = "it is done and counted"


class AttachedLoop:
    """The iterations of a loop that hookflow does not walk itself.

    The next turn of the `for` ends an iteration. Forward hooks of the network, `backward` and hooks
    of the optimizers' steps mark its phases, which add up over the batches of an iteration. The
    first of them fires `before_train_iter`.
    """

    def __init__(self, trainer: Trainer, models: Mapping[str, nn.Module], examples: int) -> None:
        self.trainer = trainer
        self.state = trainer.state
        self.context = trainer.context
        self.engine = trainer.engine
        self.safe_point = trainer.safe_point
        self.phase = IterationPhase.NONE
        self.is_validating = False
        self.cut_validation: CutValidation | None = None
        self.reported: dict[str, Any] = {}
        """The outputs of `run.report` for the current batch."""
        self.is_driven = False
        """Whether another trainer walks the loop, and calls this as it goes.

        That trainer chooses when to validate, ends by itself after a stop, and computes the
        gradients of some steps without a call here.
        """
        self.is_told_of_steps = False
        """Whether `before_step` says when gradients are complete.

        Another trainer may compute them within the step.
        """
        self.random_state: dict[str, Any] | None = None
        """The generators of a checkpoint, which the first turn of the `for` puts back.

        A program that is begun anew may draw before its loop, as the iterator of a loader does.
        """
        self._called_models = models
        self._examples = examples
        self._update = trainer.update
        self._timeline = trainer.context.timeline
        self._optimizers = trainer.run.optimizers
        self._outputs: dict[str, Any] = {}
        self._offered_backward: tuple[Any, int, dict[str, Any]] = (None, 0, {})
        self._losses = 0
        self._scaled_with: tuple[Any, Tensor] | None = None
        """The scaler of the latest backward pass, and the scale that it had there."""
        self._has_warned = False
        """Whether the log says that the loop computes its gradients itself."""
        self._warned_cuts: set[type[BaseException]] = set()
        """The exceptions that have left validations, of which the log has a warning."""
        self._skips: set[str] = set()
        self._batch: Any = None
        self._is_in_epoch = False
        self._has_looped = False
        self._epoch_began = 0.0
        self._arounds_outside = 0
        self._settle = self.context.module_hooks.make_settling_step(lambda run, batch: None)
        plan = self.engine.plan
        self._of_batch = [
            b.hook
            for b in plan.at("before_train_iter")
            if "batch" in b.takes or "batch" in b.writes
        ]
        """The hooks that need `run.batch`.

        They are given the batch, or put another one in its place.
        """
        self._of_backward = [
            binding.hook for point in POINTS_OF_BACKWARD for binding in plan.at(point)
        ]
        fired = self.engine.firings("before_train_iter")
        self._writers = [
            f for f in fired if "batch" in f.binding.writes and f.binding.half == "whole"
        ]
        """The hooks that fire at the later batches of an iteration, too.

        These are the ones that write the batch.
        """
        for firing in self._writers:
            firing.ask_once_per_iteration(self.state)

    def begin(self, undoing: ExitStack) -> None:
        """Fire `before_train`, and watch the forward passes and the steps.

        It watches them until `undoing` is closed.
        """
        state = self.state
        for model in self._called_models.values():
            undoing.callback(model.register_forward_pre_hook(self._before_forward).remove)
            undoing.callback(model.register_forward_hook(self._after_forward).remove)
        for name, optimizer in self._optimizers.items():
            undoing.callback(
                optimizer.register_step_pre_hook(partial(self._before_step, name)).remove
            )
            undoing.callback(
                optimizer.register_step_post_hook(partial(self._after_step, name)).remove
            )
        state.stage = "train"
        self.engine.fire("before_train")
        self.trainer.checkpoints.begin()
        self.safe_point.signals.be_graceful()
        self.safe_point.check_stop()
        self._timeline.restart()

    def iterations(self) -> Iterator[int]:
        """Yield the number of iterations done, for each iteration that is left.

        Raises LoopStopped where the run stops before its end, and UserError where it has no length.
        """
        state = self.state
        if state.iter_limit is None:
            message = "`for it in run` needs to know how many iterations there are"
            raise UserError(
                Problem(
                    message,
                    hint="hookflow.attach(…, max_iters=10_000), or run.max_iters in the file",
                )
            )
        if self.phase in (IterationPhase.OPEN, IterationPhase.STEPPED):
            self.close()  # a loop before this one was left by `break`
            self._leave_if_stopped()
        self._has_looped = True
        self._timeline.restart()
        while self.safe_point.stop is None and not state.finished:
            self._begin_turn()
            yield state.iter
            self.close()
            self._leave_if_stopped()
        self._leave_if_stopped()

    def close_validation(self) -> None:
        """Leave a validation that was left before its end.

        The program goes on, and nothing of the validation counts.
        """
        cut = self.cut_validation
        self.cut_validation = None
        if cut is None:
            return
        state = self.state
        self.engine.leave(cut.entered)
        self.trainer.checkpoints.forget_kept_state()
        state.stage = "train"
        if cut.validated_before is None:
            state.validated.pop(VALIDATION_SET, None)
        else:
            state.validated[VALIDATION_SET] = cut.validated_before
        self._warn_of_cut_validation(cut)

    def _warn_of_cut_validation(self, cut: CutValidation) -> None:
        """Say once for each way of leaving it that a validation counts for nothing."""
        if cut.error in self._warned_cuts:
            return
        self._warned_cuts.add(cut.error)
        text = "a validation was left before its end"
        if cut.error is GeneratorExit:
            hint = "for a part of the data write run.val(itertools.islice(loader, 50))"
        else:
            text = f"{text} by {cut.error.__name__}"
            hint = "the next one like it will not be told of"
        self.context.log.say(f"{text}: nothing of it counts ({hint})", "warn")

    def _leave_if_stopped(self) -> None:
        stop = self.safe_point.stop
        if stop is not None and stop.status != "finished":
            raise LoopStopped(stop.reason)

    def _begin_turn(self) -> None:
        state = self.state
        if self.random_state is not None:
            set_random_state(self.random_state, self.context.parts.device)
            self.random_state = None
        if not self._is_in_epoch:
            self._is_in_epoch = True
            self._arounds_outside = len(self.engine.arounds)
            self._epoch_began = time.perf_counter() - self._timeline.excluded_s
            state.batches = state.batches_per_epoch
            if state.batch_idx == 0:
                self.engine.fire("before_train_epoch")
            else:
                self.engine.enter_again("before_train_epoch")
        self.phase = IterationPhase.READY
        state.iterating = True  # what the body logs is of this iteration, from its first line on
        self.reported = {}
        self._outputs = {}
        self._losses = 0
        self._scaled_with = None
        self._batch = None
        state.batch_size = self._examples

    # The actions of the user's code in an iteration.

    def take_batch(self, batch: Any) -> Any:
        """Return a batch as the hooks at `before_train_iter` leave it.

        For later batches only those hooks fire that write the batch.
        """
        state = self.state
        if self.is_validating:
            raise UserError(
                Problem(
                    "run.batch is for training: run.val(loader) gives the batches of a validation"
                )
            )
        self._require_turn("run.batch")
        size = size_of(batch) or 0
        if self.phase is IterationPhase.READY:
            state.batch_size = size or self._examples
            self._batch = self._open(batch)
            return self._batch
        self._timeline.mark(DATA)
        if not self._examples:
            state.batch_size += size
        whole = state.batch_size
        self._batch = self._offer_batch(batch, self._writers)
        state.batch_size = whole
        return self._batch

    def open(self, batch: Any) -> None:
        """Begin the iteration with a batch that hooks see and do not replace.

        It is None where it is unknown.
        """
        if batch is None:
            self._open_without_batch()
        else:
            self._batch = self._open(batch)

    def _open(self, batch: Any) -> Any:
        """Begin the iteration: fire `before_train_iter`, and return the batch after its hooks."""
        state = self.state
        self.phase = IterationPhase.OPEN
        state.iterating = True
        self._timeline.mark(DATA)
        state.batch = batch
        result = self._offer_batch(batch, None)
        self._settle(self.trainer.run, batch)
        return result

    def _offer_batch(self, batch: Any, writers: Any) -> Any:
        result = self.context.fire_with_batch("before_train_iter", batch, writers)
        if result is SKIP_MARKER:
            message = (
                "a hook has called run.skip_batch, and only hookflow's own loop can leave a"
                " batch out"
            )
            raise UserError(Problem(message))
        return result

    def _open_without_batch(self) -> None:
        """Begin an iteration whose batch is unknown.

        Raises UserError where hooks need the batch.
        """
        if self._of_batch:
            message = (
                f'the hook "{self._of_batch[0]}" needs the batch, and this loop has not given it'
            )
            raise UserError(
                Problem(message, hint="before the forward pass: x, y = run.batch(x, y)")
            )
        self._open(None)

    def _require_turn(self, call: str) -> None:
        """Raise UserError unless an iteration is under way."""
        if self.cut_validation is not None:
            self.close_validation()
        if self.phase is IterationPhase.NONE:
            raise UserError(Problem(f"{call} is for the body of `for it in run`"))
        if self.phase is IterationPhase.CLOSED:
            message = f"{call} comes after a validation that has ended this iteration"
            raise UserError(
                Problem(
                    message,
                    hint="validate before the first forward pass of an iteration, or at its end",
                )
            )

    @property
    def _is_training(self) -> bool:
        return self.phase is not IterationPhase.NONE and not self.is_validating

    def _before_forward(self, module: nn.Module, args: Any) -> None:
        if not (self._is_training and module.training and torch.is_grad_enabled()):
            return
        self._require_turn("a forward pass of training")
        if self.phase is IterationPhase.READY:
            self._open_without_batch()
        else:
            self._timeline.mark(DATA)

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._is_training and module.training and torch.is_grad_enabled():
            self._timeline.mark(FORWARD)

    def backward(
        self,
        loss: Tensor,
        scaler: Any,
        by: Callable[..., Any] | None,
        options: Mapping[str, Any],
    ) -> None:
        """Add the gradients of a loss, and fire the points around that.

        They are `after_forward`, `before_backward` and `after_backward`. A `scaler`
        (`torch.amp.GradScaler`) scales what is differentiated, and not what hooks see. A function
        `by` differentiates in its own way.
        """
        loss = self.begin_backward(loss)
        if by is not None:
            by(loss, **options)
        elif scaler is not None:
            scale = scaler.scale(torch.ones((), device=loss.device))
            self._scaled_with = scaler, scale
            scaled = scaler.scale(loss)
            scaled.backward(**options)
        else:
            loss.backward(**options)
        self.end_backward(loss)

    def begin_backward(self, loss: Tensor) -> Tensor:
        """Fire `after_forward` and `before_backward`; return the loss as hooks have left it."""
        self._require_turn("run.backward")
        if self.is_validating:
            raise UserError(
                Problem("run.backward is not for a validation: the hooks there have no gradients")
            )
        if self.phase is IterationPhase.READY:
            self._open_without_batch()
        self._timeline.mark(FORWARD)
        self._offered_backward = self._batch, self.state.batch_idx, {**self.reported, "loss": loss}
        self.engine.fire("after_forward", *self._offered_backward)
        self.engine.fire("before_backward", *self._offered_backward)
        result: Tensor = self._offered_backward[2]["loss"]  # a hook may have put another one there
        self._update.watch_outside_loss(result)
        return result

    def end_backward(self, loss: Tensor) -> None:
        """Fire `after_backward`: the gradients of this loss are there."""
        self._timeline.mark(BACKWARD)
        self._losses += 1
        total = self._outputs.get("loss")
        self._outputs["loss"] = loss.detach() if total is None else total + loss.detach()
        self.engine.fire("after_backward", *self._offered_backward)

    def _before_step(self, name: str, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._is_training and not self.is_told_of_steps:
            self.before_step(name, optimizer)

    def before_step(self, name: str, optimizer: Optimizer) -> None:
        """Fire `before_optimizer_step`: the gradients of an iteration are complete."""
        self._require_turn("a step of the optimizer")
        if self.phase is IterationPhase.READY:
            self._open_without_batch()
        if self._of_backward and not self._losses and not self.is_driven:
            hook = self._of_backward[0]
            message = (
                f'the hook "{hook}" fires at the backward pass, and this loop has called no'
                " run.backward"
            )
            raise UserError(
                Problem(message, hint="write run.backward(loss) in place of loss.backward()")
            )
        if getattr(optimizer, "grad_scale", None) is not None and self.engine.plan.at(
            "before_optimizer_step"
        ):
            message = (
                f"the gradients of {type(optimizer).__name__} are still scaled as its step begins"
            )
            raise UserError(
                Problem(
                    message, hint="call scaler.unscale_(optimizer) before scaler.step(optimizer)"
                )
            )
        self._update.stepping = (name,)
        self._timeline.mark(BACKWARD)
        self.engine.fire(
            "before_optimizer_step", self._batch, self.state.batch_idx, self._all_outputs()
        )
        if self._update.skip_outside_step(name):
            self._skips.add(name)
            # An optimizer does not change a parameter without a gradient.
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    def _after_step(self, name: str, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._is_training:
            return
        self.phase = IterationPhase.STEPPED
        self._timeline.mark(OPTIMIZER)
        if name in self._skips:
            self._skips.discard(name)
            return
        self.engine.fire(
            "after_optimizer_step", self._batch, self.state.batch_idx, self._all_outputs()
        )

    @property
    def has_left_out_step(self) -> bool:
        """Whether the iteration is at its end without a step.

        The loop has dropped its gradients, or its `GradScaler` has found them infinite, and has
        lowered its scale in place of the step.
        """
        if self.phase is not IterationPhase.OPEN or not self._losses:
            return False
        if self._scaled_with is not None:
            scaler, scale = self._scaled_with
            scale_before = float(scale)
            if scaler.get_scale() < scale_before:
                return True
        for optimizer in self._optimizers.values():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        return False
        return True

    def _all_outputs(self) -> dict[str, Any]:
        return {**self._outputs, **self.reported}

    # The end of an iteration, and of the loop.

    def close(self) -> None:
        """End the iteration, if one is under way.

        It ends at the loop's next turn, or where a validation follows its step.
        """
        state = self.state
        self.close_validation()
        if self.phase in (IterationPhase.NONE, IterationPhase.CLOSED):
            return
        if self.phase is IterationPhase.READY:
            self._open_without_batch()
        if self._losses and self._update.has_unused_gradients:
            self._update.record_skipped_step(True)
        outputs = self._all_outputs()
        if self.phase is IterationPhase.STEPPED and "loss" not in outputs:
            self._warn_of_lost_loss()
        index = state.batch_idx
        state.batch = NO_BATCH
        self.context.scalars.take(outputs)
        state.batch_idx = index + 1
        state.iter += 1
        state.done[0] = state.iter
        self.engine.fire("after_train_iter", self._batch, index, outputs)
        self._timeline.end_iteration(state.batch_size)
        state.iterating = False
        self.phase = IterationPhase.CLOSED
        self._batch = None
        ends_epoch = state.epoch_is_over
        if ends_epoch:
            self._close_epoch()
        if ends_epoch or state.attention or state.iter >= self.context.consensus.next_iteration:
            self.safe_point.process(wait=ends_epoch)

    def _warn_of_lost_loss(self) -> None:
        """Say once that the loop gives no loss. Another trainer may have none to give."""
        if self._has_warned or self.is_driven:
            return
        self._has_warned = True
        text = (
            "the loop steps without run.backward(loss): its loss is neither logged nor checked for"
            " being finite"
        )
        self.context.log.say(text, "warn")

    def _close_epoch(self) -> None:
        state = self.state
        state.close_epoch()
        self._is_in_epoch = False
        seconds = time.perf_counter() - self._timeline.excluded_s - self._epoch_began
        self.context.log.put("epoch", seconds=seconds)
        self.engine.fire("after_train_epoch")

    def end(self) -> None:
        """Fire `after_train`, and do what has been asked for: the user's block is over."""
        state = self.state
        safe_point = self.safe_point
        self.close_validation()
        if self.phase is IterationPhase.STEPPED or self.has_left_out_step:
            self.close()  # the loop was left by `break`
        is_cut = self.phase is IterationPhase.OPEN and not self.is_validating
        if self._is_in_epoch:
            self.engine.cut(self._arounds_outside)
        if self._has_looped and not state.finished and safe_point.stop is None:
            safe_point.stop = StopReason(
                "the loop was left before its end", "stopped", 0, save=False
            )
        safe_point.control.end()
        self._update.settle()
        self.phase = IterationPhase.NONE
        state.iterating = False
        self.engine.fire("after_train")
        if is_cut:
            text = (
                f"the loop was left in the middle of iteration {state.iter + 1}: nothing of that is"
                " saved"
            )
            self.context.log.say(text, "warn")
            self.context.requests.take_saves()
        else:
            self.trainer.checkpoints.request_last()
        safe_point.process(wait=True)
        self.trainer.restore_best()
        self.trainer.finish()
