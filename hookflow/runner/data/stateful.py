"""A source out of a stream: an iterable dataset, whose loader keeps its place in a state of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch

from hookflow.errors import Problem, UserError
from hookflow.events.records import DataInfo
from hookflow.runner.data.augment import Augment
from hookflow.runner.data.loader import ignore_signals, no_loader_warnings, warn_if_oversubscribed
from hookflow.runner.data.loader_parts import LoaderParts
from hookflow.runner.data.seeded_iterable import SeededIterable, examples_to_reload
from hookflow.runner.data.to_device import to_device
from hookflow.runner.numerics.random_state import random_state, set_random_state


class Stateful:
    """A source out of a loader with `state_dict` and `load_state_dict`, as `StatefulDataLoader` of torchdata is one.

    An epoch is so many batches. The stream goes on from epoch to epoch, and begins anew when it is through; it also
    does when an epoch is asked for that does not follow, as each validation asks for epoch 0. Then the dataset's
    `set_epoch` is told how many times it has been begun.
    """

    def __init__(
        self,
        loader: Any,
        info: DataInfo,
        device: torch.device,
        channels_last: bool,
        say: Callable[..., None],
        augment: Augment | None = None,
    ) -> None:
        self.info = info
        self._loader = loader
        self._say = say
        self._augment = augment
        self._device = device
        self._channels_last = channels_last
        self._generator: torch.Generator | None = getattr(loader, "generator", None)
        self._stream: Iterator[Any] | None = None
        self._next = [0, 0]
        self._passes = 0
        self._saved: dict[str, Any] | None = None

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return self.info["batches"]

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch (counted from 0), from batch `start` on, on the device.

        Raises UserError when `start` is not where the stream is: it cannot be taken there.
        """
        if start == len(self):
            return  # a run may be resumed at the very end of an epoch
        follows = self._next == [epoch, start]
        if start and not follows:
            raise UserError(Problem(f"the checkpoint does not say where the stream {self.info['name']} was"))
        if follows and self._saved is not None:
            self._stream = self._resumed(self._saved)
        elif not follows or self._stream is None:
            self._passes = 0
            self._stream = self._restart()
        self._saved = None
        for index in range(start, len(self)):
            batch = to_device(self._next_batch(), self._device, self._channels_last)
            self._next = [epoch, index + 1] if index + 1 < len(self) else [epoch + 1, 0]
            yield self._augment(batch, epoch, index) if self._augment else batch

    def _next_batch(self) -> Any:
        assert self._stream is not None
        for batch in self._stream:
            return batch
        self._stream = self._restart()
        for batch in self._stream:
            return batch
        raise UserError(Problem(f"the stream {self.info['name']} is empty"))

    def _restart(self) -> Iterator[Any]:
        if set_epoch := getattr(self._loader.dataset, "set_epoch", None):
            set_epoch(self._passes)
        self._passes += 1
        return self._started()

    def _resumed(self, saved: dict[str, Any]) -> Iterator[Any]:
        """Return the stream where it was. The states of the training's generators are restored afterwards."""
        if count := examples_to_reload(saved["loader"]):
            self._say(f"{self.info['name']}: loading {count} examples again to find the place in the stream", "warn")
        before = random_state(self._device)
        if set_epoch := getattr(self._loader.dataset, "set_epoch", None):
            set_epoch(self._passes - 1)
        self._loader.load_state_dict(saved["loader"])
        stream = self._started()
        if self._generator is not None:
            self._generator.set_state(saved["generator"])
        set_random_state(before, self._device)
        return stream

    def _started(self) -> Iterator[Any]:
        with no_loader_warnings():
            stream: Iterator[Any] = iter(self._loader)
        return stream

    def state_dict(self) -> dict[str, Any]:
        """Return which batch is next, and what finds it again."""
        if self._stream is None:
            return {"next": list(self._next), "passes": self._passes, "stream": self._saved}
        own = None if self._generator is None else self._generator.get_state()
        # A copy: the loader goes on changing what it gives out, and a checkpoint may be written beside the training.
        stream = {"loader": deepcopy(self._loader.state_dict()), "generator": own}
        return {"next": list(self._next), "passes": self._passes, "stream": stream}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned; the stream is sought when the next epoch is asked for."""
        self._next, self._passes, self._saved = list(state["next"]), state["passes"], state["stream"]
        self._stream = None

    def close(self) -> None:
        """End the workers, wherever they are."""
        shutdown = getattr(self._stream, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()


def stream_source(data: Any, parts: LoaderParts, shards_itself: bool) -> Stateful:
    """Return an iterable dataset as a source, by torchdata's loader.

    Of several ranks each takes its share of the stream, unless the dataset, which was given `rank` and `world`,
    `shards_itself`. Raises UserError when torchdata is not there, when the section says what
    does not hold for a stream, or when it is not known how long an epoch is.
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
    seeded = SeededIterable(data, parts.seed, rank=parts.rank, world=parts.world, shards_itself=shards_itself)
    return Stateful(_loader(seeded, parts), info, parts.device, parts.channels_last, parts.say, Augment(parts))


def _batches(examples: int, batch_size: int, drop_last: bool) -> int:
    full, rest = divmod(examples, batch_size)
    return full + bool(rest and not drop_last)


def _loader(data: SeededIterable, parts: LoaderParts) -> Any:
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError:
        hint = "pip install 'hookflow[data]'"
        said = "an iterable dataset is loaded by torchdata, which is not installed"
        raise UserError(Problem(said, parts.place("batch_size"), hint)) from None
    section = parts.section
    warn_if_oversubscribed(section.workers, parts.say)
    with no_loader_warnings():
        return StatefulDataLoader(
            data,
            batch_size=section.batch_size // parts.world,
            drop_last=section.drop_last,
            collate_fn=parts.collate,
            num_workers=section.workers,
            pin_memory=parts.device.type == "cuda",
            worker_init_fn=ignore_signals,
            multiprocessing_context="fork" if section.workers else None,
            generator=torch.Generator(),
        )
