"""Batches: what sources share of a run, their transfer to the device, their sets and sizes.

The number comes from the task, the source or the batch itself, and is never guessed. A batch of
lists has no size that could be read off it: eight images of 3×H×W are not three examples.
"""

from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from math import inf
from operator import index as as_int
from typing import Any, Literal
from zlib import crc32

import torch
from torch import Tensor

from hookflow.errors import Problem, UserError
from hookflow.events.records import DataInfo
from hookflow.hooks.arguments import find_call_problem
from hookflow.hooks.tensors import Weight
from hookflow.runner.device.cuda import record_stream

Sizes = tuple[Callable[[int], int] | None, Callable[[int], int] | None]
"""From a batch's index in the epoch to its examples, of this rank and of all together.

A function is None where unknown.
"""


@dataclass(frozen=True)
class DataContext:
    """The settings of a run that its data of all splits share.

    `say` takes lines for people, and their level.
    """

    seed: int
    device: torch.device
    channels_last: bool
    say: Callable[..., None]
    rank: int = 0
    world: int = 1

    def to_device(self, batch: Any) -> Any:
        """Return the batch with every tensor on the device; on CUDA without waiting for the copy.

        Tensors of four dimensions get the channels_last memory format if asked for. Dicts, lists
        and tuples are traversed. Of other objects those that have `to` move themselves; on the CPU,
        and without it, they stay as they are.
        """
        if not isinstance(batch, Tensor):
            if self.device.type != "cpu" and _is_movable(batch):
                return batch.to(self.device)
            return map_parts(batch, self.to_device)
        if batch.device == self.device and not self.channels_last:
            return batch
        if self.channels_last and batch.ndim == 4:
            layout = torch.channels_last
        else:
            layout = torch.preserve_format
        return batch.to(self.device, non_blocking=self.device.type == "cuda", memory_format=layout)


class OwnStates:
    """The states that the user's parts of a source keep.

    These parts are its dataset, samplers, `collate`, `augment`. A resume in mid-epoch draws the
    order of the epoch again, with the states that the epoch began with.
    """

    def __init__(self, **parts: Any) -> None:
        self.parts = {name: part for name, part in parts.items() if part is not None}
        self._saved = {name: part for name, part in self.parts.items() if has_own_state(part)}
        self._began: dict[str, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._saved)

    @contextmanager
    def drawing(self, *, again: bool) -> Iterator[None]:
        """Have the states that the epoch began with meanwhile, if its order is drawn `again`."""
        now = self._copy_current_states()
        if again:
            self._load(self._began)
        else:
            self._began = now
        yield
        if again:
            self._load(now)

    def _copy_current_states(self) -> dict[str, Any]:
        return {name: deepcopy(part.state_dict()) for name, part in self._saved.items()}

    def _load(self, states: Mapping[str, Any]) -> None:
        for name in states.keys() & self._saved:
            self._saved[name].load_state_dict(deepcopy(states[name]))

    def state_dict(self) -> dict[str, Any]:
        return {"now": self._copy_current_states(), "began": self._began}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._began = state["began"]
        self._load(state["now"])


def has_own_state(part: Any) -> bool:
    """Say whether a part saves what it holds.

    A DistributedSampler of torchdata saves its place, which it need not.
    """
    return all(hasattr(part, name) for name in ("state_dict", "load_state_dict")) and not hasattr(
        part, "num_replicas"
    )


def list_own_parts(source: Any) -> list[Any]:
    """Return what of a source the user has made.

    It is the source itself, or the parts that its batches come from.
    """
    if hasattr(source, "own_states"):
        return [*source.own_states.parts.values()]
    if (type(source).__module__ or "").startswith("hookflow."):
        return []
    return [source]


class SizedSource:
    """A source whose `info` says how many batches an epoch has."""

    info: DataInfo
    _compared = False

    def __len__(self) -> int:
        return self.info["batches"]

    def compare_length(
        self, now: int, unit: Literal["examples", "batches"], say: Callable[..., None]
    ) -> None:
        """Warn, once, where the data have had another length as the run began."""
        if now != self.info[unit] and not self._compared:
            self._compared = True
            keeps = (
                f"{now} {unit} now, and {self.info[unit]} as the run began: an epoch keeps that"
                " length"
            )
            say(f"{self.info['name']} has {keeps}. Let a sampler draw as many from all", "warn")


def batch_size_in(source: Any, epoch: int) -> int:
    """Return the examples of a batch of an epoch on all ranks.

    It is 0 where that is not known, or varies in it.
    """
    by_epoch: Callable[[int], int] | None = getattr(source, "batch_size_in", None)
    if by_epoch is not None:
        return by_epoch(epoch)
    size: int = source.info["batch_size"]
    return size


class OverLoader(SizedSource):
    """A source out of a `loader` of batches, whose dataset and sampler are its own.

    They are None where it has none.
    """

    loader: Any

    @property
    def dataset(self) -> Any:
        return getattr(self.loader, "dataset", None)

    @property
    def sampler(self) -> Any:
        return getattr(self.loader, "sampler", None)


class SizeAttribute:
    """An attribute of a source that says how large its batches are.

    It is set once, when the source is made. The loop takes it at the start, so a value that a hook
    assigns later would change nothing. Raises UserError then.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, source: Any, owner: type | None = None) -> Any:
        if source is None:
            return self
        if self._name not in vars(source):
            raise AttributeError(self._name)  # a source around another one returns what that has
        return vars(source)[self._name]

    def __set__(self, source: Any, value: Any) -> None:
        is_function = value is None or callable(value)
        if vars(source).get(self._name) is not None or not is_function:
            raise UserError(size_cannot_be_set(self._name))
        vars(source)[self._name] = value


def size_cannot_be_set(name: str, owner: str = "a data source") -> Problem:
    """Return that a hook cannot assign the size of batches, and what it can do."""
    message = f"{name} of {owner} cannot be set: the run has begun with it"
    hint = "loader.batch_size in [data.train] sets it; run.replace_batch(batch) gives another batch"
    return Problem(message, hint=hint)


def data_info(data: Any, examples: int, batches: int, batch_size: int, note: str = "") -> DataInfo:
    """Return the description of a user's data, named by their class."""
    return DataInfo(
        name=type(data).__name__,
        examples=examples,
        batches=batches,
        batch_size=batch_size,
        synthetic=False,
        note=note,
    )


def map_parts(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Return a dict, list or (named) tuple with each of its parts changed; anything else as it is.

    A `UserDict`, such as the batches of tokenizers of transformers, becomes a dict.
    """
    if isinstance(batch, dict | UserDict):
        return {key: change(part) for key, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(change, batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map(change, batch))
    return batch


def _iter_parts(batch: Any) -> Iterable[Any]:
    """Return the parts that `map_parts` changes."""
    if isinstance(batch, dict | UserDict):
        return batch.values()
    if isinstance(batch, list | tuple):
        return batch
    return ()


def iter_tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    for part in _iter_parts(batch):
        yield from iter_tensors(part)


def compute_fingerprint(batch: Any) -> int | None:
    """Return a checksum of the tensors of a batch.

    It is None where there are no tensors, or they tell nothing, as zeros do.
    """
    result = 0
    varies = False
    for tensor in iter_tensors(batch):
        if tensor.layout is not torch.strided or not tensor.numel():
            continue
        values = tensor.detach().cpu().contiguous()
        varies |= bool((values != values.flatten()[0]).any())
        result = crc32(values.reshape(-1).view(torch.uint8).numpy().data, result)
    if varies:
        return result
    return None


def set_epoch_of(loader: Any, parts: Iterable[str], epoch: int) -> None:
    """Call `set_epoch` of these parts of a loader, where it has them and they have it."""
    for name in parts:
        set_epoch = getattr(getattr(loader, name, None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)


def call_before_each(batches: Iterator[Any], call: Callable[[], object]) -> Iterator[Any]:
    """Yield batches; call a function before each of them is fetched, and once more at their end."""
    while True:
        call()
        try:
            batch = next(batches)
        except StopIteration:
            return
        yield batch
        del batch  # or it would take up memory while the next one is fetched


def _is_movable(part: Any) -> bool:
    """Return whether an object has `to`, as a `PackedSequence` or a graph of PyG.

    Mappings become dicts instead.
    """
    return callable(getattr(part, "to", None)) and not isinstance(part, Tensor | dict | UserDict)


def _has_objects(batch: Any) -> bool:
    return _is_movable(batch) or any(map(_has_objects, _iter_parts(batch)))


@cache
def _stream_for_copies(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which batches are copied.

    It is one for all epochs, since each keeps the memory it has used.
    """
    return torch.cuda.Stream(device)


def prefetch(batches: Iterable[Any], context: DataContext) -> Iterator[Any]:
    """Yield the batches on the device.

    On CUDA each is copied on a stream of its own, beside the step before. A batch of objects is
    copied on the stream of the step: nothing says which memory they hold.
    """
    if context.device.type != "cuda":
        yield from map(context.to_device, batches)
        return
    side = _stream_for_copies(context.device)
    for batch in batches:
        if _has_objects(batch):
            yield context.to_device(batch)
            continue
        with torch.cuda.stream(side):
            moved = context.to_device(batch)
            copied = side.record_event()
        for tensor in iter_tensors(moved):
            current = torch.cuda.current_stream(tensor.device)
            current.wait_event(copied)  # the CPU does not wait
            # The tensor is recorded, so that its memory is not reused before this stream is done
            # with it.
            record_stream(tensor, current)
        yield moved  # before the next one is fetched, which may take long


def is_for_training(name: str) -> bool:
    """Say whether a source is trained on: "train", or a set such as "train.photos"."""
    return name.partition(".")[0] == "train"


def split_of(name: str) -> Literal["val", "test"]:
    """Return the split that a source of `run.data` belongs to: "val" of "val" and "val.ood"."""
    return name.partition(".")[0]  # type: ignore[return-value]


def sets_of(name: str, data: Iterable[str]) -> tuple[str, ...]:
    """Return the sources of a split, or the one of that name.

    The sources of "val" may be "val.clean" and "val.ood".
    """
    return tuple(source for source in data if name in (source, split_of(source)))


def in_set(name: str, metric: str) -> str:
    """Return the name of a set's metric among those of all sets: "ood/accuracy" of "val.ood"."""
    _, _, own = name.partition(".")
    if own:
        return f"{own}/{metric}"
    return metric


BATCH_SIZE_HINT = (
    "let the source have a method batch_size(index), or the task a method batch_size(batch), that"
    " returns it; or give a dataset with a loader, which knows it"
)

Size = Callable[[int, Any], int | None]
"""From a batch's index in the epoch, and the batch, to its number of examples.

It is None where unknown.
"""


class BatchSizes:
    """The sizes of the batches of one split.

    The source of these numbers is chosen here, before the first iteration.

    In this order: the task, by a method `batch_size(batch)`; the source, by the methods
    `batch_size(index)` for this rank and `global_batch_size(index)` for all of them; the batch
    itself, by `size_of`.

    `local(index, batch)` returns the examples of this rank in the source's latest batch, and
    `total(index, batch)` those of all ranks, which must all call it. If they are unknown, both
    return None, with one warning; over ranks and in gradient accumulation they raise UserError.
    `exact` says that no size will be None.
    """

    def __init__(
        self,
        source: Any,
        task: Any,
        split: str,
        *,
        say: Callable[..., None],
        world: int = 1,
        accumulate: int = 1,
        gather: Callable[[int], list[int]] = lambda mine: [mine],
    ) -> None:
        """Raises UserError when a method is there that cannot be called as it will be."""
        by_task = _method(task, "batch_size", "batch")
        here, everywhere = (
            _method(source, name, "index") for name in ("batch_size", "global_batch_size")
        )
        if world == 1:
            here = here or everywhere
        self.exact = bool(by_task or here or world > 1)
        self._of_batch: Callable[[Any], int | None] = by_task or size_of
        self.local: Size
        if by_task:
            self.local = lambda index, batch: by_task(batch)
        elif here:
            self.local = lambda index, batch: here(index)
        else:
            must = (
                "over several ranks"
                if world > 1
                else "in gradient accumulation"
                if accumulate > 1
                else ""
            )
            self.local = _of_batch(split, must, say)
        self.total = self.local
        # A task may count something else than the source, so the two are not mixed.
        if world > 1 and everywhere and not by_task:
            self.total = lambda index, batch: everywhere(index)
        elif world > 1:
            self._gather = gather
            self.total = self._compare_ranks(split, say)

    def _compare_ranks(self, split: str, say: Callable[..., None]) -> Size:
        """Return `total` for the first batch, which warns where two ranks have the same one."""

        def total(index: int, batch: Any) -> int:
            self.total = self._total
            marks = [mark for mark in self._gather(compute_fingerprint(batch) or 0) if mark]
            if len(set(marks)) < len(marks):
                message = f"two ranks have the same first batch of the {split} data"
                say(
                    f"{message}: does each take its own share, by the rank and world that it is"
                    " given?",
                    "warn",
                )
            return self._total(index, batch)

        return total

    def _total(self, index: int, batch: Any) -> int:
        """Return how many examples all ranks have, each of which calls this."""
        return sum(self._gather(self.local(index, batch) or 0))

    def read_replaced_size(self, batch: Any, before: int) -> int:
        """Return the size of a batch that a hook has put in the place of one of `before`."""
        size = self._of_batch(batch)
        if size is None:
            return before
        return size


def size_of(batch: Any) -> int | None:
    """Return how many examples a batch has, where that cannot be mistaken; else None.

    That is the first dimension of a tensor; or of all tensors in a dict or a tuple, and in dicts
    within these, if they agree in it. In a list the tensors must also differ in their number of
    dimensions: `[images (N, C, H, W), classes (N,)]` is a batch of N, and a list of images may be
    of any size. The size of anything else is its length.
    """
    if isinstance(batch, Tensor):
        return batch.size(0) if batch.ndim else None
    listed = isinstance(batch, list)
    if listed or isinstance(batch, tuple):
        parts = [*batch]
    elif isinstance(batch, Mapping):
        parts = [*batch.values()]
    else:
        return len(batch) if hasattr(batch, "__len__") else None
    sizes = set()
    dimensions = set()
    for part in parts:  # which grows meanwhile by what is in dicts
        if isinstance(part, Tensor):
            if part.ndim:
                sizes.add(part.size(0))
                dimensions.add(part.ndim)
        elif not listed and isinstance(part, Mapping):
            parts += part.values()
    if len(sizes) != 1:
        return None
    if listed and len(dimensions) == 1:  # one tensor may be one example, all alike
        return None
    return sizes.pop()


def _of_batch(split: str, must: str, say: Callable[..., None]) -> Size:
    """Return `size_of`, which raises UserError where it `must` know, and else warns once."""
    warned = False

    def size(index: int, batch: Any) -> int | None:
        nonlocal warned
        size = size_of(batch)
        if size is None and not warned:
            unknown = f"nothing says how many examples a batch of the {split} data has"
            if must:
                raise UserError(
                    Problem(f"{unknown}; {must} it must be known", hint=BATCH_SIZE_HINT)
                )
            warned = True
            without = "each batch counts alike in the means"
            if split == "train":
                without = "there is no samples/s"
            say(f"{unknown}: {without}; {BATCH_SIZE_HINT}", "warn")
        return size

    return size


def weight_of_batch(task: Any) -> Callable[[Any], Weight] | None:
    """Return what tells the weight of a batch: the task's `batch_weight(batch)`.

    It is None where the task has none. A weight is a number, 0 or more. One that is computed on
    another device than the CPU stays there as a tensor. Raises UserError when the method cannot be
    called as it will be.
    """
    method = _checked_method(task, "batch_weight", "batch")
    if method is None:
        return None
    kind = type(task).__name__

    def weigh(batch: Any) -> Weight:
        weight = method(batch)
        if isinstance(weight, Tensor) and weight.numel() == 1 and not weight.is_complex():
            if weight.device.type != "cpu":
                return weight.detach().reshape(())
            weight = weight.item()
        if isinstance(weight, int | float) and 0 <= weight < inf:
            return weight
        message = f"{kind}.batch_weight has returned {weight!r:.60}"
        raise UserError(
            Problem(
                message,
                hint="return one number, 0 or more, e.g. how many targets count in the loss",
            )
        )

    return weigh


def tokens_of_batch(task: Any) -> Callable[[Any], int] | None:
    """Return what tells the tokens of a batch: the task's `batch_tokens(batch)`.

    It is None where the task has none. The number is an integer of the host: a tensor of a device
    would have to be waited for. Raises UserError when the method cannot be called as it will be,
    and when it returns something else.
    """
    method = _checked_method(task, "batch_tokens", "batch")
    if method is None:
        return None
    kind = type(task).__name__

    def count(batch: Any) -> int:
        tokens = method(batch)
        if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0:
            return tokens
        message = f"{kind}.batch_tokens has returned {tokens!r:.60}"
        raise UserError(Problem(message, hint="return an integer, as batch.numel() does"))

    return count


def _checked_method(owner: Any, name: str, takes: str) -> Callable[[Any], Any] | None:
    """Return a method of one argument; None where there is none.

    Raises UserError where it takes something else.
    """
    method: Callable[[Any], Any] | None = getattr(owner, name, None)
    if not callable(method):
        return None
    if find_call_problem(method, None):
        message = (
            f"{type(owner).__name__}.{name} must take the {takes}, and nothing else:"
            f" {name}({takes})"
        )
        raise UserError(Problem(message))
    return method


def _method(owner: Any, name: str, takes: str) -> Callable[[Any], int] | None:
    """Return a method as one that returns an int, if there is such a method.

    A number of that name is no method.
    """
    method = _checked_method(owner, name, takes)
    if method is None:
        return None
    if (type(owner).__module__ or "").startswith("hookflow."):
        return lambda provided: as_int(method(provided))  # it cannot be replaced

    def size(provided: Any) -> int:
        """Call the method that the user's object has now.

        It may have been assigned since, or be gone.
        """
        current = getattr(owner, name)
        if not callable(current):
            raise UserError(size_cannot_be_set(name, type(owner).__name__))
        return as_int(current(provided))

    return size
