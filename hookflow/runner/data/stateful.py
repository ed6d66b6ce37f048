"""A source out of a loader that keeps its place in a state of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch

from hookflow.errors import Problem, UserError
from hookflow.events.records import DataInfo
from hookflow.runner.data.augment import Augment
from hookflow.runner.data.batches import Sizes
from hookflow.runner.data.loader import no_loader_warnings
from hookflow.runner.data.seeded_iterable import examples_to_reload
from hookflow.runner.data.to_device import to_device
from hookflow.runner.data.workers import end_workers, let_be_killed
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
        sizes: Sizes = (None, None),
    ) -> None:
        self.info = info
        self.batch_size, self.global_batch_size = sizes
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
        own_generators = getattr(self._loader.dataset, "own_generators", list)
        if names := ", ".join(own_generators()):
            text = f"{self.info['name']} keeps random generators that no checkpoint holds ({names})"
            self._say(f"{text}: the resumed run may not be bit-identical, and may repeat or miss examples", "warn")
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
        let_be_killed(stream)
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
        if hasattr(self._stream, "_shutdown_workers"):
            end_workers(self._stream, self.info["name"], self._say)
            self._stream = self._loader._iterator = None  # its pipes go with it, and not when Python gets round to it
