"""Diagnosis of a loss that is not finite: its batch, and the first such module, parameter and gradient."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves, tree_map

from hookflow.errors import first_few
from hookflow.hooks.tensors import local
from hookflow.runner.builder.components import Parts
from hookflow.runner.loop.run import Run
from hookflow.runner.loop.sanity import Quiet, unchanged
from hookflow.runner.loop.task import steps_itself
from hookflow.runner.process.state import RunState

Step = Callable[[Any, Any], dict[str, Any]]


def diagnose(parts: Parts, state: RunState, run: Run, step: Step, batch: Any) -> Iterator[str]:
    """Yield sentences about the cause of a loss that is not finite, and where the batch, if there is one, is saved.

    The model is not called again over several ranks, nor in a task that steps its optimizers itself. A part that raises
    becomes a sentence.
    """
    looks: list[Callable[[], Iterator[str]]] = [
        lambda: _not_finite("Parameters that are", dict(parts.model.named_parameters()))
    ]
    if batch is None:
        looks.append(lambda: iter(["The batch is not saved: the device reported the loss after a later batch."]))
    else:
        looks += [lambda: _not_finite("Input that is", _leaves(batch))]
        looks += [lambda: _save(batch, run.dir, state, parts.ranks.rank)]
        if not parts.strategy.several and not steps_itself(parts.task):
            looks.append(lambda: _of_another_pass(parts, state, run, step, batch))
    for look in looks:
        try:
            yield from look()
        except Exception as error:
            yield f"The diagnosis raised {type(error).__name__}: {error}."


def _leaves(batch: Any) -> dict[str, Any]:
    return {f"batch{keystr(path)}": leaf for path, leaf in tree_flatten_with_path(batch)[0]}


def _not_finite(what: str, values: Mapping[str, Any]) -> Iterator[str]:
    if names := [name for name, value in values.items() if not _is_finite(value)]:
        yield f"{what} not finite: {first_few(names)}."


def _save(batch: Any, folder: Path, state: RunState, rank: int) -> Iterator[str]:
    path = folder / f"nonfinite-batch-it{state.iter + 1}{f'-rank{rank}' if rank else ''}.pt"
    torch.save(tree_map(lambda leaf: leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf, batch), path)
    yield f"The batch is saved as {path.name} in the run directory."


def _of_another_pass(parts: Parts, state: RunState, run: Run, step: Step, batch: Any) -> Iterator[str]:
    """Name the first module whose output is not finite, and the parameters whose gradients are not."""
    silent = copy.copy(run)
    vars(silent).update(dict.fromkeys(("_log", "_media", "_scalars"), Quiet()))
    trained = {name: p for name, p in parts.model.named_parameters() if p.requires_grad}
    eager = torch.compiler.set_stance("force_eager")  # a compiled module does not call new hooks
    broken: list[str] = []
    bad: list[str] = []

    def look(names: list[str], name: str, *offered: Any) -> None:
        if not all(map(_is_finite, tree_leaves(offered[-1]))):
            names.append(name)

    state.stage = "start"  # in which no hook inside the network fires
    try:
        with unchanged(parts.model, parts.device), eager, torch.enable_grad(), ExitStack() as hooks:
            for name, module in parts.model.named_modules():
                shown = f"{name or 'the model'} ({type(module).__name__})"
                hooks.callback(module.register_forward_hook(partial(look, broken, shown)).remove)
            loss = step(silent, batch)["loss"]
            for name, parameter in trained.items():
                hooks.callback(parameter.register_hook(partial(look, bad, name)).remove)  # type: ignore[no-untyped-call]
            torch.autograd.grad(loss, [*trained.values()], allow_unused=True)
    finally:
        state.stage = "train"
    if broken:
        yield f"First module with an output that is not finite: {broken[0]}."
    elif _is_finite(loss):
        yield "A second forward pass of the batch gave a finite loss: its random numbers differ."
    else:
        yield "The output of every module is finite: the loss itself is not."
    if bad:
        of = f"{len(bad)} of {len(trained)} parameters"
        yield f"Gradients that are not finite: {of}, the first in the backward pass {bad[0]}."


def _is_finite(value: Any) -> bool:
    return not isinstance(value, Tensor) or bool(local(value.detach()).isfinite().all())
