"""The network, the sets and the tasks of pipelines with several training sets."""

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

BATCH = 4
SIZES = {"a": 28, "b": 12}
"""The examples of each set: seven batches and three."""


class Net(nn.Module):
    """A layer, and dropout where the random numbers of the training are to count."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(self.dropout(inputs))  # type: ignore[no-any-return]


class Normed(Net):
    """A network with a batch norm before the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(self.norm(inputs))


def examples(name: str) -> TensorDataset:
    """Return the examples of a set, "a" or "b"."""
    generator = torch.Generator().manual_seed(ord(name))
    inputs = torch.randn(SIZES[name], 2, generator=generator)
    return TensorDataset(inputs, (inputs[:, 0] > 0).long())


class Drawing(torch.utils.data.Dataset[Any]):
    """The examples of a set, with noise that each fetch draws from torch's global generator."""

    def __init__(self, name: str) -> None:
        self.examples = examples(name)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Any:
        inputs, target = self.examples[index]
        return inputs + 0.1 * torch.randn(2), target


class Stream(IterableDataset[Any]):
    """The examples of a set one after another, without an index."""

    def __init__(self, name: str) -> None:
        self.examples = examples(name)

    def __iter__(self) -> Any:
        return (self.examples[index] for index in range(len(self.examples)))


class Draws:
    """A sampler that draws its order from how often it has done so, and keeps that."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.orders = 0

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.orders)
        self.orders += 1
        return iter(torch.randperm(len(self.data), generator=generator).tolist())

    def state_dict(self) -> dict[str, int]:
        return {"orders": self.orders}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.orders = state["orders"]


def loader(name: str) -> DataLoader[Any]:
    """Return a loader of PyTorch's own, whose order comes from the global generator."""
    return DataLoader(examples(name), batch_size=BATCH, shuffle=True)


def loss(run: Any, batch: Any) -> torch.Tensor:
    return cross_entropy(run.model(batch[0]), batch[1])


def step(run: Any, batch: Any) -> dict[str, Any]:
    return {"loss": loss(run, batch)}


def step_of_all(run: Any, batch: Any) -> dict[str, Any]:
    """The step of a batch of each set."""
    return {"loss": loss(run, batch["a"]) + 0.5 * loss(run, batch["b"])}


class StepsBySet:
    """A task with a step for each set."""

    def step_a(self, run: Any, batch: Any) -> dict[str, Any]:
        return {"loss": loss(run, batch)}

    def step_b(self, run: Any, batch: Any) -> dict[str, Any]:
        target = torch.eye(2)[batch[1]]
        return {"loss": mse_loss(run.model(batch[0]), target), "only_b": 1.0}


class StepsOfBoth(StepsBySet):
    """A task with a step for each set, and one for a batch of each."""

    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        return step_of_all(run, batch)


class Predicts:
    """A task that predicts, too."""

    step = staticmethod(step)

    def predict(self, run: Any, batch: Any) -> dict[str, torch.Tensor]:
        return {"logits": run.model(batch[0])}


class AnswersInSetB:
    """Its step for batches of set b returns what no step may."""

    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        return step(run, batch)

    def step_b(self, run: Any, batch: Any) -> dict[str, Any]:
        return {"los": step(run, batch)["loss"]}

    def evaluate(self, run: Any, batch: Any) -> dict[str, Any]:
        return step(run, batch)


class Misspelt(StepsBySet):
    """A task whose step for a set is misspelt."""

    step_bb = StepsBySet.step_b
    step_b = None  # type: ignore[assignment]


class Notes:
    """Notes the set of each iteration."""

    sets: ClassVar[list[str | None]] = []

    def after_train_iter(self, run: Any) -> None:
        self.sets.append(run.batch_set)
