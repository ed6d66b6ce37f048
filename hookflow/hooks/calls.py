"""The calls on the run that a hook must declare, found in its source by AST; nothing is called to find them.

Only what is certain is found. The run is the parameter `run` of a method at a point, and a parameter of another method
of the same object that is given it in a call. A function that binds the name to anything else is passed over, and so is
a function inside of one: nobody knows when it is called.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

from hookflow.errors import Problem, Where
from hookflow.graph.node import Bound, Node
from hookflow.pipeline.python_source import parse_file

SLOT = {"replace_batch": "batch", **dict.fromkeys(("skip_batch", "skip_step", "stop_epoch", "stop"), "control")}
"""The slot that a hook must declare to write, by the call on the run."""

_Tree = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class Call:
    """A call on the run, e.g. "stop", and where it stands in the source."""

    name: str
    where: Where


def undeclared_calls(hook: Callable[..., Any], node: Node) -> Iterator[Problem]:
    """Yield a warning for each call on the run in the source of a hook that does not declare the call's slot."""
    told: set[Call] = set()
    for bound in node.bound:
        function = _function_of(hook, bound.method) if "run" in bound.takes else None
        for call in _calls(function, "run") if function else ():
            if SLOT[call.name] not in bound.writes and call not in told:
                told.add(call)
                yield _undeclared(call, node, bound)


def _undeclared(call: Call, node: Node, bound: Bound) -> Problem:
    slot, name = SLOT[call.name], node.hook.name
    path = Path(call.where.source)
    source = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    said = f'hook "{name}" calls run.{call.name} at {bound.point} ({source}:{call.where.line})'
    ends = "" if call.name == "stop" else ", which would end the run with an error"
    hint = how_to_declare(slot, name, bound.writes)
    return Problem(f'{said} without declaring that it writes "{slot}"{ends}', node.where, hint)


def how_to_declare(slot: str, hook: str, writes: Iterable[str]) -> str:
    """Say how a hook that declares `writes` at a point declares that it writes a slot, too."""
    slots = ", ".join(f'"{one}"' for one in sorted({slot, *writes}))
    return f"declare it: writes = [{slots}] in [hooks.{hook}], or in its class"


@dataclass(frozen=True, slots=True)
class _Function:
    """A function in Python; `mro` is that of the object whose method it is, and `mro[depth]` the class that has it."""

    function: FunctionType
    takes_self: bool = False
    mro: tuple[type, ...] = ()
    depth: int = 0

    def method(self, of: ast.expr, name: str, tree: _Tree) -> _Function | None:
        """Return what `of.name` is in the body of this method where `of` is its object, or super()."""
        first = inspect.getargs(self.function.__code__).args[:1]
        match of:
            case ast.Name(id=this) if self.takes_self and [this] == first:
                return None if _binds(tree, this) else _method_of(self.mro, name)
            case ast.Call(func=ast.Name(id="super"), args=[], keywords=[]) if self.mro:
                return _method_of(self.mro, name, self.depth + 1)
        return None


def _function_of(hook: Callable[..., Any], method: str) -> _Function | None:
    """Return the function that is called for a hook at a point; None for what is not written in Python."""
    if isinstance(hook, type):
        return _method_of(hook.__mro__, method or "__call__")
    while isinstance(hook, partial):
        hook = hook.func
    if isinstance(hook, MethodType):
        return _method_of(type(hook.__self__).__mro__, hook.__name__)
    if inspect.isroutine(hook):
        return _in_python(hook)
    return None if isinstance(hook, type) else _method_of(type(hook).__mro__, "__call__")


def _method_of(mro: tuple[type, ...], name: str, first: int = 0) -> _Function | None:
    for depth in range(first, len(mro)):
        if (found := vars(mro[depth]).get(name)) is not None:
            static = isinstance(found, staticmethod)
            return _in_python(found.__func__ if static else found, not static, mro, depth)
    return None


def _in_python(found: Any, *more: Any) -> _Function | None:
    """Return a function as it is written, below decorators that keep what they wrap (`torch.no_grad`)."""
    function = inspect.unwrap(found) if isinstance(found, FunctionType) else None
    return _Function(function, *more) if isinstance(function, FunctionType) else None


@cache
def _calls(function: _Function, run: str) -> tuple[Call, ...]:
    try:
        return tuple(_find(function, run, set()))
    except RecursionError:  # no source that anybody has written is nested that deep
        return ()


def _find(function: _Function, run: str, seen: set[tuple[_Function, str]]) -> Iterator[Call]:
    """Yield the calls on the run, which goes by the name `run` in this function."""
    tree = _tree(function.function) if _may_call(function) else None
    if tree is None or (function, run) in seen or _binds(tree, run):
        return
    seen.add((function, run))
    for call in _calls_in(_body(tree)):
        if not isinstance(call.func, ast.Attribute):
            continue
        of, name = call.func.value, call.func.attr
        if _is(of, run) and name in SLOT:
            yield Call(name, Where(function.function.__code__.co_filename, call.lineno))
        elif helper := function.method(of, name, tree):
            for parameter in _given(call, run, helper):
                yield from _find(helper, parameter, seen)


def _may_call(function: _Function) -> bool:
    """Say whether a function, as it is compiled, may call the run or a method of its own: most sources stay unread."""
    return any(name in SLOT or _method_of(function.mro, name) for name in _names(function.function.__code__))


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes that a code speaks of, also inside of comprehensions."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _given(call: ast.Call, run: str, helper: _Function) -> Iterator[str]:
    """Yield the parameters of `helper` that a call of it gives the run."""
    in_place = takewhile(lambda argument: not isinstance(argument, ast.Starred), call.args)
    parameters = inspect.getargs(helper.function.__code__).args  # those of keywords alone stand behind the others
    names = parameters[helper.takes_self : helper.function.__code__.co_argcount]
    yield from (name for name, argument in zip(names, in_place, strict=False) if _is(argument, run))
    yield from (k.arg for k in call.keywords if k.arg in parameters and _is(k.value, run))


def _is(expression: ast.expr, name: str) -> bool:
    return isinstance(expression, ast.Name) and expression.id == name


def _body(tree: _Tree) -> Iterable[ast.AST]:
    return [tree.body] if isinstance(tree, ast.Lambda) else tree.body


def _calls_in(nodes: Iterable[ast.AST]) -> Iterator[ast.Call]:
    """Yield the calls that a function makes itself, in the order of its source."""
    for node in nodes:
        if isinstance(node, _Tree | ast.ClassDef):
            continue
        if isinstance(node, ast.Call):
            yield node
        yield from _calls_in(ast.iter_child_nodes(node))


_ONLY_NAME = (ast.Attribute, ast.keyword, ast.arg, ast.Constant, ast.MatchClass)
"""What may hold a name without binding it in the function; every other node that holds it does."""


def _binds(tree: _Tree, name: str) -> bool:
    """Say whether a function gives another value to a name, be it by an import, a loop, or `nonlocal`."""
    for node in (inside for part in _body(tree) for inside in ast.walk(part)):
        if isinstance(node, ast.Name):
            if node.id == name and not isinstance(node.ctx, ast.Load):
                return True
        elif not isinstance(node, _ONLY_NAME) and any(
            value == name or (isinstance(value, list) and name in value) for _, value in ast.iter_fields(node)
        ):
            return True
    return False


def _tree(function: FunctionType) -> _Tree | None:
    """Return the source of a function; None where it cannot be read, or may be that of another one."""
    code = function.__code__
    found = _trees(code.co_filename).get((code.co_name, code.co_firstlineno), ())
    return found[0] if len(found) == 1 else None


@cache
def _trees(file: str) -> Mapping[tuple[str, int], list[_Tree]]:
    """Return all functions of a file by their name and first line, as their code has them."""
    try:
        tree = parse_file(Path(file))
    except (OSError, SyntaxError):
        return {}
    found: dict[tuple[str, int], list[_Tree]] = {}
    for node in ast.walk(tree):
        if isinstance(node, _Tree):
            name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
            decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
            first = min(part.lineno for part in (node, *decorators))
            found.setdefault((name, first), []).append(node)
    return found
