"""Hooks of MMEngine: what they see of a runner, for both runners to be compared."""

import os
import signal
import threading
from typing import Any

import numpy as np
import torch
from mmengine.hooks import Hook
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop
from mmengine.visualization import Visualizer

SEEN: list[tuple[Any, ...]] = []


class Recorder(Hook):  # type: ignore[misc]
    """Record every call with what it is given, the counters,
    the mode of the network and whether gradients are on.
    """

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


class Ends:
    """End the process behind the validation of an iteration, as a scheduler does."""

    def __init__(self, at: int) -> None:
        self.at = at

    def after_val(self, run: Any) -> None:
        if run.iter == self.at:
            os.kill(os.getpid(), signal.SIGTERM)


class Informs(Hook):  # type: ignore[misc]
    """Keep information in the message hub, and tell what a resumed run has of it."""

    def before_train(self, runner: Any) -> None:
        runner.logger.info(f"resumed: {dict(runner.message_hub.runtime_info)}")

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        hub = runner.message_hub
        hub.update_info("best", {"names": ("a", None), "at": [runner.iter]})
        hub.update_info(
            "sigmas", np.array([0.5, 0.25], np.float32) if runner.iter else np.float64(0.5)
        )
        hub.update_info("passing", "text", resumed=False)
        hub.update_info("lock", {"of": [threading.Lock()]})


class Asks(Hook):  # type: ignore[misc]
    """Ask for an attribute of the runner, and log it."""

    priority = "LOW"

    def __init__(self, attribute: str) -> None:
        self.attribute = attribute

    def before_train(self, runner: Any) -> None:
        runner.logger.warning(f"{self.attribute}: {eval(self.attribute, {'runner': runner})}")  # noqa: S307


class SetRecorder(Hook):  # type: ignore[misc]
    """Record the data and the metrics of each set of a validation."""

    def before_val(self, runner: Any) -> None:
        SEEN.append(("before_val", len(runner.val_dataloader)))

    def before_val_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        loop = runner.val_loop
        SEEN.append((batch_idx, len(runner.val_dataloader), loop.total_length))

    def after_val_epoch(self, runner: Any, metrics: dict[str, float] | None = None) -> None:
        assert metrics is not None
        SEEN.append(("after_val_epoch", sorted(metrics)))
        metrics[f"{len(SEEN)}"] = 1.0


class Early(Hook):  # type: ignore[misc]
    """A hook of a high priority, which stops the training."""

    priority = "HIGH"

    def before_train(self, runner: Any) -> None:
        runner.visualizer.add_scalars({"early": 1.0})

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if runner.iter == 6:
            runner.train_loop.stop_training = True


class YOLOXModeSwitchHook(Hook):  # type: ignore[misc]
    """A hook by the name of one that builds another dataloader from MMEngine's config."""

    __module__ = "mmyolo.engine.hooks"


class Pairs:
    """Five batches of points, moved by a shift that a hook may set,
    as one sets the pipeline of a dataset.
    """

    def __init__(self) -> None:
        self.points = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
        self.shift = 0.0

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.points[index] + self.shift, torch.tensor(index % 3)


class Switches(Hook):  # type: ignore[misc]
    """Switch the data from an epoch on, once, and set an attribute of a module to what a table says
    of an epoch.

    It has the workers begin anew in the way of MMDetection's YOLOXModeSwitchHook.
    """

    def __init__(self, at: int, attributes: Any) -> None:
        self.at, self.attributes = at, attributes
        self._switched = False

    def before_train_epoch(self, runner: Any) -> None:
        loader = runner.train_dataloader
        runner.model.head.negated = self.attributes.get(runner.epoch, self.attributes[0]).negated
        if runner.epoch >= self.at and not self._switched:
            loader.dataset.shift = 3.0
            if hasattr(loader, "persistent_workers") and loader.persistent_workers is True:
                loader._DataLoader__initialized = False
                loader._iterator = None
            self._switched = True

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        runner.visualizer.add_scalar("moved", float(data_batch[0].mean() > 2.0))
        runner.visualizer.add_scalar("negated", float(runner.model.head.negated))


class Walks(Hook):  # type: ignore[misc]
    """Walk over the training data, as MMPretrain's PreciseBNHook does."""

    def _walk(self, runner: Any) -> None:
        with torch.no_grad():
            mean = torch.stack([inputs.mean() for inputs, _ in runner.train_loop.dataloader]).mean()
        runner.visualizer.add_scalar("mean", mean)

    def after_train_epoch(self, runner: Any) -> None:
        if isinstance(runner.train_loop, EpochBasedTrainLoop):
            self._walk(runner)

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if isinstance(runner.train_loop, IterBasedTrainLoop) and self.every_n_train_iters(
            runner, 5
        ):
            self._walk(runner)


class Draws(Hook):  # type: ignore[misc]
    """Draw the samples of a batch by the visualizer that the user has made,
    as DetVisualizationHook does.
    """

    def __init__(self) -> None:
        self.visualizer = Visualizer.get_current_instance()

    def after_val_iter(self, runner: Any, batch_idx: int, data_batch: Any, outputs: Any) -> None:
        assert runner.visualizer is self.visualizer and runner.val_evaluator.dataset_meta is None
        for sample in outputs:
            self.visualizer.add_image("sample", sample, step=runner.iter)
        self.visualizer.add_scalar("drawn", len(outputs))


def drawing(run: Any, batch: Any) -> dict[str, Any]:
    """A task whose outputs have a list of samples."""
    outputs = run.model(batch[0])
    loss = torch.nn.functional.cross_entropy(outputs, batch[1])
    return {"loss": loss, "samples": [torch.zeros(4, 4, 3, dtype=torch.uint8).numpy()] * 3}


def drawn_net() -> torch.nn.Module:
    """A net, in a file of a user, who makes the visualizer there."""
    from tests.support.toy import Net

    Visualizer.get_instance("of the user", vis_backends=[])
    return Net()
