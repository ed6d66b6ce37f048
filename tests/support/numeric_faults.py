"""Tasks and hooks that upset a run: losses and gradients that are not finite,
and a memory that is full.
"""

from collections.abc import Iterator
from typing import Any

import torch

from hookflow.zoo.tasks import Classification


class NaNWithGradient(torch.autograd.Function):
    """A loss that is NaN, whose gradient is finite whatever it is multiplied by."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor) -> torch.Tensor:
        return loss * torch.nan

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(gradient)


class Upset(Classification):
    """Spoils the batches that are named: their loss, their gradient alone, or the loss but not its
    gradient.

    Before the forward pass: the images, a weight, or the output of a module. With "once" a second
    call raises.
    """

    def __init__(self, batches: list[int], kind: str = "loss") -> None:
        super().__init__()
        self.batches, self.kind = batches, kind
        self.called = -1

    def step(self, run: Any, batch: Any) -> dict[str, torch.Tensor]:
        spoils = run.batch_idx in self.batches and run.epoch == 0
        if spoils:
            self.before(run, batch)
        outputs = super().step(run, batch)
        if spoils:
            match self.kind:
                case "loss" | "once":
                    outputs["loss"] = outputs["loss"] * torch.nan
                case "gradient":
                    outputs["loss"] = outputs["loss"] + (outputs["logits"] * 0).sqrt().sum()
                case "finite gradient":
                    outputs["loss"] = NaNWithGradient.apply(outputs["loss"])
                case "constant":
                    outputs["loss"] = outputs["loss"] + torch.inf
        return outputs

    def before(self, run: Any, batch: Any) -> None:
        layer = next(
            module for module in run.model.modules() if isinstance(module, torch.nn.Linear)
        )
        match self.kind:
            case "batch":
                batch[0].view(-1)[0] = torch.nan
            case "weights":
                layer.weight.data[0, 0] = torch.nan
            case "module":
                layer.register_forward_hook(lambda module, args, output: output * torch.inf)
            case "once" if self.called == run.batch_idx:
                raise RuntimeError("called again")
        self.called = run.batch_idx


class Looks:
    """Says at each iteration what became of its steps, and what was entered around them."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def around_optimizer_step(self) -> Iterator[None]:
        self.seen.append("in")
        yield
        self.seen.append("out")

    def after_optimizer_step(self) -> None:
        self.seen.append("taken")

    def after_train_iter(self, run: Any) -> None:
        weight = float(sum(p.detach().double().abs().sum() for p in run.model.parameters()))
        run.say(f"{run.iter}: {' '.join(self.seen)} skipped={run.step_skipped} weights={weight}")
        self.seen = []


class Unwaiting:
    def before_train(self, run: Any) -> None:
        run._update.guard.waits = False


class SaysSkipped:
    """Names each iteration that has left a step out."""

    def after_train_iter(self, run: Any) -> None:
        if run.step_skipped:
            run.say(f"skipped {run.iter}")


class Full:
    """Finds no memory left, once; then says how many gradients the run still holds."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def after_backward(self, run: Any) -> None:
        if run.iter == 3:
            match self.kind:
                case "device":
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
                case "process":
                    raise MemoryError
                case "cuda":
                    torch.empty(2**50, device="cuda")
                case "cpu":
                    torch.empty(2**60)

    def on_exception(self, run: Any, exception: BaseException) -> None:
        held = sum(p.grad is not None for p in run.model.parameters())
        run.say(f"{type(exception).__name__} with {held} gradients")
