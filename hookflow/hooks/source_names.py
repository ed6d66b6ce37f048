"""What the names of a module or a class mean, as far as its source tells."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from hookflow.hooks.source_types import UnknownError, literal
from hookflow.pipeline.use import bindings_in


class Names:
    """The names that a module, or the body of a class, binds: each with the one node that does it, None if several."""

    def __init__(self, body: ast.AST) -> None:
        self._body = body
        self.bound: dict[str, ast.AST | None] = {}
        for name, node in bindings_in(body):
            self.bound[name] = None if name in self.bound else node

    @cached_property
    def _values(self) -> dict[int, ast.expr]:
        return {id(target): value for target, value in _assigned(self._body)}

    def assigned(self, node: ast.AST | None) -> ast.expr | None:
        """Return the value that a node gives to its name; None when it is no assignment of a name."""
        return self._values.get(id(node))

    def definition(self, name: str, before: int | None = None) -> ast.AST | None:
        """Return what defines a name, through `Other = Name`; only what stands above a line, if one is given."""
        node = self.bound.get(name)
        if before is not None and getattr(node, "lineno", before) >= before:
            return None
        value = self.assigned(node)
        return self.definition(value.id, value.lineno) if isinstance(value, ast.Name) else node

    def value(self, node: ast.expr) -> Any:
        """Return the value of a literal, or of a name that stands for one. Raises UnknownError for all else."""
        if isinstance(node, ast.Name):
            found = self.assigned(self.bound.get(node.id))
            if found is None or isinstance(found, ast.Name):
                raise UnknownError
            node = found
        return literal(node)

    def origin(self, dotted: str, line: int) -> str:
        """Return where a dotted name used at a line comes from, as its first part is imported; empty if nobody knows.

        A name that nothing binds is Python's own, and stays as it is.
        """
        first, _, rest = dotted.partition(".")
        bound = self.definition(first, line)
        module = first if first not in self.bound else ""
        for alias in bound.names if isinstance(bound, ast.Import | ast.ImportFrom) else ():
            if first == (alias.asname or alias.name.partition(".")[0]):
                module = alias.name if alias.asname else first
                if isinstance(bound, ast.ImportFrom):
                    module = "" if bound.level else f"{bound.module}.{alias.name}"
        return module and f"{module}.{rest}".rstrip(".")


def dotted_name(node: ast.expr) -> str:
    """Return "a.b" of the expression a.b; an empty string of any other expression."""
    if isinstance(node, ast.Attribute):
        of = dotted_name(node.value)
        return of and f"{of}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _assigned(body: ast.AST) -> Iterator[tuple[ast.AST, ast.expr]]:
    """Yield each name that is given a value by itself, and the value."""
    for node in ast.walk(body):
        if isinstance(node, ast.Assign):
            yield from ((target, node.value) for target in node.targets)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield node.target, node.value
