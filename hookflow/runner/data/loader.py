"""Sources from a map-style dataset: fetched here or by worker processes, or kept on the device."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from hookflow.errors import Problem, UserError, first_few
from hookflow.runner.data.batches import (
    DataContext,
    OwnStates,
    SizeAttribute,
    SizedSource,
    iter_tensors,
    map_parts,
    prefetch,
)
from hookflow.runner.data.loader_parts import (
    BatchSampler,
    ChangingBatchSampler,
    GivenBatches,
    LoaderParts,
)
from hookflow.runner.data.own_generators import warn_of_copies
from hookflow.runner.data.workers import (
    REMEDY_BY_SIGNAL,
    PickledWithImports,
    SharedMemoryError,
    allow_kill,
    end_workers,
    is_out_of_shared_memory,
    loader_options,
    no_loader_warnings,
)
from hookflow.runner.device.random_state import (
    GeneratorFork,
    RNGStream,
    batch_seeds,
    derive_seed,
    seed_generators,
    seed_temporarily,
)

Key = tuple[Sequence[int], list[int]]
"""Key of a batch: the seeds of the generators, and the indices of its examples.

There are no seeds where it draws nothing. A worker gets it by a queue, where a tensor would open
shared memory.
"""


class _ByIndex(SizedSource):
    """A source out of a map-style dataset, whose `parts` determine the examples of each batch."""

    batch_size, global_batch_size = SizeAttribute(), SizeAttribute()
    can_refetch = True
    """Whether `epoch` yields the same batches again, from any of them on."""

    def __init__(self, data: Any, parts: LoaderParts) -> None:
        self.dataset = data
        self._parts = parts
        self._sampler = sampler = parts.batches_of(data)
        self.sampler = sampler.drawn.sampler if sampler.drawn else sampler
        self.batch_size = sampler.batch_size
        self.global_batch_size = sampler.global_batch_size
        if isinstance(sampler, GivenBatches):
            self.global_batch_sizes = sampler.global_batch_sizes
        if isinstance(sampler, ChangingBatchSampler):
            self.batches_by_epoch = sampler.batches_by_epoch
            self.batch_size_in = sampler.batch_size_in
            self.enter_epoch = self._describe_epoch
        samplers = {}
        if sampler.drawn:
            samplers = sampler.drawn.samplers
        self.own_states = own = OwnStates(
            dataset=data, collate=parts.collate, augment=parts.augment, **samplers
        )
        if sampler.drawn:
            sampler.drawn.own_states = own
        if own:  # without one, a source has no state
            self.state_dict = own.state_dict
            self.load_state_dict = own.load_state_dict

    def _describe_epoch(self, epoch: int) -> None:
        """Let `len` and `info` be those of an epoch."""
        self.info = {
            **self.info,
            "batches": self._sampler.batches_in(epoch),
            "batch_size": self.batch_size_in(epoch),
        }

    def indices(self, epoch: int) -> list[Tensor]:
        """Return the indices in the dataset of a rank's examples of each batch: int64 (batch,)."""
        return [*self._sampler.batches(epoch)]

    def batch_of(self, indices: list[int]) -> Any:
        """Return a batch of these examples on the device, augmented as an epoch's first one."""
        return self._parts.augment_batch(
            self._parts.context.to_device(self._collate_indices(indices)), 0, 0
        )

    def _collate_indices(self, indices: list[int]) -> Any:
        return collate_examples(
            fetch_examples(self.dataset, indices), indices, self._parts.collate, self._parts.split
        )


class Loader(_ByIndex):
    """A source out of a map-style dataset.

    Each batch is a pure function of the run's seed, the epoch and its index. That holds for the
    random numbers of the dataset, too: the fetching process seeds the generators of Python, NumPy
    and torch for it alone. So neither the number of workers nor a resume changes a bit.
    """

    def __init__(self, data: Any, parts: LoaderParts) -> None:
        super().__init__(data, parts)
        self.workers = workers = parts.section.workers
        self._draws = may_draw(data) or parts.collate is not default_collate
        self._keys = _BatchKeys(self._sampler, parts.context, self._draws)
        self._batches: Any = None
        self._fetches = fetches = _FetchBatch(data, parts)
        self.loader: DataLoader[Any] | None = None
        if parts.worker_init_fn is None:
            warn_of_copies(data, workers, parts.context.say)
        # Without workers and pinned memory, PyTorch's loader only takes 17 µs a batch for a call.
        if workers or parts.context.device.type == "cuda":
            options = loader_options(fetches, type(data).__name__, parts)
            with no_loader_warnings():
                self.loader = DataLoader(
                    fetches, sampler=self._keys, persistent_workers=workers > 0, **options
                )
        self.info = self._sampler.describe(type(data).__name__, parts.worker_note, synthetic=False)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        if self._sampler.drawn is None:
            self.compare_length(len(self.dataset), "examples", self._parts.context.say)
        self._sampler.begin(epoch, start)
        self._keys.epoch = epoch
        self._keys.start = start
        if self.loader is None:
            batches = (
                self._fetches.here if self._draws else partial(map, self._fetches.__getitem__)
            )(self._keys)
        else:
            with no_loader_warnings():
                self._batches = iter(self.loader)
            allow_kill(self._batches)
            if self._draws:
                batches = fetch_forked(self._batches, len(self._keys))
            else:
                batches = self._batches
        yield from self._parts.augmented(prefetch(batches, self._parts.context), epoch, start)

    def close(self) -> None:
        if self.loader is not None and self.workers and self._batches is not None:
            end_workers(self._batches, self.info["name"], self._parts.context.say)
            # Without references, the pipes of the iterator close at once, not at a garbage
            # collection.
            self._batches = self.loader._iterator = None


class _BatchKeys:
    """The keys of the batches of an epoch from an index on, passed to the fetching processes."""

    def __init__(
        self, sampler: BatchSampler | GivenBatches, context: DataContext, seeded: bool
    ) -> None:
        self.sampler = sampler
        self._context = context
        self._seeded = seeded
        self.epoch = self.start = 0

    def __len__(self) -> int:
        return self.sampler.batches_in(self.epoch) - self.start

    def __iter__(self) -> Iterator[Key]:
        """Yield the keys.

        The order is drawn with the first one: PyTorch begins a first epoch with workers twice.
        """
        seeds: Iterator[Sequence[int]] = repeat(())
        if self._seeded:
            seeds = batch_seeds(
                self._context.seed,
                RNGStream.EXAMPLES,
                self.epoch,
                self._context.rank,
                start=self.start,
            )
        batches = self.sampler.batches(self.epoch, self.start)
        for seed, indices in zip(seeds, batches, strict=False):
            yield seed, indices.tolist()


class _FetchBatch(PickledWithImports, Dataset[Any]):
    """The dataset as torch's DataLoader sees it: an item is a whole batch."""

    def __init__(self, data: Any, parts: LoaderParts) -> None:
        self.data = data
        self._collate = parts.collate
        self._split = parts.split

    def __getitem__(self, key: Key) -> Any:
        seeds, indices = key
        if seeds:
            seed_generators(*seeds)
        return self._fetch(indices)

    def _fetch(self, indices: list[int]) -> Any:
        return collate_examples(
            fetch_examples(self.data, indices), indices, self._collate, self._split
        )

    def here(self, keys: Iterable[Key]) -> Iterator[Any]:
        """Fetch batches in the process that trains.

        Its random numbers are the same as if workers fetched them.
        """
        fork = GeneratorFork()
        for seeds, indices in keys:
            with fork.drawing(seeds):
                batch = self._fetch(indices)
            yield batch


class CollateError(ValueError):
    """Examples make no batch."""


def collate_examples(
    examples: list[Any], indices: Sequence[int], collate: Callable[[list[Any]], Any], split: str
) -> Any:
    """Return a batch of these examples.

    Raises CollateError where they are at fault, and not a function of the user; SharedMemoryError
    where that is full.
    """
    try:
        return collate(examples)
    except Exception as error:
        if is_out_of_shared_memory(error):
            raise SharedMemoryError(
                f"no room for a batch of [data.{split}]: {error}; {REMEDY_BY_SIGNAL['SIGBUS']}"
            ) from error
        own = collate is not default_collate
        kinds = [*map(_describe_shapes, examples)]
        if len({*kinds}) == 1 and not own:
            kinds = [*map(_types, examples)]
        text = f"example {indices[0]} has {kinds[0]}: it makes no batch"
        unlike = next((k for k, kind in enumerate(kinds[: len(indices)]) if kind != kinds[0]), 0)
        if unlike:
            other = f"example {indices[unlike]} has {kinds[unlike]}"
            text = f"{other}, and example {indices[0]} {kinds[0]}: they make no batch"
        elif own:
            error.add_note(
                f"raised by collate of [data.{split}], for the examples"
                f" {first_few([*map(str, indices)])}"
            )
            raise
        raise CollateError(f"[data.{split}]: {text}") from error


def _describe_shapes(example: Any) -> str:
    """Return the shapes of the tensors and arrays of an example in words."""
    shapes = [
        f"shape {tuple(leaf.shape)}" for leaf in tree_leaves(example) if hasattr(leaf, "shape")
    ]
    return ", ".join(shapes) or "no tensor"


def _types(example: Any) -> str:
    return f"the types {', '.join(type(leaf).__name__ for leaf in tree_leaves(example))}"


def fetch_examples(data: Any, indices: list[int]) -> list[Any]:
    """Return the examples, all at once where the dataset has `__getitems__`."""
    fetch: Callable[[list[int]], list[Any]] | None = getattr(data, "__getitems__", None)
    if fetch:
        return fetch(indices)
    return [data[index] for index in indices]


def may_draw(data: Any) -> bool:
    """Say whether a dataset may draw random numbers.

    PyTorch's own of tensors, and a subset of one, draw none.
    """
    if type(data) is Subset:
        return may_draw(data.dataset)
    return type(data) is not TensorDataset


def fetch_forked(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """Yield so many batches.

    The training's random numbers are the same whether they are fetched here or by workers.
    """
    fork = GeneratorFork()
    for _ in range(count):  # a resume at the end of an epoch does not go beyond it either
        with fork.drawing():
            batch = next(batches)
        yield batch


class OnDevice(_ByIndex):
    """A source out of a map-style dataset that is kept as one batch of all its examples.

    It is collated once. Random draws of the dataset are made once; what should differ from epoch to
    epoch belongs in `augment`. Raises UserError where what `collate` makes is not tensors with a
    row for each example.
    """

    def __init__(self, data: Any, parts: LoaderParts) -> None:
        super().__init__(data, parts)
        context = parts.context
        self.loader = None
        with seed_temporarily(derive_seed(context.seed, RNGStream.EXAMPLES)):
            every = [*range(len(data))]
            full = collate_examples(fetch_examples(data, every), every, parts.collate, parts.split)
        _check_rows(full, len(data), parts)
        self._full = context.to_device(full)
        note = (
            f"{sum(tensor.nbytes for tensor in iter_tensors(self._full)) / 2**20:.1f} MiB on"
            f" {context.device}"
        )
        self.info = self._sampler.describe(type(data).__name__, note, synthetic=False)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        self._sampler.begin(epoch, start)
        shards = self._sampler.batches(epoch, start, self._parts.context.device)
        yield from self._parts.augmented(
            (_rows(self._full, shard) for shard in shards), epoch, start
        )

    def _collate_indices(self, indices: list[int]) -> Any:
        return _rows(self._full, torch.tensor(indices, device=self._parts.context.device))


def _rows(batch: Any, rows: Tensor) -> Any:
    if isinstance(batch, Tensor):
        return batch[rows]
    return map_parts(batch, lambda part: _rows(part, rows))


def _check_rows(batch: Any, examples: int, parts: LoaderParts) -> None:
    """Raise UserError for a batch of which some part cannot be indexed by example."""
    if isinstance(batch, dict | list | tuple):
        for part in batch.values() if isinstance(batch, dict) else batch:
            _check_rows(part, examples, parts)
    elif not isinstance(batch, Tensor) or batch.ndim == 0 or len(batch) != examples:
        if isinstance(batch, Tensor):
            made = f"a tensor of shape {tuple(batch.shape)}"
        else:
            made = f"a {type(batch).__name__}"
        message = (
            f"on_device needs tensors with a row for each of the {examples} examples, and collate"
            f" makes {made}"
        )
        raise UserError(Problem(message, parts.place("on_device")))
