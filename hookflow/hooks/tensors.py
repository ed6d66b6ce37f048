"""Helpers for hooks.

These are full tensors of shards, outputs of the task, means over ranks, globs over names of
parameters.

A number of an iteration is a mean over what its batch weighs: its examples, unless the task says
another weight. The mean over many is the sum of each times its weight, over all those weights; so
the ranks of a run add up theirs before they divide. A value of weight 0 is left out, even if it is
NaN. The mean of nothing is NaN.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase
from math import nan
from typing import TYPE_CHECKING, Any, Union
from zlib import crc32

from hookflow.errors import Problem, UserError, nearest

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from hookflow.hooks.run import Run

Weight = Union[float, "Tensor"]
"""The weight of a batch in a mean.

It is a number, or a tensor of one element, whose device is not waited for.
"""


def is_sharded(tensor: Any) -> bool:
    return hasattr(tensor, "full_tensor")  # a DTensor, whose import takes long


def copy_expanded_buffers(model: nn.Module) -> None:
    """Give each buffer that `expand()` has made memory for all its elements.

    Several elements are one place there, so PyTorch refuses to copy anything into it: no checkpoint
    could be loaded, and no average swapped in.
    """
    import torch

    for buffer in model.buffers():
        if buffer.layout != torch.strided or buffer.is_nested:
            continue  # it has no strides
        if any(
            size > 1 and stride == 0
            for size, stride in zip(buffer.shape, buffer.stride(), strict=True)
        ):
            buffer.data = buffer.detach().clone(memory_format=torch.contiguous_format)


def is_oom(error: BaseException) -> bool:
    """Say whether an exception means that no memory was left.

    The memory is the device's, or this machine's.
    """
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # The error of the CPU's allocator is a plain RuntimeError.
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def local(tensor: Tensor) -> Tensor:
    """Return this process's shard of a tensor, in the same memory.

    A tensor that is not sharded is returned itself.
    """
    if is_sharded(tensor):
        return tensor.to_local()  # type: ignore[attr-defined,no-any-return]
    return tensor


def full(tensor: Tensor) -> Tensor:
    """Return the full tensor, on every process; the tensor itself where it is not sharded.

    All must call it.
    """
    if is_sharded(tensor):
        return tensor.full_tensor()  # type: ignore[attr-defined,no-any-return]
    return tensor


def make_shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor that is full on every process, sharded as another is.

    Where that one is not sharded it is the tensor itself. Nothing goes from process to process.
    """
    if not is_sharded(like) or is_sharded(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    layout: Any = like
    on_device = tensor.detach().to(like.device)
    return distribute_tensor(on_device, layout.device_mesh, layout.placements, src_data_rank=None)


def read_output(outputs: Mapping[str, Any], name: str, hook: str, hint: str = "") -> Any:
    """Return an output of the task.

    Raises UserError, which names the hook, when there is none of the name.
    """
    if name not in outputs:
        message = (
            f'{hook} needs the output "{name}" of the task, which gives'
            f" {', '.join(outputs) or 'nothing'}"
        )
        raise UserError(Problem(message, hint=nearest(name, outputs) or hint))
    return outputs[name]


def first_tensor(value: Any) -> Tensor | None:
    """Return the first tensor of nested mappings, lists and tuples; None where there is none."""
    from torch import Tensor
    from torch.utils._pytree import tree_leaves

    return next((leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)), None)


def make_tree_key(path: Iterable[Any]) -> tuple[Any, ...]:
    """Return the keys of dicts and the places in lists of a path that PyTorch's trees give."""
    from torch.utils._pytree import SequenceKey

    return tuple(step.idx if isinstance(step, SequenceKey) else step.key for step in path)


def find_wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to compute in with tensors of a real or complex dtype.

    It is the dtype itself, or at least float32 or complex64.
    """
    import torch

    if dtype.is_complex:
        least = torch.complex64
    else:
        least = torch.float32
    if dtype.itemsize < least.itemsize:
        return least
    return dtype


def group_by_dtype(tensors: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    """Return the tensors in groups of one dtype each.

    The groups are in the order in which the dtypes first come.
    """
    alike: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        alike.setdefault(tensor.dtype, []).append(tensor)
    return alike.values()


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put every module into training or evaluation mode, and each back afterwards.

    A module that was frozen stays frozen.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, before in modes:
            module.training = before


def enter_evaluation(model: nn.Module) -> AbstractContextManager[None]:
    """Put every module into evaluation, and each back into the mode that it had."""
    return in_mode(model, training=False)


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters by name.

    One that several modules share (tied weights) has several names.
    """
    return dict(model.named_parameters(remove_duplicate=False))


def matches(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def matching(
    parameters: Mapping[str, nn.Parameter], globs: Sequence[str]
) -> dict[str, nn.Parameter]:
    """Return the parameters that globs pick; a shared one once, by the first name that matches."""
    result: dict[int, tuple[str, nn.Parameter]] = {}
    for name, parameter in parameters.items():
        if matches(name, globs):
            result.setdefault(id(parameter), (name, parameter))
    return dict(result.values())


def class_names(modules: Iterable[nn.Module]) -> list[str]:
    """Return the names of the modules' classes and of their bases, each once."""
    return list(dict.fromkeys(kind.__name__ for module in modules for kind in type(module).__mro__))


def no_match(glob: str, names: Collection[str], what: str) -> tuple[str, str] | None:
    """Return that a glob matches none of these names of `what`, with a hint.

    It is None if it matches.
    """
    if any(fnmatchcase(name, glob) for name in names):
        return None
    there = ", ".join(filter(None, [*names][:8]))
    if len(names) > 8:
        there += ", …"
    hint = nearest(glob, names) or f"there are {there or 'none but the network itself'}"
    return f'no {what} matches "{glob}"', hint


def require_matches(globs: Iterable[str], names: Collection[str], what: str) -> None:
    """Raise UserError with the first glob that matches none of these names."""
    for glob in globs:
        wrong = no_match(glob, names, what)
        if wrong:
            raise UserError(Problem(wrong[0], hint=wrong[1]))


Sums = Mapping[str, tuple["float | Tensor", Weight]]
"""By name: a sum of numbers times their weights, and the sum of those weights."""


def is_zero(weight: Weight | None) -> bool:
    """Return whether a weight is 0, as far as the host knows without waiting for a device."""
    return isinstance(weight, (int, float)) and weight == 0


def is_one(weight: Weight) -> bool:
    """Return whether a weight is 1, as far as the host knows without waiting for a device."""
    return isinstance(weight, (int, float)) and weight == 1


def compute_ratio(weight: Weight, total: Weight, otherwise: float) -> Weight:
    """Return a weight by the total; `otherwise` where the total is 0."""
    import torch

    if isinstance(total, torch.Tensor):
        return torch.where(total > 0, weight / total, otherwise)
    if total:
        return weight / total
    return otherwise


def weighted(value: Tensor, weight: Weight) -> Tensor:
    """Return a value times its weight; 0 where the weight is 0, even if the value is NaN."""
    import torch

    if isinstance(weight, (int, float)):
        if weight:
            return value * weight
        return torch.zeros_like(value)
    return torch.where(weight.to(value.device) > 0, value * weight.to(value.device), 0.0)


def sum_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype to add up in: float64, but float32 on MPS, which has no float64."""
    import torch

    if device.type == "mps":
        return torch.float32
    return torch.float64


def on_device(value: float | Tensor, device: torch.device) -> Tensor:
    """Return a number on the device, in the dtype to add up in."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().to(device, sum_dtype(device), non_blocking=True).reshape(())
    return torch.full((), value, dtype=sum_dtype(device), device=device)


class WeightedSum:
    """A sum of numbers times their weights, which stays where the numbers are computed."""

    def __init__(self, total: float | Tensor = 0.0, weight: Weight = 0) -> None:
        self.total = total
        self.weight = weight

    def add(self, value: float | Tensor, weight: Weight) -> None:
        """Add a number, or a tensor without a graph.

        From the second on, all are on the device of the latest.
        """
        if not isinstance(weight, (int, float)):
            value = on_device(value, weight.device)
            self.total = on_device(self.total, weight.device) + weighted(value, weight)
            self.weight = self.weight + on_device(weight, weight.device)
            return
        if not weight:
            return
        self.weight = self.weight + weight
        total = self.total
        if isinstance(value, (int, float)):
            self.total = total + value * weight
            return
        if isinstance(total, (int, float)) or total.device != value.device:
            total = on_device(total, value.device)  # after a resume it is in the host's memory
        self.total = total.add(value, alpha=weight)

    @property
    def mean(self) -> float | Tensor:
        """The mean of the numbers; NaN where their weights are 0."""
        if is_zero(self.weight):
            return nan
        return self.total / self.weight


NAME_SLOTS = 32
"""Numbers over ranks are sent in multiples of so many.

Ranks with other names may have fewer or more.
"""


class RankMeans:
    """The means of numbers over all ranks.

    All ranks must have numbers of the same names: others are refused.
    """

    def __init__(self) -> None:
        self._latest: tuple[str, ...] = ()

    def over_ranks(self, run: Run, sums: Sums) -> dict[str, Tensor]:
        """Return the mean of each number over the weights of all ranks, which all must call it.

        Raises UserError where ranks have other names. On a GPU the rank raises whose names have
        changed, since it alone waits to learn of it; the means are NaN on all.
        """
        import torch

        # A resume loads sums into the host's memory.
        totals = {name: on_device(total, run.device) for name, (total, _) in sums.items()}
        weights = {name: on_device(weight, run.device) for name, (_, weight) in sums.items()}
        if run.world == 1:
            return {name: totals[name] / weights[name] for name in sums}
        names = tuple(sorted(sums))
        mark = crc32("\0".join(names).encode())
        header = [on_device(float(mark), run.device), on_device(1.0, run.device)]
        padding = [torch.zeros_like(header[0])] * (-len(names) % NAME_SLOTS)
        sent = [
            *header,
            *(totals[name] for name in names),
            *padding,
            *(weights[name] for name in names),
            *padding,
        ]
        mark_sum, ranks, *numbers = run.sum(torch.stack(sent))
        agrees = mark_sum == ranks * mark
        if run.device.type == "cpu" or names != self._latest:
            self._latest = names
            if not agrees:
                message = (
                    "the ranks have numbers of different names; this one has"
                    f" {', '.join(names) or 'none'}"
                )
                hint = "let the task return numbers of the same names on all ranks"
                raise UserError(Problem(message, hint=hint))
        means = {}
        for k, name in enumerate(names):
            total = numbers[k]
            weight = numbers[len(numbers) // 2 + k]
            means[name] = torch.where(agrees, total / weight, nan)
        return {name: means[name] for name in sums}


def loss_over_ranks(run: Run, outputs: Mapping[str, Any], hook: str) -> float | None:
    """Return the mean loss over the weights of all ranks; None where they are 0.

    Raises UserError, which names the hook, without a loss.
    """
    loss = on_device(read_output(outputs, "loss", hook), run.device)
    sums = {
        "loss": (weighted(loss, run.batch_weight), run.batch_weight),
        "weight": (run.batch_weight, 1),
    }
    means = RankMeans().over_ranks(run, sums)
    if means["weight"] > 0:
        return float(means["loss"])
    return None


class Window:
    """The numbers of the last `length` iterations.

    They end with the newest iteration that had a number of the name.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self._kept: dict[str, deque[tuple[int, Tensor, Weight]]] = {}
        """By name: iteration, the number times its weight, the weight."""

    def add(self, it: int, numbers: Mapping[str, Tensor], weight: Weight) -> None:
        """Take in the numbers of the iteration `it`.

        Numbers of their names that are too old are forgotten.
        """
        for name, value in numbers.items():
            kept = self._kept.setdefault(name, deque())
            # A fork with other batches renumbers its iterations, so a saved one may lie ahead.
            while kept and kept[-1][0] >= it:
                kept.pop()
            kept.append((it, weighted(value, weight), weight))
            while kept[0][0] <= it - self.length:
                kept.popleft()

    def sums(self, names: Iterable[str]) -> Sums:
        states = {name: _state(self._kept[name]) for name in names}
        return {
            name: (state["total"].sum(), sum(state["examples"])) for name, state in states.items()
        }

    def state_dict(self) -> dict[str, Any]:
        return {name: _state(kept) for name, kept in self._kept.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back the state of a window, maybe of another length."""
        self._kept = {
            name: deque(zip(kept["it"], kept["total"].unbind(), kept["examples"], strict=True))
            for name, kept in state.items()
        }


def _state(kept: Iterable[tuple[int, Tensor, Weight]]) -> dict[str, Any]:
    """Return the columns and the totals, on the device of the newest total.

    A resume has loaded older totals into the host's memory.
    """
    import torch

    its, totals, weights = zip(*kept, strict=True)
    total = torch.stack([total.to(totals[-1].device) for total in totals])
    return {"it": list(its), "total": total, "examples": list(weights)}


class EpochSums:
    """The sums of the newest epoch."""

    def __init__(self) -> None:
        self._epoch = 0
        self._sums: dict[str, WeightedSum] = {}

    def add(self, epoch: int, numbers: Mapping[str, Tensor], weight: Weight) -> None:
        """Take in the numbers of an iteration of an epoch."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._sums = {}
        for name, value in numbers.items():
            self._sums.setdefault(name, WeightedSum()).add(value, weight)

    def sums(self) -> Sums:
        return {name: (item.total, item.weight) for name, item in self._sums.items()}

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self._epoch,
            "sums": {name: list(pair) for name, pair in self.sums().items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._epoch = state["epoch"]
        self._sums = {name: WeightedSum(*saved) for name, saved in state["sums"].items()}
