"""Weights to begin with: a plain `state_dict` in a file, held against the model before anything is copied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.runner.checkpoint.store import CPU, read_tensors


def load_weights(model: nn.Module, path: Path, where: Where) -> None:
    """Give the model the weights in a file. Raises UserError with all that does not fit, and the nearest names."""
    if not path.is_file():
        raise UserError(Problem(f'there is no file "{path}"', where, _nearest_file(path)))
    try:
        found = read_tensors(path, CPU)
    except UserError as error:
        raise UserError([Problem(problem.message, where, problem.hint) for problem in error.problems]) from None
    if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
        raise UserError(Problem(f"{path} holds no state_dict, but a {type(found).__name__}", where))
    if problems := list(_misfits(model.state_dict(), found, where)):
        raise UserError(problems)
    model.load_state_dict(found)


def _nearest_file(path: Path) -> str:
    return nearest(path.name, [file.name for file in path.parent.glob(f"*{path.suffix}")])


def _misfits(wanted: Mapping[str, Any], found: Mapping[str, Any], where: Where) -> Iterator[Problem]:
    """Yield what the file has too much, too little, or in another shape."""
    missing, strange = [n for n in wanted if n not in found], [n for n in found if n not in wanted]
    for name in strange:
        hint = nearest(name, missing) or (f"the model still needs {', '.join(missing[:4])}" if missing else "")
        yield Problem(f'the weights have "{name}", and the model does not', where, hint)
    for name in missing:
        hint = nearest(name, strange) or (f"they also have {', '.join(strange[:4])}" if strange else "")
        yield Problem(f'the weights lack "{name}", which the model has', where, hint)
    for name in wanted.keys() & found.keys():
        if not isinstance(wanted[name], torch.Tensor):
            continue  # what a module says of itself beside its tensors
        shapes = [tuple(wanted[name].shape), tuple(getattr(found[name], "shape", ()))]
        if not isinstance(found[name], torch.Tensor) or shapes[0] != shapes[1]:
            yield Problem(f'the weights have "{name}" in the shape {shapes[1]}, and the model in {shapes[0]}', where)
