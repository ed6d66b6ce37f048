"""The cost of a checkpoint: how long the training waits for it, and how long a resume takes. Prints
two tables.

    python benchmarks/checkpoint.py

A net of ten million parameters with AdamW (so three times its size in tensors) on the CPU. The
figures are medians; compare the multiples between machines. The first table is of one state in one
process:

    torch.save      PyTorch's own, into a file
    copy alone      a copy of its tensors into memory that is there
    waited for      a checkpoint, if the training waited for its write
    memory          taking memory for the first copy, which a run does in another thread
    beside: first   the first checkpoint of a run, which another thread writes
    beside          those that follow, which are copied into the same memory
    read back       reading and checking it

The second has the time from the start of a process to the end of its first iteration: of a fresh
run, and of one that is resumed, beside a Python that imports torch and nothing else.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hookflow.runner.checkpoint.store import CheckpointStore, read
from hookflow.runner.state.checkpoint_manager import PendingCheckpoint, begin
from hookflow.runner.state.host_copy import HostCopier

HERE = Path(__file__).resolve()
ROUNDS = 7
WIDTH, LAYERS = 1024, 10
FACTS = {"it": 1, "ep": 0}

PIPELINE = f"""
[run]
name = "resumes"
default_hooks = false
max_iters = 1000
[model]
use = "{HERE}:net"
[optimizer]
use = "torch.optim:AdamW"
[task]
use = "hookflow.zoo.tasks:Regression"
[data.train]
use = "{HERE}:batches"
[hooks.checkpoint]
use = "checkpoint"
points = ["after_train_iter"]
[hooks.first]
use = "{HERE}:FirstIteration"
args = {{ file = "MARK" }}
"""


def net() -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.zeros(8, WIDTH), torch.zeros(8, WIDTH))]


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
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "position": {"iter": 1},
    }


def timed(call: Callable[..., object], *arguments: Any) -> float:
    """Return how many milliseconds a call takes."""
    began = time.perf_counter()
    call(*arguments)
    return (time.perf_counter() - began) * 1e3


def saves(folder: Path) -> dict[str, list[float]]:
    """Return the milliseconds of each way to save, "torch.save" first."""
    whole = state()
    tensors = [*whole["model"].values()]
    tensors += [
        tensor for entry in whole["optimizer"]["state"].values() for tensor in entry.values()
    ]
    memory = [tensor.clone() for tensor in tensors]
    store, copier = CheckpointStore(folder / "checkpoints"), HostCopier()
    spent: dict[str, list[float]] = defaultdict(list)
    copier.give_back(copier.copy(whole))
    for _ in range(ROUNDS):
        spent["torch.save"].append(timed(torch.save, whole, folder / "plain.pt"))
        spent["copy alone"].append(timed(torch._foreach_copy_, memory, tensors))
        spent["waited for"].append(timed(store.save, whole, ["last"], FACTS))
        fresh = HostCopier()
        spent["memory"].append(timed(fresh.prepare, tensors))
        for name, by in ("beside: first", fresh), ("beside", copier):
            ms, saved = beside(store, by, whole)
            spent[name].append(ms)
        spent["read back"].append(timed(read, saved))
        store.prune(keep=1)
    return spent


def beside(store: CheckpointStore, copier: HostCopier, whole: dict[str, Any]) -> tuple[float, Path]:
    """Save by another thread; return the milliseconds that this one takes for it,
    and the checkpoint.
    """
    began = time.perf_counter()
    copied = copier.copy(whole)
    saving = PendingCheckpoint(copied, ["last"], FACTS, 0.0)
    begin(saving, lambda: store.save(copied.state, ["last"], FACTS), lambda: None)
    ms = (time.perf_counter() - began) * 1e3
    saved = saving.outcome.result().path
    copier.give_back(copied)
    return ms, saved


def starts(folder: Path) -> dict[str, list[float]]:
    """Return the milliseconds until the first iteration is done;
    of a Python that imports torch, until it ends.
    """
    pipeline, mark = folder / "resumes.toml", folder / "mark"
    pipeline.write_text(PIPELINE.replace("MARK", str(mark)))
    spent: dict[str, list[float]] = defaultdict(list)
    commands = {"fresh": ["run", str(pipeline)], "resumed": ["run", "--resume"]}
    for _ in range(ROUNDS):
        spent["import torch"].append(
            timed(subprocess.check_call, [sys.executable, "-c", "import torch"])
        )
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
    print(
        f"{size / 1e6:.1f} M parameters, medians of {ROUNDS} rounds, {torch.get_num_threads()}"
        " threads"
    )
    with tempfile.TemporaryDirectory() as folder:
        show(saves(Path(folder)))
        show(starts(Path(folder)))


if __name__ == "__main__":
    main()
