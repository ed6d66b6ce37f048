"""What a rank has of the batch that all ranks have together, and how they bring numbers together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from hookflow.errors import Problem, UserError

if TYPE_CHECKING:
    from hookflow.runner.distributed.strategy import Strategy
    from hookflow.runner.runner import Runner


class Share:
    """This rank's share of the batch at hand. Alone, it is the whole batch, and numbers stay what they are.

    `weight` is what its loss weighs: then the mean of the gradients over ranks is the gradient of the whole batch.
    """

    def __init__(self, run: Runner, strategy: Strategy) -> None:
        self.weight = 1.0
        self._run = run
        self._strategy = strategy
        self._examples = 0
        self._on_zero = frozenset(hook.name for hook in run.plan.hooks if hook.ranks == "zero")

    def weigh(self, batch: Any) -> None:
        """Learn how much the batch that has just come is of the whole."""
        if self._strategy.several:
            run = self._run
            self._examples = run.sizes["train"].total(run.batch_idx, batch) or 0
            self.weight = run.batch_size * run.world / max(self._examples, 1)

    @property
    def examples(self) -> int:
        """The examples of the batch at hand on all ranks together, as the data gave them."""
        return self._examples if self._strategy.several else self._run.batch_size

    def sum(self, value: float | Tensor) -> Any:
        """Return the sum of what each rank gives, on the device. Raises UserError where not all ranks would call it."""
        self._check("sum")
        return self._strategy.sum(value, self._run.device)

    def mean(self, value: float | Tensor) -> Any:
        """Return the mean of what each rank gives, on the device; raises as `sum` does."""
        self._check("mean")
        return self._strategy.sum(value, self._run.device) / self._run.world if self._strategy.several else value

    def _check(self, call: str) -> None:
        here = self._run.inside
        if self._strategy.several and here is not None and here.hook in self._on_zero:
            said = f'the hook "{here.hook}" fires on rank 0 alone, and run.{call} needs all ranks'
            raise UserError(Problem(said, hint='let it fire on all: ranks = "all"'))
