"""Statistics of parameters (`param_stats`) and activations (`activation_stats`), and `images`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from hookflow.errors import Problem, UserError
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.tensors import (
    first_tensor,
    full,
    matching,
    named_parameters,
    read_output,
    require_matches,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hookflow.hooks.run import Run

Stat = Literal["mean", "std", "norm", "min", "max"]


@dataclass(eq=False)
class ParamStats(Hook):
    """Logs statistics of each parameter, and a histogram of its values if asked for.

    The names are `param/<name>/<statistic>`. The `std` is that of the population, the `norm`
    Euclidean; of a complex parameter they are those of its absolute values. They are computed and
    stay on the device, so that nothing waits. A network has many parameters: give it `every`. A
    sharded parameter is gathered for it.
    """

    phase = "late"
    reads = ("model",)

    match: Annotated[
        tuple[str, ...], Field(min_length=1, description="globs over the names of parameters")
    ] = ("*",)
    stats: Annotated[tuple[Stat, ...], Field(description="what to log of each")] = (
        "mean",
        "std",
        "norm",
    )
    histogram: Annotated[bool, Field(description="log the distribution of the values, too")] = False

    def before_train(self, run: Run) -> None:
        require_matches(self.match, named_parameters(run.model), "parameter of the network")

    def after_train_iter(self, run: Run) -> None:
        import torch

        for name, parameter in matching(named_parameters(run.model), self.match).items():
            values = full(parameter.detach())
            if values.is_complex():
                values = values.abs()
            if values.layout is not torch.strided:
                values = values.to_dense()
            for stat, value in compute_statistics(values, self.stats).items():
                run.log(f"param/{name}/{stat}", value)
            if self.histogram:
                run.log_histogram(f"param/{name}", values)


class ActivationStats(Hook):
    """Logs mean, standard deviation and fraction of zeros of module outputs in training.

    They are called `activation/<name>/mean`, `…/std` (of the population) and `…/zeros` (from 0 to
    1); those of the network itself go by `model`. `modules` says which by globs over their names;
    all of them if left out. If a module returns several tensors, the first counts, and a tensor of
    integers is left out. A ReLU whose share of zeros is nearly 1 is dead. Computed on the device,
    on this rank's share of the batch, so that nothing waits; while `every` keeps it idle, it
    computes nothing.
    """

    reads: ClassVar[Slots] = {"before_run": ("model",)}
    modules = ("*",)
    ranks = "zero"

    def before_run(self, run: Run) -> None:
        self.names = {}
        for name, module in run.model.named_modules():
            self.names[id(module)] = name or "model"

    def forward(self, run: Run, module: nn.Module, output: Any) -> None:
        values = first_tensor(output)
        if values is None:
            return
        if values.is_floating_point() or values.is_complex():
            name = self.names[id(module)]
            for stat, value in compute_statistics(
                values.detach(), ("mean", "std", "zeros")
            ).items():
                run.log(f"activation/{name}/{stat}", value)


def compute_statistics(values: Tensor, of: Collection[str]) -> dict[str, Tensor]:
    """Return statistics of a tensor's values as tensors of no dimensions, float32 or better.

    Of complex values they are those of their absolute values.
    """
    import torch

    wide = values
    if values.is_complex():
        wide = values.abs()
    if wide.dtype != torch.float64:
        wide = wide.float()
    compute = {
        "mean": torch.mean,
        "std": lambda tensor: torch.std(tensor, correction=0),
        "norm": torch.linalg.vector_norm,
        "min": torch.amin,
        "max": torch.amax,
        "zeros": lambda tensor: (tensor == 0).to(tensor.dtype).mean(),
    }
    return {stat: compute[stat](wide) for stat in of}


@dataclass(eq=False)
class Images(Hook):
    """Logs a grid of images from the first batch of each validation.

    It is called `val/images`, and its caption has targets and predictions. Bound to
    `after_train_iter` (give it `every`), it logs those of the training batch, `train/images`,
    without a caption, for which the training would have to wait. Shown are the inputs, the first
    tensor of the batch that is one of images: (N, channels, height, width) with 1, 3 or 4 channels,
    or (N, height, width). With `output` that output of the task is shown in their place, e.g. what
    the model has painted, and names the image: `val/painted`. The caption has the `target` and the
    greatest of the `logits` of each, where the outputs have them; or what `caption` names.
    """

    settable = ("count", "rescale")
    points = ("after_val_iter",)
    ranks = "zero"
    reads: ClassVar[Slots] = ("batch", "outputs")

    count: Annotated[int, Field(ge=1, description="how many images at most")] = 16
    columns: Annotated[int, Field(ge=1, description="images in a row")] = 8
    output: Annotated[
        str | None, Field(description="the output to show; the inputs if left out")
    ] = None
    rescale: Annotated[
        bool, Field(description="scale floating-point images to 0…1, each by its own range")
    ] = True
    caption: Annotated[
        tuple[Literal["target", "predicted"], ...], Field(description="what the caption has")
    ] = (
        "target",
        "predicted",
    )

    def after_val_iter(self, run: Run, batch: Any, batch_idx: int, outputs: dict[str, Any]) -> None:
        if batch_idx == 0:
            facts = format_examples(outputs, self.count)
            captions = [f"{name} {facts[name]}" for name in self.caption if name in facts]
            name = self.output or "images"
            run.log_image(f"val/{name}", self._grid(batch, outputs), "; ".join(captions))

    def after_train_iter(self, run: Run, batch: Any, outputs: dict[str, Any]) -> None:
        name = self.output or "images"
        run.log_image(f"train/{name}", self._grid(batch, outputs))

    def _grid(self, batch: Any, outputs: Mapping[str, Any]) -> Tensor:
        searched = batch
        where = "the batch has"
        if self.output is not None:
            searched = read_output(outputs, self.output, "images")
            where = f'the output "{self.output}" is'
        result = first_images(searched)
        if result is None:
            message = (
                f"{where} no tensor of images, (N, channels, height, width) or (N, height, width)"
            )
            raise UserError(Problem(message, hint="output = … names an output of the task that is"))
        shown = result[: self.count].detach()
        if self.rescale and shown.is_floating_point():
            shown = rescale_images(shown)
        return make_grid(shown, self.columns)


def first_images(batch: Any) -> Tensor | None:
    """Return the first tensor of a batch that is one of images, as (N, channels, height, width)."""
    from torch import Tensor
    from torch.utils._pytree import tree_leaves

    for leaf in tree_leaves(batch):
        if not isinstance(leaf, Tensor):
            continue
        images = leaf
        if leaf.ndim == 3:
            images = leaf[:, None]
        if images.ndim == 4 and images.shape[1] in (1, 3, 4):
            return images
    return None


def rescale_images(images: Tensor) -> Tensor:
    """Return images (N, channels, height, width) of which each goes from 0 to 1.

    An image of a single value is 0.
    """
    low = images.amin((1, 2, 3), keepdim=True)
    high = images.amax((1, 2, 3), keepdim=True)
    return (images - low) / (high - low).clamp(min=1e-12)


def make_grid(images: Tensor, columns: int) -> Tensor:
    """Return images (N, channels, height, width) side by side, in rows of `columns`.

    The result has (channels, height, width). Between them is a line of a pixel, and what the last
    row lacks is left black.
    """
    count, channels, height, width = images.shape
    columns = min(columns, count)
    rows = ceil(count / columns)
    sheet = images.new_zeros(channels, rows * (height + 1) - 1, columns * (width + 1) - 1)
    for k, image in enumerate(images):
        top = k // columns * (height + 1)
        left = k % columns * (width + 1)
        sheet[:, top : top + height, left : left + width] = image
    return sheet


def format_examples(outputs: Mapping[str, Any], count: int) -> dict[str, str]:
    """Return the targets and predictions of the first examples, if there are any.

    This waits for the device.
    """
    facts = {}
    target: Any = outputs.get("target")
    if getattr(target, "ndim", 0) == 1:
        facts["target"] = target[:count].tolist()
    logits: Any = outputs.get("logits")
    if getattr(logits, "ndim", 0) == 2:
        facts["predicted"] = logits[:count].argmax(dim=1).tolist()
    return {name: " ".join(map(str, values)) for name, values in facts.items()}
