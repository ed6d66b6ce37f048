"""Proxies of mappings, of the task and of the run: they record reads and writes by key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from functools import cached_property
from typing import Any

from hookflow.graph.slots import Verb

Note = Callable[[Verb, str | None], None]
"""Takes that a key was read or written; None stands for all keys."""


class WatchedDict(dict[str, Any]):
    """A dict that notes reads and writes, and writes to `original` too, if it is given."""

    def __init__(
        self, content: Mapping[str, Any], note: Note, original: MutableMapping[str, Any] | None = None
    ) -> None:
        super().__init__(content)
        self._note = note
        self._original = original

    def take_over(self, content: Mapping[str, Any]) -> None:
        """Take other contents, without a notification."""
        super().clear()
        super().update(content)

    def quietly(self) -> dict[str, Any]:
        """Return a copy, without a notification."""
        return {name: dict.__getitem__(self, name) for name in dict.__iter__(self)}

    def copy(self) -> dict[str, Any]:
        self._note("reads", None)
        return self.quietly()

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __reduce__(self) -> tuple[Any, ...]:
        """Be copied and pickled as a plain dict."""
        return dict, (self.copy(),)

    def __getitem__(self, name: str) -> Any:
        self._note("reads", name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self._note("reads", str(name))
        return super().__contains__(name)

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

    def __ior__(self, other: Any) -> WatchedDict:  # type: ignore[override]
        self.update(other)
        return self

    def pop(self, name: str, *default: Any) -> Any:
        if default and name not in self:
            return default[0]
        value = self[name]
        del self[name]
        return value

    def popitem(self) -> tuple[str, Any]:
        for name in reversed(self):
            return name, self.pop(name)
        raise KeyError("popitem(): dictionary is empty")

    get = Mapping.get  # type: ignore[assignment]  # by the methods above, and so are the next ones
    update = MutableMapping.update
    setdefault = MutableMapping.setdefault
    clear = MutableMapping.clear
    __hash__ = None  # a dict has none either


def _reads_all(name: str) -> Any:
    method = getattr(dict, name)

    def read(self: WatchedDict, *args: Any) -> Any:
        self._note("reads", None)
        return method(self, *args)

    return read


for _name in ("__iter__", "__reversed__", "keys", "values", "items", "__eq__", "__ne__", "__repr__"):
    setattr(WatchedDict, _name, _reads_all(_name))


CALLS = {"replace_batch": "batch", "save_checkpoint": "checkpoint"}
CALLS |= dict.fromkeys(("stop", "stop_epoch", "skip_step", "skip_batch", "accumulate"), "control")
"""Methods of the run that write a slot."""


class WatchedTask:
    """A proxy of the task. Its attributes are slots, `task.<name>`; accesses within its methods are not recorded."""

    def __init__(self, task: Any, observer: Any) -> None:
        vars(self).update(_task=task, _observer=observer)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # `isinstance` holds as for the task
        return type(self._task)

    def __getattr__(self, name: str) -> Any:
        if name in getattr(self._task, "__dict__", {}):
            self._observer.note("reads", f"task.{name}")
        return getattr(self._task, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._observer.note("writes", f"task.{name}")
        setattr(self._task, name, value)


class WatchedRun:
    """A proxy of the run, which notes each access with an `Observer`.

    Attributes that hooks set on it are set on the run, and are slots `run.<name>`.
    """

    def __init__(self, run: Any, observer: Any) -> None:
        vars(self).update(_run=run, _observer=observer, _added=set())

    def __getattr__(self, name: str) -> Any:
        if name in self._added:
            self._observer.note("reads", f"run.{name}")
        value = getattr(self._run, name)
        if name not in CALLS:
            return value

        def call(*args: Any, **named: Any) -> Any:
            self._observer.note("writes", CALLS[name])
            return value(*args, **named)

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        self._observer.note("writes", f"run.{name}")
        self._added.add(name)
        setattr(self._run, name, value)

    @property
    def metrics(self) -> Any:
        return self._observer.watch("metrics", self._run.metrics)

    @property
    def hooks(self) -> Any:
        return self._observer.watch("hook", self._run.hooks)

    @cached_property
    def task(self) -> Any:
        return WatchedTask(self._run.task, self._observer)

    @property
    def batch_size(self) -> int:
        self._observer.note("reads", "batch")
        return self._run.batch_size  # type: ignore[no-any-return]

    def metric(self, name: str) -> float:
        self._observer.note("reads", f"metrics.{name}")
        return self._run.metric(name)  # type: ignore[no-any-return]

    def log(self, name: str, value: Any) -> None:
        self._observer.note("writes", f"scalars.{name}")
        self._run.log(name, value)
