"""The cost of `hookflow.attach`: a loop of one's own with the default hooks beside the same loop
alone, and of `fire`.

    python benchmarks/attached.py [ITERATIONS]

The loop trains a GPT of two layers on random tokens, an iteration of a few milliseconds on one
core. An iteration alone and one attached take turns, in CPU time, so that a busy machine slows
both. A point that nothing is bound to is fired so often that its time shows.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import hookflow

BLOCK, WIDTH, HEADS, BATCH, TOKENS = 32, 48, 4, 16, 64
WARM_UP = 20
FIRED = 200_000
"""How often the unbound point is fired."""
POINT = "nothing_there"


class Block(nn.Module):
    """A transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        up, down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), up, nn.GELU(), down)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        result: Tensor = x + self.mlp(x)
        return result


def make() -> tuple[nn.Module, torch.optim.Optimizer, Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(TOKENS, WIDTH), Block(), Block(), nn.Linear(WIDTH, TOKENS))
    tokens = torch.randint(TOKENS, (BATCH, BLOCK + 1))
    return net, torch.optim.AdamW(net.parameters(), lr=1e-3), tokens


def loss_of(net: nn.Module, tokens: Tensor) -> Tensor:
    logits = net(tokens[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def loops(iterations: int, folder: Path) -> dict[str, list[float]]:
    """Return the microseconds of each iteration of the loop alone and attached;
    the two take turns.
    """
    net, optimizer, tokens = make()
    other, other_optimizer, _ = make()
    took: dict[str, list[float]] = {"alone": [], "attached": []}
    count = WARM_UP + iterations
    ended = 0
    with hookflow.attach(
        {"run": {"name": "bench"}}, model=net, optimizer=optimizer, max_iters=count, runs=folder
    ) as run:
        for it in run:
            began = time.process_time_ns()
            if it > WARM_UP:
                took["attached"].append((began - ended) / 1e3)
            loss_of(other, tokens).backward()
            other_optimizer.step()
            other_optimizer.zero_grad()
            ended = time.process_time_ns()
            if it > WARM_UP:
                took["alone"].append((ended - began) / 1e3)
            run.backward(loss_of(net, tokens))
            optimizer.step()
            optimizer.zero_grad()
    return took


def fire(folder: Path) -> float:
    """Return the microseconds of firing a point that nothing is bound to."""
    tables = {"run": {"name": "bench"}, "points": {POINT: {"follows": "before_train"}}}
    with hookflow.attach(tables, runs=folder) as run:
        best = float("inf")
        for _ in range(5):
            began = time.process_time_ns()
            for _ in range(FIRED):
                run.fire(POINT)
            fired = time.process_time_ns() - began
            began = time.process_time_ns()
            for _ in range(FIRED):
                pass
            best = min(best, fired - (time.process_time_ns() - began))
    return best / FIRED / 1e3


def measure(iterations: int) -> dict[str, float]:
    """Return the medians of the loop alone and attached, how far the first and the last half of the
    loop alone lie apart, as a share, and the microseconds of `fire`.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        took = loops(iterations, Path(folder))
        fired = fire(Path(folder))
    by_hand = statistics.median(took["alone"])
    half = len(took["alone"]) // 2
    halves = statistics.median(took["alone"][:half]), statistics.median(took["alone"][half:])
    drift = abs(halves[1] - halves[0]) / by_hand
    return {
        "alone": by_hand,
        "attached": statistics.median(took["attached"]),
        "drift": drift,
        "fire": fired,
    }


def main() -> None:
    iterations = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    figures = measure(iterations)
    ratio = figures["attached"] / figures["alone"]
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    print(f"loop alone: {figures['alone']:.0f} µs (wavered {figures['drift']:.1%})")
    print(f"attached, with the default hooks: {figures['attached']:.0f} µs, ratio {ratio:.3f}")
    print(f"run.fire with nothing bound: {figures['fire']:.3f} µs")


if __name__ == "__main__":
    main()
