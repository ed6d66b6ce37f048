"""A training whose data sets are fetched an example at a time: by hand with PyTorch's `DataLoader`,
and by hookflow.

`python benchmarks/overhead.py --rows data` measures each of `SETTINGS`. The net looks at the clock,
so that measuring costs both loops the same.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from by_hookflow import carry_out
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset

BATCH, FEATURES, CLASSES, RATE = 64, 32, 10, 0.01
CHUNK = 50
"""Batches between two looks at the clock."""
WARM_UP = 4

Example = tuple[Tensor, int]


class Net(nn.Linear):
    """A linear layer that looks at the clock at each `CHUNK`-th call,
    in training or in validation.
    """

    ticks: list[int]
    clock: Callable[[], int] = time.process_time_ns
    counts_training = True

    def __init__(self, features: int = FEATURES) -> None:
        super().__init__(features, CLASSES)
        self.calls = 0
        Net.ticks = []

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training is Net.counts_training:
            if not self.calls % CHUNK:
                Net.ticks.append(Net.clock())
            self.calls += 1
        return super().forward(inputs)


class Examples(Dataset[Example]):
    """Vectors and classes, in memory; an example takes `wait` seconds."""

    def __init__(self, length: int, features: int = FEATURES, wait: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(length, features, generator=generator)
        self.targets = torch.randint(CLASSES, (length,), generator=generator).tolist()
        self.wait = wait

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Example:
        if self.wait:
            time.sleep(self.wait)
        return self.inputs[index], self.targets[index]


class Streamed(IterableDataset[Example]):
    """The same, one after the other."""

    def __init__(self, length: int, features: int = FEATURES, wait: float = 0.0) -> None:
        self.examples = Examples(length, features, wait)

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[Example]:
        return zip(self.examples.inputs, self.examples.targets, strict=True)


@dataclass(frozen=True)
class Setting:
    """A data set and how it is loaded."""

    data: type[Any] = Examples
    batches: int = 3000
    features: int = FEATURES
    wait: float = 0.0
    workers: int = 0
    validation: bool = False

    @property
    def length(self) -> int:
        return self.batches * BATCH

    def begin(self) -> None:
        """Set the clock: that of the wall where the time is that of other processes."""
        Net.clock = staticmethod(time.perf_counter_ns if self.workers else time.process_time_ns)
        Net.counts_training = not self.validation

    def microseconds(self) -> float:
        """Return the microseconds of a batch: the median of the chunks after the warm-up."""
        ticks = Net.ticks[WARM_UP:]
        return statistics.median(b - a for a, b in itertools.pairwise(ticks)) / CHUNK / 1e3


SETTINGS = {
    "a data set, batches of 64": Setting(),
    "an iterable data set, batches of 64": Setting(Streamed),
    "two workers, examples of 1 ms": Setting(batches=500, wait=0.001, workers=2),
    "validation of 20,000 small images": Setting(batches=313, features=3072, validation=True),
}


def by_hand(setting: Setting) -> float:
    """Train an epoch, or validate one, in a loop by hand; return the microseconds of a batch."""
    setting.begin()
    model, data = (
        Net(setting.features),
        setting.data(setting.length, setting.features, setting.wait),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    shuffle = setting.data is Examples and not setting.validation
    loader = DataLoader(data, batch_size=BATCH, shuffle=shuffle, num_workers=setting.workers)
    if setting.validation:
        _validate(model, loader)
    else:
        for inputs, target in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), target)
            loss.backward()
            optimizer.step()
    return setting.microseconds()


def _validate(model: nn.Module, loader: DataLoader[Example]) -> float:
    model.eval()
    total, examples = torch.zeros((), dtype=torch.float64), 0
    with torch.inference_mode():
        for inputs, target in loader:
            total += functional.cross_entropy(model(inputs), target) * len(target)
            examples += len(target)
    return float(total) / examples


class Task:
    """Cross-entropy, as in the loops by hand."""

    def step(self, run: Any, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        inputs, target = batch
        return {"loss": functional.cross_entropy(run.model(inputs), target)}

    evaluate = step


PIPELINE = """
[run]
name = "data"
default_hooks = false
max_epochs = 1
threads = 1
device = "cpu"
precision = "fp32"
inference_mode = true
[model]
use = "data:Net"
args = {{ features = {setting.features} }}
[task]
use = "data:Task"
[optimizer]
use = "torch.optim:SGD"
args = {{ lr = {rate} }}
[data.train]
use = "data:{setting.data.__name__}"
args = {{ length = {examples}, features = {setting.features}, wait = {setting.wait} }}
loader = {{ batch_size = {batch}, workers = {setting.workers} }}
"""
VALIDATION = """
[data.val]
use = "data:{setting.data.__name__}"
args = {{ length = {setting.length}, features = {setting.features} }}
loader = {{ batch_size = {batch} }}
"""


def by_hookflow(setting: Setting) -> float:
    """Do the same by the runner, from a pipeline file; return the microseconds of a batch."""
    setting.begin()
    examples = BATCH if setting.validation else setting.length
    text = PIPELINE + VALIDATION if setting.validation else PIPELINE
    carry_out(text.format(setting=setting, examples=examples, batch=BATCH, rate=RATE))
    return setting.microseconds()


def warm_up() -> None:
    """Take the first steps, which load parts of torch."""
    torch.set_num_threads(1)
    by_hand(Setting(batches=500))
