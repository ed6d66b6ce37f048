"""Hooks that declare nothing, as people write them, with mistakes in their order:
"./undeclared_hooks.py:…".
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from hookflow.zoo.tasks import Classification


class SwappedAverage:
    """Keeps an average of the weights and puts it in their place for the validation."""

    def __init__(self) -> None:
        self.average: dict[str, torch.Tensor] = {}
        self.trained: dict[str, torch.Tensor] = {}

    def after_optimizer_step(self, run: Any) -> None:
        for name, tensor in run.model.state_dict().items():
            self.average[name] = 0.5 * self.average.get(name, tensor) + 0.5 * tensor

    def before_val(self, run: Any) -> None:
        self.trained = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
        run.model.load_state_dict(self.average)

    def after_val(self, run: Any) -> None:
        run.model.load_state_dict(self.trained)


class Saver:
    def after_val(self, run: Any) -> None:
        torch.save(run.model.state_dict(), run.dir / "weights.pt")


class Plateau:
    """Halves the rates after each validation, and counts that."""

    def __init__(self) -> None:
        self.halved = 0

    def after_val(self, run: Any) -> None:
        self.halved += 1
        for group in run.optimizer.param_groups:
            group["lr"] /= 2


class SaverOfStates:
    def after_val(self, run: Any) -> None:
        states = {"halved": run.hooks["plateau"].halved, "optimizer": run.optimizer.state_dict()}
        torch.save(states, run.dir / "states.pt")


class Score:
    def after_val_epoch(self, metrics: dict[str, Any]) -> None:
        metrics["score"] = -metrics["loss"]


class FillsQueue:
    def before_train(self, run: Any) -> None:
        run.task.queue = []

    def after_train_iter(self, run: Any) -> None:
        assert isinstance(run.task, Classification)
        run.task.queue.append(run.iter)


class CountsQueue:
    def after_train_iter(self, run: Any) -> None:
        self.count = len(run.task.queue)


class Judge:
    def after_val_epoch(self, metrics: dict[str, Any]) -> None:
        assert metrics["score"] < 10


def clips_by_numpy(run: Any) -> None:
    for parameter in run.model.parameters():
        array = parameter.grad.numpy()
        np.clip(array, -0.01, 0.01, out=array)


def writes_by_data(run: Any) -> None:
    next(run.model.parameters()).data.mul_(0.99)


def replaces(run: Any) -> None:
    run.model.head.bias = torch.nn.Parameter(torch.zeros(3))


def trains_again(run: Any) -> None:
    """Take a step of its own, in the middle of everything."""
    run.model(torch.ones(8, 4)).sum().backward()
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter -= 0.1 * parameter.grad


def draws_torch(run: Any) -> None:
    torch.rand(1)


def draws_in_forward(run: Any, output: torch.Tensor) -> None:
    torch.rand(1)


def writes_when_logged(run: Any, name: str) -> None:
    with torch.no_grad():
        run.model.head.bias.mul_(1.0)


def leaves_a_note(run: Any) -> None:
    run._note = run.iter


def reads_the_note(run: Any) -> None:
    assert run._note >= 0


def looks_at_shapes(run: Any, batch: Any, outputs: Any) -> None:
    assert [p.shape for p in run.model.parameters()]
    assert len(batch) == 2


def looks_at_the_batch(batch: Any) -> None:
    assert batch[0].sum() < 1e9


def asks_for_its_size(run: Any) -> None:
    assert run.batch_size


def keeps_the_rate(run: Any) -> None:
    for group in run.optimizer.param_groups:
        group["lr"] = group["lr"]


def asks_for_a_metric(run: Any) -> None:
    assert run.metric("loss") < 1e9


def makes_a_metric(metrics: dict[str, Any]) -> None:
    metrics["mine"] = 1.0


def saves_all(run: Any) -> None:
    torch.save([run.model, run.optimizer.state_dict()], run.dir / "all.pt")


def logs(run: Any) -> None:
    run.log("mine", 1.0)


def stops(run: Any) -> None:
    run.stop("enough")


def halves_generator(run: Any) -> None:
    with torch.no_grad():
        for parameter in run.models["generator"].parameters():
            parameter.mul_(0.5)
    for group in run.optimizers["generator"].param_groups:
        group["lr"] *= 0.5


def decays(run: Any) -> None:
    for group in run.optimizer.param_groups:
        group["weight_decay"] = 0.1


def forgets_momentum(run: Any) -> None:
    run.optimizer.state.clear()


def scales_the_batch(batch: Any) -> None:
    batch[0].mul_(1.0)


def changes_the_loss(outputs: dict[str, Any]) -> None:
    outputs["loss"] = outputs["loss"] * 2


def adds_to_checkpoint(checkpoint: dict[str, Any]) -> None:
    checkpoint["extra"] = {"best": 1}


def reads_checkpoint(checkpoint: dict[str, Any]) -> None:
    assert checkpoint["position"]["iter"] >= 0


class Teacher:
    def after_train_iter(self, run: Any) -> None:
        run.hooks["plateau"].halved = 7


def fails(run: Any) -> None:
    raise RuntimeError("on purpose")


def leaves_a_file(run: Any) -> None:
    Path(run.dir / "mine.txt").write_text("mine")
