"""Stochastic weight averaging (P. Izmailov and others, *Averaging weights leads to wider optima*, 2018)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from hookflow.hooks.base import Slots
from hookflow.hooks.builtin.amounts import Ease, Progress, eased, iterations
from hookflow.hooks.builtin.averaging import READS, WRITES, Average
from hookflow.hooks.tensors import local
from hookflow.metric_mode import MODE_MEANING, Mode

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


class SWA(Average):
    """Averages the weights, one sample every `every` from `begin` on; validates and tests the average.

    With `lr`, the learning rates go there from what they are at `begin`, within `anneal`, whatever a schedule before
    says: weights are sampled at a constant rate. Buffers are those of the last sample, so that the statistics of batch
    norms are not those of the mean: let `precise_bn` estimate them anew before each validation. A checkpoint keeps
    the mean as `model_<hook's name>`. As `torch.optim.swa_utils` does it.
    """

    phase = "late"  # its rates replace those of a schedule
    reads: ClassVar[Slots] = {
        **READS,
        "before_train_iter": ("optimizer", "lr"),
        "after_train_iter": ("model.{model}",),
    }
    writes: ClassVar[Slots] = {**WRITES, "before_train_iter": ("lr",)}

    def __init__(
        self,
        begin: Annotated[
            Progress, Field(description='when sampling begins: 0, 1000, "1000it", "5ep" or "75%" of the run')
        ] = "75%",
        every: Annotated[
            Progress, Field(description='how often the weights are sampled: 100, "100it", "1ep" or "1%" of the run')
        ] = "1ep",
        lr: Annotated[
            float | None, Field(ge=0, description="the learning rate while sampling; that of the schedule if left out")
        ] = None,
        anneal: Annotated[
            Progress, Field(description="how long the learning rates take to get there: 0 for at once")
        ] = "5%",
        shape: Annotated[Ease, Field(description="the way there")] = "cosine",
        model: Annotated[str | None, Field(description="which of several models; all of them if left out")] = None,
        monitor: Annotated[
            str | None,
            Field(description="the validation metric by which the mean's best checkpoint is saved: best-<name>"),
        ] = None,
        mode: Annotated[Mode | None, Field(description=MODE_MEANING)] = None,
    ) -> None:
        super().__init__(begin, model, monitor, mode)
        self.every = every
        self.lr = lr
        self.anneal = anneal
        self.shape = shape
        self.period = self.length = 1
        self.rates: dict[str, list[float]] = {}
        """The learning rates at `begin`, by optimizer and parameter group."""

    def before_train(self, run: Run) -> None:
        super().before_train(run)
        self.period = max(1, iterations(self.every, run))
        self.length = iterations(self.anneal, run)

    def before_train_iter(self, run: Run) -> None:
        if self.lr is None or run.iter < self.first:
            return
        groups = {name: optimizer.param_groups for name, optimizer in run.optimizers.items()}
        self.rates = self.rates or {name: [group["lr"] for group in found] for name, found in groups.items()}
        for name, found in groups.items():
            for group, rate in zip(found, self.rates[name], strict=True):
                group["lr"] = annealed_rate(rate, self.lr, run.iter - self.first, self.length, self.shape)

    def after_train_iter(self, run: Run) -> None:
        """Sample the weights, once an iteration however many optimizers step in it."""
        if run.iter <= self.first or run.iter % self.period:
            return
        if not self.average:
            self.start(run)
            self.updates = 1
        else:
            self.move(1 / (self.updates + 1))
            self._copy_buffers(run)

    def _copy_buffers(self, run: Run) -> None:
        for name, buffer in self.network(run).named_buffers():
            if name in self.average:
                local(self.average[name]).copy_(local(buffer))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "rates": self.rates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.rates = state["rates"]


def annealed_rate(begin: float, end: float, step: int, steps: int, shape: Ease) -> float:
    """Return the learning rate after `step` of the `steps` from `begin` to `end`."""
    way = min(1.0, step / steps) if steps else 1.0
    share = eased(way, shape)
    return end * share + begin * (1 - share)
