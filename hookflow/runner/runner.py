"""The runner: everything that a run is made of, in one place that hooks are given as `run`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from hookflow.errors import Problem, UserError, nearest
from hookflow.events.now import NOWHERE, share
from hookflow.events.records import Level, Stage
from hookflow.events.rundir import RunDir
from hookflow.graph.plan import Binding, OnError, Plan
from hookflow.runner import loops
from hookflow.runner.boundary import Boundary
from hookflow.runner.build import Parts
from hookflow.runner.checkpoint.saver import Saver
from hookflow.runner.checkpoint.state import restore
from hookflow.runner.checkpoint.store import NOTHING, CheckpointStore, read
from hookflow.runner.contract import Named, scalar, steps_itself
from hookflow.runner.course import Course
from hookflow.runner.dispatch import Dispatcher, Firing
from hookflow.runner.distributed.agreement import ALONE, Agreement
from hookflow.runner.distributed.share import Share
from hookflow.runner.meter import Meter
from hookflow.runner.modules import attach, once_an_iteration
from hookflow.runner.numerics.compiling import Compiled
from hookflow.runner.numerics.memory import is_full, let_go
from hookflow.runner.recorder import Recorder
from hookflow.runner.scalars import Scalars
from hookflow.runner.signals import Signals, Stop
from hookflow.runner.triggers import make_triggers
from hookflow.runner.update import Update

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


class Runner:
    """One execution of a plan. What hooks may lean on is told in `hookflow.hooks.run.Run`."""

    def __init__(
        self,
        parts: Parts,
        plan: Plan,
        run_dir: RunDir,
        store: CheckpointStore,
        recorder: Recorder,
        signals: Signals,
        agreement: Agreement = ALONE,
    ) -> None:
        self.plan = plan
        self.model: nn.Module = parts.model
        self.models: Mapping[str, nn.Module] = Named("model", parts.models)
        self.optimizers: Mapping[str, torch.optim.Optimizer] = Named("optimizer", parts.optimizers)
        self._trains = parts.trains
        self.task: Any = parts.task
        self.steps_itself = steps_itself(parts.task)
        self.data: Mapping[str, Any] = parts.data
        self.hooks: Mapping[str, Any] = parts.hooks
        self.device = parts.device
        self.precision = parts.precision
        section = parts.section
        self.accumulate = section.accumulate
        self.compile: bool | str = section.compile
        self.compiled: Compiled | None = None
        self.batches_per_epoch = parts.batches_per_epoch
        self.iters_per_epoch = parts.iters_per_epoch
        self.max_epochs = section.max_epochs
        self.max_iters = section.max_iters or (section.max_epochs or 0) * self.iters_per_epoch
        self.val_every = section.validates
        self.validated_at = 0
        self.ranks = parts.ranks
        self.agreement = agreement
        self.seconds = agreement.seconds
        self.rank = parts.ranks.rank
        self.world = parts.ranks.world
        self.strategy = parts.strategy
        self.share = Share(self, parts.strategy)
        self.iter = self.epoch = self.batch_idx = self.batches = self.batch_size = 0
        self.metrics: Mapping[str, float] = {}
        self.stage: Stage = "start"
        self.dir: Path = run_dir.path
        self.signals = signals
        self.validation_due = False
        self.before_cut: Mapping[str, Any] | None = None
        self.meter = Meter(len(plan.bindings))
        self.saver = Saver(self, store, recorder)
        self.scalars = Scalars(plan, self)
        self.triggers = make_triggers(plan, self, self.scalars.condition)
        self._own = {point.name: point.offers[1:] for point in plan.own}
        self._recorder = recorder
        self.record = recorder.put
        self.boundary = Boundary(self, signals, agreement)
        self._now = share(run_dir.now_of(self.rank))
        self.at_hand: Any = None
        self.update = Update(self, self.optimizers, section.on_nan)
        self.course = Course(self)
        self.dispatcher = Dispatcher(
            plan, self.hooks, self, self.triggers, self.meter, self._now, self._hook_failed, self.rank
        )
        self.reach = self.dispatcher.fire
        self.batch_writers = self._each_batch() if self.accumulate > 1 else ()
        self.skips_batches = any("control" in firing.binding.writes for firing in self.batch_writers)
        recorder.watch(self.meter, self)

    def run(self, resume: Path | None = None, *, test: bool = False) -> Stop | None:
        """Run to the end and return why it ended early, if it did.

        `resume` is the checkpoint to go on from; `test` runs the test after training. Whatever raises goes through,
        after `on_exception`, the second half of what hooks had entered, and `after_run`.
        """
        with self._running():
            if resume is not None:
                self._load(resume)
            self.update.announce()
            loops.train(self)
            if test and not self.stopping:
                loops.evaluate(self, "test")
                self.boundary.cross(wait=True)
            self.saver.save_the_rest()
        for line in self.scalars.complaints():
            self.say(line, "warn")
        if asked := self.saver.asked:
            self.say(f"a checkpoint ({', '.join(asked)}) was asked for when it was too late to save one", "warn")
        return self.boundary.stop

    def judge(self, checkpoint: Path, split: Literal["val", "test"]) -> Mapping[str, float]:
        """Validate or test what a checkpoint holds, and return the metrics; nothing is trained, and nothing saved.

        Fires the points of a run that is resumed, without those of training. Whatever raises goes through as in `run`.
        """
        with self._running():
            self._load(checkpoint)
            loops.evaluate(self, split)
        return self.metrics

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Fire `before_run` and `after_run` around what a run does, and `on_exception` when it raises."""
        inside = attach(self)
        if self.compile:
            self.compiled = Compiled(self.models, self.compile, self.say)
        try:
            self.reach("before_run")
            yield
        except BaseException as error:
            self._ended_by(error)
            raise
        else:
            try:
                self.reach("after_run")
            finally:
                self.dispatcher.unwind()
        finally:
            self.saver.abandon()
            self.stage = "end"
            for handle in inside:
                handle.remove()

    # What hooks may ask for.

    def log(self, name: str, value: float | torch.Tensor) -> None:
        """Record a number (or a tensor of one element, which stays on the device until somebody else fetches it).

        Raises TypeError when it is something else.
        """
        number = scalar(value, f'run.log("{name}", …)')
        self._recorder.scalar(name, number)
        self.scalars.log(name, number)

    def sum(self, value: float | torch.Tensor) -> Any:
        """Return the sum of what each rank gives here; `value` itself where there is one. See `hooks.run.Run.sum`."""
        return self.share.sum(value)

    def mean(self, value: float | torch.Tensor) -> Any:
        """Return the mean of what each rank gives here; `value` itself where there is one. See `hooks.run.Run.sum`."""
        return self.share.mean(value)

    def say(self, text: str, level: Level = "info") -> None:
        """Record a line for people: "info", "warn" or "error"."""
        self.record("message", level=level, source="hookflow", text=text)

    def fire(self, point: str, *offered: Any) -> None:
        """Fire a point that the pipeline declares for itself, with what it offers beside the run.

        Raises UserError when there is no such point, or it offers more or less.
        """
        offers = self._own.get(point)
        if offers is None:
            if point in self.plan.points:
                raise UserError(Problem(f"{point} cannot be fired by a hook: the run itself fires it"))
            hint = nearest(point, self._own) or f"declare it: [points.{point}]"
            raise UserError(Problem(f'this pipeline has no point "{point}" of its own', hint=hint))
        if len(offered) != len(offers):
            names = f": {', '.join(offers)}" if offers else ""
            said = f"{point} offers {len(offers)} beside the run{names}; it has been fired with {len(offered)}"
            raise UserError(Problem(said))
        self.dispatcher.fire_within(point, *offered)

    def stop(self, reason: str) -> None:
        """End the training at the next boundary: after this iteration, or after this epoch's validation."""
        self.course.may_stop()
        self.boundary.ask_to_stop(reason)

    def stop_epoch(self, reason: str) -> None:
        """End the epoch after this iteration, as if the data were at their end."""
        self.course.stop_epoch(reason)

    def skip_step(self) -> None:
        """Leave the weights as they are: the optimizer takes no step in this iteration, or not the one at hand."""
        self.course.skip_step()

    def skip_batch(self) -> None:
        """Compute nothing of the batch at hand, and go on with the next one."""
        self.course.skip_batch()

    def replace_batch(self, batch: Any) -> None:
        """Let the task, and the hooks that fire after this one, have another batch."""
        self.course.replace_batch(batch)

    # What a task may do that steps its optimizers itself.

    def backward(self, loss: torch.Tensor, *optimizers: str) -> None:
        """Add the gradients of `loss` to the parameters of these optimizers (of all if none is named), no others.

        Gradients that a step has used are gone before. Fires `after_forward`, `before_backward` and `after_backward`,
        with `{"loss": loss}` as the outputs.
        """
        self.meter.book("forward")
        offered = self._in_own_step("backward"), self.batch_idx, {"loss": loss}
        with torch.autocast(self.device.type, enabled=False):
            self.update.backward(offered, self._named(optimizers), self.share.weight)
        torch.clear_autocast_cache()  # what it holds belongs to the graph that is gone now

    def step(self, *optimizers: str) -> None:
        """Let these optimizers (all if none is named) step, between `before_` and `after_optimizer_step`."""
        self.meter.book("forward")
        offered: tuple[Any, ...] = self._in_own_step("step"), self.batch_idx, {}
        with torch.autocast(self.device.type, enabled=False):
            self.update.step(offered, self._named(optimizers))
        torch.clear_autocast_cache()  # it holds the old weights in half precision

    def stepped(self, model: str | None = None) -> nn.Module | None:
        """Return the network that the optimizer step at hand changes; of `model`, None when that is not it.

        For the step points around the optimizer. Raises UserError when there is no such model.
        """
        whole = {name: self._trains[name] for name in self.update.stepping}
        if model is None:
            return self.model if len(whole) != 1 else next(iter(whole.values()))
        wanted = self.models[model]
        return wanted if any(trained in (wanted, self.model) for trained in whole.values()) else None

    def _in_own_step(self, call: str) -> Any:
        """Return the batch at hand. Raises UserError unless a task is in its step that it takes care of itself."""
        if self.at_hand is None or self.inside is not None:
            said = f"run.{call} is for the step of a task that steps its optimizers itself"
            raise UserError(Problem(said, hint="such a task says so in its class: steps_itself = True"))
        return self.at_hand

    def _named(self, optimizers: tuple[str, ...]) -> tuple[str, ...]:
        for name in optimizers:
            self.optimizers[name]  # raises where there is none
        return optimizers or self.update.every

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer. Raises UserError where there are several: they stand in `optimizers`, by name."""
        if len(self.optimizers) > 1:
            first, *_ = self.optimizers
            hint = f'run.optimizers["{first}"]'
            raise UserError(Problem("this run has several optimizers, and run.optimizer means one", hint=hint))
        return next(iter(self.optimizers.values()))

    @property
    def inside(self) -> Binding | None:
        """The binding that is being called; None outside of all hooks."""
        return None if self._now[0][0] == NOWHERE else self.plan.bindings[self._now[0][0]]

    def _each_batch(self) -> tuple[Firing, ...]:
        """Return what fires before each batch, where an iteration has several: hooks that write it."""
        fired = self.dispatcher.firings("before_train_iter")
        writers = tuple(f for f in fired if "batch" in f.binding.writes and f.binding.half == "whole")
        for firing in writers:
            firing.due = firing.due and once_an_iteration(firing.due, self)
        return writers

    @property
    def step_skipped(self) -> bool:
        """Whether the iteration that has just been done has left a step out: as asked, or for what was not finite."""
        return self.update.left_out_in(self.iter - 1)

    @property
    def finished(self) -> bool:
        """Whether all training is done."""
        return self.iter >= self.max_iters if self.max_epochs is None else self.epoch >= self.max_epochs

    @property
    def epoch_is_over(self) -> bool:
        """Whether the epoch has no iteration left, though it may not be closed yet."""
        return self.batch_idx >= self.batches_per_epoch or self.course.epoch_ends

    @property
    def stopping(self) -> bool:
        """Whether the run ends at the next boundary."""
        return self.boundary.stop is not None

    def save_checkpoint(self, *names: str, moved: Mapping[str, int] = NOTHING, keep: int | None = None) -> None:
        """Save the state at the next boundary, to go by `names` ("last" if there are none).

        That is after this iteration, this epoch's validation, the end of training, or the test; asked for at
        `on_exception`, it is what stands then, and no run goes on from it. With that, `moved` gives names to
        checkpoints that stand, by their iteration. `keep` is how many of the newest whole ones stay, beside those that
        bear a name; all of them if nobody says. It does not wait for the disk.
        """
        self.saver.ask(names or ("last",), moved, keep)

    def metric(self, name: str) -> float:
        """Return a metric of the latest validation. Raises UserError with the nearest name when there is none."""
        if name not in self.metrics:
            hint = nearest(name, self.metrics) or f"there are {', '.join(self.metrics) or 'none yet'}"
            raise UserError(Problem(f'there is no metric "{name}"', hint=hint))
        return self.metrics[name]

    def _ended_by(self, error: BaseException) -> None:
        """Fire what fires when something has raised; after a second signal, nothing is saved any more."""
        if is_full(error):
            let_go(self, error)
        self.dispatcher.unwind()
        patient = isinstance(error, Exception)
        if patient:
            self.saver.tell_if_possible()
        self.saver.asked = {}
        self.reach("on_exception", error)
        if patient and self.saver.asked:
            self.saver.save_after_error(error)
        self.saver.asked = {}
        self.reach("after_run")

    def _load(self, path: Path) -> None:
        state = read(path, self.device)
        self.reach("after_load_checkpoint", state)
        restore(self, state)
        self.say(f"resumed from {path.name}: iteration {self.iter}, epoch {self.epoch}")
        if self.finished and not self.validation_due:
            self.say("nothing is left to do: every iteration of the training is done")

    def _hook_failed(self, binding: Binding, error: BaseException, action: OnError) -> None:
        error.add_note(f"iteration {self.iter}, epoch {self.epoch}")
        self._recorder.failure(error, hook=binding.hook, point=binding.point, action=action)
        if action == "disable":
            self.say(f'the hook "{binding.hook}" raised at {binding.point} and is switched off', "warn")


if TYPE_CHECKING:

    def _offers_all_that_hooks_may_lean_on(run: Runner) -> Run:
        return run
