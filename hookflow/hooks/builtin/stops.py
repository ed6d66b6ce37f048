"""Hooks that end a run or repeat a part of it: `early_stop`, `time_limit` and `spike_guard`.

`early_stop` follows L. Prechelt, *Early stopping – but when?*, 1998, and `spike_guard` A. Chowdhery
and others, *PaLM*, 2022, 5.1.
"""

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from hookflow.errors import Problem, UserError
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.capabilities import HookCapabilities
from hookflow.hooks.monitored import monitored_mode, read_latest_metric, read_new_value
from hookflow.hooks.optimizer_state import host_tensors_of, load_optimizer_state
from hookflow.hooks.parameter_notes import find_notes
from hookflow.hooks.run import Run
from hookflow.hooks.tensors import is_sharded, loss_over_ranks
from hookflow.metric_mode import MODE_MEANING, Mode, compute_gain
from hookflow.numbers import format_count, number
from hookflow.pipeline.amounts import parse_amount


@dataclass(eq=False)
class EarlyStop(Hook):
    """Stops the run when a validation metric has not improved for `patience` validations in a row.

    With `stage = "train"` it looks after each epoch at a number that the training has logged, such
    as `loss_epoch` of `log` with `mean = "epoch"`, or `train/accuracy` of `accuracy`; `patience`
    counts the epochs that have logged it then. It also stops as soon as the metric is as good as
    `stopping_threshold`, worse than `divergence_threshold`, or, with `check_finite`, NaN or
    infinite; without it such a value is no improvement.
    """

    settable = (
        "patience",
        "min_delta",
        "stopping_threshold",
        "divergence_threshold",
        "check_finite",
    )
    phase = "late"
    reads: ClassVar[Slots] = {
        "after_val": ("metrics.{monitor}",),
        "after_train_epoch": ("scalars.{monitor}",),
    }
    writes = ("control",)

    monitor: Annotated[str, Field(description="the metric to watch")] = "accuracy"
    mode: Annotated[Mode | None, Field(description=MODE_MEANING)] = None
    patience: Annotated[
        int, Field(ge=1, description="validations without improvement before the stop")
    ] = 5
    min_delta: Annotated[
        float, Field(ge=0, description="the least change that counts as improvement")
    ] = 0.0
    stopping_threshold: Annotated[
        float | None, Field(description="stop when the metric is as good as this")
    ] = None
    divergence_threshold: Annotated[
        float | None, Field(description="stop when the metric is worse than this")
    ] = None
    check_finite: Annotated[
        bool, Field(description="stop at once when the metric is NaN or infinite")
    ] = False
    stage: Annotated[Literal["val", "train"], Field(description="where the number comes from")] = (
        "val"
    )

    def __post_init__(self) -> None:
        self.modes = {self.monitor: monitored_mode(self.monitor, self.mode)}
        self.best: float | None = None
        self.waited = 0
        self.count = 0
        """How often the number of the training was logged when it was last judged."""
        self.begins_anew = False
        """Whether a resumed run judges by another number than before."""

    @classmethod
    def capabilities_for(cls, args: Mapping[str, Any]) -> HookCapabilities:
        metric = args.get("monitor", "accuracy")
        return replace(
            cls.capabilities, monitors={metric: monitored_mode(metric, args.get("mode"))}
        )

    @classmethod
    def points_for(cls, args: Mapping[str, Any]) -> tuple[str, ...]:
        if args.get("stage") == "train":
            return ("after_train_epoch",)
        return ("after_val",)

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        if "monitor" in args:
            monitored_mode(args["monitor"], args.get("mode"))

    def after_val(self, run: Run) -> None:
        value = read_latest_metric(run, self.monitor)
        if value is not None:
            self.judge(run, value)

    def after_train_epoch(self, run: Run) -> None:
        value, self.count = read_new_value(run, self.monitor, self.count)
        if value is not None:
            self.judge(run, value)

    def judge(self, run: Run, value: float) -> None:
        """Take in a value, and ask for the stop where it is due."""
        if self.begins_anew:
            self.begins_anew = False
            run.say(
                "monitor, mode or stage is another than before: the best so far does not count,"
                " and the patience begins anew"
            )
        why = self.find_bound_reason(value) or self.find_stall_reason(value)
        if why:
            run.stop(f"{self.monitor} {why}")

    def find_bound_reason(self, value: float) -> str:
        """Return why the run stops at this value, whatever came before it.

        The text is empty if it does not.
        """
        good = self.stopping_threshold
        bad = self.divergence_threshold
        mode = self.modes[self.monitor]
        if self.check_finite and not math.isfinite(value):
            return f"is {number(value)}, which is not finite"
        if good is not None and compute_gain(value, good, mode) >= 0:
            return f"is {number(value)}, as good as the threshold of {number(good)}"
        if bad is not None and compute_gain(value, bad, mode) < 0:
            return f"is {number(value)}, worse than the threshold of {number(bad)}"
        return ""

    def find_stall_reason(self, value: float) -> str:
        """Take in the value of a validation, and return why the run stops.

        It stops if it has waited for a better value too long.
        """
        gain = math.inf
        if self.best is not None:
            gain = compute_gain(value, self.best, self.modes[self.monitor])
        if gain > self.min_delta and math.isfinite(value):
            self.best = value
            self.waited = 0
            return ""
        self.waited += 1
        if self.waited < self.patience:
            return ""
        unit = "validation"
        if self.stage == "train":
            unit = "epoch"
        waited = format_count(self.waited, unit)
        if self.best is None:
            return f"has not been finite for {waited}"
        return f"has not improved on {number(self.best)} for {waited}"

    def state_dict(self) -> dict[str, Any]:
        return {
            "best": self.best,
            "waited": self.waited,
            "count": self.count,
            "judged": self._list_judged(),
        }

    def _list_judged(self) -> list[str]:
        """Return the number that is judged: its name, its mode and its stage."""
        return [self.monitor, self.modes[self.monitor], self.stage]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        judged = self._list_judged()
        if list(state.get("judged", judged)) != judged:
            self.begins_anew = True
            return
        self.best = state["best"]
        self.waited = state["waited"]
        self.count = state.get("count", 0)


def _duration(written: object) -> object:
    parse_amount(written, ["s"])
    return written


@dataclass(eq=False)
class TimeLimit(Hook):
    """Stops the run at a safe point, with a checkpoint, when its time limit is reached.

    Time is counted from when this process has made its hooks, anew in each one: a run that a batch
    system such as Slurm ends after four hours gets "230m", and the next job resumes it. It is
    looked at after each iteration and each validation; neither is cut short, so leave time for a
    validation and for writing the checkpoint. Over several processes this lets them wait for one
    another after each iteration in which it fires: give it `every = "10s"`.
    """

    phase = "late"
    writes: ClassVar[Slots] = ("control", "checkpoint")

    limit: Annotated[
        str,
        BeforeValidator(_duration),
        Field(description='how long: "230m", "3.8h"', examples=["230m"]),
    ]

    def __post_init__(self) -> None:
        self.end = time.monotonic() + float(parse_amount(self.limit).value)

    def after_train_iter(self, run: Run) -> None:
        if time.monotonic() >= self.end:
            run.save_checkpoint()
            run.stop(f"the time limit of {self.limit} is reached", this_process=True)

    after_val = after_train_iter


LEAST_SPREAD = 0.01
"""The least spread of the losses of a window, as a share of their mean.

It is for losses that are nearly even.
"""


@dataclass(eq=False)
class SpikeGuard(Hook):
    """Skips the optimizer step at a loss spike.

    With `rollback` it also puts back the weights of the last checkpoint. A spike is a loss above
    the mean of the last `window` losses by more than `sigmas` standard deviations; the first
    `window` losses are none. A loss that is not finite is one, too, where `run.on_nan` does not end
    the run. The losses of spikes are left out of the mean. After `patience` iterations in a row
    with a spike the run stops. Over several ranks the mean over the examples of all counts. With
    `run.accumulate` each batch has a loss, and one that jumps is enough. A task that steps several
    optimizers itself, each by a loss of its own, is refused.

    With `rollback` the weights, the buffers and the optimizer's state become those of the last
    checkpoint that was saved or resumed from. It keeps a copy of them in the host's memory; without
    one yet, only the step is skipped. The losses since then are forgotten, too: with the older
    weights they may be higher again. The data, the schedules, the counters and averages of the
    weights go on from where they are, so that what made the spike is not seen again.

    To know the loss before the step, the training waits for the device in each iteration.
    """

    settable = ("sigmas",)
    reads: ClassVar[Slots] = {
        "after_forward": ("batch", "outputs"),
        "after_train_iter": ("lr",),
        "before_save_checkpoint": ("checkpoint", "model", "optimizer"),
        "after_load_checkpoint": ("checkpoint",),
    }
    writes: ClassVar[Slots] = {
        "after_forward": ("control",),
        "after_train_iter": ("model", "optimizer", "control"),
    }

    window: Annotated[
        int, Field(ge=2, description="how many losses a new one is compared with")
    ] = 100
    sigmas: Annotated[
        float, Field(gt=0, description="standard deviations above the mean that are a spike")
    ] = 6.0
    patience: Annotated[int, Field(ge=1, description="spikes in a row at which the run stops")] = 10
    rollback: Annotated[
        bool, Field(description="put back the last checkpoint's weights and optimizer state")
    ] = False

    def __post_init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=self.window)
        self.in_a_row = 0
        self.spiked = False
        self.kept: dict[str, Any] = {}
        """The weights and optimizers' state in the last checkpoint, and the losses before it."""

    def before_train(self, run: Run) -> None:
        if getattr(run.task, "steps_itself", False) and len(run.optimizers) > 1:
            message = "spike_guard knows one loss, and this task steps several optimizers by theirs"
            raise UserError(Problem(message))
        if self.rollback and any(map(is_sharded, run.model.parameters())):
            message = "spike_guard cannot roll back a model that is sharded across the ranks"
            raise UserError(
                Problem(message, hint='leave rollback out, or use distributed.strategy = "ddp"')
            )

    def after_forward(self, run: Run, outputs: Mapping[str, Any]) -> None:
        loss = loss_over_ranks(run, outputs, "spike_guard")
        if loss is None:  # nothing in the batch counts
            return
        if not is_spike(loss, self.losses, self.window, self.sigmas):
            self.losses.append(loss)
            return
        run.skip_step()
        if not self.spiked:  # one of several batches is enough
            run.say(
                f"the loss has spiked to {number(loss)}: iteration {run.iter + 1} takes no step",
                "warn",
            )
        self.spiked = True

    def after_train_iter(self, run: Run) -> None:
        if self.spiked:
            self.in_a_row += 1
        else:
            self.in_a_row = 0
        if self.in_a_row >= self.patience:  # a resumed run may have less patience
            run.stop(f"the loss has spiked {self.patience} times in a row")
        if self.spiked and self.kept:
            for name, part in collect_parts(run).items():
                # An optimizer keeps the tensors that it loads and changes them, so it is given
                # copies.
                state = deepcopy(self.kept[name])
                if "param_groups" in state:  # their settings, as the rate, stay
                    state["param_groups"] = part.state_dict()["param_groups"]
                    load_optimizer_state(part, state, host_tensors=host_tensors_of(part))
                else:
                    part.load_state_dict(state)
            mask_weights(run.model)  # the checkpoint may be older than the masks
            self.losses = deque(self.kept["losses"], self.window)
            run.say("the weights and the optimizer are those of the last checkpoint again", "warn")
        self.spiked = False

    def before_save_checkpoint(self, run: Run, checkpoint: Mapping[str, Any]) -> None:
        if self.rollback:
            from torch import Tensor
            from torch.utils._pytree import tree_map_only

            states = {name: checkpoint[name] for name in collect_parts(run)}
            self.kept = tree_map_only(
                Tensor, lambda tensor: tensor.detach().to("cpu", copy=True), states
            )
            self.kept["losses"] = checkpoint["hooks"].get(self.name, {"losses": []})["losses"]

    def after_load_checkpoint(self, run: Run, checkpoint: Mapping[str, Any]) -> None:
        if "hooks" in checkpoint:  # else it is only weights, to begin with
            self.before_save_checkpoint(run, checkpoint)

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self.losses), "in_a_row": self.in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = deque(state["losses"], self.window)
        self.in_a_row = state["in_a_row"]


def mask_weights(model: Any) -> None:
    """Set the weights to zero that a hook has pruned."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            mask = find_notes(parameter).mask
            if mask is not None:
                parameter.mul_(mask)


def is_spike(loss: float, losses: Sequence[float], window: int, sigmas: float) -> bool:
    """Say whether a loss is a spike.

    It is if it exceeds the mean of the last `window` losses by more than so many standard
    deviations.
    """
    if not math.isfinite(loss):
        return True
    if len(losses) < window:
        return False
    mean = sum(losses) / len(losses)
    spread = math.sqrt(sum((other - mean) ** 2 for other in losses) / len(losses))
    return loss > mean + sigmas * max(spread, LEAST_SPREAD * abs(mean))


def collect_parts(run: Run) -> dict[str, Any]:
    """Return the models and optimizers of a run by what a checkpoint calls them."""
    models = {
        name if name == "model" else f"model_{name}": model for name, model in run.models.items()
    }
    optimizers = {
        name if name == "optimizer" else f"optimizer_{name}": each
        for name, each in run.optimizers.items()
    }
    return {**models, **optimizers}
