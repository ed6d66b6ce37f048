"""Starts a net with a layer that decorrelates its input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookflow.errors import Problem, UserError
from hookflow.hooks.base import Hook
from hookflow.hooks.tensors import shard_like

if TYPE_CHECKING:
    from torch import Tensor

    from hookflow.hooks.run import Run

PICTURES = 5000
"""How many images the covariance is taken over; it is known to a per cent or so by then."""

EPS = 5e-4
"""Added to each eigenvalue, so that directions that are all noise are not blown up."""


class Whiten(Hook):
    """Sets the model's first convolution, `whiten`, to whiten the patches of the training images.

    A resumed run keeps the weights of its checkpoint.
    """

    phase = "early"  # an average of the weights starts from these
    writes = ("model",)

    def before_train(self, run: Run) -> None:
        import torch
        from torch import nn

        layer = getattr(run.model, "whiten", None)
        if not isinstance(layer, nn.Conv2d):
            message = f"the hook needs a model with a convolution named whiten; {type(run.model).__name__} has none"
            raise UserError(Problem(message))
        if run.iter == 0:
            with torch.no_grad():
                weights = whitening(run.data["train"].sample(PICTURES), layer.weight.shape)
                layer.weight.copy_(shard_like(weights, layer.weight))


def whitening(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return convolution weights of `shape` (filters, channels, height, width) that whiten patches of `images`.

    Half the filters are the principal directions of the patches, the strongest first, each divided by the root of
    its eigenvalue; the other half are their negatives, so that a rectifier behind them loses nothing. There must be
    an even number of filters, at most twice the values of a patch.
    """
    import torch

    filters, channels, height, width = shape
    patches = images.unfold(2, height, 1).unfold(3, width, 1)
    patches = patches.permute(0, 2, 3, 1, 4, 5).reshape(-1, channels * height * width)
    variances, directions = torch.linalg.eigh(patches.T @ patches / len(patches))
    scaled = (directions / (variances + EPS).sqrt()).T.flip(0)[: filters // 2]
    return torch.cat((scaled, -scaled)).reshape(shape)
