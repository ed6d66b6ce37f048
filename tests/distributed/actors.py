"""Hooks of runs over ranks, which act, die, hang or look at gradients:
named by pipelines as "./actors.py:…".
"""

import atexit
import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from hookflow.errors import Problem, UserError
from hookflow.runner.checkpoint import store
from hookflow.runner.distributed import failures


def acts(run: Any, call: str, rank: int, at: int, args: list[Any]) -> None:
    """Call something of the run on one rank, at one iteration."""
    if (run.rank, run.iter) == (rank, at):
        getattr(run, call)(*args)


class FailsAlone:
    """Make a mistake on rank 0 alone, in the third iteration,
    and talk to the other ranks at the end.
    """

    def __init__(self, by: str) -> None:
        self.by = by

    def after_forward(self, run: Any) -> None:
        if run.rank == 0 and run.iter == 2:
            raise UserError(Problem("rank 0 makes a mistake"))

    def after_run(self, run: Any) -> None:
        if self.by == "run.sum":
            run.sum(torch.ones(3))
        else:
            dist.all_reduce(torch.ones(3))


def strikes(run: Any, rank: int, at: int, number: int, mark: str) -> None:
    """Send this rank's process a signal, once: `mark` says whether it has been."""
    if number == signal.SIGKILL:
        failures.REPORT_WAIT_SECONDS = 0.0  # who is killed reports nothing
    if (run.rank, run.iter) == (rank, at) and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), number)


def ends_early(run: Any) -> None:
    """End the training after iteration 4, on all ranks."""
    if run.iter == 4:
        run.stop("it is good enough")


def marks_fetch(run: Any, batch_idx: int, rank: int, at: int, mark: str) -> None:
    """Leave a mark when one rank is about to fetch a batch."""
    if (run.rank, batch_idx) == (rank, at):
        Path(mark).touch()


def fails_to_write(run: Any, at: int, number: int, mark: str) -> None:
    """Kill rank 1 by a signal in the middle of its shards, once;
    where there is none, its disk is full.
    """
    failures.REPORT_WAIT_SECONDS = 0.0 if number else failures.REPORT_WAIT_SECONDS

    def write(file: object, data: object) -> int:
        if number:
            os.kill(os.getpid(), number)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if (run.rank, run.iter) == (1, at) and not Path(mark).exists():
        Path(mark).touch()
        store._ChecksumWriter.write = write  # type: ignore[method-assign, assignment]


def poisons(run: Any) -> None:
    """Spoil the weights that rank 1 has, when nothing will be trained any more."""
    if run.rank == 1 and run.iter == run.max_iters:
        run.model.body[0].weight.to_local().detach().fill_(float("nan"))


def own_metrics(run: Any, metrics: dict[str, Any]) -> None:
    """Add a metric by which each rank takes another validation for the best,
    and one of the last rank alone.
    """
    metrics["own"] = torch.tensor(run.iter if run.rank else -run.iter)
    if run.rank:
        metrics["theirs"] = 1.0


def metric_of_one(metrics: dict[str, Any]) -> None:
    metrics["once"] = 1.0


class Remembers:
    """Has a state that is another one on every rank, and draws numbers that are, too."""

    def __init__(self) -> None:
        self.drawn: list[float] = []

    def after_train_iter(self, run: Any) -> None:
        self.drawn.append(run.rank + torch.rand(()).item())

    def after_train(self, run: Any) -> None:
        weights = sum(p.double().sum().item() for p in run.model.parameters())
        run.say(f"iteration {run.iter}, weights {weights!r}, drawn {self.drawn}")

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": list(self.drawn)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn = list(state["drawn"])


class Breaks:
    """Raises on rank 1 alone, in the third iteration."""

    def before_train_iter(self, run: Any) -> None:
        if run.rank == 1 and run.iter == 2:
            raise RuntimeError("as told")

    forward = after_train_iter = before_train_iter

    def around_train_iter(self, run: Any) -> Iterator[None]:
        self.before_train_iter(run)
        yield


def asked_to_stop() -> Any:
    """Return the signal that has come to this process, if one has."""
    return signal.getsignal(signal.SIGTERM).__self__.stop  # type: ignore[union-attr]


class Hangs:
    """Never comes back from an iteration on rank 0, though it notices that it is asked to."""

    def after_train_iter(self, run: Any) -> None:
        if run.rank == 0 and run.iter == 3:
            run.say("hangs")
            while asked_to_stop() is None:
                time.sleep(0.01)
            run.say("hears")
            time.sleep(600)


def means(run: Any) -> None:
    """Wait for the others in a hook: from iteration 3 on for a second, and no longer.

    To form their group the ranks have all the time that a busy machine takes.
    """
    if run.iter == 3:
        for group in dist.distributed_c10d._world.pg_map:
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), group)
    run.mean(1.0)


def stays(run: Any) -> None:
    """Stay in an iteration on rank 1 until rank 0 has ended."""
    while (run.rank, run.iter) == (1, 3) and '"k":"end"' not in (
        run.dir / "events.jsonl"
    ).read_text():
        time.sleep(0.01)


def ends_late(run: Any) -> None:
    """Come to an end on rank 0 long after rank 1,
    whose end its launcher must have noticed by then.
    """
    while run.rank == 0 and '"k":"end"' not in (run.dir / "events.rank1.jsonl").read_text():
        time.sleep(0.01)
    if run.rank == 0:
        time.sleep(1)
        run.say("at its end")


class Aborts:
    """Aborts the process while the interpreter goes down, as a thread of gloo's may that still
    holds a tensor then.

    What is registered for the exit of the process comes before that, and leaves a mark of each
    rank.
    """

    def __init__(self, marks: str) -> None:
        self.marks = Path(marks)

    def after_run(self, run: Any) -> None:
        atexit.register(self.marks.joinpath(str(run.rank)).touch)
        sys.held_to_the_last = self  # type: ignore[attr-defined]

    def __del__(self, abort: Callable[[], object] = os.abort) -> None:
        abort()


class Gradients:
    """Says at one parameter what its gradient is like: as it comes, as it is added up,
    and before the step.
    """

    parameters = ("head.bias",)

    def parameter_grad(self, run: Any, grad: Tensor) -> Tensor:
        run.say(f"came {run.iter}")
        return grad * (1 + run.rank)

    def post_accumulate_grad(self, run: Any, name: str, param: nn.Parameter) -> None:
        assert param.grad is not None
        run.say(f"added {run.iter} {type(param.grad).__name__}")

    def before_optimizer_step(self, run: Any) -> None:
        run.say(f"stepping {run.iter}")


def forwards(run: Any, name: str) -> None:
    """Say of which module a forward pass ends."""
    run.say(f"forward {name}")


def compressed(run: Any, name: str, state: Any, bucket: Any) -> torch.futures.Future[Tensor]:
    """Average in half precision, and say how much."""
    run.say(f"{name} {run.iter} {bucket.is_last()}")
    return fp16_compress_hook(state, bucket)


def nothing(bucket: Any) -> None:
    """Return nothing where PyTorch wants a Future."""
