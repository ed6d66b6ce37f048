"""Helpers for hooks: full tensors of shards, outputs of the task, means over ranks, globs over names of parameters.

A number of an iteration is a mean over the examples of its batch. The mean over many is the sum of each times its
examples, over all those examples; so the ranks of a run add up theirs before they divide.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from hookflow.errors import Problem, UserError, nearest

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from hookflow.hooks.run import Run


def is_sharded(tensor: Any) -> bool:
    return hasattr(tensor, "full_tensor")  # a DTensor, whose import takes long


def give_buffers_own_memory(model: nn.Module) -> None:
    """Give each buffer that `expand()` has made memory for all its elements.

    Several elements are one place there, so PyTorch refuses to copy anything into it: no checkpoint could be loaded,
    and no average swapped in.
    """
    import torch

    for buffer in model.buffers():
        if buffer.layout != torch.strided or buffer.is_nested:
            continue  # it has no strides
        if any(size > 1 and stride == 0 for size, stride in zip(buffer.shape, buffer.stride(), strict=True)):
            buffer.data = buffer.detach().clone(memory_format=torch.contiguous_format)


def is_oom(error: BaseException) -> bool:
    """Say whether an exception means that there was no memory left: the device's, or this machine's."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # the CPU's has no type


def local(tensor: Tensor) -> Tensor:
    """Return this process's shard of a tensor, in the same memory; the tensor itself where it is not sharded."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def full(tensor: Tensor) -> Tensor:
    """Return the full tensor, on every process; the tensor itself where it is not sharded. All must call it."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor that is full on every process, sharded as another is; the tensor itself if that is not.

    Nothing goes from process to process.
    """
    if not is_sharded(like) or is_sharded(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    layout: Any = like
    on_device = tensor.detach().to(like.device)
    return distribute_tensor(on_device, layout.device_mesh, layout.placements, src_data_rank=None)


def output(outputs: Mapping[str, Any], name: str, hook: str, hint: str = "") -> Any:
    """Return an output of the task. Raises UserError, which names the hook, when there is none of the name."""
    if name not in outputs:
        message = f'{hook} needs the output "{name}" of the task, which gives {", ".join(outputs) or "nothing"}'
        raise UserError(Problem(message, hint=nearest(name, outputs) or hint))
    return outputs[name]


def first_tensor(value: Any) -> Tensor | None:
    """Return the first tensor of nested mappings, lists and tuples; None where there is none."""
    from torch import Tensor
    from torch.utils._pytree import tree_leaves

    return next((leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)), None)


def by_dtype(tensors: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    """Return the tensors in groups of one dtype each, in the order in which the dtypes first come."""
    alike: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        alike.setdefault(tensor.dtype, []).append(tensor)
    return alike.values()


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put every module into training or evaluation, and each back into its mode: one that was frozen stays frozen."""
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, before in modes:
            module.training = before


def evaluating(model: nn.Module) -> AbstractContextManager[None]:
    """Put every module into evaluation, and each back into the mode that it had."""
    return in_mode(model, training=False)


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters by name; one that several modules share (tied weights) has several names."""
    return dict(model.named_parameters(remove_duplicate=False))


def matches(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def matching(parameters: Mapping[str, nn.Parameter], globs: Sequence[str]) -> dict[str, nn.Parameter]:
    """Return the parameters that globs pick; a shared one once, by the first name that matches."""
    result: dict[int, tuple[str, nn.Parameter]] = {}
    for name, parameter in parameters.items():
        if matches(name, globs):
            result.setdefault(id(parameter), (name, parameter))
    return dict(result.values())


def class_names(modules: Iterable[nn.Module]) -> list[str]:
    """Return the names of the modules' classes and of those that they are derived from, each once."""
    return list(dict.fromkeys(kind.__name__ for module in modules for kind in type(module).__mro__))


def no_match(glob: str, names: Collection[str], what: str) -> tuple[str, str] | None:
    """Return that a glob matches none of these names of `what`, and a hint at what may be meant; None if it does."""
    if any(fnmatchcase(name, glob) for name in names):
        return None
    there = ", ".join(filter(None, [*names][:8])) + ", …" * (len(names) > 8)
    hint = nearest(glob, names) or f"there are {there or 'none but the network itself'}"
    return f'no {what} matches "{glob}"', hint


def require_matches(globs: Iterable[str], names: Collection[str], what: str) -> None:
    """Raise UserError with the first glob that matches none of these names."""
    for glob in globs:
        if wrong := no_match(glob, names, what):
            raise UserError(Problem(wrong[0], hint=wrong[1]))


Sums = Mapping[str, tuple["float | Tensor", int]]
"""By name: a sum of numbers times their examples, and the number of those examples."""


def sum_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype to add up in: float64, but float32 on MPS, which has no float64."""
    import torch

    return torch.float32 if device.type == "mps" else torch.float64


def on_device(value: float | Tensor, device: torch.device) -> Tensor:
    """Return a number on the device, in the dtype to add up in."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().to(device, sum_dtype(device), non_blocking=True).reshape(())
    return torch.full((), value, dtype=sum_dtype(device), device=device)


class WeightedSum:
    """A sum of numbers times their weights, which stays where the numbers are computed."""

    def __init__(self, total: float | Tensor = 0.0, weight: int = 0) -> None:
        self.total = total
        self.weight = weight

    def add(self, value: float | Tensor, weight: int) -> None:
        """Add a number, or a tensor without a graph; from the second on, all are on the device of the latest."""
        self.weight += weight
        total = self.total
        if isinstance(value, (int, float)):
            self.total = total + value * weight
            return
        if isinstance(total, (int, float)) or total.device != value.device:
            total = on_device(total, value.device)  # after a resume it is in the host's memory
        self.total = total.add(value, alpha=weight)


def over_ranks(run: Run, sums: Sums) -> dict[str, Tensor]:
    """Return the mean of each number over the examples of all ranks, all of which must call it with the same names."""
    import torch

    totals = [on_device(total, run.device) for total, _ in sums.values()]  # a resume loads sums into the host's memory
    if run.world == 1 or not sums:
        counts = [max(count, 1) for _, count in sums.values()]
        return {name: total / count for name, total, count in zip(sums, totals, counts, strict=True)}
    examples = [on_device(count, run.device) for _, count in sums.values()]
    summed = run.sum(torch.stack([*totals, *examples]))
    return dict(zip(sums, (summed[: len(sums)] / summed[len(sums) :]).unbind(), strict=True))


def loss_over_ranks(run: Run, outputs: Mapping[str, Any], hook: str) -> float:
    """Return the mean loss over the examples of all ranks. Raises UserError, which names the hook, without a loss."""
    examples = run.batch_size or 1
    total = on_device(output(outputs, "loss", hook), run.device) * examples
    return float(over_ranks(run, {"loss": (total, examples)})["loss"])


class Window:
    """The numbers of the last `length` iterations up to the newest one that had a number of the name."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._kept: dict[str, deque[tuple[int, Tensor, int]]] = {}
        """By name: iteration, sum over the examples, examples."""

    def add(self, it: int, numbers: Mapping[str, Tensor], examples: int) -> None:
        """Take in the numbers of the iteration `it`, and forget those of their names that are too old."""
        for name, value in numbers.items():
            kept = self._kept.setdefault(name, deque())
            while kept and kept[-1][0] >= it:  # a fork with other batches counts its iterations anew
                kept.pop()
            kept.append((it, value * examples, examples))
            while kept[0][0] <= it - self.length:
                kept.popleft()

    def sums(self, names: Iterable[str]) -> Sums:
        states = {name: _state(self._kept[name]) for name in names}
        return {name: (state["total"].sum(), sum(state["examples"])) for name, state in states.items()}

    def state_dict(self) -> dict[str, Any]:
        return {name: _state(kept) for name, kept in self._kept.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back the state of a window, maybe of another length."""
        self._kept = {
            name: deque(zip(kept["it"], kept["total"].unbind(), kept["examples"], strict=True))
            for name, kept in state.items()
        }


def _state(kept: Iterable[tuple[int, Tensor, int]]) -> dict[str, Any]:
    """Return the columns, the totals on the device of the newest one: a resume loads them into the host's memory."""
    import torch

    its, totals, examples = zip(*kept, strict=True)
    total = torch.stack([total.to(totals[-1].device) for total in totals])
    return {"it": list(its), "total": total, "examples": list(examples)}


class EpochSums:
    """The sums of the newest epoch."""

    def __init__(self) -> None:
        self._epoch = 0
        self._sums: dict[str, WeightedSum] = {}

    def add(self, epoch: int, numbers: Mapping[str, Tensor], examples: int) -> None:
        """Take in the numbers of an iteration of an epoch."""
        if epoch != self._epoch:
            self._epoch, self._sums = epoch, {}
        for name, value in numbers.items():
            self._sums.setdefault(name, WeightedSum()).add(value, examples)

    def sums(self) -> Sums:
        return {name: (item.total, item.weight) for name, item in self._sums.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "sums": {name: list(pair) for name, pair in self.sums().items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._epoch = state["epoch"]
        self._sums = {name: WeightedSum(*saved) for name, saved in state["sums"].items()}
