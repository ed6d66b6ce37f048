"""Where a run computes, and in which precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hookflow.errors import Problem, UserError
from hookflow.numbers import counted

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The precisions in which the forward pass computes in 16 bits where it may, by autocast."""


def choose_device(wanted: str) -> torch.device:
    """Return the device for `wanted`: "auto" takes CUDA, then MPS, then the CPU.

    Raises UserError when a device is named that is not here.
    """
    if wanted == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    device = torch.device(wanted)
    cuda = torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    here = {"cpu": True, "cuda": cuda, "mps": torch.backends.mps.is_available()}
    if not here[device.type]:
        raise UserError(
            Problem(f'run.device = "{wanted}", but there is no such device here', hint='"auto" takes what is there')
        )
    return device


def choose_precision(wanted: str, device: torch.device, say: Callable[..., None]) -> str:
    """Return what is computed in: "fp32", "tf32", "bf16" or "fp16".

    "auto" takes bf16 where the hardware computes in it, since elsewhere it is slower, and else fp32. `say` is told
    where something else is computed in than was asked for.
    """
    if wanted == "tf32" and device.type != "cuda":
        say(f'run.precision = "tf32" is for CUDA: on {device} this run computes in fp32', "warn")
        return "fp32"
    if wanted != "auto":
        return wanted
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return "bf16" if device.type == "cpu" and _cpu_has_bf16() else "fp32"


def _cpu_has_bf16() -> bool:
    """Say whether the processor multiplies bf16 itself. Older versions of torch cannot tell; then it does not."""
    asks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, ask, lambda: False)() for ask in asks)


def in_precision(step: Callable[[Any, Any], Any], device: torch.device, precision: str) -> Callable[[Any, Any], Any]:
    """Return a task's method that runs in autocast where the precision has 16 bits, and else the method itself."""
    half = HALVES.get(precision)
    if half is None:
        return step
    cast = torch.autocast(device.type, half)  # which may be entered again and again

    def computed(run: Any, batch: Any) -> Any:
        with cast:
            return step(run, batch)

    return computed


def describe(device: torch.device) -> str:
    """Return the device in words, e.g. "cuda (NVIDIA H200)" or "cpu (2 threads)"."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"cpu ({counted(torch.get_num_threads(), 'thread')})" if device.type == "cpu" else str(device)
