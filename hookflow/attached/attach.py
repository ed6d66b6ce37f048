"""`hookflow.attach`: the hooks of a pipeline in a loop of the user's own."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from hookflow.api.pipeline import Pipeline, load
from hookflow.attached.loop import AttachedLoop, LoopStopped
from hookflow.attached.objects import Models, Optimizers, collect_objects
from hookflow.attached.validation import AttachedValidation
from hookflow.errors import Problem, UserError
from hookflow.events.records import Level
from hookflow.events.run_lock import Locks, release
from hookflow.events.rundir import RunDir
from hookflow.runner.attempt.attempt import AttemptOrigin, TrainingAttempt
from hookflow.runner.attempt.session import RunSession
from hookflow.runner.builder.attached import LoopObjects, build_attached
from hookflow.runner.builder.components import RunComponents
from hookflow.runner.device.random_state import random_state
from hookflow.runner.distributed.consensus import ProcessGroupConsensus, RankConsensus
from hookflow.runner.distributed.rendezvous import RankLayout
from hookflow.runner.process.launch import (
    claim,
    finish_notifying,
    hold,
    new_run,
    rollback_resume,
    stage_resume,
)
from hookflow.runner.process.signals import StopReason, handlers_put_back
from hookflow.service.runs import find_run, has_checkpoint
from hookflow.user_code import only_showable

RANK_TIMEOUT_SECONDS = 600.0
"""Seconds that the ranks of a loop wait for one another."""

ALL_ITERATIONS_DONE = StopReason("every iteration is done", "finished", 0, save=False)
PROGRAM_DONE = StopReason("the program is done", "finished", 0, save=False)

Hooks = Pipeline | str | os.PathLike[str] | Mapping[str, Any]
"""A pipeline of hooks alone.

It is its file, a dict of what a file would say, or what `hookflow.load` returns.
"""


def attach(  # noqa: PLR0913  # the package's interface: each keyword is an option of a user's loop
    hooks: Hooks,
    *,
    model: Models | None = None,
    optimizer: Optimizers | None = None,
    max_iters: int | None = None,
    iters_per_epoch: int | None = None,
    examples: int = 0,
    kept: Mapping[str, Any] | None = None,
    resume: bool | str | os.PathLike[str] = False,
    runs: str | os.PathLike[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    allow_changed_hooks: bool = False,
) -> "AttachedRun":
    """Return a run whose hooks fire in a loop of your own.

    Use it so: `with hookflow.attach("hooks.toml", …) as run:`. `hooks` is a pipeline without model,
    optimizer, task and data; `overrides` go over it. `model` and `optimizer` are those of the loop,
    or several by name; each may be wrapped, and neither is changed. `max_iters` is the number of
    iterations (`run.max_iters` of the file if left out), `iters_per_epoch` how many of them are an
    epoch (all, if left out). `examples` is the number of examples of an iteration, for the rates.
    `kept` names other objects whose `state_dict` belongs in the checkpoints. With `resume` the
    newest run of this name goes on from its last checkpoint, or the run that is named; where there
    is none, a new one begins. `runs` is the folder of runs.

    Raises UserError with everything that is wrong.
    """
    changes = dict(overrides or {})
    if max_iters is not None:
        changes["run.max_iters"] = max_iters
    if model is None and not kept:
        changes.setdefault("run.default_hooks", False)  # they log and save what a model does
    if isinstance(hooks, Pipeline):
        if changes:
            raise UserError(
                Problem("give max_iters and overrides to hookflow.load, with the pipeline")
            )
        pipeline = hooks
    else:
        pipeline = load(hooks, changes)
    if not pipeline.loaded.is_attached:
        message = (
            f"{pipeline.loaded.source} has a model, an optimizer or data, and those of this loop"
            " are its own"
        )
        raise UserError(Problem(message, hint="leave [model], [optimizer], [task] and [data] out"))
    length = pipeline.loaded.pipeline.run.max_iters
    objects = collect_objects(
        model,
        optimizer,
        kept or {},
        iters_per_epoch=iters_per_epoch or length or 0,
        examples=examples,
    )
    called = model if isinstance(model, Mapping) else {"model": model}
    return AttachedRun(
        pipeline,
        objects,
        {name: each for name, each in called.items() if each is not None},
        examples=examples,
        resume=resume,
        runs=Path(runs or pipeline.loaded.pipeline.run.dir),
        allow_changed_hooks=allow_changed_hooks,
    )


class AttachedRun:
    """A run in a loop of the user's own, which `hookflow.attach` returns.

    It runs within a `with` block.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        objects: LoopObjects,
        called_models: Mapping[str, Any],
        *,
        examples: int,
        resume: bool | str | os.PathLike[str],
        runs: Path,
        allow_changed_hooks: bool,
    ) -> None:
        self._pipeline = pipeline
        self._plan = pipeline.plan  # every mistake of the file is raised here
        self._objects = objects
        self._called_models = called_models
        self._examples = examples
        self._resume = resume
        self._runs = runs
        self._allows_changes = allow_changed_hooks
        self._running: AbstractContextManager[None] | None = None
        self.resumed_iter: int | None = None
        """The iteration whose checkpoint is resumed, where another trainer goes on there.

        It is the newest checkpoint where there is none of that iteration.
        """
        self._current_loop: AttachedLoop | None = None
        self._current_validation: AttachedValidation | None = None

    def __enter__(self) -> "AttachedRun":
        if self._running is not None:
            raise UserError(Problem("this run is under way already: leave its with block first"))
        self._running = self._enter_run_dir()
        try:
            self._running.__enter__()
        except BaseException:
            self._running = None
            raise
        vars(self)["fire"] = self._loop.engine.fire_own  # called in the hot path: one call less
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        running = self._running
        self._running = None
        assert running is not None
        try:
            return running.__exit__(kind, error, traceback)
        finally:
            self._current_loop = self._current_validation = None
            del vars(self)["fire"]

    @contextmanager
    def _enter_run_dir(self) -> Iterator[None]:
        """Be in a run directory, from its lock to the record of how the run has ended."""
        objects = self._objects
        pipeline = self._pipeline
        ranks = objects.ranks
        consensus = (
            ProcessGroupConsensus(ranks, RANK_TIMEOUT_SECONDS)
            if ranks.world > 1
            else RankConsensus()
        )
        with ExitStack() as stack:
            stack.enter_context(handlers_put_back())
            stack.enter_context(pipeline.in_use())
            run_dir, locks, resumes = self._choose_run(ranks, consensus)
            stack.callback(release, locks)
            session = RunSession(
                run_dir, ranks, signs=ranks.first, held=resumes, prints_failure=False
            )
            raised: BaseException | None = None
            stop = ALL_ITERATIONS_DONE
            try:
                session.signals.listen()
                with session.record_warnings(), only_showable():
                    yield from self._run_loop_block(run_dir, session, consensus, resumes)
                stop = self._find_stop_reason()
                session.signals.ignored = True
            except BaseException as error:
                # The flag is set here and not by a call: at a call another signal might raise.
                session.signals.ignored = True
                raised = error
                stop = session.find_stop_reason(error, lost=False)
            session.close(stop)
            finish_notifying(run_dir)
        if raised is not None:
            raise raised
        if stop.exit == 130:
            raise KeyboardInterrupt(stop.reason)
        if stop.exit:
            raise SystemExit(stop.exit)

    def _choose_run(
        self, ranks: RankLayout, consensus: RankConsensus
    ) -> tuple[RunDir, Locks, bool]:
        """Return the directory of the run, its lock, and whether it is resumed.

        They are the same on all ranks.
        """
        chosen: tuple[RunDir, bool] | UserError | None = None
        locks: Locks = ()
        if ranks.first:
            try:
                run_dir, resumes = self._find_run()
                locks = claim(run_dir)
                if resumes:
                    rollback_resume(run_dir)  # what a resume that was killed has left
                    loaded = self._pipeline.loaded
                    stage_resume(loaded, self._plan, run_dir, loaded.source.parent)
                chosen = run_dir, resumes
            except UserError as error:
                chosen = error
        chosen = consensus.broadcast_object(chosen)
        if isinstance(chosen, UserError):
            raise chosen
        assert chosen is not None
        run_dir, resumes = chosen
        if not ranks.first:
            locks = hold(run_dir)
        return run_dir, locks, resumes

    def _find_run(self) -> tuple[RunDir, bool]:
        loaded = self._pipeline.loaded
        if self._resume is True:
            folder = self._runs / self._pipeline.name
            paths: list[Path] = []
            if folder.is_dir():
                paths.extend(folder.iterdir())
            run_dirs = map(RunDir, paths)
            can_resume = any(map(has_checkpoint, run_dirs))
            if can_resume:
                return find_run(self._pipeline.name, self._runs, having=has_checkpoint), True
        elif self._resume is not False:
            return find_run(os.fspath(self._resume), self._runs), True
        return new_run(loaded, self._plan, self._runs, has_loop=True), False

    def _run_loop_block(
        self, run_dir: RunDir, session: RunSession, consensus: RankConsensus, resumes: bool
    ) -> Iterator[None]:
        """Build and restore the run, and let the user's block run.

        The points before and after its loop fire around the block.
        """
        objects = self._objects
        attempt = TrainingAttempt(
            run_dir,
            session.recorder,
            session.signals,
            objects.ranks,
            resume=resumes,
            allow_changed_hooks=self._allows_changes,
            resumed_iter=self.resumed_iter,
        )
        build = partial(self._build, session)
        with attempt.prepared(consensus, build) as prepared, ExitStack() as undoing:
            if not resumes:
                prepared.begin()
            if resumes:
                begins = prepared.begin
            else:
                begins = _nothing
            trainer = prepared.trainer
            with trainer.running(prepared.origin.checkpoint, begins):
                loop = AttachedLoop(trainer, self._called_models, self._examples)
                if prepared.origin.checkpoint:
                    loop.random_state = random_state(objects.device)
                loop.begin(undoing)
                self._current_loop = loop
                resumed_at = None
                if prepared.origin.checkpoint:
                    resumed_at = trainer.state.iter
                self._current_validation = AttachedValidation(loop, resumed_at)
                with suppress(LoopStopped):  # the run stops before its end, at a safe point
                    yield
                loop.end()
                session.recorder.ends_as = self._find_stop_reason().status
            trainer.report_unmet_requests()
            attempt.finish_copies()

    def _build(self, session: RunSession, origin: AttemptOrigin) -> RunComponents:
        loaded = self._pipeline.loaded
        return build_attached(
            loaded, self._plan, loaded.source.parent, session.recorder.say, self._objects
        )

    def _find_stop_reason(self) -> StopReason:
        stop = self._loop.safe_point.stop
        if stop is not None:
            return stop
        if self._loop.state.iter_limit is not None:
            return ALL_ITERATIONS_DONE
        return PROGRAM_DONE

    @property
    def _loop(self) -> AttachedLoop:
        """The loop of the block. Raises UserError outside of it."""
        if self._current_loop is None:
            raise UserError(Problem("this run has no block: with hookflow.attach(…) as run:"))
        return self._current_loop

    @property
    def _validation(self) -> AttachedValidation:
        self._loop  # noqa: B018  # raises outside of the block
        assert self._current_validation is not None
        return self._current_validation

    @property
    def loop(self) -> AttachedLoop:
        """The iterations, for what drives them by the calls of another trainer.

        Raises UserError outside of a block.
        """
        return self._loop

    # Calls of the user's loop.

    def __iter__(self) -> Iterator[int]:
        """Yield the number of iterations done, for each iteration that is left to do."""
        return self._loop.iterations()

    def backward(
        self,
        loss: Tensor,
        *,
        scaler: Any = None,
        by: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        """Compute the gradients of a loss, as `loss.backward(**options)` does.

        The points around a backward pass fire. The loss of an iteration is the sum of those that
        this is given: of `loss / n` for each of n batches, their mean. A `scaler` is a
        `torch.amp.GradScaler`, which scales the gradients and not what hooks see. With `by` that
        function computes the gradients, `by(loss, **options)`: `accelerator.backward`, which
        divides the loss by the batches that it adds up, or `fabric.backward`.
        """
        if scaler is not None and by is not None:
            message = "run.backward takes a scaler or a function, and both were given"
            raise UserError(Problem(message, hint="by=accelerator.backward scales by itself"))
        self._loop.backward(loss, scaler, by, options)

    def batch(self, *parts: Any) -> Any:
        """Return a batch as hooks at `before_train_iter` leave it: `x, y = run.batch(x, y)`."""
        if len(parts) == 1:
            batch = parts[0]
        else:
            batch = parts
        return self._loop.take_batch(batch)

    def report(self, outputs: Mapping[str, Any]) -> None:
        """Say what the current batch has given: the `outputs` of hooks.

        They are as a task's `step` or `evaluate` returns them.
        """
        self._loop.reported.update(outputs)

    def validation(self) -> AbstractContextManager[MutableMapping[str, Any]]:
        """Return a block that is a validation.

        Use it so: `with run.validation() as metrics: metrics["loss"] = …`.
        """
        return self._validation.run()

    def val(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a validation.

        `report` says the outputs of each, and their means are its metrics. Within a block of
        `validation` they are over the batches of all its loaders, and stand among its metrics at
        its end; what the block has set itself stands.
        """
        return self._validation.batches(loader)

    @property
    def validation_due(self) -> bool:
        """Whether `hookflow ctl RUN validate`, the dashboard or a hook asks for a validation."""
        return self._validation.is_due

    def fire(self, point: str, *offered: Any) -> None:
        """Fire a point of the pipeline's own, `[points.NAME]`, with what it offers."""
        self._loop.engine.fire_own(point, *offered)

    def log(self, name: str, value: float | Tensor) -> None:
        """Log a number at the current iteration."""
        self._loop.trainer.run.log(name, value)

    def log_image(self, name: str, image: Any, caption: str = "") -> None:
        """Log an image, as hooks do."""
        self._loop.trainer.run.log_image(name, image, caption)

    def log_text(self, name: str, text: str) -> None:
        """Log a text, as hooks do."""
        self._loop.trainer.run.log_text(name, text)

    def say(self, text: str, level: Level = "info") -> None:
        """Write a line into the log of the run."""
        self._loop.trainer.run.say(text, level)

    def stop(self, reason: str) -> None:
        """End the loop after this iteration."""
        self._loop.context.requests.stop(reason)

    def save_checkpoint(self, *names: str) -> None:
        """Save a checkpoint after this iteration, by the name "last" and these names."""
        self._loop.trainer.run.save_checkpoint(*names)

    @property
    def iter(self) -> int:
        """The iterations that are done."""
        return self._loop.state.iter

    @property
    def max_iters(self) -> int:
        """The iterations of the whole run; 0 where it has no length."""
        return self._loop.state.iter_limit or 0

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics of the latest validation."""
        return self._loop.state.metrics

    @property
    def hooks(self) -> Mapping[str, Any]:
        """The hooks, by name."""
        return self._loop.context.parts.hooks

    @property
    def dir(self) -> Path:
        """The run directory."""
        return self._loop.context.folder


def _nothing() -> None:
    pass
