"""An image as a sum of coloured Gaussians in the plane: a differentiable renderer, and the pixels of one as data."""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from hookflow.errors import Problem, UserError
from hookflow.hooks.run import Run
from hookflow.pipeline.registry import missing_package
from hookflow.runner.data.loader_parts import BatchSharding


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


def landscape(height: int, width: int) -> Tensor:
    """Return dusk above mountains and a lake, float32 (height, width, 3) from 0 to 1: at any size the same picture."""
    rows, columns = ((torch.arange(size) + 0.5) / size for size in (height, width))
    y, x = torch.meshgrid(rows, 1.5 * columns, indexing="ij")
    blue, orange, glow, sun, rock = torch.tensor(
        ((0.16, 0.24, 0.48), (0.98, 0.62, 0.36), (0.45, 0.34, 0.18), (1.0, 0.95, 0.75), (0.26, 0.24, 0.36))
    )
    lake = (y - 0.62).clamp(min=0)  # how far below the shore; it mirrors what is above
    y = y - 2 * lake + 0.02 * (110 * y + 4 * x).sin() * lake
    away = ((x - 0.98) ** 2 + (y - 0.36) ** 2).sqrt()
    # a ridge of waves, each half as high and about half as long as the one before
    ridge = 0.5 - sum(0.14 / 2**k * (1 - (3.1 * 2.3**k * x + 0.4 * (k + 1)).sin().abs()) for k in range(4))
    sky = torch.lerp(blue, orange, (y / 0.62).clamp(0, 1)[..., None] ** 1.3) + (-7 * away).exp()[..., None] * glow
    image = torch.lerp(sky, sun, (8 - 100 * away).clamp(0, 1)[..., None])
    image = torch.lerp(image, rock, (0.5 + (y - ridge) * height / 1.2).clamp(0, 1)[..., None])
    return (image * (1 - 0.18 * (lake > 0) - 0.9 * lake)[..., None]).clamp(0, 1)


class Picture(BatchSharding):
    """Batches of pixels: places, float32 (batch, 2), and their colours, float32 (batch, 3) from 0 to 1.

    A place is x and y, each from -1 to 1 over the image. `train` draws each batch at random; an epoch is `batches` of
    them. `val` is the whole image, row by row: the pixels that are fitted are the ones that are evaluated.
    """

    def __init__(
        self,
        *,
        path: Annotated[str, Field(description="an image file; a landscape made by formula if empty")] = "",
        side: Annotated[int, Field(ge=8, description="pixels of the longer side; the image is scaled to it")] = 192,
        split: Annotated[Literal["train", "val"], Field(description="random pixels, or all in order")] = "train",
        batch_size: Annotated[int, Field(ge=1, description="pixels in a batch")] = 4096,
        batches: Annotated[int, Field(ge=1, description="batches of an epoch of training")] = 100,
        seed: int,
        device: torch.device,
    ) -> None:
        self.image = (read_image(Path(path).expanduser(), side) if path else landscape(side * 2 // 3, side)).to(device)
        """The whole image, float32 (height, width, 3)."""
        self.places = places(*self.image.shape[:2]).to(device)
        """Where its pixels are, row by row, float32 (height × width, 2)."""
        self._colours = self.image.reshape(-1, 3)
        self._training, self._seed, self._size = split == "train", seed, batch_size
        super().__init__(batches * batch_size if self._training else len(self.places), batch_size, drop_last=False)
        height, width, _ = self.image.shape
        self.info = self.describe(Path(path).name or "landscape", f"{width} × {height} pixels", synthetic=not path)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        for index in range(start, len(self)):
            if self._training:
                generator = torch.Generator().manual_seed((self._seed * 1_000_003 + epoch) * len(self) + index)
                chosen = torch.randint(len(self.places), (self._size,), generator=generator)
                chosen = chosen.to(self.places.device)
                yield self.places[chosen], self._colours[chosen]
            else:
                part = slice(index * self._size, (index + 1) * self._size)
                yield self.places[part], self._colours[part]


def places(height: int, width: int) -> Tensor:
    """Return the x and y of the middle of each pixel, from -1 to 1, row by row: (height × width, 2)."""
    y, x = ((torch.arange(size) + 0.5) / size * 2 - 1 for size in (height, width))
    return torch.stack((x.repeat(height), y.repeat_interleave(width)), 1)


def read_image(path: Path, side: int) -> Tensor:
    """Return an image file, float32 (height, width, 3) from 0 to 1, its longer side scaled down to `side` pixels.

    Raises UserError when it cannot be read.
    """
    if missing := missing_package(f"the image {path}", "pillow", "images", module="PIL"):
        raise UserError(missing)
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as file:
            pixels = torch.from_numpy(np.array(file.convert("RGB"), np.float32) / 255)
    except FileNotFoundError:
        raise UserError(Problem(f"there is no image {path.absolute()}")) from None
    except (UnidentifiedImageError, OSError) as error:
        raise UserError(Problem(f"{path} cannot be read as an image: {error}")) from error
    height, width, _ = pixels.shape
    scale = min(side / max(height, width), 1)
    size = max(round(height * scale), 1), max(round(width * scale), 1)
    whole = functional.interpolate(pixels.permute(2, 0, 1)[None], size, mode="bilinear", antialias=True)
    return whole[0].permute(1, 2, 0).clamp(0, 1).contiguous()
