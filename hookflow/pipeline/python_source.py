"""The source of Python modules, found and parsed: none of it is imported or run."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

LARGEST = 1 << 20
"""Bytes of a source file, from which on it is not parsed: a tree takes a hundred times as much."""


def module_file(module: str) -> Path | None:
    """Return the source of a module without importing its parents; None when it has none that can be read.

    Raises ModuleNotFoundError, with the first part that is missing as its name.
    """
    top, *rest = module.split(".")
    try:
        spec = find_spec(top)  # a top-level name has no parents that this would import
    except ValueError:  # "" and "__main__", say
        spec = None
    seen = top
    for part in rest:
        if spec is None:
            break
        spec, seen = PathFinder.find_spec(f"{seen}.{part}", spec.submodule_search_locations), f"{seen}.{part}"
    if spec is None:
        raise ModuleNotFoundError(name=seen)
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None


def parse_file(file: Path) -> ast.Module:
    """Return the syntax tree of a source file. Raises OSError or SyntaxError, whatever is in it."""
    try:
        if (size := file.stat().st_size) > LARGEST:
            raise SyntaxError(f"the file has {size:,} bytes, and no more than {LARGEST:,} are parsed")
        data = file.read_bytes()
        with warnings.catch_warnings(action="ignore"):  # who imports the file is warned
            return ast.parse(data)
    except ValueError as error:
        raise SyntaxError(str(error)) from None
    except (RecursionError, MemoryError):
        raise SyntaxError("nested too deep") from None


def bindings_in(body: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield every name that a module or a class binds, inside `if` and `try` too, with the node that binds it."""
    for child in ast.iter_child_nodes(body):
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, child
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (((alias.asname or alias.name).partition(".")[0], child) for alias in aliases)
            case ast.Name(id=name, ctx=ast.Store()):
                yield name, child
            case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                continue
            case _:
                yield from bindings_in(child)
