"""Objects where a pipeline has `use`: a model that exists, a DataLoader, a function as a hook.

In the tables, and in all that a run records, a text stands for each: "<object Net>". `refer` turns it back into what
makes the object, while `objects_in_use` says which these are; no other process knows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import date, time
from functools import partial
from itertools import chain, count
from types import MappingProxyType
from typing import Any

from hookflow.errors import Problem, UserError, Where
from hookflow.pipeline.schema import NAMED_BY_LOADER
from hookflow.pipeline.source_map import Key, dotted

Maker = Callable[..., Any]

_IN_USE: ContextVar[Mapping[str, Maker]] = ContextVar("objects in use", default=MappingProxyType({}))


class Objects:
    """The objects of one pipeline: what makes each, by the text that stands for it."""

    def __init__(self) -> None:
        self.makers: dict[str, Maker] = {}
        self._texts: dict[int, str] = {}
        self._kept: list[Any] = []  # so that no other object gets the id of one of them

    def replace(self, tables: Any, key: Key = ()) -> Any:
        """Return a copy of plain tables, of what stands at `key`, with a string for each object at a `use`.

        Raises UserError with every value that no file could hold.
        """
        problems: list[Problem] = []
        replaced = self._replaced(tables, key, problems)
        if problems:
            raise UserError(problems)
        return replaced

    def _replaced(self, value: Any, key: Key, problems: list[Problem]) -> Any:
        component = _names_component(key)
        match value:
            case Mapping():
                return {str(name): self._replaced(inner, (*key, str(name)), problems) for name, inner in value.items()}
            case list() | tuple() if not component:
                return [self._replaced(inner, (*key, str(k)), problems) for k, inner in enumerate(value)]
            case str() | int() | float() | date() | time() | None:
                return value
        if not component:
            said = f"{dotted(key)} cannot be of the type {type(value).__name__}"
            problems.append(Problem(said, hint='an object may stand where a file has "use"; all else is plain values'))
        elif key[0] == "optimizer" and not _makes(value):
            said = f"{dotted(key)} must make an optimizer of the model's parameters, and this one is made already"
            hint = 'give its class, and the rest in args: {"use": torch.optim.SGD, "args": {"lr": 0.1}}'
            problems.append(Problem(said, hint=hint))
        else:
            return self._text(value)
        return ""

    def _text(self, value: Any) -> str:
        if id(value) not in self._texts:
            name = getattr(value, "__name__", type(value).__name__).strip("<>")
            texts = chain([f"<object {name}>"], (f"<object {name} {k}>" for k in count(2)))
            text = next(text for text in texts if text not in self.makers)
            self.makers[text] = value if _makes(value) else _class_that_gives(value)
            self._texts[id(value)] = text
            self._kept.append(value)
        return self._texts[id(value)]


def _names_component(key: Key) -> bool:
    """Say whether the value at a key names a component: `use`, or what a loader names; not within `args`."""
    if not key or "args" in key:
        return False
    return key[-1] == "use" or (key[-1] in NAMED_BY_LOADER and key[-2:-1] == ("loader",))


def _makes(value: Any) -> bool:
    """Say whether a value is what makes an object (a class, a function), and not the object itself."""
    return isinstance(value, type | partial) or inspect.isroutine(value)


def _class_that_gives(value: Any) -> type:
    """Return a class that makes nothing but this object, and says all else as the object's own class does."""
    kind = type(value)
    metaclass: Any = type(kind)
    body = {"__new__": lambda cls: value, "__doc__": kind.__doc__, "__module__": kind.__module__}
    try:
        made: type = metaclass(kind.__name__, (kind,), body)
    except TypeError:  # a class that can have no subclass
        made = type(kind.__name__, (), body)
    return made


def is_object(use: str) -> bool:
    """Say whether the text of a `use` stands for an object."""
    return use.startswith("<object ") and use.endswith(">")


def maker_of(use: str, where: Where | None) -> Maker:
    """Return what makes the object that a string stands for. Raises UserError where there is no such object."""
    if use not in _IN_USE.get():
        said = f'"{use}" stands for an object of the Python program that started the run: it is not here'
        hint = 'start a run with `use` naming what makes it, and it can be resumed: use = "./file.py:Name"'
        raise UserError(Problem(said, where, hint))
    return _IN_USE.get()[use]


@contextmanager
def objects_in_use(objects: Objects) -> Iterator[None]:
    """Let the texts stand for these objects in this thread."""
    token = _IN_USE.set(objects.makers)
    try:
        yield
    finally:
        _IN_USE.reset(token)
