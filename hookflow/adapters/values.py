"""The values that adapters take from hooks and steps, and put into checkpoints."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

ARRAY_KEY = "array of NumPy"
"""The key of an array, or of a number of NumPy, that is saved as a tensor."""


def select_state(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers and tensors among some values.

    NumPy's numbers become Python's, which a checkpoint can hold.
    """
    import numpy as np
    import torch

    selected = {}
    for name, value in values.items():
        if isinstance(value, np.generic):
            value = value.item()
        if type(value) in (bool, int, float, torch.Tensor):
            selected[name] = value
    return selected


def select_changed(values: Mapping[str, Any], initial: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers and tensors that are not what they were initially."""
    return {
        name: value for name, value in values.items() if not _is_equal(value, initial.get(name))
    }


def _is_equal(value: Any, other: Any) -> bool:
    if type(value) is not type(other):
        return False
    if hasattr(value, "equal"):
        return bool(value.equal(other))
    return bool(value == other)


def select_scalars(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the single numbers among the outputs of a step, detached."""
    import torch

    scalars = {}
    for name, value in outputs.items():
        if isinstance(value, torch.Tensor):
            value = value.detach()
        is_number = isinstance(value, torch.Tensor | int | float)
        if is_number and not getattr(value, "ndim", 0):
            scalars[name] = value
    return scalars


def select_samples(outputs: Mapping[str, Any]) -> Sequence[Any]:
    """Return what MMEngine's models return for a batch of an evaluation.

    It is the list among the outputs, if one is there. Without one, or with several, the outputs are
    the only item.
    """
    lists = [value for value in outputs.values() if isinstance(value, list | tuple)]
    if len(lists) == 1:
        return lists[0]
    return [outputs]


def pack_value(value: Any) -> Any:
    """Return a copy of a value as a checkpoint can hold it. Raises TypeError where none can."""
    import numpy as np
    import torch

    if isinstance(value, np.ndarray | np.generic):
        return {ARRAY_KEY: torch.from_numpy(np.array(value))}
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) in (dict, OrderedDict):
        packed = type(value)()
        for key, item in value.items():
            packed[pack_value(key)] = pack_value(item)
        return packed
    if type(value) in (list, tuple):
        return type(value)(map(pack_value, value))
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    raise TypeError(f"a {type(value).__module__}.{type(value).__qualname__}")


def unpack_value(value: Any) -> Any:
    """Return a copy of the value that `pack_value` has been called with."""
    if isinstance(value, dict):
        array = value.get(ARRAY_KEY)
        if array is not None:
            return array.numpy().copy()[()]
        unpacked = type(value)()
        for key, item in value.items():
            unpacked[key] = unpack_value(item)
        return unpacked
    if isinstance(value, list | tuple):
        return type(value)(map(unpack_value, value))
    return value
