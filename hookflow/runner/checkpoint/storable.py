"""What a checkpoint may hold: what can be read back without running code."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import torch

PLAIN = (type(None), bool, int, float, str, bytes)


def check_storable(state: dict[str, Any]) -> None:
    """Refuse what a checkpoint could hold, but could not be read back from without running code.

    Raises TypeError with the place of it. The state of the model and of the optimizer is torch's own affair.
    """
    for key, value in state.items():
        if not key.startswith(("model", "optimizer")) and (found := _foreign(value, f'["{key}"]')):
            raise TypeError(f"checkpoint{found}; a checkpoint holds numbers, strings, tensors, lists and dicts only")


def _foreign(value: Any, place: str) -> str:
    """Return the place and the type of the first thing that is not plain; an empty string when there is none."""
    if type(value) in PLAIN or isinstance(value, torch.Tensor):
        return ""
    inner: Iterable[tuple[Any, Any]]
    if type(value) in (dict, OrderedDict):
        inner = value.items()
    elif type(value) in (list, tuple):
        inner = enumerate(value)
    else:
        return f"{place} is a {type(value).__module__}.{type(value).__qualname__}"
    wrong = (_foreign(key, f"{place} (a key)") or _foreign(item, f"{place}[{key!r}]") for key, item in inner)
    return next(filter(None, wrong), "")
