"""Hooks of Pointrix, unmodified: each method is called with a `trainner` that is a view of the run.

`use = "pointrix:LogHook"` names a hook of Pointrix's registry; any class whose methods take
`trainner` is adapted likewise. Source: `pointrix.hook` and `pointrix.engine`, of March 2025. Points
that Pointrix declares and never fires, such as `after_run`, fire here.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from types import FunctionType, SimpleNamespace
from typing import Any, ClassVar

import tomli

from hookflow.adapters.values import select_scalars, select_state
from hookflow.adapters.views import RunView
from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.events.rundir import RunDir
from hookflow.hooks.adapter import (
    AdaptedClassSpec,
    AdaptedHook,
    FrameworkNames,
    HookAdapter,
    get_bases,
    get_module_name,
    list_own_names,
    read_adapted_capabilities,
)
from hookflow.hooks.capabilities import HookCapabilities
from hookflow.hooks.run import Run
from hookflow.pipeline.registry import missing_package

TRAINNER_ARGUMENT = "trainner"

POINT_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "before_run": (),
    "before_train": (),
    "before_val": (),
    "after_val": (),
    "after_train": (),
    "after_run": (),
    "before_train_iter": (),
    "before_val_iter": (),
    "after_train_iter": ("outputs",),
    "after_val_iter": ("outputs",),
    "after_load_checkpoint": ("checkpoint",),
    "before_save_checkpoint": ("checkpoint",),
    "on_exception": (),
}
"""The points of Pointrix, all of which are hookflow's too, with what they offer here."""

METHOD_NAMES = {"on_exception": "exception"}
"""Methods of Pointrix that are named otherwise than the point."""


class PointrixAdapter(HookAdapter):
    """Runs hooks of Pointrix."""

    prefix = "pointrix"
    names: ClassVar = FrameworkNames(
        framework="Pointrix",
        packages=("pointrix",),
        base="Hook",
        arguments={TRAINNER_ARGUMENT: "run"},
        unmistakable=(TRAINNER_ARGUMENT,),
    )

    def find(self, name: str, where: Where | None) -> type:
        """Return the hook of Pointrix's registry that has this name.

        Raises UserError where there is none.
        """
        problem = missing_package(f'use = "pointrix:{name}"', "pointrix", "", where)
        if problem is not None:
            raise UserError(Problem(problem.message, where, "install it as its own page describes"))
        import pointrix.hook

        result: Any = getattr(pointrix.hook, name, None)
        if not isinstance(result, type) or not self.claims(result):
            known = [
                own
                for own, item in vars(pointrix.hook).items()
                if isinstance(item, type) and self.claims(item)
            ]
            raise UserError(Problem(f'Pointrix has no hook "{name}"', where, nearest(name, known)))
        return result

    def claims(self, kind: type) -> bool:
        """Say whether a class has a method of Pointrix's, which takes `trainner`."""
        for base in get_bases(kind):
            members = type.__getattribute__(base, "__dict__")
            for point in POINT_ARGUMENTS:
                if _has_trainner_argument(members.get(point)):
                    return True
        return False

    def read(self, kind: type, where: Where | None) -> AdaptedClassSpec:
        """Read a hook class. Methods that it inherits from Pointrix's `Hook` do nothing."""
        own_names = list_own_names(kind, _is_hook_base)
        points = [point for point in POINT_ARGUMENTS if METHOD_NAMES.get(point, point) in own_names]
        return AdaptedClassSpec(
            base=PointrixHook,
            arguments={point: POINT_ARGUMENTS[point] for point in points},
            capabilities=read_adapted_capabilities(kind, PointrixHook, "pointrix", {}),
        )


def _has_trainner_argument(member: object) -> bool:
    if not isinstance(member, FunctionType):
        return False
    return TRAINNER_ARGUMENT in member.__code__.co_varnames[:2]


def _is_hook_base(kind: type) -> bool:
    return kind.__name__ == "Hook" and get_module_name(kind).startswith("pointrix")


class PointrixHook(AdaptedHook):
    """A hook of Pointrix. A checkpoint has its numbers and tensors."""

    capabilities = HookCapabilities(
        offload_blocker="it is a hook of Pointrix, whose trainer shows all of the run"
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.hook = self.kind(*args, **kwargs)
        self.trainner: TrainnerView | None = None

    def fire(self, point: str, run: Run, offered: dict[str, Any]) -> None:
        self.trainner = TrainnerView.shared(run)
        self.trainner.take(point, offered)
        method: Callable[..., None] = getattr(self.hook, METHOD_NAMES.get(point, point))
        if point == "on_exception":
            method()
        elif "checkpoint" in offered:
            method(self.trainner, offered["checkpoint"])
        else:
            method(self.trainner)

    def state_dict(self) -> dict[str, Any]:
        return select_state(vars(self.hook))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self.hook).update(state)


class RunLogger:
    """Pointrix's logger and its writer in one.

    Texts are messages of the run, and numbers and images are logged by it. Pointrix's console has
    the first kind of methods, its writers the second; hooks call either on `trainner.logger`.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def log(self, *objects: Any, **_: Any) -> None:
        self._run.say(" ".join(map(str, objects)))

    print = log
    info = log

    def write_scalar(self, name: str, scalar: Any, step: int = 0) -> None:
        self._run.log(name, scalar)

    def write_image(self, name: str, image: Any, step: int = 0, caption: str | None = None) -> None:
        self._run.log_image(name, image, caption or "")

    def write_config(self, name: str, config_dict: Mapping[str, Any], step: int = 0) -> None:
        self._run.log_text(name, f"{config_dict}")


class TrainnerView(RunView):
    """A run as Pointrix's trainer shows it to hooks.

    `global_step` is that of the iteration which runs, from 1 on.
    """

    shown = "Pointrix's trainer"

    def __init__(self, run: Run) -> None:
        self.run = run
        self.model = run.model
        self.device = run.device
        self.exp_dir = run.dir
        self.optimizer_dict = run.optimizers
        self.datapipeline = run.data
        self.logger = RunLogger(run)
        self.writer = self.logger
        self.loss_dict: dict[str, Any] = {}
        self.metric_dict: dict[str, Any] = {}
        self._point = ""

    def take(self, point: str, offered: Mapping[str, Any]) -> None:
        """Take the state of a point.

        The numbers of a step are losses, and those of a validation batch metrics.
        """
        self._point = point
        if point == "after_train_iter":
            self.loss_dict = select_scalars(offered["outputs"])
        elif point == "after_val_iter":
            self.metric_dict = select_scalars(offered["outputs"])
        elif point == "after_val":
            self.metric_dict = dict(self.run.metrics)

    @property
    def global_step(self) -> int:
        if self._point == "before_train_iter":
            return self.run.iter + 1
        return self.run.iter

    @property
    def optimizer(self) -> Any:
        return self.run.optimizer

    @property
    def val_dataset_size(self) -> int:
        return len(self.run.data["val"])

    @cached_property
    def cfg(self) -> Any:
        """The section `run` of the pipeline, with Pointrix's names of lengths."""
        text = RunDir(self.run.dir).pipeline.read_text("utf-8")
        section = tomli.loads(text)["run"]
        values = {"val_interval": section.get("val_every"), **section}
        values["max_steps"] = self.run.max_iters
        return SimpleNamespace(**values)
