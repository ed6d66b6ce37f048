"""The diagnosis of a loss that is not finite.

It names the weights, inputs, modules and hooks that the loss comes from.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves, tree_map

from hookflow.errors import first_few
from hookflow.graph.plan import Binding
from hookflow.hooks.run import BEFORE_THE_GRADIENTS
from hookflow.hooks.tensors import local
from hookflow.runner.builder.components import RunComponents
from hookflow.runner.dispatch.engine import DispatchEngine
from hookflow.runner.iteration.run import Run
from hookflow.runner.loop.sanity import SilentRecorder, restore_afterwards
from hookflow.runner.model.task import steps_itself
from hookflow.runner.process.state import RunState

Step = Callable[[Any, Any], dict[str, Any]]


@dataclass
class LossDiagnosis:
    """Looks for the cause of a loss of `batch`, which is None where it is gone.

    `step` is the task's in the run's precision. The model is not called again over several ranks,
    nor in a task that steps its optimizers itself.
    """

    parts: RunComponents
    state: RunState
    engine: DispatchEngine
    run: Run
    step: Step
    batch: Any

    def __post_init__(self) -> None:
        self.silent = copy.copy(self.run)
        """A run for the passes of the diagnosis: it logs nothing, and grants no request."""
        vars(self.silent).update(
            dict.fromkeys(("_log", "_media", "_scalars", "_requests"), SilentRecorder())
        )

    def sentences(self) -> Iterator[str]:
        """Yield what is found, and where the batch is saved.

        A part that raises becomes a sentence.
        """
        looks: list[Callable[[], Iterator[str]]] = [self._parameters]
        if self.batch is None:
            looks.append(
                lambda: iter(
                    ["The batch is not saved: the device reported the loss after a later batch."]
                )
            )
        else:
            looks += [self._inputs, self._save_batch]
            if not self.parts.strategy.several and not steps_itself(self.parts.task):
                looks.append(self._check_another_pass)
        for look in looks:
            try:
                yield from look()
            except Exception as error:
                yield f"The diagnosis raised {type(error).__name__}: {error}."

    def _parameters(self) -> Iterator[str]:
        yield from _describe_not_finite(
            "Parameters that are", dict(self.parts.model.named_parameters())
        )

    def _inputs(self) -> Iterator[str]:
        """Name the inputs that are not finite, and the hooks that had the batch earlier."""
        leaves = {
            f"batch{keystr(path)}": leaf for path, leaf in tree_flatten_with_path(self.batch)[0]
        }
        complaints = [*_describe_not_finite("Input that is", leaves)]
        yield from complaints
        bindings = self.engine.plan.at("before_train_iter")
        hooks = [
            binding.hook
            for binding in bindings
            if "batch" in (*binding.takes, *binding.reads, *binding.writes)
        ]
        if complaints and hooks:
            yield f"Hooks that had this batch before the model: {first_few(hooks)}."

    def _save_batch(self) -> Iterator[str]:
        rank = self.parts.ranks.rank
        suffix = ""
        if rank:
            suffix = f"-rank{rank}"
        path = Path(self.run.dir) / f"nonfinite-batch-it{self.state.iter + 1}{suffix}.pt"
        in_memory = tree_map(
            lambda leaf: leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf, self.batch
        )
        torch.save(in_memory, path)
        yield f"The batch is saved as {path.name} in the run directory."

    def _check_another_pass(self) -> Iterator[str]:
        """Do the forward and the backward pass again, and name what is not finite first.

        It is a module by its output, and parameters by their gradients. Where the outputs are
        finite without hooks, it is a hook.
        """
        trained = {name: p for name, p in self.parts.model.named_parameters() if p.requires_grad}
        bad: list[str] = []
        with self._enter_stage("start"):  # a stage in which no hook inside the network fires
            loss, broken = self._forward()
            with ExitStack() as hooks:
                for name, parameter in trained.items():
                    hooks.callback(
                        parameter.register_hook(partial(_add_if_not_finite, bad, name)).remove
                    )
                torch.autograd.grad(loss, [*trained.values()], allow_unused=True)
        if broken:
            yield f"First module with an output that is not finite: {_format_module(*broken[0])}."
        elif not _is_finite(loss):
            yield "The output of every module is finite: the loss itself is not."
        else:
            yield from self._check_passes_with_hooks()
        if bad:
            of = f"{len(bad)} of {len(trained)} parameters"
            yield f"Gradients that are not finite: {of}, the first in the backward pass {bad[0]}."

    def _check_passes_with_hooks(self) -> Iterator[str]:
        """Name the first hook that turns the loss of another pass into one that is not finite."""
        cause = None
        with self._enter_stage("train"), self._same_weights():
            outputs, broken = self._compute_outputs()
            if broken:
                cause = self._find_hooks_at(*broken[0])
            elif _is_finite(outputs["loss"]):
                cause = self._first_hook_to_break(outputs)
        if cause is not None:
            yield f"Without hooks a second forward pass of the batch gives a finite loss. {cause}"
        else:
            yield (
                "A second forward pass of the batch gave a finite loss, with hooks too: its random"
                " numbers differ."
            )

    def _first_hook_to_break(self, outputs: dict[str, Any]) -> str | None:
        """Fire the hooks between the forward and the backward pass.

        Returns the first that spoils the loss, in words.
        """
        for point in BEFORE_THE_GRADIENTS:
            for firing in self.engine.firings(point):
                binding = firing.binding
                if binding.half != "whole" or self.engine.plan.hook(binding.hook).queue:
                    continue
                firing.call((self.silent, self.batch, self.state.batch_idx, outputs))
                if not _is_finite(outputs["loss"]):
                    return (
                        f'The hook "{binding.hook}" turns it into one that is not finite, at'
                        f" {point}."
                    )
        return None

    def _find_hooks_at(self, name: str, module: torch.nn.Module) -> str:
        """Return the hooks inside the network at the module whose output they make not finite."""
        inside: list[Binding] = [
            binding
            for binding in self.engine.plan.bindings
            if name in self.parts.picked.get(binding.id, {})
        ]
        hooks = list(dict.fromkeys(f'"{binding.hook}"' for binding in inside))
        among = ""
        if hooks:
            among = f" The hooks there: {first_few(hooks)}."
        return (
            f"With the hooks inside the network the output of {_format_module(name, module)} is not"
            f" finite.{among}"
        )

    def _forward(self) -> tuple[Tensor, list[tuple[str, torch.nn.Module]]]:
        outputs, broken = self._compute_outputs()
        return outputs["loss"], broken

    def _compute_outputs(self) -> tuple[dict[str, Any], list[tuple[str, torch.nn.Module]]]:
        """Return the outputs for the batch, and the modules with outputs that are not finite.

        The modules are in the order of their calls.
        """
        broken: list[tuple[str, torch.nn.Module]] = []
        with ExitStack() as hooks:
            for name, module in self.parts.model.named_modules():
                look = partial(_add_if_not_finite, broken, (name, module))
                hooks.callback(module.register_forward_hook(look).remove)
            outputs = self.step(self.silent, self.batch)
        return outputs, broken

    @contextmanager
    def _enter_stage(self, stage: Any) -> Iterator[None]:
        """Let the model be called again in a stage.

        Buffers and random generators are as before afterwards.
        """
        dispatcher = self.engine.dispatcher
        # A compiled module does not call hooks that are registered later.
        eager = torch.compiler.set_stance("force_eager")
        before = self.state.stage, dispatcher.run
        self.state.stage = stage
        dispatcher.run = self.silent
        try:
            with (
                restore_afterwards(self.parts.model, self.parts.device),
                eager,
                torch.enable_grad(),
            ):
                yield
        finally:
            self.state.stage, dispatcher.run = before

    @contextmanager
    def _same_weights(self) -> Iterator[None]:
        """Restore the weights afterwards: a hook may change them."""
        weights = [
            (parameter, parameter.detach().clone()) for parameter in self.parts.model.parameters()
        ]
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in weights:
                    parameter.copy_(value)


def _format_module(name: str, module: torch.nn.Module) -> str:
    return f"{name or 'the model'} ({type(module).__name__})"


def _add_if_not_finite(found: list[Any], thing: Any, *offered: Any) -> None:
    """Add a thing to those found if the last of what is offered is not finite."""
    if not all(map(_is_finite, tree_leaves(offered[-1]))):
        found.append(thing)


def _describe_not_finite(what: str, values: Mapping[str, Any]) -> Iterator[str]:
    names = [name for name, value in values.items() if not _is_finite(value)]
    if names:
        yield f"{what} not finite: {first_few(names)}."


def _is_finite(value: Any) -> bool:
    return not isinstance(value, Tensor) or bool(local(value.detach()).isfinite().all())
