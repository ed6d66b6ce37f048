"""The state of an optimizer, restored as it was.

Each tensor has its own dtype, device and bits again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hookflow.hooks.tensors import make_tree_key

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

Path = tuple[Any, ...]
"""Where a tensor is in the state of an optimizer.

It is the number of its parameter, counted over all groups, and then keys.
"""


def list_group_entries(groups: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return the parameters of an optimizer's groups in their order.

    A saved optimizer has their numbers in the place of these.
    """
    entries = []
    for group in groups:
        entries += group["params"]
    return entries


def load_optimizer_state(
    optimizer: Optimizer,
    state: Mapping[str, Any],
    *,
    host_tensors: Collection[Path] = (),
    saved_dtypes: Mapping[Tensor, torch.dtype] | None = None,
) -> None:
    """Give an optimizer the contents of its `state_dict()`.

    Raises ValueError as `load_state_dict` does.

    PyTorch's `load_state_dict` casts each tensor of the state to the dtype of its parameter, and
    moves it to the parameter's device. That rounds a float32 copy of bfloat16 weights, turns counts
    and masks into floats, and replaces a text by nonsense. So this function puts the saved values
    back as soon as PyTorch has cast them: an optimizer whose own `load_state_dict` calls PyTorch's
    goes on with the right ones.

    `host_tensors` names the tensors that stay in the host's memory beside parameters on an
    accelerator. `saved_dtypes` are the dtypes that parameters had when the state was saved, where
    they have others now: a tensor that had its parameter's dtype follows the parameter.
    """
    devices = _list_setting_devices(optimizer)
    inner = _inner_optimizers(optimizer)
    shared = [each for each in inner if _share_groups(optimizer, each)]
    before = list(optimizer.param_groups)
    loads = [_StateLoader(each, host_tensors, saved_dtypes or {}) for each in (optimizer, *inner)]
    try:
        optimizer.load_state_dict(dict(state))
    finally:
        for load in loads:
            load.remove()
    for each in shared:
        _share_again(optimizer, each, before)
    for index, group in enumerate(optimizer.param_groups):
        for key, device in devices[index].items():
            if hasattr(group.get(key), "device"):
                group[key] = group[key].to(device)


class _StateLoader:
    """Corrects an optimizer's state at the end of PyTorch's `load_state_dict`."""

    def __init__(
        self,
        optimizer: Optimizer,
        host_tensors: Collection[Path],
        saved_dtypes: Mapping[Tensor, torch.dtype],
    ) -> None:
        self._host_tensors = host_tensors
        self._saved_dtypes = saved_dtypes
        self._taken: dict[str, Any] = {}
        self._handles: list[RemovableHandle] = []
        # A wrapper may not have called `Optimizer.__init__`, which makes the tables of hooks.
        if hasattr(optimizer, "_optimizer_load_state_dict_pre_hooks"):
            self._handles.append(
                optimizer.register_load_state_dict_pre_hook(self._store_loaded_state)
            )
            self._handles.append(
                optimizer.register_load_state_dict_post_hook(self._put_back, prepend=True)
            )

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _store_loaded_state(self, _: Optimizer, state_dict: dict[str, Any]) -> None:
        self._taken = dict(state_dict)

    def _put_back(self, optimizer: Optimizer) -> None:
        saved = self._taken["state"]
        numbers = list_group_entries(self._taken["param_groups"])
        groups = [
            (group, parameter) for group in optimizer.param_groups for parameter in group["params"]
        ]
        for index, (number, (group, parameter)) in enumerate(zip(numbers, groups, strict=True)):
            if number in saved and parameter in optimizer.state:
                dtype = self._saved_dtypes.get(parameter, parameter.dtype)
                entries = _StateEntries(group, parameter, dtype, self._host_tensors)
                optimizer.state[parameter] = entries.restored(
                    saved[number], optimizer.state[parameter], (index,)
                )


def _inner_optimizers(optimizer: Optimizer) -> list[Optimizer]:
    """Return the optimizers that an optimizer wraps, as one that looks ahead does."""
    from torch.optim import Optimizer as Base

    return [value for value in vars(optimizer).values() if isinstance(value, Base)]


def _share_groups(one: Optimizer, other: Optimizer) -> bool:
    pairs = zip(one.param_groups, other.param_groups, strict=False)
    return len(one.param_groups) == len(other.param_groups) and all(a is b for a, b in pairs)


def _share_again(wrapper: Optimizer, inner: Optimizer, before: list[Any]) -> None:
    """Let a wrapper and its optimizer have the same groups again.

    A load gives new groups to one of the two. Otherwise a schedule would set rates that no step
    uses.
    """
    if _share_groups(wrapper, inner):
        return
    wrapper_has_old = all(a is b for a, b in zip(wrapper.param_groups, before, strict=False))
    if wrapper_has_old:
        wrapper.param_groups = inner.param_groups
    else:
        inner.param_groups = wrapper.param_groups


class _StateEntries:
    """The entries in the state of one parameter."""

    def __init__(
        self,
        group: Mapping[str, Any],
        parameter: Tensor,
        saved_dtype: torch.dtype,
        host_tensors: Collection[Path],
    ) -> None:
        self._has_device_steps = bool(group.get("capturable") or group.get("fused"))
        self._parameter = parameter
        self._saved_dtype = saved_dtype
        """The dtype that the parameter had when the state was saved."""
        self._host_tensors = host_tensors

    def restored(self, saved: Any, loaded: Any, path: Path) -> Any:
        """Return a loaded entry as it was saved.

        Values that the optimizer has made while it loaded stay.
        """
        import torch

        if isinstance(saved, torch.Tensor):
            if isinstance(loaded, torch.Tensor) and loaded.shape == saved.shape:
                return self._restore_tensor(saved, loaded, path)
            return loaded
        if isinstance(saved, (str, bytes)):
            return saved
        if isinstance(saved, Mapping) and isinstance(loaded, dict):
            for key, entry in saved.items():
                if key in loaded:
                    loaded[key] = self.restored(entry, loaded[key], (*path, key))
            return loaded
        if (
            type(saved) in (list, tuple)
            and type(loaded) is type(saved)
            and len(loaded) == len(saved)
        ):
            pairs = enumerate(zip(saved, loaded, strict=True))
            return type(saved)(self.restored(entry, now, (*path, k)) for k, (entry, now) in pairs)
        return loaded

    def _restore_tensor(self, saved: Tensor, loaded: Tensor, path: Path) -> Tensor:
        is_step = len(path) == 2 and path[1] == "step"
        if is_step and self._has_device_steps:
            # A fork may have switched on PyTorch's kernels, which take a step as float32 on the
            # device.
            return loaded
        dtype = saved.dtype
        if saved.dtype == self._saved_dtype and saved.dim() > 0:
            dtype = self._parameter.dtype
        device: torch.device | str = loaded.device
        if path in self._host_tensors:
            device = "cpu"
        return saved.to(device=device, dtype=dtype)


def host_tensors_of(optimizer: Optimizer) -> list[Path]:
    """Return the places of tensors in the host's memory whose parameters are on an accelerator."""
    parameters = list_group_entries(optimizer.param_groups)
    result = []
    state = getattr(optimizer, "state", {})  # a wrapper may have none
    for index, parameter in enumerate(parameters):
        if parameter.device.type != "cpu" and parameter in state:
            tensors = _iter_tensors(state[parameter], (index,))
            for path, tensor in tensors:
                if tensor.device.type == "cpu":
                    result.append(path)
    return result


def _iter_tensors(entry: Any, path: Path) -> Iterator[tuple[Path, Tensor]]:
    import torch
    from torch.utils._pytree import tree_flatten_with_path

    def is_leaf(value: Any) -> bool:
        return type(value) not in (list, tuple) and not isinstance(value, Mapping)

    leaves, _ = tree_flatten_with_path(entry, is_leaf=is_leaf)
    for keys, leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            yield (*path, *make_tree_key(keys)), leaf


def _list_setting_devices(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return, for each group, the devices of its settings that are tensors.

    The rate of a captured step is one.
    """
    import torch

    return [
        {key: value.device for key, value in group.items() if isinstance(value, torch.Tensor)}
        for group in optimizer.param_groups
    ]
