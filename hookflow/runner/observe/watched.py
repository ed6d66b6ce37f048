"""Proxies of mappings and of the run that record reads and writes by key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import cached_property
from typing import Any, Protocol

from hookflow.graph.slots import Verb

Note = Callable[[Verb, str | None], None]
"""Takes that a key was read or written; None stands for all keys."""

NOTHING: Any = object()


class WatchedDict(dict[str, Any]):
    """A dict that notes what is done with it, and does the same to `original`, if that is another one."""

    def __init__(
        self, content: Mapping[str, Any], note: Note, original: MutableMapping[str, Any] | None = None
    ) -> None:
        super().__init__(content)
        self._note = note
        self._original = original

    def take_over(self) -> None:
        """Have what the original has by now."""
        if self._original is not None:
            super().clear()
            super().update(self._original)

    def quietly(self) -> dict[str, Any]:
        """Return a copy, without a notification."""
        return {name: super(WatchedDict, self).__getitem__(name) for name in super().__iter__()}

    # Reading methods.

    def __getitem__(self, name: str) -> Any:
        self._note("reads", name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._note("reads", name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self._note("reads", str(name))
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        self._note("reads", None)
        return super().__iter__()

    def __reversed__(self) -> Iterator[str]:
        self._note("reads", None)
        return super().__reversed__()

    def keys(self) -> Any:
        self._note("reads", None)
        return super().keys()

    def values(self) -> Any:
        self._note("reads", None)
        return super().values()

    def items(self) -> Any:
        self._note("reads", None)
        return super().items()

    def copy(self) -> dict[str, Any]:
        self._note("reads", None)
        return self.quietly()

    def __eq__(self, other: object) -> bool:
        self._note("reads", None)
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        self._note("reads", None)
        return super().__ne__(other)

    def __repr__(self) -> str:
        self._note("reads", None)
        return repr(self.quietly())

    __hash__ = None  # a dict has none either

    def __or__(self, other: Any) -> Any:
        self._note("reads", None)
        return self.quietly() | other

    def __reduce__(self) -> tuple[Any, ...]:
        """Be copied and pickled as a plain dict."""
        self._note("reads", None)
        return dict, (self.quietly(),)

    # Writing methods.

    def __setitem__(self, name: str, value: Any) -> None:
        self._note("writes", name)
        super().__setitem__(name, value)
        if self._original is not None:
            self._original[name] = value

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._note("writes", name)
        if self._original is not None:
            del self._original[name]

    def update(self, *others: Any, **named: Any) -> None:
        for name, value in dict(*others, **named).items():
            self[name] = value

    def __ior__(self, other: Any) -> WatchedDict:  # type: ignore[override]
        self.update(other)
        return self

    def setdefault(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self[name] = default
        return self[name]

    def pop(self, name: str, default: Any = NOTHING) -> Any:
        if name not in self:
            if default is NOTHING:
                raise KeyError(name)
            return default
        value = self[name]
        del self[name]
        return value

    def popitem(self) -> tuple[str, Any]:
        for name in reversed(self):
            return name, self.pop(name)
        raise KeyError("popitem(): dictionary is empty")

    def clear(self) -> None:
        for name in [*self]:
            del self[name]


class WatchedMapping(Mapping[str, Any]):
    """A mapping that cannot be written to, and notes what is read."""

    def __init__(self, original: Mapping[str, Any], note: Note) -> None:
        self._original = original
        self._note = note

    def __getitem__(self, name: str) -> Any:
        self._note("reads", name)
        return self._original[name]

    def __contains__(self, name: object) -> bool:
        self._note("reads", str(name))
        return name in self._original

    def __iter__(self) -> Iterator[str]:
        self._note("reads", None)
        return iter(self._original)

    def __len__(self) -> int:
        return len(self._original)

    def __repr__(self) -> str:
        self._note("reads", None)
        return repr(self._original)


SCALARS = "scalars"
"""The slot of the numbers that are given to `run.log`."""


class Notes(Protocol):
    """Takes what the hook that is being called has touched."""

    def note(self, verb: Verb, slot: str) -> None:
        """Take that a slot was read or written."""

    def watch(self, root: str, mapping: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a mapping that notes who touches it, as parts of the slot `root`."""


class WatchedTask:
    """A proxy of the task. Its attributes are slots, `task.<name>`; what a method of it touches is not seen."""

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
    """A proxy of the run. Attributes that hooks set on it are set on the run, and are slots `run.<name>`."""

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

    def _ask(self, call: str, *provided: Any, **how: Any) -> None:
        self._notes.note("writes", "control")
        getattr(self._run, call)(*provided, **how)
