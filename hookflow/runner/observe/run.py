"""The run as an observed hook is given it: what it is, and whoever asks it for something, or of it, is noted."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Protocol

from hookflow.graph.slots import Verb

SCALARS = "scalars"
"""The slot of the numbers that are given to `run.log`."""


class Notes(Protocol):
    """Takes what the hook that is being called has touched."""

    def note(self, verb: Verb, slot: str) -> None:
        """Take that a slot was read or written."""

    def watch(self, root: str, mapping: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a mapping that notes who touches it, as parts of the slot `root`."""


class WatchedTask:
    """Stands for the task. Its attributes are slots, `task.<name>`; what a method of it touches is not seen."""

    def __init__(self, task: Any, notes: Notes) -> None:
        vars(self).update(_task=task, _notes=notes)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # so that hooks may ask of which class it is
        return type(self._task)

    def __getattr__(self, name: str) -> Any:
        if name in getattr(self._task, "__dict__", {}):
            self._notes.note("reads", f"task.{name}")
        return getattr(self._task, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._notes.note("writes", f"task.{name}")
        setattr(self._task, name, value)


class WatchedRun:
    """Stands for the run. What hooks set on it is the run's, too, and the slot `run.<name>`."""

    def __init__(self, run: Any, notes: Notes) -> None:
        vars(self).update(_run=run, _notes=notes, _added=set())

    def __getattr__(self, name: str) -> Any:
        if name in self._added:
            self._notes.note("reads", f"run.{name}")
        return getattr(self._run, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._notes.note("writes", f"run.{name}")
        self._added.add(name)
        setattr(self._run, name, value)

    @property
    def metrics(self) -> Mapping[str, float]:
        watched: Mapping[str, float] = self._notes.watch("metrics", self._run.metrics)
        return watched

    @property
    def hooks(self) -> Mapping[str, Any]:
        watched: Mapping[str, Any] = self._notes.watch("hook", self._run.hooks)
        return watched

    @cached_property
    def task(self) -> Any:
        return WatchedTask(self._run.task, self._notes)

    @property
    def batch_size(self) -> int:
        self._notes.note("reads", "batch")
        return self._run.batch_size  # type: ignore[no-any-return]

    def metric(self, name: str) -> float:
        self._notes.note("reads", f"metrics.{name}")
        return self._run.metric(name)  # type: ignore[no-any-return]

    def log(self, name: str, value: Any) -> None:
        self._notes.note("writes", f"{SCALARS}.{name}")
        self._run.log(name, value)

    def replace_batch(self, batch: Any) -> None:
        self._notes.note("writes", "batch")
        self._run.replace_batch(batch)

    def save_checkpoint(self, *names: str, **how: Any) -> None:
        self._notes.note("writes", "checkpoint")
        self._run.save_checkpoint(*names, **how)

    def stop(self, reason: str, **how: Any) -> None:
        self._ask("stop", reason, **how)

    def stop_epoch(self, reason: str) -> None:
        self._ask("stop_epoch", reason)

    def skip_step(self) -> None:
        self._ask("skip_step")

    def skip_batch(self) -> None:
        self._ask("skip_batch")

    def accumulate(self, weight: float, **how: Any) -> None:
        self._ask("accumulate", weight, **how)

    def _ask(self, call: str, *given: Any, **how: Any) -> None:
        self._notes.note("writes", "control")
        getattr(self._run, call)(*given, **how)
