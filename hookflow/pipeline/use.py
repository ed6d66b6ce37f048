"""The object that `use` names.

It is a registered name, `module:name`, `./file.py:name`, or an object itself.
"""

import ast
import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from datetime import date, time
from functools import lru_cache, partial
from importlib.machinery import PathFinder
from importlib.util import find_spec
from itertools import chain, count
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NoReturn

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.pipeline.annotations import annotated_type
from hookflow.pipeline.components import names_component
from hookflow.pipeline.source_map import Key, format_key
from hookflow.user_code import describe_error, is_ctrl_c

MAX_SOURCE_BYTES = 1 << 20
"""Bytes of a source file, from which on it is not parsed: a tree takes a hundred times as much."""


def module_file(module: str) -> Path | None:
    """Return the source of a module, or None, without importing its parents.

    Raises ModuleNotFoundError.
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
        # The last part alone is looked up: for the whole name, a package without __init__.py would
        # look for its parent among the imported modules.
        spec = PathFinder.find_spec(part, spec.submodule_search_locations)
        seen = f"{seen}.{part}"
    if spec is None:
        raise ModuleNotFoundError(name=seen)
    if spec.origin and spec.origin.endswith(".py"):
        return Path(spec.origin)
    return None


# The cache is for one check: several parts of a pipeline may be in one file, and each is looked up
# twice.
@lru_cache(maxsize=16)
def _parse_source(source: bytes) -> ast.Module:
    with warnings.catch_warnings(action="ignore"):  # who imports the file is warned
        return ast.parse(source)


def parse_file(file: Path) -> ast.Module:
    """Return the syntax tree of a source file. Raises OSError or SyntaxError, whatever is in it."""
    try:
        size = file.stat().st_size
        if size > MAX_SOURCE_BYTES:
            raise SyntaxError(
                f"the file has {size:,} bytes, and no more than {MAX_SOURCE_BYTES:,} are parsed"
            )
        return _parse_source(file.read_bytes())
    except ValueError as error:
        raise SyntaxError(str(error)) from None
    except (RecursionError, MemoryError):
        raise SyntaxError("nested too deep") from None


def iter_bindings(body: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield every name that a module or a class binds, with the node that binds it.

    Names that are bound inside `if` and `try` are included.
    """
    for child in ast.iter_child_nodes(body):
        match child:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield name, child
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                for alias in aliases:
                    yield ((alias.asname or alias.name).partition(".")[0], child)
            case ast.Name(id=name, ctx=ast.Store()):
                yield name, child
            case (
                ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp()
            ):
                continue
            case _:
                yield from iter_bindings(child)


def make_stand_in(file: Path, name: str) -> Callable[..., Any] | None:
    """Return a class or a function with the signature that a source file shows of `name`.

    Nothing is imported. None where it shows none: under a decorator or a metaclass, with `__new__`,
    or beyond what the file defines or imports by name. Raises OSError, SyntaxError or ImportError
    for a file that cannot be read.
    """
    match [node for bound, node in iter_bindings(parse_file(file)) if bound == name]:
        case [ast.FunctionDef(decorator_list=[], args=arguments)]:
            return _function(arguments)
        case [ast.ClassDef(decorator_list=[], keywords=[], bases=bases) as node] if (
            "__new__" not in (body := dict(iter_bindings(node)))
        ):
            match body.get("__init__"), bases:
                case ast.FunctionDef(decorator_list=[], args=arguments), _:
                    return type(name, (), {"__init__": _function(arguments)})
                case None, [ast.Name(id=base)]:
                    inherited = make_stand_in(file, base)
                    if isinstance(inherited, type):  # typing.NamedTuple is a function
                        return inherited
                    return None
        case [ast.ImportFrom(module=module, level=level, names=aliases)]:
            original = next(alias.name for alias in aliases if name == (alias.asname or alias.name))
            if level == 0:
                source = module_file(module or "")
            else:
                package = file.parents[level - 1].joinpath(*(module or "").split("."))
                if package.is_dir():
                    source = package / "__init__.py"
                else:
                    source = package.with_suffix(".py")
            if source and source != file:
                return make_stand_in(source, original)
            return None
    return None


def _function(arguments: ast.arguments) -> Callable[..., None]:
    """Return a function with the parameters of a definition.

    Each default is None. Nothing of the file is evaluated. Raises SyntaxError where two parameters
    have one name.
    """

    def run_stand_in(*args: Any, **kwargs: Any) -> None:
        """Take what the definition takes."""

    kinds = inspect.Parameter
    positional = [*arguments.posonlyargs, *arguments.args]
    first_default = len(positional) - len(arguments.defaults)
    parameters: list[inspect.Parameter] = []
    for k, each in enumerate(positional):
        kind = (
            kinds.POSITIONAL_ONLY if k < len(arguments.posonlyargs) else kinds.POSITIONAL_OR_KEYWORD
        )
        parameters.append(_parameter(each, kind, has_default=k >= first_default))
    if arguments.vararg:
        parameters.append(_parameter(arguments.vararg, kinds.VAR_POSITIONAL))
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parameters.append(_parameter(each, kinds.KEYWORD_ONLY, has_default=default is not None))
    if arguments.kwarg:
        parameters.append(_parameter(arguments.kwarg, kinds.VAR_KEYWORD))
    try:
        signature = inspect.Signature(parameters)
    except ValueError as error:
        raise SyntaxError(str(error)) from None
    run_stand_in.__signature__ = signature  # type: ignore[attr-defined]
    run_stand_in.__annotations__ = {each.name: each.annotation for each in parameters}
    return run_stand_in


def _parameter(argument: ast.arg, kind: Any, *, has_default: bool = False) -> inspect.Parameter:
    if has_default:
        default = None
    else:
        default = inspect.Parameter.empty
    if argument.annotation is None:
        annotation = Any
    else:
        annotation = annotated_type(argument.annotation)
    return inspect.Parameter(argument.arg, kind, default=default, annotation=annotation)


_suspended: dict[Path, dict[str, ModuleType]] = {}
"""The hidden modules of each folder that files have been imported from.

They have made room for modules of the same names in another folder.
"""


@contextmanager
def import_neighbours_first(file: Path) -> Iterator[None]:
    """Let imports find what is beside `file` first.

    Files of two folders each get neighbours of their own.
    """
    folder = file.parent
    for top, module in [(name, module) for name, module in sys.modules.items() if "." not in name]:
        home = _home(module)
        if (
            home in _suspended
            and home != folder
            and ((folder / f"{top}.py").is_file() or (folder / top).is_dir())
        ):
            for name in [name for name in sys.modules if name == top or name.startswith(f"{top}.")]:
                _suspended[home][name] = sys.modules.pop(name)
    sys.modules.update(_suspended.pop(folder, {}))
    _suspended[folder] = {}
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with suppress(ValueError):  # the file may have changed the path itself
            sys.path.remove(str(folder))
        if str(folder) not in sys.path:
            sys.path.append(str(folder))  # for what imports when it is called


def find_neighbour_modules(folder: Path) -> Mapping[str, ModuleType]:
    """Return the modules of a folder that have made room for namesakes of another one, by name."""
    return _suspended.get(folder, {})


def list_pipeline_objects() -> list[Any]:
    """Return the objects of this program in the pipeline that is in use."""
    return [*_IN_USE.get().values()]


def _home(module: ModuleType) -> Path:
    """Return the folder that a top-level module is found in.

    For a module that comes from no file it is the current one.
    """
    known = getattr(module, "__dict__", {})  # not the attribute, which would load a lazy module
    path = Path(known.get("__file__") or "")
    if path.name == "__init__.py":
        return path.parent.parent
    return path.parent


Maker = Callable[..., Any]

PIPELINE_FOLDER: ContextVar[Path] = ContextVar("the pipeline's folder", default=Path())
"""The folder of the pipeline, while a hook is made.

The files that the hook's arguments name are relative to it.
"""

_IN_USE: ContextVar[Mapping[str, Maker]] = ContextVar(
    "objects in use", default=MappingProxyType({})
)


class ObjectRegistry:
    """The objects of one pipeline: the factory of each object, by its text."""

    def __init__(self) -> None:
        self.makers: dict[str, Maker] = {}
        self._texts: dict[int, str] = {}
        self._kept: list[Any] = []  # so that no other object gets the id of one of them

    def replace(self, tables: Any, key: Key = ()) -> Any:
        """Return a copy of the tables with a string for each object at a `use`.

        Raises UserError for other objects.
        """
        problems: list[Problem] = []
        replaced = self._replace_objects(tables, key, problems)
        if problems:
            raise UserError(problems)
        return replaced

    def _replace_objects(self, value: Any, key: Key, problems: list[Problem]) -> Any:
        component = names_component(key)
        match value:
            case Mapping():
                return {
                    str(name): self._replace_objects(inner, (*key, str(name)), problems)
                    for name, inner in value.items()
                }
            case list() | tuple() if not component:
                return [
                    self._replace_objects(inner, (*key, str(k)), problems)
                    for k, inner in enumerate(value)
                ]
            case str() | int() | float() | date() | time() | None:
                return value
        if not component:
            message = f"{format_key(key)} cannot be of the type {type(value).__name__}"
            problems.append(
                Problem(
                    message,
                    hint='an object may stand where a file has "use"; all else is plain values',
                )
            )
        elif key[0] == "optimizer" and not _is_factory(value):
            message = (
                f"{format_key(key)} must make an optimizer of the model's parameters, and this one"
                " is made already"
            )
            hint = (
                'give its class, and the rest in args: {"use": torch.optim.SGD, "args": {"lr":'
                " 0.1}}; "
            )
            hint += "or a function that returns this one: lambda params: optimizer"
            problems.append(Problem(message, hint=hint))
        else:
            return self._text(value)
        return ""

    def _text(self, value: Any) -> str:
        if id(value) not in self._texts:
            name = getattr(value, "__name__", type(value).__name__).strip("<>")
            texts = chain([f"<object {name}>"], (f"<object {name} {k}>" for k in count(2)))
            text = next(text for text in texts if text not in self.makers)
            if _is_factory(value):
                self.makers[text] = value
            else:
                self.makers[text] = _class_that_gives(value)
            self._texts[id(value)] = text
            self._kept.append(value)
        return self._texts[id(value)]


def _is_factory(value: Any) -> bool:
    return isinstance(value, type | partial) or inspect.isroutine(value)


def _class_that_gives(value: Any) -> type:
    """Return a class that makes nothing but this object.

    In all else it answers as the object's own class does.
    """
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


LOOP_OBJECT = "<object of the loop>"
"""The `use` of the model, the optimizer, the data and the task of a pipeline of hooks alone.

The loop has the objects.
"""


def maker_of(use: str, where: Where | None) -> Maker:
    """Return what makes the object that a string stands for.

    Raises UserError where there is no such object.
    """
    if use == LOOP_OBJECT:
        message = (
            "what this stands for is in the program that has called hookflow.attach, and it is not"
            " here"
        )
        raise UserError(
            Problem(
                message, where, "start that program again; where it resumes, it says resume=True"
            )
        )
    if use not in _IN_USE.get():
        message = (
            f'"{use}" stands for an object of the Python program that started the run: it is not'
            " here"
        )
        hint = (
            "start a run with `use` naming what makes it, and it can be resumed: use ="
            ' "./file.py:Name"'
        )
        raise UserError(Problem(message, where, hint))
    return _IN_USE.get()[use]


@contextmanager
def use_objects(objects: ObjectRegistry) -> Iterator[None]:
    """Let the texts stand for these objects in this thread."""
    token = _IN_USE.set(objects.makers)
    try:
        yield
    finally:
        _IN_USE.reset(token)


_imported: dict[str, Path] = {}
"""The files that `import_file` was called for, by the name of their module.

A run begins with none.
"""


def resolve_use(
    use: str, base: Path, where: Where | None, registered: Mapping[str, str] | None = None
) -> Any:
    """Return what `use` names: a registered name, "package.module:Name" or "./file.py:Name".

    Names may have dots ("torch.nn:Module.forward"). Files are relative to `base`. Raises UserError
    at `where` when there is no such thing, or when importing it raises.
    """
    if is_object(use):
        return maker_of(use, where)
    module_name, name = locate(use, base, where, registered or {})
    if module_name.endswith(".py"):
        module = import_file(base / module_name, module_name, where)
    else:
        module = _from_package(module_name, name, base, where)
    result: Any = module
    for part in name.split("."):
        if not hasattr(result, part):
            public = [known for known in dir(result) if not known.startswith("_")]
            if isinstance(result, ModuleType):
                owner = module_name
            else:
                owner = getattr(result, "__qualname__", repr(result))
            message = f'"{use}": there is no "{part}" in {owner}'
            raise UserError(Problem(message, where, nearest(part, public)))
        result = getattr(result, part)
    return result


def locate(
    use: str, base: Path, where: Where | None, registered: Mapping[str, str]
) -> tuple[str, str]:
    """Return the module, or the file, that `use` names, and the name in it; a file is there.

    Raises UserError at `where` when it names neither, or a file that is not there. Nothing is
    imported.
    """
    module, _, name = registered.get(use, use).rpartition(":")
    if not module or not name:
        package, _, last = use.rpartition(".")
        every = 'write "package.module:Name" or "./file.py:Name"'
        if registered:
            every += f", or one of {', '.join(sorted(registered))}"
        if package.strip("./:") and last != "py":
            dotted_name = f'write "{package}:{last}"'
        else:
            dotted_name = every
        raise UserError(
            Problem(
                f'there is nothing called "{use}"', where, nearest(use, registered) or dotted_name
            )
        )
    file = base / module
    if module.endswith(".py") and not os.path.isfile(file):  # noqa: PTH113  # for a Path, some names raise
        hint = nearest(file.name, [other.name for other in file.parent.glob("*.py")])
        there = ""
        if module != str(file):
            there = f" ({file.absolute()})"
        raise UserError(Problem(f'there is no file "{module}"{there}', where, hint))
    return module, name


def _from_package(module_name: str, name: str, base: Path, where: Where | None) -> ModuleType:
    try:
        with redirect_stdout(sys.stderr):  # the output is the command's own: a drawing, or JSON
            return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            _fail_import(module_name, error, where)
        file = Path(*module_name.split(".")).with_suffix(".py")
        package, dot, missing = error.name.rpartition(".")
        path = None
        if dot:
            path = getattr(sys.modules.get(package), "__path__", ())
        hint = nearest(missing, [module.name for module in pkgutil.iter_modules(path)])
        hint = hint.replace('"', f'"{package}{dot}', 1)
        if os.path.isfile(base / file):  # noqa: PTH113
            hint = f'for the file write "./{file}:{name}"'
        raise UserError(Problem(f'there is no module "{error.name}"', where, hint)) from None
    except BaseException as error:  # whatever the user's module may raise
        if is_ctrl_c(error):
            raise
        _fail_import(module_name, error, where)


def import_file(path: Path, shown: str, where: Where | None) -> ModuleType:
    """Import a file by its path, once for all that comes from it.

    Modules that the file imports may be beside it.
    """
    full = path.resolve()
    name = f"{full.stem}_{zlib.crc32(os.fsencode(full)):08x}"
    _imported[name] = full
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, full)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before its code runs: dataclasses, for one, look their module up
    try:
        with redirect_stdout(sys.stderr), import_neighbours_first(full):
            spec.loader.exec_module(module)
    except BaseException as error:  # whatever the user's file may raise
        if is_ctrl_c(error):
            raise
        del sys.modules[name]
        _fail_import(shown, error, where)
    return module


def clear_imported_files() -> None:
    """Begin a run: forget the files of the runs before it in this process.

    `list_run_files` returns only the files that this run names.
    """
    _imported.clear()


def list_run_files() -> dict[str, ModuleType]:
    """Return the files that the run has imported, in that order.

    Files that are gone since are left out.
    """
    return {
        str(path): sys.modules[name]
        for name, path in _imported.items()
        if name in sys.modules and path.is_file()
    }


def _fail_import(shown: str, error: BaseException, where: Where | None) -> NoReturn:
    message, *chain = describe_error(error)
    message = f'"{shown}" cannot be imported: {message}'
    raise UserError(Problem(message, where, "\n    ".join(chain), shared=True)) from error
