"""What a checkpoint costs: the training thread with and without another one that writes, and a resume.

    python benchmarks/checkpoint.py

A net of ten million parameters with AdamW (so three times its size in tensors) is trained on the CPU. Prints how long
the training stands still for a checkpoint that is written beside it, how long the same write takes when it is waited
for, and how long until a killed run goes on, each in milliseconds, and as a multiple of the plainest thing there is in
the same process: `torch.save` of the same state into a file. Compare the multiples between machines.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hookflow.runner.checkpoint import CheckpointStore, read
from hookflow.runner.saving import begin, on_host

ROUNDS = 7
WIDTH, LAYERS = 1024, 10


def state() -> dict[str, Any]:
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.randn(8, WIDTH)).square().mean().backward()
    optimizer.step()
    return {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "position": {"iter": 1}}


def timed(work: Callable[[], Any]) -> float:
    """Return how many milliseconds a call takes."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def main() -> None:
    whole = state()
    size = sum(tensor.numel() for tensor in whole["model"].values())
    cpu = torch.device("cpu")
    spent: dict[str, list[float]] = {"torch.save": [], "waited for": [], "written beside": [], "read back": []}
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(Path(folder) / "checkpoints")

        def beside() -> None:
            facts = {"it": 1}
            nonlocal saving
            copied = on_host(whole)
            saving = begin(lambda: store.save(copied, ["last"], facts), copied, ["last"], facts, 0.0)

        saving: Any = None
        for _ in range(ROUNDS):
            spent["torch.save"].append(timed(lambda: torch.save(whole, Path(folder) / "plain.pt")))
            spent["waited for"].append(timed(lambda: store.save(whole, ["last"], {"it": 1})))
            spent["written beside"].append(timed(beside))
            path = saving.result().path
            spent["read back"].append(timed(lambda path=path: read(path, cpu)))
            store.prune(keep=1)
    print(f"{size / 1e6:.1f} M parameters, medians of {ROUNDS} rounds\n")
    print(f"{'':<16}{'ms':>8}  {'x torch.save':>12}")
    plain = statistics.median(spent["torch.save"])
    for name, times in spent.items():
        middle = statistics.median(times)
        print(f"{name:<16}{middle:>8.0f}  {middle / plain:>12.2f}")


if __name__ == "__main__":
    main()
