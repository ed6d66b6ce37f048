"""What a step computes: from a model and a batch to a loss."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional


class Classification:
    """Cross-entropy between a model's logits and one class an example, averaged over the batch.

    `label_smoothing` is the share of the target spread over all classes, in training and in evaluation alike, so
    that their losses compare. `flip_at_test` evaluates a picture by the mean of its logits and its mirror's.
    """

    def __init__(self, label_smoothing: Annotated[float, Field(ge=0, le=1)] = 0.0, flip_at_test: bool = False) -> None:
        self.label_smoothing = label_smoothing
        self.flip_at_test = flip_at_test

    def step(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """Return the `loss` (a scalar, float32), the `logits` (batch, classes) and the `target` (batch,)."""
        pictures, target = batch
        return self._outputs(model(pictures), target)

    def evaluate(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """Return the same as `step`; the caller has switched the model to evaluation and gradients off."""
        pictures, target = batch
        logits: Tensor = model(pictures)
        if self.flip_at_test:
            logits = (logits + model(pictures.flip(3))) / 2
        return self._outputs(logits, target)

    def _outputs(self, logits: Tensor, target: Tensor) -> dict[str, Tensor]:
        loss = functional.cross_entropy(logits.float(), target, label_smoothing=self.label_smoothing)
        return {"loss": loss, "logits": logits, "target": target}
