"""From what `use` says to the object that it names."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import pkgutil
import sys
import zlib
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from hookflow.errors import Problem, SharedProblem, UserError, Where, nearest
from hookflow.pipeline.neighbours import neighbours_of
from hookflow.pipeline.objects import is_object, maker_of
from hookflow.pipeline.python_source import parse_file
from hookflow.pipeline.raised_by import explained, is_ctrl_c

FORMS = '"package.module:Name" or "./file.py:Name"'

_imported: dict[str, Path] = {}
"""The files that `import_file` has imported, by the name of their module."""


def refer(use: str, base: Path, where: Where | None, registered: Mapping[str, str] | None = None) -> Any:
    """Return what `use` names: a registered name, "package.module:Name" or "./file.py:Name".

    Names may have dots ("torch.nn:Module.forward"). Files are relative to `base`. Raises UserError at `where` when
    there is no such thing, or when importing it raises.
    """
    if is_object(use):
        return maker_of(use, where)
    short = registered or {}
    module_name, colon, name = short.get(use, use).rpartition(":")
    if not colon or not module_name or not name:
        if use in short:
            _fail(f'"{use}" is registered as "{short[use]}", which names nothing', where, f"it should be {FORMS}")
        _fail(
            f'there is nothing called "{use}"', where, _inside(base / use, use) or nearest(use, short) or _forms(short)
        )
    if module_name.endswith(".py"):
        module = import_file(base / module_name, module_name, where)
    else:
        module = _from_package(module_name, name, base, where)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = [known for known in dir(found) if not known.startswith("_")]
            _fail(f'"{use}": there is no "{part}" in {_called(found, module_name)}', where, nearest(part, public))
        found = getattr(found, part)
    return found


def is_file(path: Path) -> bool:
    """Say whether there is such a file; there is none of a name that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _forms(short: Mapping[str, str]) -> str:
    return f"write {FORMS}" if not short else f"write {FORMS}, or one of {', '.join(sorted(short))}"


def _inside(file: Path, use: str) -> str:
    """Return what may be meant by a file alone; empty if it is none, or cannot be read."""
    try:
        body = parse_file(file).body if use.endswith(".py") else []
    except (OSError, SyntaxError):
        return ""
    defined = [node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    named = ", ".join(f'"{use}:{name}"' for name in defined if not name.startswith("_"))
    return f"name what is in it: {named}" if named else ""


def _called(found: Any, module_name: str) -> str:
    return module_name if isinstance(found, ModuleType) else getattr(found, "__qualname__", repr(found))


def _from_package(module_name: str, name: str, base: Path, where: Where | None) -> ModuleType:
    try:
        with redirect_stdout(sys.stderr):  # the output is the command's own: a drawing, or JSON
            return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            _fail_import(module_name, error, where)
        file = Path(*module_name.split(".")).with_suffix(".py")
        hint = f'for the file write "./{file}:{name}"' if is_file(base / file) else _nearest_module(error.name)
        _fail(f'there is no module "{error.name}"', where, hint)
    except BaseException as error:  # whatever the user's module may raise
        if is_ctrl_c(error):
            raise
        _fail_import(module_name, error, where)


def _nearest_module(missing: str) -> str:
    package, dot, name = missing.rpartition(".")
    path = getattr(sys.modules.get(package), "__path__", None) if dot else None
    hint = nearest(name, [found.name for found in pkgutil.iter_modules(path)]) if path or not dot else ""
    return hint.replace('"', f'"{package}.', 1) if dot else hint


def import_file(path: Path, shown: str, where: Where | None) -> ModuleType:
    """Import a file by its path, once for all that comes from it; what it imports may lie beside it."""
    try:
        full = path.resolve()
    except (OSError, ValueError, RuntimeError):  # a name that no file can have, or a link to itself
        full = path.absolute()
    name = f"{full.stem}_{zlib.crc32(os.fsencode(full)):08x}"
    if name in sys.modules:
        return sys.modules[name]
    if not is_file(full):
        hint = nearest(path.name, [file.name for file in path.parent.glob("*.py")])
        _fail(f'there is no file "{shown}" ({full})', where, hint)
    spec = importlib.util.spec_from_file_location(name, full)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before its code runs: dataclasses, for one, look their module up
    _imported[name] = full
    try:
        with redirect_stdout(sys.stderr), neighbours_of(full):
            spec.loader.exec_module(module)
    except BaseException as error:  # whatever the user's file may raise
        if is_ctrl_c(error):
            raise
        del sys.modules[name]
        _fail_import(shown, error, where)
    return module


def imported_files() -> list[str]:
    """Return the files that `import_file` has imported, in that order."""
    return [str(path) for name, path in _imported.items() if name in sys.modules]


def _fail_import(shown: str, error: BaseException, where: Where | None) -> NoReturn:
    message, *chain = explained(error)
    raise UserError(SharedProblem(f'"{shown}" cannot be imported: {message}', where, "\n    ".join(chain))) from error


def _fail(message: str, where: Where | None, hint: str = "") -> NoReturn:
    raise UserError(Problem(message, where, hint))
