"""Callbacks of Lightning, unmodified: each is called as Lightning's Trainer does it, with a trainer that views the run.

`use = "lightning:EarlyStopping"` names a callback of Lightning's own; any other class with Lightning's `Callback` among
its bases is adapted likewise. Source: `lightning.pytorch.callbacks` and `lightning.pytorch.loops`, version 2.6.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from copy import deepcopy
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.graph.plan import Nodes
from hookflow.graph.slots import root
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.lightning_trainer import Checkpoint, Groups, Trainer
from hookflow.hooks.mmengine import (
    CHECKPOINT,
    ByPoint,
    as_method,
    has_base,
    hook_class,
    is_adapted,
    module_of,
    slots_of,
)
from hookflow.hooks.mmengine_runner import changed, numbers_of
from hookflow.hooks.run import Run
from hookflow.hooks.tensors import evaluating, in_mode, is_sharded
from hookflow.pipeline.registry import missing_package

PACKAGES = ("pytorch_lightning", "lightning.pytorch")

BATCH = ("batch", "batch_idx")
OUTPUTS = ("outputs", *BATCH)


def _evaluation(ours: str, theirs: str) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    return {
        f"before_{ours}": ((f"on_{theirs}_start",), ()),
        f"before_{ours}_epoch": ((f"on_{theirs}_epoch_start",), ()),
        f"before_{ours}_iter": ((f"on_{theirs}_batch_start",), BATCH),
        f"after_{ours}_iter": ((f"on_{theirs}_batch_end",), OUTPUTS),
        f"after_{ours}_epoch": ((f"on_{theirs}_epoch_end",), ()),
        f"after_{ours}": ((f"on_{theirs}_end",), ()),
    }


CALLS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "before_run": (("setup",), ()),
    "before_train": (("on_fit_start", "on_train_start"), ()),
    "before_train_epoch": (("on_train_epoch_start",), ()),
    "before_train_iter": (("on_train_batch_start",), BATCH),
    "before_backward": (("on_before_backward",), ("outputs",)),
    "after_backward": (("on_after_backward",), ()),
    "before_optimizer_step": (("on_before_optimizer_step",), ()),
    "after_train_iter": (("on_train_batch_end",), OUTPUTS),
    "after_train_epoch": ((), ()),
    "after_train": (("on_train_end", "on_fit_end"), ()),
    **_evaluation("val", "validation"),
    **_evaluation("test", "test"),
    "before_test": (("setup", "on_test_start"), ()),
    "after_test": (("on_test_end", "teardown"), ()),
    "before_predict": (("setup", "on_predict_start", "on_predict_epoch_start"), ()),
    "before_predict_iter": (("on_predict_batch_start",), BATCH),
    "after_predict_iter": (("on_predict_batch_end",), OUTPUTS),
    "after_predict": (("on_predict_epoch_end", "on_predict_end", "teardown"), ()),
    "before_save_checkpoint": (("on_save_checkpoint",), ("checkpoint",)),
    "after_load_checkpoint": (("on_load_checkpoint",), ("checkpoint",)),
    "on_exception": (("on_exception",), ("exception",)),
    "after_run": (("teardown",), ()),
}
"""By point of hookflow: the methods of Lightning that are called there, and what the point offers them."""
WHILE_PREDICTING = ("after_load_checkpoint", *(point for point in CALLS if "predict" in point), "on_exception")
EPOCH_END = "on_train_epoch_end"
"""Lightning calls it after the validation of the epoch: see `LightningHook`."""
EVAL_STARTS = ("on_validation_start", "on_test_start")
"""The network is in evaluation by then."""
ENDS_EPOCH = ("after_train_epoch", "after_val", "before_train_epoch", "after_train")

INSTEAD: Mapping[str, str] = {
    "LearningRateFinder": 'use = "lr_finder"',
    "BatchSizeFinder": 'use = "batch_size_finder"',
    "ModelPruning": 'use = "prune"',
    "BasePredictionWriter": 'use = "predict"',
    **dict.fromkeys(("BaseFinetuning", "BackboneFinetuning"), 'use = "freeze"'),
    **dict.fromkeys(("ModelSummary", "RichModelSummary"), "hookflow run FILE --dry-run shows the table of layers"),
    **dict.fromkeys(("ProgressBar", "TQDMProgressBar", "RichProgressBar"), "the dashboard shows the progress"),
}
"""Callbacks of Lightning's own that need parts of its Trainer, with what does their work here."""

EVALUATED = ("before_val_epoch", "after_val_epoch")
ENDED: ByPoint = dict.fromkeys(ENDS_EPOCH, ("metrics",))
SLOTS: Mapping[str, tuple[ByPoint, ByPoint]] = {
    "EarlyStopping": (ENDED, dict.fromkeys(ENDS_EPOCH, ("control",))),
    "ModelCheckpoint": (ENDED, {}),
    "LearningRateMonitor": (
        {
            "before_train": ("optimizer",),
            **dict.fromkeys(("before_train_epoch", "before_train_iter"), ("lr", "optimizer", "metrics")),
        },
        {},
    ),
    "SpikeDetection": ({"after_train_iter": ("outputs",)}, {}),
    "Timer": ({}, dict.fromkeys(("after_train_iter", *ENDS_EPOCH), ("control",))),
    "WeightAveraging": (
        dict.fromkeys((*EVALUATED, *ENDS_EPOCH, "after_train_iter", "before_run", "after_load_checkpoint"), ("model",)),
        {
            **dict.fromkeys((*EVALUATED, "after_train"), ("model",)),
            **CHECKPOINT,
            "after_load_checkpoint": ("checkpoint", "model"),  # Lightning has loaded the weights by then
        },
    ),
}
"""The slots that Lightning's own callbacks read and write, and classes that are derived from them."""


def is_hook(kind: object) -> bool:
    """Say whether something is a callback class of Lightning, without importing Lightning."""
    return has_base(kind, _is_base)


def _is_base(kind: type) -> bool:
    packages = tuple(f"{package}." for package in PACKAGES)
    return type.__getattribute__(kind, "__name__") == "Callback" and module_of(kind).startswith(packages)


def find(use: str, where: Where | None) -> type:
    """Return the callback of Lightning that `use` names. Raises UserError where there is none."""
    package = next((each for each in PACKAGES if find_spec(each.partition(".")[0])), None)
    if package is None and (problem := missing_package(f'use = "{use}"', PACKAGES[0], "lightning", where)):
        raise UserError(problem)
    callbacks, name = import_module(f"{package}.callbacks"), use.partition(":")[2]
    result: Any = getattr(callbacks, name, None)
    if name == "SpikeDetection":  # the one callback that Lightning does not list
        result = import_module(f"{package}.callbacks.spike").SpikeDetection
    if not is_hook(result):
        raise UserError(Problem(f'Lightning has no callback "{name}"', where, nearest(name, callbacks.__all__)))
    return result  # type: ignore[no-any-return]


def adapted(kind: type, where: Where | None) -> type[Hook]:
    """Return a class of hookflow's hooks that calls a callback of Lightning. Raises UserError for some of its own."""
    if module_of(kind).startswith(PACKAGES) and kind.__name__ in INSTEAD:
        raise UserError(Problem(f"{kind.__name__} needs Lightning's Trainer", where, INSTEAD[kind.__name__]))
    if "on_before_zero_grad" in _own(kind):
        hint = "gradients are cleared before the forward pass: on_train_batch_end is the last method before that"
        raise UserError(Problem(f"{kind.__name__}.on_before_zero_grad has no point here", where, hint))
    bases = {base.__name__ for base in kind.__mro__ if module_of(base).startswith(PACKAGES)}
    base = next((hook for name, hook in SPECIAL.items() if name in bases), LightningHook)
    methods = {point: _method(point) for point in (*_points(kind), *base.needs)}
    slots = slots_of(kind, PACKAGES, SLOTS, methods, CHECKPOINT) if base is LightningHook else {}
    module = next(base.__module__ for base in kind.__mro__ if _is_base(base))
    package = next(package for package in PACKAGES if module.startswith(package))  # both may be installed
    return hook_class(base, kind, {"package": package, **slots, **methods})


def _own(kind: type) -> set[str]:
    return {name for base in kind.__mro__ if not _is_base(base) and base is not object for name in vars(base)}


def _points(kind: type) -> Iterator[str]:
    """Yield the points at which a callback has something to do, and those that the trainer counts by."""
    own = _own(kind)
    if kind.__name__ == "LambdaCallback":  # its methods are arguments
        own |= {EPOCH_END, *(name for names, _ in CALLS.values() for name in names)}
    for point, (names, _) in CALLS.items():
        always = point in ("before_run", "before_train_epoch", "after_train_epoch", "on_exception")
        if always or own & {*names} or (EPOCH_END in own and point in ENDS_EPOCH):
            yield point


def _method(point: str) -> Callable[..., None]:
    _, names = CALLS[point]

    def method(self: LightningHook, run: Run, *offered: Any) -> None:
        self.call(point, Trainer.shared(run, self.package, LightningHook), dict(zip(names, offered, strict=True)))

    return as_method(method, point, names)


class LightningHook(Hook):
    """A callback of Lightning. A checkpoint has its `state_dict()`, and the numbers and tensors that have changed.

    Lightning validates within the epoch, hookflow behind it: so `on_train_epoch_end` waits for the validation, or for
    what comes next, where none follows.
    """

    offload_blocker = "it is a callback of Lightning, whose trainer shows all of the run"
    kind: ClassVar[type]
    package: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    """Points beside those that the callback has methods for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        from hookflow.hooks.arguments import with_functions  # loads pydantic, which `hookflow --help` does without

        self.callback: Any = self.kind(*map(with_functions, args), **with_functions(kwargs))
        if type(self.callback).__name__ == "SpikeDetection":  # its load_state_dict() has the wrong name
            self.callback.running = self.callback.running_mean
        self._initial = deepcopy(numbers_of(vars(self.callback)))
        self._epoch_ends = False
        """Whether `on_train_epoch_end` is still to be called."""
        self._trainer: Callable[[], Trainer] | None = None
        """Keeps the trainer, which all callbacks share: what changes in it is no change of this hook."""

    def call(self, point: str, trainer: Trainer, offered: dict[str, Any]) -> None:
        """Call what Lightning calls at this point of hookflow."""
        self._trainer = self._trainer or trainer.itself
        if trainer.run.is_predicting and point not in WHILE_PREDICTING:
            return  # the points before a pass of the split fire, too
        trainer.at(point, offered.get("batch"))
        if point == "on_exception":
            trainer.has_raised = True
        if point == "after_run" and trainer.has_raised:
            return  # as Lightning does
        if point in ("before_train_epoch", "after_train"):
            self._end_epoch(trainer)
            trainer.at(point)
            trainer.epoch_is_over = False
        for name in CALLS[point][0]:
            with evaluating(trainer.run.model) if name in EVAL_STARTS else nullcontext():
                for arguments in self._calls(name, trainer, offered):
                    getattr(self.callback, name)(trainer, trainer.lightning_module, *arguments)
        if point == "after_load_checkpoint":
            offered["checkpoint"]["model"] = trainer.loaded
        if point == "after_train_epoch":
            self._epoch_ends = trainer.epoch_is_over = True
        if point == "after_val" or (point == "after_train_epoch" and not trainer.enable_validation):
            self._end_epoch(trainer)

    def _end_epoch(self, trainer: Trainer) -> None:
        if self._epoch_ends:
            self._epoch_ends, trainer.epoch_is_over = False, True
            validated = trainer.point == "after_val"  # Lightning has put the network back into training by then
            trainer.at("after_train_epoch")
            with in_mode(trainer.run.model, training=True) if validated else nullcontext():
                self.callback.on_train_epoch_end(trainer, trainer.lightning_module)

    def _calls(self, name: str, trainer: Trainer, offered: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Return the arguments of each call of a method at a point."""
        match name:
            case "setup" | "teardown":
                return [("test" if trainer.testing else "predict" if trainer.predicting else "fit",)]
            case "on_before_backward":
                return [(offered["outputs"]["loss"],)]
            case "on_before_optimizer_step":
                return [(optimizer,) for optimizer in trainer.run.stepping.values()]
            case "on_save_checkpoint":
                return [(Checkpoint(offered["checkpoint"]),)]
            case "on_load_checkpoint":  # Lightning has loaded the weights by then, and the callback may change them
                trainer.run.model.load_state_dict(offered["checkpoint"]["model"])
                trainer.loaded = trainer.run.model.state_dict()
                return [(Checkpoint(offered["checkpoint"]),)]
        return [(*offered.values(),)]

    def state_dict(self) -> dict[str, Any]:
        numbers = changed(numbers_of(vars(self.callback)), self._initial)
        state = {"numbers": numbers, "state": dict(self.callback.state_dict()), "epoch_ends": self._epoch_ends}
        return state | {"metrics": dict(self._trainer().metrics) if self._trainer else {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self.callback).update(state["numbers"])
        self._epoch_ends = state["epoch_ends"]
        if self._trainer:
            self._trainer().metrics.update(state.get("metrics", {}))
        if state["state"]:
            self.callback.load_state_dict(dict(state["state"]))


class AccumulationHook(LightningHook):
    """A GradientAccumulationScheduler: an iteration takes one batch, and the last one of a group takes the step.

    As there, each loss counts one part of the group's batches, an incomplete group at the end of an epoch included.
    """

    accumulates = True
    writes: ClassVar[Slots] = {"before_backward": ("control",)}
    needs = ("before_train", "before_backward", "after_train_iter")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*map(_by_epoch, args), **{name: _by_epoch(value) for name, value in kwargs.items()})
        self.groups = Groups()

    def call(self, point: str, trainer: Trainer, offered: dict[str, Any]) -> None:
        groups, run = self.groups, trainer.run
        match point:
            case "before_run":
                trainer.groups = groups
            case "before_train":
                self._check(run)
                batches, groups.batches = groups.batches, 1  # the callback refuses what a resumed run has
                super().call(point, trainer, offered)
                groups.batches = batches
                return
            case "before_backward":
                groups.take(run)
            case "after_train_iter" if groups.left and run.step_skipped:  # another hook has had the gradients dropped
                groups.left = 0
        super().call(point, trainer, offered)

    def _check(self, run: Run) -> None:
        name = type(self.callback).__name__
        if getattr(run.task, "steps_itself", False):
            raise UserError(Problem(f"{name} sets when the optimizer steps, and this task steps it itself"))
        if run.iters_per_epoch != len(run.data["train"]):
            message = f"{name} and run.accumulate both set on how many batches the optimizer steps"
            raise UserError(Problem(message, hint="keep one of them"))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "groups": dict(vars(self.groups))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        vars(self.groups).update(state["groups"])


def _by_epoch(value: Any) -> Any:
    """Return a table with whole numbers as keys, which TOML cannot write; anything else as it is."""
    whole = isinstance(value, Mapping) and all(str(key).isdigit() for key in value)
    return {int(key): item for key, item in value.items()} if whole else value


class WeightAveragingHook(LightningHook):
    """A StochasticWeightAveraging, whose schedule of the learning rates steps after each epoch.

    Where the network has batch norms, it measures their statistics of the averaged weights in one more pass over the
    training data, without gradients. The points of the training and the validation do not fire for that pass.
    """

    reads: ClassVar[Slots] = dict.fromkeys(("before_run", "before_train_epoch", "before_test"), ("model",))
    writes: ClassVar[Slots] = {
        **dict.fromkeys(("before_train", "before_train_epoch", "after_train_epoch"), ("lr", "optimizer")),
        "after_train": ("model",),
    }
    needs = ("before_train", "after_train")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._resumes = False
        """Whether the schedule of a resumed run is still to be built."""

    def call(self, point: str, trainer: Trainer, offered: dict[str, Any]) -> None:
        match point:
            case "before_run" if any(map(is_sharded, trainer.run.model.parameters())):
                message = f"{type(self.callback).__name__} does not support sharded models"
                raise UserError(Problem(message, hint='use = "swa"'))
            case "after_train_epoch":
                for config in trainer.lr_scheduler_configs:
                    config.scheduler.step()
            case "after_train":
                self._end_epoch(trainer)
                trainer.epoch_is_over = False
                if trainer.run.epoch == trainer.run.max_epochs == trainer.max_epochs - 1:
                    self._measure_norms(trainer)
        super().call(point, trainer, offered)
        if point == "before_train" and self._resumes:
            self._build_schedule(trainer)
        if point == "after_train":
            trainer.run.save_checkpoint("last")  # what the last epoch has saved are other weights

    def _build_schedule(self, trainer: Trainer) -> None:
        """Build the schedule of a resumed run, and leave the learning rates as the checkpoint has them."""
        self._resumes = False
        groups = trainer.optimizers[0].param_groups
        kept = [{name: value for name, value in group.items() if name != "params"} for group in groups]
        trainer.more_epochs = min(self.callback.swa_end - trainer.current_epoch, 0)  # it builds none after the last
        self.callback.on_train_epoch_start(trainer, trainer.lightning_module)
        trainer.more_epochs = 0
        for group, values in zip(groups, kept, strict=True):
            group.update(values)

    def _measure_norms(self, trainer: Trainer) -> None:
        import torch

        run, module = trainer.run, trainer.lightning_module
        self.callback.on_train_epoch_start(trainer, module)
        devices = [run.device] if run.device.type == "cuda" else []
        with torch.no_grad(), torch.random.fork_rng(devices):  # a run that is resumed here measures the same again
            for batch in run.data["train"].epoch(run.epoch):
                run.evaluate(batch)
        self.callback.on_train_epoch_end(trainer, module)
        trainer.more_epochs = 1

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()  # the callback derives its private numbers from the rest, and from the trainer
        return {**state, "numbers": {name: it for name, it in state["numbers"].items() if not name.startswith("_")}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._resumes = state["state"]["scheduler_state"] is not None


def rates_set_twice(nodes: Nodes, hooks: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield each StochasticWeightAveraging beside which another hook sets learning rates."""
    setting = [name for name, node in nodes.items() if any(root(slot) == "lr" for b in node.bound for slot in b.writes)]
    for name in setting:
        if is_adapted(hooks[name], WeightAveragingHook) and (others := [other for other in setting if other != name]):
            message = f'{hooks[name].__name__} sets the learning rates from one epoch on, and so does "{others[0]}"'
            hint = 'use = "swa", and torch.optim.swa_utils:SWALR at the end of the chain of `scheduler`'
            yield Problem(message, nodes[name].where, hint)


SPECIAL: Mapping[str, type[LightningHook]] = {
    "GradientAccumulationScheduler": AccumulationHook,
    "StochasticWeightAveraging": WeightAveragingHook,
}
"""Callbacks of Lightning that steer its loops, with the hooks that do so here."""
