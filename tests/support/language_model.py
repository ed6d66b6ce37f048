"""A small language model over padded targets, and tasks with means of their own."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
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


def loss_of(model: nn.Module, data: TensorDataset, rows: slice = slice(None)) -> Tensor:
    """Return the mean over all targets that count, of all these rows at once."""
    tokens, target = data.tensors
    return functional.cross_entropy(model(tokens[rows]).flatten(0, 1), target[rows].flatten())


class StepsItself(LanguageModelling):
    steps_itself = True

    def step(self, run: Any, batch: Any) -> dict[str, Tensor]:
        outputs = super().step(run, batch)
        run.backward(outputs["loss"])
        run.step()
        return outputs

    def evaluate(self, run: Any, batch: Any) -> dict[str, Tensor]:
        return super().step(run, batch)


class Divides(LanguageModelling):
    """Divides by the number of targets: of none the loss is NaN, and so are its gradients."""

    def step(self, run: Any, batch: Any) -> dict[str, Tensor]:
        tokens, target = batch
        losses = functional.cross_entropy(
            run.model(tokens).flatten(0, 1), target.flatten(), reduction="sum"
        )
        return {"loss": losses / target.ne(-100).sum()}


class Wrong(LanguageModelling):
    def __init__(self, weight: Any) -> None:
        self.weight = weight

    def batch_weight(self, batch: Any) -> Any:
        return self.weight


def unweighted(
    run: Any,
    batch: Any,
    reduction: str = "mean",
    ignore_index: int = -100,
    weight: str | None = None,
) -> dict[str, Tensor]:
    """A step that leaves targets out or weighs classes, and does not say so."""
    tokens, target = batch
    logits = run.model(tokens).flatten(0, 1)
    weights = torch.arange(1.0, TOKENS + 1) if weight else None
    loss = functional.cross_entropy(
        logits, target.flatten(), weights, ignore_index=ignore_index, reduction=reduction
    )
    return {"loss": loss}
