"""What a checkpoint costs: the training thread with and without another one that writes, and a whole resume.

    python benchmarks/checkpoint.py

A net of ten million parameters with AdamW (so three times its size in tensors) on the CPU. The first table has how
long the training stands still for a checkpoint that is written beside it (the first one of a run, into the memory that
another thread has taken for it, and those that follow), how long that memory takes, and how long the same write takes
when it is waited for, beside the plainest things there are in the same process: `torch.save` of the same state into a
file, and a copy of its tensors into memory that is there.
The second has how long commands take until the first iteration is done, from the first instruction of the process on:
a fresh run, and one that is resumed from such a checkpoint, beside a Python that imports torch and nothing else. In
turns, medians; compare the multiples between machines.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hookflow.runner.checkpoint.manager import HostCopy, Saving, begin
from hookflow.runner.checkpoint.store import CheckpointStore, read

ROUNDS = 7
WIDTH, LAYERS = 1024, 10

PIPELINE = f"""
[run]
name = "resumes"
default_hooks = false
max_iters = 1000
[model]
use = "{Path(__file__).resolve()}:net"
[optimizer]
use = "torch.optim:AdamW"
[task]
use = "hookflow.zoo.tasks:Regression"
[data.train]
use = "{Path(__file__).resolve()}:Noise"
[hooks.checkpoint]
use = "checkpoint"
points = ["after_train_iter"]
[hooks.first]
use = "{Path(__file__).resolve()}:FirstIteration"
args = {{ file = "MARK" }}
"""


def net() -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


class Noise:
    """One batch of noise, again and again."""

    def __init__(self) -> None:
        size = {"examples": 8000, "batches": 1000, "batch_size": 8}
        self.info = {"name": "noise", **size, "synthetic": True, "note": "noise"}

    def __len__(self) -> int:
        return 1000

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        batch = torch.zeros(8, WIDTH), torch.zeros(8, WIDTH)
        for _ in range(start, 1000):
            yield batch


class FirstIteration:
    """Notes when a process has done its first iteration, and lets it end then."""

    writes = {"after_train_iter": ("control",)}  # noqa: RUF012  # it is read, never changed

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    def after_train_iter(self, run: Any) -> None:
        self.file.write_text(str(time.time()))
        run.stop("this is all there is to measure")


def state() -> dict[str, Any]:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, WIDTH)).square().mean().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "position": {"iter": 1}}


def timed(work: Callable[[], Any]) -> float:
    """Return how many milliseconds a call takes."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def saves(folder: Path) -> dict[str, list[float]]:
    """Return the milliseconds of each way to save, "torch.save" first."""
    whole = state()
    tensors = [*whole["model"].values()]
    tensors += [tensor for entry in whole["optimizer"]["state"].values() for tensor in entry.values()]
    memory = [tensor.clone() for tensor in tensors]
    store, copy, saving = CheckpointStore(folder / "checkpoints"), HostCopy(reuse=True), None
    spent: dict[str, list[float]] = {
        name: [] for name in ("torch.save", "copy alone", "waited for", "memory", "first beside", "beside", "read back")
    }

    def beside(copy: HostCopy) -> None:
        nonlocal saving
        copied = copy.of(whole)
        saving = Saving(copied, ["last"], {"it": 1, "ep": 0}, 0.0)
        begin(saving, lambda: store.save(copied, ["last"], {"it": 1, "ep": 0}), lambda: None)

    copy.of(whole)
    for _ in range(ROUNDS):
        spent["torch.save"].append(timed(lambda: torch.save(whole, folder / "plain.pt")))
        spent["copy alone"].append(
            timed(lambda: [to.copy_(tensor) for to, tensor in zip(memory, tensors, strict=True)])
        )
        spent["waited for"].append(timed(lambda: store.save(whole, ["last"], {"it": 1, "ep": 0})))
        fresh = HostCopy(reuse=False)
        spent["memory"].append(timed(lambda by=fresh: by.prepare(tensors)))
        for name, by in ("first beside", fresh), ("beside", copy):
            spent[name].append(timed(lambda by=by: beside(by)))
            path, saving = saving.result().path, None  # type: ignore[attr-defined]  # frees what is not used again
        spent["read back"].append(timed(lambda path=path: read(path)))
        store.prune(keep=1)
    return spent


def starts(folder: Path) -> dict[str, list[float]]:
    """Return the milliseconds until the first iteration is done; of a Python that imports torch, until it ends."""
    pipeline, mark = folder / "resumes.toml", folder / "mark"
    pipeline.write_text(PIPELINE.replace("MARK", str(mark)))
    spent: dict[str, list[float]] = {"import torch": [], "fresh": [], "resumed": []}
    commands = {"fresh": ["run", str(pipeline)], "resumed": ["run", "--resume"]}
    for _ in range(ROUNDS):
        spent["import torch"].append(timed(lambda: subprocess.run([sys.executable, "-c", "import torch"], check=True)))
        for name, words in commands.items():
            began = time.time()
            command = [sys.executable, "-m", "hookflow", *words]
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
            spent[name].append((float(mark.read_text()) - began) * 1e3)
    return spent


def show(spent: dict[str, list[float]]) -> None:
    """Print the median of each, and as a multiple of the first."""
    first, *_ = spent
    print(f"\n{'':<16}{'ms':>8}  {'x ' + first:>16}")
    medians = {name: statistics.median(times) for name, times in spent.items()}
    for name, median in medians.items():
        print(f"{name:<16}{median:>8.0f}  {median / medians[first]:>16.2f}")


def main() -> None:
    size = sum(parameter.numel() for parameter in net().parameters())
    print(f"{size / 1e6:.1f} M parameters, medians of {ROUNDS} rounds, {torch.get_num_threads()} threads")
    with tempfile.TemporaryDirectory() as folder:
        show(saves(Path(folder)))
        show(starts(Path(folder)))


if __name__ == "__main__":
    main()
