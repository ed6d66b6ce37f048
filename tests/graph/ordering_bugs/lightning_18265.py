"""Lightning#18265: what is made of the outputs after a batch comes after those who expect it."""

from __future__ import annotations

from typing import Any

import torch


class Normalizes:
    """Makes probabilities of the logits, for everybody who looks at the outputs from here on."""

    def after_train_iter(self, outputs: dict[str, torch.Tensor]) -> None:
        outputs["logits"] = outputs["logits"].detach().softmax(1)


class Writes:
    """Writes predictions to a file, and takes them to be probabilities."""

    def after_train_iter(self, run: Any, outputs: dict[str, torch.Tensor]) -> None:
        torch.save(outputs["logits"].detach(), run.dir / f"predictions-{run.iter}.pt")
