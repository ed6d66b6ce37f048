"""Inspection of a hook class or function without an instance.

It finds points, arguments and slots, and a description.
"""

import inspect
import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, partial, partialmethod
from itertools import permutations
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema

from hookflow.errors import Problem, UserError, nearest
from hookflow.graph.plan import PHASES, RANK_CHOICES, Half
from hookflow.graph.points import POINT_LIKE, Points
from hookflow.graph.slots import Verb
from hookflow.hooks.arguments import VARIADIC_KINDS, argument_type, first_names, parameters_of
from hookflow.hooks.base import Hook
from hookflow.hooks.capabilities import (
    find_wrong_capabilities,
    is_name_collection,
    read_capabilities,
)
from hookflow.hooks.foreign_names import (
    find_foreign_arguments,
    find_foreign_class,
    find_foreign_methods,
    format_translation,
    translate_argument,
    translate_point,
)
from hookflow.hooks.pytorch_arguments import PYTORCH_ARGUMENTS, match_pytorch_order
from hookflow.hooks.registry import NotImported
from hookflow.pipeline.problems import type_words
from hookflow.pipeline.source_map import as_toml
from hookflow.text import first_paragraph

MISSPELLING_RATIO = 0.78
"""The ratio of difflib from which on a method's name is a misspelt name of a point.

"forward_post" is one, and "save_model" is not.
"""

Issue = tuple[str, str]
"""A problem and a hint; the caller knows the place."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a hook at a point; `name` is empty when the hook is a plain function.

    `takes` is what it is given of what the point offers; `names` are those of its own arguments for
    that.
    """

    point: str
    name: str
    half: Half
    takes: tuple[str, ...]
    names: tuple[str, ...] = ()


def read_summary(hook: Callable[..., Any]) -> str:
    """Return the first paragraph of the hook's docstring as one line.

    It is empty where the docstring is that of `Hook`, which says nothing of the hook.
    """
    described = hook.func if isinstance(hook, partial) else hook
    docstring = inspect.getdoc(described) or ""
    if docstring == inspect.getdoc(Hook):
        return ""
    return first_paragraph(docstring)


def find_methods(hook: type, points: Points) -> tuple[list[Method], list[Issue]]:
    """Return the methods of a hook's class that belong to points, and what is wrong with them."""
    helpers = [
        name for name, _ in inspect.getmembers_static(hook) if _is_helper(hook, name, points)
    ]
    foreign = find_foreign_class(hook, points, helpers)
    if foreign is not None:
        return [], [foreign]
    result: list[Method] = []
    issues: list[Issue] = []
    for name, attribute in inspect.getmembers_static(hook):
        if name in helpers or not _is_meant_for_point(name, attribute, points):
            continue
        called = f"{hook.__name__}.{name}"
        places = find_places_of_method(name, points)
        if not places:
            message = f"{called} is named like a point, but there is no such point"
            way_out = (
                f'a helper is called "_{name}", or its class lists its points: points = ("…",)'
            )
            near = nearest(name, points.names)
            issues.append((message, f"{near} {way_out}".strip()))
            continue
        offers = points[places[0][0]].offers
        wrong = _no_method(name, attribute, points)
        if wrong:
            issues.append((f"{called} {wrong[0]}", wrong[1]))
            continue
        names = _names(attribute, offers)[1:]
        takes = (
            match_pytorch_order(parameters_of(attribute)[1:], names, places[0][0], points) or names
        )
        issues += _not_offered(called, takes, places[0][0], offers)
        result += (Method(point, name, half, takes) for point, half in places)
    if not result and not issues and not is_callable_class(hook) and hook is not NotImported:
        never_fires = f"{hook.__name__} has no method named like a point, so it would never fire"
        issues.append(find_foreign_methods(hook, points) or (never_fires, ""))
    return result, issues


def read_slots(
    hook: Callable[..., Any], kind: Verb, names: Collection[str]
) -> tuple[dict[str, tuple[str, ...]], list[Issue]]:
    """Return the slots that methods of `names` read or write, and what is wrong with them.

    The class states the slots.
    """
    declared = getattr(hook, kind, ())
    if isinstance(declared, Mapping):
        by_method = declared
    else:
        by_method = dict.fromkeys(names, declared)
    called = f"{getattr(hook, '__name__', repr(hook))}.{kind}"
    issues = []
    for name in by_method:
        if name not in names and hook is not NotImported:
            issues.append(
                (f'{called} names the unknown method "{name}"', nearest(str(name), names))
            )
    if not all(map(is_name_collection, by_method.values())):
        return {}, [*issues, (f'{called} must hold names of slots, as {kind} = {{"model"}}', "")]
    return {name: tuple(sorted(touched)) for name, touched in by_method.items()}, issues


def names_of(hook: Callable[..., Any], key: str) -> tuple[str, ...]:
    """Return the names that an attribute holds.

    There are none if it holds anything else, which `find_place_issues` reports.
    """
    names = getattr(hook, key, ())
    if is_name_collection(names):
        return tuple(names)
    return ()


def points_for(hook: Callable[..., Any], args: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the points of a hook with these arguments; None: wherever it has a method."""
    if (
        isinstance(hook, type)
        and issubclass(hook, Hook)
        and is_name_collection(chosen := hook.points_for(args))
    ):
        return tuple(chosen or ())
    if getattr(hook, "points", None) is None:
        return None
    return names_of(hook, "points")


def find_place_issues(hook: Callable[..., Any], points: Points) -> Iterator[Issue]:
    """Yield what is wrong with a hook's statements on its place: phase, points and edges."""
    called = getattr(hook, "__name__", type(hook).__name__)
    for key, known in (("phase", PHASES), ("ranks", RANK_CHOICES)):
        stated = getattr(hook, key, getattr(Hook, key))
        if stated not in known:
            yield (
                f"{called}.{key} must be one of {', '.join(known)}, not {stated!r}",
                nearest(str(stated), known),
            )
    for kind in ("after", "before", "requires", "points", "modules", "parameters", "settable"):
        names = getattr(hook, kind, ())
        if not _is_for_hookflow(hook, kind, names, points):
            continue
        if not is_name_collection(names):
            yield f'{called}.{kind} must hold names, as {kind} = ("…",)', ""
        elif kind == "points":
            yield from _find_points_without_method(hook, called, names, points)


def _is_for_hookflow(hook: Callable[..., Any], kind: str, value: object, points: Points) -> bool:
    """Return whether the value of an attribute is meant for hookflow."""
    if inspect.isroutine(value):  # a method of the name says nothing: `nn.Module.modules`
        return False
    if kind == "parameters":  # else it is what a class of the user's calls its own parameters, say
        picking = []
        for point in points:
            if point.picks == kind:
                picking.append(point.name)
        return any(callable(getattr(hook, name, None)) for name in picking)
    if kind == "points":
        return value is not None and isinstance(hook, type)
    return True


def _find_points_without_method(
    hook: Callable[..., Any], called: str, names: Iterable[str], points: Points
) -> Iterator[Issue]:
    """Yield an issue for each of the points that a class lists and has no method for."""
    for name in names:
        if name in points.names and (hasattr(hook, name) or hook is NotImported):
            continue
        methods_it_has = [known for known in points.names if hasattr(hook, known)]
        hint = translate_point(name) or nearest(name, methods_it_has)
        yield f'{called}.points names "{name}", for which it has no method', hint


def half_a_state(hook: type) -> Iterator[Issue]:
    """Yield the method that a hook with a state lacks, or has from `Hook`, which keeps nothing."""
    for has, lacks in permutations(("state_dict", "load_state_dict")):
        if _has_own_method(hook, has) and not _has_own_method(hook, lacks):
            yield f"{hook.__name__} defines {has}() and no {lacks}()", "a resume needs both"


def _has_own_method(hook: type, name: str) -> bool:
    """Say whether a class has a method that is not that of `Hook`."""
    return getattr(hook, name, None) not in (None, getattr(Hook, name))


def is_callable_class(hook: type) -> bool:
    """Say whether the objects of a class can be called, as plain functions are."""
    return any("__call__" in vars(base) for base in hook.__mro__)


def call_at(
    hook: Callable[..., Any],
    point: str,
    points: Points,
    args: Mapping[str, Any] | Sequence[Any],
    offered: Collection[str],
) -> tuple[Method, list[Issue]]:
    """Return a call of a plain function or an object of a class as a hook's method at `point`.

    A function takes no argument from the point that `args` give it. `offered` are the arguments
    that all points of the hook offer: a list fills the others.
    """
    function = hook
    called = getattr(hook, "__name__", repr(hook))
    if isinstance(args, Mapping):
        provided: Collection[str] = args
    else:
        provided = first_names(function, len(args), offered)
    in_order = isinstance(args, Mapping) or not args  # a list fills by position, too
    if isinstance(hook, type):  # whose arguments are those of its constructor
        function = hook.__call__
        provided = ()
        in_order = True
    first = int(isinstance(hook, type))
    offers = points[point].offers
    names = tuple(name for name in _names(function, offers)[first:] if name not in provided)
    takes = (
        in_order and match_pytorch_order(parameters_of(function)[first:], names, point, points)
    ) or names
    wrong = filter(
        None, (_find_generator_issue(function, point, points), _find_catch_all_issue(function))
    )
    issues = [(f"{called} {message}", hint) for message, hint in wrong]
    foreign = find_foreign_arguments(function, called, provided)
    if foreign is not None:
        issues.append(foreign)
    issues += _not_offered(called, takes, point, offers)
    return Method(point, "", "whole", takes, names), issues


def _find_catch_all_issue(function: Callable[..., Any]) -> Issue | None:
    if (getattr(function, "__module__", None) or "").partition(".")[0] in sys.stdlib_module_names:
        return None
    kinds = set()
    for p in parameters_of(function):
        if p.name != "self":
            kinds.add(p.kind)
    if not kinds or kinds - VARIADIC_KINDS:
        return None
    hint = "a decorator keeps the names of what it wraps by functools.wraps"
    return "has only *args / **kwargs; name the arguments", hint


def _is_meant_for_point(name: str, attribute: Any, points: Points) -> bool:
    """Say whether an attribute of a class is meant to be called at a point.

    It may be misspelt, or be no method at all.
    """
    if name in points.names:
        # A class assigns None to remove a method that it inherits.
        return attribute is not None
    if name.startswith("_") or name in vars(Hook):
        return False
    able = callable(attribute) or isinstance(attribute, staticmethod | classmethod | partialmethod)
    return able and (name.startswith(POINT_LIKE) or _is_misspelt(name.lower(), points))


def _is_helper(hook: type, name: str, points: Points) -> bool:
    """Say whether a method that is named like a point is none.

    It is none if its class, or one derived from it, lists its points. The points that a base lists
    say nothing of a method that is added below it.
    """
    if name in points.names:
        return False
    for kind in hook.__mro__:
        if kind is not Hook and is_name_collection(vars(kind).get("points")):
            return True
        if name in vars(kind):
            return False
    return False


def _is_misspelt(name: str, points: Points) -> bool:
    """Say whether a name is nearly that of a point.

    A name that ends a point's (`save_checkpoint`) is a good name.
    """
    if any(point.endswith(f"_{name}") for point in points.names):
        return False
    return bool(get_close_matches(name, points.names, 1, MISSPELLING_RATIO))


def _no_method(name: str, attribute: Any, points: Points) -> Issue | None:
    if isinstance(attribute, staticmethod | classmethod):
        return "must be a plain method, which takes self", ""
    if not inspect.isfunction(attribute):
        return (
            f"must be a plain method, not a {type(attribute).__name__}",
            "def it, and call what it holds from there",
        )
    anything = _find_catch_all_issue(attribute)
    if anything:
        return anything
    if name.startswith("around_"):
        if inspect.isgeneratorfunction(attribute):
            return None
        return ("must be a generator that yields once", "")
    dead = _find_generator_issue(attribute, name, points)
    if dead:
        return dead
    first = next(iter(inspect.signature(attribute).parameters), "")
    if first and first not in points[name].offers:
        return None
    return ("must take self first", "")


def _find_generator_issue(function: Callable[..., Any], point: str, points: Points) -> Issue | None:
    if not inspect.isroutine(function) and not isinstance(function, partial):
        function = type(function).__call__
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "is async: async hooks are not supported", ""
    if inspect.isgeneratorfunction(function):
        around = f"around_{point.partition('_')[2]}"
        hint = ""
        if around in points.names:
            hint = f'a method that yields may stand "{around}"'
        return "has a yield, so that calling it would do nothing", hint
    return None


def _names(function: Callable[..., Any], offers: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments that a point must fill.

    These have no default, or the point offers them by that name.
    """
    names = []
    for parameter in parameters_of(function):
        if parameter.kind in VARIADIC_KINDS:
            continue
        if parameter.default is parameter.empty or parameter.name in offers:
            names.append(parameter.name)
    return tuple(names)


def find_places_of_method(name: str, points: Points) -> list[tuple[str, Half]]:
    """Return the points where a method of this name is called.

    An `around` is called at two. There are none if there is no such point.
    """
    if name in points:
        return [(name, "whole")]
    both = points.find_points_of_around(name)
    if both is None:
        return []
    opening, closing = both
    return [(opening, "enter"), (closing, "exit")]


def _not_offered(
    called: str, takes: Iterable[str], point: str, offers: Sequence[str]
) -> Iterator[Issue]:
    orders = [f"({', '.join(order)})" for order in PYTORCH_ARGUMENTS.get(point, ())]
    offered = f"it offers {', '.join(offers)}"
    if orders:
        offered += f"; by position, as PyTorch does: {' or '.join(orders)}"
    for name in takes:
        if name not in offers:
            translated = translate_argument(name)
            if translated:
                hint = format_translation({name: translated})
            else:
                hint = nearest(name, offers)
            yield f'{called} asks for "{name}", which {point} does not offer', hint or offered


class Inspection:
    """A hook's class or function as it declares itself, without an object of it.

    It has `methods`, `issues`, and its words.

    `names(key)` are the names that an attribute holds; `slots(verb)` the slots by method, and what
    is wrong with them.
    """

    def __init__(self, hook: Callable[..., Any], points: Points) -> None:
        self.hook = hook
        self.about = read_summary(hook)
        self.capabilities = read_capabilities(hook)
        self.methods: list[Method] = []
        self.issues: list[Issue] = []
        if isinstance(hook, type):
            self.methods, self.issues = find_methods(hook, points)
        self.issues += find_place_issues(hook, points)
        self.issues += find_wrong_capabilities(hook)
        if isinstance(hook, type):
            self.issues += half_a_state(hook)
        self.method_names = dict.fromkeys([method.name for method in self.methods] or [""])
        self.names = cache(partial(names_of, hook))
        self.slots = cache(partial(read_slots, hook, names=self.method_names))


EXAMPLE_VALUES: tuple[Any, ...] = (1.0, 1, 0.5, "…", True, ["…"], {})
"""Values for an argument that must be given; the first that is allowed is as good as any."""

COMMON_ARGUMENTS = {"name", "input"}
"""Arguments that functions of all kinds take: one that takes nothing else is hardly a hook."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a hook, in words.

    `default` is None where it must be given, and `example` is a value that may be.

    `shown` says whether the example of the whole hook gives it: it must be given, or its
    declaration has examples.
    """

    name: str
    kind: str
    about: str
    default: str | None
    example: str
    shown: bool


class Description(Inspection):
    """A hook's class, or a plain function, as `hookflow explain` shows it.

    Raises UserError when it can be no hook.

    `methods` are in the order of a run, an `around` at its first half; `bound` names those that
    fire unless the file says otherwise, `elsewhere` says where the others do. `reads` and `writes`
    are slots by the method's name. `place` holds what it states of its place among others. `fits`
    is a point whose arguments are enough for a function.
    """

    def __init__(self, hook: Callable[..., Any], points: Points) -> None:
        super().__init__(hook, points)
        is_class = isinstance(hook, type)
        if is_class and not self.methods:
            raise UserError(Problem(message, hint=hint) for message, hint in self.issues)
        order = {point.name: k for k, point in enumerate(points)}
        once = [method for method in self.methods if method.half != "exit"]
        self.methods = sorted(once, key=lambda method: order[method.point])
        wanted = points_for(hook, {})
        bound = [
            method
            for method in self.methods
            if wanted is None or {method.point, method.name} & set(wanted)
        ]
        self.bound = [method.name for method in bound]
        self.elsewhere = "where `points` says"
        if is_class and _has_variable_points(hook):
            self.elsewhere = "where an argument or `points` says"
        self.fits = ""
        if not is_class:
            self.fits = find_fitting_point(hook, points) or ""
        bound_points = [method.point for method in bound]
        if self.fits:
            bound_points = [self.fits]
        picking = dict.fromkeys(points[name].picks for name in bound_points)
        picks = {key: self.names(key) for key in picking if key}
        self._needs = [key for key, globs in picks.items() if not globs]
        self.reads, wrong_reads = self.slots("reads")
        self.writes, wrong_writes = self.slots("writes")
        self.place = self._read_stated_place(picks)
        offered: set[str] = set()
        if not is_class:
            for point in points:
                offered.update(point.offers)
        self.arguments = list(_iter_arguments(hook, offered))
        self.issues += [*wrong_reads, *wrong_writes]
        if not is_class:
            foreign = find_foreign_arguments(
                hook, getattr(hook, "__name__", repr(hook)), required=True
            )
            if foreign is not None:
                self.issues.insert(0, foreign)

    def _read_stated_place(self, picks: Iterable[str]) -> dict[str, str]:
        """Return the hook's statements on its place, by key.

        Statements that every hook makes are left out.
        """
        stated = {
            "phase": str(getattr(self.hook, "phase", "normal")),
            "ranks": str(getattr(self.hook, "ranks", "all")),
        }
        for key in ("after", "before", "requires", *picks):
            stated[key] = ", ".join(self.names(key))
        return {key: value for key, value in stated.items() if value not in ("normal", "all", "")}

    def as_toml(self, name: str, use: str) -> str:
        """Return a table for a pipeline file.

        It has all that must be given, and what has an example.
        """
        lines = [f"[hooks.{name}]", f"use = {as_toml(use)}"]
        if self.fits:
            lines.append(f"points = [{as_toml(self.fits)}]")
        lines += (f'{key} = ["*"]' for key in self._needs)
        provided = []
        for argument in self.arguments:
            if argument.shown:
                provided.append(f"{argument.name} = {argument.example}")
        return "\n".join(lines + ([f"args = {{ {', '.join(provided)} }}"] if provided else []))


def _has_variable_points(hook: Any) -> bool:
    """Return whether a class, or a base of it, chooses its points by its arguments."""
    return any("points_for" in vars(base) for base in hook.__mro__ if base is not Hook)


def find_fitting_point(function: Callable[..., Any], points: Points) -> str | None:
    """Return a point that offers all that a plain function must be given.

    It is None when there is none.
    """
    needed = set()
    for p in parameters_of(function):
        if p.kind not in VARIADIC_KINDS and p.default is p.empty:
            needed.add(p.name)
    if needed and needed <= COMMON_ARGUMENTS:
        return None
    seldom_last = sorted(points, key=lambda point: point.kind in ("global", "state"))
    usual = ["after_train_epoch", "after_train_iter"]
    usual += [point.name for point in seldom_last]
    for name in usual:
        if needed <= set(points[name].offers):
            return name
    return None


def _iter_arguments(hook: Callable[..., Any], offered: set[str]) -> Iterator[Argument]:
    for parameter in parameters_of(hook):
        if parameter.kind in VARIADIC_KINDS or parameter.name in offered:
            continue
        kind = argument_type(hook, parameter.name)
        schema: Mapping[str, Any] = {}
        # A type that no file could write has no schema, and neither has one that is not imported.
        with suppress(PydanticInvalidForJsonSchema, NameError):
            schema = kind.json_schema()
        has_default = parameter.default is not parameter.empty
        if parameter.default is None:
            default = ""
        else:
            default = as_toml(parameter.default)
        yield Argument(
            name=parameter.name,
            kind=type_words(schema) or "any value",
            about=str(schema.get("description", "")),
            default=default if has_default else None,
            example=as_toml(schema["enum"][0] if "enum" in schema else _example(kind, schema)),
            shown=not has_default or bool(schema.get("examples")),
        )


def _example(kind: TypeAdapter[Any], schema: Mapping[str, Any]) -> Any:
    for example in (*schema.get("examples", ()), *EXAMPLE_VALUES):
        with suppress(ValidationError, NameError):
            kind.validate_json(json.dumps(example), strict=True)
            return example
    return "…"
