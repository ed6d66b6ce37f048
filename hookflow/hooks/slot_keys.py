"""Slots whose names have keys in braces, as in `model.{model}`.

The arguments of a hook fill them in.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from hookflow.hooks.arguments import complete_arguments
from hookflow.pipeline.condition import ConditionError, list_metrics

_SLOT_KEY_PATTERN = re.compile(r"\{(\w*)(\??)\}")


def fill_slots(
    slots: Iterable[str],
    hook: Callable[..., Any],
    name: str,
    args: Mapping[str, Any] | Sequence[Any],
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the slots with their keys (see `Hook.slot_keys`).

    The second result is the slots that have an unknown key, by that.

    `name` is the hook's own.
    """
    result: set[str] = set()
    lacks: dict[str, str] = {}
    keys: Mapping[str, Any] = {}
    for slot in slots:
        wanted = _SLOT_KEY_PATTERN.findall(slot)
        if wanted and not keys:
            keys = _find_keys(hook, name, args)
        unknown = []
        for key, _ in wanted:
            if key not in keys:
                unknown.append(key)
        if unknown:
            lacks |= dict.fromkeys(unknown, f'a slot "{slot}"')
            continue
        choices = [_list_values(keys[key], is_optional=bool(mark)) for key, mark in wanted]
        for values in product(*choices):
            result.add(_fill(slot, values))
    return tuple(sorted(result)), lacks


def _find_keys(
    hook: Callable[..., Any], name: str, args: Mapping[str, Any] | Sequence[Any]
) -> Mapping[str, Any]:
    """Return the values of all keys: the arguments, what the hook makes of them, and its name."""
    whole = complete_arguments(hook, args)
    choose = getattr(hook, "slot_keys", dict)
    return {**whole, **choose(whole), "name": name}


def _list_values(key: Any, *, is_optional: bool) -> list[str | None]:
    """Return the values of a key, one for each slot that it makes; None leaves the whole slot."""
    if key is None:
        if is_optional:
            return []
        return [None]
    if isinstance(key, Collection) and not isinstance(key, str):
        return [name for item in key for name in _names_in(str(item))]
    return _names_in(str(key))


def _names_in(value: str) -> list[str | None]:
    """Return the value of a key; of a formula, as a hook may monitor, the metrics in it."""
    try:
        return [*list_metrics(value)]
    except ConditionError:  # which the hook's own check of its arguments reports
        return [value]


def _fill(slot: str, values: Iterable[str | None]) -> str:
    """Return a slot with its keys.

    Where a key is None, the slot ends before the part that it belongs to.
    """
    for value in values:
        begin = slot.index("{")
        end = slot.index("}") + 1
        if value is None:
            return slot[:begin].rpartition(".")[0]
        slot = f"{slot[:begin]}{value}{slot[end:]}"
    return slot
