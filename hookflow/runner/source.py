"""Where batches come from: the contract of a source, and an adapter that gives it to any sized iterable of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor

from hookflow.errors import Problem, UserError, Where
from hookflow.events.records import DataInfo
from hookflow.runner.state import random_state, set_random_state

EXPECTED = (
    "a torch.utils.data.DataLoader, another iterable of batches that has a length, or an object with "
    "info, __len__ and epoch(epoch, start)"
)


class Source(Protocol):
    """One split of the data, as the runner and the hooks see it in `run.data`."""

    info: DataInfo
    """What the data is; every face of a run shows it."""

    def __len__(self) -> int:
        """Return the number of batches of an epoch: the same in every epoch, at least one."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch (counted from 0), from batch `start` on, on the run's device.

        They should be a pure function of the run's seed, the epoch and the index: then a run that is resumed in the
        middle of an epoch goes on with the very batches that it would have had, and loads no others to find them.
        """


def as_source(
    made: Any, where: Where, device: torch.device, channels_last: bool, say: Callable[[str, str], None]
) -> Source:
    """Return what `use` at `where` has made as a source: itself if it is one, else with an adapter around it.

    Raises UserError when it is neither a source nor an iterable of batches, or has no batches.
    """
    if not hasattr(made, "__len__"):
        raise _no_source(made, "which has no length", where)
    if callable(getattr(made, "epoch", None)):
        missing = [key for key in DataInfo.__annotations__ if key not in getattr(made, "info", ())]
        if missing:
            raise _no_source(made, f"whose info lacks {', '.join(missing)}", where)
    elif not hasattr(made, "__iter__") or isinstance(made, str | Mapping):
        raise _no_source(made, "which yields no batches", where)
    try:
        batches = len(made)
    except TypeError as error:  # a DataLoader has __len__ always, and finds out when it is asked
        raise _no_source(made, f"which has no length: {error}", where) from None
    if not batches:
        raise UserError(Problem("there is not one batch in this data", where, "is there less than a batch of it?"))
    return made if hasattr(made, "epoch") else Batches(made, device, channels_last, say)


def _no_source(made: Any, why: str, where: Where) -> UserError:
    return UserError(Problem(f"this makes a {type(made).__name__}, {why}", where, f"it should make {EXPECTED}"))


class Batches:
    """A source out of any iterable of batches with a length, such as a `torch.utils.data.DataLoader`.

    The iterable is asked for its batches anew each epoch, after `set_epoch(epoch)` of its sampler if that has one.
    What it draws comes from the global random generators (or the loader's own), whose state a checkpoint keeps; so
    every epoch that begins after a resume is the one that it would have been. To resume in the middle of an epoch,
    the batches before that place are loaded again and thrown away.
    """

    def __init__(
        self, batches: Any, device: torch.device, channels_last: bool, say: Callable[[str, str], None]
    ) -> None:
        self._batches: Iterable[Any] = batches
        self._device = device
        self._channels_last = channels_last
        self._say = say
        self._generator: torch.Generator | None = getattr(batches, "generator", None)
        self._began: dict[str, Any] | None = None
        data = getattr(batches, "dataset", batches)
        batch_size = getattr(batches, "batch_size", None) or 0
        examples = len(data) if data is not batches and hasattr(data, "__len__") else len(batches) * batch_size
        self.info = DataInfo(
            name=type(data).__name__,
            examples=examples,
            batches=len(batches),
            batch_size=batch_size,
            synthetic=False,
            note="",
        )

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return self.info["batches"]

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch (counted from 0), from batch `start` on, on the device."""
        for name in ("sampler", "batch_sampler"):
            set_epoch = getattr(getattr(self._batches, name, None), "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
        yield from map(self._moved, self._from(start))

    def _from(self, start: int) -> Iterator[Any]:
        if not start:
            self._began = self._random()
            return iter(self._batches)
        self._say(f"{self.info['name']}: loading {start} batches again to find the place in the epoch", "warn")
        now = self._random()
        if self._began:
            self._set_random(self._began)
        batches = iter(self._batches)
        for _ in islice(batches, start):
            pass
        self._set_random(now)
        return batches

    def _moved(self, batch: Any) -> Any:
        """Return the batch with every tensor on the device; on CUDA nobody waits for the copy."""
        if isinstance(batch, Tensor):
            layout = torch.channels_last if self._channels_last and batch.ndim == 4 else torch.preserve_format
            return batch.to(self._device, non_blocking=self._device.type == "cuda", memory_format=layout)
        if isinstance(batch, dict):
            return {key: self._moved(part) for key, part in batch.items()}
        if isinstance(batch, tuple) and hasattr(batch, "_fields"):
            return type(batch)(*map(self._moved, batch))
        return type(batch)(map(self._moved, batch)) if isinstance(batch, list | tuple) else batch

    def _random(self) -> dict[str, Any]:
        own = None if self._generator is None else self._generator.get_state()
        return {"global": random_state(self._device), "own": own}

    def _set_random(self, state: dict[str, Any]) -> None:
        set_random_state(state["global"], self._device)
        if self._generator is not None and state["own"] is not None:
            self._generator.set_state(state["own"])

    def state_dict(self) -> dict[str, Any]:
        """Return how the epoch at hand began, and where the loader's own generator is."""
        return {"began": self._began, "own": self._random()["own"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._began = state["began"]
        if self._generator is not None and state["own"] is not None:
            self._generator.set_state(state["own"])
