"""What a hook's class (or function) says of itself, read without making one."""

from __future__ import annotations

import inspect
import json
import sys
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache, partial, partialmethod
from types import SimpleNamespace
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from hookflow.errors import Problem, Where, nearest
from hookflow.graph.plan import PHASES, Half
from hookflow.graph.points import Points
from hookflow.hooks.base import Hook
from hookflow.pipeline.explain import wrong_value

LIKENESS = 0.78
"""From here on a method's name is a point's, misspelt, to difflib; "forward_post" is, and "save_model" is not."""

POINT_LIKE = ("before_", "after_", "on_", "around_")
"""A method that begins like this is meant for a point: a misspelt one is a mistake, never ignored."""

Fault = tuple[str, str]
"""What is wrong, and a hint at the mend; where it was asked for, whoever asks knows."""

TAKES_ANYTHING: Fault = (
    "takes anything, and names nothing that it could be given",
    "name its arguments; a decorator keeps those of what it wraps with functools.wraps",
)


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a hook at a point; `name` is empty when the hook is a plain function."""

    point: str
    name: str
    half: Half
    takes: tuple[str, ...]


def about(hook: Callable[..., Any]) -> str:
    """Return the first line of the hook's docstring; what it inherits from `Hook` says nothing of it."""
    said = inspect.getdoc(hook.func if isinstance(hook, partial) else hook) or ""
    return "" if said == inspect.getdoc(Hook) else said.partition("\n")[0]


def methods(hook: type, points: Points) -> tuple[list[Method], list[Fault]]:
    """Return the methods of a hook's class that belong to points, and what is wrong with them."""
    found: list[Method] = []
    faults: list[Fault] = []
    for name, attribute in inspect.getmembers_static(hook):
        if not _meant(name, attribute, points):
            continue
        called = f"{hook.__name__}.{name}"
        places = _places(name, points)
        if not places:
            said = f"{called} is named like a point, but there is no such point"
            faults.append((said, nearest(name, points.names)))
            continue
        offers = points[places[0][0]].offers
        if wrong := _no_method(name, attribute, points):
            faults.append((f"{called} {wrong[0]}", wrong[1]))
            continue
        takes = _takes(attribute, offers)[1:]
        faults += _not_offered(called, takes, places[0][0], offers)
        found += (Method(point, name, half, takes) for point, half in places)
    if not found and not faults and not makes_callables(hook):
        faults.append((f"{hook.__name__} has no method named like a point, so it would never fire", ""))
    return found, faults


def slots(
    hook: Callable[..., Any], kind: Literal["reads", "writes"], names: Collection[str]
) -> tuple[dict[str, tuple[str, ...]], list[Fault]]:
    """Return the slots that each method of `names` reads or writes, as the class says, and what is wrong with that."""
    declared = getattr(hook, kind, ())
    by_method = declared if isinstance(declared, Mapping) else dict.fromkeys(names, declared)
    called = f"{getattr(hook, '__name__', repr(hook))}.{kind}"
    faults = [
        (f'{called} speaks of "{name}", which is none of its methods at a point', nearest(str(name), names))
        for name in by_method
        if name not in names
    ]
    no_names = [touched for touched in by_method.values() if not _are_names(touched)]
    faults += ((f'{called} must hold names of slots, as {kind} = {{"model"}}', "") for _ in no_names[:1])
    return {} if no_names else {name: tuple(sorted(touched)) for name, touched in by_method.items()}, faults


def _are_names(touched: object) -> bool:
    return isinstance(touched, Collection) and not isinstance(touched, str) and all(type(s) is str for s in touched)


def stated(hook: Callable[..., Any], key: str) -> Any:
    """Return an attribute that says how a hook stands; a method of the name (`nn.Module.modules`) says nothing."""
    said = getattr(hook, key, ())
    return () if inspect.isroutine(said) else said


def names_of(hook: Callable[..., Any], key: str) -> tuple[str, ...]:
    """Return the names that an attribute holds; none if it holds anything else, which `wrong_attributes` tells."""
    names = stated(hook, key)
    return tuple(names) if _are_names(names) else ()


def wrong_attributes(hook: Callable[..., Any], points: Points) -> Iterator[Fault]:
    """Yield what is wrong with what a hook says of its place among others: phase, points and edges."""
    called = getattr(hook, "__name__", type(hook).__name__)
    phase = getattr(hook, "phase", "normal")
    if phase not in PHASES:
        yield f"{called}.phase must be one of {', '.join(PHASES)}, not {phase!r}", nearest(str(phase), PHASES)
    for kind in ("after", "before", "requires", "points", "modules"):
        names = stated(hook, kind)
        if kind == "points" and (names is None or not isinstance(hook, type)):
            continue
        if not _are_names(names):
            yield f'{called}.{kind} must hold names, as {kind} = ("…",)', ""
        elif kind == "points":
            for name in names:
                if name not in points.names or not hasattr(hook, name):
                    has = [known for known in points.names if hasattr(hook, known)]
                    yield f'{called}.points names "{name}", for which it has no method', nearest(name, has)


def makes_callables(hook: type) -> bool:
    """Say whether the objects of a class can be called, as plain functions are."""
    return any("__call__" in vars(base) for base in hook.__mro__)


def object_at(hook: type, point: str, points: Points) -> tuple[Method, list[Fault]]:
    """Return a call of the class's object as the method of a hook at `point`."""
    offers = points[point].offers
    takes = _takes(hook.__call__, offers)[1:]
    faults = _no_call(hook.__call__, hook.__name__, point, points)
    return Method(point, "", "whole", takes), [*faults, *_not_offered(hook.__name__, takes, point, offers)]


def function_at(
    function: Callable[..., Any], point: str, args: Mapping[str, Any] | Sequence[Any], points: Points
) -> tuple[Method, list[Fault]]:
    """Return a plain function as the method of a hook at `point`; what `args` give is not taken from the point."""
    offers = points[point].offers
    given = args if isinstance(args, Mapping) else _first_names(function, len(args))
    takes = tuple(name for name in _takes(function, offers) if name not in given)
    called = getattr(function, "__name__", repr(function))
    faults = _no_call(function, called, point, points)
    return Method(point, "", "whole", takes), [*faults, *_not_offered(called, takes, point, offers)]


def _no_call(function: Callable[..., Any], called: str, point: str, points: Points) -> Iterator[Fault]:
    if dead := _never_runs(function, point, points):
        yield f"{called} {dead[0]}", dead[1]
    if _takes_anything(function):
        yield f"{called} {TAKES_ANYTHING[0]}", TAKES_ANYTHING[1]


def _takes_anything(function: Callable[..., Any]) -> bool:
    """Say whether a function names nothing that it could be given; those of Python itself (`print`) mean it so."""
    if (getattr(function, "__module__", None) or "").partition(".")[0] in sys.stdlib_module_names:
        return False
    kinds = {p.kind for p in _parameters(function) if p.name != "self"}
    return bool(kinds) and kinds <= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def _meant(name: str, attribute: Any, points: Points) -> bool:
    """Say whether an attribute of a class is meant to be called at a point, be it misspelt or no method at all."""
    if name in points.names:
        return attribute is not None  # which is how a class does away with a method that it inherits
    if name.startswith("_") or name in vars(Hook):
        return False
    able = callable(attribute) or isinstance(attribute, staticmethod | classmethod | partialmethod)
    return able and (name.startswith(POINT_LIKE) or _misspelt(name, points))


def _misspelt(name: str, points: Points) -> bool:
    """Say whether a name is nearly that of a point; one that ends a point's (`save_checkpoint`) is a good name."""
    if any(point.endswith(f"_{name}") for point in points.names):
        return False
    return any(SequenceMatcher(None, name.lower(), point).ratio() > LIKENESS for point in points.names)


def _no_method(name: str, attribute: Any, points: Points) -> Fault | None:
    """Say what keeps a class's attribute from being called as a method at the point that it is named like."""
    if isinstance(attribute, staticmethod | classmethod):
        return "must be a plain method, which takes self", ""
    if not inspect.isfunction(attribute):
        return f"must be a plain method, not a {type(attribute).__name__}", "def it, and call what it holds from there"
    if _takes_anything(attribute):
        return TAKES_ANYTHING
    if name.startswith("around_"):
        return None if inspect.isgeneratorfunction(attribute) else ("must be a generator that yields once", "")
    if dead := _never_runs(attribute, name, points):
        return dead
    first = next(iter(inspect.signature(attribute).parameters), "")
    return None if first and first not in points[name].offers else ("must take self first", "")


def _never_runs(function: Callable[..., Any], point: str, points: Points) -> Fault | None:
    """Say of what is async, or a generator, that a call of it does nothing."""
    if not inspect.isroutine(function) and not isinstance(function, partial):
        function = type(function).__call__
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "is async, and the training loop awaits nothing: take the async away", ""
    if inspect.isgeneratorfunction(function):
        around = f"around_{point.partition('_')[2]}"
        hint = f'a method that yields may stand "{around}"' if around in points.names else ""
        return "has a yield, so that calling it would do nothing", hint
    return None


def _takes(function: Callable[..., Any], offers: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments that a point must fill: those without a default, and those that it offers by that name."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return tuple(
        p.name for p in _parameters(function) if p.kind not in variadic and (p.default is p.empty or p.name in offers)
    )


def _first_names(function: Callable[..., Any], count: int) -> list[str]:
    """Return the names of the parameters that so many arguments in a list fill."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in _parameters(function) if p.kind in positional][:count]


def _parameters(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
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


def _places(name: str, points: Points) -> list[tuple[str, Half]]:
    if name in points:
        return [(name, "whole")]
    pair = name.removeprefix("around_")
    if name.startswith("around_") and pair in points.pairs:
        return [(f"before_{pair}", "enter"), (points.pairs[pair], "exit")]
    return []


def _not_offered(called: str, takes: tuple[str, ...], point: str, offers: Sequence[str]) -> list[Fault]:
    return [
        (
            f'{called} asks for "{name}", which {point} does not offer',
            nearest(name, offers) or f"it offers {', '.join(offers)}",
        )
        for name in takes
        if name not in offers
    ]


def wrong_arguments(
    make: Callable[..., Any],
    args: Mapping[str, Any] | Sequence[Any],
    called: str,
    place: Callable[[str], Where],
    filled: Collection[str] = (),
) -> Iterator[Problem]:
    """Yield what is wrong with `args`, values of a file, for calling `make`: unknown and missing names, types, ranges.

    `place` gives the place of an argument by its name (or its place in a list, as text), and that of the call for an
    empty name; `filled` names the arguments that somebody else gives.
    """
    signature = _signature(make)
    if signature is None:
        return
    parameters = {p.name: p for p in signature}
    kinds = {p.kind for p in parameters.values()}
    named = {n: p for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    if isinstance(args, Mapping):
        given, places = dict(args), {name: name for name in args}
    else:
        firsts = _first_names(make, len(args))
        given, places = dict(zip(firsts, args, strict=False)), {name: str(k) for k, name in enumerate(firsts)}
        if len(args) > len(firsts) and inspect.Parameter.VAR_POSITIONAL not in kinds:
            hint = f"it takes {', '.join(named)}" if named else "it takes none"
            yield Problem(f"{called} takes {len(firsts)} arguments, and is given {len(args)}", place(""), hint)
    for name, value in given.items():
        if name in named:
            yield from _wrong_value(make, called, name, value, place(places[name]))
        elif inspect.Parameter.VAR_KEYWORD not in kinds:
            hint = nearest(name, named) or (f"it takes {', '.join(named)}" if named else "it takes none")
            yield Problem(f'{called} takes no argument "{name}"', place(places[name]), hint)
    missing = [n for n, p in named.items() if p.default is p.empty and n not in given and n not in filled]
    if missing:
        yield Problem(f"{called} needs the argument " + ", ".join(f'"{name}"' for name in missing), place(""))


def _wrong_value(make: Callable[..., Any], called: str, name: str, value: Any, where: Where) -> Iterator[Problem]:
    """Hold a value of the file against the annotation of its argument, as strictly as JSON would be: "3" is no 3."""
    try:
        argument_type(make, name).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        said, hint = wrong_value(error.errors(include_url=False)[0], f'{called}: "{name}"')
        yield Problem(said, where, hint)


def argument_type(make: Callable[..., Any], name: str) -> TypeAdapter[Any]:
    """Return what holds a value against the annotation of an argument of a class or function."""
    while isinstance(make, partial):
        make = make.func
    function = vars(make).get("__init__", make) if isinstance(make, type) else make
    if not isinstance(make, type) and not inspect.isroutine(make):
        function = type(make).__call__  # an object that can be called
    return _type_of(function, name)


@cache
def _type_of(function: Callable[..., Any], name: str) -> TypeAdapter[Any]:
    only = SimpleNamespace(__annotations__={name: getattr(function, "__annotations__", {}).get(name, Any)})
    try:
        annotation = typing.get_type_hints(only, getattr(function, "__globals__", {}), include_extras=True)[name]
    except NameError:
        annotation = Any  # its module imports the type for type checkers alone
    return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
