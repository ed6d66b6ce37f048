"""A small language model over padded targets, and tasks with means of their own."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from hookflow.zoo.tasks import LanguageModelling

TOKENS, LENGTH = 7, 6


class Bigram(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 8)
        self.head = nn.Linear(8, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens))


def padded(
    seed: int, examples: int = 8, masked: tuple[int, ...] = (), unpadded: bool = False
) -> TensorDataset:
    """Return sequences with 1 to 6 targets that count, or with 6; those in `masked` have none."""
    draws = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, TOKENS, (examples, LENGTH), generator=draws)
    target = torch.randint(0, TOKENS, (examples, LENGTH), generator=draws)
    for row in range(0 if unpadded else examples):
        target[row, 1 + (row * 5) % LENGTH :] = -100
    target[list(masked)] = -100
    return TensorDataset(tokens, target)


class StepsItself(LanguageModelling):
    steps_itself = True

    def step(self, run: Any, batch: Any) -> dict[str, Tensor]:
        outputs = super().step(run, batch)
        run.backward(outputs["loss"])
        run.step()
        return outputs

    def evaluate(self, run: Any, batch: Any) -> dict[str, Tensor]:
        return super().step(run, batch)
