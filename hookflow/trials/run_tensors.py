"""The tensors of a run by slot, with marks and fingerprints.

It has the dicts and calls that hooks change, too.
"""

import random
import threading
import zlib
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping, Set
from contextlib import suppress
from enum import Enum
from functools import cached_property, partial
from hashlib import blake2b
from itertools import islice
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hookflow.graph.slots import Verb
from hookflow.runner.builder.components import RunComponents
from hookflow.runner.data.loader import Loader, OnDevice
from hookflow.runner.device.random_state import GENERATOR_TYPES

Note = Callable[[Verb, str | None], None]
"""Takes that a key was read or written; None stands for all keys."""


class WatchedDict(dict[str, Any]):
    """A dict that notes reads and writes, and writes to `original` too, if it is given."""

    def __init__(
        self,
        content: Mapping[str, Any],
        note: Note,
        original: MutableMapping[str, Any] | None = None,
    ) -> None:
        super().__init__(content)
        self._note = note
        self._original = original

    def take_over(self, content: Mapping[str, Any]) -> None:
        """Take other contents, without a notification."""
        super().clear()
        super().update(content)

    def copy_unwatched(self) -> dict[str, Any]:
        """Return a copy, without a notification."""
        return {name: dict.__getitem__(self, name) for name in dict.__iter__(self)}

    def copy(self) -> dict[str, Any]:
        self._note("reads", None)
        return self.copy_unwatched()

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __reduce__(self) -> tuple[Any, ...]:
        """Be copied and pickled as a plain dict."""
        return dict, (self.copy(),)

    def __getitem__(self, name: str) -> Any:
        self._note("reads", name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self._note("reads", str(name))
        return super().__contains__(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self._note("writes", name)
        super().__setitem__(name, value)
        if self._original is not None:
            self._original[name] = value

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._note("writes", name)
        if self._original is not None:
            del self._original[name]

    def __ior__(self, other: Any) -> Self:  # type: ignore[override]
        self.update(other)
        return self

    def pop(self, name: str, *default: Any) -> Any:
        if default and name not in self:
            return default[0]
        value = self[name]
        del self[name]
        return value

    def popitem(self) -> tuple[str, Any]:
        for name in reversed(self):
            return name, self.pop(name)
        raise KeyError("popitem(): dictionary is empty")

    get = Mapping.get  # type: ignore[assignment]  # by the methods above, and so are the next ones
    update = MutableMapping.update
    setdefault = MutableMapping.setdefault
    clear = MutableMapping.clear
    __hash__ = None  # a dict has none either


def _make_reading_method(name: str) -> Any:
    method = getattr(dict, name)

    def read(self: WatchedDict, *args: Any) -> Any:
        self._note("reads", None)
        return method(self, *args)

    return read


for _name in (
    "__iter__",
    "__reversed__",
    "keys",
    "values",
    "items",
    "__eq__",
    "__ne__",
    "__repr__",
):
    setattr(WatchedDict, _name, _make_reading_method(_name))

WRITING_METHODS = {
    "replace_batch": "batch",
    "save_checkpoint": "checkpoint",
    "stop": "control",
    "fail": "control",
    "stop_epoch": "control",
    "skip_step": "control",
    "skip_batch": "control",
    "accumulate": "control",
}
"""Methods of the run that write a slot, and the slot."""


class WatchedTask:
    """A proxy of the task.

    Its attributes are slots, `task.<name>`; accesses within its methods are not recorded.
    """

    def __init__(self, task: Any, observer: Any) -> None:
        vars(self).update(_task=task, _observer=observer)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # `isinstance` holds as for the task
        return type(self._task)

    def __getattr__(self, name: str) -> Any:
        if name in getattr(self._task, "__dict__", {}):
            self._observer.note("reads", f"task.{name}")
        return getattr(self._task, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._observer.note("writes", f"task.{name}")
        setattr(self._task, name, value)


class WatchedRun:
    """A proxy of the run, which notes each access with an `Observer`.

    Private attributes that hooks set on it are set on the run, and are slots `run.<name>`; others
    it refuses.
    """

    def __init__(self, run: Any, observer: Any) -> None:
        vars(self).update(_run=run, _observer=observer, _added=set())

    def __getattr__(self, name: str) -> Any:
        if name in self._added:
            self._observer.note("reads", f"run.{name}")
        value = getattr(self._run, name)
        if name not in WRITING_METHODS:
            return value

        def call(*args: Any, **named: Any) -> Any:
            self._observer.note("writes", WRITING_METHODS[name])
            return value(*args, **named)

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        self._observer.note("writes", f"run.{name}")
        self._added.add(name)
        setattr(self._run, name, value)

    @property
    def metrics(self) -> Any:
        return self._observer.watch("metrics", self._run.metrics)

    @property
    def hooks(self) -> Any:
        return self._observer.watch("hook", self._run.hooks)

    @cached_property
    def task(self) -> Any:
        return WatchedTask(self._run.task, self._observer)

    @property
    def batch_size(self) -> int:
        self._observer.note("reads", "batch")
        return self._run.batch_size  # type: ignore[no-any-return]

    @property
    def batch_weight(self) -> Any:
        self._observer.note("reads", "batch")
        return self._run.batch_weight

    def metric(self, name: str) -> float:
        self._observer.note("reads", f"metrics.{name}")
        return self._run.metric(name)  # type: ignore[no-any-return]

    def log(self, name: str, value: Any) -> None:
        self._observer.note("writes", f"scalars.{name}")
        self._run.log(name, value)


Path = tuple[str, ...]
"""Where a value is: an attribute, a key or a place in a list, step by step."""

Leaves = dict[Path, bytes]
"""The fingerprint of each value by its path."""

MAX_ITEMS = 1000
"""Items of a list, or of a dict, whose own attributes are looked after."""

_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
_SYNCHRONIZATION_TYPES = (
    threading.Thread,
    type(threading.Lock()),
    type(threading.RLock()),
    threading.Condition,
    threading.Event,
)
_OPAQUE_MODULES = (
    "hookflow.runner.",
    "torch.",
    "builtins",
    "types",
    "functools",
    "inspect",
    "_thread",
)
"""Modules of objects that have no state of the user's.

The objects that FSDP keeps beside a network must stay as they are.
"""
_INSPECTED_MODULES = ("hookflow.runner.data.", "torch.utils.data.", "torch.amp.", "torch.cuda.amp.")
"""Those among the opaque modules whose objects do have state of the user's."""

_STATELESS_SOURCES = (Loader, OnDevice)
"""Sources whose batches depend on nothing that came before."""

SCALAR_TYPES = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.dtype,
    torch.device,
    torch.Size,
    Enum,
    PurePath,
)


class TensorFingerprints:
    """Looks into objects as far as they are the user's.

    The `known` objects are looked into elsewhere, and not here.
    """

    def __init__(self, known: Iterable[Any] = ()) -> None:
        self._seen = {id(thing): thing for thing in known}

    def of(self, thing: Any, *path: str) -> Iterator[tuple[Path, bytes]]:
        """Yield the path and the fingerprint of each value that a thing holds, itself included."""
        fingerprint = plain(thing)
        if fingerprint is not None:
            yield path, fingerprint
            return
        if id(thing) in self._seen:
            return
        self._seen[id(thing)] = thing  # which also keeps its id from being used again
        items = iter_held(thing)
        if isinstance(thing, COLLECTION_TYPES):
            items = islice(items, MAX_ITEMS)
        for name, item in items:
            yield from self.of(item, *path, name)


def plain(thing: Any) -> bytes | None:
    """Return the fingerprint of what is one value; None of what holds others."""
    match thing:
        case Tensor():
            return of_tensor(thing)
        case np.ndarray() | np.generic():
            return of_bytes(str(thing.dtype).encode(), str(thing.shape).encode(), thing.tobytes())
        case torch.Generator():
            return of_tensor(thing.get_state())
        case random.Random():
            return _of_text(thing.getstate())
        case np.random.RandomState():
            return _of_text(thing.get_state(legacy=False))
        case np.random.Generator():
            return _of_text(thing.bit_generator.state)
        case _ if isinstance(thing, SCALAR_TYPES):
            return _of_text(thing)
        case set() | frozenset() if all(isinstance(item, SCALAR_TYPES) for item in thing):
            return _of_text(sorted(map(repr, thing)))
        case list() | tuple() | deque() if all(isinstance(item, SCALAR_TYPES) for item in thing):
            return _of_text([*thing])
    return None


def of_tensor(tensor: Tensor) -> bytes:
    """Return the fingerprint of a tensor: its kind, its shape and its bits."""
    kind = f"{tensor.dtype} {tuple(tensor.shape)}".encode()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    bits = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return of_bytes(kind, bits.numpy().tobytes())


def of_bytes(*parts: bytes) -> bytes:
    return blake2b(b"".join(parts), digest_size=12).digest()


def _of_text(value: Any) -> bytes:
    return of_bytes(repr(value).encode("utf-8", "replace"))


COLLECTION_TYPES = (Mapping, list, tuple, set, frozenset, deque)


def iter_held(thing: Any, *, newest: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield what a thing holds, each with its name in it.

    With `newest` the last item of a list comes first.
    """
    match thing:
        case Mapping():
            yield from _items_of_mapping(thing)
        case list() | deque() if newest:
            for k, item in enumerate(reversed(thing)):
                yield str(k), item
        case list() | tuple() | deque():
            for k, item in enumerate(thing):
                yield str(k), item
        case nn.Module():
            yield from _items_of_module(thing)
        case torch.optim.Optimizer() | LRScheduler():
            yield from thing.state_dict().items()
        case _ if _is_object(thing):
            yield from vars(thing).items()


def _items_of_mapping(mapping: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    items = mapping.items()
    if isinstance(mapping, dict):
        items = dict.items(mapping)  # a watched one does not notice it
    for k, (name, value) in enumerate(items):
        if isinstance(name, SCALAR_TYPES):
            yield str(name), value
        else:
            yield f"#{k}", value


def _items_of_module(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the parameters, buffers and modules of a module.

    The attributes of its class's own are yielded, too.
    """
    yield from module._parameters.items()
    yield from module._buffers.items()
    yield from module._modules.items()
    for name, value in vars(module).items():
        if name not in _MODULE_ATTRIBUTES:
            yield name, value


MAX_COMPARED_BYTES = 8 * 2**20
"""The largest sum of tensors whose contents are compared.

They are of the network, its gradients and its optimizers.
"""

MAX_DEPTH = 6
"""How deep attributes are looked into."""

MAX_VALUES = 10_000
"""At how many values is looked in all."""

OPAQUE_TYPES = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)


def mark_of_tensor(tensor: Tensor, *, content: bool = False) -> Hashable:
    """Return the mark of a tensor.

    It has a checksum of its `content` if requested and if it is in the host's memory.
    """
    if tensor.is_inference():  # which counts no versions
        version = -1
    else:
        version = tensor._version
    checksum = 0
    if (
        content
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.numel()
    ):
        flat = tensor.detach().contiguous().view(-1)
        checksum = zlib.crc32(flat.view(torch.uint8).numpy().data)
    return id(tensor), version, address(tensor), checksum


def address(tensor: Tensor) -> int:
    """Return where the memory begins that a tensor shares with its views.

    It is 0 where it has none of its own.
    """
    with suppress(RuntimeError, NotImplementedError):
        return tensor.untyped_storage().data_ptr()
    return 0


def mark(
    value: Any,
    opaque: Set[int] = frozenset(),
    depth: int = MAX_DEPTH,
    left: Iterator[int] | None = None,
) -> Hashable:
    """Return the mark of any value.

    It looks into no more objects than are `left`, and no deeper than `depth`. Objects beyond that
    are compared by identity, and so are those whose ids and addresses are in `opaque`.
    """
    if left is None:
        left = iter(range(MAX_VALUES))
    if isinstance(value, SCALAR_TYPES):
        return type(value), repr(value)
    if (
        id(value) in opaque
        or depth == 0
        or isinstance(value, OPAQUE_TYPES)
        or next(left, None) is None
    ):
        return id(value)
    match value:
        case Tensor() if address(value) in opaque:
            return id(value)
        case Tensor():
            return mark_of_tensor(value)
        case np.ndarray() if value.dtype.hasobject or value.nbytes > MAX_COMPARED_BYTES:
            return id(value), value.shape
        case _ if isinstance(value, (np.ndarray, np.generic, *GENERATOR_TYPES)):
            return id(value), plain(value)
    items: Iterable[tuple[Any, Any]]
    if isinstance(value, set | frozenset):
        items = enumerate(value)
    else:
        items = iter_held(value, newest=True)
    marks = tuple(
        (name, mark(item, opaque, depth - 1, left)) for name, item in islice(items, MAX_VALUES)
    )
    if isinstance(value, COLLECTION_TYPES):
        return type(value), len(value), marks
    return id(value), getattr(value, "training", None), marks


Marks = dict[str, dict[Hashable, Hashable]]
"""By slot, the mark of each thing in it."""

LEARNING_RATE = "lr"
LEARNING_RATE_KEYS = (LEARNING_RATE, "initial_lr")
"""The settings of a parameter group that are the slot `lr`."""


def format_slot(kind: str, name: str) -> str:
    """Return the slot of a part of the run.

    For the only part, which has no name, it is the whole.
    """
    if name in ("model", "optimizer"):
        return kind
    return f"{kind}.{name}"


def iter_trained_values(
    models: Mapping[str, nn.Module], optimizers: Mapping[str, Optimizer]
) -> Iterator[tuple[str, str, Path, Any]]:
    """Yield the values that a run trains.

    Each has the kind of slot, the name of the model or the optimizer, path, value. The kinds are
    "model", "grads", "optimizer" and "lr". Paths are unique within a kind.
    """
    names: dict[int, str] = {}
    for owner, model in models.items():
        prefix = _prefix(owner, models)
        for name, parameter in model.named_parameters():
            full_name = prefix + name
            names[id(parameter)] = full_name
            yield "model", owner, (full_name,), parameter
            if parameter.grad is not None:
                yield "grads", owner, (full_name,), parameter.grad
        for name, buffer in model.named_buffers():
            yield "model", owner, (prefix + name,), buffer
    for owner, optimizer in optimizers.items():
        prefix = _prefix(owner, optimizers)
        for kind, path, value in _values_of_optimizer(optimizer, prefix, names):
            yield kind, owner, path, value


def _values_of_optimizer(
    optimizer: Optimizer, prefix: str, names: Mapping[int, str]
) -> Iterator[tuple[str, Path, Any]]:
    """Yield an optimizer's settings and states: kind of slot, path, value.

    They are what its groups hold, and what it keeps for each parameter.

    `names` are those of the models' parameters by their id.
    """
    for k, group in enumerate(optimizer.param_groups):
        for key, value in dict.items(group):
            kind = "optimizer"
            if key in LEARNING_RATE_KEYS:
                kind = LEARNING_RATE
            yield kind, (f"{prefix}group {k}", key), value
    for k, (tensor, state) in enumerate(optimizer.state.items()):
        if isinstance(state, Mapping):
            name = names.get(id(tensor), f"{prefix}parameter {k}")
            for key, value in state.items():
                yield "optimizer", (name, key), value


def _prefix(owner: str, owners: Mapping[str, object]) -> str:
    """Return what the names in a model or an optimizer begin with.

    It is its own name, if there are several.
    """
    if len(owners) > 1:
        return f"{owner}."
    return ""


class RunTensors:
    """The tensors that a run trains, by slot."""

    def __init__(self, parts: RunComponents) -> None:
        self._models = parts.models
        self._optimizers = parts.optimizers
        self._model_of: dict[int, str] = {}
        """The name of the model of each parameter, by the parameter's id."""
        for name, model in parts.models.items():
            for parameter in model.parameters():
                self._model_of[id(parameter)] = name
        num_bytes = sum(tensor.nbytes for _, tensor in self)
        self.by_content = 4 * num_bytes <= MAX_COMPARED_BYTES
        """Whether contents are compared.

        With gradients and the optimizers' state they may be four times as much.
        """

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each tensor with its slot."""
        for kind, owner, _, value in iter_trained_values(self._models, self._optimizers):
            if isinstance(value, Tensor):
                yield format_slot(kind, owner), value

    def find_grads_slot(self, parameter: Tensor) -> str:
        return format_slot("grads", self._model_of.get(id(parameter), "model"))

    def marks(self) -> Marks:
        """Return the marks of all tensors, and of the settings of the optimizers."""
        result: Marks = {}
        for name in self._models:
            result[format_slot("model", name)] = {}
            result[format_slot("grads", name)] = {}
        for name in self._optimizers:
            result[format_slot("optimizer", name)] = {}
            result[format_slot(LEARNING_RATE, name)] = {}
        for kind, owner, path, value in iter_trained_values(self._models, self._optimizers):
            key: Hashable = path
            if isinstance(value, Tensor):
                value_mark = mark_of_tensor(value, content=self.by_content)
                if kind == "optimizer":
                    key = id(value)  # a parameter may be replaced
            elif path[-1] == "params":
                value_mark = tuple(id(parameter) for parameter in value)
            else:
                value_mark = mark(value)
            result[format_slot(kind, owner)][key] = value_mark
        return result

    def watch_groups(self, note: Callable[[Verb, str], None]) -> None:
        """Let every parameter group note the slots that are read and written in it."""
        for name, optimizer in self._optimizers.items():
            groups = optimizer.param_groups
            for k, group in enumerate(groups):
                if not isinstance(group, WatchedDict):
                    groups[k] = WatchedDict(group, partial(_record_key, note, name))

    def remove_group_watches(self) -> None:
        """Leave the parameter groups as they were: plain dicts."""
        for optimizer in self._optimizers.values():
            groups = optimizer.param_groups
            for k, group in enumerate(groups):
                if isinstance(group, WatchedDict):
                    groups[k] = group.copy_unwatched()


def _record_key(
    note: Callable[[Verb, str], None], optimizer: str, verb: Verb, key: str | None
) -> None:
    """Note the slots of a key of a parameter group; None stands for all keys."""
    if key in LEARNING_RATE_KEYS or key is None:
        note(verb, format_slot(LEARNING_RATE, optimizer))
    if key not in LEARNING_RATE_KEYS and (key != "params" or verb == "writes"):
        note(verb, format_slot("optimizer", optimizer))


def _is_object(thing: Any) -> bool:
    """Say whether something is an object of the user's or their libraries', with attributes."""
    if not hasattr(thing, "__dict__") or isinstance(thing, _STATELESS_SOURCES):
        return False
    if callable(getattr(thing, "__get__", None)):  # a descriptor
        return False
    module = type(thing).__module__ or ""
    if module.startswith(_OPAQUE_MODULES) and not module.startswith(_INSPECTED_MODULES):
        return False
    return not any(isinstance(value, _SYNCHRONIZATION_TYPES) for value in vars(thing).values())
