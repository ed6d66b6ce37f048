"""hookflow: a training runner whose hooks are nodes of a graph.

The names in `__all__` are the Python API. Each name is imported when it is first asked for, so that
`import hookflow` takes no time and imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hookflow.version import __version__

if TYPE_CHECKING:
    from hookflow import callbacks
    from hookflow.api.pipeline import load
    from hookflow.api.recorded import load_run, runs
    from hookflow.api.training import train
    from hookflow.attached.attach import attach
    from hookflow.errors import TrainingTerminatedError, UserError
    from hookflow.hooks.base import Hook
    from hookflow.hooks.capabilities import ExportedWeights, HookCapabilities, SavedCheckpoints
    from hookflow.hooks.run import Run
    from hookflow.runner.data.source import Source
    from hookflow.runner.model.task import Task
    from hookflow.writers import Writer

__all__ = [
    "ExportedWeights",
    "Hook",
    "HookCapabilities",
    "Run",
    "SavedCheckpoints",
    "Source",
    "Task",
    "TrainingTerminatedError",
    "UserError",
    "Writer",
    "__version__",
    "attach",
    "callbacks",
    "load",
    "load_run",
    "runs",
    "train",
]

_MODULES_BY_NAME = {
    "ExportedWeights": "hookflow.hooks.capabilities",
    "Hook": "hookflow.hooks.base",
    "HookCapabilities": "hookflow.hooks.capabilities",
    "Run": "hookflow.hooks.run",
    "SavedCheckpoints": "hookflow.hooks.capabilities",
    "Source": "hookflow.runner.data.source",
    "Task": "hookflow.runner.model.task",
    "TrainingTerminatedError": "hookflow.errors",
    "UserError": "hookflow.errors",
    "Writer": "hookflow.writers",
    "attach": "hookflow.attached.attach",
    "load": "hookflow.api.pipeline",
    "load_run": "hookflow.api.recorded",
    "runs": "hookflow.api.recorded",
    "train": "hookflow.api.training",
}
"""Where each name stands."""


def __getattr__(name: str) -> Any:
    if name == "callbacks":
        return import_module("hookflow.callbacks")
    if name not in _MODULES_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    result = globals()[name] = getattr(import_module(_MODULES_BY_NAME[name]), name)
    return result


def __dir__() -> list[str]:
    return __all__
