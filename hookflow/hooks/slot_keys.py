"""The keys of slots that hang on a hook's arguments: `model.{model}` is `model.generator` where `model` is that."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from hookflow.errors import nearest
from hookflow.hooks.arguments import first_names, parameters_of
from hookflow.hooks.inspect import Issue

_KEY = re.compile(r"\{(\w*)\}")


def filled(
    slots: Iterable[str], hook: Callable[..., Any], name: str, args: Mapping[str, Any] | Sequence[Any]
) -> tuple[tuple[str, ...], list[Issue]]:
    """Return the slots with their keys, and what is wrong with those that name no argument.

    A key that is None leaves the whole slot; of several, each makes a slot. `name` is the hook's own.
    """
    found: dict[str, None] = {}
    issues: list[Issue] = []
    keys: Mapping[str, Any] | None = None
    for slot in slots:
        wanted = _KEY.findall(slot)
        if wanted and keys is None:
            keys = _keys(hook, args) | {"name": name}
        if unknown := [key for key in wanted if keys is not None and key not in keys]:
            said = f'{getattr(hook, "__name__", repr(hook))} has a slot "{slot}", and no argument "{unknown[0]}"'
            issues.append((said, nearest(unknown[0], keys or ())))
            continue
        for values in product(*(_values((keys or {})[key]) for key in wanted)):
            found[_fill(slot, values)] = None
    return tuple(sorted(found)), issues


def _keys(hook: Callable[..., Any], args: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    """Return what the keys of a hook's slots are: by default its arguments, as given or not."""
    given = args if isinstance(args, Mapping) else dict(zip(first_names(hook, len(args)), args, strict=False))
    defaults = {p.name: None if p.default is p.empty else p.default for p in parameters_of(hook)}
    whole = {**defaults, **given}
    return {**whole, **getattr(hook, "slot_keys", dict)(whole)}


def _values(key: Any) -> Collection[str | None]:
    if key is None:
        return (None,)
    if isinstance(key, Collection) and not isinstance(key, str):
        return [str(one) for one in key]
    return (str(key),)


def _fill(slot: str, values: Iterable[str | None]) -> str:
    """Return a slot with keys; where one is None, what stands before the part that it belongs to."""
    for value in values:
        if value is None:
            return slot[: _KEY.search(slot).start()].rpartition(".")[0]  # type: ignore[union-attr]
        slot = _KEY.sub(lambda _, value=value: value, slot, count=1)  # type: ignore[misc]
    return slot
