"""`torch.compile` of networks in place, and hooks registered in them afterwards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from hookflow.errors import Problem, UserError, Where, first_few

HOOKS = {
    "forward_pre": "_forward_pre_hooks",
    "forward": "_forward_hooks",
    "full_backward_pre": "_backward_pre_hooks",
    "full_backward": "_backward_hooks",
}
"""Where a module keeps its hooks, by their point."""

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


class Compiled:
    """The networks of a run, compiled in place. Their parameters keep their names.

    Module hooks that are registered before the first call are compiled along. `look` warns of hooks added since, and of
    a replaced `forward`: each of them makes PyTorch compile anew.
    """

    def __init__(self, models: Mapping[str, nn.Module], mode: bool | str, say: Callable[..., None]) -> None:
        self._models = models
        self._say = say
        self._seen: dict[str, tuple[Any, ...]] = {}
        self._warned = False
        self._removed: set[str] = set()
        for model in models.values():
            model.compile(mode=None if mode is True else mode)
        say("the network is compiled: its first iterations take much longer, here and when a batch has another shape")

    def look(self) -> None:
        """Warn, once in a run, of modules that have been changed since the first look."""
        now = {name: _changeable(module) for name, module in self._modules()}
        changed = [name or "the network itself" for name, what in now.items() if self._seen.get(name, what) != what]
        self._seen = self._seen or now
        if changed and not self._warned:
            self._warned = True
            self._say(
                f"{first_few(changed, 3)}: registering a hook (or replacing forward) after compile forces "
                "recompilation. Declare it as a hook of the pipeline (at forward_pre, forward, …) or register it by "
                f"before_train, so that the network is compiled once; or {WITHOUT}",
                "warn",
            )

    def hook_removed(self, hook: str, module: nn.Module) -> None:
        """Note that a hook of the pipeline has been removed from a module; say so once for each hook."""
        for name, other in self._modules():
            if other is module and name in self._seen:
                self._seen[name] = _changeable(module)
        if hook not in self._removed:
            self._removed.add(hook)
            self._say(f'the hook "{hook}" has been removed: the network is recompiled without it')

    def _modules(self) -> Iterable[tuple[str, nn.Module]]:
        several = len(self._models) > 1
        for name, model in self._models.items():
            for path, module in model.named_modules():
                yield (f"{name}.{path}".rstrip(".") if several else path), module


def _changeable(module: nn.Module) -> tuple[Any, ...]:
    """Return what makes PyTorch compile a module anew when it changes."""
    return (*(tuple(getattr(module, kind)) for kind in HOOKS.values()), module.__dict__.get("forward"))


def hidden(fire: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that the compiler leaves out, with all that it calls."""
    called: Callable[..., Any] = torch.compiler.disable(fire)  # type: ignore[no-untyped-call]
    return called
