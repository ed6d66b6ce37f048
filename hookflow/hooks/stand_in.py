"""Stand-ins for hooks that are not imported: a class or function of the same shape, made from its syntax tree.

A stand-in has the methods, the signatures and the attributes that a hook is inspected for. None of its functions has
a body, and no expression of the source is evaluated: literals are read, and what is no literal is unknown.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import new_class
from typing import Any

from hookflow.errors import UserError
from hookflow.graph.points import POINT_LIKE
from hookflow.hooks.foreign import is_foreign
from hookflow.hooks.source_names import Names, dotted_name
from hookflow.hooks.source_types import UnknownError
from hookflow.hooks.stand_in_function import empty_function
from hookflow.hooks.uses import FunctionTree
from hookflow.pipeline.use import refer

UNKNOWN, OPEN = "__unknown__", "__open__"
"""Attributes of a stand-in: what is not known of it, in words; whether it may have methods that are not seen."""

READ = ("points", "after", "before", "requires", "phase", "reads", "writes", "modules", "parameters", "ranks")
"""The attributes of a hook's class that are read."""

CALLED = ("points_for", "slot_keys", "check_arguments")
"""The methods of a hook's class that are called before a run, and so never here."""

HARMLESS = ("final", "override", "runtime_checkable", "abstractmethod", "no_grad", "inference_mode", "enable_grad")
"""Decorators that leave what they decorate its methods and its arguments."""

OURS = "hookflow.hooks."
"""What the modules begin with whose classes are imported all the same: they are no code of the user's."""

BARE = ("object", "abc.ABC", "typing.Generic", "typing.Protocol")
"""Base classes that give a hook nothing."""


def unknown_of(hook: Callable[..., Any]) -> tuple[str, ...]:
    """Return what is not known of a stand-in, in words; nothing for what was imported."""
    return getattr(hook, UNKNOWN, ())


def is_open(hook: Callable[..., Any]) -> bool:
    """Say whether a stand-in may have methods that are not seen."""
    return bool(getattr(hook, OPEN, False))


def unknown(why: str) -> type:
    """Return a stand-in of which nothing is known."""
    return type("Unknown", (), {UNKNOWN: (why,), OPEN: True, "__init__": _anything})


class Source:
    """A module that is not imported, and the stand-ins for what it defines."""

    def __init__(self, tree: ast.Module, file: Path) -> None:
        self.file = file
        self.names = Names(tree)

    def stand_in(self, name: str) -> Callable[..., Any]:
        """Return the stand-in of the class or function of that name.

        Raises SyntaxError and TypeError where Python would, and RecursionError for what is nested too deep.
        """
        first, *rest = name.split(".")
        node = self.names.definition(first)
        for part in rest:
            node = Names(ast.Module(node.body, [])).bound.get(part) if isinstance(node, ast.ClassDef) else None
        if isinstance(node, ast.ClassDef):
            return _Class(node, self).made()
        if isinstance(node, FunctionTree):
            function = empty_function(node, self.file)
            setattr(function, UNKNOWN, _decorated(node))
            return function
        return unknown(f"{name} is not defined there by one class or def: all of it is unknown")

    def base(self, node: ast.expr, line: int) -> type | None:
        """Return the class that a base class above a line means: one of this file, or of hookflow; None: unknown."""
        dotted = dotted_name(node.value if isinstance(node, ast.Subscript) else node)
        if isinstance(bound := self.names.definition(dotted, line), ast.ClassDef):
            return _Class(bound, self).made()
        whole = self.names.origin(dotted, line)
        if whole in BARE:
            return object
        module, _, name = whole.rpartition(".")
        if is_foreign(module, name):
            return type(name, (), {"__module__": module})
        if module != "hookflow" and not module.startswith(OURS):
            return None
        try:
            found = refer(f"{module}:{name}", Path(), None)
        except UserError:
            return None
        return found if isinstance(found, type) else None


def _anything(self: Any, *args: Any, **kwargs: Any) -> None:
    """Stand for a constructor that takes nobody knows what."""


class _Class:
    """A class on its way to its stand-in."""

    def __init__(self, node: ast.ClassDef, source: Source) -> None:
        self._node = node
        self._source = source
        self._names = Names(ast.Module(node.body, []))
        self._unknown: dict[str, None] = {}
        self._open = False
        self._namespace: dict[str, Any] = {"__module__": "", "__doc__": ast.get_docstring(node)}

    def made(self) -> type:
        """Return the stand-in. Raises TypeError when the base classes do not go together."""
        bases = tuple(self._bases())
        for name, node in self._names.bound.items():
            self._take(name, node)
        if self._is_changed() or (self._open and "__init__" not in self._namespace):
            self._namespace["__init__"] = _anything
            self._forget_keyed_slots()
        below = tuple(why for base in bases for why in unknown_of(base))
        self._namespace[UNKNOWN] = tuple(dict.fromkeys((*below, *self._unknown)))
        self._namespace[OPEN] = self._open or any(map(is_open, bases))
        return new_class(self._node.name, bases, exec_body=lambda namespace: namespace.update(self._namespace))

    def _bases(self) -> Iterator[type]:
        name = self._node.name
        for node in self._node.bases:
            found = self._source.base(node, self._node.lineno)
            if found is None:
                base = ast.unparse(node)
                self._say(f"the base class {base} of {name} is not read: what it inherits is unknown", is_open=True)
            elif found is not object:
                yield found
        for keyword in self._node.keywords:
            if not (keyword.arg == "metaclass" and dotted_name(keyword.value).endswith("ABCMeta")):
                self._say(f"{name} has {keyword.arg or '**'} = …, which may change it", is_open=True)

    def _take(self, name: str, node: ast.AST | None) -> None:
        """Take what the class defines by a name; None stands for several definitions of it."""
        if name in CALLED:
            self._say(f"{name} is not called, so what it says is unknown")
        elif name in READ and not isinstance(node, FunctionTree):
            self._read(name, node)
        elif isinstance(node, FunctionTree) and (name in ("__init__", "__call__") or not name.startswith("__")):
            self._namespace[name] = self._method(name, node)
        elif name == "__new__":
            self._say("__new__ is not called: its arguments are unknown", is_open=True)
        elif not name.startswith("_"):
            self._assign(name, node)

    def _method(self, name: str, node: FunctionTree) -> Any:
        function = empty_function(node, self._source.file)
        kinds = {"staticmethod": staticmethod, "classmethod": classmethod, "property": property}
        if [kind := _called(decorator) for decorator in node.decorator_list] and kind in kinds:
            return kinds[kind](function)
        for why in () if name.startswith("_") else _decorated(node):
            self._say(why)
        if node not in self._node.body:
            self._say(f"{name} is defined under a condition")
        return function

    def _read(self, name: str, node: ast.AST | None) -> None:
        """Read one of the attributes that a hook is inspected for."""
        value = self._names.assigned(node)
        try:
            if value is None:
                raise UnknownError
            self._namespace[name] = self._source.names.value(value)
        except UnknownError:
            self._say(f"{name} is not a literal: unknown")

    def _assign(self, name: str, node: ast.AST | None) -> None:
        """Take a name that is given a value, or has several definitions: it may be a method, under another name."""
        value = self._names.assigned(node)
        method = self._names.bound.get(value.id) if isinstance(value, ast.Name) else None
        if isinstance(method, FunctionTree):
            self._namespace[name] = self._method(name, method)
        elif isinstance(value, ast.Constant):
            self._namespace[name] = value.value
        elif name.startswith(POINT_LIKE):
            self._say(f"{name} is not defined by one def: unknown", is_open=True)

    def _is_changed(self) -> bool:
        """Say whether a decorator may have changed the arguments, and say so in words."""
        found = [_called(node) for node in self._node.decorator_list]
        loose = [name for name in found if name not in HARMLESS]
        for name in loose:
            said = f"{self._node.name} is decorated by {name}: its arguments are unknown"
            self._say(said, is_open=name != "dataclass")
        return bool(loose)

    def _forget_keyed_slots(self) -> None:
        """Leave out the slots that name arguments, where these are unknown."""
        for kind in ("reads", "writes"):
            if any("{" in slot for slot in _strings(self._namespace.get(kind))):
                del self._namespace[kind]
                self._say(f"{kind} names arguments, which are unknown")

    def _say(self, why: str, *, is_open: bool = False) -> None:
        self._unknown[why] = None
        self._open |= is_open


def _decorated(node: FunctionTree) -> tuple[str, ...]:
    """Return what is unknown of a function for its decorators, in words."""
    loose = [name for name in map(_called, node.decorator_list) if name not in HARMLESS]
    return (f"{node.name} is decorated by {', '.join(loose)}, so it may take other arguments",) if loose else ()


def _called(decorator: ast.expr) -> str:
    """Return the last name of what decorates: `no_grad` of `torch.no_grad()`."""
    return dotted_name(decorator.func if isinstance(decorator, ast.Call) else decorator).rpartition(".")[2] or "…"


def _strings(value: object) -> Iterator[str]:
    """Yield the strings in a literal, but for the keys of a dict."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _strings(tuple(value.values()))
    elif isinstance(value, tuple | list | set | frozenset):
        for part in value:
            yield from _strings(part)
