"""The implementation of the protocol `hookflow.hooks.run.Run`, which hooks and tasks receive."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from threading import get_ident
from time import perf_counter
from typing import Any

import torch
from torch import nn

from hookflow.errors import Problem, UserError
from hookflow.events.records import HOOKFLOW, Level
from hookflow.hooks.run import Run as Promised
from hookflow.hooks.tensors import Weight, full, is_one, is_sharded
from hookflow.runner.checkpoint.manifest import LONGEST_NAME, can_go_by
from hookflow.runner.cuda import event_of_stream
from hookflow.runner.logging.media import Media, Place, copied, drawn
from hookflow.runner.logging.recorder import Recorder
from hookflow.runner.logging.timing import FORWARD
from hookflow.runner.loop.context import Context
from hookflow.runner.loop.requests import NOTHING
from hookflow.runner.loop.task import Named, evaluation_of, numbers, scalar
from hookflow.runner.loop.update import Update
from hookflow.runner.precision import in_precision


def _of(path: str) -> Any:
    return property(attrgetter(path))


CALLED_INSTEAD = {
    **dict.fromkeys(("should_stop", "stopped", "stop", "max_iters", "max_epochs"), "run.stop(why)"),
    **dict.fromkeys(("batch", "batch_size", "batch_weight"), "run.replace_batch(batch), at before_train_iter"),
    **dict.fromkeys(("step_skipped", "skip_step"), "run.skip_step()"),
    "skip_batch": "run.skip_batch()",
    "metrics": 'metrics["name"] = value, at after_val_epoch and after_test_epoch',
    "loss": 'outputs["loss"] = loss, at after_forward',
    "lr": 'group["lr"] = lr, for group in run.optimizer.param_groups',
}
"""What a hook does in place of assigning an attribute of the run."""


def cannot_be_set(name: str) -> Problem:
    """Return that a hook cannot assign an attribute of the run, and what it can do in place of that."""
    if name in CALLED_INSTEAD:
        return Problem(f"run.{name} cannot be set: the training would not see it", hint=CALLED_INSTEAD[name])
    if name in Promised.__annotations__:
        return Problem(f"run.{name} cannot be set: the training would not see it", hint=f"change what run.{name} holds")
    if hasattr(Run, name):
        return Problem(f"run.{name} cannot be set: it is for reading, or for calling")
    hint = f"what a hook keeps is its own: self.{name} = …; other hooks find it by run.hooks"
    return Problem(f"run.{name} cannot be set: the run has no such attribute", hint=hint)


class _Reports:
    """Reports of hooks beside numbers. `_origin` is who reports, and the iterations and epochs done; None is now."""

    _log: Recorder
    _media: Media

    def _origin(self) -> tuple[str, Place | None]:
        raise NotImplementedError

    def log_image(self, name: str, image: Any, caption: str = "") -> None:
        self._media.image(name, copied(image, f'run.log_image("{name}", …)'), caption, *self._origin())

    def log_figure(self, name: str, figure: Any) -> None:
        self._media.image(name, drawn(figure, f'run.log_figure("{name}", …)'), "", *self._origin(), figure=True)

    def log_text(self, name: str, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f'run.log_text("{name}", …) needs a string, not a {type(text).__name__} ({text!r:.40})')
        self._log.put("text", name=name, text=text, hook=self._origin()[0])

    def log_histogram(self, name: str, values: Any, bins: int = 30) -> None:
        if bins < 1:
            raise ValueError(f'run.log_histogram("{name}", …) needs at least one bin, not {bins}')
        self._media.histogram(name, numbers(values, f'run.log_histogram("{name}", …)'), bins, *self._origin())

    def say(self, text: str, level: Level = "info") -> None:
        self._log.say(text, level, self._origin()[0])


class Run(_Reports):
    """One run. `hookflow.hooks.run.Run` documents the promises to hooks."""

    def __init__(self, context: Context, update: Update) -> None:
        parts, engine = context.parts, context.engine
        self.model: nn.Module = parts.model
        self.models: Mapping[str, nn.Module] = Named("model", parts.models)
        self.optimizers: Mapping[str, torch.optim.Optimizer] = Named("optimizer", parts.optimizers)
        self.task: Any = parts.task
        self.data: Mapping[str, Any] = parts.data
        self.hooks: Mapping[str, Any] = parts.hooks
        self.device, self.precision, self.dir = parts.device, parts.precision, context.folder
        self.rank, self.world, self.is_temporary = parts.ranks.rank, parts.ranks.world, False
        self.repeats = parts.ranks.rank % (parts.ranks.world // parts.data_ranks.world) > 0
        """Whether the rank before has the same share of each batch."""
        self._compiled, self._trains, self._strategy = parts.section.compile, parts.trains, parts.strategy
        self._shares = parts.data_ranks.world
        self._state, self._requests, self._module_hooks = context.state, context.requests, context.module_hooks
        self._engine, self._update, self._timeline = engine, update, context.timeline
        self._scalars, self._log, self._media = context.scalars, context.log, context.media
        self._offers_log = bool(engine.plan.at("on_log"))
        self._iteration = context.iteration
        self._offered_at: Place | None = None
        self._on_zero = frozenset(hook.name for hook in engine.plan.hooks if hook.ranks == "zero")
        self._is_complete = True

    def __setattr__(self, name: str, value: Any) -> None:
        is_private = name.startswith("_") or name == "is_temporary"  # which a trial sets
        if "_is_complete" in vars(self) and not is_private:
            raise UserError(cannot_be_set(name))
        super().__setattr__(name, value)

    # Where the run is.

    iter = _of("_state.iter")
    epoch = _of("_state.epoch")
    batch_idx = _of("_state.batch_idx")
    batch_size = _of("_state.batch_size")
    max_iters = _of("_state.max_iters")
    max_epochs = _of("_state.max_epochs")
    iters_per_epoch = _of("_state.iters_per_epoch")
    stage = _of("_state.stage")
    is_predicting = _of("_state.is_predicting")
    split = _of("_state.split")
    metrics = _of("_state.metrics")
    metrics_at = _of("_state.metrics_at")
    handle = _of("_module_hooks.handle")
    handles = _of("_module_hooks.handles")

    @property
    def batch_weight(self) -> Weight:
        weight = self._state.batch_weight
        return (self._state.batch_size or 1) if weight is None else weight

    @property
    def train_seconds(self) -> float:
        return perf_counter() - self._timeline.excluded_s

    @property
    def step_skipped(self) -> bool:
        return self._update.left_out_in(self._state.iter - 1)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        if len(self.optimizers) > 1:
            first, *_ = self.optimizers
            hint = f'run.optimizers["{first}"]'
            raise UserError(Problem("this run has several optimizers, and run.optimizer means one", hint=hint))
        return next(iter(self.optimizers.values()))

    def metric(self, name: str) -> float:
        return self._state.metrics[name]

    def scalar(self, name: str) -> float:
        return self._scalars.latest(name)

    @property
    def stepping(self) -> Mapping[str, torch.optim.Optimizer]:
        return {name: self.optimizers[name] for name in self._update.stepping or self._update.every}

    def stepped(self, model: str | None = None) -> nn.Module | None:
        stepping = [self._trains[name] for name in self.stepping]
        if model is None:
            return stepping[0] if len(stepping) == 1 else self.model
        wanted = self.models[model]
        return wanted if wanted in stepping or self.model in stepping else None

    # Reports of hooks.

    def log(self, name: str, value: float | torch.Tensor) -> None:
        number = scalar(value, f'run.log("{name}", …)')
        if self._strategy.several and is_sharded(number):
            self._check_on_all_ranks("log of a sharded number")
            number = full(number)  # type: ignore[arg-type]
        place = self._origin()[1]
        self._log.scalar(name, number, event_of_stream(number), place)
        self._scalars.log(name, number)
        if self._offers_log and place and not self._offered_at:  # not for the numbers that hooks log at on_log
            self._offered_at = place
            try:
                self._engine.dispatcher.fire_within("on_log", name, number)
            finally:
                self._offered_at = None

    def _origin(self) -> tuple[str, Place | None]:
        """Return who calls, a hook or the task, in which iteration: the one under way. Unknown in another thread."""
        if get_ident() != self._engine.dispatcher.thread:
            return HOOKFLOW, None
        here = self._engine.current
        return here.hook if here else "task", self._offered_at or (self._iteration(here), self._state.epoch)

    def evaluate(self, batch: Any) -> dict[str, Any]:
        if self._strategy.mesh is not None:  # the forward pass gathers shards
            self._check_on_all_ranks("evaluate")
        evaluate = in_precision(evaluation_of(self.task), self.device, self.precision, self._compiled)
        return evaluate(self, batch)  # type: ignore[no-any-return]

    def loss(self, batch: Any) -> torch.Tensor:
        if self._requests.keeps_gradients:
            raise UserError(Problem("run.accumulate adds up the gradients of several batches; run.loss is of one"))
        self._check_on_all_ranks("loss")
        outputs = in_precision(self.task.step, self.device, self.precision, self._compiled)(self, batch)
        weight = self._update.loss_weight
        return outputs["loss"] if is_one(weight) else outputs["loss"] * weight  # type: ignore[no-any-return]

    def sum(self, value: float | torch.Tensor) -> torch.Tensor:
        return self._reduced(value, "sum")

    def mean(self, value: float | torch.Tensor) -> torch.Tensor:
        return self._reduced(value, "mean") / self._shares

    def _reduced(self, value: float | torch.Tensor, call: str) -> torch.Tensor:
        self._check_on_all_ranks(call)
        return self._strategy.all_reduce(value, self.device)  # type: ignore[no-any-return]

    def _check_on_all_ranks(self, call: str) -> None:
        """Raise UserError where the hook that makes a call fires on rank 0 alone: it would wait for the others."""
        here = self._engine.current
        if self._strategy.several and here is not None and here.hook in self._on_zero:
            message = f'the hook "{here.hook}" fires on rank 0 alone, and run.{call} needs all ranks'
            raise UserError(Problem(message, hint='let it fire on all: ranks = "all"'))

    fire = _of("_engine.fire_own")

    # Requests of hooks.

    stop = _of("_requests.stop")
    stop_epoch = _of("_requests.stop_epoch")
    validate = _of("_requests.validate")
    skip_step = _of("_requests.skip_step")
    skip_batch = _of("_requests.skip_batch")
    accumulate = _of("_requests.accumulate")
    replace_batch = _of("_requests.replace_batch")

    def add_param_group(self, params: Iterable[nn.Parameter], optimizer: str | None = None, **settings: Any) -> None:
        wanted = self.optimizer if optimizer is None else self.optimizers[optimizer]  # raises where there is none
        name = next(name for name, each in self.optimizers.items() if each is wanted)
        self._update.add_param_group(params, name, settings)

    def save_checkpoint(self, *names: str, moved: Mapping[str, int] = NOTHING, keep: int | None = None) -> None:
        for name in (*names, *moved):
            if not can_go_by(name):
                message = f"no checkpoint can go by the name {json.dumps(name, ensure_ascii=False)}"
                hint = "a file must be able to have it: no slash, no dot at the beginning"
                raise UserError(Problem(message, hint=f"{hint}, {LONGEST_NAME} bytes at most"))
        self._requests.save(names or ("last",), moved, keep)

    check_backward_again = _of("_update.check_again")

    # Methods for a task that steps its optimizers itself.

    def backward(self, loss: torch.Tensor, *optimizers: str) -> None:
        """Add the gradients of `loss` to the parameters of these optimizers (of all if none is named), no others.

        Gradients that a step has used are cleared before. Fires `after_forward`, `before_backward` and
        `after_backward`, with `{"loss": loss}` as the outputs.
        """
        self._timeline.mark(FORWARD)
        offered = self._in_own_step("backward"), self._state.batch_idx, {"loss": loss}
        with self._without_autocast():
            self._update.backward(offered, self._named(optimizers), self._update.loss_weight)

    def step(self, *optimizers: str) -> None:
        """Let these optimizers (all if none is named) step, between `before_` and `after_optimizer_step`."""
        self._timeline.mark(FORWARD)
        offered: tuple[Any, ...] = self._in_own_step("step"), self._state.batch_idx, {}
        with self._without_autocast():
            self._update.step(offered, self._named(optimizers))

    @contextmanager
    def _without_autocast(self) -> Iterator[None]:
        with torch.autocast(self.device.type, enabled=False):
            yield
        torch.clear_autocast_cache()  # it belongs to a graph that is gone, and holds the old weights

    def _in_own_step(self, call: str) -> Any:
        """Return the current batch. Raises UserError unless a task is in its step that it takes care of itself."""
        if self._state.batch is None or self._engine.current is not None:
            message = f"run.{call} is for the step of a task that steps its optimizers itself"
            raise UserError(Problem(message, hint="such a task says so in its class: steps_itself = True"))
        return self._state.batch

    def _named(self, optimizers: tuple[str, ...]) -> tuple[str, ...]:
        for name in optimizers:
            self.optimizers[name]  # raises where there is none
        return optimizers or self._update.every


def _keeps_its_promise(run: Run) -> Promised:
    return run


COPIED = (
    *("iter", "epoch", "batch_idx", "batch_size", "batch_weight", "max_iters", "max_epochs"),
    *("iters_per_epoch", "stage", "split"),
    *("metrics", "train_seconds", "device", "precision", "rank", "world", "repeats"),
    *("dir", "is_temporary", "is_predicting"),
)


class RunCopy(_Reports):
    """The run as it was when an offloaded hook fired; `hookflow.hooks.run.Run` documents what is there of it.

    `model` is a copy of the network, of a hook that declares that it reads `model` or `grads`. Numbers and images are
    logged at the iteration of the firing.
    """

    network: nn.Module | None
    metrics: Mapping[str, float]
    place: Place | None
    _hook: str
    _names: tuple[str, ...]

    def __init__(self, run: Run, hook: str, network: nn.Module | None) -> None:
        facts: dict[str, Any] = {name: getattr(run, name) for name in COPIED}
        facts |= {"_hook": hook, "network": network, "_names": tuple(run.models)}
        facts |= {"_log": run._log, "_media": run._media, "metrics": dict(run.metrics), "place": run._origin()[1]}
        vars(self).update(facts)

    def __setattr__(self, name: str, value: Any) -> None:
        is_private = name.startswith("_") or name in ("network", "device")  # of the copy, where it is computed with
        if not is_private:
            raise UserError(cannot_be_set(name))
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
        return dict(self.model.named_children()) if len(names) > 1 else {names[0]: self.model}

    def log(self, name: str, value: float | torch.Tensor) -> None:
        number = scalar(value, f'run.log("{name}", …)')
        self._log.scalar(name, number, event_of_stream(number), self.place)

    def _origin(self) -> tuple[str, Place | None]:
        return self._hook, self.place

    def __getattr__(self, name: str) -> Any:
        if hasattr(Run, name) or name in Promised.__annotations__:
            message = f'the offloaded hook "{self._hook}" has no run.{name}, which belongs to the training thread'
            raise UserError(Problem(message, hint="offload = false"))
        raise AttributeError(name)
