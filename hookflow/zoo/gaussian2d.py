"""An image as a sum of coloured Gaussians in the plane: a differentiable renderer of a few lines."""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn


class Gaussians(nn.Module):
    """Coloured Gaussians in the plane, x and y from -1 to 1; the image is their sum.

    Takes places (pixels, 2) and returns colours (pixels, 3). Each Gaussian has a `position` (2), a `scaling` (2): the
    logarithm of its standard deviation along its two axes, a `rotation` (1, radians), and a `colour` (3), which
    may be negative: what is too bright is taken away by another. Their number may change while they are trained;
    weights of another number are taken as they come.
    """

    def __init__(self, count: Annotated[int, Field(ge=1, description="Gaussians to begin with")] = 200) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.rand(count, 2) * 2 - 1)
        self.scaling = nn.Parameter(torch.full((count, 2), math.log(1.4 / math.sqrt(count))))
        self.rotation = nn.Parameter(torch.zeros(count, 1))
        self.colour = nn.Parameter(torch.zeros(count, 3))

    def __len__(self) -> int:
        return len(self.position)

    def forward(self, places: Tensor) -> Tensor:
        """Return the colours at places; the Gaussians' exponents are a matrix product over the monomials of x and y."""
        x, y = places.unbind(1)
        monomials = torch.stack((x * x, x * y, y * y, x, y, torch.ones_like(x)))
        return (self._exponents() @ monomials).exp().T @ self.colour

    def _exponents(self) -> Tensor:
        """Return the coefficients (count, 6) of x², xy, y², x, y and 1 in each Gaussian's exponent."""
        narrow, long = (-2 * self.scaling).exp().unbind(1)  # 1 / variance along the two axes
        cos, sin = self.rotation[:, 0].cos(), self.rotation[:, 0].sin()
        xx = cos * cos * narrow + sin * sin * long
        xy = cos * sin * (narrow - long)
        yy = sin * sin * narrow + cos * cos * long
        at_x, at_y = self.position.unbind(1)
        to_x, to_y = xx * at_x + xy * at_y, xy * at_x + yy * at_y
        return -0.5 * torch.stack((xx, 2 * xy, yy, -2 * to_x, -2 * to_y, to_x * at_x + to_y * at_y), 1)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Make room for as many Gaussians as a checkpoint has; the parameters stay those that the optimizer knows."""
        for name, parameter in self.named_parameters():
            if (saved := state.get(f"{prefix}{name}")) is not None:
                parameter.data = parameter.new_empty(saved.shape)
        super()._load_from_state_dict(state, prefix, *rest)
