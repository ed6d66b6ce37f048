"""Drives a run of hooks by the calls that another trainer makes of its callbacks."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, MutableMapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from hookflow.errors import Problem, UserError, first_few

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from hookflow.api.pipeline import Pipeline
    from hookflow.attached.attach import AttachedRun
    from hookflow.graph.plan import Binding, Plan
    from hookflow.graph.points import Point

Hooks = str | os.PathLike[str] | Mapping[str, Any]
"""A pipeline of hooks alone: its file, or a dict of what a file would say."""

COMMON_POINTS = (
    "before_run",
    "before_train",
    "before_train_epoch",
    "before_train_iter",
    "after_train_iter",
    "after_train_epoch",
    "after_val_epoch",
    "after_val",
    "after_load_checkpoint",
    "before_save_checkpoint",
    "after_copy_checkpoint",
    "after_save_checkpoint",
    "after_train",
    "on_exception",
    "on_log",
    "after_run",
)
"""The points that each of the trainers comes to."""

BEFORE_THE_STEP = ("before_train_iter", "after_forward", "before_backward", "after_backward")
"""The points at which a hook could leave a batch out, or take it into a group."""

LATER_PASSES = ("_test", "_test_epoch", "_test_iter", "_predict", "_predict_iter")
"""The ends of the names of points that belong to no training: the run is over by then."""

NAMES_OF_SAVES = ("trainer", "trainer-2")
"""The names of the checkpoints beside the trainer's last save, and beside the one before it.

A process may be killed between the trainer's save and that of hookflow, or the other way round:
then one of the two has the last save alone, and both have the one before it.
"""

STEP_POINTS = ("before_optimizer_step", "after_optimizer_step")
"""The points around the step of an optimizer of PyTorch's."""


class TrainerDriver:
    """A run of hooks inside another trainer.

    The trainer walks over its data and steps its optimizers itself. The trainer's callback calls
    these methods in the order of the training. An iteration is a step of the optimizer.
    """

    def __init__(
        self,
        trainer_name: str,
        hooks: Hooks,
        overrides: Mapping[str, Any] | None,
        runs: str | None,
        *,
        points: Collection[str],
        arguments: Collection[str] = (),
    ) -> None:
        self._trainer_name = trainer_name
        self._hooks = hooks
        self._overrides = dict(overrides or {})
        self._runs = runs
        self._points = frozenset((*COMMON_POINTS, *points))
        self._arguments = frozenset(arguments)
        self._run: AttachedRun | None = None
        self._turns: Any = None
        self._validation: AbstractContextManager[MutableMapping[str, Any]] | None = None
        self._metrics: MutableMapping[str, Any] = {}
        self._is_in_iteration = False
        self._saves = False
        self._saved_step: int | None = None
        """The iteration of the checkpoint beside the trainer's last save."""
        self._must_save = False
        """Whether the trainer has saved in an iteration that is yet to end here."""
        self._trainer_saved_at = -1
        """The trainer's step at its last save."""
        self._load(1)  # mistakes of the file are reported where the callback is made

    @property
    def is_running(self) -> bool:
        """Whether the run has begun and not ended."""
        return self._run is not None

    @property
    def is_in_iteration(self) -> bool:
        """Whether an iteration has begun and not ended."""
        return self._is_in_iteration

    @property
    def run(self) -> AttachedRun:
        """The run. Raises UserError before the training begins."""
        if self._run is None:
            raise UserError(Problem(f"the training by {self._trainer_name} has not begun"))
        return self._run

    # The pipeline.

    def _load(self, max_iters: int) -> Pipeline:
        """Load the hooks for a run of so many iterations.

        Raises UserError for what this trainer does not offer.
        """
        from hookflow.api.pipeline import load

        overrides = {**self._overrides, "run.max_iters": max_iters}
        pipeline = load(self._hooks, overrides)
        for hook in pipeline.plan.hooks:
            if hook.default and hook.use == "checkpoint":  # the trainer has checkpoints of its own
                pipeline = load(self._hooks, {**overrides, f"hooks.{hook.name}.enabled": False})
        self._saves = any(hook.use == "checkpoint" for hook in pipeline.plan.hooks)
        problems = [*self._find_problems(pipeline.plan)]
        if problems:
            raise UserError(problems)
        return pipeline

    def _find_problems(self, plan: Plan) -> list[Problem]:
        problems = []
        own_points = {point.name for point in plan.own}
        for binding in plan.bindings:
            if binding.point in own_points:
                continue
            why = self._find_obstacle(binding, plan.points[binding.point])
            if why:
                hint = "train by hookflow run, or by hookflow.attach in a loop of your own"
                problems.append(Problem(f'the hook "{binding.hook}" {why}', hint=hint))
        return problems

    def _find_obstacle(self, binding: Binding, point: Point) -> str:
        """Return what keeps a binding from firing in this trainer; "" if nothing does."""
        trainer = self._trainer_name
        if point.name.endswith(LATER_PASSES):
            return ""
        if binding.point not in self._points and not point.nested:
            return f"fires at {binding.point}, to which {trainer} does not come"
        if "batch" in binding.takes and "batch" not in self._arguments:
            return f"takes the batch at {binding.point}, which {trainer} does not give"
        if "batch" in binding.writes or (
            "control" in binding.writes and binding.point in BEFORE_THE_STEP
        ):
            return (
                f"changes the course of the iteration at {binding.point}, which is that of"
                f" {trainer}"
            )
        return ""

    # The course of the training.

    def begin(
        self,
        model: nn.Module | None,
        optimizer: Optimizer | None,
        *,
        max_iters: int,
        iters_per_epoch: int,
        examples: int = 0,
        done: int = 0,
        tells_steps: bool = False,
    ) -> None:
        """Begin the run; `done` is the number of steps that a resumed training has behind it.

        With `tells_steps` the trainer's callback calls `before_step`; else a hook of the optimizer
        does. Raises UserError where that is not where hookflow's own run has been saved.
        """
        from hookflow.attached.attach import attach
        from hookflow.events.rundir import RunDir
        from hookflow.runner.checkpoint.manifest import list_checkpoints, parse_iteration

        if self._run is not None:
            # The training before this one has failed, and the trainer has no event for that.
            message = f"the training by {self._trainer_name} has ended before its end"
            self.fail(UserError(Problem(message)))
        pipeline = self._load(max_iters)
        run = attach(
            pipeline,
            model=model,
            optimizer=optimizer,
            iters_per_epoch=iters_per_epoch,
            examples=examples,
            resume=done > 0,
            runs=self._runs,
        )
        if done:
            run.resumed_iter = done
        run.__enter__()
        run.loop.is_driven = True
        run.loop.is_told_of_steps = tells_steps
        run.loop.random_state = None  # the trainer draws, and restores, by rules of its own
        self._run = run
        self._saved_step = None
        if done:
            self._saved_step = done
        self._must_save = False
        self._trainer_saved_at = -1
        self._turns = iter(run)
        if run.iter != done:
            message = (
                f"{self._trainer_name} goes on after step {done}, and hookflow's run after"
                f" {run.iter}"
            )
            saved = list_checkpoints(RunDir(run.dir).checkpoints)
            steps = sorted({parse_iteration(path) for path in saved})
            if steps:
                listed = first_few(map(str, steps))
                hint = (
                    f"hookflow's run has checkpoints of the steps {listed}: resume from one of"
                    ' these; [hooks.checkpoint] with keep = "all" keeps more of them'
                )
            else:
                hint = (
                    "give the hooks a checkpoint, [hooks.checkpoint]: it is then saved when the"
                    " trainer saves its own"
                )
            error = UserError(Problem(message, hint=hint))
            self.fail(error)
            raise error

    def begin_iteration(self, batch: Any = None) -> None:
        """Begin an iteration, if none is under way.

        It begins with its first batch where the trainer gives it.
        """
        if self._is_in_iteration or self.should_stop():
            return
        next(self._turns, None)
        self.run.loop.open(batch)
        self._is_in_iteration = True

    def begin_backward(self, loss: Tensor) -> None:
        """Fire the points before a backward pass.

        Raises UserError where a hook has put another loss in its place.
        """
        if not self._is_in_iteration:
            return
        if self.run.loop.begin_backward(loss) is not loss:
            message = (
                f"a hook has replaced the loss, and {self._trainer_name} differentiates its own"
            )
            raise UserError(Problem(message, hint="train by hookflow run, or by hookflow.attach"))

    def end_backward(self, loss: Tensor) -> None:
        """Fire the point after a backward pass."""
        if self._is_in_iteration:
            self.run.loop.end_backward(loss)

    def before_step(self, optimizer: Optimizer) -> None:
        """Fire the point before a step of the optimizer, whose gradients are complete."""
        if self._is_in_iteration:
            self.run.loop.before_step("optimizer", optimizer)

    def end_iteration(self, outputs: Mapping[str, Any] | None = None) -> None:
        """End the iteration; `outputs` are what hooks at `after_train_iter` are given."""
        if not self._is_in_iteration:
            return
        self._is_in_iteration = False
        if outputs:
            self.run.report(outputs)
        self.run.loop.close()
        if self._must_save:
            self._must_save = False
            self._save_iteration()

    def should_stop(self) -> bool:
        """Say whether hooks, a signal or a command ask for the end of the training."""
        return self.run.loop.safe_point.stop is not None

    def should_save(self, step: int) -> bool:
        """Say whether the run saves its state as it stops, and the trainer has yet to do so.

        Otherwise the trainer would go on from an earlier step.
        """
        stop = self.run.loop.safe_point.stop
        if not self._saves or stop is None or stop.status == "finished":
            return False
        return self._trainer_saved_at != step

    def should_validate(self) -> bool:
        """Say whether hooks or a command ask for a validation."""
        return self.run.validation_due

    def begin_validation(self) -> None:
        """Begin a validation.

        Hooks at `before_val` fire, with the weights that the trainer is about to measure.
        """
        self._validation = self.run.validation()
        self._metrics = self._validation.__enter__()

    def end_validation(self, metrics: Mapping[str, Any]) -> None:
        """End a validation with its metrics.

        A validation that has no beginning in the trainer begins here, too.
        """
        if self._validation is None:
            self.begin_validation()
        assert self._validation is not None
        self._metrics.update(metrics)
        validation = self._validation
        self._validation = None
        validation.__exit__(None, None, None)

    def save(self, step: int, *, has_stepped: bool = False) -> None:
        """Save a checkpoint beside the trainer's own of a step, if a hook of the pipeline saves.

        Where the trainer `has_stepped` in an iteration that has yet to end, it is saved then.
        """
        self._trainer_saved_at = step
        if not self._saves or self._run is None:
            return
        if self._is_in_iteration and has_stepped:
            self._must_save = True
        else:
            self._save_iteration()

    def _save_iteration(self) -> None:
        """Save a checkpoint by the first of `NAMES_OF_SAVES`; the one before it gets the second."""
        run = self.run
        name, name_of_earlier = NAMES_OF_SAVES
        moved = {}
        if self._saved_step is not None and self._saved_step != run.iter:
            moved[name_of_earlier] = self._saved_step
        self._saved_step = run.iter
        run.loop.trainer.run.save_checkpoint(name, moved=moved)
        run.loop.safe_point.process(wait=True)

    def end(self) -> None:
        """End the run: the training is over, or has been stopped."""
        if self._run is None:
            return
        run = self._run
        self._run = None
        self._is_in_iteration = False
        run.__exit__(None, None, None)

    def fail(self, error: BaseException) -> None:
        """End the run with an error of the training.

        The error is recorded, and raised again by the trainer.
        """
        if self._run is None:
            return
        run = self._run
        self._run = None
        self._is_in_iteration = False
        self._validation = None
        try:
            run.__exit__(type(error), error, error.__traceback__)
        except BaseException as raised:
            if raised is not error:
                raise
