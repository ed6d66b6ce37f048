"""The interface of adapters, by which hooks of another framework run unmodified.

A hook that cannot run is explained.

An adapter is a class derived from `HookAdapter`. A package registers it as an entry point, whose
name is both the prefix of `use` and the framework's package::

    [project.entry-points."hookflow.adapters"]
    composer = "hookflow_composer:ComposerAdapter"

`use = "composer:SpeedMonitor"` then asks the adapter for the hook of that name, and a class with a
base of the package `composer` is shown to it. From what the adapter reads, `adapt_class` makes a
class derived from `AdaptedHook`: a hook like any other, for the check, the order, the times and the
checkpoints.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import Parameter, Signature
from typing import Any, ClassVar, TypeGuard

from hookflow.errors import Problem, UserError, Where
from hookflow.graph.plan import EdgeSpec, Nodes, Phase
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.capabilities import HookCapabilities, find_wrong_capabilities
from hookflow.hooks.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkNames:
    """The names of a framework with those of hookflow.

    They are for the hints to a hook that cannot run as it is. The value of a name that has no
    counterpart is "".
    """

    framework: str
    """The name of the framework in messages."""
    packages: tuple[str, ...]
    """The packages in which its base class stands."""
    base: str = ""
    """The name of the base class of its hooks; "" if it has none."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Arguments of its hooks. Equal names are left out."""
    unmistakable: tuple[str, ...] = ()
    """The arguments that a function hardly takes from a pipeline file."""
    members: Mapping[str, str] = field(default_factory=dict)
    """Methods of its hooks, and the attribute `priority`.

    The methods begin like points (`on_`, `before_`, `after_`), or end like events (`_started`,
    `_completed`).
    """
    events: Mapping[str, str] = field(default_factory=dict)
    """Further names of its points, which a class of the user's own may have for something else."""


class AdaptedHook(Hook):
    """A hook of hookflow that calls an object of another framework's class.

    A subclass makes the object in its constructor, and calls it in `fire`. `adapt_class` gives it a
    method for each point.
    """

    kind: ClassVar[type]
    """The class of the other framework."""
    adapter: ClassVar["HookAdapter"]

    def fire(self, point: str, run: Run, offered: dict[str, Any]) -> None:
        """Call what the other framework calls at a point.

        `offered` has the arguments that the point gives.
        """
        raise NotImplementedError


AdaptedClasses = Mapping[str, type[AdaptedHook]]
"""Classes of adapted hooks, by the names of the hooks in a pipeline."""
EdgesByHook = Mapping[str, Sequence[EdgeSpec]]
"""Edges, by the name of the hook that fires after those which they name."""
SlotNames = Mapping[str, tuple[str, ...]]
"""Slots, by the name of a method."""
OutsideWrites = tuple[str, ...] | bool
"""The writes of a hook outside the run directory, as `HookCapabilities.writes_outside` says it."""


@dataclass(frozen=True, slots=True)
class SlotsByPoint:
    """The slots that a class reads and writes, by point."""

    reads: SlotNames = field(default_factory=dict)
    writes: SlotNames = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedClassSpec:
    """The facts that an adapter has read from a class of its framework."""

    base: type[AdaptedHook]
    """The class of the hooks that call objects of the class read."""
    arguments: Mapping[str, tuple[str, ...]]
    """By point at which the hook fires: the arguments that it takes of those the
    point offers, besides the run.
    """
    reads: Slots | None = None
    """The slots that the hook reads, by point; None: those of `base`."""
    writes: Slots | None = None
    """The slots that the hook writes, by point; None: those of `base`."""
    phase: Phase = "normal"
    capabilities: HookCapabilities | None = None
    """The effects of the hook beside firing. None: those that `base` declares."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Further class attributes that `base` needs."""


class HookAdapter:
    """An adapter of one framework; the registry makes one object of it when it is first needed.

    An adapter that only has `names` translates them in messages, and runs no hook.
    """

    prefix: ClassVar[str] = ""
    """The text before the colon: `use = "prefix:Name"`."""
    names: ClassVar[FrameworkNames]

    def find(self, name: str, where: Where | None) -> type:
        """Return the framework's class that `use = "prefix:name"` means.

        Raises UserError where there is none.
        """
        raise NotImplementedError

    def claims(self, kind: type) -> bool:
        """Say whether `read` can read a class. It must not import the framework for that.

        The adapter is given a class with a base in the framework's package. It is also given one
        with a method that is named like a point and takes an argument that the point does not
        offer.
        """
        return False

    def read(self, kind: type, where: Where | None) -> AdaptedClassSpec:
        """Read a class that the adapter claims, without an object of it.

        Raises UserError at `where` for a class that cannot run here.
        """
        raise NotImplementedError

    def edges(self, nodes: Nodes, hooks: AdaptedClasses) -> EdgesByHook:
        """Return edges by the name of a hook, which each name a hook that fires before it.

        `hooks` are the adapter's own hooks of the pipeline, `nodes` are all of its hooks.
        """
        return {}

    def problems(self, nodes: Nodes, hooks: AdaptedClasses) -> Iterable[Problem]:
        """Return what is wrong with the adapter's own `hooks` among all of the pipeline."""
        return ()


def adapt_class(adapter: HookAdapter, kind: type, where: Where | None) -> type[AdaptedHook]:
    """Return the hook class that calls objects of a class which the adapter claims.

    It has the name, the documentation and the constructor's signature of the class. Raises
    UserError at `where` for a class that cannot run here.
    """
    wrong = list(find_wrong_capabilities(kind))
    if wrong:
        raise UserError(Problem(message, where, hint) for message, hint in wrong)
    spec = adapter.read(kind, where)
    members: dict[str, Any] = {
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
        "__signature__": inspect.signature(kind),
        "kind": kind,
        "adapter": adapter,
        "phase": spec.phase,
    }
    if spec.capabilities is not None:
        members["capabilities"] = spec.capabilities
    if spec.reads is not None:
        members["reads"] = spec.reads
    if spec.writes is not None:
        members["writes"] = spec.writes
    members.update(spec.attributes)
    for point, arguments in spec.arguments.items():
        members[point] = _make_method(point, arguments)
    return type(kind.__name__, (spec.base,), members)


def _make_method(point: str, arguments: Sequence[str]) -> Callable[..., None]:
    """Return a method named like a point, which takes the run and these arguments."""

    def method(self: AdaptedHook, run: Run, *values: Any) -> None:
        self.fire(point, run, dict(zip(arguments, values, strict=True)))

    names = ["self", "run", *arguments]
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    method.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    method.__name__ = point
    method.__qualname__ = point
    return method


def is_class(thing: object) -> TypeGuard[type]:
    """Say whether something is a class.

    The object itself is not asked, since it may raise or lie.
    """
    return issubclass(type(thing), type)


def get_bases(kind: type) -> tuple[type, ...]:
    """Return a class and all its bases, without asking the class itself, which may raise."""
    bases: tuple[type, ...] = type.__getattribute__(kind, "__mro__")
    return bases


def list_own_names(kind: type, is_framework_base: Callable[[type], bool]) -> set[str]:
    """Return the names that a class and its bases define.

    Names of the framework's base class are left out.
    """
    names: set[str] = set()
    for base in get_bases(kind):
        if base is not object and not is_framework_base(base):
            names.update(vars(base))
    return names


def get_module_name(kind: type) -> str:
    """Return the name of the module of a class; "" where it has taken that away."""
    module = type.__getattribute__(kind, "__module__")
    return str(module or "")


def get_package_name(kind: type) -> str:
    """Return the name of the top-level package of a class."""
    return get_module_name(kind).partition(".")[0]


def read_slots(
    kind: type, packages: str | tuple[str, ...], known: Mapping[str, SlotsByPoint]
) -> SlotsByPoint:
    """Return the slots that a class reads and writes.

    They are those `known` of its nearest base with such an entry.

    `known` has names of classes of the framework's `packages`.
    """
    for base in get_bases(kind):
        if get_module_name(base).startswith(packages) and base.__name__ in known:
            return known[base.__name__]
    return SlotsByPoint()


def read_adapted_capabilities(
    kind: type,
    base: type[AdaptedHook],
    packages: str | tuple[str, ...],
    known: Mapping[str, OutsideWrites],
) -> HookCapabilities:
    """Return the capabilities of the hooks that call objects of a class.

    They are those of `base`, and its own. A class may declare `capabilities` as a hook of hookflow
    does. Its writes outside the run directory are otherwise `known` of its nearest base in the
    framework's `packages`.
    """
    blocker = base.capabilities.offload_blocker
    for parent in get_bases(kind):
        declared = vars(parent).get("capabilities")
        if isinstance(declared, HookCapabilities):
            return replace(declared, offload_blocker=declared.offload_blocker or blocker)
        if parent.__name__ in known and parent.__module__.startswith(packages):
            return replace(base.capabilities, writes_outside=known[parent.__name__])
    return base.capabilities


def group_by_adapter(
    hooks: Mapping[str, object],
) -> dict[HookAdapter, dict[str, type[AdaptedHook]]]:
    """Return the adapted ones among the hooks of a pipeline, by adapter and by name."""
    groups: dict[HookAdapter, dict[str, type[AdaptedHook]]] = {}
    for name, hook in hooks.items():
        if is_adapted(hook):
            group = groups.setdefault(hook.adapter, {})
            group[name] = hook
    return groups


def is_adapted(hook: object) -> TypeGuard[type[AdaptedHook]]:
    """Say whether a hook is a class that `adapt_class` has made."""
    return is_class(hook) and AdaptedHook in get_bases(hook)


def find_adapter_problems(nodes: Nodes, hooks: Mapping[str, object]) -> Iterator[Problem]:
    """Yield what the adapters of a pipeline's hooks find wrong with these.

    `hooks` are those that have nodes.
    """
    for adapter, adapted in group_by_adapter(hooks).items():
        yield from adapter.problems(nodes, adapted)


def find_adapter_edges(nodes: Nodes, hooks: Mapping[str, object]) -> dict[str, Sequence[EdgeSpec]]:
    """Return the edges that the adapters of hooks contribute, by the hook that fires after."""
    result: dict[str, Sequence[EdgeSpec]] = {}
    for adapter, adapted in group_by_adapter(hooks).items():
        result.update(adapter.edges(nodes, adapted))
    return result
