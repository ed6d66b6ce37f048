"""Finds losses that are means over other things than examples, in a task that does not say so."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

BATCH_WEIGHT_HINT = (
    "give it a method batch_weight(batch) that returns what the loss of a batch is a mean over; "
    "see docs/how-to/tasks.md"
)


class IgnoredTargets(TorchFunctionMode):
    """Counts the targets that PyTorch's losses for classes are given, and those they leave out.

    It counts in its context.

    `data` names the data in the warning, and `say` takes lines for people.
    """

    def __init__(self, data: str, say: Callable[..., None]) -> None:
        super().__init__()
        self._data = data
        self._say = say
        self._given = self._ignored = 0
        self._has_class_weights = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in (functional.cross_entropy, functional.nll_loss):
            with torch._C.DisableTorchFunction():
                self._count(*args, **kwargs)
        return result

    def _count(
        self,
        _: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        if reduction != "mean" or target.is_floating_point():
            return
        self._given += target.numel()
        self._ignored += int(target.eq(ignore_index).sum())
        self._has_class_weights = self._has_class_weights or weight is not None

    def warn(self) -> None:
        """Warn if a mean was not one over examples."""
        so = (
            "and the task does not say so: batches count by their examples in accumulated steps,"
            " ranks and means"
        )
        if self._ignored:
            what = f"the loss leaves {self._ignored} of {self._given} targets of {self._data} out"
        elif self._has_class_weights:
            what = f"the loss of {self._data} is a mean by the weights of classes"
        else:
            return
        self._say(f"{what}, {so}; {BATCH_WEIGHT_HINT}", "warn")
