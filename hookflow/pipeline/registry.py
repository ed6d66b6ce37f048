"""Registries of short names: built-in names, and names from entry points of installed packages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hookflow.errors import Problem, UserError, Where


def missing_package(
    what: str, package: str, extra: str, where: Where | None = None, *, module: str = ""
) -> Problem | None:
    """Return the problem that `what` needs a package that is not installed.

    The package is imported as `module`. Returns None where it is installed.
    """
    if getattr(find_spec(module or package), "origin", None):  # a mere folder of that name has none
        return None
    message = f"{what} needs the package {package}, which is not installed"
    return Problem(message, where, f"pip install 'hookflow[{extra}]'")


@dataclass(frozen=True, slots=True)
class OfferedEntry:
    """An offer of an installed package.

    It has a short name, the place of the object, and the package with its version.
    """

    name: str
    use: str
    package: str


@cache
def list_installed(group: str) -> dict[str, tuple[OfferedEntry, ...]]:
    """Return what installed packages offer in a group of entry points, by name.

    Nothing of it is imported.
    """
    from importlib.metadata import entry_points  # slow, and a pipeline of built-in names needs none

    result: dict[str, tuple[OfferedEntry, ...]] = {}
    for point in sorted(entry_points(group=group), key=lambda point: (point.name, point.value)):
        package = "a package"
        if point.dist:
            package = f"{point.dist.name} {point.dist.version}"
        offered = OfferedEntry(point.name, point.value, package)
        result[point.name] = (*result.get(point.name, ()), offered)
    return result


@dataclass(frozen=True)
class Registry:
    """The short names of one kind of thing.

    Built-in names come first, and a name that several packages offer means none.
    """

    kind: str
    """The word for one of them in messages: "hook"."""
    group: str
    """The group of entry points by which a package offers them:
    `clip = "my_package.hooks:Clip"`.
    """
    built_in: Mapping[str, str] = field(default_factory=dict)
    """Where each built-in name stands, as "package.module:Name"."""

    def offered(self) -> list[OfferedEntry]:
        """Return all that installed packages offer."""
        offers: list[OfferedEntry] = []
        for of_name in list_installed(self.group).values():
            offers += of_name
        return offers

    def names(self) -> list[str]:
        """Return every short name, the built-in ones first."""
        return [*{**self.built_in, **list_installed(self.group)}]

    def short_names(self, use: str) -> Mapping[str, str]:
        """Return the short names that `use` may be one of, each with the place that it means."""
        if ":" in use or use in self.built_in:
            return self.built_in
        offers = list_installed(self.group)
        places = {}
        for name, packages in offers.items():
            if len(packages) == 1:
                places[name] = packages[0].use
        places.update(self.built_in)
        return places

    def place(self, use: str) -> str:
        """Return the place that `use` means, "package.module:Name", whichever way it is written."""
        return self.short_names(use).get(use, use)

    def find_ambiguity(self, use: str, where: Where | None) -> Problem | None:
        """Return what is wrong with a short name that several packages offer.

        It is None for any other name.
        """
        if ":" in use or use in self.built_in:
            return None
        offers = list_installed(self.group).get(use, ())
        if len(offers) < 2:
            return None
        message = f'"{use}" is ambiguous: {len(offers)} {self.kind}s of installed packages match'
        choices = [f'"{offer.use}" ({offer.package})' for offer in offers]
        return Problem(message, where, f"write {' or '.join(choices)}")

    def clash(self, offered: OfferedEntry) -> str:
        """Say that an offered name means something else, or several things.

        The text is empty when the name does not.
        """
        if offered.name in self.built_in:
            return f'hidden by the built-in {self.kind} of that name; write use = "{offered.use}"'
        if self.find_ambiguity(offered.name, None):
            return f'several packages offer that name; write use = "{offered.use}"'
        return ""

    def find(self, use: str, base: Path, where: Where | None) -> Any:
        """Return what `use` names, as `refer` does.

        Raises UserError when there is no such thing, or several.
        """
        # The import is here because it loads pydantic, which `hookflow --help` does not need.
        from hookflow.pipeline.use import resolve_use

        problem = self.find_ambiguity(use, where)
        if problem:
            raise UserError(problem)
        return resolve_use(use, base, where, self.short_names(use))


HOOKS = Registry(
    "hook",
    "hookflow.hooks",
    {
        "accumulation_schedule": "hookflow.hooks.builtin.schedules:AccumulationSchedule",
        "accuracy": "hookflow.hooks.builtin.metrics:Accuracy",
        "activation_checkpoint": "hookflow.hooks.builtin.memory:ActivationCheckpoint",
        "activation_stats": "hookflow.hooks.builtin.statistics:ActivationStats",
        "batch_size_finder": "hookflow.hooks.builtin.schedules:BatchSizeFinder",
        "checkpoint": "hookflow.hooks.builtin.checkpoint:Checkpoint",
        "comm_hook": "hookflow.hooks.builtin.gradients:CommHook",
        "confusion_matrix": "hookflow.hooks.builtin.metrics:ConfusionMatrix",
        "cutmix": "hookflow.hooks.builtin.mixing:CutMix",
        "early_stop": "hookflow.hooks.builtin.stops:EarlyStop",
        "ema": "hookflow.hooks.builtin.averaging:EMA",
        "empty_cache": "hookflow.hooks.builtin.memory:EmptyCache",
        "env_info": "hookflow.hooks.builtin.log:EnvInfo",
        "export": "hookflow.hooks.builtin.checkpoint:Export",
        "freeze": "hookflow.hooks.builtin.freeze:Freeze",
        "grad_clip": "hookflow.hooks.builtin.gradients:GradClip",
        "grad_norm": "hookflow.hooks.builtin.gradients:GradNorm",
        "images": "hookflow.hooks.builtin.statistics:Images",
        "log": "hookflow.hooks.builtin.log:Log",
        "lr_finder": "hookflow.hooks.builtin.schedules:LRFinder",
        "lr_monitor": "hookflow.hooks.builtin.log:LRMonitor",
        "lr_schedule": "hookflow.hooks.builtin.schedules:LRSchedule",
        "memory": "hookflow.hooks.builtin.memory:Memory",
        "metrics": "hookflow.hooks.builtin.metrics:Metrics",
        "mixup": "hookflow.hooks.builtin.mixing:Mixup",
        "param_schedule": "hookflow.hooks.builtin.schedules:ParamSchedule",
        "param_stats": "hookflow.hooks.builtin.statistics:ParamStats",
        "precise_bn": "hookflow.hooks.builtin.averaging:PreciseBN",
        "predict": "hookflow.hooks.builtin.predict:Predict",
        "profiler": "hookflow.hooks.builtin.log:Profiler",
        "prune": "hookflow.hooks.builtin.freeze:Prune",
        "resize": "hookflow.hooks.builtin.mixing:Resize",
        "sam": "hookflow.hooks.builtin.gradients:SAM",
        "scheduler": "hookflow.hooks.builtin.scheduler:Scheduler",
        "spike_guard": "hookflow.hooks.builtin.stops:SpikeGuard",
        "swa": "hookflow.hooks.builtin.averaging:SWA",
        "sync_buffers": "hookflow.hooks.builtin.averaging:SyncBuffers",
        "throughput": "hookflow.hooks.builtin.log:Throughput",
        "time_limit": "hookflow.hooks.builtin.stops:TimeLimit",
        "tta": "hookflow.hooks.builtin.predict:TTA",
        "whiten": "hookflow.zoo.hooks:Whiten",
    },
)
MODEL_REGISTRY = Registry("model", "hookflow.models")
TASK_REGISTRY = Registry("task", "hookflow.tasks")
DATA_REGISTRY = Registry(
    "data source",
    "hookflow.data",
    {"cifar10": "hookflow.zoo.cifar10:cifar10", "circle": "hookflow.zoo.circle:Circle"},
)
WRITER_REGISTRY = Registry(
    "writer",
    "hookflow.writers",
    {
        "csv": "hookflow.writers:CSVWriter",
        "mlflow": "hookflow.writers:MLflowWriter",
        "tensorboard": "hookflow.writers:TensorBoardWriter",
        "trackio": "hookflow.writers:TrackioWriter",
        "wandb": "hookflow.writers:WandbWriter",
    },
)
REGISTRIES = (MODEL_REGISTRY, DATA_REGISTRY, TASK_REGISTRY, WRITER_REGISTRY)


def registry_of(key: str) -> Registry | None:
    """Return the registry of a component by its key ("model.generator", "data.train").

    Optimizers have none.
    """
    part, _, rest = key.partition(".")
    if ".loader" in rest:
        return None
    return {
        "model": MODEL_REGISTRY,
        "data": DATA_REGISTRY,
        "task": TASK_REGISTRY,
        "writers": WRITER_REGISTRY,
    }.get(part)


def missing_extra(registry: Registry | None, use: str, where: Where | None) -> Problem | None:
    """Return the problem that a built-in writer needs the package of its own name.

    It is None where the package is installed.
    """
    if registry is not WRITER_REGISTRY or use not in ("mlflow", "tensorboard", "trackio", "wandb"):
        return None
    return missing_package(f'the writer "{use}"', use, use, where)
