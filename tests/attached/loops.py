"""A loop of one's own, by hand and attached:
a small network on batches that the global generator draws.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam, Optimizer

import hookflow

ITERS = 12
EVAL_EVERY = 4
BATCHES = 2
"""Batches of an iteration."""


class Net(nn.Module):
    """Two layers, with a dropout, which draws from the global generator."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]


def draw() -> tuple[Tensor, Tensor]:
    x = torch.randn(8, 4)
    return x, (x.sum(dim=1) > 0).long() + (x[:, 0] > 0).long()


def net_and_optimizer(seed: int = 1) -> tuple[Net, Optimizer]:
    torch.manual_seed(seed)
    net = Net()
    return net, Adam(net.parameters(), lr=0.01)


def by_hand(
    iters: int = ITERS,
    each: Callable[[int, Net, Optimizer], None] = lambda it, net, optimizer: None,
) -> Net:
    """Train without hookflow. `each` is called before each step."""
    net, optimizer = net_and_optimizer()
    for it in range(iters):
        for _ in range(BATCHES):
            x, y = draw()
            (cross_entropy(net(x), y) / BATCHES).backward()
        each(it, net, optimizer)
        optimizer.step()
        optimizer.zero_grad()
    return net


@torch.no_grad()
def estimate(net: Net) -> float:
    """Return the mean loss of batches that the global generator draws."""
    losses = [cross_entropy(net(x), y) for x, y in (draw() for _ in range(3))]
    return float(torch.stack(losses).mean())


def attached(
    hooks: Mapping[str, Any],
    runs: Path,
    *,
    act: Callable[[int, Any], None] = lambda it, run: None,
    validates: bool = True,
    iters: int = ITERS,
    run: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[Net, Path]:
    """Train in an attached loop; return the network and the run directory.

    `act` is called in each iteration.
    """
    net, optimizer = net_and_optimizer()
    tables = {"run": {"name": "own", **(run or {})}, "hooks": dict(hooks)}
    options = {"model": net, "optimizer": optimizer, "max_iters": iters, "runs": runs, **options}
    with hookflow.attach(tables, **options) as attachment:
        folder = attachment.dir
        for it in attachment:
            if validates and it % EVAL_EVERY == 0:
                with attachment.validation() as metrics:
                    metrics["loss"] = estimate(net)
            for _ in range(BATCHES):
                x, y = draw()
                attachment.backward(cross_entropy(net(x), y) / BATCHES)
            act(it, attachment)
            optimizer.step()
            optimizer.zero_grad()
        if validates:
            with attachment.validation() as metrics:
                metrics["loss"] = estimate(net)
    return net, folder


def weights(net: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in net.parameters()]


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, weights(one), weights(other)))
