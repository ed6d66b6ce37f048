"""Changes of the Gaussians during their training: more of them where the image is wrong, fewer where they idle."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from hookflow.errors import Problem, UserError
from hookflow.hooks.base import Hook, Slots

if TYPE_CHECKING:
    from torch import Tensor

    from hookflow.hooks.run import Run


class Densify(Hook):
    """Adds Gaussians at pixels of the batch, drawn by how wrong the image is there, with the colour that is missing.

    The optimizer continues: what it has averaged of the Gaussians that were there stays, and is zero for new ones.
    """

    reads: ClassVar[Slots] = ("batch", "outputs")
    writes: ClassVar[Slots] = ("model", "grads", "optimizer", "rng")

    def __init__(
        self,
        count: Annotated[int, Field(ge=1, description="Gaussians to add at a time")] = 50,
        scale: Annotated[
            float, Field(gt=0, description="their standard deviation; the image is 2 wide and high")
        ] = 0.03,
    ) -> None:
        self.count = count
        self.scale = scale

    def before_train(self, run: Run) -> None:
        if run.world > 1:
            message = "Gaussians are added in one process: DDP does not know parameters that are made while it trains"
            raise UserError(Problem(message, hint="leave out --nproc"))

    def after_train_iter(self, run: Run, batch: tuple[Tensor, Tensor], outputs: dict[str, Any]) -> None:
        import torch

        places, residual = batch[0], outputs["residual"]
        count = min(self.count, len(places))
        chosen = torch.multinomial(residual.abs().sum(1) + 1e-9, count)
        run.task.densify(
            run,
            {
                "position": places[chosen],
                "scaling": places.new_full((count, 2), math.log(self.scale)),
                "rotation": places.new_zeros(count, 1),
                "colour": residual[chosen],
            },
        )
        run.log("gaussians", len(run.model))  # type: ignore[arg-type]  # the task's model has a length


class Prune(Hook):
    """Removes invisible Gaussians: those of less colour than a threshold in all three channels."""

    reads: ClassVar[Slots] = ("model",)
    writes: ClassVar[Slots] = ("model", "grads", "optimizer")

    def __init__(
        self,
        threshold: Annotated[float, Field(gt=0, description="the least colour that one may have, of 1")] = 0.01,
    ) -> None:
        self.threshold = threshold

    def after_densify(self, run: Run) -> None:
        colour: Any = run.model.colour
        run.task.prune(run, colour.detach().abs().amax(1) >= self.threshold)


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
        image = torch.cat([run.model(part) for part in picture.places.split(4096)]).reshape(picture.image.shape)
        if run.rank:
            return
        message = f"{len(run.model):,} Gaussians, PSNR {run.metric('psnr'):.1f} dB"  # type: ignore[arg-type]
        run.log_image("render", image, message)
