"""Walking through a state: plain dicts, lists and tuples in one another, with tensors and plain values in them."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same dicts, lists and tuples with `change` of whatever else is in them.

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
