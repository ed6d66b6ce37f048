"""Data that is none of ours: what users have, and hand over as it is."""

import ctypes
import gc
import os
import random
import threading
import warnings
from collections.abc import Iterator
from itertools import accumulate, chain, cycle, islice, pairwise, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from hookflow.events.rundir import write_whole
from hookflow.runner.data.batches import DataContext


def context(**changes: Any) -> DataContext:
    """Return the context of data on the CPU, whose messages nobody reads."""
    usual = {
        "seed": 5,
        "device": torch.device("cpu"),
        "channels_last": False,
        "say": lambda text, level: None,
    }
    return DataContext(**usual | changes)


def dataset(examples: int = 24) -> TensorDataset:
    target = torch.arange(examples) % 3
    return TensorDataset(2 * torch.eye(3, 4)[target], target)


def shuffled() -> DataLoader[Any]:
    return DataLoader(Clouds(24), batch_size=8, shuffle=True)


def with_generator() -> DataLoader[Any]:
    return DataLoader(
        Clouds(24), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(3)
    )


def with_sampler() -> DataLoader[Any]:
    data = dataset()
    return DataLoader(
        data, batch_size=8, sampler=DistributedSampler(data, num_replicas=1, rank=0, seed=5)
    )


def mined() -> DataLoader[Any]:
    data = Counted(24)
    return DataLoader(data, batch_size=8, sampler=Rarest(data))


def backwards(data: Any) -> range:
    return range(len(data) - 1, -1, -1)


def a_list() -> list[Any]:
    inputs, target = dataset().tensors
    return list(zip(inputs.split(8), target.split(8), strict=True))


def of_dicts() -> list[Any]:
    return [{"inputs": inputs, "target": target, "names": ["x"] * 8} for inputs, target in a_list()]


def too_short(examples: int = 4) -> DataLoader[Any]:
    return DataLoader(dataset(examples), batch_size=8, drop_last=True)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from a_list()


def stream() -> DataLoader[Any]:
    return DataLoader(Stream(), batch_size=None)


class Says:
    """Promises another number of batches than it yields."""

    def __init__(self, promised: int) -> None:
        self.promised = promised

    def __len__(self) -> int:
        return self.promised

    def __iter__(self) -> Iterator[Any]:
        yield from a_list()


class Half:
    def __init__(self) -> None:
        self.info = {"name": "half"}

    def __len__(self) -> int:
        return 3

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        yield from a_list()


def splits() -> dict[str, Any]:
    return {"train": a_list(), "val": a_list()}


class FromDicts:
    def step(self, run: Any, batch: dict[str, Any]) -> dict[str, Any]:
        return {
            "loss": torch.nn.functional.cross_entropy(run.model(batch["inputs"]), batch["target"])
        }

    evaluate = step


def images() -> list[Any]:
    return [(torch.randn(4, 3, 8, 8), torch.zeros(4, dtype=torch.long))] * 2


class ConvNet(torch.nn.Sequential):
    def __init__(self) -> None:
        conv = torch.nn.Conv2d(3, 3, 3)
        super().__init__(conv, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())


class Images(Dataset[Any]):
    """Draws from every generator whenever an example is asked for, and gives dicts."""

    def __init__(self, examples: int = 26) -> None:
        self.plain = dataset(examples)

    def __len__(self) -> int:
        return len(self.plain)

    def __getitem__(self, index: int) -> Any:
        inputs, target = self.plain[index]
        noise = torch.tensor([random.random(), np.random.rand()])
        return {"inputs": inputs + torch.randn(4), "target": target, "noise": noise}


class Clouds(Images):
    """Examples for the toy network, each with a little of Python's, NumPy's and torch's noise."""

    def __init__(self, examples: int = 40) -> None:
        super().__init__(examples)

    def __getitem__(self, index: int) -> Any:
        example = super().__getitem__(index)
        return example["inputs"] + example["noise"].sum(), example["target"]


class Counted(Clouds):
    """Counts how often each example is fetched."""

    def __init__(self, examples: int = 40) -> None:
        super().__init__(examples)
        self.fetched = torch.zeros(examples)

    def __getitem__(self, index: int) -> Any:
        self.fetched[index] += 1
        return super().__getitem__(index)

    def state_dict(self) -> dict[str, Any]:
        return {"fetched": self.fetched}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.fetched.copy_(state["fetched"])


class Forgets:
    """Prefers examples that were fetched less often when the epoch began,
    and more so from epoch to epoch.
    """

    size = 0

    def __init__(self, data: Counted) -> None:
        self.data, self.power, self.epoch = data, 1.0, -1

    def __len__(self) -> int:
        return len(self.data)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        weights = 1 / (1 + self.data.fetched) ** self.power
        self.power += 1
        order = torch.multinomial(weights, len(self), replacement=True).tolist()
        return iter(
            [order[k : k + self.size] for k in range(0, len(self), self.size)]
            if self.size
            else order
        )


class Rarest(Forgets):
    def state_dict(self) -> dict[str, Any]:
        return {"power": self.power}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.power = state["power"]


class Collects(Clouds):
    """Collects garbage for each example."""

    def __getitem__(self, index: int) -> Any:
        gc.collect()
        return super().__getitem__(index)


class HangsOnce(Clouds):
    """Hangs in C when a worker has fetched `after` examples and there is no mark yet,
    which has its pid then.
    """

    def __init__(self, mark: str = "", gil: bool = False, after: int = 8) -> None:
        super().__init__()
        self.mark, self.library, self.after = (
            Path(mark),
            ctypes.PyDLL if gil else ctypes.CDLL,
            after,
        )
        self.fetched = 0

    def __getitem__(self, index: int) -> Any:
        self.may_hang()
        return super().__getitem__(index)

    def may_hang(self) -> None:
        self.fetched += 1
        if self.fetched > self.after and get_worker_info() and not self.mark.exists():
            library, mutex = self.library(None), ctypes.create_string_buffer(256)
            library.pthread_mutex_init(mutex, None)
            library.pthread_mutex_lock(mutex)
            write_whole(self.mark, str(os.getpid()))
            library.pthread_mutex_lock(mutex)


class HangsInEpoch2(HangsOnce):
    """Does so at the first example of the second epoch, whichever worker fetches it;
    draws no random numbers.
    """

    def __init__(self, mark: str = "") -> None:
        super().__init__(mark, after=40)
        self.fetched = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[assignment]

    def __getitem__(self, index: int) -> Any:
        self.may_hang()
        return self.plain[index]


class Rotates:
    """Gives another order in each epoch: it counts them, in its state."""

    def __init__(self, data: Clouds) -> None:
        self.examples, self.drawn = len(data), 0

    def __len__(self) -> int:
        return self.examples

    def __iter__(self) -> Iterator[int]:
        self.drawn += 1
        yield from ((index * 7 + self.drawn) % self.examples for index in range(self.examples))

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn = state["drawn"]


WORKER: dict[str, Any] = {"batch_size": 8, "num_workers": 1, "multiprocessing_context": "fork"}


def rotating(mark: str = "") -> DataLoader[Any]:
    data = HangsInEpoch2(mark)
    return DataLoader(data, sampler=Rotates(data), **WORKER)  # type: ignore[arg-type]


def shuffling(mark: str = "", persistent: bool = False) -> DataLoader[Any]:
    return DataLoader(HangsInEpoch2(mark), shuffle=True, persistent_workers=persistent, **WORKER)


class Unpicklable(Clouds):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class InPieces(Clouds):
    """Keeps a tensor for each example."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces = [torch.zeros(2) for _ in range(300)]


WIDTH = 6


def padded(examples: list[Any], width: int = WIDTH) -> Any:
    inputs = torch.stack(
        [torch.nn.functional.pad(item, (0, width - len(item))) for item, _ in examples]
    )
    return {"inputs": inputs, "target": torch.tensor([int(target) for _, target in examples])}


class Padded:
    def __init__(self, width: int) -> None:
        self.width = width

    def __call__(self, examples: list[Any]) -> Any:
        return padded(examples, self.width)


def noisy(batch: Any, generator: torch.Generator, scale: float = 1.0) -> Any:
    inputs, target = batch
    return inputs + scale * torch.randn(
        inputs.shape, generator=generator, device=inputs.device
    ), target


class Every:
    """Every second example, from behind: the even ones in epoch 0, the odd ones in epoch 1."""

    def __init__(self, data: Any, seed: int) -> None:
        assert seed == 5
        self.data = data
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return reversed(range(self.epoch, len(self.data), 2))


def weighted(data: Any) -> Any:
    return WeightedRandomSampler([1.0 + k % 3 for k in range(len(data))], len(data))


class Buckets:
    """Batches of 2 to 6 examples, or of `sizes` in turn,
    in another order and division in each epoch.
    """

    def __init__(
        self, data: Any, seed: int, sizes: tuple[int, ...] = (5, 2, 4, 3, 6), merged: int = 1
    ) -> None:
        self.examples, self.seed, self.sizes, self.merged = len(data), seed, sizes, merged

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(
            self.examples, generator=torch.Generator().manual_seed(self.seed + self.epoch)
        ).tolist()
        ends = [*takewhile(lambda end: end < self.examples, accumulate(cycle(self.sizes)))]
        sizes = [end - begin for begin, end in pairwise([0, *ends, self.examples])]
        turn, given = self.epoch % len(sizes), iter(order)
        batches = [[*islice(given, size)] for size in sizes[turn:] + sizes[:turn]]
        for k in range(0, len(batches), self.merged):
            yield [*chain.from_iterable(batches[k : k + self.merged])]


def share() -> tuple[int, int]:
    """Return how many processes share a stream, and which of them this is."""
    worker = get_worker_info()
    return (worker.num_workers, worker.id) if worker else (1, 0)


class Endless(IterableDataset[Any]):
    """Examples for the toy network in a row, shared out among workers, with noise;
    it does not say how many.
    """

    def __init__(self, examples: int = 40) -> None:
        self.examples = examples
        self.plain = dataset(examples)
        self.pass_ = 0

    def set_epoch(self, epoch: int) -> None:
        self.pass_ = epoch

    def __iter__(self) -> Iterator[Any]:
        of, own = share()
        for index in range(own, self.examples, of):
            inputs, target = self.plain[index]
            yield inputs + torch.randn(4) + self.pass_ + random.random(), target


class Numbers(Endless):
    def __len__(self) -> int:
        return self.examples


class NumbersWithPlace(Numbers):
    """The same, with a state: nothing needs to be loaded again to find the place."""

    def __init__(self, examples: int = 40) -> None:
        super().__init__(examples)
        self.given = 0

    def __iter__(self) -> Iterator[Any]:
        of, own = share()
        while own + self.given * of < self.examples:
            inputs, target = self.plain[own + self.given * of]
            self.given += 1
            yield inputs + torch.randn(4) + self.pass_ + random.random(), target
        self.given = 0

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = state["given"]


class ShuffledWithFirst(NumbersWithPlace):
    """Shuffles with its first example, which draws too; knows how many it has given,
    and not in which order.
    """

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(self.examples).tolist()
        random.shuffle(order)
        yield from self.walk(order)

    def walk(self, order: list[int]) -> Iterator[Any]:
        of, number = share()
        own = order[number::of]
        while self.given < len(own):
            inputs, target = self.plain[own[self.given]]
            self.given += 1
            yield inputs + torch.randn(4) + own[self.given - 1], target
        self.given = 0


class ShuffledInIter(ShuffledWithFirst):
    """The same, in `__iter__` itself."""

    def __iter__(self) -> Iterator[Any]:
        return self.walk(torch.randperm(self.examples).tolist())


class Empty(Endless):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


def stateful_loader() -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return StatefulDataLoader(NumbersWithPlace(), batch_size=8)


class Breaks(Clouds):
    def __getitem__(self, index: int) -> Any:
        if index == 7:
            error = LookupError("no example 7")
            error.add_note("a note stands behind what was raised")
            raise error
        return super().__getitem__(index)


class Struck(Clouds):
    """Sends the worker that fetches one of its examples a signal; with a `mark` once,
    and that file has its pid.
    """

    def __init__(self, mark: str = "", number: int = 9) -> None:
        super().__init__()
        self.mark, self.number = mark and Path(mark), number

    def __getitem__(self, index: int) -> Any:
        if index == 7 and not (self.mark and self.mark.exists()):
            if self.mark:
                write_whole(self.mark, str(os.getpid()))
            os.kill(os.getpid(), self.number)
        return super().__getitem__(index)


BEGUN: list[int] = []


def begins(worker: int, offset: int = 0) -> None:
    """Remember the number of the worker, for `Begun`."""
    BEGUN.append(worker + offset)


class Begun:
    """Examples that say which worker has fetched them."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), float(BEGUN[0])), index % 3
