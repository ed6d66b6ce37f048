"""Spike guard: a loss that jumps does not reach the weights (as in A. Chowdhery and others, *PaLM*, 2022, 5.1)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from hookflow.errors import Problem, UserError
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.builtin.means import loss_over_ranks
from hookflow.hooks.tensors import is_sharded
from hookflow.numbers import number

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


LEAST_SPREAD = 0.01
"""The losses of a window count as spread by this share of their mean at least, be they as even as they like."""


@dataclass(eq=False)
class SpikeGuard(Hook):
    """Skips the optimizer step at a loss spike, and with `rollback` puts back the weights of the last checkpoint.

    A spike is a loss above the mean of the last `window` losses by more than `sigmas` standard deviations; the first
    `window` losses are none. A loss that is not finite is one, too, where `run.on_nan` does not end the run. The
    losses of spikes are left out of the mean. After `patience` iterations in a row with a spike the run stops. Over
    several ranks the mean over the examples of all counts. With `run.accumulate` each batch has a loss, and one that
    jumps is enough. A task that steps several optimizers itself, each by a loss of its own, is refused.

    With `rollback` the weights, the buffers and the optimizer's state become those of the last checkpoint that was
    saved or resumed from. It keeps a copy of them in the host's memory; without one yet, only the step is skipped.
    The losses since then are forgotten, too: with the older weights they may be higher again. The data, the schedules,
    the counters and averages of the weights go on from where they are, so that what made the spike is not seen again.

    To know the loss before the step, the training waits for the device in each iteration.
    """

    settable = ("sigmas",)
    reads: ClassVar[Slots] = {
        "after_forward": ("batch", "outputs"),
        "after_train_iter": ("lr",),
        "before_save_checkpoint": ("checkpoint", "model", "optimizer"),
        "after_load_checkpoint": ("checkpoint",),
    }
    writes: ClassVar[Slots] = {"after_forward": ("control",), "after_train_iter": ("model", "optimizer", "control")}

    window: Annotated[int, Field(ge=2, description="how many losses a new one is compared with")] = 100
    sigmas: Annotated[float, Field(gt=0, description="standard deviations above the mean that are a spike")] = 6.0
    patience: Annotated[int, Field(ge=1, description="spikes in a row at which the run stops")] = 10
    rollback: Annotated[bool, Field(description="put back the last checkpoint's weights and optimizer state")] = False

    def __post_init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=self.window)
        self.in_a_row = 0
        self.spiked = False
        self.kept: dict[str, Any] = {}
        """The weights and the state of the optimizers in the last checkpoint, and the losses before it."""

    def before_train(self, run: Run) -> None:
        if getattr(run.task, "steps_itself", False) and len(run.optimizers) > 1:
            raise UserError(Problem("spike_guard knows one loss, and this task steps several optimizers by theirs"))
        if self.rollback and any(map(is_sharded, run.model.parameters())):
            message = "spike_guard cannot roll back a model that is sharded across the ranks"
            raise UserError(Problem(message, hint='leave rollback out, or use distributed.strategy = "ddp"'))

    def after_forward(self, run: Run, outputs: Mapping[str, Any]) -> None:
        loss = loss_over_ranks(run, outputs, "spike_guard")
        if not is_spike(loss, self.losses, self.window, self.sigmas):
            self.losses.append(loss)
            return
        run.skip_step()
        if not self.spiked:  # one of several batches is enough
            run.say(f"the loss has spiked to {number(loss)}: iteration {run.iter + 1} takes no step", "warn")
        self.spiked = True

    def after_train_iter(self, run: Run) -> None:
        self.in_a_row = self.in_a_row + 1 if self.spiked else 0
        if self.in_a_row == self.patience:
            run.stop(f"the loss has spiked {self.patience} times in a row")
        if self.spiked and self.kept:
            for name, part in parts(run).items():
                state = deepcopy(self.kept[name])  # an optimizer goes on with the tensors that it is given
                if "param_groups" in state:  # their settings, as the rate, stay
                    state["param_groups"] = part.state_dict()["param_groups"]
                part.load_state_dict(state)
            self.losses = deque(self.kept["losses"], self.window)
            run.say("the weights and the optimizer are those of the last checkpoint again", "warn")
        self.spiked = False

    def before_save_checkpoint(self, run: Run, checkpoint: Mapping[str, Any]) -> None:
        if self.rollback:
            from torch import Tensor
            from torch.utils._pytree import tree_map_only

            states = {name: checkpoint[name] for name in parts(run)}
            self.kept = tree_map_only(Tensor, lambda tensor: tensor.detach().to("cpu", copy=True), states)
            self.kept["losses"] = checkpoint["hooks"].get(self.name, {"losses": []})["losses"]

    def after_load_checkpoint(self, run: Run, checkpoint: Mapping[str, Any]) -> None:
        if "hooks" in checkpoint:  # else it is only weights, to begin with
            self.before_save_checkpoint(run, checkpoint)

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self.losses), "in_a_row": self.in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses, self.in_a_row = deque(state["losses"], self.window), state["in_a_row"]


def is_spike(loss: float, losses: Sequence[float], window: int, sigmas: float) -> bool:
    """Say whether a loss is above the mean of the last `window` losses by more than so many standard deviations."""
    if not math.isfinite(loss):
        return True
    if len(losses) < window:
        return False
    mean = sum(losses) / len(losses)
    spread = math.sqrt(sum((other - mean) ** 2 for other in losses) / len(losses))
    return loss > mean + sigmas * max(spread, LEAST_SPREAD * abs(mean))


def parts(run: Run) -> dict[str, Any]:
    """Return the models and optimizers of a run by what a checkpoint calls them."""
    models = {name if name == "model" else f"model_{name}": model for name, model in run.models.items()}
    optimizers = {name if name == "optimizer" else f"optimizer_{name}": each for name, each in run.optimizers.items()}
    return {**models, **optimizers}
