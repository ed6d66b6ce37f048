"""Notes which tensors are read and written by operators of PyTorch, whoever calls them.

A tensor is known by its memory, so views and detached tensors count as what they are made of.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hookflow.graph.slots import Verb
from hookflow.runner.data.to_device import tensors
from hookflow.runner.observe.marks import address

Noted = Callable[[Verb, int], None]
"""Takes what has become of the memory at an address."""

OVERWRITE = {"copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_", "set_", "resize_",
             "_foreach_copy_", "_foreach_zero_"}  # fmt: skip
"""Operators that write a tensor and do not look at what was in it."""

TAKE_OUT = {"numpy", "tolist", "__array__", "__reduce_ex__", "storage", "untyped_storage", "_typed_storage"}
"""Methods that give the contents away without an operator."""


def watched_operators(note: Noted) -> ExitStack:
    """Note what operators do until what is returned is closed."""
    with ExitStack() as stack:
        stack.enter_context(_TakenOut(note))
        stack.enter_context(_Operators(note))
        return stack.pop_all()


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, note: Noted) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note = note

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        for k, argument in enumerate(func._schema.arguments):
            value = given.get(argument.name) if argument.kwarg_only or k >= len(args) else args[k]
            for tensor in tensors(value):
                at = address(tensor)
                writes = argument.alias_info is not None and argument.alias_info.is_write
                if writes:
                    self._note("writes", at)
                if not (writes and (argument.is_out or func._schema.name.partition("::")[2] in OVERWRITE)):
                    self._note("reads", at)
        return func(*args, **given)


class _TakenOut(TorchFunctionMode):
    def __init__(self, note: Noted) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in TAKE_OUT:
            for tensor in tensors(args[:1]):
                self._note("reads", address(tensor))
        return func(*args, **(kwargs or {}))
