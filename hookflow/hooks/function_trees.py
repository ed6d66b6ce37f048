"""The syntax trees of functions: where one begins, and what in it is its own."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

FunctionTree = ast.FunctionDef | ast.AsyncFunctionDef
"""A function that has a name."""


def first_line(tree: FunctionTree | ast.Lambda) -> int:
    """Return the line where a function begins for Python: at its first decorator."""
    decorators = [] if isinstance(tree, ast.Lambda) else tree.decorator_list
    return min(part.lineno for part in (tree, *decorators))


def own_nodes(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield these parts of a function and all in them, in the order of its source.

    Functions and classes inside of it are left out: nobody knows when they are called.
    """
    waiting = [*nodes][::-1]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, FunctionTree | ast.Lambda | ast.ClassDef):
            yield node
            waiting += [*ast.iter_child_nodes(node)][::-1]
