"""Norms of gradients: `grad_norm` logs them, `grad_clip` bounds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from hookflow.hooks.base import Hook
from hookflow.hooks.tensors import full

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hookflow.hooks.run import Run


@dataclass(eq=False)
class GradNorm(Hook):
    """Logs the Euclidean norm of each layer's gradients, `grad_norm/<layer>`, and of all, `grad_norm/total`.

    A layer is a module with parameters of its own. The norms are those of the gradients that the optimizer steps with,
    so after clipping: hooks that write `grads` fire before. They stay on the device, so that nothing waits. Parameters
    that have received no gradient are left out. Where several optimizers step one after the other, each step logs the
    norms of its own model, whose name comes first where there are several: `grad_norm/generator.total`.
    """

    reads = ("grads",)

    per: Annotated[Literal["layer", "parameter"], Field(description="what has a norm of its own")] = "layer"
    model: Annotated[str | None, Field(description="which of several models; each if left out")] = None

    def before_optimizer_step(self, run: Run) -> None:
        model = run.stepped(self.model)
        if model is None:
            return
        of = name_of(model, run)
        for name, norm in norms(gradients(model), self.per).items():
            run.log(f"grad_norm/{of}.{name}" if of else f"grad_norm/{name}", norm)


def name_of(model: nn.Module, run: Run) -> str:
    """Return the name of a network where there are several; nothing for all of them together."""
    several = run.models.items() if len(run.models) > 1 else ()
    return next((name for name, network in several if network is model), "")


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradients that parameters have, by the names of the parameters; of sparse ones the values."""
    result = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {
        name: gradient.coalesce().values() if gradient.is_sparse else gradient
        for name, gradient in result.items()
        if gradient is not None
    }


def norms(gradients: Mapping[str, Tensor], per: Literal["layer", "parameter"] = "layer") -> dict[str, Tensor]:
    """Return the Euclidean norm of the gradients of each layer (or parameter), and of all together as `total`.

    The norms are tensors of no dimensions, in float32 or better. None at all where there are no gradients.
    """
    import torch

    single = {name: full(torch.linalg.vector_norm(tensor)).float() for name, tensor in gradients.items()}
    parts: dict[str, list[Tensor]] = {}
    for name, norm in single.items():
        layer = name.rpartition(".")[0] if per == "layer" else name
        parts.setdefault(layer or name, []).append(norm)
    result = {name: torch.linalg.vector_norm(torch.stack(several)) for name, several in parts.items()}
    return {**result, "total": torch.linalg.vector_norm(torch.stack(list(single.values())))} if single else {}


@dataclass(eq=False)
class GradClip(Hook):
    """Scales all gradients down together when their norm exceeds `max_norm`, and logs the norm before that.

    Where several optimizers step one after the other, each step is bounded by itself; or that of `model` alone. The
    norm is `grad_norm`; that of one of several models `grad_norm/generator`.
    """

    reads = ("grads.{model}",)
    writes = ("grads.{model}",)

    max_norm: Annotated[float, Field(gt=0, description="the largest Euclidean norm of all gradients together")]
    model: Annotated[str | None, Field(description="which of several models; each if left out")] = None

    def before_optimizer_step(self, run: Run) -> None:
        from torch.nn.utils import clip_grad_norm_

        model = run.stepped(self.model)
        if model is not None:
            of = name_of(model, run)
            norm = full(clip_grad_norm_(model.parameters(), self.max_norm))
            run.log(f"grad_norm/{of}" if of else "grad_norm", norm)
