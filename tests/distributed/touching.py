"""A hook that changes every weight in place at every point,
and looks whether its last change is still there.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from hookflow.graph.points import STANDARD_POINTS
from hookflow.hooks.base import Hook

TOUCHED = [
    point.name
    for point in STANDARD_POINTS
    if point.kind in ("standard", "step", "optimizer", "log")
    and point.name != "after_load_checkpoint"
]
"""Every point outside the network: within it parameters are gathered
for as long as a module computes.
"""

WRITTEN = "after_save_checkpoint"
"""A point that comes when the disk is done: the hook only looks there,
so that all runs train alike.
"""

STEP = (
    ("before_optimizer_step", "optimizer_step_pre"),
    ("optimizer_step_post", "after_optimizer_step"),
)
"""The points before and after the optimizer's step, between which the weights change."""


class Stacked(nn.Module):
    """Has two blocks that are alike, which FSDP gathers one by one, and layers around them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(2)))
        self.last = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.blocks(functional.gelu(self.first(inputs))))  # type: ignore[no-any-return]


class TouchedError(Exception):
    """Raised by the hook itself, at the end of the test."""


class Touches(Hook):
    """Adds a number of the point's own to every weight, wherever it fires,
    after a forward pass without gradients.
    """

    def __init__(self, sharded: bool = False) -> None:
        self.sharded = sharded
        """Whether each parameter is to be a shard."""
        self.seen: list[str] = []
        self.weights: dict[str, Tensor] = {}
        """What the hook left in the weights when it last fired."""
        self.last_point = ""

    def touch(self, run: Any, point: str) -> None:
        kinds = {
            name: isinstance(parameter, DTensor) for name, parameter in run.model.named_parameters()
        }
        wrong = [
            name
            for name, is_shard in kinds.items()
            if is_shard is not (self.sharded and run.world > 1)
        ]
        if wrong:
            raise AssertionError(f"{point}: {wrong} are gathered")
        now = self._whole(run)
        between = (self.last_point, point)
        is_step = between[0] in STEP[0] and between[1] in STEP[1]
        lost = [
            name
            for name, value in now.items()
            if self.weights and not torch.equal(value, self.weights[name])
        ]
        if lost and not is_step:
            raise AssertionError(f"{point}: {lost} are not as they were left at {self.last_point}")
        if point not in self.seen:
            self.seen.append(point)
        with torch.no_grad():
            run.model(torch.ones(2, 4))
        change = 0.0 if point == WRITTEN else 1e-4 * TOUCHED.index(point)
        for number, parameter in enumerate(run.model.parameters()):
            parameter.data.add_(change * (1 + number))  # beside the graph of the loss
        self.weights = self._whole(run)
        self.last_point = point

    def after_run(self, run: Any) -> None:
        self.touch(run, "after_run")
        run.say(f"touched {' '.join(sorted(self.seen))}")
        sums = [float(value.double().sum()) for value in self.weights.values()]
        run.say(f"weights {' '.join(f'{number:.9g}' for number in sums)}")

    def _whole(self, run: Any) -> dict[str, Tensor]:
        named = run.model.named_parameters()
        return {
            name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
            for name, value in named
        }


def _at(point: str) -> Callable[..., None]:
    def method(self: Touches, run: Any) -> None:
        self.touch(run, point)

    return method


for name in TOUCHED:
    if name != "after_run":
        setattr(Touches, name, _at(name))


def fails(run: Any) -> None:
    """End the run by an exception, so that it comes to `on_exception`."""
    raise TouchedError


class Halves:
    """Validates and tests half of every weight: swapped in place,
    through the optimizer's own parameters after it.
    """

    def around_val(self, run: Any) -> Iterator[None]:
        with torch.no_grad():
            for parameter in run.model.parameters():
                parameter.mul_(0.5)
        yield
        with torch.no_grad():
            for group in run.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(2)
            run.model.frozen.weight.mul_(2)
            run.model.frozen.bias.mul_(2)

    around_test = around_val


class Scales:
    """Declares that it changes weights within the network."""

    writes = ("model",)

    def forward_pre(self, module: nn.Module) -> None:
        """Change nothing: the run is refused."""


def evaluates(run: Any, batch: Any) -> None:
    """Evaluate a training batch, without gradients."""
    with torch.no_grad():
        run.evaluate(batch)


def logs_norms(run: Any) -> None:
    """Log norms that PyTorch computes from the weights and their gradients:
    with FSDP they are DTensors.
    """
    gradients = [
        parameter.grad for parameter in run.model.parameters() if parameter.grad is not None
    ]
    run.log("gradient_norm", torch.nn.utils.get_total_norm(gradients))
    logs_weights(run)


def logs_weights(run: Any) -> None:
    """Log a number that each rank has a part of, which no rank has asked the others for."""
    run.log(
        "weights_squared",
        sum(parameter.detach().square().sum() for parameter in run.model.parameters()),
    )


def penalised(run: Any, batch: Any) -> dict[str, Any]:
    """Return a loss with a penalty of the weights that is computed
    outside the network's forward pass.
    """
    inputs, target = batch
    loss = functional.cross_entropy(run.model(inputs), target)
    parameters = run.model.parameters()
    weights = [value.full_tensor() if isinstance(value, DTensor) else value for value in parameters]
    return {"loss": loss + 0.05 * sum(weight.square().sum() for weight in weights)}


class Counting(Stacked):
    """Puts other tensors in the place of its buffers: a count,
    and a mean that is each rank's own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.count = self.count + 1
            self.mean = 0.9 * self.mean + 0.1 * inputs.detach().mean(0)
        return super().forward(inputs) + 0.01 * self.count  # type: ignore[no-any-return]


def tells_buffers(run: Any) -> None:
    run.say(f"buffers {run.model.count.tolist()} {run.model.mean.tolist()}")
