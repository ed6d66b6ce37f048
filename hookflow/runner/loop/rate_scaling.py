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

EXAMPLES = "examples_of_rate"
"""The key of a parameter group that says for how many examples of a step its learning rate is."""


@dataclass(frozen=True)
class RateScaling:
    """Multiplies each learning rate where an epoch begins whose steps have more or fewer examples.

    A parameter group, and so a checkpoint, says for how many examples its rate is: it is scaled
    once.
    """

    optimizers: Mapping[str, Optimizer]
    examples: ByEpoch
    """The examples of an optimizer step in each epoch."""
    rule: Literal["linear", "sqrt"]
    say: Callable[..., None]

    def begin_epoch(self, epoch: int) -> None:
        """Scale the rates where the epoch that begins has steps of
        other sizes than the one before.
        """
        now = self.examples.at(epoch)
        before = self.examples.at(max(epoch - 1, 0))
        is_scaled = False
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                factor = now / group.get(EXAMPLES, before)
                if factor == 1:
                    continue
                if self.rule == "sqrt":
                    factor = sqrt(factor)
                set_rate(group, group["lr"] * factor)
                group[EXAMPLES] = now
                is_scaled = True
        if is_scaled:
            self.say(
                f"run.scale_lr: a step has {now:,} examples, and each learning rate follows"
                f" ({self.rule})"
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
