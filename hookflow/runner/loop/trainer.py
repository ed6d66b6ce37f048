"""The trainer: creates the parts of the runner and connects them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from hookflow.events.now import Shared
from hookflow.events.records import Layer
from hookflow.events.rundir import RunDir, run_argument
from hookflow.graph.plan import Plan
from hookflow.hooks.builtin.checkpoint import Checkpoint
from hookflow.hooks.builtin.gradients import GradClip
from hookflow.hooks.checkpoint_files import state_key
from hookflow.hooks.tensors import is_oom
from hookflow.pipeline.load import key_of
from hookflow.runner.builder.components import Parts, layers
from hookflow.runner.checkpoint.manager import CheckpointManager
from hookflow.runner.checkpoint.snapshot import Adapt, Snapshot, Unsaved, completed
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.data.batches import sets_of, split_of
from hookflow.runner.dispatch.torch_hooks import register_hooks
from hookflow.runner.distributed.consensus import Consensus
from hookflow.runner.distributed.parallel import load_model
from hookflow.runner.distributed.rendezvous import leave_process_group
from hookflow.runner.logging.media import Media
from hookflow.runner.logging.recorder import Recorder
from hookflow.runner.loop.context import Context
from hookflow.runner.loop.control import Control
from hookflow.runner.loop.diagnosis import Diagnosis
from hookflow.runner.loop.evaluation import Evaluation
from hookflow.runner.loop.finite import Losses, StepGuard, advice
from hookflow.runner.loop.iteration import choose
from hookflow.runner.loop.loop import Loop, SafePoint
from hookflow.runner.loop.run import Run, RunCopy
from hookflow.runner.loop.task import prediction_of
from hookflow.runner.loop.update import Update
from hookflow.runner.precision import free_memory, in_precision
from hookflow.runner.process.signals import Rewind, Signals, Stop
from hookflow.user_code import only_showable

if TYPE_CHECKING:
    from hookflow.runner.dispatch.beside import Beside
    from hookflow.runner.observer import Observer

COMPILED = "the network is compiled: its first iterations take much longer, here and when a batch has another shape"


class Trainer:
    """One execution of a plan."""

    def __init__(
        self,
        parts: Parts,
        plan: Plan,
        run_dir: RunDir,
        store: CheckpointStore,
        recorder: Recorder,
        signals: Signals,
        consensus: Consensus,
        observer: "Observer | None" = None,
    ) -> None:
        self.state = state = signals.state
        rank = parts.ranks.rank
        self._parts, self._store, self._log = parts, store, recorder
        shared = Shared(run_dir.now_of(rank))
        state.done = shared.iters
        media = Media(run_dir.path, state, recorder.put, recorder.say, rank)
        self._context = Context(parts, plan, run_dir.path, state, consensus, recorder, media, shared)
        self._engine = engine = self._context.engine
        self.throttles = self._context.throttles
        section, guard, losses = parts.section, None, None
        if parts.precision == "fp16" or section.on_nan == "skip":
            guard = StepGuard(parts, plan, state, log=lambda name, value: self.run.log(name, value), say=recorder.say)
        if section.on_nan == "raise":
            losses = Losses(parts.device, state, self._explain_loss)
        self._update = Update(self._context, losses, guard)
        self.run = Run(self._context, self._update)
        snapshot = Snapshot(self._context, self._update)
        held = self.run, parts.model, *parts.model.modules(), *parts.model.parameters(), *parts.optimizers.values()
        unsaved = Unsaved(parts, (*held, *parts.hooks.values(), *parts.data.values()))
        self._checkpoints = CheckpointManager(self._context, self._update, snapshot, unsaved, store)
        control = Control(self._context, self._checkpoints, store)
        self._safe_point = SafePoint(self._context, signals, self._checkpoints, control)
        if parts.ranks.world > 1:
            engine.on_request = self._safe_point.synchronize
        self._evaluate = Evaluation(self._context, self.run, self._safe_point.should_abort)
        if observer:
            engine.bind(observer.run(self.run), observer.wrap)
        else:
            engine.bind(self.run, beside=self._beside(plan))
        recorder.watch(engine.dispatcher.books, state)

    def train(
        self,
        resume: Path | None = None,
        begin: Callable[[], None] = lambda: None,
        *,
        fork: Adapt | None = None,
        test: bool = False,
    ) -> Stop | None:
        """Run to the end and return why it ended early, if it did. Exceptions propagate, after `after_run`.

        `begin` is called once the checkpoint to `resume` from has been read. A `fork` returns what is taken over of its
        state.
        """
        with self._running():
            if resume is not None:
                self._load(resume, fork)
                self._checkpoints.saved_at = None if fork else self.state.iter
            else:
                self.state.validation_due = sets_of("val", self._parts.data) if self._parts.section.val_at_start else ()
            begin()
            if self._parts.ranks.first and (words := self._parts.effective_batch):
                self._log.say(words)
            self._offer_weights()
            for text, level in self._context.optimizer_modes.messages(self._parts.model, self._parts.hooks):
                self._log.say(text, level)
            if self._update.guard:
                self._update.guard.announce()
            self._make_loop(resume is None and self._parts.section.sanity).train()
            self._restore_best()
            if test and self._safe_point.stop is None:
                self._evaluate("test")
                self._safe_point.process(wait=True)
            self._checkpoints.save_the_rest()
            self._safe_point.refuse_the_rest()
        stop = self._safe_point.stop
        for line in self._context.scalars.complaints():
            self._log.say(line, "warn")
        if late := self._context.requests.saves:
            self._log.say(f"checkpoint request ignored: the run has already ended ({', '.join(late)})", "warn")
        return stop

    def train_once(
        self, store: CheckpointStore, *, test: bool, sanity: bool = False, epochs: int = 1, iters: int = 1
    ) -> list[Layer]:
        """Do everything of a run once: `epochs` of `iters` iterations, each validated, a checkpoint, and the test.

        Return the layers of the network as they were trained: what hooks freeze is frozen there.
        """
        with self._running():
            self._offer_weights()
            self._make_loop(sanity).train_once(epochs, iters)
            trained = [*layers(self._parts.model)]
            self._context.requests.save(["last"])
            self._checkpoints.save_the_rest()
            self._load(store.names()["last"])
            if test:
                self._evaluate("test")
        return trained

    @property
    def copies(self) -> Mapping[int, tuple[int, int]]:
        """By binding of an offloaded hook: the bytes that a firing copies, and the ns that it takes."""
        return self._engine.beside.copies if self._engine.beside else {}

    def evaluate(self, checkpoint: Path, name: str) -> dict[str, float]:
        """Validate or test what a checkpoint holds, and return the metrics. Points of training do not fire.

        The name is that of a split ("val"), of which every set is evaluated, or that of a set ("val.ood").
        """
        with self._running():
            self._load(checkpoint)
            self._evaluate(split_of(name), sets_of(name, self._parts.data))
        return dict(self.state.metrics)

    def predict(self, checkpoint: Path, name: str) -> dict[str, Tensor]:
        """Return what the task predicts for a set of data ("test", "val.ood") with a checkpoint.

        Raises UserError where it cannot predict.
        """
        predict = prediction_of(self._parts.task)
        self.state.is_predicting = True
        with self._running():
            self._load(checkpoint)
            return self._evaluate.predict(name, self._context.computed(predict))

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Fire `before_run` and `after_run` around what a run does, and `on_exception` when it raises."""
        parts, engine = self._parts, self._engine
        if mode := parts.section.compile:
            for model in parts.models.values():  # in place: its parameters keep their names
                model.compile(mode=None if mode is True else mode)
            self._log.say(COMPILED)
        with ExitStack() as undoing:  # all of it, whatever raises: others may train the network after this
            undoing.callback(engine.dispatcher.here.leave)
            if engine.beside:
                undoing.enter_context(engine.beside.running())
            undoing.callback(self._context.media.close)
            undoing.callback(self._context.module_hooks.detach)
            undoing.callback(setattr, self.state, "stage", "end")
            undoing.callback(self._checkpoints.abandon)
            self._context.module_hooks.attach(compiled=bool(mode))
            trained = {p for each in parts.optimizers.values() for group in each.param_groups for p in group["params"]}
            for model in parts.models.values():
                if not model.training and trained.isdisjoint(model.parameters()):  # a teacher, say
                    continue
                frozen = [module for module in model.modules() if not module.training] if model.training else []
                model.train()  # its own train() may keep parts in evaluation, as those of MMDetection do
                for module in frozen:
                    module.training = False
            register_hooks(parts, engine, self.state, undoing)
            try:
                with only_showable():
                    engine.fire("before_run")
                    for optimizer in parts.optimizers.values():
                        for group in optimizer.param_groups:  # PyTorch's schedulers trust one that is there already
                            group.setdefault("initial_lr", number_of(group["lr"]))
                    self._context.optimizer_modes.train()
                    yield
            except BaseException as error:
                self._ended_by(error)
                raise
            else:
                engine.settle()
                self.state.stage = "end"  # who calls the network from here on does not wake the hooks inside it
                try:
                    engine.fire("after_run")
                except BaseException as error:
                    engine.unwind(error)
                    raise

    def _ended_by(self, error: BaseException) -> None:
        """Fire what fires when something has raised; after a second signal, nothing is saved any more.

        A way back to a checkpoint is no failure: it ends this attempt, of which nothing more is kept.
        """
        if isinstance(error, Rewind):
            self._engine.unwind(error)
            self._engine.fire("after_run")
            return
        if self._parts.ranks.world > 1:
            leave_process_group()  # hooks still fire on this rank, maybe on no other one
        if is_oom(error):
            free_memory(error, self._parts.optimizers.values(), self._parts.device)
        self._engine.unwind(error)
        saves = isinstance(error, Exception)
        if saves:
            self._checkpoints.report_if_possible()
        self._context.requests.take_saves()
        if self._checkpoints.to_repeat is not None:
            self._checkpoints.request_last()
        self._engine.fire("on_exception", error)
        if saves and self._context.requests.saves:
            self._checkpoints.save_after_error(error)
        self._context.requests.take_saves()
        self._engine.fire("after_run")

    def _load(self, path: Path, fork: Adapt | None = None) -> None:
        state = self._context.consensus.together(partial(self._take, path))
        self._engine.fire("after_load_checkpoint", state)
        self._checkpoints.snapshot.restore(state, fork)
        self._log.say(f"{'forked' if fork else 'resumed'} from {path.name}: {self.state.place(self.state.iter)}")
        if self.state.finished and not self.state.validation_due:
            self._log.say("nothing is left to do: every iteration of the training is done")

    def _take(self, path: Path) -> dict[str, Any]:
        strategy, device = self._parts.strategy, self._parts.device
        if strategy.host_mesh is not None and strategy.mesh is None:
            device = torch.device("cpu")  # tensor parallel: it is loaded in full, and each rank keeps its shards of it
        return completed(self._store.take(path, device, strategy.mesh), self._parts.models)

    def _restore_best(self) -> None:
        """Give the models the weights of the best checkpoint, where a hook wants that and the training has finished."""
        hooks = (hook for hook in self._parts.hooks.values() if isinstance(hook, Checkpoint) and hook.restore_best)
        stop = self._safe_point.stop
        if (hook := next(hooks, None)) is None or (stop and stop.status != "finished"):
            return
        self._checkpoints.save_the_rest()
        consensus, name = self._context.consensus, hook.best_by(next(iter(hook.modes)))
        path = consensus.broadcast_object(self._store.names().get(name))
        if path is None:
            self._log.say(f'there is no checkpoint "{name}", whose weights restore_best wants', "warn")
            return
        state = consensus.together(partial(self._take, path))
        self._engine.fire("after_load_checkpoint", state)
        for model_name, model in self._parts.models.items():
            load_model(model, state[state_key("model", model_name)])
        self._checkpoints.restored = name
        self._context.optimizer_modes.release()
        self._log.say(f"the models have the weights of {name} ({path.name})")

    def _offer_weights(self) -> None:
        """Fire `after_load_checkpoint` for the weights that models have begun with; load what hooks change in them."""
        weights = dict(self._parts.weights)
        self._parts.weights.clear()  # frees the host's memory
        if not weights:
            return
        from hookflow.runner.checkpoint.initial_weights import load_changes  # which few runs need

        offered = {state_key("model", name): tree_map_only(Tensor, Tensor.clone, v) for name, v in weights.items()}
        self._engine.fire("after_load_checkpoint", offered)
        for name, state in weights.items():
            where = self._parts.place(f"{key_of('model', name)}.weights")
            load_changes(self._parts.models[name], state, offered.get(state_key("model", name), {}), where)

    def _explain_loss(self, batch: Any, it: int) -> str:
        parts = self._parts
        step = in_precision(parts.task.step, parts.device, parts.precision, parts.section.compile)
        clips = any(isinstance(hook, GradClip) for hook in parts.hooks.values())
        ways = advice(parts.precision, clips=clips, saved=bool(self._store.all()))
        before = max(it - 19, 1)  # the last of the 20 iterations of a rerun is this one
        folder = RunDir(self._context.folder)
        again = f"To look into it: hookflow rerun {run_argument(folder)} --at {before} --with grad_norm"
        found = Diagnosis(parts, self.state, self._engine, self.run, step, batch).sentences()
        return " ".join([*found, ways, again])

    def _beside(self, plan: Plan) -> "Beside | None":
        if not any(hook.queue for hook in plan.hooks):
            return None
        from hookflow.runner.dispatch.beside import Beside, OffloadReports  # which few runs need

        wake = partial(setattr, self.state, "attention", True)
        reports = OffloadReports(self._engine.dispatcher.failed, wake, self._log.say)
        parts, snapshot = self._parts, partial(RunCopy, self.run)
        beside = Beside(plan, parts.model, snapshot, reports, parts.place, parts.hooks, parts.section.seed)
        self._engine.dispatcher.books.beside = beside.take
        return beside

    def _make_loop(self, sanity: bool) -> Loop:
        iterate = choose(self._context, self.run, self._update)
        return Loop(self._context, iterate, self._update, self._evaluate, self._checkpoints, self._safe_point, sanity)


def number_of(rate: Any) -> Any:
    """Return a learning rate; of a tensor, which later rates are written into, its number."""
    return float(rate) if isinstance(rate, Tensor) else rate
