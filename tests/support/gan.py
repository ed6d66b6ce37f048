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


class Clumsy(Adversarial):
    def __init__(self, mistake: str) -> None:
        self.mistake = mistake

    def step(self, run: Any, batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
        match self.mistake:
            case "name":
                run.step("genrator")
            case "one":
                run.optimizer.step()
            case "should_stop" | "model":
                setattr(run, self.mistake, True)
            case "by itself":
                for optimizer in run.optimizers.values():
                    optimizer.step()
                return {}
        return super().step(run, batch)


class NoEvaluation:
    steps_itself = True

    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        raise AssertionError("nobody calls this")


class Steps:
    def after_train_iter(self, run: Any) -> None:
        run.step("generator")


class Norms:
    def before_optimizer_step(self, run: Any) -> None:
        whose = [name for name in run.models if run.model_being_updated(name) is not None]
        norms = {name: _norm(model) for name, model in run.models.items()}
        run.say(
            f"{run.iter} {' '.join(whose)} {' '.join(name for name, norm in norms.items() if norm)}"
        )


def _norm(model: nn.Module) -> float:
    return sum(float(p.grad.norm()) for p in model.parameters() if p.grad is not None)


class Looks(Adversarial):
    def step(self, run: Any, batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
        before = self.judged(run, batch[0], 1.0)
        run.backward(before, "discriminator")
        run.step("discriminator")
        after = self.judged(run, batch[0], 1.0)
        # Later the steps are too small for bf16.
        assert run.iter or not torch.equal(before, after), "the old weights"
        return {}


class Tells(Adversarial):
    def evaluate(self, run: Any, batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
        real = run.models["discriminator"](batch[0])
        scores = torch.cat([-real, real, torch.zeros_like(real)], 1)
        return {
            **super().evaluate(run, batch),
            "logits": scores,
            "target": torch.ones(len(real), dtype=torch.long),
        }
