"""A source out of a stream: an iterable dataset, loaded in this process or by torchdata's workers."""

from __future__ import annotations

from typing import Any

import torch

from hookflow.errors import Problem, UserError
from hookflow.events.records import DataInfo
from hookflow.pipeline.registry import missing_package
from hookflow.runner.data.augment import Augment
from hookflow.runner.data.loader import identity, no_loader_warnings, warn_if_oversubscribed
from hookflow.runner.data.loader_parts import LoaderParts
from hookflow.runner.data.seeded_iterable import SeededIterable, SeededIterator
from hookflow.runner.data.stateful import Stateful
from hookflow.runner.data.workers import begin_worker, start_method


class Stream(Stateful):
    """A stateful loader whose dataset counts the examples: nothing else knows how many are in a batch of a stream."""

    def __init__(self, data: SeededIterable, info: DataInfo, parts: LoaderParts) -> None:
        super().__init__(_loader(data, parts), info, parts.device, parts.channels_last, parts.say, Augment(parts))
        self._size = 0
        self._parts = parts
        self._world = data.world
        self.batch_size = self._last_size
        if data.world == parts.world:  # else each rank takes a share of its own, of whatever size
            self.global_batch_size = self._last_global_size

    def _next_batch(self) -> Any:
        self._size, batch = super()._next_batch()
        return batch

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"workers": self._parts.section.workers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned. Raises UserError where it is of another number of workers."""
        now = self._parts.section.workers
        if (then := state.get("workers", now)) != now:
            message = f"a stream is resumed with the workers of its checkpoint: it had {then}, and now has {now}"
            raise UserError(Problem(message, self._parts.place("workers"), f"set workers = {then}"))
        super().load_state_dict(state)

    def _last_size(self, index: int) -> int:
        """Return how many examples this rank has in the batch that was given last, which is the one at `index`."""
        return self._size

    def _last_global_size(self, index: int) -> int:
        """Return how many all ranks have together: each as many."""
        return self._size * self._world


def stream_source(data: Any, parts: LoaderParts, shards_itself: bool) -> Stream:
    """Return an iterable dataset as a source; where it has workers, by torchdata's loader.

    Of several ranks each takes its share of the stream, unless the dataset, which was given `rank` and `world`,
    `shards_itself`. Raises UserError when torchdata is needed and not there. It is also raised when the section has a
    key that a stream cannot have, or when it is not known how long an epoch is.
    """
    section = parts.section
    problems = [
        Problem(f"{key} needs a dataset with __getitem__ and __len__; this one is iterable", parts.place(key))
        for key in ("shuffle", "sampler", "on_device")
        if getattr(section, key)
    ]
    if section.batches is None and not hasattr(data, "__len__"):
        said = f"{type(data).__name__} has no length, so it is not known how many batches make an epoch"
        problems.append(Problem(said, parts.place("batch_size"), "say it: loader = { …, batches = 1000 }"))
    if section.batch_size % parts.world:
        said = f"batches of {section.batch_size} cannot be sharded evenly across {parts.world} ranks"
        near = section.batch_size // parts.world * parts.world or parts.world
        problems.append(Problem(said, parts.place("batch_size"), f"take a multiple of {parts.world}, e.g. {near}"))
    if problems:
        raise UserError(problems)
    shards = 1 if shards_itself else parts.world
    length = section.batches or _batches(len(data) // shards, section.batch_size // parts.world, section.drop_last)
    info = DataInfo(
        name=type(data).__name__,
        examples=len(data) if hasattr(data, "__len__") else 0,
        batches=length,
        batch_size=section.batch_size,
        synthetic=False,
        note=f"fetched by {section.workers} worker{'s' * (section.workers > 1)}" if section.workers else "",
    )
    seeded = SeededIterable(
        data,
        parts.seed,
        batch_size=section.batch_size // parts.world,
        drop_last=section.drop_last,
        collate=parts.collate,
        rank=parts.rank,
        world=parts.world,
        shards_itself=shards_itself,
    )
    return Stream(seeded, info, parts)


def _batches(examples: int, batch_size: int, drop_last: bool) -> int:
    full, rest = divmod(examples, batch_size)
    return full + bool(rest and not drop_last)


class _InProcess:
    """Loads a stream in this process. Its state is that of the pass, which counts what it has given."""

    def __init__(self, dataset: SeededIterable) -> None:
        self.dataset = dataset
        self._pass = iter(dataset)
        self._saved: dict[str, Any] | None = None

    def __iter__(self) -> SeededIterator:
        self._pass, saved, self._saved = iter(self.dataset), self._saved, None
        if saved is not None:
            self._pass.load_state_dict(saved)
        return self._pass

    def state_dict(self) -> dict[str, Any]:
        return self._pass.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._saved = state


def _loader(data: SeededIterable, parts: LoaderParts) -> Any:
    section = parts.section
    if not section.workers:
        return _InProcess(data)
    if missing := missing_package("an iterable dataset with workers", "torchdata", "data", parts.place("workers")):
        raise UserError(missing)
    from torchdata.stateful_dataloader import StatefulDataLoader

    warn_if_oversubscribed(section.workers, parts.say)
    with no_loader_warnings():
        return StatefulDataLoader(
            data,
            batch_size=None,  # the dataset gives batches: a batch is seeded as a whole
            collate_fn=identity,
            num_workers=section.workers,
            pin_memory=parts.device.type == "cuda",
            worker_init_fn=begin_worker,
            multiprocessing_context=start_method(data, type(data.data).__name__, parts),
            generator=torch.Generator(),
        )
