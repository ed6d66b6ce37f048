"""Rendezvous.

It is the environment that the launcher gives to the ranks, their store, and their process group.

The store exists before the process group and outlives it, also over a restart. Imports torch only
for these two.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from hookflow.errors import Locate, Problem, UserError
from hookflow.runner.process.signals import Rewind

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Store

    from hookflow.pipeline.load import Loaded
    from hookflow.pipeline.schema import DistributedSection


@dataclass(frozen=True, slots=True)
class RankLayout:
    """The rank of this process, of `world` ranks, and its number on this machine."""

    rank: int = 0
    world: int = 1
    local: int = 0

    @property
    def first(self) -> bool:
        """Whether this rank reports and writes for all."""
        return self.rank == 0


SINGLE_RANK = RankLayout()


def of_environment() -> RankLayout:
    """Return the ranks of the launcher's environment.

    The launcher is torchrun, or `hookflow run --nproc`.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    return RankLayout(
        *(int(os.environ.get(name, alone)) for name, alone in zip(names, "010", strict=True))
    )


POLL_PERIOD_SECONDS = 0.05
"""Seconds between the checks for the others."""

joined: Store | None = None
"""The result of `rendezvous`; None before it."""


def is_started_by_torchrun() -> bool:
    """Return whether a launcher has started several processes with the same command as this one."""
    return "TORCHELASTIC_RUN_ID" in os.environ or int(os.environ.get("WORLD_SIZE", "1")) > 1


def count_restarts() -> tuple[int, int]:
    """Return how often this machine's launcher has restarted its ranks, and how often it may."""
    done, most = (
        os.environ.get(f"TORCHELASTIC_{name}", "0") for name in ("RESTART_COUNT", "MAX_RESTARTS")
    )
    return int(done), int(most)


def store(seconds: float) -> Store:
    """Return the store at `MASTER_ADDR` and `MASTER_PORT`, whose waits last at most `seconds`.

    Ranks of earlier starts may have left keys in it. Raises RuntimeError when it cannot be reached,
    and UserError where the environment does not say where it is.
    """
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous as of_torch

    try:
        result, _, _ = next(of_torch("env://", timeout=timedelta(seconds=seconds)))
    except ValueError as error:
        raise UserError(
            Problem(str(error), hint="torchrun sets it, and hookflow run --nproc needs none")
        ) from None
    return PrefixStore("hookflow", result)


def join_ranks(ranks: RankLayout, seconds: float) -> Store:
    """Return a part of the store that is these ranks' own, once all of them are there.

    Rank 0 answers each rank's token with a new prefix, since launchers of several machines count
    restarts apart. Polls, because a wait of the library ignores signals. Raises RuntimeError when
    they are not there after so many seconds.
    """
    global joined
    if joined is not None:
        return joined
    from torch._C._distributed_c10d import PrefixStore

    tcp_store = store(seconds)
    me = secrets.token_hex(8)
    name = me if ranks.first else ""
    tcp_store.set(f"arrived {ranks.rank}", me)
    expected = [f"rank {rank}" for rank in range(ranks.world)]
    until = time.monotonic() + seconds
    while True:
        if ranks.first:  # also for ranks of an earlier start
            for rank in range(1, ranks.world):
                if tcp_store.check([f"arrived {rank}"]):
                    tcp_store.set(f"answer {tcp_store.get(f'arrived {rank}').decode()}", me)
        elif tcp_store.check([f"answer {me}"]):
            name = tcp_store.get(f"answer {me}").decode()
        if name:
            ours = PrefixStore(name, tcp_store)
            ours.set(f"rank {ranks.rank}", "")
            if ours.check(expected):
                joined = ours
                return ours
        if time.monotonic() > until:
            raise RuntimeError(
                f"not all of the {ranks.world} ranks are there after {seconds} seconds"
            )
        time.sleep(POLL_PERIOD_SECONDS)


def join_anew() -> None:
    """Let these ranks have another part of the store for their next process group.

    The last one has left keys in it.
    """
    global joined
    from torch._C._distributed_c10d import PrefixStore

    if joined is not None:
        joined = PrefixStore("again", joined)


def device_of(wanted: str, ranks: RankLayout, backend: str, place: Locate) -> torch.device:
    """Return the device of this rank for `run.device`: of several GPUs the one of its local rank.

    Ranks share a GPU that is named with its number where the backend is gloo: nccl refuses that.
    Raises UserError when the ranks of this machine cannot each have one.
    """
    import torch

    from hookflow.runner.device.precision import choose_device

    where = place("run.device")
    if ranks.world == 1:
        return choose_device(wanted, where)
    if wanted in ("auto", "cuda"):
        if torch.cuda.is_available() and ranks.local >= torch.cuda.device_count():
            message = (
                f"this is process {ranks.local + 1} on a machine with {torch.cuda.device_count()}"
                " GPUs"
            )
            raise UserError(
                Problem(message, where, "start one process a GPU, or take the device cpu")
            )
        kind = choose_device(
            "cuda" if wanted == "cuda" or torch.cuda.is_available() else "cpu", where
        ).type
        if kind == "cuda":
            return torch.device(kind, ranks.local)
        return torch.device(kind)
    device = choose_device(wanted, where)
    if device.index is not None and backend != "gloo":
        message = f'run.device = "{wanted}" is one GPU, and there are {ranks.world} processes'
        hint = '"cuda" gives each process its own; with distributed.backend = "gloo" they share it'
        raise UserError(Problem(message, where, hint))
    if device.type == "mps":
        raise UserError(
            Problem("several processes cannot train together on mps", place("run.device"))
        )
    return device


@contextmanager
def process_group(loaded: Loaded, ranks: RankLayout) -> Iterator[None]:
    """Form the group of all ranks and destroy it; one process alone forms none.

    Waits up to `distributed.timeout` seconds until all are there. Raises UserError when the backend
    does not fit the device. A rank that raises does not destroy the group, since that may wait for
    the others; all of them rewind.
    """
    if ranks.world == 1:
        yield
        return
    import torch
    import torch.distributed as dist

    section = loaded.pipeline.distributed
    place = loaded.places.of
    device = device_of(loaded.pipeline.run.device, ranks, section.backend, place)
    backend = backend_of(section, device, place)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        store=join_ranks(ranks, section.timeout),
        rank=ranks.rank,
        world_size=ranks.world,
        timeout=timedelta(seconds=section.timeout),
        device_id=device if backend == "nccl" else None,
    )
    try:
        yield
    except Rewind:
        join_anew()
        dist.destroy_process_group()
        raise
    dist.destroy_process_group()


_left: list[object] = []
"""The process groups that this rank has left.

They are kept: to release one may wait for the other ranks.
"""


def leave_process_group() -> None:
    """Let each collective of the default group raise on this rank.

    It has failed, and does not wait. The other ranks may be in another collective. Gloo aborts a
    process in which the two meet, and its reason is lost.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        _left.append(dist.distributed_c10d._get_default_group())
        dist.distributed_c10d._update_default_pg(None)


def compute_data_layout(
    section: DistributedSection, ranks: RankLayout, place: Locate
) -> RankLayout:
    """Return this process among those that share a batch.

    With `tensor_parallel`, neighbours have the same share. Raises UserError when the ranks cannot
    be divided so.
    """
    together = 1
    if ranks.world > 1:
        together = section.tensor_parallel
    if ranks.world % together:
        message = (
            f"{ranks.world} ranks cannot be divided into groups of {together} that split layers"
        )
        raise UserError(
            Problem(
                message, place("distributed.tensor_parallel"), f"choose a divisor of {ranks.world}"
            )
        )
    return RankLayout(ranks.rank // together, ranks.world // together, ranks.local)


def backend_of(section: DistributedSection, device: torch.device, place: Locate) -> str:
    """Return the backend of the process group. Raises UserError when it does not fit the device."""
    if section.backend == "auto":
        if device.type == "cuda":
            return "nccl"
        return "gloo"
    if section.backend == "nccl" and device.type != "cuda":
        message = (
            f'distributed.backend = "nccl" requires CUDA, and this run computes on {device.type}'
        )
        raise UserError(
            Problem(message, place("distributed.backend"), '"auto" takes what fits the device')
        )
    if section.backend == "gloo" and section.strategy == "fsdp" and device.type == "cuda":
        message = (
            "FSDP cannot gather its shards on a GPU by gloo: PyTorch 2.11 ends with a segmentation"
            " fault"
        )
        raise UserError(
            Problem(message, place("distributed.backend"), 'use "nccl", or strategy = "ddp"')
        )
    return section.backend
