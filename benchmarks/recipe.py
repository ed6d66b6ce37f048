"""The training of a pipeline file as a plain PyTorch loop: the same net, data, step and schedule, without a runner.

    python benchmarks/recipe.py [pipelines/cifar.toml] [key=value ...]

Trains on the CPU in float32 with PyTorch's own number of threads (or the pipeline's `run.threads`), measures the
accuracy on the validation set at the end, and prints the seconds of the training alone: those of the clock, those of
the processor over the threads, and the fastest iteration of each epoch times the epoch's iterations, which says what
an idle machine would take.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hookflow.hooks.builtin.schedules import LRSchedule
from hookflow.pipeline.components import OptimizerSection
from hookflow.pipeline.load import load
from hookflow.pipeline.schema import Pipeline
from hookflow.zoo.cifar10 import AirNet, Images, cifar10
from hookflow.zoo.hooks import PICTURES, whitening
from hookflow.zoo.tasks import Classification


def main() -> None:
    files = [argument for argument in sys.argv[1:] if "=" not in argument]
    overrides = [argument for argument in sys.argv[1:] if "=" in argument]
    pipeline = load(Path(files[0] if files else "pipelines/cifar.toml"), overrides).pipeline
    if pipeline.run.threads:
        torch.set_num_threads(pipeline.run.threads)
    torch.manual_seed(pipeline.run.seed)
    sources: dict[str, Any] = {"seed": pipeline.run.seed, "device": torch.device("cpu"), "say": print}
    assert pipeline.data.val is not None and pipeline.run.max_epochs is not None
    training = cifar10(**sources, **pipeline.data.train.args)
    validation = cifar10(**sources, **pipeline.data.val.args)
    model = AirNet(**pipeline.models["model"].args)
    task = Classification(**pipeline.task.args)
    with torch.no_grad():
        model.whiten.weight.copy_(whitening(training.sample(PICTURES), model.whiten.weight.shape))

    average = Average(model, **pipeline.hooks["ema"].args)
    cpu, clock = time.process_time(), time.perf_counter()
    idle = sum(train(pipeline, model, task, training, average))
    cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
    print(f"training: {clock:.1f} s; processor {cpu / torch.get_num_threads():.1f} s; if idle {idle:.1f} s")
    print(f"{validation.info['name']}, validation: accuracy {accuracy(model, task, validation):.2%}", end="")
    average.give()
    print(f", of the average {accuracy(model, task, validation):.2%}")


@dataclass
class Trained:
    """What the task needs of a run."""

    model: nn.Module


class Average:
    """The exponential moving average of the weights and of the norms' averages."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.steps = 0
        self.now = [tensor for tensor in model.state_dict().values() if tensor.is_floating_point()]
        self.average = [tensor.clone() for tensor in self.now]

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        torch._foreach_lerp_(self.average, self.now, max(1 - self.decay, 1 / (self.steps + 1)))

    @torch.no_grad()
    def give(self) -> None:
        torch._foreach_copy_(self.now, self.average)


def train(
    pipeline: Pipeline, model: nn.Module, task: Classification, source: Images, average: Average
) -> Iterator[float]:
    """Train; yield for each epoch its number of iterations times the fastest of them, in seconds."""
    optimizer = make_optimizer(pipeline.optimizers["optimizer"], model)
    schedule = LRSchedule(**pipeline.hooks["lr_schedule"].args)
    max_norm = pipeline.hooks["grad_clip"].args["max_norm"]
    epochs = pipeline.run.max_epochs or 0
    done, total = 0, epochs * len(source)
    for epoch in range(epochs):
        fastest = float("inf")
        began = time.perf_counter()
        for batch in source.epoch(epoch):
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * schedule.factor(done / total)
            loss = task.step(Trained(model), batch)["loss"]
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            average.step()
            done += 1
            now = time.perf_counter()
            fastest, began = min(fastest, now - began), now
        print(f"epoch {epoch + 1}: {loss.item():.3f} loss; fastest iteration {fastest * 1e3:.0f} ms")
        yield fastest * len(source)


def make_optimizer(section: OptimizerSection, model: nn.Module) -> torch.optim.Optimizer:
    """Return SGD over the groups that the pipeline names and one of all other parameters that train."""
    left = {name: p for name, p in model.named_parameters() if p.requires_grad}
    groups: list[dict[str, Any]] = []
    for group in section.groups:
        taken = [name for name in left if any(fnmatchcase(name, glob) for glob in group.patterns)]
        groups.append({"params": [left.pop(name) for name in taken], **group.args})
    optimizer = torch.optim.SGD([*groups, {"params": list(left.values())}], **section.args)
    for made in optimizer.param_groups:
        made["initial_lr"] = made["lr"]
    return optimizer


def accuracy(model: nn.Module, task: Classification, source: Images) -> float:
    model.eval()
    with torch.no_grad():
        outputs = [task.evaluate(Trained(model), batch) for batch in source.epoch(0)]
    right = sum(int((out["logits"].argmax(1) == out["target"]).sum()) for out in outputs)
    return right / source.info["examples"]


if __name__ == "__main__":
    main()
