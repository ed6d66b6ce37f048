"""An image as a sum of coloured Gaussians in the plane: a differentiable renderer,
and the pixels of one as data.
"""

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

    Takes places (pixels, 2) and returns colours (pixels, 3). Each Gaussian has a `position` (2), a
    `scaling` (2): the logarithm of its standard deviation along its two axes, a `rotation` (1,
    radians), and a `colour` (3), which may be negative: what is too bright is taken away by
    another. Their number may change while they are trained; weights of another number are taken as
    they come.
    """

    def __init__(
        self, count: Annotated[int, Field(ge=1, description="Gaussians to begin with")] = 200
    ) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.rand(count, 2) * 2 - 1)
        standard_deviation = 1.4 / math.sqrt(count)
        self.scaling = nn.Parameter(torch.full((count, 2), math.log(standard_deviation)))
        self.rotation = nn.Parameter(torch.zeros(count, 1))
        self.colour = nn.Parameter(torch.zeros(count, 3))

    def __len__(self) -> int:
        return len(self.position)

    def forward(self, places: Tensor) -> Tensor:
        """Return the colours at places; the Gaussians' exponents are a matrix product
        over the monomials of x and y.
        """
        x, y = places.unbind(1)
        monomials = torch.stack((x * x, x * y, y * y, x, y, torch.ones_like(x)))
        exponents = self._compute_coefficients() @ monomials  # (count, pixels)
        weights = exponents.exp()
        return weights.T @ self.colour

    def _compute_coefficients(self) -> Tensor:
        """Return the coefficients (count, 6) of x², xy, y², x,
        y and 1 in each Gaussian's exponent.
        """
        inverse_variances = (-2 * self.scaling).exp()
        first, second = inverse_variances.unbind(1)  # along the two axes
        angle = self.rotation[:, 0]
        cos = angle.cos()
        sin = angle.sin()
        # These are the entries of the inverse of the covariance matrix.
        xx = cos * cos * first + sin * sin * second
        xy = cos * sin * (first - second)
        yy = sin * sin * first + cos * cos * second
        # These are that matrix times the position.
        mean_x, mean_y = self.position.unbind(1)
        linear_x = xx * mean_x + xy * mean_y
        linear_y = xy * mean_x + yy * mean_y
        constant = linear_x * mean_x + linear_y * mean_y
        return -0.5 * torch.stack((xx, 2 * xy, yy, -2 * linear_x, -2 * linear_y, constant), 1)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Make room for as many Gaussians as a checkpoint has;
        the parameters stay those that the optimizer knows.
        """
        for name, parameter in self.named_parameters():
            saved = state.get(f"{prefix}{name}")
            if saved is not None:
                parameter.data = parameter.new_empty(saved.shape)
        super()._load_from_state_dict(state, prefix, *rest)


def change_rows(model: nn.Module, optimizer: Optimizer, change: Callable[[Tensor], Tensor]) -> None:
    """Replace each parameter by a new one of other rows, and change what the optimizer has averaged
    of it likewise.

    The graph of the last backward pass may hold the old parameter.
    """
    replacements: dict[nn.Parameter, nn.Parameter] = {}
    for name, old in list(model.named_parameters()):
        rows = change(old.detach())
        replacements[old] = nn.Parameter(rows, old.requires_grad)
        setattr(model, name, replacements[old])
    for group in optimizer.param_groups:
        group["params"] = [replacements.get(old, old) for old in group["params"]]
    for old, parameter in replacements.items():
        state = optimizer.state.pop(old, None)
        if state:
            optimizer.state[parameter] = _change_averages(state, old.shape, change)


def _change_averages(
    state: Mapping[str, Any], shape: torch.Size, change: Callable[[Tensor], Tensor]
) -> dict[str, Any]:
    """Return an optimizer's state of a parameter, its averages changed:
    what has the parameter's shape.
    """
    changed = dict(state)
    for key, value in state.items():
        if isinstance(value, Tensor) and value.shape == shape:
            changed[key] = change(value)
    return changed


class Painting:
    """The mean absolute error (L1) between the Gaussians' image and the target, over the pixels of
    a batch.

    Metrics: `loss`, `mse` and `psnr` in dB, over the whole image. `densify` fires the pipeline's
    own point `after_densify`.
    """

    def step(self, run: Run, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """Return the `loss`, and the `residual` (pixels, 3):
        what is missing from the image at each pixel.
        """
        places, colours = batch
        rendered: Tensor = run.model(places)
        return {
            "loss": functional.l1_loss(rendered, colours),
            "residual": colours - rendered.detach(),
        }

    def evaluate(self, run: Run, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """Return the `loss` and the `mse` of the image as it is shown: from 0 to 1."""
        places, colours = batch
        rendered = run.model(places).clamp(0, 1)
        return {
            "loss": functional.l1_loss(rendered, colours),
            "mse": functional.mse_loss(rendered, colours),
        }

    def metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the `psnr` in dB, of the mean squared error over all pixels;
        colours go from 0 to 1.
        """
        return {"psnr": -10 * math.log10(max(means["mse"], 1e-12))}

    def densify(self, run: Run, gaussians: Mapping[str, Tensor]) -> None:
        """Add Gaussians, given by the rows of each parameter, and fire `after_densify`."""
        count = len(gaussians["position"])

        def append_zeros(rows: Tensor) -> Tensor:
            return functional.pad(rows, (0, 0, 0, count))

        change_rows(run.model, run.optimizer, append_zeros)
        for name, parameter in run.model.named_parameters():
            parameter.detach()[-count:] = gaussians[name]
        run.fire("after_densify", count)

    def prune(self, run: Run, kept: Tensor) -> None:
        """Keep only the Gaussians where `kept`, boolean (count,), is true."""
        change_rows(run.model, run.optimizer, lambda rows: rows[kept])


def make_landscape(height: int, width: int) -> Tensor:
    """Return dusk above mountains and a lake, float32 (height, width, 3) from 0 to 1:
    at any size the same picture.
    """
    rows = _compute_pixel_centres(height)
    columns = _compute_pixel_centres(width)
    y, x = torch.meshgrid(rows, 1.5 * columns, indexing="ij")
    blue = torch.tensor((0.16, 0.24, 0.48))
    orange = torch.tensor((0.98, 0.62, 0.36))
    glow = torch.tensor((0.45, 0.34, 0.18))
    sun = torch.tensor((1.0, 0.95, 0.75))
    rock = torch.tensor((0.26, 0.24, 0.36))
    lake = (y - 0.62).clamp(min=0)  # how far below the shore; it mirrors what is above
    ripples = (110 * y + 4 * x).sin()
    y = y - 2 * lake + 0.02 * ripples * lake
    distance_to_sun = ((x - 0.98) ** 2 + (y - 0.36) ** 2).sqrt()
    # The mountains are waves, each half as high and about half as long as the one before.
    mountains: Tensor | float = 0.0
    for k in range(4):
        wave = (3.1 * 2.3**k * x + 0.4 * (k + 1)).sin()
        mountains = mountains + 0.14 / 2**k * (1 - wave.abs())
    ridge = 0.5 - mountains

    dusk = (y / 0.62).clamp(0, 1) ** 1.3
    halo = (-7 * distance_to_sun).exp()
    sky = torch.lerp(blue, orange, dusk[..., None]) + halo[..., None] * glow
    disc = (8 - 100 * distance_to_sun).clamp(0, 1)
    image = torch.lerp(sky, sun, disc[..., None])
    below_ridge = (0.5 + (y - ridge) * height / 1.2).clamp(0, 1)
    image = torch.lerp(image, rock, below_ridge[..., None])
    brightness = 1 - 0.18 * (lake > 0) - 0.9 * lake
    return (image * brightness[..., None]).clamp(0, 1)


def _compute_pixel_centres(size: int) -> Tensor:
    """Return the middle of each pixel of a row or a column, from 0 to 1: (size,)."""
    return (torch.arange(size) + 0.5) / size


class Picture(BatchSharding):
    """Batches of pixels: places, float32 (batch, 2), and their colours, float32 (batch, 3) from 0
    to 1.

    A place is x and y, each from -1 to 1 over the image. `train` draws each batch at random; an
    epoch is `batches` of them. `val` is the whole image, row by row: the pixels that are fitted are
    the ones that are evaluated.
    """

    def __init__(
        self,
        *,
        path: Annotated[
            str, Field(description="an image file; a landscape made by formula if empty")
        ] = "",
        side: Annotated[
            int, Field(ge=8, description="pixels of the longer side; the image is scaled to it")
        ] = 192,
        split: Annotated[
            Literal["train", "val"], Field(description="random pixels, or all in order")
        ] = "train",
        batch_size: Annotated[int, Field(ge=1, description="pixels in a batch")] = 4096,
        batches: Annotated[int, Field(ge=1, description="batches of an epoch of training")] = 100,
        seed: int,
        device: torch.device,
    ) -> None:
        if path:
            image = read_image(Path(path).expanduser(), side)
        else:
            image = make_landscape(side * 2 // 3, side)
        height, width, _ = image.shape
        self.image = image.to(device)
        """The whole image, float32 (height, width, 3)."""
        self.places = compute_positions(height, width).to(device)
        """Where its pixels are, row by row, float32 (height × width, 2)."""
        self._colours = self.image.reshape(-1, 3)
        self._training = split == "train"
        self._seed = seed
        self._size = batch_size
        examples = len(self.places)
        if self._training:
            examples = batches * batch_size
        super().__init__(examples, batch_size, drop_last=False)
        name = Path(path).name or "landscape"
        self.info = self.describe(name, f"{width} × {height} pixels", synthetic=not path)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        for index in range(start, len(self)):
            if self._training:
                seed = (self._seed * 1_000_003 + epoch) * len(self) + index
                generator = torch.Generator().manual_seed(seed)
                chosen = torch.randint(len(self.places), (self._size,), generator=generator)
                chosen = chosen.to(self.places.device)
                yield self.places[chosen], self._colours[chosen]
            else:
                begin = index * self._size
                part = slice(begin, begin + self._size)
                yield self.places[part], self._colours[part]


def compute_positions(height: int, width: int) -> Tensor:
    """Return the x and y of the middle of each pixel, from -1 to 1, row by row:
    (height × width, 2).
    """
    x = _compute_pixel_centres(width) * 2 - 1
    y = _compute_pixel_centres(height) * 2 - 1
    return torch.stack((x.repeat(height), y.repeat_interleave(width)), 1)


def read_image(path: Path, side: int) -> Tensor:
    """Return an image file, float32 (height, width, 3) from 0 to 1, its longer side scaled down to
    `side` pixels.

    Raises UserError when it cannot be read.
    """
    problem = missing_package(f"the image {path}", "pillow", "images", module="PIL")
    if problem:
        raise UserError(problem)
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as file:
            array = np.array(file.convert("RGB"), np.float32)
        pixels = torch.from_numpy(array / 255)
    except FileNotFoundError:
        raise UserError(Problem(f"there is no image {path.absolute()}")) from None
    except (UnidentifiedImageError, OSError) as error:
        raise UserError(Problem(f"{path} cannot be read as an image: {error}")) from error
    height, width, _ = pixels.shape
    scale = min(side / max(height, width), 1)
    size = (max(round(height * scale), 1), max(round(width * scale), 1))
    channels_first = pixels.permute(2, 0, 1)
    scaled = functional.interpolate(channels_first[None], size, mode="bilinear", antialias=True)
    return scaled[0].permute(1, 2, 0).clamp(0, 1).contiguous()
