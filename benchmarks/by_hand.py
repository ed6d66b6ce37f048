"""A training so small that what surrounds it shows, as a loop written by hand; and the feed that
takes its time.

`by_hookflow.py` is the same training by the runner, with the same net and the same feed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn import functional

CHUNK = 250
"""Iterations between two looks at the clock."""
WARM_UP = 2 * CHUNK
EXAMPLES, FEATURES, CLASSES, RATE = 32, 32, 10, 0.01


def net() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES)


class Feed:
    """The batches of an epoch, from memory; looks at a clock before and after each chunk of them.

    Measuring costs the same few nanoseconds in either loop. The end of an epoch is in no chunk.
    """

    def __init__(
        self, length: int, chunk: int = CHUNK, clock: Callable[[], int] = time.process_time_ns
    ) -> None:
        if length % chunk:
            raise ValueError(
                f"an epoch of {length} iterations has no whole number of chunks of {chunk}"
            )
        self.length, self.clock = length, clock
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(16, EXAMPLES, FEATURES, generator=generator)
        target = torch.randint(CLASSES, (16, EXAMPLES), generator=generator)
        batches = [(inputs[k].clone(), target[k].clone()) for k in range(16)]
        self.chunk = [batches[k % 16] for k in range(chunk)]
        self.epochs: list[list[tuple[int, int]]] = []
        """For each epoch the clock, in nanoseconds, before and after its chunks.

        The last chunk has no end where the loop does not ask for a batch beyond it: then it is left
        out.
        """

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        chunks: list[tuple[int, int]] = []
        self.epochs.append(chunks)
        for _ in range(self.length // len(self.chunk)):
            began = self.clock()
            yield from self.chunk
            chunks.append((began, self.clock()))

    def microseconds(self, chunks: list[tuple[int, int]]) -> float:
        """Return the microseconds of an iteration, the median of the chunks."""
        return statistics.median(ended - began for began, ended in chunks) / len(self.chunk) / 1e3


def train(feed: Feed) -> None:
    """Train one epoch."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for inputs, target in feed:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), target)
        loss.backward()
        optimizer.step()


def microseconds(iterations: int) -> float:
    """Return the microseconds of an iteration: the median of the chunks,
    without those of the warm-up.
    """
    feed = Feed(WARM_UP + iterations)
    train(feed)
    return feed.microseconds(feed.epochs[0][WARM_UP // CHUNK :])
