"""Consensus of the ranks: stops, saves and pauses happen on all of them or on none.

At a safe point each rank has wishes, as bits. One small all-reduce combines them, and the wish of
any rank is granted at the same safe point on all of them.

- `settle` waits for the others: after an epoch, a validation, an iteration in which hooks that may
  ask have fired.
- `step` does not wait. Every few iterations it starts an exchange, and reads the outcome one
  iteration later.

Every rank computes the iterations between two exchanges from the same numbers, which travel with
the bits. Exchanges take at most MAX_EXCHANGE_SHARE of the time, unless a wish would then wait
longer than MAX_LATENCY_MICROSECONDS.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from hookflow.runner.device.cuda import device_thread
from hookflow.runner.distributed.rendezvous import RankLayout

WISH_BITS = STOP, END_EPOCH, SAVE, REPORT_SAVE, RUN_COMMANDS, VALIDATE, THROTTLE = tuple(
    1 << bit for bit in range(7)
)
"""The wishes at a safe point; several are added up."""

MAX_EXCHANGE_SHARE = 0.002
"""The share of the time that exchanges between iterations may take."""

MAX_LATENCY_MICROSECONDS = 100_000
"""Microseconds within which a wish is heard, if an iteration takes less."""

ANSWER_SECONDS = 1.0
"""Seconds after which a rank that waits for its disk answers the others.

`distributed.timeout` may be shorter, and then counts.
"""

Shared = TypeVar("Shared")


class RankConsensus:
    """The consensus of a process that trains alone, with itself; the base of that of several ranks.

    All ranks must make the same calls, in the same order. The loop need not call `step` before
    `next_iteration`.
    """

    ranks = RankLayout()
    next_iteration = sys.maxsize
    _answers = ANSWER_SECONDS

    def settle(self, wishes: int) -> int:
        """Wait for the others and return the wishes of all ranks."""
        return wishes

    def step(self, position: int, wishes: int) -> int:
        """Return the wishes that are granted after iteration `position`.

        Wishes that are given now are heard at a later one.
        """
        return wishes

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Let `step` count the batches of an evaluation, from 0.

        Earlier wishes wait until it is over.
        """
        yield

    def all_gather_object(self, mine: Shared) -> list[Shared]:
        """Return the objects of all ranks, by rank; each waits for all."""
        return [mine]

    def broadcast_object(self, mine: Shared) -> Shared:
        """Return the object of rank 0; each waits for it."""
        return self.all_gather_object(mine if self.ranks.first else None)[0]  # type: ignore[return-value]

    def any_rank(self, flag: bool) -> bool:
        """Return whether the flag of any rank is set; each waits for all."""
        return flag

    def together(self, work: Callable[[], Shared]) -> Shared:
        """Call `work` and return its result, once the calls on all ranks have ended."""
        return work()

    def wait(self, ended: Callable[[float], bool]) -> None:
        """Wait until `ended` is true on all ranks.

        It is called with the seconds to wait, and no collective times out.
        """
        while self.any_rank(not ended(self._answers)):
            continue

    def seconds(self) -> float:
        """Return a clock that is equal on every rank; of several it moves on at exchanges."""
        return time.monotonic()


class ProcessGroupConsensus(RankConsensus):
    """The consensus of several ranks, over a process group of its own, by the CPU.

    A call raises RuntimeError where another rank has gone, or waits more than `timeout` seconds.
    """

    def __init__(self, ranks: RankLayout, timeout: float) -> None:
        self.ranks = ranks
        self.next_iteration = 0
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        self._answers = min(ANSWER_SECONDS, timeout / 4)
        self._in_flight: tuple[dist.Work, torch.Tensor] | None = None
        self._every = 1
        self._last = 0
        self._timed: tuple[int, float] | None = None
        self._heard = 0
        self._seconds = 0.0
        self._cost = math.inf
        self._began = time.monotonic()
        for _ in range(3):  # the first one connects the ranks
            self._exchange(0)
        self._began = time.monotonic()
        self._seconds = 0.0

    def settle(self, wishes: int) -> int:
        heard = self._heard | self._read_outcome()
        self._heard = 0
        self._count_anew()
        return heard | self._exchange(wishes & ~heard)

    def step(self, position: int, wishes: int) -> int:
        if position < self.next_iteration:
            return 0
        heard = self._read_outcome()
        self.next_iteration = position + 1
        if heard:
            self._timed = None  # what is done about it is no part of an iteration
            return heard
        if self._timed is None:
            self._timed = (position, time.perf_counter())
            self._last = position - 1
        if position >= self._last + self._every:
            self._start(wishes, self._estimate_microseconds(position))
            self._last = position
        else:
            self.next_iteration = self._last + self._every
        return 0

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        self._heard |= self._read_outcome()
        self._count_anew(1)
        yield
        self._heard |= self._read_outcome()
        self._count_anew(1)

    def all_gather_object(self, mine: Shared) -> list[Shared]:
        gathered: list[Any] = [None] * self.ranks.world
        dist.all_gather_object(gathered, mine, group=self._group)
        return gathered

    def any_rank(self, flag: bool) -> bool:
        result = torch.tensor(int(flag))
        dist.all_reduce(result, dist.ReduceOp.MAX, group=self._group)
        return bool(result)

    def together(self, work: Callable[[], Shared]) -> Shared:
        """Call `work` in a thread: see `wait`."""
        outcome: Future[Shared] = Future()

        def call() -> None:
            try:
                outcome.set_result(work())
            except BaseException as error:
                outcome.set_exception(error)

        device_thread(call, "hookflow-together").start()
        self.wait(lambda seconds: bool(wait([outcome], seconds).done))
        return outcome.result()

    def seconds(self) -> float:
        return self._seconds

    def _exchange(self, wishes: int) -> int:
        """Exchange and wait for the outcome; the fastest measures the cost of an exchange."""
        began = time.perf_counter()
        self._start(wishes, 0)
        heard = self._read_outcome()
        self._cost = min(self._cost, (time.perf_counter() - began) * 1e6)
        return heard

    def _start(self, wishes: int, microseconds: int) -> None:
        if math.isinf(self._cost):
            cost = 0
        else:
            cost = int(self._cost)
        elapsed = int((time.monotonic() - self._began) * 1e3)
        mine = torch.tensor([*(wishes & bit for bit in WISH_BITS), elapsed, microseconds, cost])
        work = dist.all_reduce(mine, dist.ReduceOp.MAX, group=self._group, async_op=True)
        assert work is not None
        self._in_flight = work, mine

    def _read_outcome(self) -> int:
        if self._in_flight is None:
            return 0
        (work, result), self._in_flight = self._in_flight, None
        work.wait()
        *bits, elapsed, microseconds, cost = result.tolist()
        self._seconds = elapsed / 1e3
        if microseconds:
            self._every = compute_iterations_between(microseconds, cost)
        return sum(bits)

    def _estimate_microseconds(self, position: int) -> int:
        now = time.perf_counter()
        (since, began), self._timed = self._timed or (position, now), (position, now)
        if position > since:
            return max(int((now - began) / (position - since) * 1e6), 1)
        return 0

    def _count_anew(self, every: int | None = None) -> None:
        self.next_iteration = 0
        self._timed = None
        self._every = every or self._every


def compute_iterations_between(iteration: int, exchange: int) -> int:
    """Return the iterations until the next exchange.

    They follow from the microseconds of an iteration and of an exchange.
    """
    cheap = math.ceil(exchange / (MAX_EXCHANGE_SHARE * iteration))
    prompt = MAX_LATENCY_MICROSECONDS // iteration - 1
    return max(min(cheap, prompt), 1)
