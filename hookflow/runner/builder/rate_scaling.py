"""Learning rates that follow the examples of an optimizer step.

These examples may change from one epoch to the next.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Literal

from torch.optim import Optimizer

from hookflow.errors import Problem, UserError
from hookflow.hooks.builtin.schedules import set_rate
from hookflow.pipeline.by_epoch import ByEpoch
from hookflow.runner.builder.components import RunComponents

SCALE = "scale_of_rate"
"""The key of a parameter group that has the factor by which its learning rate is scaled."""

Rule = Literal["linear", "sqrt"]


@dataclass(frozen=True)
class RateScaling:
    """Multiplies each learning rate where an epoch begins whose steps have more or fewer examples.

    A parameter group, and so a checkpoint, says by which factor its rate is scaled. The factor of
    the first epoch is 1.
    """

    optimizers: Mapping[str, Optimizer]
    examples: ByEpoch
    """The examples of an optimizer step in each epoch."""
    rule: Rule
    say: Callable[..., None]

    def begin_epoch(self, epoch: int) -> None:
        """Scale the rates for the steps of an epoch that begins.

        A group that says nothing has the rate of the epoch before.
        """
        self._scale(epoch, self._factor(max(epoch - 1, 0)))

    def continue_epoch(self, epoch: int) -> None:
        """Scale the rates that are not those of the epoch in which the run goes on: a fork may have
        another batch size than its parent.
        """
        self._scale(epoch, self._factor(epoch))

    def _factor(self, epoch: int) -> float:
        factor = self.examples.at(epoch) / self.examples.at(0)
        if self.rule == "sqrt":
            return sqrt(factor)
        return factor

    def _scale(self, epoch: int, otherwise: float) -> None:
        """Scale each rate by the factor of an epoch.

        A rate whose group says nothing is scaled by the factor `otherwise` so far.
        """
        wanted = self._factor(epoch)
        is_scaled = False
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                present = group.get(SCALE, otherwise)
                if present == wanted:
                    continue
                set_rate(group, group["lr"] * (wanted / present))
                group[SCALE] = wanted
                is_scaled = True
        if is_scaled:
            self.say(
                f"run.scale_lr: a step has {self.examples.at(epoch):,} examples, and each learning"
                f" rate follows ({self.rule})"
            )


def make_rate_scaling(parts: RunComponents, say: Callable[..., None]) -> RateScaling | None:
    """Return what scales the learning rates of a run; None where nothing does.

    Raises UserError where the examples of a batch are not known.
    """
    rule = parts.section.scale_lr
    if rule is None or "train" not in parts.data:
        return None
    examples = parts.examples_by_epoch
    if 0 in examples.values:
        message = (
            "run.scale_lr goes by the examples of a batch, and the training data do not say how"
            " many it has"
        )
        raise UserError(Problem(message, parts.place("run.scale_lr")))
    return RateScaling(parts.optimizers, examples, rule, say)
