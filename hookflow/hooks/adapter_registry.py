"""The registry of adapters.

It has those of hookflow, and those that installed packages offer as entry points.

An adapter is imported when `use` begins with its prefix, when a class may be one of its framework,
or when a message needs the framework's names.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import Any

from hookflow.errors import Problem, UserError, Where
from hookflow.graph.points import DEFAULT_POINTS
from hookflow.hooks.adapter import HookAdapter, get_bases, get_package_name
from hookflow.hooks.pytorch_arguments import PYTORCH_ARGUMENTS
from hookflow.pipeline.registry import OfferedEntry, list_installed

ENTRY_POINT_GROUP = "hookflow.adapters"
"""The group of entry points by which a package offers adapters."""


@dataclass(frozen=True, slots=True)
class AdapterEntry:
    """An entry of the registry."""

    place: str
    """Where the class of the adapter stands, as "package.module:Name"."""
    packages: tuple[str, ...]
    """The framework's packages: a class with a base from one of them is shown to the adapter."""
    prefix: str = ""
    """The beginning of `use`; "" for an adapter that finds no hooks by name."""


BUILT_IN_ADAPTERS = (
    AdapterEntry("hookflow.adapters.mmengine:MMEngineAdapter", ("mmengine", "mmcv"), "mmengine"),
    AdapterEntry(
        "hookflow.adapters.lightning:LightningAdapter",
        ("lightning", "pytorch_lightning"),
        "lightning",
    ),
    AdapterEntry("hookflow.adapters.pointrix:PointrixAdapter", ("pointrix",), "pointrix"),
    AdapterEntry(
        "hookflow.adapters.translations:KerasAdapter", ("keras", "tf_keras", "tensorflow")
    ),
    AdapterEntry(
        "hookflow.adapters.huggingface:HuggingFaceAdapter", ("transformers",), "huggingface"
    ),
    AdapterEntry("hookflow.adapters.translations:IgniteAdapter", ("ignite",)),
    AdapterEntry("hookflow.adapters.translations:FastaiAdapter", ("fastai",)),
    AdapterEntry("hookflow.adapters.translations:ComposerAdapter", ("composer",)),
    AdapterEntry("hookflow.adapters.translations:ComposerAlgorithmAdapter", ("composer",)),
)


def list_entries() -> list[AdapterEntry]:
    """Return the entries of all adapters; those of hookflow come first."""
    entries = [*BUILT_IN_ADAPTERS]
    for offers in list_installed(ENTRY_POINT_GROUP).values():
        entries += [_entry_of_offer(offer) for offer in offers]
    return entries


def _entry_of_offer(offer: OfferedEntry) -> AdapterEntry:
    return AdapterEntry(offer.use, packages=(offer.name,), prefix=offer.name)


@cache
def load_adapter(place: str) -> HookAdapter:
    """Return the adapter whose class stands at `place`. Raises UserError if it is no adapter."""
    module, _, name = place.partition(":")
    adapter = getattr(import_module(module), name)
    if not isinstance(adapter, type) or not issubclass(adapter, HookAdapter):
        message = f'the entry point "{place}" of {ENTRY_POINT_GROUP} is no HookAdapter'
        raise UserError(Problem(message))
    return adapter()


def load_all_adapters() -> Iterator[HookAdapter]:
    """Yield every adapter."""
    for entry in list_entries():
        yield load_adapter(entry.place)


def find_adapter_of_use(use: str, where: Where | None) -> HookAdapter | None:
    """Return the adapter by whose prefix `use` begins.

    It is None if there is none. An entry of hookflow's own wins. Raises UserError at `where` for a
    prefix that several packages offer.
    """
    entries = _find_entries_of_use(use)
    if not entries:
        return None
    if len(entries) > 1:
        raise UserError(_describe_ambiguity(use.partition(":")[0], where))
    return load_adapter(entries[0].place)


def has_adapter_prefix(use: str) -> bool:
    """Say whether `use` begins with the prefix of an adapter, which is not imported for that."""
    return bool(_find_entries_of_use(use))


def _find_entries_of_use(use: str) -> list[AdapterEntry]:
    prefix, colon, _ = use.partition(":")
    if not colon or not prefix.isidentifier():  # a short name, a file, or a module in a package
        return []
    for entry in BUILT_IN_ADAPTERS:
        if entry.prefix == prefix:
            return [entry]
    return [_entry_of_offer(offer) for offer in list_installed(ENTRY_POINT_GROUP).get(prefix, ())]


def _describe_ambiguity(prefix: str, where: Where | None) -> Problem:
    offers = list_installed(ENTRY_POINT_GROUP)[prefix]
    packages = [offer.package for offer in offers]
    message = f'"{prefix}:" is ambiguous: {len(offers)} adapters of installed packages match'
    return Problem(message, where, f"uninstall all but one of {', '.join(packages)}")


def find_adapter_of_class(kind: type) -> HookAdapter | None:
    """Return the adapter that claims a class; None if there is none."""
    entries = find_entries_of_bases(kind)
    if has_unknown_arguments(kind):
        entries = list_entries()
    for entry in entries:
        adapter = load_adapter(entry.place)
        if adapter.claims(kind):
            return adapter
    return None


def find_entries_of_bases(kind: type) -> list[AdapterEntry]:
    """Return the entries of frameworks in whose packages a base of a class stands."""
    packages = {get_package_name(base) for base in get_bases(kind)[1:]}
    packages -= sys.stdlib_module_names
    packages -= {"hookflow", "torch"}
    if not packages:  # most classes: the entry points of installed packages are not read for them
        return []
    return [entry for entry in list_entries() if packages.intersection(entry.packages)]


def has_unknown_arguments(kind: type) -> bool:
    """Say whether a method takes an argument that its point does not offer.

    The method is one of a class, and is named like a point.
    """
    for base in get_bases(kind):
        members: dict[str, Any] = type.__getattribute__(base, "__dict__")
        for point in DEFAULT_POINTS:
            method = members.get(point.name)
            if not isinstance(method, FunctionType) or point.name in PYTORCH_ARGUMENTS:
                continue
            code = method.__code__
            arguments = code.co_varnames[1 : code.co_argcount]
            if not set(arguments) <= set(point.offers):
                return True
    return False
