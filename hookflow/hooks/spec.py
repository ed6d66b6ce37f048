"""A hook of a pipeline, found: its class or function, its arguments, and its declarations."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookflow.errors import Problem, UserError, Where
from hookflow.hooks.arguments import complete_arguments, parameters_of
from hookflow.hooks.capabilities import HookCapabilities, read_capabilities
from hookflow.hooks.inspection_errors import report_inspection_errors
from hookflow.hooks.registry import find_hook
from hookflow.pipeline.load import Loaded

FindHook = Callable[[str, Path, Where | None], Callable[..., Any]]
"""Returns what a `use` names, relative to a folder.

Raises UserError at the place where there is none.
"""


@dataclass(frozen=True, slots=True)
class HookSpec:
    """A hook of a pipeline, by its class or function; no object is made of it."""

    name: str
    make: Callable[..., Any]
    """The class or the function that `use` names.

    For a foreign class this is the class that its adapter has made.
    """
    args: Mapping[str, Any] | Sequence[Any]
    """The arguments that the file gives, with the values of references in their place."""
    where: Where
    """The place of its `use`."""
    capabilities: HookCapabilities
    """The capabilities that it declares with these arguments."""

    def capabilities_of(self, made: object) -> HookCapabilities:
        """Return the capabilities of the object that the class has made.

        Attributes of the object count for the arguments of the same names: a subclass may have set
        them itself.
        """
        args = complete_arguments(self.make, self.args)
        attributes = getattr(made, "__dict__", {})
        return _read_capabilities(self.name, self.make, args | attributes, self.where)

    def find_outside_arguments(self) -> tuple[str, ...] | None:
        """Return the arguments that let the hook write outside the run directory.

        It is None where the hook writes there anyway. An argument counts where its default is None,
        since the hook then writes nothing outside. A subclass that fixes such an argument in its
        own constructor, or that gives it another default, writes outside anyway.
        """
        declared = self.capabilities.writes_outside
        if declared is True:
            return None
        names = tuple(declared or ())
        defaults = {parameter.name: parameter.default for parameter in parameters_of(self.make)}
        for name in names:
            if name not in defaults or defaults[name] is not None:
                return None
        return names


def make_spec(
    name: str, make: Callable[..., Any], args: Mapping[str, Any] | Sequence[Any], where: Where
) -> HookSpec:
    """Return the spec of a hook whose arguments are sound.

    Raises UserError at `where` if the hook declares something else than capabilities for them.
    """
    capabilities = _read_capabilities(name, make, complete_arguments(make, args), where)
    return HookSpec(name, make, args, where, capabilities)


def _read_capabilities(
    name: str, make: Callable[..., Any], args: Mapping[str, Any], where: Where
) -> HookCapabilities:
    try:
        return read_capabilities(make, args)
    except TypeError as error:
        raise UserError(Problem(f'hook "{name}": {error}', where)) from None


def find_specs(
    loaded: Loaded, names: Iterable[str], base: Path, find: FindHook = find_hook
) -> dict[str, HookSpec]:
    """Return the specs of the named hooks of a valid pipeline.

    Raises UserError for one that is no longer there.
    """
    specs = {}
    for name in names:
        node = loaded.pipeline.hooks[name]
        where = loaded.places.of(f"hooks.{name}.use")
        make = find(node.use, base, where)
        with report_inspection_errors(node.use, where, f'hook "{name}": '):
            specs[name] = make_spec(name, make, node.args, where)
    return specs
