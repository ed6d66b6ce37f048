"""The trainer: creates the parts of the runner and connects them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from hookflow.events.now import NowMemory
from hookflow.events.records import Layer
from hookflow.events.rundir import RunDir, run_argument
from hookflow.graph.plan import Binding, Plan
from hookflow.hooks.arguments import find_call_problem
from hookflow.hooks.checkpoint_files import state_key
from hookflow.hooks.tensors import is_oom
from hookflow.hooks.weight_average import validate_average
from hookflow.pipeline.load import key_of
from hookflow.runner.builder.components import RunComponents, iter_layers
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.data.batches import sets_of, split_of
from hookflow.runner.device.precision import free_memory, in_precision
from hookflow.runner.dispatch.dispatcher import Call
from hookflow.runner.dispatch.offload import BackgroundExecutor, import_executor
from hookflow.runner.dispatch.torch_hooks import register_hooks
from hookflow.runner.distributed.consensus import RankConsensus
from hookflow.runner.distributed.parallel import load_model
from hookflow.runner.distributed.rendezvous import leave_process_group
from hookflow.runner.iteration.closure_step import check_closures
from hookflow.runner.iteration.context import RunContext
from hookflow.runner.iteration.finite import LossCheck, StepGuard, suggest_remedies
from hookflow.runner.iteration.iteration import choose_iteration
from hookflow.runner.iteration.run import Run, RunCopy
from hookflow.runner.iteration.update import OptimizerUpdate
from hookflow.runner.logging.media import MediaRecorder
from hookflow.runner.logging.recorder import EventRecorder
from hookflow.runner.loop.control import CommandHandler
from hookflow.runner.loop.diagnosis import LossDiagnosis
from hookflow.runner.loop.evaluation import EvaluationLoop
from hookflow.runner.loop.forward_errors import note_forward_error
from hookflow.runner.loop.loop import SafePoint, TrainingLoop
from hookflow.runner.model.frozen_parameters import with_frozen_parameters
from hookflow.runner.model.task import find_prediction, steps_itself, training_step
from hookflow.runner.process.signals import Rewind, SignalCollector, StopReason
from hookflow.runner.state.checkpoint_manager import CheckpointManager
from hookflow.runner.state.snapshot import Adapt, RunSnapshot
from hookflow.runner.state.unsaved import UnsavedStateCheck
from hookflow.user_code import only_showable


class FiringObserver(Protocol):
    """Something that watches the hooks of a run while they are called."""

    def run(self, run: Any) -> Any:
        """Return what the hooks receive in place of the run."""

    def wrap(self, binding: Binding, call: Call) -> Call:
        """Return what is called in place of a binding's own call."""


TEST_WAITS = "run.test: the test follows once the training has finished; --resume trains on"
"""The message where a training with a test is stopped."""

COMPILED_NOTE = (
    "the network is compiled: its first iterations take much longer, here and when a batch has"
    " another shape"
)


class Trainer:
    """One execution of a plan."""

    def __init__(
        self,
        parts: RunComponents,
        plan: Plan,
        run_dir: RunDir,
        store: CheckpointStore,
        recorder: EventRecorder,
        signals: SignalCollector,
        consensus: RankConsensus,
        observer: FiringObserver | None = None,
    ) -> None:
        self.state = state = signals.state
        rank = parts.ranks.rank
        self._parts = parts
        self._store = store
        self._log = recorder
        shared = NowMemory(run_dir.find_now_path(rank))
        state.done = shared.iters
        media = MediaRecorder(run_dir.path, state, recorder.put, recorder.say, rank)
        self.context = RunContext(
            parts, plan, run_dir.path, state, consensus, recorder, media, shared
        )
        self.engine = engine = self.context.engine
        self.throttles = self.context.throttles
        section = parts.section
        guard = None
        losses = None
        if parts.precision == "fp16" or section.on_nan == "skip":
            guard = StepGuard(
                parts,
                plan,
                state,
                log=lambda name, value: self.run.log(name, value),
                say=recorder.say,
            )
        if section.on_nan == "raise":
            losses = LossCheck(parts.device, state, self._diagnose_loss)
        self.update = OptimizerUpdate(self.context, losses, guard)
        if steps_itself(parts.task) and any(
            find_call_problem(each.step) for each in parts.optimizers.values()
        ):
            check_closures(guard is not None, self.context)
        self.run = Run(self.context, self.update)
        snapshot = RunSnapshot(self.context, self.update)
        held = (
            self.run,
            parts.model,
            *parts.model.modules(),
            *parts.model.parameters(),
            *parts.optimizers.values(),
        )
        unsaved = UnsavedStateCheck(parts, (*held, *parts.hooks.values(), *parts.data.values()))
        self.checkpoints = CheckpointManager(self.context, self.update, snapshot, unsaved, store)
        control = CommandHandler(self.context, self.checkpoints, store)
        self.safe_point = SafePoint(self.context, signals, self.checkpoints, control)
        if parts.ranks.world > 1:
            engine.on_request = self.safe_point.synchronize
        self.evaluation = EvaluationLoop(self.context, self.run, self.safe_point.should_abort)
        if observer:
            engine.bind(observer.run(self.run), observer.wrap)
        else:
            engine.bind(self.run, executor=self._make_offload_executor(plan))
        recorder.watch(engine.dispatcher.timing, state)

    def train(
        self,
        resume: Path | None = None,
        begin: Callable[[], None] = lambda: None,
        *,
        fork: Adapt | None = None,
        is_changed: bool = False,
        test: bool = False,
    ) -> StopReason | None:
        """Run to the end and return why it ended early, if it did.

        Exceptions propagate, after `after_run`. `fork` adapts the state of the checkpoint to this
        pipeline. `running` documents the other arguments.
        """
        with self.running(resume, begin, fork=fork, is_changed=is_changed):
            if self._parts.ranks.first:
                effective_batch = self._parts.effective_batch
                if effective_batch:
                    self._log.say(effective_batch)
                for line in self._parts.frozen_lines():
                    self._log.say(line)
            self._fire_after_load()
            for text, level in self.context.optimizer_modes.list_messages(
                self._parts.model, self._parts.capabilities
            ):
                self._log.say(text, level)
            if self.update.guard:
                self.update.guard.announce()
            self._make_loop(resume is None and self._parts.section.sanity).train()
            self.restore_best()
            if test and self._has_finished_training:
                self.evaluation("test")
                self.safe_point.process(wait=True)
            elif test:
                self._log.say(TEST_WAITS)
            self.finish()
        self.report_unmet_requests()
        return self.safe_point.stop

    @contextmanager
    def running(
        self,
        resume: Path | None = None,
        begin: Callable[[], None] = lambda: None,
        *,
        fork: Adapt | None = None,
        is_changed: bool = False,
    ) -> Iterator[None]:
        """Fire `before_run` and `after_run` around a loop of the caller.

        The run goes on from the checkpoint `resume`, if there is one. `begin` is called once it has
        been read. A training that a hook has ended early ends again, unless the pipeline
        `is_changed` since then.
        """
        with self._running():
            if resume is not None:
                self._load(resume, fork)
                self.context.requests.end_again(is_changed=is_changed)
                self.checkpoints.saved_at = None if fork else self.state.iter
            else:
                self.state.validation_due = (
                    sets_of("val", self._parts.data) if self._parts.section.val_at_start else ()
                )
            begin()
            yield

    def finish(self) -> None:
        """Save what has been requested, and answer the commands that have come too late."""
        self.checkpoints.save_the_rest()
        self.safe_point.reject_remaining_commands()

    def report_unmet_requests(self) -> None:
        """Say what was asked for in vain, now that the run has ended."""
        for line in self.context.scalars.list_complaints():
            self._log.say(line, "warn")
        late = self.context.requests.saves
        if late:
            self._log.say(
                f"checkpoint request ignored: the run has already ended ({', '.join(late)})", "warn"
            )

    def train_once(
        self,
        store: CheckpointStore,
        *,
        test: bool,
        sanity: bool = False,
        epochs: int = 1,
        iters: int = 1,
    ) -> list[Layer]:
        """Do everything of a run once.

        That is `epochs` of `iters` iterations, each validated, a checkpoint, and the test. Return
        the layers of the network as they were trained: what hooks freeze is frozen there.
        """
        with self._running():
            self._fire_after_load()
            self._make_loop(sanity).train_once(epochs, iters)
            trained = [*iter_layers(self._parts.model)]
            self.context.requests.save(["last"])
            self.checkpoints.save_the_rest()
            self._load(store.names()["last"])
            if test:
                self.evaluation("test")
        return trained

    @property
    def copies(self) -> Mapping[int, tuple[int, int]]:
        """By binding of an offloaded hook: the bytes that a firing copies, and the ns it takes."""
        if self.engine.offloaded:
            return self.engine.offloaded.copies
        return {}

    def evaluate(self, checkpoint: Path, name: str, average: str | None = None) -> dict[str, float]:
        """Validate or test what a checkpoint holds, and return the metrics.

        Points of training do not fire. The name is that of a split ("val"), of which every set is
        evaluated, or that of a set ("val.ood"). `average` is the hook whose average is evaluated,
        "none" for the weights themselves; None: as in the training.
        """
        with self._load_for_evaluation(checkpoint, average):
            self.evaluation(split_of(name), sets_of(name, self._parts.data))
        return dict(self.state.metrics)

    def predict(self, checkpoint: Path, name: str, average: str | None = None) -> dict[str, Tensor]:
        """Return what the task predicts for a set of data ("test", "val.ood") with a checkpoint.

        `average` is that of `evaluate`. Raises UserError where it cannot predict.
        """
        predict = find_prediction(self._parts.task)
        self.state.is_predicting = True
        with self._load_for_evaluation(checkpoint, average):
            return self.evaluation.predict(name, self.context.computed(predict))

    @contextmanager
    def _load_for_evaluation(self, checkpoint: Path, average: str | None) -> Iterator[None]:
        """Load a checkpoint for validations and tests with this average; nothing is trained."""
        self.context.only_evaluates = True
        with self._running():
            self._load(checkpoint)
            if average is not None:
                validate_average(self._parts.hooks, average)
            yield

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Fire `before_run` and `after_run` around what a run does.

        `on_exception` fires when it raises.
        """
        parts = self._parts
        engine = self.engine
        self._compile_models()
        # All of this is undone, whatever raises: others may train the network after this run.
        with ExitStack() as undoing:
            undoing.callback(engine.dispatcher.here.leave)
            if engine.offloaded:
                undoing.enter_context(engine.offloaded.running())
            undoing.callback(self.context.media.close)
            undoing.callback(self.context.module_hooks.detach)
            undoing.callback(setattr, self.state, "stage", "end")
            undoing.callback(self.checkpoints.abandon)
            self.context.module_hooks.attach(compiled=bool(parts.section.compile))
            if not parts.is_attached:
                self._set_training_modes()
            register_hooks(parts, engine, self.state, undoing)
            try:
                with only_showable():
                    engine.fire("before_run")
                    self._set_initial_rates()
                    self.context.optimizer_modes.train()
                    yield
            except BaseException as error:
                train_sets = getattr(parts.data.get("train"), "sets", {})
                note_forward_error(error, parts.model, parts.task, [*train_sets])
                self._handle_error(error)
                raise
            else:
                engine.settle()
                # In the stage "end", calls of the network fire no hooks inside it.
                self.state.stage = "end"
                try:
                    engine.fire("after_run")
                except BaseException as error:
                    engine.throw_into_arounds(error)
                    raise

    def _compile_models(self) -> None:
        """Compile the models if the pipeline says so.

        They are compiled in place, so that their parameters keep their names.
        """
        mode = self._parts.section.compile
        if not mode:
            return
        for model in self._parts.models.values():
            model.compile(mode=None if mode is True else mode)
        self._log.say(COMPILED_NOTE)

    def _set_training_modes(self) -> None:
        """Put the models in training mode, except frozen parts and models that are never trained.

        Frozen parts are in evaluation mode already, and stay there.
        """
        trained = set()
        for optimizer in self._parts.optimizers.values():
            for group in optimizer.param_groups:
                trained.update(group["params"])
        for model in self._parts.models.values():
            if not model.training and trained.isdisjoint(model.parameters()):  # a teacher, say
                continue
            frozen = []
            if model.training:
                frozen = [module for module in model.modules() if not module.training]
            # The model's own train() may keep parts in evaluation, as those of MMDetection do.
            model.train()
            for module in frozen:
                module.training = False

    def _set_initial_rates(self) -> None:
        """Note the learning rates at the beginning, as PyTorch's schedulers expect it."""
        for optimizer in self._parts.optimizers.values():
            for group in optimizer.param_groups:
                group.setdefault("initial_lr", number_of(group["lr"]))

    def _handle_error(self, error: BaseException) -> None:
        """Fire `on_exception` and `after_run` when something has raised.

        What hooks ask to save at `on_exception` is saved, except after a second signal. A command
        to rewind is no failure: it ends this attempt, of which nothing more is kept, and
        `on_exception` does not fire.
        """
        if isinstance(error, Rewind):
            self.engine.throw_into_arounds(error)
            self.engine.fire("after_run")
            return
        if self._parts.ranks.world > 1:
            leave_process_group()  # hooks still fire on this rank, maybe on no other one
        if is_oom(error):
            free_memory(error, self._parts.optimizers.values(), self._parts.device)
        self.engine.throw_into_arounds(error)
        saves = isinstance(error, Exception)
        if saves:
            self.checkpoints.report_if_possible()
        self.context.requests.take_saves()
        if self.checkpoints.repeats:
            self.checkpoints.request_last()
        self.engine.fire("on_exception", error)
        if saves and self.context.requests.saves:
            self.checkpoints.save_after_error(error)
        self.context.requests.take_saves()
        self.engine.fire("after_run")

    def _load(self, path: Path, fork: Adapt | None = None) -> None:
        state = self.context.consensus.together(partial(self._read_checkpoint, path))
        self.engine.fire("after_load_checkpoint", state)
        self.checkpoints.snapshot.restore(state, fork)
        self._log.say(
            f"{'forked' if fork else 'resumed'} from {path.name}:"
            f" {self.state.place(self.state.iter)}"
        )
        if self.state.finished and not self.state.validation_due:
            self._log.say("nothing is left to do: every iteration of the training is done")

    def _read_checkpoint(self, path: Path) -> dict[str, Any]:
        strategy = self._parts.strategy
        device = self._parts.device
        if strategy.host_mesh is not None and strategy.mesh is None:
            # Tensor parallelism loads the state in full on the CPU, and each rank keeps its shards.
            device = torch.device("cpu")
        return with_frozen_parameters(
            self._store.take(path, device, strategy.mesh), self._parts.models
        )

    @property
    def _has_finished_training(self) -> bool:
        """Whether every iteration is done, or a hook has ended the training for good.

        `early_stop` does that.
        """
        stop = self.safe_point.stop
        return stop is None or stop.status == "finished"

    def restore_best(self) -> None:
        """Give the models the weights of the best checkpoint, where a hook wants that.

        Nothing happens in a training that has not finished.
        """
        names = [
            saved.restored_at_end
            for saved in self._parts.saved_checkpoints
            if saved.restored_at_end is not None
        ]
        if not names or not self._has_finished_training:
            return
        self.checkpoints.save_the_rest()
        consensus = self.context.consensus
        name = names[0]
        path = consensus.broadcast_object(self._store.names().get(name))
        if path is None:
            self._log.say(
                f'there is no checkpoint "{name}", whose weights restore_best wants', "warn"
            )
            return
        state = consensus.together(partial(self._read_checkpoint, path))
        self.engine.fire("after_load_checkpoint", state)
        for model_name, model in self._parts.models.items():
            load_model(model, state[state_key("model", model_name)])
        self.checkpoints.restored = name
        self.context.optimizer_modes.release()
        self._log.say(f"the models have the weights of {name} ({path.name})")

    def _fire_after_load(self) -> None:
        """Fire `after_load_checkpoint` with the initial weights that were read from files.

        What hooks change in them is loaded into the models.
        """
        weights = dict(self._parts.weights)
        self._parts.weights.clear()  # frees the host's memory
        if not weights:
            return
        from hookflow.runner.builder.initial_weights import load_changes  # which few runs need

        offered = {
            state_key("model", name): tree_map_only(Tensor, Tensor.clone, v)
            for name, v in weights.items()
        }
        self.engine.fire("after_load_checkpoint", offered)
        for name, state in weights.items():
            where = self._parts.place(f"{key_of('model', name)}.weights")
            load_changes(
                self._parts.models[name], state, offered.get(state_key("model", name), {}), where
            )

    def _diagnose_loss(self, batch: Any, it: int) -> str:
        parts = self._parts
        if parts.is_attached:
            return "The loop is your own: torch.autograd.detect_anomaly() names the operation."
        step = in_precision(
            training_step(parts.task, parts.data),
            parts.device,
            parts.precision,
            parts.section.compile,
        )
        clips = any(each.clips_gradients for each in parts.capabilities.values())
        ways = suggest_remedies(parts.precision, clips=clips, saved=bool(self._store.all()))
        before = max(it - 19, 1)  # the last of the 20 iterations of a rerun is this one
        folder = RunDir(self.context.folder)
        again = (
            f"To look into it: hookflow rerun {run_argument(folder)} --at {before} --with grad_norm"
        )
        sentences = LossDiagnosis(parts, self.state, self.engine, self.run, step, batch).sentences()
        return " ".join([*sentences, ways, again])

    def _make_offload_executor(self, plan: Plan) -> BackgroundExecutor | None:
        if not any(hook.queue for hook in plan.hooks):
            return None
        make_executor, make_reports = import_executor()
        parts = self._parts
        wake = partial(setattr, self.state, "attention", True)
        reports = make_reports(self.engine.dispatcher.handle_failure, wake, self._log.say)
        snapshot = partial(RunCopy, self.run)
        executor = make_executor(
            plan, parts.model, snapshot, reports, parts.place, parts.hooks, parts.section.seed
        )
        self.engine.dispatcher.timing.take_offloaded = executor.take_times
        return executor

    def _make_loop(self, sanity: bool) -> TrainingLoop:
        iterate = choose_iteration(self.context, self.run, self.update)
        return TrainingLoop(
            self.context,
            iterate,
            self.update,
            self.evaluation,
            self.checkpoints,
            self.safe_point,
            sanity,
        )


def number_of(rate: Any) -> Any:
    """Return a learning rate; of a tensor, which later rates are written into, its number."""
    if isinstance(rate, Tensor):
        return float(rate)
    return rate
