"""Where a run computes, and in which precision."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from hookflow.errors import Problem, UserError


def choose_device(wanted: str) -> torch.device:
    """Return the device for `wanted`: "auto" takes CUDA, then MPS, then the CPU.

    Raises UserError when a device is named that is not here.
    """
    if wanted == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    device = torch.device(wanted)
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not here[device.type]:
        raise UserError(
            Problem(f'run.device = "{wanted}", but there is no such device here', hint='"auto" takes what is there')
        )
    return device


def choose_precision(wanted: str, device: torch.device) -> str:
    """Return "bf16" or "fp32": "auto" takes bf16 where the hardware computes in it, since elsewhere it is slower."""
    if wanted != "auto":
        return wanted
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return "bf16" if device.type == "cpu" and _cpu_has_bf16() else "fp32"


def _cpu_has_bf16() -> bool:
    """Say whether the processor multiplies bf16 itself. Older versions of torch cannot tell; then it does not."""
    asks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, ask, lambda: False)() for ask in asks)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return what the forward pass runs in."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


def describe(device: torch.device) -> str:
    """Return the device in words, e.g. "cuda (NVIDIA H200)" or "cpu (2 threads)"."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"cpu ({torch.get_num_threads()} threads)" if device.type == "cpu" else str(device)
