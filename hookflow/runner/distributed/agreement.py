"""What the processes that train together agree on, so that none of them ever stops, saves or pauses alone.

At every boundary each rank says what it has been asked for. That takes one gather of a few numbers, and nobody waits
for it to end: its outcome is looked at one boundary later. A rank that has been asked for something itself does wait,
and so learns at once whether all the others have been, too. Then

- what all ranks want at a boundary happens there, on all of them: hooks that decide alike are met at once;
- what only some want (a signal has come here and not yet there; a command, which rank 0 alone hears) happens at the
  next boundary, on all of them.

Where `wait` is given (after an epoch, after a validation) all of them wait, and what anybody wants happens there.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from hookflow.runner.distributed.ranks import Ranks

STOP, END_EPOCH, SAVE, TELL, OBEY = (1 << bit for bit in range(5))
"""What may be wanted at a boundary; several are added up."""

EVERYTHING = STOP | END_EPOCH | SAVE | TELL | OBEY

Shared = TypeVar("Shared")


class Agreement:
    """The agreement of a process that trains alone: with itself."""

    ranks = Ranks()

    def settle(self, wants: int, *, wait: bool = False) -> int:
        """Return what is to happen at this boundary, of all that this rank or another wants."""
        return wants

    def gather(self, mine: Shared) -> list[Shared]:
        """Return what each rank has given, by rank; all must call it, and each waits for all."""
        return [mine]

    def first(self, mine: Shared) -> Shared:
        """Return what rank 0 has given; all must call it, and each waits for rank 0."""
        return mine

    def any(self, mine: bool) -> bool:
        """Return whether any rank has given True; all must call it, and each waits for all."""
        return mine

    def seconds(self) -> float:
        """Return a clock that shows the same on every rank: it moves on at boundaries, and is no later than real."""
        return time.monotonic()


ALONE = Agreement()


class Outcome(NamedTuple):
    """What some of the ranks want, what all of them do, and how long the run has lasted, in seconds."""

    some: int = 0
    everyone: int = 0
    seconds: float = 0.0


class Together(Agreement):
    """The agreement of several ranks, over a group of processes of its own, by the CPU.

    Raises RuntimeError where another rank has gone, or keeps the others waiting for more than `timeout` seconds.
    """

    def __init__(self, ranks: Ranks, timeout: float) -> None:
        self.ranks = ranks
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        self._asked: tuple[dist.Work, list[torch.Tensor]] | None = None
        self._outcome = Outcome()
        self._met = 0
        self._began = time.monotonic()
        self._seconds = 0.0

    def settle(self, wants: int, *, wait: bool = False) -> int:
        self._learn()
        self._seconds = self._outcome.seconds  # here and not before: some have learned it later than others
        overdue = self._outcome.some & ~self._met
        wants &= ~overdue
        self._ask(wants)
        self._met = 0
        if wait or wants:
            self._learn()
            self._met = self._outcome.some if wait else self._outcome.everyone
        return overdue | self._met

    def _ask(self, wants: int) -> None:
        milliseconds = int((time.monotonic() - self._began) * 1e3)
        answers = [torch.empty(2, dtype=torch.int64) for _ in range(self.ranks.world)]
        mine = torch.tensor([wants, milliseconds])
        work = dist.all_gather(answers, mine, group=self._group, async_op=True)
        assert work is not None
        self._asked = work, answers

    def _learn(self) -> None:
        """Wait for the outcome of what was asked last, if it is not known yet."""
        if self._asked is None:
            return
        work, answers = self._asked
        work.wait()
        self._asked = None
        some, everyone, latest = 0, EVERYTHING, 0
        for wants, milliseconds in (answer.tolist() for answer in answers):
            some, everyone, latest = some | wants, everyone & wants, max(latest, milliseconds)
        self._outcome = Outcome(some, everyone, latest / 1e3)

    def gather(self, mine: Shared) -> list[Shared]:
        gathered: list[Any] = [None] * self.ranks.world
        dist.all_gather_object(gathered, mine, group=self._group)
        return gathered

    def first(self, mine: Shared) -> Shared:
        given: list[Any] = [mine]
        dist.broadcast_object_list(given, src=0, group=self._group)
        shared: Shared = given[0]
        return shared

    def any(self, mine: bool) -> bool:
        flag = torch.tensor(int(mine))
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._group)
        return bool(flag)

    def seconds(self) -> float:
        return self._seconds


def agreement_of(ranks: Ranks, timeout: float) -> Agreement:
    """Return the agreement of these ranks, whose process group stands where they are several."""
    return Together(ranks, timeout) if ranks.world > 1 else Agreement()
