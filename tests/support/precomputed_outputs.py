"""Data that are outputs already, logits and targets of every kind,
and a task that returns them as they are.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

EXAMPLES, CLASSES = 23, 3
"""Examples, of which no batch size but 1 and 23 takes an even share; and their classes."""


def given(kind: str, examples: int = EXAMPLES) -> TensorDataset:
    """Return logits and targets.

    Those of "binary" and "labels" are often all from 0 to 1 in a batch.
    """
    draw = torch.Generator().manual_seed(11)
    logits = torch.randn(examples, CLASSES, generator=draw)
    target = torch.randint(CLASSES, (examples,), generator=draw)
    match kind:
        case "ignored":
            target[torch.arange(examples) % 3 == 0] = -100
            target[:8] = -100  # whole batches without a target
        case "shares":
            target = torch.rand(examples, CLASSES, generator=draw).softmax(1)  # type: ignore[assignment]
        case "maps":
            logits = torch.randn(examples, CLASSES, 4, 5, generator=draw)
            target = torch.randint(-1, CLASSES, (examples, 4, 5), generator=draw).to(torch.int8)
        case "tokens":
            logits = torch.randn(examples, 6, CLASSES, generator=draw)
            target = torch.randint(-1, CLASSES, (examples, 6), generator=draw)
        case "binary":
            logits = torch.randn(examples, generator=draw) * 0.7 + 0.3
            target = (torch.rand(examples, generator=draw) < logits.sigmoid()).long()
        case "numbers":
            logits = torch.randn(examples, generator=draw)
            target = logits + torch.randn(examples, generator=draw)
        case "labels":
            logits = torch.randn(examples, CLASSES, generator=draw) * 0.7 + 0.3
            target = (torch.rand(examples, CLASSES, generator=draw) < logits.sigmoid()).long()
            target[:5] = 0  # no label holds in a whole batch
    return TensorDataset(logits, target)


class Scale(nn.Module):
    """A number that changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(()))

    def forward(self, logits: Tensor) -> Tensor:
        return logits * self.one


class Returns:
    """Returns the logits and targets of a batch,
    and the mean over its examples of the first logit's square.
    """

    def step(self, run: Any, batch: Any) -> dict[str, Tensor]:
        logits = run.model(batch[0])
        return {"loss": 0 * logits.sum(), "logits": logits, "target": batch[1]}

    def evaluate(self, run: Any, batch: Any) -> dict[str, Tensor]:
        outputs = self.step(run, batch)
        first = (
            outputs["logits"].flatten(1)[:, 0] if outputs["logits"].ndim > 1 else outputs["logits"]
        )
        return {**outputs, "square": functional.mse_loss(first, torch.zeros_like(first))}
