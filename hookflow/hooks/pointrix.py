"""Hooks of Pointrix, unmodified: each method is called with a `trainner` that is a view of the run.

`use = "pointrix:LogHook"` names a hook of Pointrix's registry; any class whose methods take `trainner` is adapted
likewise. Source: `pointrix.hook` and `pointrix.engine`, of March 2025. Points that Pointrix declares and never fires,
such as `after_run`, fire here.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from types import FunctionType, SimpleNamespace
from typing import Any, ClassVar

import tomli

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.events.rundir import RunDir
from hookflow.hooks.base import Hook
from hookflow.hooks.mmengine import as_method, hook_class, module_of
from hookflow.hooks.mmengine_runner import View, numbers, numbers_of
from hookflow.hooks.run import Run
from hookflow.pipeline.registry import missing_package

ARGUMENT = "trainner"

POINTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("before_run", "before_train", "before_val", "after_val", "after_train", "after_run"), ()),
    **dict.fromkeys(("before_train_iter", "before_val_iter"), ()),
    **dict.fromkeys(("after_train_iter", "after_val_iter"), ("outputs",)),
    **dict.fromkeys(("after_load_checkpoint", "before_save_checkpoint"), ("checkpoint",)),
    "on_exception": (),
}
"""The points of Pointrix, all of which are hookflow's too, with what they offer here; `exception` is `on_exception`."""


def is_hook(kind: object) -> bool:
    """Say whether something is a class with a method of Pointrix's, which takes `trainner`."""
    if not issubclass(type(kind), type):  # past what an object says of its class, which may raise
        return False
    return any(
        _takes_trainner(type.__getattribute__(base, "__dict__")) for base in type.__getattribute__(kind, "__mro__")
    )


def _takes_trainner(members: Mapping[str, Any]) -> bool:
    own = (members.get(point) for point in POINTS)
    return any(isinstance(member, FunctionType) and ARGUMENT in member.__code__.co_varnames[:2] for member in own)


def find(use: str, where: Where | None) -> type:
    """Return the hook of Pointrix's registry that `use` names. Raises UserError where there is none."""
    if problem := missing_package(f'use = "{use}"', "pointrix", "", where):
        raise UserError([Problem(problem.message, where, "install it as its own page describes")])
    import pointrix.hook

    name = use.partition(":")[2]
    result: Any = getattr(pointrix.hook, name, None)
    if not is_hook(result):
        known = [name for name, item in vars(pointrix.hook).items() if is_hook(item)]
        raise UserError(Problem(f'Pointrix has no hook "{name}"', where, nearest(name, known)))
    return result  # type: ignore[no-any-return]


def adapted(kind: type, where: Where | None) -> type[Hook]:
    base = next(
        (base for base in kind.__mro__ if module_of(base).startswith("pointrix") and base.__name__ == "Hook"), None
    )
    own = {name for each in kind.__mro__ if each not in (base, object) for name in vars(each)}
    theirs = {point: "exception" if point == "on_exception" else point for point in POINTS}
    methods = {point: _method(point, name) for point, name in theirs.items() if name in own}
    return hook_class(PointrixHook, kind, methods)


def _method(point: str, name: str) -> Callable[..., None]:
    names = POINTS[point]

    def method(self: PointrixHook, run: Run, *offered: Any) -> None:
        self.trainner = trainner = Trainner.shared(run)
        trainner.take(point, dict(zip(names, offered, strict=True)))
        call = getattr(self.hook, name)
        call(*() if name == "exception" else (trainner, *offered) if names == ("checkpoint",) else (trainner,))

    return as_method(method, point, names)


class PointrixHook(Hook):
    """A hook of Pointrix. A checkpoint has its numbers and tensors."""

    offload_blocker = "it is a hook of Pointrix, whose trainer shows all of the run"
    kind: ClassVar[type]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.hook = self.kind(*args, **kwargs)
        self.trainner: Trainner | None = None

    def state_dict(self) -> dict[str, Any]:
        return numbers_of(vars(self.hook))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self.hook).update(state)


class RunLogger:
    """Pointrix's logger and its writer in one: texts are messages of the run, numbers and images are logged by it.

    Pointrix's console has the first kind of methods, its writers the second; hooks call either on `trainner.logger`.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def log(self, *objects: Any, **_: Any) -> None:
        self._run.say(" ".join(map(str, objects)))

    print = info = log

    def write_scalar(self, name: str, scalar: Any, step: int = 0) -> None:
        self._run.log(name, scalar)

    def write_image(self, name: str, image: Any, step: int = 0, caption: str | None = None) -> None:
        self._run.log_image(name, image, caption or "")

    def write_config(self, name: str, config_dict: Mapping[str, Any], step: int = 0) -> None:
        self._run.log_text(name, f"{config_dict}")


class Trainner(View):
    """A run as Pointrix's trainer shows it to hooks. `global_step` is that of the iteration which runs, from 1 on."""

    shown = "Pointrix's trainer"

    def __init__(self, run: Run) -> None:
        self.run = run
        self.model, self.device, self.exp_dir = run.model, run.device, run.dir
        self.optimizer_dict, self.datapipeline = run.optimizers, run.data
        self.logger = self.writer = RunLogger(run)
        self.loss_dict: dict[str, Any] = {}
        self.metric_dict: dict[str, Any] = {}
        self._begins = 0

    def take(self, point: str, offered: Mapping[str, Any]) -> None:
        """Take the state of a point: the numbers of a step are losses, those of a validation batch metrics."""
        self._begins = int(point == "before_train_iter")
        if point == "after_train_iter":
            self.loss_dict = numbers(offered["outputs"])
        elif point == "after_val_iter":
            self.metric_dict = numbers(offered["outputs"])
        elif point == "after_val":
            self.metric_dict = dict(self.run.metrics)

    global_step = property(lambda self: self.run.iter + self._begins)
    optimizer = property(lambda self: self.run.optimizer)
    val_dataset_size = property(lambda self: len(self.run.data["val"]))

    @cached_property
    def cfg(self) -> Any:
        """The section `run` of the pipeline, with Pointrix's names of lengths."""
        section = tomli.loads(RunDir(self.run.dir).pipeline.read_text("utf-8"))["run"]
        return SimpleNamespace(**{"val_interval": section.get("val_every"), **section, "max_steps": self.run.max_iters})
