"""The cost of a loader's workers by how they are started: seconds to the first batch, and memory.

    python benchmarks/workers.py

Data: 50,000 images of 3×32×32 bytes, once as a NumPy array and once as a tensor, fetched by two
workers. Memory is that of the workers and their fork server, where pages that several processes
share count for each its share (PSS).
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import psutil
import torch

from hookflow.errors import Where
from hookflow.pipeline.by_epoch import ByEpoch
from hookflow.pipeline.components import LoaderSection
from hookflow.runner.data.batches import DataContext
from hookflow.runner.data.loader import Loader
from hookflow.runner.data.loader_parts import LoaderParts

SHAPE = (50_000, 3, 32, 32)


class Images:
    """Images in memory, as an array or as a tensor."""

    def __init__(self, kind: str) -> None:
        self.images: Any = (
            np.ones(SHAPE, np.uint8) if kind == "array" else torch.ones(SHAPE, dtype=torch.uint8)
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        return torch.as_tensor(self.images[index]).float()


def cost(kind: str, method: Any) -> tuple[float, float, float]:
    """Return the seconds to the first batch, those of 200 more,
    and the MiB that the processes beside this one take.
    """
    section = LoaderSection(
        batch_size=ByEpoch.constant(64), workers=2, multiprocessing_context=method
    )
    context = DataContext(0, torch.device("cpu"), channels_last=False, say=print)
    parts = LoaderParts(section, context, lambda key: Where(f"loader.{key}"), "train", shuffle=True)
    data, before = Images(kind), {child.pid for child in psutil.Process().children()}
    began = time.perf_counter()
    loader = Loader(data, parts)
    batches = loader.epoch(0)
    next(batches)
    first = time.perf_counter()
    for _ in range(200):
        next(batches)
    end = time.perf_counter()
    processes = [
        process
        for process in psutil.Process().children(recursive=True)
        if process.pid not in before
    ]
    held = sum(process.memory_full_info().pss for process in processes)
    loader.close()
    return first - began, end - first, held / 2**20


def main() -> None:
    """Print a line for each kind of data and each method;
    the fork server is there after its first line.
    """
    for kind in ("array", "tensor"):
        for method in ("fork", "forkserver", "spawn"):
            first, rest, held = cost(kind, method)
            print(
                f"{kind:7} {method:11} first batch {first:5.2f} s, 200 more {rest:5.2f} s, memory"
                f" {held:6.0f} MiB"
            )


if __name__ == "__main__":
    main()
