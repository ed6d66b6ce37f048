"""`torch.compile` of networks in place, and hooks that it leaves out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from hookflow.errors import Problem, UserError, Where

WITHOUT = "take run.compile out"
COMPILERS = {"c": ("C", "CC", ("gcc", "clang")), "c++": ("C++", "CXX", ("g++", "clang++"))}
"""The build tools of PyTorch's compilers, on CUDA and elsewhere: language, variable that names one, usual names."""


def check_compiler(device: torch.device, where: Where) -> None:
    """Raise UserError when nothing here could compile for the device; `where` is the place of the request."""
    if device.type == "cuda" and find_spec("triton") is None:
        raise UserError(Problem("run.compile needs Triton on CUDA, which is not installed", where, WITHOUT))
    language, variable, known = COMPILERS["c" if device.type == "cuda" else "c++"]
    if not any(shutil.which(name) for name in (os.environ.get(variable, ""), *known)):
        message = f"run.compile needs a {language} compiler, and there is none here"
        raise UserError(Problem(message, where, f"install {known[0]} (or name one in {variable}), or {WITHOUT}"))


def compile_networks(models: Iterable[nn.Module], mode: bool | str, say: Callable[..., None]) -> None:
    """Compile networks in place, whose parameters keep their names, with the hooks registered before the first call."""
    for model in models:
        model.compile(mode=None if mode is True else mode)
    say("the network is compiled: its first iterations take much longer, here and when a batch has another shape")


def hidden(fire: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that the compiler leaves out, with all that it calls."""
    called: Callable[..., Any] = torch.compiler.disable(fire)  # type: ignore[no-untyped-call]
    return called
