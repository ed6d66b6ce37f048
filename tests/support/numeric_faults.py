"""Tasks and hooks that upset a run: losses and gradients that are not finite,
and a memory that is full.
"""

from collections.abc import Iterator
from typing import Any

import torch

from hookflow import Hook
from hookflow.zoo.tasks import Classification
from tests.support.gan import Adversarial
from tests.support.toy import Net


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


class Loud(Classification):
    def step(self, run: Any, batch: Any) -> dict[str, torch.Tensor]:
        outputs = super().step(run, batch)
        outputs["loss"] = outputs["loss"] * 2.0**10
        return outputs


class UpsetAdversarial(Adversarial):
    def judged(self, run: Any, points: torch.Tensor, as_real: float) -> torch.Tensor:
        result = super().judged(run, points, as_real)
        return self.spoilt(result) if run.iter == 1 and not as_real else result

    def spoilt(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * torch.nan


class SoftlyUpsetAdversarial(UpsetAdversarial):
    """Spoils the loss, and not its gradient."""

    def spoilt(self, loss: torch.Tensor) -> torch.Tensor:
        return NaNWithGradient.apply(loss)


class Poisons:
    """Makes a weight NaN once an iteration is done."""

    writes = ("model",)

    def __init__(self, at: int) -> None:
        self.at = at

    @torch.no_grad()
    def after_train_iter(self, run: Any) -> None:
        if run.iter == self.at:
            next(run.model.parameters()).view(-1)[0] = torch.nan


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


class Gradients:
    def before_optimizer_step(self, run: Any) -> None:
        run.log("seen_norm", torch.stack([p.grad.norm() for p in run.model.parameters()]).norm())


class Scale:
    def after_train_iter(self, run: Any) -> None:
        run.say(f"{run.iter}: scale {run._update.guard.state_dict()['scale'].item():.0f}")


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


def undecided(run: Any, batch: Any) -> dict[str, torch.Tensor]:
    torch.zeros(4).put_(torch.tensor([0, 0]), torch.ones(2))
    return Classification().step(run, batch)


class Late:
    """Registers a hook of its own inside the network, once it has been trained for a while;
    says if it was called.
    """

    def __init__(self) -> None:
        self.calls = 0

    def after_train_iter(self, run: Any) -> None:
        if run.iter == 2:
            run.model.head.register_forward_hook(self.count)

    def count(self, *offered: object) -> None:
        self.calls += 1

    def after_train(self, run: Any) -> None:
        run.say("the late hook was called" if self.calls else "the late hook was never called")


class Settings:
    def before_train(self, run: Any) -> None:
        run.say(
            f"threads {torch.get_num_threads()}, deterministic"
            f" {torch.are_deterministic_algorithms_enabled()} {torch.backends.cudnn.deterministic},"
            f" benchmark {torch.backends.cudnn.benchmark}, tf32"
            f" {torch.backends.cuda.matmul.allow_tf32} {torch.backends.cudnn.allow_tf32}"
        )


class Still(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body[3] = torch.nn.Identity()


class CountsWaits:
    def before_train_iter(self, run: Any) -> None:
        if run.iter == 2:
            torch.cuda.set_sync_debug_mode("warn")

    def after_train_iter(self, run: Any) -> None:
        if run.iter == min(6, run.iters_per_epoch):
            torch.cuda.set_sync_debug_mode("default")


class UpsetRank(Upset):
    def step(self, run: Any, batch: Any) -> dict[str, torch.Tensor]:
        return (
            super().step(run, batch)
            if run.rank == run.world - 1
            else Classification.step(self, run, batch)
        )


class Compares(Hook):
    """Says at `on_exception` whether weights, buffers,
    gradients and generators are as before the backward pass.
    """

    def before_backward(self, run: Any) -> None:
        self.before = self.state(run)

    def on_exception(self, run: Any) -> None:
        after = self.state(run)
        same = len(after) == len(self.before) and all(map(torch.equal, self.before, after))
        run.say(f"{len(after)} tensors: {'the same' if same else 'changed'}")

    def state(self, run: Any) -> list[torch.Tensor]:
        gradients = [p.grad.clone() for p in run.model.parameters() if p.grad is not None]
        weights = [tensor.detach().clone() for tensor in run.model.state_dict().values()]
        return [torch.get_rng_state(), *weights, *gradients]


class SpoilsLoss:
    """Makes the loss of iteration 3 NaN, at the point that it is bound to."""

    writes = ("outputs",)

    def after_forward(self, run: Any, outputs: dict[str, Any]) -> None:
        self.spoil(run, outputs)

    def before_backward(self, run: Any, outputs: dict[str, Any]) -> None:
        self.spoil(run, outputs)

    def spoil(self, run: Any, outputs: dict[str, Any]) -> None:
        if run.iter == 2:
            outputs["loss"] = outputs["loss"] * torch.nan


class SpoilsOutput:
    """Makes the output of a module NaN in iteration 3."""

    def forward(
        self,
        run: Any,
        module: torch.nn.Module,
        input: Any,  # noqa: A002
        output: torch.Tensor,
    ) -> torch.Tensor:
        return output * torch.nan if run.iter == 2 else output


class SpoilsBatch:
    """Makes the inputs of iteration 3 NaN in place."""

    writes = ("batch",)

    def before_train_iter(self, run: Any, batch: Any) -> None:
        if run.iter == 2:
            batch[0].fill_(torch.nan)
