"""A function of the same shape as one in a source file, which does nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from hookflow.hooks.source_types import UnknownError, annotated, literal
from hookflow.hooks.uses import FunctionTree, first_line, own_nodes


def empty_function(node: FunctionTree, file: Path) -> FunctionType:
    """Return a function of the same name, place, signature and kind. Raises SyntaxError when there can be none."""
    code = _empty(node).replace(
        co_filename=str(file),
        co_firstlineno=first_line(node),
        co_names=tuple(_names(node)),  # by which its source is searched for what it calls
    )
    taken = node.args
    function = FunctionType(code, {}, node.name, tuple(map(_default, taken.defaults)))
    given = zip(taken.kwonlyargs, taken.kw_defaults, strict=True)
    function.__kwdefaults__ = {one.arg: _default(value) for one, value in given if value is not None}
    every = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs]
    function.__annotations__ = {one.arg: annotated(one.annotation) for one in every if one.annotation}
    function.__doc__ = ast.get_docstring(node)
    return function


def _default(node: ast.expr) -> Any:
    """Return a literal default; None where it is none: that it is there is what counts."""
    try:
        return literal(node)
    except UnknownError:
        return None


def _empty(node: FunctionTree) -> CodeType:
    """Return the code of a function of that kind, with these arguments, and without a body."""
    taken = node.args

    def bare(arguments: Iterable[ast.arg]) -> list[ast.arg]:
        return [ast.arg(one.arg) for one in arguments]

    shape = ast.arguments(
        posonlyargs=bare(taken.posonlyargs),
        args=bare(taken.args),
        vararg=taken.vararg and ast.arg(taken.vararg.arg),
        kwonlyargs=bare(taken.kwonlyargs),
        kw_defaults=[default and ast.Constant(None) for default in taken.kw_defaults],
        kwarg=taken.kwarg and ast.arg(taken.kwarg.arg),
        defaults=[ast.Constant(None) for _ in taken.defaults],
    )
    is_generator = any(isinstance(part, ast.Yield | ast.YieldFrom) for part in own_nodes(node.body))
    body: ast.stmt = ast.Expr(ast.Yield()) if is_generator else ast.Pass()
    made = type(node)(name=node.name, args=shape, body=[body], decorator_list=[])
    module = ast.fix_missing_locations(ast.Module([made], []))
    code = compile(module, "<stand-in>", "exec", dont_inherit=True)
    return next(part for part in code.co_consts if isinstance(part, CodeType))


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the names and attributes that a function speaks of."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name | ast.Attribute):
            yield part.id if isinstance(part, ast.Name) else part.attr
