"""Tasks and optimizers that compute the loss several times in a step."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from hookflow import Hook
from tests.support.own_tasks import Plain

BATCHES: list[Any] = []
"""The batches of the training, in order."""


class Net(Plain):
    """A network of the same weights in each process."""

    def __init__(self) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            super().__init__()


class SAM(torch.optim.SGD):
    """Steps by the gradients at the worst weights nearby; it begins with gradients,
    or calls the closure for them.
    """

    def __init__(
        self, params: Iterable[Any], lr: float, rho: float = 0.05, calls_first: bool = False
    ) -> None:
        super().__init__(params, lr=lr, momentum=0.9)
        self.rho, self.calls_first = rho, calls_first

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor]) -> Tensor:  # type: ignore[override]
        if self.calls_first:
            closure()
        weights = [p for group in self.param_groups for p in group["params"]]
        moves = [self.rho * p.grad / (p.grad.norm() + 1e-12) for p in weights]
        for weight, move in zip(weights, moves, strict=True):
            weight.add_(move)
        self.zero_grad()
        loss = closure()
        for weight, move in zip(weights, moves, strict=True):
            weight.sub_(move)
        super().step()
        return loss


class Fitted:
    """Gives the optimizer a closure."""

    steps_itself = True

    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        BATCHES.append(batch)

        def closure() -> Tensor:
            loss = self.loss(run, batch)
            run.backward(loss)
            return loss

        return {"loss": self.take_step(run, closure)}

    def take_step(self, run: Any, closure: Callable[[], Tensor]) -> Tensor:
        loss: Tensor = run.step(closure)
        return loss

    def loss(self, run: Any, batch: Any) -> Tensor:
        return cross_entropy(run.model(batch[0]), batch[1])

    def evaluate(self, run: Any, batch: Any) -> dict[str, Any]:
        logits = run.model(batch[0])
        return {"loss": cross_entropy(logits, batch[1]), "logits": logits, "target": batch[1]}


class FirstGradients(Fitted):
    """Computes the first gradients before the step, as most implementations of SAM want it."""

    def take_step(self, run: Any, closure: Callable[[], Tensor]) -> Tensor:
        loss = closure()
        run.step(closure)
        return loss


class Nested(Fitted):
    def take_step(self, run: Any, closure: Callable[[], Tensor]) -> Tensor:
        loss: Tensor = run.step(lambda: run.step(closure))
        return loss


class WithoutCall(torch.optim.SGD):
    """Steps with the gradients that are there."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()


class Counts(Hook):
    """Logs after each iteration how often the points of its step have fired;
    only the first writes no gradients.
    """

    reads = ("grads",)

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def after_forward(self) -> None:
        self._count("after_forward")

    def after_backward(self) -> None:
        self._count("after_backward")

    def before_optimizer_step(self) -> None:
        self._count("before_optimizer_step")

    def around_optimizer_step(self) -> Any:
        self._count("entered")
        yield
        self._count("left")

    def after_optimizer_step(self) -> None:
        self._count("after_optimizer_step")

    def after_train_iter(self, run: Any) -> None:
        for name, count in self.counts.items():
            run.log(f"counts/{name}", count)
        self.counts.clear()


class Scales(Hook):
    """Halves gradients before each step, and logs how often in an iteration."""

    writes = {"before_optimizer_step": ("grads",)}  # noqa: RUF012

    def __init__(self) -> None:
        self.calls = 0

    def before_optimizer_step(self, run: Any) -> None:
        self.calls += 1
        for parameter in run.model.parameters():
            parameter.grad.mul_(0.5)

    def after_train_iter(self, run: Any) -> None:
        run.log("scales", self.calls)
        self.calls = 0


class SkipsThird(Hook):
    """Asks to skip the step of the third iteration: at the first call of the closure,
    or at a later one.
    """

    writes = {"after_backward": ("control",), "before_optimizer_step": ("control",)}  # noqa: RUF012

    def __init__(self, call: int = 1, at_step: bool = False) -> None:
        self.call, self.at_step, self.calls = call, at_step, 0

    def before_train_iter(self) -> None:
        self.calls = 0

    def after_backward(self, run: Any) -> None:
        self.calls += 1
        if run.iter == 2 and self.calls == self.call and not self.at_step:
            run.skip_step()

    def before_optimizer_step(self, run: Any) -> None:
        if run.iter == 2 and self.at_step:
            run.skip_step()

    def after_train_iter(self, run: Any) -> None:
        run.log("skipped", float(run.step_skipped))


class Weighs(Fitted):
    """The third batch of the training counts nothing, and its loss is NaN."""

    def __init__(self) -> None:
        self.weight = 1.0

    def loss(self, run: Any, batch: Any) -> Tensor:
        loss = super().loss(run, batch)
        return loss if self.weight else loss * torch.nan

    def batch_weight(self, batch: Any) -> float:
        self.weight = 0.0 if len(BATCHES) == 2 else 1.0
        return self.weight
