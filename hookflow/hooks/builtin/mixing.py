"""Changed training batches: examples mixed with one another (mixup, cutmix), and images that grow (resize)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from hookflow.errors import Problem, UserError
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.builtin.schedules import Curve, Scales, at_iterations, value_at

if TYPE_CHECKING:
    from torch import Tensor

    from hookflow.hooks.run import Run


@dataclass(eq=False)
class Mixup(Hook):
    """Replaces each training batch by weighted means of pairs of its examples, with targets mixed alike.

    The weight lambda is drawn from Beta(alpha, alpha), one for the batch. A batch is a pair of inputs, (examples, …),
    and of classes, (examples,), or shares of classes, (examples, classes). The new targets are such shares, which
    `torch.nn.functional.cross_entropy` takes. Evaluations see the examples as they are. Source: Zhang et al., "mixup:
    Beyond Empirical Risk Minimization" (2018).
    """

    reads: ClassVar[Slots] = {"before_train_iter": ("batch",)}
    writes: ClassVar[Slots] = {"before_train_iter": ("batch", "rng")}

    classes: Annotated[int, Field(ge=2, examples=[10], description="the number of classes")]
    alpha: Annotated[float, Field(gt=0, description="both parameters of the Beta distribution of lambda")] = 0.2
    probability: Annotated[float, Field(ge=0, le=1, description="the share of batches that are mixed")] = 1.0

    def before_train_iter(self, run: Run, batch: Any) -> None:
        import torch

        if len(batch) != 2 or not all(isinstance(part, torch.Tensor) for part in batch):
            message = f'hook "{self.name}" mixes batches of inputs and classes, and this is a {type(batch).__name__}'
            raise UserError(Problem(message, hint="mix in the collate function of the loader"))
        inputs, targets = batch
        if self.probability < 1 and random.random() >= self.probability:  # noqa: S311  # nothing secret is made
            return
        share = random.betavariate(self.alpha, self.alpha)
        others = torch.randperm(len(inputs)).to(inputs.device)
        mixed, share = self.mix(inputs, inputs[others], share)
        if not targets.is_floating_point():
            hard = mixed.new_zeros(len(targets), self.classes)  # one_hot would wait for the device
            targets = hard.scatter_(1, targets[:, None], 1.0)
        run.replace_batch((mixed, share * targets + (1 - share) * targets[others]))

    def mix(self, inputs: Tensor, others: Tensor, share: float) -> tuple[Tensor, float]:
        """Return examples mixed with others, and the share of the first in them."""
        return share * inputs + (1 - share) * others, share


@dataclass(eq=False)
class CutMix(Mixup):
    """Replaces a box in the examples of each training batch by the box of another example, with targets mixed alike.

    The box has the shape of the image and the share 1 − lambda of its area; where it leaves the image, lambda is the
    rest. It lies in the dimensions behind (examples, channels); of inputs of two dimensions, in the second one. Batches
    and targets are those of `mixup`. Source: Yun et al., "CutMix" (2019).
    """

    phase = "late"  # behind mixup, where both are there

    alpha: Annotated[float, Field(gt=0, description="both parameters of the Beta distribution of lambda")] = 1.0

    def mix(self, inputs: Tensor, others: Tensor, share: float) -> tuple[Tensor, float]:
        sizes = inputs.shape[2 if inputs.ndim > 2 else 1 :]
        half = sqrt(1 - share) / 2
        box, kept = [slice(None)] * (inputs.ndim - len(sizes)), 1.0
        for size in sizes:
            centre = random.randrange(size)  # noqa: S311  # nothing secret is made
            low, high = max(centre - int(size * half), 0), min(centre + int(size * half), size)
            box.append(slice(low, high))
            kept *= (high - low) / size
        mixed = inputs.clone()
        mixed[tuple(box)] = others[tuple(box)]
        return mixed, 1 - kept


@dataclass(eq=False)
class Resize(Hook):
    """Resizes the images of each training batch by a factor that grows over the run: progressive resizing.

    Small images at first make iterations cheap; the network must accept any size, as with global pooling. The factor
    depends on the iteration alone, so a resume needs no state. Images are the first part of a batch, (examples,
    channels, …). They are interpolated bilinearly, with antialiasing; volumes and series linearly, without.
    Other batches are refused in the first iteration, since none is fetched before it; a dry run has one, too.
    Evaluations see the images as they are. Source: Howard's fast.ai courses, and Tan and Le, "EfficientNetV2" (2021).
    """

    phase = "early"  # what mixes images then mixes small ones
    reads: ClassVar[Slots] = {"before_train_iter": ("batch",)}
    writes: ClassVar[Slots] = {"before_train_iter": ("batch",)}

    scales: Annotated[Scales, Field(description="factors of the sides, each at its place")] = ((0, 0.5), ("80%", 1.0))
    shape: Annotated[Curve, Field(description="the way from one factor to the next")] = "linear"
    multiple: Annotated[int, Field(ge=1, description="of which number each side is a multiple")] = 1

    def before_train(self, run: Run) -> None:
        self.places = at_iterations("scales", self.scales, run)

    def before_train_iter(self, run: Run, batch: Any) -> None:
        import torch

        images = batch[0] if isinstance(batch, tuple | list) else None
        if not isinstance(images, torch.Tensor) or images.ndim not in MODES:
            first = batch if images is None else images
            shape = f" of shape {(*images.shape,)}" if isinstance(images, torch.Tensor) else ""
            wanted = f'hook "{self.name}" resizes (images, …) of shape (examples, channels, …)'
            message = f"{wanted}, and this batch begins with a {type(first).__name__}{shape}"
            raise UserError(Problem(message, hint="resize in the dataset, which knows the epoch by set_epoch"))
        scale = value_at(run.iter, self.places, self.shape)
        sizes = [max(round(side * scale / self.multiple), 1) * self.multiple for side in images.shape[2:]]
        if sizes == [*images.shape[2:]]:
            return
        smooth = images.ndim == 4
        new = torch.nn.functional.interpolate(images, sizes, mode=MODES[images.ndim], antialias=smooth)
        run.replace_batch((new, *batch[1:]))


MODES = {3: "linear", 4: "bilinear", 5: "trilinear"}
"""How inputs of so many dimensions are interpolated."""
