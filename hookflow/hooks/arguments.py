"""Arguments of classes and functions: validation against their signatures, and conversion."""

import inspect
import json
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import InitVar, is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.numbers import format_count
from hookflow.pipeline.components import Component
from hookflow.pipeline.load import Loaded, list_components
from hookflow.pipeline.problems import describe_value_problem, iter_errors_by_key
from hookflow.pipeline.references import as_written, iter_environment_keys
from hookflow.pipeline.registry import registry_of
from hookflow.pipeline.use import PIPELINE_FOLDER, locate, make_stand_in, module_file, resolve_use

OFFERED_TO_DATA = ("seed", "device", "say", "rank", "world", "pipeline_dir")
"""Arguments that a data source is given where it takes them and the file does not give them."""

OFFERED_TO_WRITERS = ("dir", "run_name", "run_id")
"""Arguments that a writer is given likewise: a folder of its own, and whose results these are."""

VARIADIC_KINDS = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
"""Kinds of parameters that take any number of arguments."""


def first_names(
    function: Callable[..., Any], count: int, offered: Collection[str] = ()
) -> list[str]:
    """Return the names of the parameters that so many arguments in a list fill.

    Arguments that a point offers are left to it, unless more follow than have a name (`*words`):
    these can only be given in their place.
    """
    result = parameters_of(function)
    skipped = offered
    if any(p.kind is p.VAR_POSITIONAL for p in result):
        skipped = ()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = []
    for p in result:
        if p.kind in positional and p.name not in skipped:
            names.append(p.name)
    return names[:count]


def parameters_of(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """Return the parameters; none for what is written in C without a signature to read."""
    return _signature(function) or ()


def _signature(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...] | None:
    try:
        return _read_signature(function)
    except TypeError:  # a callable object that cannot be a key
        return _read_signature.__wrapped__(function)


@cache
def _read_signature(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...] | None:
    try:
        return tuple(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


def named_arguments(
    function: Callable[..., Any], args: Mapping[str, Any] | Sequence[Any]
) -> dict[str, Any]:
    """Return the arguments of a file by name, those of a list by what they fill."""
    if isinstance(args, Mapping):
        return dict(args)
    names = first_names(function, len(args))
    return dict(zip(names, args, strict=False))


def complete_arguments(
    function: Callable[..., Any], args: Mapping[str, Any] | Sequence[Any]
) -> dict[str, Any]:
    """Return all arguments by name: those of a file, and the defaults of the others.

    An argument that must be given is None.
    """
    result: dict[str, Any] = {}
    for parameter in parameters_of(function):
        if parameter.default is parameter.empty:
            result[parameter.name] = None
        else:
            result[parameter.name] = parameter.default
    return result | named_arguments(function, args)


def find_call_problem(function: Callable[..., Any], *offered: object) -> str:
    """Return why a function cannot be called with so many arguments.

    The text is empty where it can, or where that is unknown.
    """
    try:
        inspect.signature(function).bind(*offered)
    except TypeError as error:
        return str(error)
    except ValueError:
        pass  # written in C
    return ""


def find_argument_problems(
    make: Callable[..., Any],
    args: Mapping[str, Any] | Sequence[Any],
    called: str,
    place: Callable[[str], Where],
    filled: Collection[str] = (),
    offered: Collection[str] = (),
    public: Mapping[str, Any] | Sequence[Any] | None = None,
) -> Iterator[Problem]:
    """Yield what is wrong with `args`, values of a file, for calling `make`.

    Names may be unknown or missing, and values of another type or out of range.

    `place` gives the place of an argument by its name (or its place in a list, as text), and that
    of the call for an empty name; `filled` names arguments from other sources, `offered` those that
    the file must not give. `public` are the same arguments with references in the place of what the
    environment has given.
    """
    signature = _signature(make)
    if signature is None:
        return
    if public is None:
        public = args
    kinds = {parameter.kind for parameter in signature}
    named = {
        parameter.name: parameter for parameter in signature if parameter.kind not in VARIADIC_KINDS
    }
    free = [name for name in named if name not in offered]
    takes = "it takes none"
    if free:
        takes = f"it takes {', '.join(free)}"
    if isinstance(args, Mapping):
        provided = dict(args)
        places = {name: name for name in args}
    else:
        firsts = first_names(make, len(args), offered)
        provided = dict(zip(firsts, args, strict=False))
        places = {name: str(k) for k, name in enumerate(firsts)}
        if len(args) > len(firsts) and inspect.Parameter.VAR_POSITIONAL not in kinds:
            count = format_count(len(firsts), "argument")
            yield Problem(f"{called} takes {count}, and is given {len(args)}", place(""), takes)
    for name, value in provided.items():
        where = place(places[name])
        if name in named and name in offered:
            message = f'{called}: "{name}" is what the point offers, so it cannot be given here'
            yield Problem(message, where, "give the argument another name")
        # A class with **keywords may hand the argument on to its base.
        elif name in named or inspect.Parameter.VAR_KEYWORD in kinds:
            yield from _find_value_problems(
                make, called, name, value, where, _value_at(public, places[name])
            )
        else:
            hint = nearest(name, free) or takes
            yield Problem(f'{called} takes no argument "{name}"', where, hint)
    yield from _missing_arguments(named.values(), {*provided, *filled}, called, place(""))


def _value_at(args: Mapping[str, Any] | Sequence[Any], place: str) -> Any:
    """Return an argument by its name, or by its place in a list."""
    if isinstance(args, Mapping):
        return args[place]
    return args[int(place)]


def _missing_arguments(
    parameters: Iterable[inspect.Parameter], given: Collection[str], called: str, where: Where
) -> Iterator[Problem]:
    """Yield the problem of the parameters without a default that are not given, if any."""
    missing = []
    for parameter in parameters:
        if parameter.default is parameter.empty and parameter.name not in given:
            missing.append(f'"{parameter.name}"')
    if missing:
        message = f"{called} needs the argument {', '.join(missing)}"
        yield Problem(message, where)


def find_component_problems(
    make: Callable[..., Any],
    part: Component,
    public: Component,
    key: str,
    place_of: Callable[[str], Where],
) -> Iterator[Problem]:
    """Yield what is wrong with the arguments of a component, by its key ("data.train").

    The same is found as for the arguments of a call.
    """

    def place(name: str) -> Where:
        return place_of(f"{key}.args.{name}" if name else f"{key}.use")

    kind = key.partition(".")[0]
    offered = {"data": OFFERED_TO_DATA, "writers": OFFERED_TO_WRITERS, "optimizer": ("params",)}
    filled: Sequence[str] = offered.get(kind, ())
    if key == "task" and not isinstance(make, type):
        # A task that is a function is given the run and the batch, whatever it calls them.
        filled = [p.name for p in parameters_of(make)][:2]
    return find_argument_problems(make, part.args, key, place, filled, public=public.args)


def find_source_problems(loaded: Loaded, base: Path) -> Iterator[Problem]:
    """Yield what is wrong with the arguments of components whose source shows a signature.

    Nothing is imported.
    """
    public = list_components(loaded.public)
    for key, part in list_components(loaded.pipeline).items():
        registry = registry_of(key)
        # `missing_components` reports a component that is not found.
        with suppress(UserError, ImportError, OSError, SyntaxError, RecursionError):
            module, name = locate(
                part.use, base, None, registry.short_names(part.use) if registry else {}
            )
            file = base / module if module.endswith(".py") else module_file(module)
            if file and (make := make_stand_in(file, name)):
                yield from find_component_problems(make, part, public[key], key, loaded.places.of)


def find_class(
    component: Component,
    base: type,
    modules: Sequence[ModuleType],
    called: str = "",
    filled: Collection[str] = (),
    *,
    functions: bool = False,
) -> Any:
    """Return the class that a component names.

    The name is "package.module:Name", or that of a subclass of `base` in `modules`. With
    `functions` it may be a function, whose result the caller checks. Raises UserError when there is
    none, or its arguments are wrong; `filled` names those that the file does not give.
    """
    short = {
        name: f"{module.__name__}:{name}"
        for module in modules
        for name, kind in vars(module).items()
        if isinstance(kind, type)
        and issubclass(kind, base)
        and kind is not base
        and not name.startswith("_")
    }
    kind = resolve_use(component.use, PIPELINE_FOLDER.get(), None, short)
    is_function = functions and callable(kind) and not isinstance(kind, type)
    if not is_function and not (isinstance(kind, type) and issubclass(kind, base)):
        message = f'"{component.use}" must be a subclass of {base.__qualname__}'
        raise UserError(Problem(message))
    name = called or component.use.rpartition(":")[2]
    _check_arguments(kind, component.args, name, filled)
    return kind


def _check_arguments(
    make: Callable[..., Any],
    args: Mapping[str, Any] | Sequence[Any],
    called: str,
    filled: Collection[str],
) -> None:
    """Raise UserError, without a place, for all that is wrong with arguments."""
    wrong = find_argument_problems(make, args, called, lambda _: Where(""), filled)
    problems = [replace(problem, where=None) for problem in wrong]
    if problems:
        raise UserError(problems)


def with_functions(value: Any) -> Any:
    """Return a value of `args` with what its tables `{ use, args }` name.

    A table names a function, with `args`, or an object of a class. Raises UserError when there is
    no such thing, or it cannot be called.
    """
    if isinstance(value, list):
        return [with_functions(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if not isinstance(value.get("use"), str) or not value.keys() <= {"use", "args"}:
        return {name: with_functions(item) for name, item in value.items()}
    use = value["use"]
    args = value.get("args", {})
    make = resolve_use(use, PIPELINE_FOLDER.get(), None)
    if not callable(make):
        raise UserError(Problem(f'"{use}" must be a function or a class'))
    all_names = [parameter.name for parameter in parameters_of(make)]
    _check_arguments(make, args, use, all_names)
    if isinstance(make, type):
        return make(**args)
    if args:
        return partial(make, **args)
    return make


def _find_value_problems(
    make: Callable[..., Any], called: str, name: str, value: Any, where: Where, written: Any
) -> Iterator[Problem]:
    try:
        _as_annotated(make, name, value)
    except ValidationError as error:
        argument = f'{called}: "{name}"'
        _, details = next(iter_errors_by_key(error))
        key = ""
        if details["loc"]:
            key = str(details["loc"][-1])
        if details["type"] == "extra_forbidden":
            message = f'{argument} has a table with the unknown key "{key}"'
            known = _keys_of_tables(argument_type(make, name))
            hint = nearest(key, known)
            if not hint and "args" in known:
                hint = f"an argument belongs in args: {{ {key} = … }}"
        elif details["type"] == "missing":
            message = f'{argument} has a table without the key "{key}"'
            hint = ""
        else:
            reference = next((text for _, text in iter_environment_keys(written)), "")
            message, hint = describe_value_problem(details, argument, reference)
        yield Problem(message, where, hint)


def _keys_of_tables(kind: TypeAdapter[Any]) -> set[str]:
    """Return the keys of all tables that a type consists of."""
    try:
        definitions = kind.json_schema().get("$defs", {})
    except PydanticInvalidForJsonSchema:  # a class that no file can hold an object of
        return set()
    keys: set[str] = set()
    for table in definitions.values():
        keys.update(table.get("properties", ()))
    return keys


def as_annotated(
    make: Callable[..., Any], args: Mapping[str, Any] | Sequence[Any], offered: Collection[str] = ()
) -> Mapping[str, Any] | Sequence[Any]:
    """Return sound `args` as their annotations have them, to call `make` with.

    Such values are a `Path`, an enum's member, or a tuple. A list comes back by name where what is
    `offered` stands among what it fills.
    """
    if isinstance(args, Mapping):
        return {name: _as_annotated(make, name, value) for name, value in args.items()}
    firsts = first_names(make, len(args), offered)
    values = [_as_annotated(make, name, value) for name, value in zip(firsts, args, strict=False)]
    in_place = firsts == first_names(make, len(args))
    if in_place:
        return [*values, *args[len(firsts) :]]
    return dict(zip(firsts, values, strict=True))


def _as_annotated(make: Callable[..., Any], name: str, value: Any) -> Any:
    """Compare a value of the file with the annotation of its argument, as strictly as JSON does.

    "3" is no 3. The text of a variable that holds a number is that number, or the text where the
    annotation takes no number.
    """
    kind = argument_type(make, name)
    try:
        return kind.validate_json(json.dumps(value), strict=True)
    except ValidationError:
        text = as_written(value)
        if text == value:
            raise
        with suppress(ValidationError):
            return kind.validate_json(json.dumps(text), strict=True)
        raise


def argument_type(make: Callable[..., Any], name: str) -> TypeAdapter[Any]:
    """Return the type that validates an argument of a class or function against its annotation.

    Each argument has a type of its own, which is made when the argument is given: in PyTorch's
    classes other arguments may have annotations that cannot be read.
    """
    while isinstance(make, partial):
        make = make.func
    if isinstance(make, type):
        return _type_for_class(make, name)
    if inspect.isroutine(make):
        return _type_for_function(make, name)
    return _type_for_function(type(make).__call__, name)


@cache
def _type_for_class(kind: type, name: str) -> TypeAdapter[Any]:
    return _make_type_adapter(_read_class_annotation(kind, name))


@cache
def _type_for_function(function: Callable[..., Any], name: str) -> TypeAdapter[Any]:
    return _make_type_adapter(_read_function_annotation(function, name))


def make_argument_model(kind: type, about: str = "") -> type[BaseModel]:
    """Return a model with a field for each argument of a class, with its type and default.

    It is for displays and schemas, which show `about` as its description.
    """
    fields: dict[str, Any] = {}
    for parameter in parameters_of(kind):
        default = parameter.default
        if default is parameter.empty:
            default = ...  # which makes it a required field
        fields[parameter.name] = (_read_class_annotation(kind, parameter.name), default)
    return create_model(
        kind.__name__, __config__=ConfigDict(extra="forbid"), __doc__=about, **fields
    )


def _read_class_annotation(kind: type, name: str) -> Any:
    """Return the annotation of an argument of a class.

    It is that of the first constructor in its bases which names it. A constructor that does not
    name it hands it on by its `**keywords`.
    """
    for base in kind.__mro__:
        for method in ("__init__", "__new__"):
            function = vars(base).get(method)
            if isinstance(function, staticmethod):
                function = function.__func__
            if (
                not inspect.isfunction(function)
                or name not in inspect.signature(function).parameters
            ):
                continue
            if function.__code__.co_filename == "<string>" and is_dataclass(base):
                return _read_field_annotation(base, name)
            return _read_function_annotation(function, name)
    return Any


def _read_field_annotation(kind: type, name: str) -> Any:
    """Return the annotation of a field of a dataclass.

    Its text is read in the module of the class that has declared it.
    """
    for base in kind.__mro__:
        declared = inspect.get_annotations(base)
        if name in declared:
            module = sys.modules.get(base.__module__)
            return _evaluate_annotation(declared[name], name, getattr(module, "__dict__", {}))
    return Any


def _read_function_annotation(function: Callable[..., Any], name: str) -> Any:
    annotation = getattr(function, "__annotations__", {}).get(name, Any)
    written = inspect.unwrap(function)  # a decorator copies the annotations, and has other globals
    return _evaluate_annotation(annotation, name, getattr(written, "__globals__", {}))


def _evaluate_annotation(annotation: Any, name: str, namespace: dict[str, Any]) -> Any:
    """Return the type that an annotation means; any type where its text means none."""
    only = SimpleNamespace(__annotations__={name: annotation})
    try:
        meant = typing.get_type_hints(only, namespace, include_extras=True)[name]
    except Exception:  # the module imports the type for type checkers alone, or its text is no type
        meant = Any
    if isinstance(meant, InitVar):
        return meant.type
    return meant


def _make_type_adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
