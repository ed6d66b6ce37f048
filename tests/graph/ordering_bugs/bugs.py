"""The hooks of eight bugs that other frameworks had, each at home in the issue above it."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


# Savers as other frameworks have them: each writes a file of its own in its turn, whatever comes
# after it.
class SavesWeights:
    """Saves the weights as they are when its turn comes."""

    def after_val(self, run: Any) -> None:
        self.save(run)

    def after_train_iter(self, run: Any) -> None:
        self.save(run)

    def save(self, run: Any) -> None:
        torch.save(run.model.state_dict(), run.dir / f"weights-{run.iter}.pt")


class SavesHooks:
    """Saves what the other hooks know when its turn comes."""

    def after_val(self, run: Any) -> None:
        states = {
            name: hook.state_dict()
            for name, hook in run.hooks.items()
            if hasattr(hook, "state_dict")
        }
        torch.save(states, run.dir / f"hooks-{run.epoch}.pt")


# pytorch/ignite#706: a metric is logged before it is computed, so that each value is the last
# epoch's.
class Accuracy:
    """Counts over a validation; the value stands until the next one is there."""

    def __init__(self) -> None:
        self.right = self.seen = 0
        self.value = 0.0

    def after_val_iter(self, outputs: dict[str, torch.Tensor]) -> None:
        self.right += int((outputs["logits"].argmax(1) == outputs["target"]).sum())
        self.seen += len(outputs["target"])

    def after_val_epoch(self) -> None:
        self.value = self.right / self.seen
        self.right = self.seen = 0


class Logs:
    """Logs the value of the metric."""

    def after_val_epoch(self, run: Any) -> None:
        run.log("accuracy", run.hooks["accuracy"].value)


# Lightning#1464: the state of early stopping is saved before it is updated, and so lags one epoch
# behind.
class Stops:
    """Early stopping, with a state that a checkpoint is to keep."""

    def __init__(self, patience: int = 5) -> None:
        self.patience = patience
        self.best, self.waited = float("inf"), 0

    def after_val(self, run: Any) -> None:
        self.waited = 0 if run.metrics["loss"] < self.best else self.waited + 1
        self.best = min(self.best, run.metrics["loss"])

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.waited = state["best"], state["waited"]


# Lightning#1592: callbacks that depend on one another in a chain, in a list that says nothing of
# it.
class Best:
    """Keeps the best loss."""

    def __init__(self) -> None:
        self.loss = float("inf")

    def after_val(self, run: Any) -> None:
        self.loss = min(self.loss, run.metrics["loss"])


class Patience:
    """Counts the validations since the best one, which another hook knows."""

    def __init__(self) -> None:
        self.seen, self.waited = float("inf"), 0

    def after_val(self, run: Any) -> None:
        best = run.hooks["best"].loss
        self.waited = 0 if best < self.seen else self.waited + 1
        self.seen = best

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen, self.waited = state["seen"], state["waited"]


# Lightning#18265: what is made of the outputs after a batch comes after those who expect it.
class Normalizes:
    """Makes probabilities of the logits, for everybody who looks at the outputs from here on."""

    def after_train_iter(self, outputs: dict[str, torch.Tensor]) -> None:
        outputs["logits"] = outputs["logits"].detach().softmax(1)


class Writes:
    """Writes predictions to a file, and takes them to be probabilities."""

    def after_train_iter(self, run: Any, outputs: dict[str, torch.Tensor]) -> None:
        torch.save(outputs["logits"].detach(), run.dir / f"predictions-{run.iter}.pt")


# Lightning#9950: what is entered A, B, C is left A, B, C, and each puts back what it found when it
# was entered.
class Changes:
    """Validates other weights: keeps those that it finds, and puts these back."""

    def __init__(self, factor: float = 0.5) -> None:
        self.factor = factor
        self.found: list[torch.Tensor] = []

    def before_val(self, run: Any) -> None:
        self.found = _scaled(run.model, self.factor)

    def after_val(self, run: Any) -> None:
        _put_back(run.model, self.found)


class Encloses:
    """Does the same by one method around the validation: the halves cannot come apart."""

    def __init__(self, factor: float = 0.5) -> None:
        self.factor = factor

    def around_val(self, run: Any) -> Iterator[None]:
        found = _scaled(run.model, self.factor)
        yield
        _put_back(run.model, found)


def _scaled(model: nn.Module, factor: float) -> list[torch.Tensor]:
    found = [weights.detach().clone() for weights in model.parameters()]
    for weights in model.parameters():
        weights.data.mul_(factor)
    return found


def _put_back(model: nn.Module, found: list[torch.Tensor]) -> None:
    for weights, before in zip(model.parameters(), found, strict=True):
        weights.data.copy_(before)


# mosaicml/llm-foundry#1515: an exporter ahead of the saver is slow, and what it does to the weights
# is saved.
class Exports:
    """Exports the model in half the precision: casts it in place, writes it, and casts it back."""

    def after_val(self, run: Any) -> None:
        run.model.bfloat16()
        torch.save(run.model.state_dict(), run.dir / f"export-{run.epoch}.pt")
        run.model.float()


# open-mmlab/mmcv#689: the average must come after the update and before the checkpoint, and all
# three are "normal".
class Projects:
    """The last part of an update: each weight matrix is pulled back into a ball."""

    def after_train_iter(self, run: Any) -> None:
        with torch.no_grad():
            for weights in run.model.parameters():
                weights.mul_(min(1.0, 0.5 / float(weights.norm())))


class Average:
    """An average of the weights, updated after each iteration;
    the model has it among its own buffers.
    """

    def before_run(self, run: Any) -> None:
        for name, weights in list(run.model.named_parameters()):
            run.model.register_buffer(f"ema_{name.replace('.', '_')}", weights.detach().clone())

    def after_train_iter(self, run: Any) -> None:
        for name, weights in run.model.named_parameters():
            run.model.get_buffer(f"ema_{name.replace('.', '_')}").lerp_(weights.detach(), 0.1)


# mir-group/nequip#590: a checkpoint is saved while the average is still swapped in for the
# validation.
class SwappedAverage:
    """Swaps the average in before a validation and out after it,
    by two methods that know nothing of each other.
    """

    def __init__(self) -> None:
        self.average: dict[str, torch.Tensor] = {}

    def after_optimizer_step(self, run: Any) -> None:
        for name, weights in run.model.named_parameters():
            self.average.setdefault(name, weights.detach().clone()).lerp_(weights.detach(), 0.1)

    def before_val(self, run: Any) -> None:
        self.swap(run)

    def after_val(self, run: Any) -> None:
        self.swap(run)

    def swap(self, run: Any) -> None:
        for name, weights in run.model.named_parameters():
            kept = weights.detach().clone()
            weights.data.copy_(self.average[name])
            self.average[name].copy_(kept)
