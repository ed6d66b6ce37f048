"""Averages: of weights (`ema`, `swa`), and of batch norms (`precise_bn`, `sync_buffers`)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from hookflow.errors import Problem, UserError, first_few
from hookflow.graph.schedule import Measure
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.builtin.schedules import Progress, count_iterations
from hookflow.hooks.capabilities import HookCapabilities
from hookflow.hooks.monitored import monitored_mode, read_latest_metric
from hookflow.hooks.parameter_notes import ParameterNotes, find_notes
from hookflow.hooks.tensors import (
    enter_evaluation,
    find_wide_dtype,
    local,
    make_shard_like,
    named_parameters,
    on_device,
    sum_dtype,
)
from hookflow.hooks.weight_average import WeightAverageHook
from hookflow.metric_mode import MODE_MEANING, Mode, compute_gain
from hookflow.numbers import format_count
from hookflow.pipeline.amounts import parse_amount
from hookflow.pipeline.by_epoch import batches_by_epoch

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hookflow.hooks.run import Run

_PLACING_COUNTER = itertools.count()
"""Numbers the averages in the order in which they are put in place of weights."""

AVERAGE_READS = {
    **dict.fromkeys(("before_train", "around_test", "before_save_checkpoint"), ("model.{model}",)),
    "around_val": ("model.{model}", "metrics.{monitor?}"),
    "after_load_checkpoint": ("checkpoint.model_{name}",),
}
AVERAGE_WRITES = dict.fromkeys(("around_val", "around_test"), ("model.{model}",))
AVERAGE_WRITES["before_save_checkpoint"] = ("checkpoint.model_{name}",)
"""The slots of every average; a subclass adds those of the method that moves it."""


@dataclass(eq=False, kw_only=True)
class Average(WeightAverageHook):
    """The base of an average of the real and complex weights and buffers.

    It begins at `begin`; a subclass says how it moves. The average of a tensor of fewer than 32
    bits is kept in float32, that of complex32 in complex64: a step of an average is far smaller
    than what bfloat16 can tell apart. Until there is an average, the weights themselves are
    validated and tested.
    """

    capabilities = HookCapabilities(validates_average=True)

    begin: Annotated[
        Progress, Field(description='when the average starts: 0, 1000, "5ep", "10%" of the run')
    ] = 0
    model: Annotated[
        str | None, Field(description="which of several models; all of them if left out")
    ] = None
    monitor: Annotated[
        str | None, Field(description="the validation metric for the checkpoint best-<name>")
    ] = None
    mode: Annotated[Mode | None, Field(description=MODE_MEANING)] = None

    def __post_init__(self) -> None:
        self.first = 0
        """The iterations that are done when the average begins."""
        if self.monitor is None:
            self.modes = {}
        else:
            self.modes = {self.monitor: monitored_mode(self.monitor, self.mode)}
        self.best: float | None = None
        self.updates = 0
        self.average: dict[str, Tensor] = {}
        self.pairs = TensorPairs()
        """The local tensors of the average and of the weights that have the same dtype."""
        self.widened_pairs = TensorPairs()
        """Names whose average has a wider dtype than the weight."""
        self.named_weights: dict[str, nn.Parameter] = {}
        self.places: list[tuple[dict[str, Any], str, Any]] = []
        """The places where the network holds the weights.

        A place is the dictionary of a module, the key, and the tensor there.
        """
        self.masked_at = -1
        """How often masks of parameters had changed when they were applied to the average."""
        self.kept_weights: dict[str, Tensor] = {}
        """The weights of another dtype than that of their average, while that is in place."""
        self.keeps_versions = False

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        if args.get("monitor") is not None:
            monitored_mode(args["monitor"], args.get("mode"))

    @classmethod
    def capabilities_for(cls, args: Mapping[str, Any]) -> HookCapabilities:
        metric = args.get("monitor")
        if metric is None:
            return cls.capabilities
        return replace(
            cls.capabilities, monitors={metric: monitored_mode(metric, args.get("mode"))}
        )

    def before_train(self, run: Run) -> None:
        self.first = count_iterations(self.begin, run)
        for name, tensor in collect_averaged_tensors(self.network(run)).items():
            require_dense(name, tensor, self.name)
        if self.average:
            self._bind_tensors(run)

    def start(self, run: Run) -> None:
        """Let the average be a copy of the weights."""
        self.average = {
            name: make_widened_copy(tensor)
            for name, tensor in collect_averaged_tensors(self.network(run)).items()
        }
        self._bind_tensors(run)

    def move(self, run: Run, weight: float) -> None:
        """Move the average towards the weights, by this share of the way."""
        import torch

        self.updates += 1
        if not all(holder.get(key) is tensor for holder, key, tensor in self.places):
            self._bind_tensors(run)  # a forward pass or a hook has put another tensor there
        with torch.no_grad():
            if self.pairs.averages:
                torch._foreach_lerp_(self.pairs.averages, self.pairs.weights, weight)
            if self.widened_pairs.averages:
                torch._foreach_lerp_(
                    self.widened_pairs.averages, self.widened_pairs.copy_widened_weights(), weight
                )
            self._apply_masks()

    def around_test(self, run: Run) -> Iterator[None]:
        if not self.is_validated:
            yield
            return
        self.put_in_place(run)
        try:
            yield
        finally:
            self.take_out(run)

    def around_val(self, run: Run) -> Iterator[None]:
        before = run.metrics
        yield from self.around_test(run)
        if not self.average or run.metrics is before:  # a signal has cut the pass short
            return
        for metric, mode in self.modes.items():
            value = read_latest_metric(run, metric)
            if value is None or not math.isfinite(value):
                continue
            if self.best is None or compute_gain(value, self.best, mode) > 0:
                self.best = value
                run.save_checkpoint(f"best-{self.name}")

    def before_save_checkpoint(self, run: Run, checkpoint: dict[str, Any]) -> None:
        if self.average:
            self._bind_added_tensors(run)
            self._apply_masks()
            model = self.network(run)
            first = _first_names(model)
            averaged = {}
            for name, item in first.items():
                if item in self.average:
                    averaged[name] = self.average[item]
            checkpoint[f"model_{self.name}"] = dict(model.state_dict()) | averaged

    def after_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        saved = checkpoint.get(f"model_{self.name}")
        if saved:
            self.average = {
                name: value.clone() for name, value in saved.items() if _is_averaged(value)
            }

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "best": self.best, "monitor": self.monitor}

    def forked_state(self, state: dict[str, Any]) -> dict[str, Any]:
        if state["best"] is not None:  # the checkpoint that has it is the parent's
            return {**state, "best": None}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        if state.get("monitor", self.monitor) == self.monitor:  # else it is of another metric
            self.best = state["best"]

    def network(self, run: Run) -> nn.Module:
        if self.model is None:
            return run.model
        return run.models[self.model]

    def _bind_tensors(self, run: Run) -> None:
        """Give the average its dtypes and shards, and pair its tensors with the weights."""
        network = self.network(run)
        weights = collect_averaged_tensors(network)
        self.named_weights = named_parameters(network)
        self.places = [*iter_tensor_places(network)]
        self.pairs, self.widened_pairs = TensorPairs(), TensorPairs()
        self.masked_at = -1
        for name, weight in weights.items():
            saved = self.average.get(name)
            if saved is None or saved.shape != weight.shape:  # it was not there before
                saved = weight.detach().clone()
            average = make_shard_like(saved.to(find_wide_dtype(weight.dtype)), weight)
            self.average[name] = average
            if average.dtype == weight.dtype:
                pairs = self.pairs
            else:
                pairs = self.widened_pairs
            pairs.averages.append(local(average))
            pairs.weights.append(local(weight))

    def _bind_added_tensors(self, run: Run) -> None:
        """Begin the averages of weights that a hook has added to modules during the training."""
        if not collect_averaged_tensors(self.network(run)).keys() <= self.average.keys():
            self._bind_tensors(run)

    def _apply_masks(self) -> None:
        """Set the average to zero where the weights have been pruned since.

        From then on it averages zeros.
        """
        if self.masked_at == ParameterNotes.mask_changes:
            return
        self.masked_at = ParameterNotes.mask_changes
        for name, average in self.average.items():
            mask = None
            if name in self.named_weights:
                mask = find_notes(self.named_weights[name]).mask
            if mask is not None:
                average.mul_(mask)

    @property
    def has_average(self) -> bool:
        return bool(self.average)

    def put_in_place(self, run: Run, *, keeps_versions: bool = False) -> None:
        """Give the network the average in place of its weights.

        All references to the tensors see the other values. Weights and averages of one dtype are
        exchanged, which takes no memory. The other weights are kept.
        """
        if not self.average:
            return
        self._bind_added_tensors(run)
        self._apply_masks()
        self.placed_at = next(_PLACING_COUNTER)
        self.keeps_versions = keeps_versions
        self.kept_weights = {}
        for name, weight in self._iter_averaged_weights(run):
            average = local(self.average[name])
            if weight.dtype == average.dtype:
                exchange(weight, average)
            else:
                self.kept_weights[name] = weight.clone()
                weight.copy_(average)

    def take_out(self, run: Run) -> None:
        """Give the network its weights back, and the average its values as changed meanwhile."""
        if self.placed_at is None:
            return
        self.placed_at = None
        for name, weight in self._iter_averaged_weights(run):
            average = local(self.average[name])
            if weight.dtype == average.dtype:
                exchange(weight, average)
            else:
                take_changes(average, weight)
                weight.copy_(self.kept_weights[name])
        self.kept_weights = {}
        self.keeps_versions = False

    def _iter_averaged_weights(self, run: Run) -> Iterator[tuple[str, Tensor]]:
        """Yield the local tensor of each averaged weight and buffer, by name."""
        for name, tensor in collect_averaged_tensors(self.network(run)).items():
            weight = local(tensor)
            yield name, weight.data if self.keeps_versions else weight


@dataclass(eq=False)
class TensorPairs:
    """The tensors of an average and the weights that they are the averages of, in one order."""

    averages: list[Tensor] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)

    def copy_widened_weights(self) -> list[Tensor]:
        """Return copies of the weights in the dtypes of the averages."""
        return [
            weight.to(average.dtype)
            for average, weight in zip(self.averages, self.weights, strict=True)
        ]


def iter_tensor_places(model: nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield each parameter and buffer of a model with the dictionary that holds it and its key."""
    for module in model.modules():
        for holder in (module._parameters, module._buffers):
            for key, tensor in holder.items():
                yield holder, key, tensor


def make_widened_copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to(find_wide_dtype(tensor.dtype), copy=True)


def exchange(tensor: Tensor, other: Tensor) -> None:
    """Exchange the values of two tensors of one dtype in place."""
    kept = tensor.clone()
    tensor.copy_(other)
    other.copy_(kept)


def take_changes(average: Tensor, weight: Tensor) -> None:
    """Let an average have the values of `weight` that have changed since it was copied.

    `weight` is a copy of it in a narrower dtype. Other values keep the precision that the copy has
    not.
    """
    import torch

    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[weight.dtype.itemsize]
    is_changed = weight.view(bits) != average.to(weight.dtype).view(bits)
    average.copy_(torch.where(is_changed, weight.to(average.dtype), average))


def require_dense(name: str, tensor: Tensor, hook: str) -> None:
    """Raise UserError for a weight that cannot be averaged: a sparse or a nested one.

    The error names the hook.
    """
    import torch

    if tensor.layout is torch.strided:
        return
    layout = str(tensor.layout).removeprefix("torch.")
    message = f'hook "{hook}" cannot average "{name}", a tensor with the layout {layout}'
    raise UserError(
        Problem(
            message,
            hint="let the layer hold its weight as a dense tensor; its gradient may be sparse",
        )
    )


def collect_averaged_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the real and complex tensors of the model, each once.

    They share their memory with it.
    """
    state = model.state_dict()
    return {name: state[name] for name in dict.fromkeys(_first_names(model).values())}


def _first_names(model: nn.Module) -> dict[str, str]:
    """Return the first name of each averaged tensor of the model, by every name that it has.

    Tied weights have several names.
    """
    first: dict[int, str] = {}
    state = model.state_dict(keep_vars=True).items()
    return {name: first.setdefault(id(value), name) for name, value in state if _is_averaged(value)}


def _is_averaged(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


@dataclass(eq=False)
class EMA(Average):
    """Averages the weights after each optimizer step; validates and tests the average.

    Real and complex buffers are averaged, too. The average starts as a copy of the weights when
    `begin` is reached. Its momentum is annealed so that it soon forgets them: at step n it moves by
    no less than `gamma` / (`gamma` + n). Before `begin` the weights themselves are validated. A
    checkpoint keeps the average as `model_<hook's name>`, a plain state_dict beside the trained
    weights.

    Where there are several models it averages all of them, or `model` alone; at each step of an
    optimizer of theirs.
    """

    settable = ("decay", "every")
    reads: ClassVar[Slots] = {**AVERAGE_READS, "after_optimizer_step": ("model.{model}",)}
    writes: ClassVar[Slots] = AVERAGE_WRITES

    decay: Annotated[
        float, Field(gt=0, lt=1, description="share of the average that a step keeps")
    ] = 0.999
    every: Annotated[
        int, Field(ge=1, description="iterations between two updates, each at a step")
    ] = 1
    gamma: Annotated[
        float, Field(ge=0, description="how slowly the momentum reaches 1 - decay; 0: at once")
    ] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.moved_at: int | None = None
        """The iteration of the latest update, from which `every` counts.

        It is None until the training begins.
        """

    def before_train(self, run: Run) -> None:
        super().before_train(run)
        # A fork with other batches renumbers its iterations, so a saved one may lie ahead.
        if self.moved_at is None or self.moved_at > run.iter:
            self.moved_at = self._update_due_at(run.iter)
        if not self.average and self.first == 0:
            self.start(run)

    def after_optimizer_step(self, run: Run) -> None:
        iteration = run.iter + 1
        if not self.average:
            if iteration >= self.first:
                self.start(run)
                self.moved_at = self._update_due_at(iteration)
            return
        assert self.moved_at is not None
        is_due = iteration - self.moved_at >= self.every
        is_same_iteration = iteration == self.moved_at  # in which another optimizer steps
        if (is_due or is_same_iteration) and run.model_being_updated(self.model) is not None:
            self.moved_at = iteration
            self.move(run, max(1 - self.decay, self.gamma / (self.gamma + self.updates + 1)))

    def _update_due_at(self, iteration: int) -> int:
        """Return the latest multiple of `every` up to an iteration.

        Updates are at multiples where each one steps.
        """
        return iteration - iteration % self.every

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "moved_at": self.moved_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.moved_at = state.get("moved_at")


@dataclass(eq=False)
class SWA(Average):
    """Averages samples of the weights from `begin` on; validates and tests the average.

    Buffers are those of the last sample, so that the statistics of batch norms are not those of the
    mean: let `precise_bn` estimate them anew before each validation. Where there are batch norms
    and nothing does so, a warning at the start names them. A checkpoint keeps the mean as
    `model_<hook's name>`. For a constant rate while it samples, end the chain of `scheduler` with
    `torch.optim.swa_utils:SWALR`.
    """

    phase = "late"  # beside `ema`, its average is the inner one
    reads: ClassVar[Slots] = {**AVERAGE_READS, "after_train_iter": ("model.{model}",)}
    writes: ClassVar[Slots] = AVERAGE_WRITES

    begin: Annotated[
        Progress, Field(description='when sampling begins: 0, 1000, "5ep", "75%" of the run')
    ] = "75%"
    every: Annotated[
        Progress, Field(description='how often it samples: 100, "1ep", "1%" of the run')
    ] = "1ep"

    def before_train(self, run: Run) -> None:
        super().before_train(run)
        self.period = self._measure_period(run)
        self._warn_of_batch_norms(run)

    def _measure_period(self, run: Run) -> Measure:
        """Return `every` in iterations: epochs exactly, which may differ in length."""
        count = max(1, count_iterations(self.every, run))
        if self.every != 0:
            amount = parse_amount(self.every)
            if amount.unit == "ep":
                return Measure.of_epochs(amount.value, run.epoch_lengths)
        return Measure("it", count, 1)

    def after_train_iter(self, run: Run) -> None:
        """Sample the weights, once an iteration however many optimizers step in it."""
        is_due = self.period.multiple(run.iter) > self.period.multiple(run.iter - 1)
        if run.iter <= self.first or not is_due:
            return
        if not self.average:
            self.start(run)
            self.updates = 1
        else:
            self.move(run, 1 / (self.updates + 1))
            for name, buffer in self.network(run).named_buffers():
                if name in self.average:
                    local(self.average[name]).copy_(local(buffer))

    def _warn_of_batch_norms(self, run: Run) -> None:
        """Warn where the average will have statistics of batch norms with weights not its own."""
        norms = training_norms(self.network(run))
        stale = []
        for name, norm in norms.items():
            if not find_notes(norm.running_mean).is_recomputed:
                stale.append(name)
        if stale:
            what = f"{format_count(len(stale), 'batch norm')} ({first_few(stale)})"
            meaning = (
                "statistics in the average that are those of the last sample, and not of the"
                " averaged weights"
            )
            run.say(
                f"{what} will have {meaning}: the hook precise_bn computes them before each"
                " validation",
                "warn",
            )


def batch_norms(model: nn.Module) -> dict[str, Any]:
    """Return the batch norms by name that have running statistics."""
    from torch.nn.modules.batchnorm import _BatchNorm

    norms = {
        name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)
    }
    return {name: norm for name, norm in norms.items() if norm.running_mean is not None}


def training_norms(model: nn.Module) -> dict[str, Any]:
    """Return by name the batch norms that update their running statistics.

    Frozen ones, in eval mode, do not.
    """
    return {name: norm for name, norm in batch_norms(model).items() if norm.training}


def _check_can_be_read_again(source: Any, is_within_epoch: bool) -> None:
    """Raise UserError for training data that a hook cannot read again.

    Reading them would take batches from the training.
    """
    if getattr(source, "workers", 0) and is_within_epoch:
        message = (
            "precise_bn cannot read training data now: its workers are in the middle of an epoch"
        )
        raise UserError(
            Problem(
                message, hint='validate after epochs (run.val_every = "1ep"), or let workers be 0'
            )
        )
    if hasattr(source, "state_dict"):
        message = (
            f"precise_bn would advance the training data: a {type(source).__name__} cannot be"
            " rewound"
        )
        raise UserError(Problem(message, hint="give a map-style dataset with a loader"))


@dataclass(eq=False)
class PreciseBN(Hook):
    """Recomputes the running statistics of batch norms before each validation.

    It takes them from training batches. They become the mean and the unbiased variance of each
    norm's inputs over all examples, with the present weights. A moving average would mix them with
    those of earlier weights. Where an average of the weights is validated, they are those of the
    average. The network computes as in evaluation, in the run's precision, but that the norms use
    each batch's own statistics. The batches are the first ones of the epoch that comes next; each
    rank takes its own, and all are counted together. Norms that are in eval mode, as frozen ones,
    are left alone.
    """

    capabilities = HookCapabilities(
        recomputes_statistics=True,
        attach_blocker=(
            "it passes training batches through the network, and only the loop can fetch a batch"
        ),
    )

    phase = "last"  # the weights that are to be validated are there by then
    reads: ClassVar[Slots] = dict.fromkeys(("before_run", "before_val"), ("model",))
    writes: ClassVar[Slots] = {"before_val": ("model",)}

    batches: Annotated[
        int | None, Field(ge=1, description="training batches; a whole epoch if left out")
    ] = 200

    def before_run(self, run: Run) -> None:
        """Let averages know of which norms it computes the statistics."""
        for norm in batch_norms(run.model).values():
            find_notes(norm.running_mean).is_recomputed = "val" in run.data

    def before_val(self, run: Run) -> None:
        norms = [*training_norms(run.model).values()]
        # `hookflow val` has no training data, and takes the statistics that the checkpoint holds.
        if not norms or "train" not in run.data:
            return
        source = run.data["train"]
        is_within_epoch = (
            run.batch_idx % batches_by_epoch(source).at(run.epoch) > 0 and run.iter != run.max_iters
        )
        train_sets = {"train": source}
        # A source that repeats a few batches keeps them: it has no state, and reads no set again.
        if hasattr(source, "state_dict"):
            train_sets = getattr(source, "sets", train_sets)
        for train_set in train_sets.values():
            _check_can_be_read_again(train_set, is_within_epoch)
        with measure_norms(run.model, norms) as sums:
            for batch in islice(source.epoch(run.epoch), self.batches):
                run.evaluate(batch)
        for norm, (count, total, squares) in zip(norms, sums, strict=True):
            mean, variance = compute_moments(*(run.sum(item) for item in (count, total, squares)))
            norm.running_mean.copy_(mean)
            norm.running_var.copy_(variance)


@contextmanager
def measure_norms(model: nn.Module, norms: list[Any]) -> Iterator[list[list[Tensor]]]:
    """Sum up what the norms are given, while the rest of the network is in eval mode.

    Yield for each norm the count of its values in a channel, their sums and the sums of their
    squares, (channels,), in the dtype to add up in. Raises UserError when a norm has been given
    nothing.
    """
    sums = [[on_device(0.0, norm.running_mean.device) for _ in range(3)] for norm in norms]
    with enter_evaluation(model), ExitStack() as after:
        for norm, of_norm in zip(norms, sums, strict=True):
            norm.train()
            after.callback(norm.num_batches_tracked.copy_, norm.num_batches_tracked.clone())
            after.callback(norm.register_forward_pre_hook(partial(_add, of_norm)).remove)
        yield sums
    if any(not total.ndim for _, total, _ in sums):
        message = "a batch norm received no input while its statistics were computed"
        raise UserError(
            Problem(
                message, hint="it is not used, or a compiled network hides it: run.compile = false"
            )
        )


def _add(sums: list[Tensor], norm: nn.Module, args: Any) -> None:
    provided = args[0].detach()
    values = provided.to(sum_dtype(provided.device)).transpose(0, 1).flatten(1)
    sums[:] = sums[0] + values.shape[1], sums[1] + values.sum(1), sums[2] + values.square().sum(1)


def compute_moments(count: Tensor, total: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the unbiased variance of values.

    They follow from the count, the sum and the sum of the squares of the values.
    """
    mean = total / count
    return mean, ((squares - count * mean.square()) / (count - 1).clamp(min=1)).clamp(min=0)


class SyncBuffers(Hook):
    """Averages the buffers, such as statistics of batch norms, over all ranks.

    It does so after each backward pass, for real and complex buffers. Without it every rank has the
    running statistics of rank 0, which has seen its share of the batches alone; the ranks have the
    same in either case. A rank counts alike, whatever its examples. It costs one small all-reduce
    an iteration, and nothing where there is one rank.
    """

    reads: ClassVar[Slots] = {"after_backward": ("model",)}
    writes: ClassVar[Slots] = {"after_backward": ("model",)}

    def after_backward(self, run: Run) -> None:
        if run.world == 1:
            return
        import torch

        buffers = []
        for buffer in run.model.buffers():
            if buffer.is_floating_point():
                buffers.append(buffer)
            elif buffer.is_complex():
                buffers.append(torch.view_as_real(buffer))
        if not buffers:
            return
        means = run.mean(torch.cat([buffer.flatten().double() for buffer in buffers]))
        parts = torch.split(means, [buffer.numel() for buffer in buffers])
        for buffer, mean in zip(buffers, parts, strict=True):
            buffer.copy_(mean.view_as(buffer))
