"""The user's code in an exception of a forward pass.

This is the line, the layer and what it was given, and the batch. Everything is read from the frames
that the exception has come through, so a training that raises none pays nothing.
"""

import inspect
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from hookflow.errors import DiagnosisError, first_few
from hookflow.events.rundir import short
from hookflow.runner.model.task import step_of_set
from hookflow.user_code import explain, is_own_file

TASK_METHODS = ("step", "evaluate", "predict")
"""The methods of a task that are given a batch, beside its steps for single training sets."""

SIZE_ATTRIBUTES = (
    ("in_features", "out_features"),
    ("in_channels", "out_channels"),
    ("num_embeddings", "embedding_dim"),
)
"""The attributes by which layers of PyTorch say how many numbers they take and give."""


def note_forward_error(
    error: BaseException, model: nn.Module, task: Any, train_sets: Sequence[str]
) -> None:
    """Note on an exception of a forward pass which layer has raised it.

    An exception of hookflow's own says enough.

    `train_sets` are the names of several training sets, for which the task may have steps of their
    own.

    It must come before the frames of the traceback are cleared. An error here leaves the exception
    as it is.
    """
    if not isinstance(error, Exception) or isinstance(error, DiagnosisError):
        return
    with suppress(Exception):
        frames = list(traceback.walk_tb(error.__traceback__))
        methods = [*TASK_METHODS, *map(step_of_set, train_sets)]
        lines = list(_describe_forward(frames, model, dict(_batch_parameters(task, methods))))
        if lines:
            explain(error, lines)


def _describe_forward(
    frames: list[tuple[FrameType, int]], model: nn.Module, batch_parameters: Mapping[CodeType, str]
) -> Iterator[str]:
    """Yield a line on the traceback's innermost layer, and one on the batch, if known."""
    call = _find_innermost_call(frames)
    if call is not None:
        given = call.f_locals.get("args", ()), call.f_locals.get("kwargs", {})
        layer = _name_layer(call.f_locals["self"], model)
        place = _find_innermost_own_line(frames)
        yield f"{place}{layer} was given {_describe_shapes(given)}"
    batch = _batch_of(frames, batch_parameters)
    if batch is not _NO_BATCH:
        yield f"the batch: {_describe_shapes(batch)}"


_NO_BATCH = object()


def _find_innermost_call(frames: list[tuple[FrameType, int]]) -> FrameType | None:
    """Return the frame in which PyTorch has called the innermost module."""
    for frame, _ in reversed(frames):
        is_call = frame.f_code.co_name == "_call_impl"
        if is_call and isinstance(frame.f_locals.get("self"), nn.Module):
            return frame
    return None


def _find_innermost_own_line(frames: list[tuple[FrameType, int]]) -> str:
    for frame, line in reversed(frames):
        file = frame.f_code.co_filename
        if is_own_file(file):
            return f"at {short(Path(file))}:{line}, "
    return ""


def _name_layer(layer: nn.Module, model: nn.Module) -> str:
    """Return the name of a layer in the model with its class and sizes.

    Such a name is layer body.0 (Linear 3→2).
    """
    described = type(layer).__name__
    for taken, returned in SIZE_ATTRIBUTES:
        if hasattr(layer, taken) and hasattr(layer, returned):
            described += f" {getattr(layer, taken)}→{getattr(layer, returned)}"
            break
    for name, module in model.named_modules():
        if module is layer:
            if name:
                return f"layer {name} ({described})"
            return f"the model ({described})"
    return f"layer {described}"


def _describe_shapes(values: Any) -> str:
    leaves = tree_leaves(values)
    if leaves:
        return first_few([_shape_of(leaf) for leaf in leaves])
    return "nothing"


def _shape_of(leaf: Any) -> str:
    if not isinstance(leaf, Tensor):
        return f"a {type(leaf).__name__}"
    dtype = str(leaf.dtype).removeprefix("torch.")
    return f"{tuple(leaf.shape)} {dtype}"


def _batch_of(frames: list[tuple[FrameType, int]], batch_parameters: Mapping[CodeType, str]) -> Any:
    """Return the batch that a method of the task was called with.

    It is _NO_BATCH where none is in the traceback.
    """
    for frame, _ in frames:
        name = batch_parameters.get(frame.f_code)
        if name is not None:
            return frame.f_locals.get(name, _NO_BATCH)
    return _NO_BATCH


def _batch_parameters(task: Any, methods: Sequence[str]) -> Iterator[tuple[CodeType, str]]:
    """Yield the code of each method of a task with its parameter for the batch: the second one."""
    for method in methods:
        function = getattr(task, method, None)
        while isinstance(function, partial):  # a function with the arguments of the file
            function = function.func
        code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
        if code is None:
            continue
        place = 1
        if inspect.ismethod(function):
            place = 2
        if place < code.co_argcount:
            yield code, code.co_varnames[place]
