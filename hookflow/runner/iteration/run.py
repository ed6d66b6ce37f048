"""The run that hooks and tasks receive.

It implements the protocol `hookflow.hooks.run.Run`, which documents it.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from threading import get_ident
from time import perf_counter
from typing import Any, overload

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from hookflow.errors import Problem, UserError
from hookflow.events.records import RUNNER_SOURCE, Level, Stage
from hookflow.hooks.progress import HookProgress
from hookflow.hooks.run import Run as RunProtocol
from hookflow.hooks.tensors import Weight, enter_evaluation, full, is_one, is_sharded
from hookflow.hooks.weight_average import average_in_place
from hookflow.pipeline.by_epoch import EpochLengths
from hookflow.runner.checkpoint.manifest import LONGEST_NAME, is_valid_alias
from hookflow.runner.device.cuda import event_of_stream
from hookflow.runner.device.precision import in_precision
from hookflow.runner.iteration.closure_step import ClosureStepper
from hookflow.runner.iteration.context import RunContext
from hookflow.runner.iteration.requests import NO_MOVES
from hookflow.runner.iteration.update import OptimizerUpdate
from hookflow.runner.logging.capture import TraceCapture
from hookflow.runner.logging.media import MediaRecorder, Place, copy_image, render_figure
from hookflow.runner.logging.recorder import EventRecorder
from hookflow.runner.logging.timing import FORWARD
from hookflow.runner.model.task import NamedParts, find_evaluation, numbers, scalar, training_step
from hookflow.runner.process.state import NO_BATCH

CALLED_INSTEAD = {
    **dict.fromkeys(("should_stop", "stopped", "stop", "max_iters", "max_epochs"), "run.stop(why)"),
    **dict.fromkeys(
        ("batch", "batch_size", "batch_set", "batch_weight"),
        "run.replace_batch(batch), at before_train_iter",
    ),
    **dict.fromkeys(("step_skipped", "skip_step"), "run.skip_step()"),
    "skip_batch": "run.skip_batch()",
    "metrics": 'metrics["name"] = value, at after_val_epoch and after_val, or those of a test',
    "loss": 'outputs["loss"] = loss, at after_forward',
    "lr": 'group["lr"] = lr, for group in run.optimizer.param_groups',
}
"""The call in place of assigning an attribute of the run."""


def make_assignment_problem(name: str) -> Problem:
    """Return that a hook cannot assign an attribute of the run, and what it can do instead."""
    if name in CALLED_INSTEAD:
        return Problem(
            f"run.{name} cannot be set: the training would not see it", hint=CALLED_INSTEAD[name]
        )
    if name in RunProtocol.__annotations__:
        return Problem(
            f"run.{name} cannot be set: the training would not see it",
            hint=f"change what run.{name} holds",
        )
    if hasattr(Run, name):
        return Problem(f"run.{name} cannot be set: it is for reading, or for calling")
    hint = f"what a hook keeps is its own: self.{name} = …; other hooks find it by run.hooks"
    return Problem(f"run.{name} cannot be set: the run has no such attribute", hint=hint)


class _ReportBase:
    """What hooks report beside numbers: images, figures, texts, histograms and messages.

    `_origin` returns who reports, and at which iteration and epoch. None is the present one.
    """

    _log: EventRecorder
    _media: MediaRecorder

    def _origin(self) -> tuple[str, Place | None]:
        raise NotImplementedError

    def log_image(self, name: str, image: Any, caption: str = "") -> None:
        self._media.image(
            name, copy_image(image, f'run.log_image("{name}", …)'), caption, *self._origin()
        )

    def log_figure(self, name: str, figure: Any) -> None:
        self._media.image(
            name,
            render_figure(figure, f'run.log_figure("{name}", …)'),
            "",
            *self._origin(),
            figure=True,
        )

    def log_text(self, name: str, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(
                f'run.log_text("{name}", …) needs a string, not a {type(text).__name__}'
                f" ({text!r:.40})"
            )
        self._log.put("text", name=name, text=text, hook=self._origin()[0])

    def log_histogram(self, name: str, values: Any, bins: int = 30) -> None:
        if bins < 1:
            raise ValueError(f'run.log_histogram("{name}", …) needs at least one bin, not {bins}')
        self._media.histogram(
            name, numbers(values, f'run.log_histogram("{name}", …)'), bins, *self._origin()
        )

    def say(self, text: str, level: Level = "info") -> None:
        self._log.say(text, level, self._origin()[0])


class Run(_ReportBase, RunProtocol):
    """The run of this process."""

    def __init__(self, context: RunContext, update: OptimizerUpdate) -> None:
        parts = context.parts
        engine = context.engine
        self.model: nn.Module = parts.model
        self.models: Mapping[str, nn.Module] = NamedParts("model", parts.models)
        self.optimizers: Mapping[str, torch.optim.Optimizer] = NamedParts(
            "optimizer", parts.optimizers
        )
        self.task: Any = parts.task
        self.data: Mapping[str, Any] = parts.data
        self.hooks: Mapping[str, Any] = parts.hooks
        self.device = parts.device
        self.precision = parts.precision
        self.dir = context.folder
        self.rank = parts.ranks.rank
        self.world = parts.ranks.world
        self.is_temporary = False
        self.repeats_previous_rank = (
            parts.ranks.rank % (parts.ranks.world // parts.data_ranks.world) > 0
        )
        self._compiled = parts.section.compile
        self._trains = parts.trains
        self._strategy = parts.strategy
        self._shares = parts.data_ranks.world
        self._state = context.state
        self._requests = context.requests
        self._module_hooks = context.module_hooks
        self._engine = engine
        self._update = update
        self._timeline = context.timeline
        self._closure_stepper = ClosureStepper(context, update)
        self._scalars = context.scalars
        self._log = context.log
        self._media = context.media
        self._offers_log = bool(engine.plan.at("on_log"))
        self._iteration_of = context.iteration_of
        self._offered_at: Place | None = None
        self._on_zero = frozenset(hook.name for hook in engine.plan.hooks if hook.ranks == "zero")
        self._is_complete = True

    def __setattr__(self, name: str, value: Any) -> None:
        is_private = name.startswith("_") or name == "is_temporary"  # which a trial sets
        if "_is_complete" in vars(self) and not is_private:
            raise UserError(make_assignment_problem(name))
        super().__setattr__(name, value)

    # Where the run is.

    def progress(self, name: str, total: int | None = None) -> AbstractContextManager[HookProgress]:
        return self._log.progress(HookProgress(self._origin()[0], name, total))

    @property
    def iter(self) -> int:
        """Training iterations that are done."""
        return self._state.iter

    @property
    def epoch(self) -> int:
        """Epochs of training that are done."""
        return self._state.epoch

    @property
    def batch_idx(self) -> int:
        """Batches of the current epoch that are done.

        In a validation or test it is the index of its batch.
        """
        return self._state.batch_idx

    @property
    def batch_size(self) -> int:
        """Examples in this rank's share of the current batch, or of the iteration.

        It is 0 where unknown.
        """
        return self._state.batch_size

    @property
    def batch_set(self) -> str | None:
        """The training set that the current batch is of.

        It is None without several sets, or for a batch of each.
        """
        if self._state.mixes_sets:
            return None
        return getattr(self.data.get("train"), "batch_set", None)

    @property
    def max_iters(self) -> int:
        """Training iterations of the whole run."""
        return self._state.max_iters

    @property
    def max_epochs(self) -> int | None:
        """Epochs of the whole run; None in the iteration-based loop."""
        return self._state.max_epochs

    @property
    def iters_per_epoch(self) -> int:
        """Iterations in one pass over the training data.

        Where the lengths differ it is that of the current one.
        """
        return self._state.iters_per_epoch

    @property
    def epoch_lengths(self) -> EpochLengths:
        """Iterations of each epoch."""
        return self._state.epoch_lengths

    @property
    def stage(self) -> Stage:
        """The current stage of the run: train, val, test, …"""
        return self._state.stage

    @property
    def is_predicting(self) -> bool:
        """Whether this is `hookflow predict`."""
        return self._state.is_predicting

    @property
    def split(self) -> str:
        """The data of the current pass, as in `data`."""
        return self._state.split

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics of the latest validation or test."""
        return self._state.metrics

    @property
    def metrics_at(self) -> int:
        """The iterations that were done when the latest metrics were measured."""
        return self._state.metrics_at

    @property
    def handle(self) -> RemovableHandle:
        """The handle of the current hook inside the network, for the current module."""
        return self._module_hooks.handle

    @property
    def handles(self) -> Mapping[str, RemovableHandle]:
        """The handle of every hook inside the network, by name."""
        return self._module_hooks.handles

    @property
    def batch_weight(self) -> Weight:
        """The weight of this rank's share of the current batch in means."""
        weight = self._state.batch_weight
        if weight is None:
            return self._state.batch_size or 1
        return weight

    @property
    def train_seconds(self) -> float:
        """Seconds since some moment, without validations, checkpoints and pauses that are over."""
        return perf_counter() - self._timeline.excluded_s

    @property
    def step_skipped(self) -> bool:
        """Whether the iteration that is done has left a step out."""
        return self._update.was_skipped(self._state.iter - 1)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer. Raises UserError where there are several."""
        if len(self.optimizers) > 1:
            first, *_ = self.optimizers
            hint = f'run.optimizers["{first}"]'
            raise UserError(
                Problem("this run has several optimizers, and run.optimizer means one", hint=hint)
            )
        return next(iter(self.optimizers.values()))

    def metric(self, name: str) -> float:
        return self._state.metrics[name]

    def scalar(self, name: str) -> float:
        return self._scalars.latest(name)

    def times_logged(self, name: str) -> int:
        return self._scalars.count(name)

    @property
    def stepping(self) -> Mapping[str, torch.optim.Optimizer]:
        """The optimizers that step at the moment, by name."""
        return {
            name: self.optimizers[name]
            for name in self._update.stepping or self._update.optimizer_names
        }

    def model_being_updated(self, model: str | None = None) -> nn.Module | None:
        stepping = [self._trains[name] for name in self.stepping]
        if model is None:
            if len(stepping) == 1:
                return stepping[0]
            return self.model
        wanted = self.models[model]
        if wanted in stepping or self.model in stepping:
            return wanted
        return None

    # Reports of hooks.

    def log(self, name: str, value: float | torch.Tensor) -> None:
        number = scalar(value, f'run.log("{name}", …)')
        if self._strategy.several and is_sharded(number):
            self._check_on_all_ranks("log of a sharded number")
            number = full(number)  # type: ignore[arg-type]
        place = self._origin()[1]
        self._log.scalar(name, number, event_of_stream(number), place)
        self._scalars.log(name, number)
        # Numbers that hooks log at on_log do not fire it again.
        if self._offers_log and place and not self._offered_at:
            self._offered_at = place
            try:
                self._engine.dispatcher.fire_within("on_log", name, number)
            finally:
                self._offered_at = None

    def _origin(self) -> tuple[str, Place | None]:
        """Return who reports, a hook or the task, and the iteration and epoch under way.

        In a thread other than that of the hooks both are unknown.
        """
        if get_ident() != self._engine.dispatcher.thread:
            return RUNNER_SOURCE, None
        binding = self._engine.current
        reporter = "task"
        if binding is not None:
            reporter = binding.hook
        place = self._offered_at or (self._iteration_of(binding), self._state.epoch)
        return reporter, place

    def evaluate(self, batch: Any) -> dict[str, Any]:
        if self._strategy.mesh is not None:  # the forward pass gathers shards
            self._check_on_all_ranks("evaluate")
        evaluate = in_precision(
            find_evaluation(self.task), self.device, self.precision, self._compiled
        )
        return evaluate(self, batch)  # type: ignore[no-any-return]

    @contextmanager
    def average(self, name: str | None) -> Iterator[None]:
        if self._strategy.mesh is not None:  # a forward pass gathers shards
            self._check_on_all_ranks("average")
        with average_in_place(self, name), enter_evaluation(self.model), torch.no_grad():
            torch.clear_autocast_cache()  # it holds the weights that were there
            try:
                yield
            finally:
                torch.clear_autocast_cache()

    def loss(self, batch: Any) -> torch.Tensor:
        if self._requests.keeps_gradients:
            raise UserError(
                Problem(
                    "run.accumulate adds up the gradients of several batches; run.loss is of one"
                )
            )
        self._check_on_all_ranks("loss")
        step = training_step(self.task, self.data)
        outputs = in_precision(step, self.device, self.precision, self._compiled)(self, batch)
        weight = self._update.loss_weight
        return outputs["loss"] if is_one(weight) else outputs["loss"] * weight  # type: ignore[no-any-return]

    def sum(self, value: float | torch.Tensor) -> torch.Tensor:
        return self._reduce_value(value, "sum")

    def mean(self, value: float | torch.Tensor) -> torch.Tensor:
        return self._reduce_value(value, "mean") / self._shares

    def _reduce_value(self, value: float | torch.Tensor, call: str) -> torch.Tensor:
        self._check_on_all_ranks(call)
        return self._strategy.all_reduce(value, self.device)  # type: ignore[no-any-return]

    def _check_on_all_ranks(self, call: str) -> None:
        """Raise UserError where the hook that makes a call fires on rank 0 alone.

        The call would wait for the other ranks for ever.
        """
        here = self._engine.current
        if self._strategy.several and here is not None and here.hook in self._on_zero:
            message = (
                f'the hook "{here.hook}" fires on rank 0 alone, and run.{call} needs all ranks'
            )
            raise UserError(Problem(message, hint='let it fire on all: ranks = "all"'))

    def fire(self, point: str, *offered: Any) -> None:
        self._engine.fire_own(point, *offered)

    # Requests of hooks.

    def stop(self, reason: str, *, this_process: bool = False) -> None:
        self._requests.stop(reason, this_process=this_process)

    def fail(self, reason: str, *, checkpoint: bool = False) -> None:
        self._requests.fail(reason, checkpoint=checkpoint)

    def stop_epoch(self, reason: str) -> None:
        self._requests.stop_epoch(reason)

    def validate(self) -> None:
        self._requests.validate()

    def skip_step(self) -> None:
        self._requests.skip_step()

    def skip_batch(self) -> None:
        self._requests.skip_batch()

    def accumulate(self, batches: int, *, step: bool, by_examples: bool = True) -> None:
        self._requests.accumulate(batches, step=step, by_examples=by_examples)

    def replace_batch(self, batch: Any) -> None:
        self._requests.replace_batch(batch)

    def add_param_group(
        self, params: Iterable[nn.Parameter], optimizer: str | None = None, **settings: Any
    ) -> None:
        # Either raises UserError where there is no such optimizer.
        wanted = self.optimizer if optimizer is None else self.optimizers[optimizer]
        name = next(name for name, each in self.optimizers.items() if each is wanted)
        self._update.add_param_group(params, name, settings)

    def save_checkpoint(
        self, *names: str, moved: Mapping[str, int] = NO_MOVES, keep: int | None = None
    ) -> None:
        for name in (*names, *moved):
            if not is_valid_alias(name):
                message = f"no checkpoint can go by the name {json.dumps(name, ensure_ascii=False)}"
                hint = "a file must be able to have it: no slash, no dot at the beginning"
                raise UserError(Problem(message, hint=f"{hint}, {LONGEST_NAME} bytes at most"))
        self._requests.save(names or ("last",), moved, keep)

    def check_second_backward(self, hook: str) -> None:
        self._update.check_second_backward(hook)

    def trace(self, first: int, iters: int) -> None:
        began = perf_counter()
        engine = self._engine
        current = engine.current
        under_way = self.iter + 1
        if current is not None and current.point == "after_train_iter":
            under_way = self.iter  # it counts as done, and its time is not over
        if first < under_way:
            message = f"iteration {first} is over, and run.trace is to record it"
            raise UserError(Problem(message, hint=f"the one under way is {under_way}"))
        skipped = first - under_way
        capture = TraceCapture(
            engine.plan, first, iters, began, self.rank, engine.offloaded, skipped
        )
        self._log.trace(capture)

    # Methods for a task that steps its optimizers itself.

    def backward(self, loss: torch.Tensor, *optimizers: str) -> None:
        """Add the gradients of `loss` to the parameters of these optimizers, and to no others.

        Without names these are all optimizers. Gradients that a step has used are cleared before.
        Fires `after_forward`, `before_backward` and `after_backward`, with `{"loss": loss}` as the
        outputs.
        """
        self._timeline.mark(FORWARD)
        offered = self._in_own_step("backward"), self._state.batch_idx, {"loss": loss}
        with self._without_autocast():
            self._update.backward(offered, self._named(optimizers), self._update.loss_weight)

    @overload
    def step(self, *optimizers: str) -> None: ...

    @overload
    def step(self, closure: Callable[[], Any], /, *optimizers: str) -> Any: ...

    def step(self, *arguments: Any) -> Any:
        """Let these optimizers step, between `before_` and `after_optimizer_step`.

        Without names all of them step. One optimizer may be given a closure, which it calls as
        often as it needs: it calls `run.backward` and returns the loss. Gradients of the call
        before are cleared. `before_optimizer_step` fires when the first gradients are there; hooks
        there that write gradients fire in each call. Returns what the optimizer's step returns.
        """
        if arguments and callable(arguments[0]):
            closure, *names = arguments
            return self._step_with_closure(closure, tuple(names))
        self._timeline.mark(FORWARD)
        offered: tuple[Any, ...] = self._in_own_step("step"), self._state.batch_idx, {}
        with self._without_autocast():
            self._update.step(offered, self._named(arguments))
        return None

    def _step_with_closure(self, closure: Callable[[], Any], optimizers: tuple[str, ...]) -> Any:
        self._timeline.mark(FORWARD)
        offered: tuple[Any, ...] = self._in_own_step("step"), self._state.batch_idx, {}
        names = self._named(optimizers)
        if len(names) != 1:
            hint = f'run.step(closure, "{names[0]}")'
            raise UserError(
                Problem(
                    "a closure is for the step of one optimizer, and here are several", hint=hint
                )
            )
        device_type = self.device.type
        is_autocast = torch.is_autocast_enabled(device_type)
        autocast = torch.autocast(
            device_type, torch.get_autocast_dtype(device_type), enabled=is_autocast
        )

        def compute_loss() -> Any:
            torch.clear_autocast_cache()  # it holds the weights of the call before
            with autocast:
                return closure()

        with self._without_autocast():
            return self._closure_stepper.step(offered, names[0], compute_loss)

    @contextmanager
    def _without_autocast(self) -> Iterator[None]:
        with torch.autocast(self.device.type, enabled=False):
            yield
        # The cache belongs to a graph that is gone, and holds the old weights.
        torch.clear_autocast_cache()

    def _in_own_step(self, call: str) -> Any:
        """Return the current batch.

        Raises UserError unless the call comes from the step of a task with `steps_itself`.
        """
        if self._state.batch is NO_BATCH or self._engine.current is not None:
            message = f"run.{call} is for the step of a task that steps its optimizers itself"
            raise UserError(
                Problem(message, hint="such a task says so in its class: steps_itself = True")
            )
        return self._state.batch

    def _named(self, optimizers: tuple[str, ...]) -> tuple[str, ...]:
        for name in optimizers:
            self.optimizers[name]  # raises where there is none
        return optimizers or self._update.optimizer_names


COPIED_ATTRIBUTES = (
    *(
        "iter",
        "epoch",
        "batch_idx",
        "batch_size",
        "batch_set",
        "batch_weight",
        "max_iters",
        "max_epochs",
    ),
    *("iters_per_epoch", "epoch_lengths", "stage", "split"),
    *("metrics", "train_seconds", "device", "precision", "rank", "world", "repeats_previous_rank"),
    *("dir", "is_temporary", "is_predicting"),
)


class RunCopy(_ReportBase):
    """The run as it was when an offloaded hook fired.

    `hookflow.hooks.run.Run` documents what it has.

    `model` is a copy of the network, of a hook that declares that it reads `model` or `grads`.
    Numbers and images are logged at the iteration of the firing.
    """

    network: nn.Module | None
    metrics: Mapping[str, float]
    place: Place | None
    _hook: str
    _names: tuple[str, ...]

    def __init__(self, run: Run, hook: str, network: nn.Module | None) -> None:
        facts: dict[str, Any] = {name: getattr(run, name) for name in COPIED_ATTRIBUTES}
        facts |= {"_hook": hook, "network": network, "_names": tuple(run.models)}
        facts |= {
            "_log": run._log,
            "_media": run._media,
            "metrics": dict(run.metrics),
            "place": run._origin()[1],
        }
        vars(self).update(facts)

    def __setattr__(self, name: str, value: Any) -> None:
        # The offload itself sets the network of the copy, and the device on which it is computed.
        is_private = name.startswith("_") or name in ("network", "device")
        if not is_private:
            raise UserError(make_assignment_problem(name))
        super().__setattr__(name, value)

    @property
    def model(self) -> nn.Module:
        if self.network is None:
            message = f'the offloaded hook "{self._hook}" gets no copy of the network'
            raise UserError(Problem(message, hint='declare that it reads it: reads = ["model"]'))
        return self.network

    @property
    def models(self) -> Mapping[str, nn.Module]:
        names = self._names
        if len(names) > 1:
            return dict(self.model.named_children())
        return {names[0]: self.model}

    def log(self, name: str, value: float | torch.Tensor) -> None:
        number = scalar(value, f'run.log("{name}", …)')
        self._log.scalar(name, number, event_of_stream(number), self.place)

    def _origin(self) -> tuple[str, Place | None]:
        return self._hook, self.place

    def __getattr__(self, name: str) -> Any:
        if hasattr(Run, name) or name in RunProtocol.__annotations__:
            message = (
                f'the offloaded hook "{self._hook}" has no run.{name}, which belongs to the'
                " training thread"
            )
            raise UserError(Problem(message, hint="offload = false"))
        raise AttributeError(name)
