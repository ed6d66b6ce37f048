"""What a model is called: a strategy puts classes of its own in front."""

from __future__ import annotations

from torch import nn


def class_of(model: nn.Module) -> str:
    """Return the name of a model's class, as it was before a strategy put its own in front."""
    return next(kind.__name__ for kind in type(model).__mro__ if not any(map(_of_strategy, kind.__mro__)))


def _of_strategy(kind: type) -> bool:
    return kind.__module__.startswith("torch.distributed")
