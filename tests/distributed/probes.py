"""Hooks that look at what PyTorch does with gradients over several ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook


class Gradients:
    """Says at one parameter what its gradient is like: as it comes, as it is added up, and before the step."""

    parameters = ("head.bias",)

    def parameter_grad(self, run: Any, grad: Tensor) -> Tensor:
        run.say(f"came {run.iter}")
        return grad * (1 + run.rank)

    def post_accumulate_grad(self, run: Any, name: str, param: nn.Parameter) -> None:
        assert param.grad is not None
        run.say(f"added {run.iter} {type(param.grad).__name__}")

    def before_optimizer_step(self, run: Any) -> None:
        run.say(f"stepping {run.iter}")


class OverFSDP(Gradients):
    """Without what FSDP never calls."""

    points = ("post_accumulate_grad", "before_optimizer_step")


def compressed(run: Any, name: str, state: Any, bucket: Any) -> torch.futures.Future[Tensor]:
    """Average in half precision, and say how much."""
    run.say(f"{name} {run.iter} {bucket.is_last()}")
    return fp16_compress_hook(state, bucket)


class ByHand:
    """Does so by PyTorch alone."""

    def before_train(self, run: Any) -> None:
        run.model.register_comm_hook(None, fp16_compress_hook)


def nothing(bucket: Any) -> None:
    """Return nothing where PyTorch wants a Future."""
