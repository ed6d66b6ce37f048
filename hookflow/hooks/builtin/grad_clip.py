"""Gradient clipping (R. Pascanu and others, *On the difficulty of training recurrent neural networks*, 2013)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from hookflow.hooks.base import Hook
from hookflow.hooks.builtin.grad_norm import name_of
from hookflow.hooks.tensors import full

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


class GradClip(Hook):
    """Scales all gradients down together when their norm exceeds `max_norm`, and logs the norm before that.

    Where several optimizers step one after the other, each step is bounded by itself; or that of `model` alone. The
    norm is `grad_norm`; that of one of several models `grad_norm/generator`.
    """

    reads = ("grads.{model}",)
    writes = ("grads.{model}",)

    def __init__(
        self,
        max_norm: Annotated[float, Field(gt=0, description="the largest Euclidean norm of all gradients together")],
        model: Annotated[str | None, Field(description="which of several models; each if left out")] = None,
    ) -> None:
        self.max_norm = max_norm
        self.model = model

    def before_optimizer_step(self, run: Run) -> None:
        from torch.nn.utils import clip_grad_norm_

        model = run.stepped(self.model)
        if model is not None:
            of = name_of(model, run)
            norm = full(clip_grad_norm_(model.parameters(), self.max_norm))
            run.log(f"grad_norm/{of}" if of else "grad_norm", norm)
