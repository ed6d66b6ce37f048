"""open-mmlab/mmcv#689: the average must come after the update and before the checkpoint, and all three are "normal"."""

from __future__ import annotations

from typing import Any

import torch


class Projects:
    """The last part of an update: each weight matrix is pulled back into a ball."""

    def after_train_iter(self, run: Any) -> None:
        with torch.no_grad():
            for weights in run.model.parameters():
                weights.mul_(min(1.0, 0.5 / float(weights.norm())))


class Average:
    """An average of the weights, updated after each iteration; the model has it among its own buffers."""

    def before_run(self, run: Any) -> None:
        for name, weights in list(run.model.named_parameters()):
            run.model.register_buffer(f"ema_{name.replace('.', '_')}", weights.detach().clone())

    def after_train_iter(self, run: Any) -> None:
        for name, weights in run.model.named_parameters():
            run.model.get_buffer(f"ema_{name.replace('.', '_')}").lerp_(weights.detach(), 0.1)
