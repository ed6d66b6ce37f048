"""Walks over nested state: dicts, lists and tuples of tensors and plain values."""

from __future__ import annotations

import copy
import io
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pickle import PickleError
from typing import Any

import torch

PLAIN = (type(None), bool, int, float, str, bytes)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same dicts, lists and tuples, with `change` of every leaf.

    A `state_dict` carries versions beside its entries; they are copied with it.
    """
    if type(value) is dict:
        return {key: mapped(item, change) for key, item in value.items()}
    if type(value) is OrderedDict:
        new = OrderedDict((key, mapped(item, change)) for key, item in value.items())
        vars(new).update(copy.deepcopy(vars(value)))
        return new
    if type(value) in (list, tuple):
        return type(value)(mapped(item, change) for item in value)
    return change(value)


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield every value in a state that is no dict, list or tuple, with its place; dict keys are values, too."""
    if type(value) in (dict, OrderedDict):
        for key, item in value.items():
            yield from leaves(key, (*place, "a key"))
            yield from leaves(item, (*place, key))
        if type(value) is OrderedDict:
            yield from leaves(vars(value), place)  # a module's `state_dict` has its versions there
    elif type(value) in (list, tuple):
        for k, item in enumerate(value):
            yield from leaves(item, (*place, k))
    else:
        yield place, value


def unreadable(state: Any) -> str:
    """Return the place and type of the first value that cannot be loaded without running code; "" without one."""
    for place, value in leaves(state):
        if type(value) not in PLAIN and not _loads(value):
            at = "".join(f"[{key!r}]" for key in place)
            hint = "; a tensor can be, such as torch.as_tensor(…)" if type(value).__module__ == "numpy" else ""
            return f"{at} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be loaded again{hint}"
    return ""


@contextmanager
def naming_unreadable(state: Any) -> Iterator[None]:
    """Where copying or writing `state` fails, raise TypeError with the first value that cannot be loaded again."""
    try:
        yield
    except (TypeError, AttributeError, PickleError):  # as pickle refuses locks, lambdas and local classes
        if wrong := unreadable(state):
            raise TypeError(f"checkpoint{wrong}") from None
        raise


def _loads(value: Any) -> bool:
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except (TypeError, AttributeError, PickleError):
        return False
    return True
