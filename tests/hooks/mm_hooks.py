"""Hooks of MMEngine: what they see of a runner, for both runners to be compared."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.hooks import Hook

SEEN: list[tuple[Any, ...]] = []


class Recorder(Hook):  # type: ignore[misc]
    """Record every call with what it is given, the counters, the mode of the network and whether gradients are on."""

    def _see(self, stage: str, runner: Any, **given: Any) -> None:
        place = (runner.iter, runner.epoch, runner.max_iters, runner.max_epochs)
        offered = sorted((name, _of(value)) for name, value in given.items())
        SEEN.append((stage, *place, runner.model.training, torch.is_grad_enabled(), offered))


def _of(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted(value)
    return value if isinstance(value, int) else type(value).__name__


def _method(stage: str) -> Any:
    if stage.endswith("_iter"):
        if stage.startswith("after"):
            return lambda self, runner, batch_idx, data_batch=None, outputs=None: self._see(
                stage, runner, batch_idx=batch_idx, data_batch=data_batch, outputs=outputs
            )
        return lambda self, runner, batch_idx, data_batch=None: self._see(
            stage, runner, batch_idx=batch_idx, data_batch=data_batch
        )
    if stage in ("after_val_epoch", "after_test_epoch"):
        return lambda self, runner, metrics=None: self._see(stage, runner, metrics=metrics)
    if "checkpoint" in stage:
        return lambda self, runner, checkpoint: self._see(
            stage, runner, has={"state_dict", "optimizer", "meta"} <= {*checkpoint}
        )
    return lambda self, runner: self._see(stage, runner)


for _stage in Hook.stages:
    setattr(Recorder, _stage, _method(_stage))


class Asks(Hook):  # type: ignore[misc]
    """Ask for an attribute of the runner, and log it."""

    priority = "LOW"

    def __init__(self, attribute: str) -> None:
        self.attribute = attribute

    def before_train(self, runner: Any) -> None:
        runner.logger.warning(f"{self.attribute}: {eval(self.attribute, {'runner': runner})}")  # noqa: S307


class Early(Hook):  # type: ignore[misc]
    """A hook of a high priority, which stops the training."""

    priority = "HIGH"

    def before_train(self, runner: Any) -> None:
        runner.visualizer.add_scalars({"early": 1.0})

    def after_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        if runner.iter == 6:
            runner.train_loop.stop_training = True
