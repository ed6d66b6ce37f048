"""An image as a sum of coloured Gaussians in the plane: a differentiable renderer of a few lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


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


def change_rows(model: nn.Module, optimizer: Optimizer, change: Callable[[Tensor], Tensor]) -> None:
    """Replace each parameter by a new one of other rows, and change what the optimizer has averaged of it likewise.

    The graph of the last backward pass may hold the old parameter.
    """
    new = {old: nn.Parameter(change(old.detach()), old.requires_grad) for old in model.parameters()}
    for name, old in list(model.named_parameters()):
        setattr(model, name, new[old])
    for group in optimizer.param_groups:
        group["params"] = [new.get(old, old) for old in group["params"]]
    for old, parameter in new.items():
        if state := optimizer.state.pop(old, None):
            averages = {key: change(value) for key, value in state.items() if getattr(value, "shape", 0) == old.shape}
            optimizer.state[parameter] = {**state, **averages}


class Painting:
    """The mean absolute error (L1) between the Gaussians' image and the target, over the pixels of a batch.

    Metrics: `loss`, `mse` and `psnr` in dB, over the whole image. `densify` fires the pipeline's own point
    `after_densify`.
    """

    def step(self, run: Run, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """Return the `loss`, and the `residual` (pixels, 3): what is missing from the image at each pixel."""
        places, colours = batch
        rendered: Tensor = run.model(places)
        return {"loss": functional.l1_loss(rendered, colours), "residual": colours - rendered.detach()}

    def evaluate(self, run: Run, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """Return the `loss` and the `mse` of the image as it is shown: from 0 to 1."""
        places, colours = batch
        rendered = run.model(places).clamp(0, 1)
        return {"loss": functional.l1_loss(rendered, colours), "mse": functional.mse_loss(rendered, colours)}

    def metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the `psnr` in dB, of the mean squared error over all pixels; colours go from 0 to 1."""
        return {"psnr": -10 * math.log10(max(means["mse"], 1e-12))}

    def densify(self, run: Run, gaussians: Mapping[str, Tensor]) -> None:
        """Add Gaussians, given by the rows of each parameter, and fire `after_densify`."""
        count = len(gaussians["position"])
        change_rows(run.model, run.optimizer, lambda rows: functional.pad(rows, (0, 0, 0, count)))
        for name, parameter in run.model.named_parameters():
            parameter.detach()[-count:] = gaussians[name]
        run.fire("after_densify", count)

    def prune(self, run: Run, kept: Tensor) -> None:
        """Keep only the Gaussians where `kept`, boolean (count,), is true."""
        change_rows(run.model, run.optimizer, lambda rows: rows[kept])
