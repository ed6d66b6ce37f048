"""The changes that mutation testing makes in a file: one operator, number, call or return value at a time."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.Break: ast.Continue,
    ast.Continue: ast.Break,
}
NAMES = {"any": "all", "all": "any", "min": "max", "max": "min"}


@dataclass(frozen=True)
class Mutant:
    """The change with this number in a file."""

    file: Path
    number: int
    line: int
    what: str
    lines: range
    """Those of the statement that it changes; none outside of functions."""

    @property
    def module(self) -> str:
        return ".".join(self.file.with_suffix("").parts)

    def code(self) -> CodeType:
        """Return the code of the changed module."""
        tree = ast.parse(self.file.read_text("utf-8"))
        list(changes(tree))[self.number].make()
        return compile(ast.fix_missing_locations(tree), self.file.absolute(), "exec")

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


@dataclass(frozen=True)
class Change:
    """A change of a tree: its line, what it does in words, the lines of its statement, and what makes it."""

    line: int
    what: str
    lines: range
    make: Callable[[], None]


def changes(tree: ast.AST) -> Iterator[Change]:
    for node, statement in _code(tree, None):
        for field, value in ast.iter_fields(node):
            for k, one in enumerate(value) if isinstance(value, list) else [(None, value)]:
                for what, other in _others(one):
                    line = getattr(one, "lineno", getattr(node, "lineno", 0))
                    yield Change(line, what, _lines(one, statement), _putter(node, field, k, other))


def _code(node: ast.AST, statement: ast.stmt | None) -> Iterator[tuple[ast.AST, ast.stmt | None]]:
    """Yield the nodes that are executed: no annotations, no decorators, nothing for type checkers.

    Beside each stands the statement of a function, or the function, that it is in.
    """
    if isinstance(node, ast.FunctionDef) or (statement is not None and isinstance(node, ast.stmt)):
        statement = node
    yield node, statement
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ast.AST) and "TYPE_CHECKING" not in ast.dump(getattr(one, "test", one))[:80]:
                yield from _code(one, statement)


def _lines(one: object, statement: ast.stmt | None) -> range:
    if statement is None:
        return range(0)
    of = one if isinstance(one, ast.stmt) else statement
    return range(of.lineno, (of.end_lineno or of.lineno) + 1)


def _others(one: object) -> Iterator[tuple[str, object]]:
    if (swap := SWAPS.get(type(one))) is not None:  # type: ignore[arg-type]
        yield f"{type(one).__name__} becomes {swap.__name__}", swap()
    match one:
        case ast.Constant(value=bool(value)):
            yield f"{value} becomes {not value}", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield f"{value} becomes {value + 1}", ast.Constant(value + 1)
        case ast.UnaryOp(op=ast.Not()):
            yield f"not {ast.unparse(one.operand)} loses its not", one.operand
        case ast.Name(id=name, ctx=ast.Load()) if name in NAMES:
            yield f"{name} becomes {NAMES[name]}", ast.Name(NAMES[name], ast.Load())
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield f"return {ast.unparse(value)[:60]} returns None", ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()):
            yield f"{ast.unparse(one)[:60]} is left out", ast.Pass()


def _putter(node: ast.AST, field: str, k: int | None, other: object) -> Callable[[], None]:
    def put() -> None:
        if k is None:
            setattr(node, field, other)
        else:
            getattr(node, field)[k] = other

    return put


def mutants(file: Path) -> list[Mutant]:
    found = changes(ast.parse(file.read_text("utf-8")))
    return [Mutant(file, number, change.line, change.what, change.lines) for number, change in enumerate(found)]
