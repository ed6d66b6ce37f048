"""The state of an optimizer, put back as it was: each tensor with its own dtype, device and bits."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.optim import Optimizer

Path = tuple[Any, ...]
"""Where a tensor is in the state of an optimizer: the number of its parameter, counted over all groups, then keys."""


def load_optimizer_state(
    optimizer: Optimizer,
    state: Mapping[str, Any],
    *,
    host_tensors: Collection[Path] = (),
    saved_dtypes: Mapping[Tensor, torch.dtype] | None = None,
) -> None:
    """Give an optimizer the contents of its `state_dict()`. Raises ValueError as `load_state_dict` does.

    PyTorch's `load_state_dict` casts each tensor of the state to the dtype of its parameter, and moves it to the
    parameter's device. That rounds a float32 copy of bfloat16 weights, turns counts and masks into floats, and
    replaces a text by nonsense. So this function puts the saved values back as soon as PyTorch has cast them: an
    optimizer whose own `load_state_dict` calls PyTorch's goes on with the right ones.

    `host_tensors` names the tensors that stay in the host's memory beside parameters on an accelerator.
    `saved_dtypes` are the dtypes that parameters had when the state was saved, where they have others now: a tensor
    that had its parameter's dtype follows the parameter.
    """
    dtypes = saved_dtypes or {}
    devices = _devices_of_settings(optimizer)
    taken: dict[str, Any] = {}

    def remember(_: Optimizer, state_dict: dict[str, Any]) -> None:
        taken.update(state_dict)

    def put_back(loaded: Optimizer) -> None:
        numbers = [number for group in taken["param_groups"] for number in group["params"]]
        groups = [(group, parameter) for group in loaded.param_groups for parameter in group["params"]]
        for index, (number, (group, parameter)) in enumerate(zip(numbers, groups, strict=True)):
            if number not in taken["state"] or parameter not in loaded.state:
                continue
            entries = _Entries(group, parameter, dtypes.get(parameter, parameter.dtype), host_tensors)
            saved = taken["state"][number]
            loaded.state[parameter] = entries.restored(saved, loaded.state[parameter], (index,))
        for index, group in enumerate(loaded.param_groups):
            for key, device in devices[index].items():
                if hasattr(group.get(key), "device"):
                    group[key] = group[key].to(device)

    handles = [
        optimizer.register_load_state_dict_pre_hook(remember),
        optimizer.register_load_state_dict_post_hook(put_back, prepend=True),
    ]
    try:
        optimizer.load_state_dict(dict(state))
    finally:
        for handle in handles:
            handle.remove()


class _Entries:
    """The entries in the state of one parameter."""

    def __init__(
        self, group: Mapping[str, Any], parameter: Tensor, saved_dtype: torch.dtype, host_tensors: Collection[Path]
    ) -> None:
        self._has_device_steps = bool(group.get("capturable") or group.get("fused"))
        self._parameter = parameter
        self._saved_dtype = saved_dtype
        """The dtype that the parameter had when the state was saved."""
        self._host_tensors = host_tensors

    def restored(self, saved: Any, loaded: Any, path: Path) -> Any:
        """Return a loaded entry as it was saved. What the optimizer has made anew while it loaded stays."""
        import torch

        if isinstance(saved, torch.Tensor):
            if isinstance(loaded, torch.Tensor) and loaded.shape == saved.shape:
                return self._restored_tensor(saved, loaded, path)
            return loaded
        if isinstance(saved, (str, bytes)):
            return saved
        if isinstance(saved, Mapping) and isinstance(loaded, dict):
            for key, entry in saved.items():
                if key in loaded:
                    loaded[key] = self.restored(entry, loaded[key], (*path, key))
            return loaded
        if type(saved) in (list, tuple) and type(loaded) is type(saved) and len(loaded) == len(saved):
            pairs = enumerate(zip(saved, loaded, strict=True))
            return type(saved)(self.restored(entry, now, (*path, k)) for k, (entry, now) in pairs)
        return loaded

    def _restored_tensor(self, saved: Tensor, loaded: Tensor, path: Path) -> Tensor:
        is_step = len(path) == 2 and path[1] == "step"
        if is_step and self._has_device_steps:
            return loaded  # PyTorch's kernels take float32 on the device: a fork may have switched them on
        dtype = saved.dtype
        if saved.dtype == self._saved_dtype and saved.dim() > 0:
            dtype = self._parameter.dtype
        device = "cpu" if path in self._host_tensors else loaded.device
        return saved.to(device=device, dtype=dtype)


def host_tensors_of(optimizer: Optimizer) -> list[Path]:
    """Return the places of tensors in the host's memory that belong to parameters on an accelerator."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    result = []
    for index, parameter in enumerate(parameters):
        if parameter.device.type != "cpu" and parameter in optimizer.state:
            tensors = _tensors(optimizer.state[parameter], (index,))
            result += [path for path, tensor in tensors if tensor.device.type == "cpu"]
    return result


def _tensors(entry: Any, path: Path) -> Iterator[tuple[Path, Tensor]]:
    import torch

    if isinstance(entry, torch.Tensor):
        yield path, entry
    elif isinstance(entry, Mapping):
        for key, value in entry.items():
            yield from _tensors(value, (*path, key))
    elif type(entry) in (list, tuple):
        for k, value in enumerate(entry):
            yield from _tensors(value, (*path, k))


def _devices_of_settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return, for each group, the devices of its settings that are tensors, as the rate of a captured step is."""
    import torch

    return [
        {key: value.device for key, value in group.items() if isinstance(value, torch.Tensor)}
        for group in optimizer.param_groups
    ]
