"""The hooks of the shipped pipelines: whitening, a number of Gaussians that changes,
and texts that a model writes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from hookflow.errors import Problem, UserError
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.tensors import make_shard_like

if TYPE_CHECKING:
    from torch import Tensor

    from hookflow.hooks.run import Run

WHITENING_IMAGES = 5000
"""How many images the covariance is taken over; it is known to a per cent or so by then."""

WHITENING_EPS = 5e-4
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
            message = (
                "the hook needs a model with a convolution named whiten;"
                f" {type(run.model).__name__} has none"
            )
            raise UserError(Problem(message))
        if run.iter == 0:
            with torch.no_grad():
                images = run.data["train"].sample(WHITENING_IMAGES)
                weights = compute_whitening_weights(images, layer.weight.shape)
                layer.weight.copy_(make_shard_like(weights, layer.weight))


def compute_whitening_weights(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return convolution weights of `shape` (filters, channels, height, width) that whiten patches
    of `images`.

    Half the filters are the principal directions of the patches, the strongest first, each divided
    by the root of its eigenvalue; the other half are their negatives, so that a rectifier behind
    them loses nothing. There must be an even number of filters, at most twice the values of a
    patch.
    """
    import torch

    filters, channels, height, width = shape
    patches = images.unfold(2, height, 1).unfold(3, width, 1)
    patches = patches.permute(0, 2, 3, 1, 4, 5).reshape(-1, channels * height * width)
    covariance = patches.T @ patches / len(patches)
    variances, directions = torch.linalg.eigh(covariance)  # ascending
    scaled = directions / (variances + WHITENING_EPS).sqrt()
    strongest = scaled.T.flip(0)[: filters // 2]
    return torch.cat((strongest, -strongest)).reshape(shape)


@dataclass(eq=False)
class Densify(Hook):
    """Adds Gaussians at pixels of the batch, drawn by how wrong the image is there, with the colour
    that is missing.

    The optimizer continues: what it has averaged of the Gaussians that were there stays, and is
    zero for new ones.
    """

    settable = ("count", "scale")

    reads: ClassVar[Slots] = ("batch", "outputs")
    writes: ClassVar[Slots] = ("model", "grads", "optimizer", "rng")

    count: Annotated[int, Field(ge=1, description="Gaussians to add at a time")] = 50
    scale: Annotated[
        float, Field(gt=0, description="their standard deviation; the image is 2 wide and high")
    ] = 0.03

    def before_train(self, run: Run) -> None:
        if run.world > 1:
            message = (
                "Gaussians are added in one process: DDP does not know parameters that are made"
                " while it trains"
            )
            raise UserError(Problem(message, hint="leave out --nproc"))

    def after_train_iter(
        self, run: Run, batch: tuple[Tensor, Tensor], outputs: dict[str, Any]
    ) -> None:
        import torch

        places = batch[0]
        residual = outputs["residual"]
        count = min(self.count, len(places))
        errors = residual.abs().sum(1)
        chosen = torch.multinomial(errors + 1e-9, count)
        gaussians = {
            "position": places[chosen],
            "scaling": places.new_full((count, 2), math.log(self.scale)),
            "rotation": places.new_zeros(count, 1),
            "colour": residual[chosen],
        }
        run.task.densify(run, gaussians)
        run.log("gaussians", len(run.model))  # type: ignore[arg-type]  # the task's model has a length


@dataclass(eq=False)
class Prune(Hook):
    """Removes invisible Gaussians: those of less colour than a threshold in all three channels."""

    settable = ("threshold",)

    reads: ClassVar[Slots] = ("model",)
    writes: ClassVar[Slots] = ("model", "grads", "optimizer")

    threshold: Annotated[
        float, Field(gt=0, description="the least colour that one may have, of 1")
    ] = 0.01

    def after_densify(self, run: Run) -> None:
        colour: Any = run.model.colour
        strength = colour.detach().abs().amax(1)
        run.task.prune(run, strength >= self.threshold)


class Render(Hook):
    """Logs the image as it is after each validation, and the target once.

    All ranks draw it, and the first logs it: of a model that is sharded none could call it alone.
    """

    reads: ClassVar[Slots] = {"after_val": ("model", "metrics")}

    def before_train(self, run: Run) -> None:
        if run.iter == 0 and run.rank == 0:
            run.log_image("target", run.data["train"].image)

    def after_val(self, run: Run) -> None:
        import torch

        picture = run.data["train"]
        colours = [run.model(places) for places in picture.places.split(4096)]
        if run.rank:
            return
        image = torch.cat(colours).reshape(picture.image.shape)
        caption = f"{len(run.model):,} Gaussians, PSNR {run.metric('psnr'):.1f} dB"  # type: ignore[arg-type]
        run.log_image("render", image, caption)


@dataclass(eq=False)
class Sample(Hook):
    """Logs a text that the model writes after each validation, of bytes that it draws one by one.

    All ranks let it write, the same, and the first logs it: of a model that is sharded none could
    call it alone.
    """

    settable = ("prompt", "count", "temperature")

    reads: ClassVar[Slots] = ("model",)

    prompt: Annotated[str, Field(min_length=1, description="what the text begins with")] = "# "
    count: Annotated[int, Field(ge=1, description="how many bytes the model adds")] = 200
    temperature: Annotated[float, Field(gt=0, description="below 1: less random")] = 0.8

    def after_val(self, run: Run) -> None:
        from hookflow.zoo.chargpt import decode, encode, write

        context: int = run.model.context  # type: ignore[assignment]
        prompt = encode(self.prompt).to(run.device)
        tokens = write(run.model, prompt, self.count, self.temperature, context, seed=run.iter)
        if run.rank == 0:
            run.log_text("sample", decode(tokens))
