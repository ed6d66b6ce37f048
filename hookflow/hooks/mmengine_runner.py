"""Views of a run as MMEngine's hooks know them: the Runner with its loops, dataloaders, logger and checkpoints.

Source: `mmengine.runner`, version 0.10.
"""

import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from types import SimpleNamespace
from typing import Any, ClassVar, Self
from weakref import WeakValueDictionary, proxy, ref

import tomli

from hookflow.errors import Problem, UserError
from hookflow.events.records import Level
from hookflow.events.rundir import RunDir
from hookflow.hooks.run import Run


def numbers_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers and tensors among some values; NumPy's numbers as Python's, which a checkpoint can have."""
    import numpy as np
    import torch

    python = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
    return {name: value for name, value in python.items() if type(value) in (bool, int, float, torch.Tensor)}


ARRAY = "array of NumPy"
"""The key of an array, or of a number of NumPy, that is saved as a tensor."""


def packed(value: Any) -> Any:
    """Return a copy of a value as a checkpoint can have it. Raises TypeError where none can."""
    import numpy as np
    import torch

    if isinstance(value, np.ndarray | np.generic):
        return {ARRAY: torch.from_numpy(np.array(value))}
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) in (dict, OrderedDict):
        return type(value)((packed(key), packed(item)) for key, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(map(packed, value))
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    raise TypeError(f"a {type(value).__module__}.{type(value).__qualname__}")


def unpacked(value: Any) -> Any:
    """Return a copy of the value that `packed` has been called with."""
    if isinstance(value, dict):
        array = value.get(ARRAY)
        items = ((key, unpacked(item)) for key, item in value.items())
        return type(value)(items) if array is None else array.numpy().copy()[()]
    return type(value)(map(unpacked, value)) if isinstance(value, list | tuple) else value


def changed(values: Mapping[str, Any], initial: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers and tensors that are not what they were initially."""
    return {name: value for name, value in values.items() if not _same(value, initial.get(name))}


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool((value == other) if not hasattr(value, "equal") else value.equal(other))


def numbers(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the single numbers among the outputs of a step, as MMEngine's `log_vars`."""
    import torch

    detached = {name: v.detach() if isinstance(v, torch.Tensor) else v for name, v in outputs.items()}
    return {
        name: v
        for name, v in detached.items()
        if isinstance(v, torch.Tensor | int | float) and not getattr(v, "ndim", 0)
    }


def samples(outputs: Mapping[str, Any]) -> Sequence[Any]:
    """Return what MMEngine's models return for a batch of an evaluation: the list among the outputs, if one is there.

    Without one, or with several, the outputs are the only item.
    """
    lists = [value for value in outputs.values() if isinstance(value, list | tuple)]
    return lists[0] if len(lists) == 1 else [outputs]


class View:
    """A view of a run as hooks of another framework know it. It has no other attribute of `shown`."""

    shown: ClassVar[str]

    def __init__(self, run: Any, *_: Any) -> None: ...

    @classmethod
    def shared(cls, run: Run, *args: Any) -> Self:
        """Return the view that the hooks of a run share; the first call makes it, with these further arguments."""
        view: Self = VIEWS.get((cls, id(run))) or VIEWS.setdefault((cls, id(run)), cls(run, *args))
        return view

    def itself(self) -> Self:
        return self

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"hookflow's view of {self.shown} has no {name}")


VIEWS: WeakValueDictionary[tuple[type, int], Any] = WeakValueDictionary()
"""The shared views by class and by the identity of the run: the hooks of the run keep them alive."""


class Checkpoint(MutableMapping[str, Any]):
    """The state of a checkpoint by MMEngine's keys: `state_dict`, `optimizer`, `meta`; others are kept beside them."""

    KEYS: ClassVar[Mapping[str, str]] = {"state_dict": "model", "optimizer": "optimizer"}
    SECTION: ClassVar[str] = "mmengine"

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state
        position = state.get("position", {})
        self._meta = {"epoch": position.get("epoch", 0), "iter": position.get("iter", 0)}
        more = state.setdefault(self.SECTION, {}) if position else state.get(self.SECTION, {})
        self._more: dict[str, Any] = more

    def __getitem__(self, key: str) -> Any:
        if key == "meta":
            return self._meta
        return self.state[self.KEYS[key]] if key in self.KEYS else self._more[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if key in self.KEYS:
            self.state[self.KEYS[key]] = value
        else:
            self._more[key] = value

    def __delitem__(self, key: str) -> None:
        del self._more[key]

    def __iter__(self) -> Iterator[str]:
        return iter([*(key for key, ours in self.KEYS.items() if ours in self.state), "meta", *self._more])

    def __len__(self) -> int:
        return len([*self])


class DataLoader(View):
    """The data of a split, as hooks use a dataloader. The batches that it yields are beside the training."""

    shown = "a dataloader"

    def __init__(self, runner: Any, split: str) -> None:
        self._runner, self._split = runner, split
        self._source: Any = runner.run.data[split]
        self.batch_size = self._source.info["batch_size"] or None
        self.dataset = getattr(self._source, "dataset", self._source)

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the current epoch. The random numbers of the training stay as they are."""
        import torch

        run, workers = self._runner.run, self.persistent_workers
        if workers and self._split == "train" and self._runner.stage.endswith("train_iter"):
            message = "a hook of MMEngine iterates the training data in the middle of an epoch, whose workers are busy"
            raise UserError(Problem(message, hint="data.train.loader.workers = 0"))
        with torch.random.fork_rng([run.device] if run.device.type == "cuda" else []):
            yield from self._source.epoch(run.epoch if self._split == "train" else 0)

    persistent_workers = property(lambda self: getattr(self._source, "workers", 0) > 0)

    def __setattr__(self, name: str, value: Any) -> None:
        """End the workers where a hook sets `_iterator` to None: the next epoch's get the dataset as it is now."""
        if name == "_iterator" and value is None and hasattr(self._source, "close"):
            self._source.close()
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        owners = (self._source, getattr(self._source, "loader", None))
        for owner in owners if name in ("sampler", "collate_fn", "num_workers") else ():
            if hasattr(owner, name):
                return getattr(owner, name)
        return super().__getattr__(name)


class Loop(View):
    """The loop of a split: of training, with what stops it. It is an instance of MMEngine's class of the loop."""

    shown = "a loop of MMEngine"

    def __init__(self, runner: "Runner", split: str) -> None:
        self._runner, self._split = runner, split

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        from mmengine.runner import loops

        kinds = {"val": loops.ValLoop, "test": loops.TestLoop}
        train = loops.IterBasedTrainLoop if self._runner.by_iterations else loops.EpochBasedTrainLoop
        return kinds.get(self._split, train)  # type: ignore[no-any-return]

    @property
    def dataloader(self) -> DataLoader:
        return self._runner.dataloader(self._split)

    @dataloader.setter
    def dataloader(self, other: Any) -> None:
        hint = "a hook may change train_dataloader.dataset"
        raise UserError(Problem("a hook of MMEngine replaces the dataloader, which hookflow builds once", hint=hint))

    @property
    def evaluator(self) -> SimpleNamespace:
        """The facts about the dataset that the split's evaluator has."""
        return SimpleNamespace(dataset_meta=getattr(self.dataloader.dataset, "metainfo", None))

    total_length = property(lambda self: len(self.dataloader))

    @property
    def stop_training(self) -> bool:
        return self._runner.stopped

    @stop_training.setter
    def stop_training(self, stop: bool) -> None:
        if stop and not self._runner.stopped:
            self._runner.run.stop("a hook of MMEngine has set train_loop.stop_training")
        self._runner.stopped = self._runner.stopped or stop

    def __getattr__(self, name: str) -> Any:
        if self._split == "train" and name in ("iter", "epoch", "max_iters", "max_epochs"):
            return getattr(self._runner, name)
        return super().__getattr__(name)


class Messages(logging.Handler):
    """Passes what hooks log on to the messages of the run, and afterwards to standard error."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = ref(run)

    def emit(self, record: logging.LogRecord) -> None:
        level: Level = "info" if record.levelno < logging.WARNING else "warn"
        if record.levelno >= logging.ERROR:
            level = "error"
        if (run := self._run()) is None:  # libraries keep the logger
            print(record.getMessage(), file=sys.stderr)
        else:
            run.say(record.getMessage(), level)


class Visualizer(View):
    """The methods of MMEngine's visualizer, and of its backends, that log something; nothing once the run is gone."""

    shown = "MMEngine's visualizer"

    def __init__(self, run: Run) -> None:
        self._run = ref(run)
        self.dataset_meta: Any = None

    @classmethod
    def of(cls, run: Run) -> Any:
        made = getattr(sys.modules.get("mmengine.visualization"), "Visualizer", None)
        if made is None or not made._instance_dict:
            return cls(run)
        visualizer = made.get_current_instance()
        visualizer._vis_backends["hookflow"] = cls(run)  # in place of that of an earlier run
        return visualizer

    def add_scalar(self, name: str, value: Any, step: int = 0, **_: Any) -> None:
        self.add_scalars({name: value})

    def add_scalars(self, scalar_dict: Mapping[str, Any], step: int = 0, file_path: Any = None, **_: Any) -> None:
        if (run := self._run()) is not None:
            for name, value in scalar_dict.items():
                run.log(name, value)

    def add_image(self, name: str, image: Any, step: int = 0, **_: Any) -> None:
        if (run := self._run()) is not None:
            run.log_image(name, image)


class Runner(View):
    """A run as MMEngine's Runner shows it to hooks. Counters step after the hooks have fired, as there."""

    shown = "MMEngine's Runner"

    def __init__(self, run: Run) -> None:
        self.run = run
        self.stage = ""
        self.stopped = self.resumes = False
        self.model = run.model
        self.work_dir = self.log_dir = self._log_dir = str(run.dir)
        self.timestamp = time.strftime("%Y%m%d_%H%M%S")
        self.experiment_name = run.dir.name
        self.rank, self.world_size, self.distributed = run.rank, run.world, run.world > 1
        self.visualizer = Visualizer.of(run)
        self.train_loop, self.val_loop, self.test_loop = (
            Loop(proxy(self), split) for split in ("train", "val", "test")
        )
        self._train_loop = self.train_loop
        self.param_schedulers: list[Any] = []
        self.message_hub, self.logger = self._instances()
        self._loaders: dict[str, DataLoader] = {}
        self._warned: set[str] = set()
        self.keeper: int | None = None
        """The identity of the hook whose state has the message hub: the first that is called."""
        self._epoch: int | None = None
        """The epoch whose beginning a resumed run shows again."""
        self._begin = 0
        """The iterations that were done before this attempt."""
        if self.distributed and not hasattr(run.model, "module"):
            vars(run.model)["module"] = run.model  # as MMEngine wraps it there

    by_iterations = property(lambda self: self.run.max_epochs is None)

    def _instances(self) -> tuple[Any, Any]:
        """Make what MMEngine finds by the name of the run, or as the current one: the message hub and the logger."""
        from mmengine.logging import MessageHub, MMLogger

        name = f"hookflow {self.run.dir.name}"
        for kind in (MessageHub, MMLogger):
            kind._instance_dict.pop(name, None)  # an attempt that has been undone
        logger = MMLogger.get_instance(name)
        logger.handlers = [Messages(self.run)]
        return MessageHub.get_instance(name), logger

    @contextmanager
    def at(self, stage: str, epoch: int | None = None) -> Iterator[None]:
        """Show the counters and the mode of a point; of the one that begins an earlier epoch, if that is given."""
        self.stage, self._epoch = stage, epoch
        try:
            with nullcontext() if stage.endswith("_iter") or "checkpoint" in stage else self._mode():
                yield
        finally:
            self.stage, self._epoch = "", None

    @contextmanager
    def _mode(self) -> Iterator[None]:
        """Show the mode of the network outside the batches, and undo what a hook does to it there.

        MMEngine's loops set the mode of all modules behind `before_train_epoch`, `before_val_epoch` and
        `before_test_epoch`, so a validation leaves it in evaluation.
        """
        model, whole = self.model, self.model.training
        modes = {module: module.training for module in model.modules()}
        if self.run.metrics_at == self.run.iter != self._begin:
            model.eval()
        elif self.stage in ("before_val_epoch", "before_test_epoch"):
            model.train()
        try:
            yield
        finally:
            for module in model.modules():  # a hook may have added one
                module.training = modes.get(module, whole)

    @property
    def iter(self) -> int:
        if self._epoch is not None:
            return self._epoch * self.run.iters_per_epoch
        return self.run.iter - (self.stage == "after_train_iter")

    @property
    def epoch(self) -> int:
        if self._epoch is not None:
            return self._epoch
        return 0 if self.by_iterations else self.run.epoch - (self.stage == "after_train_epoch")

    max_iters = property(lambda self: self.run.max_iters)
    max_epochs = property(lambda self: self.run.max_epochs or 1)
    _resume = property(lambda self: self.resumes)

    def dataloader(self, split: str) -> DataLoader:
        if split not in self._loaders:
            self._loaders[split] = DataLoader(proxy(self), split)
        return self._loaders[split]

    train_dataloader = property(lambda self: self.dataloader("train"))
    val_dataloader = property(lambda self: self.dataloader("val"))
    test_dataloader = property(lambda self: self.dataloader("test"))
    val_evaluator = property(lambda self: self.val_loop.evaluator)
    test_evaluator = property(lambda self: self.test_loop.evaluator)

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

        return Config(tomli.loads(RunDir(self.run.dir).pipeline.read_text("utf-8")))

    seed = property(lambda self: int(self.cfg.run.seed))

    def hub_state(self) -> dict[str, Any]:
        """Return what the message hub resumes: scalars, float64 and int64 (count,), and information.

        A warning names information that no checkpoint can have.
        """
        import torch

        hub = self.message_hub  # its own state_dict() warns at each call of what it cannot copy
        kept = {name for name, resumed in hub._resumed_keys.items() if resumed}
        columns = {name: buffer.data for name, buffer in hub.log_scalars.items() if name in kept}
        scalars = {name: [torch.from_numpy(column.copy()) for column in data] for name, data in columns.items()}
        infos = {}
        for name, value in hub.runtime_info.items():
            if name not in kept:
                continue
            try:
                infos[name] = packed(value)
            except TypeError as error:
                message = f'"{name}" of MMEngine\'s message hub is in no checkpoint: {error} cannot be loaded again'
                self._warn_once(message)
        return {"scalars": scalars, "infos": infos}

    def _warn_once(self, warning: str) -> None:
        if warning not in self._warned:
            self._warned.add(warning)
            self.run.say(warning, "warn")

    def resume(self, hub: Mapping[str, Any] | None) -> None:
        """Begin where the run is; `hub` is the state of the message hub, if the hook that is resumed keeps it."""
        from mmengine.logging import HistoryBuffer

        self._begin = self.run.iter
        if hub is not None:
            scalars = {
                name: HistoryBuffer(*(column.numpy() for column in data)) for name, data in hub["scalars"].items()
            }
            infos = unpacked(hub["infos"])
            keys = dict.fromkeys((*scalars, *infos), True)
            self.message_hub.load_state_dict({"log_scalars": scalars, "runtime_info": infos, "resumed_keys": keys})
