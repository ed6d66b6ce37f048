"""Hints to hooks that are written for another framework: what its names are called here.

Such a hook would fail in silence: an argument with a default keeps it, and a method that is named
like no point is never called. The names come from the adapters. They are loaded only for a hook
with a name that hookflow does not know.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from types import FunctionType
from typing import Any

from hookflow.graph.points import POINT_LIKE, Points
from hookflow.hooks.adapter import AdaptedHook, FrameworkNames, get_package_name
from hookflow.hooks.adapter_registry import find_entries_of_bases, load_adapter, load_all_adapters
from hookflow.hooks.arguments import parameters_of
from hookflow.hooks.pytorch_arguments import PYTORCH_ARGUMENTS

Issue = tuple[str, str]
"""A problem and a hint."""

ORDER_ATTRIBUTES = ("priority",)
"""Class attributes by which frameworks order hooks; hookflow orders them by phases and edges."""

EVENT_LIKE = ("_started", "_completed")
"""How names of Ignite's events end."""

PLAIN_HOOK_HINT = "a hook here is any class with methods named like points: hookflow explain points"


def find_foreign_class(hook: type, points: Points, helpers: Collection[str] = ()) -> Issue | None:
    """Return that a class is a hook of another framework.

    Its base class shows it, or its members and arguments. The names of its `helpers` say nothing.
    None if it is no such hook.
    """
    if issubclass(hook, AdaptedHook):
        return None
    return _find_foreign_base(hook, points) or _find_foreign_members(hook, points, helpers)


def _find_foreign_base(hook: type, points: Points) -> Issue | None:
    for entry in find_entries_of_bases(hook):
        names = load_adapter(entry.place).names
        for base in hook.__mro__:
            if base.__name__ == names.base and get_package_name(base) in names.packages:
                message = (
                    f"{hook.__name__} is a hook of {names.framework}"
                    f" ({base.__module__}.{base.__name__})"
                )
                members = _list_own_members(hook, names.packages)
                translated = _translate_members(members, names, points)
                return message, format_translation(translated) or PLAIN_HOOK_HINT
    return None


def _list_own_members(hook: type, packages: Collection[str]) -> dict[str, Any]:
    """Return the members of a class that no class of these packages defines."""
    members: dict[str, Any] = {}
    for base in hook.__mro__:
        if get_package_name(base) not in packages:
            members.update(vars(base))
    return members


def _find_foreign_members(hook: type, points: Points, helpers: Collection[str]) -> Issue | None:
    members = inspect.getmembers_static(hook)
    public = []
    for name, member in members:
        if not name.startswith("_") and name not in helpers:
            public.append((name, member))
    unknown = {name: member for name, member in public if _is_unknown(name, member, points)}
    if not unknown:
        return None
    best_names: FrameworkNames | None = None
    best_translation: dict[str, str] = {}
    for adapter in load_all_adapters():
        translated = _translate_members(unknown, adapter.names, points)
        if len(translated) > len(best_translation):
            best_names = adapter.names
            best_translation = translated
    if best_names is None:
        return None
    return _describe(hook.__name__, best_names, best_translation), format_translation(
        best_translation
    )


def find_foreign_methods(hook: type, points: Points) -> Issue | None:
    """Return that a class with no method named like a point is a hook of another framework.

    Names such as "batch_end" are ordinary words: a method counts if it takes one of the framework's
    arguments as well. None if the class has no such method.
    """
    best_names: FrameworkNames | None = None
    best_translation: dict[str, str] = {}
    for adapter in load_all_adapters():
        names = adapter.names
        methods = {
            name: member
            for name, member in inspect.getmembers_static(hook)
            if name in names.members and _takes_any(member, names.arguments)
        }
        translated = _translate_members(methods, names, points)
        if len(translated) > len(best_translation):
            best_names = names
            best_translation = translated
    if best_names is None:
        return None
    message = _describe(hook.__name__, best_names, best_translation)
    return message, format_translation(best_translation)


def _takes_any(member: object, arguments: Collection[str]) -> bool:
    if not isinstance(member, FunctionType):
        return False
    return any(parameter.name in arguments for parameter in parameters_of(member)[1:])


def _is_unknown(name: str, member: object, points: Points) -> bool:
    """Say whether a member of a class may be a name of another framework."""
    if not isinstance(member, FunctionType):
        return name in ORDER_ATTRIBUTES
    if name in points.names:
        return bool(find_unknown_arguments(name, member, points))
    return name.startswith(POINT_LIKE) or name.endswith(EVENT_LIKE)


def find_unknown_arguments(point: str, method: Callable[..., Any], points: Points) -> list[str]:
    """Return the arguments of a method that its point does not offer.

    There are none where PyTorch gives them by position.
    """
    if point in PYTORCH_ARGUMENTS:
        return []
    offers: Collection[str] = ("run",)  # of an around
    if point in points:
        offers = points[point].offers
    own_parameters = parameters_of(method)[1:]
    return [each.name for each in own_parameters if each.name not in offers]


def _translate_members(
    members: Mapping[str, Any], names: FrameworkNames, points: Points
) -> dict[str, str]:
    """Return the framework's names among the members of a class and arguments, with hookflow's."""
    translated: dict[str, str] = {}
    for name, member in members.items():
        is_method = isinstance(member, FunctionType)
        if name not in points.names:
            if name not in names.members or not (is_method or isinstance(member, int | str)):
                continue
            translated[name] = names.members[name]
        if not is_method:
            continue
        for argument in find_unknown_arguments(name, member, points):
            if argument in names.arguments:
                translated[argument] = names.arguments[argument]
    return translated


def find_foreign_arguments(
    function: Callable[..., Any],
    called: str,
    filled: Collection[str] = (),
    *,
    required: bool = False,
) -> Issue | None:
    """Return that a plain function has arguments of another framework; None if it has none.

    Arguments with a default count, and with `required` the others, too. The `filled` ones say
    nothing.
    """
    candidates = []
    for parameter in parameters_of(function):
        if parameter.name in filled:
            continue
        if required or parameter.default is not parameter.empty:
            candidates.append(parameter.name)
    if not candidates:
        return None
    names: FrameworkNames | None = None
    unmistakable: set[str] = set()
    for adapter in load_all_adapters():
        unmistakable.update(adapter.names.unmistakable)
        if names is None and not unmistakable.isdisjoint(candidates):
            names = adapter.names
    if names is None:
        return None
    translated = {}
    for name in candidates:
        if name in unmistakable:
            translated[name] = translate_argument(name)
    return _describe(called, names, translated), format_translation(translated)


def translate_argument(argument: str) -> str:
    """Return what an argument of another framework is called here; "" where none has it."""
    for adapter in load_all_adapters():
        if argument in adapter.names.arguments:
            return adapter.names.arguments[argument]
    return ""


def translate_point(name: str) -> str:
    """Return a hint for a name of another framework that means a point; "" where it is none.

    Ignite's stand with or without `Events.`, in capitals or small.
    """
    bare = name.removeprefix("Events.")
    if bare.isupper():
        bare = bare.lower()
    for adapter in load_all_adapters():
        names = adapter.names
        ours = names.members.get(bare) or names.events.get(bare)
        if ours:
            return f"of {names.framework}; {format_translation({name: ours})}"
    return ""


def format_translation(names: Mapping[str, str]) -> str:
    """Return in one line what each of these names is here; "" for no names."""
    if not names:
        return ""
    pairs = [f"{name} → {ours or 'nothing'}" for name, ours in names.items()]
    return "in hookflow: " + "; ".join(pairs)


def _describe(called: str, names: FrameworkNames, found: Iterable[str]) -> str:
    return f"{called} has names of {names.framework}, which mean nothing here: {', '.join(found)}"
