"""Fits Gaussians to the pixels of an image, and changes how many there are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import functional

from hookflow.zoo.gaussian2d_resize import append_rows, keep_rows

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


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
        append_rows(run.model, run.optimizer, gaussians)
        run.fire("after_densify", len(gaussians["position"]))

    def prune(self, run: Run, kept: Tensor) -> None:
        """Keep only the Gaussians where `kept`, boolean (count,), is true."""
        keep_rows(run.model, run.optimizer, kept)
