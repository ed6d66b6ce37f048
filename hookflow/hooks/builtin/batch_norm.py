"""Batch normalization: its statistics computed anew, and buffers synchronized over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from hookflow.errors import Problem, UserError
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.builtin.means import on_device, sum_dtype
from hookflow.hooks.tensors import evaluating

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hookflow.hooks.run import Run


@dataclass(eq=False)
class PreciseBN(Hook):
    """Recomputes the running statistics of batch norms before each validation, from training batches.

    They become the mean and the unbiased variance of each norm's inputs over all examples, with the present weights. A
    moving average would mix them with those of earlier weights. Where an average of the weights is validated, they are
    those of the average. The network computes as in evaluation, in the run's
    precision, but that the norms use each batch's own statistics. The batches are the first ones of the epoch that
    comes next; each rank takes its own, and all are counted together. Norms that are in eval mode, as frozen ones, are
    left alone.
    """

    phase = "last"  # the weights that are to be validated are there by then
    reads: ClassVar[Slots] = {"before_val": ("model",)}
    writes: ClassVar[Slots] = {"before_val": ("model",)}

    batches: Annotated[int | None, Field(ge=1, description="training batches; a whole epoch if left out")] = 200

    def before_val(self, run: Run) -> None:
        from torch.nn.modules.batchnorm import _BatchNorm

        every: list[Any] = [module for module in run.model.modules() if isinstance(module, _BatchNorm)]
        norms = [norm for norm in every if norm.training and norm.running_mean is not None]
        if not norms or "train" not in run.data:  # `hookflow val` has those that the checkpoint holds
            return
        source = run.data["train"]
        if getattr(source, "workers", 0) and run.batch_idx % len(source) and run.iter < run.max_iters:
            message = "precise_bn cannot read training data now: its workers are in the middle of an epoch"
            raise UserError(Problem(message, hint='validate after epochs (run.val_every = "1ep"), or let workers be 0'))
        if hasattr(source, "state_dict"):
            message = f"precise_bn would advance the training data: a {type(source).__name__} cannot be rewound"
            raise UserError(Problem(message, hint="give a map-style dataset with a loader"))
        with measured(run.model, norms) as sums:
            for batch in islice(source.epoch(run.epoch), self.batches):
                run.evaluate(batch)
        for norm, (count, total, squares) in zip(norms, sums, strict=True):
            mean, variance = moments(*(run.sum(item) for item in (count, total, squares)))
            norm.running_mean.copy_(mean)
            norm.running_var.copy_(variance)


@contextmanager
def measured(model: nn.Module, norms: list[Any]) -> Iterator[list[list[Tensor]]]:
    """Sum up what the norms are given, while the rest of the network is in eval mode.

    Yield for each norm the count of its values in a channel, their sums and the sums of their squares, (channels,),
    in the dtype to add up in. Raises UserError when a norm has been given nothing.
    """
    sums = [[on_device(0.0, norm.running_mean.device) for _ in range(3)] for norm in norms]
    with evaluating(model), ExitStack() as after:
        for norm, of_norm in zip(norms, sums, strict=True):
            norm.train()
            after.callback(norm.num_batches_tracked.copy_, norm.num_batches_tracked.clone())
            after.callback(norm.register_forward_pre_hook(partial(_add, of_norm)).remove)
        yield sums
    if any(not total.ndim for _, total, _ in sums):
        message = "a batch norm received no input while its statistics were computed"
        raise UserError(Problem(message, hint="it is not used, or a compiled network hides it: run.compile = false"))


def _add(sums: list[Tensor], norm: nn.Module, args: Any) -> None:
    provided = args[0].detach()
    values = provided.to(sum_dtype(provided.device)).transpose(0, 1).flatten(1)
    sums[:] = sums[0] + values.shape[1], sums[1] + values.sum(1), sums[2] + values.square().sum(1)


def moments(count: Tensor, total: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the unbiased variance of values, by their count, their sum and the sum of their squares."""
    mean = total / count
    return mean, ((squares - count * mean.square()) / (count - 1).clamp(min=1)).clamp(min=0)


class SyncBuffers(Hook):
    """Averages floating-point buffers (batch-norm statistics) over all ranks after each backward pass.

    Without it every rank has the running statistics of rank 0, which has seen its share of the batches alone; the
    ranks have the same in either case. A rank counts alike, whatever its examples. It costs one small all-reduce an
    iteration, and nothing where there is one rank.
    """

    reads: ClassVar[Slots] = {"after_backward": ("model",)}
    writes: ClassVar[Slots] = {"after_backward": ("model",)}

    def after_backward(self, run: Run) -> None:
        if run.world == 1:
            return
        import torch

        buffers = [buffer for buffer in run.model.buffers() if buffer.is_floating_point()]
        if not buffers:
            return
        means = run.mean(torch.cat([buffer.flatten().double() for buffer in buffers]))
        for buffer, mean in zip(buffers, torch.split(means, [buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(mean.view_as(buffer))
