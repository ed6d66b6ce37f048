"""A small convolutional net for CIFAR-10 that learns in a few epochs, after K. Jordan's airbench (arXiv 2404.00498)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

Width = Annotated[int, Field(ge=1)]


class Group(nn.Module):
    """Two 3x3 convolutions, each normalised and through GELU; the image is halved between the first and its norm."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, outputs)
        self.norm1 = _norm(outputs)
        self.conv2 = _convolution(outputs, outputs)
        self.norm2 = _norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.gelu(self.norm1(functional.max_pool2d(self.conv1(x), 2)))
        return functional.gelu(self.norm2(self.conv2(x)))


class AirNet(nn.Module):
    """A frozen 2x2 convolution that whitens, one `Group` for each width, the maximum over the image, a linear layer.

    Takes images (batch, 3, height, width) of at least 16 by 16 and returns logits (batch, num_classes). The
    `whiten` layer's weights are not trained: the hook `hookflow.zoo.hooks:Whiten` sets them from the training
    images. The scales of the batch norms are fixed at one. `widths` is the one dial: it sets cost and accuracy.
    """

    def __init__(
        self,
        widths: Annotated[Sequence[Width], Field(min_length=1, max_length=4)] = (32, 128, 128),
        num_classes: Annotated[int, Field(ge=1)] = 10,
    ) -> None:
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2, bias=False)
        self.whiten.weight.requires_grad_(False)
        inputs = (self.whiten.out_channels, *widths)
        self.groups = nn.Sequential(*map(Group, inputs, widths))
        self.head = nn.Linear(widths[-1], num_classes, bias=False)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub leaves it out

    def forward(self, images: Tensor) -> Tensor:
        x = self.groups(functional.gelu(self.whiten(images)))
        # amax() compares again for its gradient, and where Inductor computes x anew in bf16 nothing is equal: NaN
        logits: Tensor = self.head(x.flatten(2).max(2).values) / 9
        return logits


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """Return a 3x3 convolution whose first filters are the identity; the others are random."""
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.dirac_(layer.weight[: min(inputs, outputs)].detach())
    return layer


def _norm(channels: int) -> nn.BatchNorm2d:
    """Return a batch norm with a trained bias and a fixed scale; its averages follow fast, for runs are short."""
    layer = nn.BatchNorm2d(channels, momentum=0.4, eps=1e-12)
    layer.weight.requires_grad_(False)
    return layer
