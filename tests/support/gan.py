"""Two models that train against each other, by a task that steps its optimizers itself."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as against


class Generator(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


class Discriminator(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(8, 1))


class Adversarial:
    """Steps the discriminator at each batch and the generator at every second one."""

    steps_itself = True

    def step(self, run: Any, batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
        real = batch[0]
        fake = run.models["generator"](torch.randn(len(real), 2, device=real.device))
        result = self.judged(run, real, 1.0) + self.judged(run, fake.detach(), 0.0)
        run.backward(result, "discriminator")
        run.step("discriminator")
        outputs = {"discriminator_loss": result}
        if run.iter % 2:
            fooled = self.judged(run, fake, 1.0)
            run.backward(fooled, "generator")
            run.step("generator")
            outputs["generator_loss"] = fooled
        return outputs

    def evaluate(self, run: Any, batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
        real = batch[0]
        fake = run.models["generator"](torch.ones(len(real), 2, device=real.device))
        return {"told_apart": self.judged(run, real, 1.0) + self.judged(run, fake, 0.0)}

    def judged(self, run: Any, points: Tensor, as_real: float) -> Tensor:
        logits = run.models["discriminator"](points)
        return against(logits.float(), torch.full_like(logits, as_real, dtype=torch.float32))


def both(run: Any, batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
    made = run.models["generator"](batch[0][:, :2])
    return {"loss": against(run.models["discriminator"](made), torch.ones(len(made), 1))}
