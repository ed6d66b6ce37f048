"""The process group of the ranks: device, backend, initialization and destruction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from hookflow.errors import Locate, Problem, UserError
from hookflow.pipeline.load import Loaded
from hookflow.pipeline.schema import DistributedSection
from hookflow.runner.distributed.rendezvous import Ranks, join_anew, rendezvous
from hookflow.runner.numerics.precision import choose_device
from hookflow.runner.process.signals import Rewind


def device_of(wanted: str, ranks: Ranks, backend: str, place: Locate) -> torch.device:
    """Return the device of this rank for `run.device`: of several GPUs the one of its local rank.

    Ranks share a GPU that is named with its number where the backend is gloo: nccl refuses that.
    Raises UserError when the ranks of this machine cannot each have one.
    """
    if ranks.world == 1:
        return choose_device(wanted)
    if wanted in ("auto", "cuda"):
        if torch.cuda.is_available() and ranks.local >= torch.cuda.device_count():
            message = f"this is process {ranks.local + 1} on a machine with {torch.cuda.device_count()} GPUs"
            raise UserError(Problem(message, place("run.device"), "start one process a GPU, or take the device cpu"))
        kind = choose_device("cuda" if wanted == "cuda" or torch.cuda.is_available() else "cpu").type
        return torch.device(kind, ranks.local) if kind == "cuda" else torch.device(kind)
    device = choose_device(wanted)
    if device.index is not None and backend != "gloo":
        message = f'run.device = "{wanted}" is one GPU, and there are {ranks.world} processes'
        hint = '"cuda" gives each process its own; with distributed.backend = "gloo" they share it'
        raise UserError(Problem(message, place("run.device"), hint))
    if device.type == "mps":
        raise UserError(Problem("several processes cannot train together on mps", place("run.device")))
    return device


@contextmanager
def process_group(loaded: Loaded, ranks: Ranks) -> Iterator[None]:
    """Form the group of all ranks and destroy it; one process alone forms none.

    Waits up to `distributed.timeout` seconds until all are there. Raises UserError when the backend does not fit the
    device. A rank that raises does not destroy the group, since that may wait for the others; all of them rewind.
    """
    if ranks.world == 1:
        yield
        return
    section, place = loaded.pipeline.distributed, loaded.places.of
    device = device_of(loaded.pipeline.run.device, ranks, section.backend, place)
    backend = backend_of(section, device, place)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        store=rendezvous(ranks, section.timeout),
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


def backend_of(section: DistributedSection, device: torch.device, place: Locate) -> str:
    """Return the backend of the process group. Raises UserError when it does not fit the device."""
    if section.backend == "auto":
        return "nccl" if device.type == "cuda" else "gloo"
    if section.backend == "nccl" and device.type != "cuda":
        message = f'distributed.backend = "nccl" requires CUDA, and this run computes on {device.type}'
        raise UserError(Problem(message, place("distributed.backend"), '"auto" takes what fits the device'))
    if section.backend == "gloo" and section.strategy == "fsdp" and device.type == "cuda":
        message = "FSDP cannot gather its shards on a GPU by gloo: PyTorch 2.11 ends with a segmentation fault"
        raise UserError(Problem(message, place("distributed.backend"), 'use "nccl", or strategy = "ddp"'))
    return section.backend
