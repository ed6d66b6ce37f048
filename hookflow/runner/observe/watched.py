"""Mappings that note who reads and writes them, key by key; to who holds them they are what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

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
        """Return a copy, which nobody has asked for."""
        return {name: super(WatchedDict, self).__getitem__(name) for name in super().__iter__()}

    # What reads.

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

    # What writes.

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
