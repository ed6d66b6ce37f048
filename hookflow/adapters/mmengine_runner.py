"""Views of a run as MMEngine's hooks know it.

These are the Runner with its loops, logger, visualizer and checkpoints.

Source: `mmengine.runner`, version 0.10.
"""

import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cached_property
from types import SimpleNamespace
from typing import Any, ClassVar
from weakref import proxy, ref

import tomli

from hookflow.adapters.values import pack_value, unpack_value
from hookflow.adapters.views import CheckpointView, DataLoaderView, RunView, find_sets
from hookflow.errors import Problem, UserError
from hookflow.events.records import Level
from hookflow.events.rundir import RunDir
from hookflow.hooks.run import Run


class MMEngineCheckpoint(CheckpointView):
    """The state of a checkpoint by MMEngine's keys: `state_dict`, `optimizer`, `meta`."""

    KEYS: ClassVar = {"state_dict": "model", "optimizer": "optimizer"}
    SECTION = "mmengine"


class LoopView(RunView):
    """The loop of a split: of training, with what stops it.

    It is an instance of MMEngine's class of the loop.
    """

    shown = "a loop of MMEngine"
    COUNTERS: ClassVar = ("iter", "epoch", "max_iters", "max_epochs")
    """The attributes of the runner that the training loop has."""

    def __init__(self, runner: "RunnerView", split: str) -> None:
        self._runner = runner
        self._split = split

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        from mmengine.runner import loops

        if self._split == "val":
            return loops.ValLoop  # type: ignore[no-any-return]
        if self._split == "test":
            return loops.TestLoop  # type: ignore[no-any-return]
        if self._runner.by_iterations:
            return loops.IterBasedTrainLoop  # type: ignore[no-any-return]
        return loops.EpochBasedTrainLoop  # type: ignore[no-any-return]

    @property
    def dataloader(self) -> DataLoaderView:
        return self._runner.dataloader(self._split)

    @dataloader.setter
    def dataloader(self, other: Any) -> None:
        hint = "a hook may change train_dataloader.dataset"
        raise UserError(
            Problem(
                "a hook of MMEngine replaces the dataloader, which hookflow builds once", hint=hint
            )
        )

    @property
    def evaluator(self) -> SimpleNamespace:
        """The facts about the dataset that the split's evaluator has."""
        meta = getattr(self.dataloader.dataset, "metainfo", None)
        return SimpleNamespace(dataset_meta=meta)

    @property
    def total_length(self) -> int:
        return len(self.dataloader)

    @property
    def stop_training(self) -> bool:
        return self._runner.stopped

    @stop_training.setter
    def stop_training(self, stop: bool) -> None:
        if stop and not self._runner.stopped:
            self._runner.run.stop("a hook of MMEngine has set train_loop.stop_training")
            self._runner.stopped = True

    def __getattr__(self, name: str) -> Any:
        if self._split == "train" and name in self.COUNTERS:
            return getattr(self._runner, name)
        return super().__getattr__(name)


class RunMessageHandler(logging.Handler):
    """Passes what hooks log on to the messages of the run.

    Once the run is gone, messages go to standard error.
    """

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = ref(run)  # libraries keep the logger

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        run = self._run()
        if run is None:
            print(text, file=sys.stderr)
        else:
            run.say(text, self._read_level(record))

    @staticmethod
    def _read_level(record: logging.LogRecord) -> Level:
        if record.levelno >= logging.ERROR:
            return "error"
        if record.levelno >= logging.WARNING:
            return "warn"
        return "info"


class VisualizerView(RunView):
    """The methods of MMEngine's visualizer, and of its backends, that log something.

    They do nothing once the run is gone.
    """

    shown = "MMEngine's visualizer"

    def __init__(self, run: Run) -> None:
        self._run = ref(run)
        self.dataset_meta: Any = None

    @classmethod
    def of(cls, run: Run) -> Any:
        """Return MMEngine's current visualizer, which then logs into the run, too.

        It is a view if the user made none.
        """
        module = sys.modules.get("mmengine.visualization")
        made = getattr(module, "Visualizer", None)
        if made is None or not made._instance_dict:
            return cls(run)
        visualizer = made.get_current_instance()
        visualizer._vis_backends["hookflow"] = cls(run)  # in place of that of an earlier run
        return visualizer

    def add_scalar(self, name: str, value: Any, step: int = 0, **_: Any) -> None:
        self.add_scalars({name: value})

    def add_scalars(
        self, scalar_dict: Mapping[str, Any], step: int = 0, file_path: Any = None, **_: Any
    ) -> None:
        run = self._run()
        if run is None:
            return
        for name, value in scalar_dict.items():
            run.log(name, value)

    def add_image(self, name: str, image: Any, step: int = 0, **_: Any) -> None:
        run = self._run()
        if run is not None:
            run.log_image(name, image)


class RunnerView(RunView):
    """A run as MMEngine's Runner shows it to hooks.

    Counters step after the hooks have fired, as there.
    """

    shown = "MMEngine's Runner"

    def __init__(self, run: Run) -> None:
        self.run = run
        self.point = ""
        """The point that fires."""
        self.stopped = False
        self.resumes = False
        self.model = run.model
        folder = str(run.dir)
        self.work_dir = folder
        self.log_dir = folder
        self._log_dir = folder
        self.timestamp = time.strftime("%Y%m%d_%H%M%S")
        self.experiment_name = run.dir.name
        self.rank = run.rank
        self.world_size = run.world
        self.distributed = run.world > 1
        self.visualizer = VisualizerView.of(run)
        runner: RunnerView = proxy(self)
        self.train_loop = LoopView(runner, "train")
        self.val_loop = LoopView(runner, "val")
        self.test_loop = LoopView(runner, "test")
        self._train_loop = self.train_loop
        self.param_schedulers: list[Any] = []
        self.message_hub, self.logger = self._make_instances()
        self._loaders: dict[str, DataLoaderView] = {}
        self._warned: set[str] = set()
        self.hub_owner: int | None = None
        """The identity of the hook whose state has the message hub: the first that is called."""
        self._shown_epoch: int | None = None
        """The epoch whose beginning a resumed run shows again."""
        self._first_iter = 0
        """The iterations that were done before this attempt."""
        if self.distributed and not hasattr(run.model, "module"):
            vars(run.model)["module"] = run.model  # as MMEngine wraps it there

    @property
    def by_iterations(self) -> bool:
        return self.run.max_epochs is None

    def _make_instances(self) -> tuple[Any, Any]:
        """Make what MMEngine finds by the name of the run, or as the current one.

        That is the message hub and the logger.
        """
        from mmengine.logging import MessageHub, MMLogger

        name = f"hookflow {self.run.dir.name}"
        for kind in (MessageHub, MMLogger):
            kind._instance_dict.pop(name, None)  # an attempt that has been undone
        logger = MMLogger.get_instance(name)
        logger.handlers = [RunMessageHandler(self.run)]
        return MessageHub.get_instance(name), logger

    @contextmanager
    def at(self, point: str, epoch: int | None = None) -> Iterator[None]:
        """Show the counters and the mode of a point.

        They are those of the one that begins an earlier epoch, if that is given.
        """
        self.point = point
        self._shown_epoch = epoch
        try:
            if point.endswith("_iter") or "checkpoint" in point:
                mode: Any = nullcontext()
            else:
                mode = self._show_network_mode()
            with mode:
                yield
        finally:
            self.point = ""
            self._shown_epoch = None

    @contextmanager
    def _show_network_mode(self) -> Iterator[None]:
        """Show the mode of the network outside the batches, and undo what a hook does to it there.

        MMEngine's loops set the mode of all modules behind `before_train_epoch`, `before_val_epoch`
        and `before_test_epoch`, so a validation leaves it in evaluation.
        """
        model = self.model
        whole = model.training
        modes = {module: module.training for module in model.modules()}
        if self.run.metrics_at == self.run.iter != self._first_iter:
            model.eval()
        elif self.point in ("before_val_epoch", "before_test_epoch"):
            model.train()
        try:
            yield
        finally:
            for module in model.modules():  # a hook may have added one
                module.training = modes.get(module, whole)

    @property
    def iter(self) -> int:
        if self._shown_epoch is not None:
            return int(self.run.epoch_lengths.iterations(self._shown_epoch))
        if self.point == "after_train_iter":
            return self.run.iter - 1
        return self.run.iter

    @property
    def epoch(self) -> int:
        if self._shown_epoch is not None:
            return self._shown_epoch
        if self.by_iterations:
            return 0
        if self.point == "after_train_epoch":
            return self.run.epoch - 1
        return self.run.epoch

    @property
    def max_iters(self) -> int:
        return self.run.max_iters

    @property
    def max_epochs(self) -> int:
        return self.run.max_epochs or 1

    @property
    def _resume(self) -> bool:
        return self.resumes

    def dataloader(self, split: str) -> DataLoaderView:
        """Return the data of a split; of several sets those that are evaluated, or the first."""
        sets = find_sets(self.run, split)
        source = split
        if self.run.split in sets:
            source = self.run.split
        elif sets:
            source = sets[0]
        if source not in self._loaders:
            self._loaders[source] = DataLoaderView(proxy(self), source)
        return self._loaders[source]

    @property
    def train_dataloader(self) -> DataLoaderView:
        return self.dataloader("train")

    @property
    def val_dataloader(self) -> DataLoaderView:
        return self.dataloader("val")

    @property
    def test_dataloader(self) -> DataLoaderView:
        return self.dataloader("test")

    @property
    def val_evaluator(self) -> SimpleNamespace:
        return self.val_loop.evaluator

    @property
    def test_evaluator(self) -> SimpleNamespace:
        return self.test_loop.evaluator

    @cached_property
    def log_processor(self) -> Any:
        from mmengine.runner import LogProcessor

        return LogProcessor(by_epoch=not self.by_iterations)

    @cached_property
    def optim_wrapper(self) -> Any:
        """MMEngine's own wrapper of the optimizer, to be read: `param_groups`, `get_lr()`."""
        from mmengine.optim import OptimWrapper

        return OptimWrapper(self.run.optimizer)

    @cached_property
    def cfg(self) -> Any:
        from mmengine.config import Config

        text = RunDir(self.run.dir).pipeline.read_text("utf-8")
        return Config(tomli.loads(text))

    @property
    def seed(self) -> int:
        return int(self.cfg.run.seed)

    def make_hub_state(self) -> dict[str, Any]:
        """Return what the message hub resumes: scalars and information.

        Scalars are float64 and int64 (count,).

        A warning names information that no checkpoint can hold.
        """
        import torch

        hub = self.message_hub  # its own state_dict() warns at each call of what it cannot copy
        resumed = {name for name, is_resumed in hub._resumed_keys.items() if is_resumed}
        scalars = {}
        for name, buffer in hub.log_scalars.items():
            if name in resumed:
                scalars[name] = [torch.from_numpy(column.copy()) for column in buffer.data]
        infos = {}
        for name, value in hub.runtime_info.items():
            if name not in resumed:
                continue
            try:
                infos[name] = pack_value(value)
            except TypeError as error:
                message = (
                    f'"{name}" of MMEngine\'s message hub is in no checkpoint: {error} cannot be'
                    " loaded again"
                )
                self._warn_once(message)
        return {"scalars": scalars, "infos": infos}

    def _warn_once(self, warning: str) -> None:
        if warning not in self._warned:
            self._warned.add(warning)
            self.run.say(warning, "warn")

    def resume(self, hub: Mapping[str, Any] | None) -> None:
        """Begin where the run is.

        `hub` is the state of the message hub, if the hook that is resumed owns it.
        """
        from mmengine.logging import HistoryBuffer

        self._first_iter = self.run.iter
        if hub is None:
            return
        scalars = {}
        for name, columns in hub["scalars"].items():
            arrays = [column.numpy() for column in columns]
            scalars[name] = HistoryBuffer(*arrays)
        infos = unpack_value(hub["infos"])
        keys = dict.fromkeys([*scalars, *infos], True)
        self.message_hub.load_state_dict(
            {"log_scalars": scalars, "runtime_info": infos, "resumed_keys": keys}
        )
