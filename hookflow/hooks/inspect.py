"""What a hook's class (or function) says of itself, read without making one."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from hookflow.errors import Problem, Where, nearest
from hookflow.graph.plan import Half
from hookflow.graph.points import BY_NAME, PAIRS
from hookflow.pipeline.explain import wrong_value

POINT_LIKE = ("before_", "after_", "on_", "around_")
"""A method that begins like this is meant for a point: a misspelt one is a mistake, never ignored."""

NAMES = (*BY_NAME, *(f"around_{pair}" for pair in PAIRS))
"""Everything that a hook's method, or an entry of `points`, may be named."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a hook at a point; `name` is empty when the hook is a plain function."""

    point: str
    name: str
    half: Half
    takes: tuple[str, ...]


def about(hook: Callable[..., Any]) -> str:
    """Return the first line of the hook's docstring."""
    return (inspect.getdoc(hook) or "").partition("\n")[0]


def methods(hook: type, where: Where) -> tuple[list[Method], list[Problem]]:
    """Return the methods of a hook's class that belong to points, and what is wrong with them."""
    found: list[Method] = []
    problems: list[Problem] = []
    for name, function in inspect.getmembers(hook, inspect.isfunction):
        if not name.startswith(POINT_LIKE):
            continue
        places = _places(name)
        if not places:
            said = f"{hook.__name__}.{name} is named like a point, but there is no such point"
            problems.append(Problem(said, where, nearest(name, NAMES)))
            continue
        if name.startswith("around_") and not inspect.isgeneratorfunction(function):
            problems.append(Problem(f"{hook.__name__}.{name} must be a generator that yields once", where))
        if wrong := _no_method(inspect.getattr_static(hook, name), places[0][0]):
            problems.append(Problem(f"{hook.__name__}.{name} {wrong}", where))
            continue
        takes = _takes(function, places[0][0])[1:]
        problems += _not_offered(f"{hook.__name__}.{name}", takes, places[0][0], where)
        found += (Method(point, name, half, takes) for point, half in places)
    if not found and not problems:
        problems.append(Problem(f"{hook.__name__} has no method named like a point, so it would never fire", where))
    return found, problems


def _no_method(attribute: Any, point: str) -> str:
    """Say what keeps a class's attribute from being called as a method; an empty string when nothing does."""
    if isinstance(attribute, staticmethod | classmethod):
        return "must be a plain method, which takes self"
    if inspect.iscoroutinefunction(attribute) or inspect.isasyncgenfunction(attribute):
        return "is async, and the training loop awaits nothing: make it a plain method"
    first = next(iter(inspect.signature(attribute).parameters), "")
    return "" if first and first not in BY_NAME[point].offers else "must take self first"


def function_at(
    function: Callable[..., Any], point: str, given: Mapping[str, Any], where: Where
) -> tuple[Method, list[Problem]]:
    """Return a plain function as the method of a hook at `point`; what `given` names is not taken from the point."""
    takes = tuple(name for name in _takes(function, point) if name not in given)
    called = getattr(function, "__name__", repr(function))
    return Method(point, "", "whole", takes), _not_offered(called, takes, point, where)


def _takes(function: Callable[..., Any], point: str) -> tuple[str, ...]:
    """Return the arguments that a point must fill: those without a default, and those that it offers by that name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions written in C have no signature to read
        return ()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    offers = BY_NAME[point].offers
    return tuple(p.name for p in parameters if p.kind not in variadic and (p.default is p.empty or p.name in offers))


def _places(name: str) -> list[tuple[str, Half]]:
    if name in BY_NAME:
        return [(name, "whole")]
    pair = name.removeprefix("around_")
    if name.startswith("around_") and pair in PAIRS:
        return [(f"before_{pair}", "enter"), (PAIRS[pair], "exit")]
    return []


def _not_offered(called: str, takes: tuple[str, ...], point: str, where: Where) -> list[Problem]:
    offers = BY_NAME[point].offers
    return [
        Problem(
            f'{called} asks for "{name}", which {point} does not offer',
            where,
            nearest(name, offers) or f"it offers {', '.join(offers)}",
        )
        for name in takes
        if name not in offers
    ]


def wrong_arguments(
    make: Callable[..., Any],
    args: Mapping[str, Any],
    called: str,
    place: Callable[[str], Where],
    filled: Collection[str] = (),
) -> Iterator[Problem]:
    """Yield what is wrong with `args`, values of a file, for calling `make`: unknown and missing names, types, ranges.

    `place` gives the place of an argument by its name, and that of the call for an empty name; `filled` names the
    arguments that somebody else gives.
    """
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {n: p for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    hints = typing.get_type_hints(
        vars(make).get("__init__", make) if isinstance(make, type) else make, include_extras=True
    )
    for name, value in args.items():
        if name in named:
            yield from _wrong_value(called, name, value, hints.get(name, Any), place(name))
        elif not open_ended:
            hint = nearest(name, named) or (f"it takes {', '.join(named)}" if named else "it takes none")
            yield Problem(f'{called} takes no argument "{name}"', place(name), hint)
    missing = [n for n, p in named.items() if p.default is p.empty and n not in args and n not in filled]
    if missing:
        yield Problem(f"{called} needs the argument " + ", ".join(f'"{name}"' for name in missing), place(""))


def _wrong_value(called: str, name: str, value: Any, annotation: Any, where: Where) -> Iterator[Problem]:
    """Hold a value of the file against the annotation of its argument, as strictly as JSON would be: "3" is no 3."""
    try:
        TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True)).validate_json(
            json.dumps(value), strict=True
        )
    except ValidationError as error:
        said, hint = wrong_value(error.errors(include_url=False)[0], f'{called}: "{name}"')
        yield Problem(said, where, hint)
