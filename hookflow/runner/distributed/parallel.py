"""Data parallelism over ranks: what every strategy does, and DDP."""

import hashlib
import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import _broadcast_coalesced
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from hookflow.errors import Locate, Problem, UserError
from hookflow.hooks.optimizer_state import Path, list_group_entries, load_optimizer_state
from hookflow.hooks.tensors import group_by_dtype, is_sharded, make_shard_like, on_device
from hookflow.pipeline.schema import DistributedSection
from hookflow.runner.checkpoint.shards import mapped, without_contents
from hookflow.runner.distributed.consensus import RankConsensus
from hookflow.runner.distributed.rendezvous import RankLayout

OF_DDP = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view")
"""The keys of `[distributed]` that `DistributedDataParallel` takes by the same names."""

BUCKET_BYTES = 250 << 20
"""Bytes that are sent at once, as by `DistributedDataParallel`.

A copy of all may not fit in the memory.
"""


def broadcast(tensors: Iterable[Tensor]) -> None:
    """Copy the contents of these tensors from rank 0 to all.

    They are sent as bytes, since gloo lacks some types of numbers.
    """
    shared = [tensor.detach() for tensor in tensors]
    shared = [
        tensor.view(-1).view(torch.uint8) if tensor.is_contiguous() else tensor for tensor in shared
    ]
    if shared:
        _broadcast_coalesced(dist.distributed_c10d._get_default_group(), shared, BUCKET_BYTES, 0)


@torch.no_grad()
def average(tensors: list[Tensor]) -> None:
    """Replace the contents of these tensors by their mean over the ranks.

    BUCKET_BYTES of a type of number are sent at once.
    """
    for group in group_by_dtype(tensors):
        for bucket in in_buckets(group, BUCKET_BYTES):
            flat = _flatten_dense_tensors(bucket)
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            pieces = _unflatten_dense_tensors(flat, bucket)
            torch._foreach_copy_(bucket, pieces)


def in_buckets(tensors: Iterable[Tensor], size: int) -> Iterator[list[Tensor]]:
    """Yield the tensors in their order, in lists of at most `size` bytes.

    A larger tensor is in a list of its own.
    """
    bucket: list[Tensor] = []
    held = 0
    for tensor in tensors:
        if bucket and held + tensor.nbytes > size:
            yield bucket
            bucket = []
            held = 0
        bucket.append(tensor)
        held += tensor.nbytes
    if bucket:
        yield bucket


def class_of(model: nn.Module) -> str:
    """Return the name of a model's class, as it was before FSDP put its own in front."""
    kind = type(model)
    return (
        kind.__bases__[-1] if kind.__module__.startswith("torch.distributed") else kind
    ).__name__


class ParallelStrategy:
    """How the ranks keep one model.

    This base class is the strategy of a single process, whose calls do nothing. All ranks must make
    the same calls, in the same order.
    """

    several = False
    """Whether there are several ranks."""
    mesh: DeviceMesh | None = None
    """The mesh over which a checkpoint is loaded in shards; None where it is loaded in full."""
    host_mesh: DeviceMesh | None = None
    """The same ranks, by the CPU.

    Copies of sharded tensors in the host's memory are sharded over it.
    """
    data_group: dist.ProcessGroup | None = None
    """The ranks over which a batch is shared, each a share of its own; None for all."""
    host_group: dist.ProcessGroup | None = None
    """All of these ranks, which write the shards of a checkpoint together."""

    def parallelize(
        self, network: nn.Module, models: Sequence[nn.Module], device: torch.device, place: Locate
    ) -> None:
        """Give every rank the weights of rank 0, and each model what it keeps of them.

        A model is a part of the network. Called before there are optimizers: FSDP replaces the
        parameters. Raises UserError when it cannot shard them.
        """

    def add_parameters(self, parameters: Sequence[Tensor]) -> None:
        """Give every rank the values of rank 0 for parameters that a hook has added.

        Raises UserError if too late.
        """

    def check_lengths(self, lengths: Mapping[str, int], place: Locate) -> None:
        """Raise UserError, on every rank, when an epoch of a split has more batches on one."""

    def require_sync(self, wanted: bool) -> None:
        """Set whether the gradients of the next backward passes are averaged over the ranks."""

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Average the gradients of these parameters, unless the backward pass has done so.

        It is called before each step. The same of them must have a gradient on all ranks. Raises
        UserError when the backward pass has not averaged.
        """

    def all_reduce(self, value: float | Tensor, device: torch.device) -> Any:
        """Return the sum over the ranks.

        It is a new tensor of the shape of `value` on the device, float64 for a number. The sum
        takes in one of the ranks that compute the same share of a batch.
        """
        if isinstance(value, Tensor):
            return value.detach().to(device, copy=True, memory_format=torch.contiguous_format)
        return on_device(value, device)  # which waits for no device

    def broadcast_buffers(self) -> None:
        """Give every rank the buffers of rank 0 that a checkpoint keeps.

        The statistics of a batch norm are such buffers.
        """


class SeveralRanksStrategy(ParallelStrategy):
    """The base of a strategy of several ranks.

    Each computes the gradients of its share of a batch.
    """

    several = True

    def __init__(self) -> None:
        self._models: list[nn.Module] = []
        self._buffers: list[tuple[nn.Module, str]] = []

    def parallelize(
        self, network: nn.Module, models: Sequence[nn.Module], device: torch.device, place: Locate
    ) -> None:
        self._models = [
            model for model in models if any(p.requires_grad for p in model.parameters())
        ]
        self._buffers = [  # by name: a module may put another tensor there
            (module, name)
            for module in network.modules()
            for name, _ in module.named_buffers(recurse=False)
            if name not in module._non_persistent_buffers_set
        ]
        self.share(network, device, place)

    def share(self, network: nn.Module, device: torch.device, place: Locate) -> None:
        """Give every rank the parameters and buffers of rank 0."""
        broadcast((*network.parameters(), *network.buffers()))

    def add_parameters(self, parameters: Sequence[Tensor]) -> None:
        broadcast(parameters)

    def check_lengths(self, lengths: Mapping[str, int], place: Locate) -> None:
        mappings: list[Mapping[str, int]] = [{}] * dist.get_world_size()
        dist.all_gather_object(mappings, lengths)
        for split in lengths:
            counts = [length[split] for length in mappings]
            if len(set(counts)) > 1:
                message = (
                    "the ranks have different numbers of batches in an epoch:"
                    f" {', '.join(map(str, counts))}"
                )
                hint = "data that take rank and world must give the same number on each rank"
                raise UserError(Problem(message, place(f"data.{split}.use"), hint))

    def all_reduce(self, value: float | Tensor, device: torch.device) -> Any:
        total = super().all_reduce(value, device)
        dist.all_reduce(total, group=self.data_group)
        return total

    def broadcast_buffers(self) -> None:
        buffers = (module._buffers[name] for module, name in self._buffers)
        broadcast(buffer for buffer in buffers if buffer is not None)


class UserWrappedStrategy(SeveralRanksStrategy):
    """The ranks of a user's own loop, which has wrapped its model itself.

    Nothing is averaged or shared here.
    """


class DDPStrategy(SeveralRanksStrategy):
    """Averages gradients by `DistributedDataParallel`, while others are still computed.

    The backward pass computes them. The forward pass of each model goes through its wrapper; the
    model itself, its names and its hooks stay as they are. A wrapper is made at the first forward
    pass with gradients, so that hooks can add parameters before it.
    """

    def __init__(self, section: DistributedSection) -> None:
        super().__init__()
        self._options = {key: getattr(section, key) for key in OF_DDP}
        self._wrappers: dict[nn.Module, DistributedDataParallel] = {}
        self._comm_hooks: dict[nn.Module, Callable[..., Any]] = {}
        self._syncs = True
        self._checked = False

    def parallelize(
        self, network: nn.Module, models: Sequence[nn.Module], device: torch.device, place: Locate
    ) -> None:
        super().parallelize(network, models, device, place)
        for model in self._models:
            model.__class__ = self._make_routed_class(type(model))

    def _make_routed_class(self, kind: type[nn.Module]) -> type[nn.Module]:
        """Return a subclass of a model's class whose forward pass goes through its wrapper.

        A copy of such a model, and one that is unpickled, is of the class itself.
        """

        @wraps(kind.forward)
        def forward(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if model not in self._models or not torch.is_grad_enabled():
                return kind.forward(model, *args, **kwargs)
            wrapper = self._wrappers.get(model)
            if wrapper is None:
                bare = _BareModel(model, partial(kind.forward, model))
                self._wrappers[model] = wrapper = DistributedDataParallel(
                    bare, init_sync=False, **self._options
                )
                wrapper.require_backward_grad_sync = self._syncs
                if model in self._comm_hooks:
                    wrapper.register_comm_hook(None, self._comm_hooks[model])
            return wrapper.forward(*args, **kwargs)

        def reduce_model(model: nn.Module, protocol: Any) -> Any:
            parts: Any = kind.__reduce_ex__(model, protocol)
            make, args, *state = parts
            return make, tuple(kind if each is type(model) else each for each in args), *state

        routed = torch.compiler.disable(forward, recursive=False)
        members = {"forward": routed, "__reduce_ex__": reduce_model, "__module__": kind.__module__}
        return type(kind.__name__, (kind,), members)

    def require_sync(self, wanted: bool) -> None:
        self._syncs = wanted
        for wrapper in self._wrappers.values():
            wrapper.require_backward_grad_sync = wanted  # as its no_sync() does

    def register_comm_hook(self, model: nn.Module, hook: Callable[..., Any]) -> None:
        """Let `hook` average the gradients of a model, as PyTorch's DDP calls it."""
        self._comm_hooks[model] = hook

    def add_parameters(self, parameters: Sequence[Tensor]) -> None:
        if self._wrappers:
            message = "DDP takes no parameters after the first forward pass"
            raise UserError(Problem(message, hint="call run.add_param_group in before_run"))
        super().add_parameters(parameters)

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Check, at the first step, that the backward pass has averaged the gradients."""
        if self._checked:
            return
        self._checked = True
        for model in self._models:
            if model not in self._wrappers and any(p.grad is not None for p in model.parameters()):
                message = (
                    f"the task calls a submodule of {class_of(model)}, so gradients are not"
                    " synchronised"
                )
                raise UserError(
                    Problem(
                        message,
                        hint="call the network itself: run.model(…), or run.models[name](…)",
                    )
                )


class _BareModel(nn.Module):
    """A model as its wrapper sees it: without hooks and without buffers.

    Hooks fire around the wrapper.
    """

    def __init__(self, model: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self._forward = forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        """Yield nothing: the strategy shares buffers."""
        return iter(())


class DDPAtStepStrategy(SeveralRanksStrategy):
    """Averages gradients when an optimizer steps: for a task that steps its optimizers itself."""

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        average([p.grad for p in parameters if p.grad is not None])


def load_model(model: nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> None:
    """Give a model the weights of a full `state_dict`.

    Raises RuntimeError as `load_state_dict` does.
    """
    held = model.state_dict()
    if any(map(is_sharded, held.values())):
        state = {
            name: _convert_like(value, held[name]) if name in held else value
            for name, value in state.items()
        }
    model.load_state_dict(state, strict=strict)


def load_optimizer(
    optimizer: Optimizer,
    state: dict[str, Any],
    host_tensors: Collection[Path] = (),
    saved_dtypes: Mapping[Tensor, torch.dtype] | None = None,
) -> None:
    """Give an optimizer its full `state_dict`, as `load_optimizer_state` does.

    The state is sharded as its parameters are. Raises ValueError as `load_state_dict` does.
    """
    parameters = list_group_entries(optimizer.param_groups)
    if any(map(is_sharded, parameters)):
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        entries = dict(state["state"])
        # The zip is not strict, since PyTorch reports a wrong count below.
        for number, parameter in zip(numbers, parameters, strict=False):
            if number in entries:
                entries[number] = mapped(entries[number], partial(_convert_like, held=parameter))
        state = {**state, "state": entries}
    load_optimizer_state(optimizer, state, host_tensors=host_tensors, saved_dtypes=saved_dtypes)


def _convert_like(value: Any, held: Any) -> Any:
    fits = isinstance(value, Tensor) and isinstance(held, Tensor) and value.shape == held.shape
    if fits:
        return make_shard_like(value, held)
    return value


def full_state(
    state: dict[str, Any], consensus: RankConsensus, per_rank: Sequence[str], by_item: Sequence[str]
) -> dict[str, Any]:
    """Return the state with what each rank has of its own.

    The first rank alone gets that of the others. Each rank has entries `per_rank` of its own; of
    those `by_item` the items that are not equal on all ranks. All ranks must call it, and each
    waits for the others. Sharded tensors remain so.
    """
    own = {key: state[key] for key in per_rank}
    for key in by_item:
        digests = {name: _digest(item) for name, item in state[key].items()}
        first, *rest = consensus.all_gather_object(digests)
        shared = {name for name in first if all(other.get(name) == first[name] for other in rest)}
        own[key] = {name: item for name, item in state[key].items() if name not in shared}
    # A pickled tensor of a GPU would be loaded on that same GPU on every other rank.
    sent = mapped(
        without_contents(own),
        lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) and not leaf.is_meta else leaf,
    )
    _, *others = consensus.all_gather_object(sent)
    return state | {"ranks": others if consensus.ranks.first else []}


def _digest(state: Any) -> bytes:
    """Return a checksum of the state of a hook.

    A sharded tensor counts by its kind alone, and another one by all its bytes. One tensor after
    another is read, without a copy of those in the host's memory.
    """
    checksum = hashlib.sha256()

    def describe_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if not is_sharded(leaf):
            words = leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            checksum.update(words.numpy().data)
        return str(leaf.dtype), tuple(leaf.shape)

    checksum.update(pickle.dumps(mapped(state, describe_leaf)))
    return checksum.digest()


def local_state(state: dict[str, Any], ranks: RankLayout, by_item: Sequence[str]) -> dict[str, Any]:
    """Return the state of this rank.

    Where there was no such rank it is that of rank 0, with None for "random". From the entries
    `by_item` a rank has those items alone that differ between ranks.
    """
    others = state.get("ranks", [])
    if ranks.first:
        return state
    if ranks.rank > len(others):
        return state | {"random": None}
    own: dict[str, Any] = others[ranks.rank - 1]
    return state | own | {key: state[key] | own[key] for key in by_item}
