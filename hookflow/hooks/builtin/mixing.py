"""Changed training batches: examples mixed with one another (mixup, cutmix), and resized images."""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from hookflow.errors import Problem, UserError
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.builtin.schedules import Curve, Scales, at_iterations, value_at

if TYPE_CHECKING:
    from torch import Tensor

    from hookflow.hooks.run import Run


def with_parts(batch: tuple[Any, ...] | list[Any], *parts: Any) -> Any:
    """Return a batch of the same type, a named tuple too, with other parts."""
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*parts)
    return type(batch)(parts)


@dataclass(eq=False)
class Mixup(Hook):
    """Replaces each training batch by weighted means of pairs of its examples.

    Targets are mixed alike. The weight lambda is drawn from Beta(alpha, alpha), one for the batch.
    A batch is a pair of inputs, (examples, …), and of classes, (examples,), or shares of classes,
    (examples, classes). The new targets are such shares, which `torch.nn.functional.cross_entropy`
    takes. Other targets, boxes or masks say, are refused. Evaluations see the examples as they are.
    Source: Zhang et al., "mixup: Beyond Empirical Risk Minimization" (2018).
    """

    reads: ClassVar[Slots] = {"before_train_iter": ("batch",)}
    writes: ClassVar[Slots] = {"before_train_iter": ("batch", "rng")}

    classes: Annotated[int, Field(ge=2, examples=[10], description="the number of classes")]
    alpha: Annotated[
        float, Field(gt=0, description="both parameters of the Beta distribution of lambda")
    ] = 0.2
    probability: Annotated[
        float, Field(ge=0, le=1, description="the share of batches that are mixed")
    ] = 1.0

    def before_train_iter(self, run: Run, batch: Any) -> None:
        import torch

        self._check(batch)
        inputs, targets = batch
        if self.probability < 1 and random.random() >= self.probability:  # noqa: S311  # nothing secret is made
            return
        share = random.betavariate(self.alpha, self.alpha)
        others = torch.randperm(len(inputs)).to(inputs.device)
        mixed, share = self.mix(inputs, inputs[others], share)
        if targets.is_floating_point():
            shares = targets
        else:
            shares = self._one_hot(targets, mixed)
        run.replace_batch(with_parts(batch, mixed, share * shares + (1 - share) * shares[others]))

    def _check(self, batch: Any) -> None:
        """Raise UserError for a batch that is no pair of inputs and classes, or shares of them."""
        from torch import Tensor

        elsewhere = "mix in the collate function of the loader"
        is_pair = isinstance(batch, tuple | list) and len(batch) == 2
        if not is_pair or not all(isinstance(part, Tensor) for part in batch):
            message = (
                f'hook "{self.name}" mixes batches of inputs and classes, and this is a'
                f" {type(batch).__name__}"
            )
            raise UserError(Problem(message, hint=elsewhere))
        inputs, targets = batch
        examples = len(inputs)
        wanted: tuple[int, ...] = (examples,)
        if targets.is_floating_point():
            wanted = (examples, self.classes)
        if targets.shape != wanted or targets.is_complex():
            given = f"{targets.dtype} {(*targets.shape,)}"
            message = (
                f'hook "{self.name}" mixes classes ({examples},), or their shares ({examples},'
                f" {self.classes})"
            )
            hint = f"boxes, masks and other places are not mixed as these are: {elsewhere}"
            raise UserError(Problem(f"{message}, and the targets are {given}", hint=hint))

    def _one_hot(self, targets: Tensor, like: Tensor) -> Tensor:
        """Return classes as shares (examples, classes), all of one class.

        Raises UserError for what is no class. On a device other than the CPU, that is an assertion
        of the device: to look would be to wait.
        """
        hard = like.new_zeros(len(targets), self.classes)  # one_hot would wait for the device
        try:
            return hard.scatter_(1, targets[:, None].long(), 1.0)
        except RuntimeError as error:
            if targets.device.type != "cpu":
                raise
            message = (
                f'hook "{self.name}" mixes classes from 0 to {self.classes - 1}, and a target is'
                " none of them"
            )
            hint = "a target that is ignored, such as -100, has no share that could be mixed"
            raise UserError(Problem(message, hint=hint)) from error

    def mix(self, inputs: Tensor, others: Tensor, share: float) -> tuple[Tensor, float]:
        """Return examples mixed with others, and the share of the first in them."""
        return share * inputs + (1 - share) * others, share


@dataclass(eq=False)
class CutMix(Mixup):
    """Replaces a box in each training example by that of another example.

    Targets are mixed by the share of the box. The box has the shape of the image and the share 1 −
    lambda of its area; where it leaves the image, lambda is the rest. It lies in the dimensions
    behind (examples, channels); of inputs of two dimensions, in the second one. Batches and targets
    are those of `mixup`. Source: Yun et al., "CutMix" (2019).
    """

    phase = "late"  # behind mixup, where both are there

    alpha: Annotated[
        float, Field(gt=0, description="both parameters of the Beta distribution of lambda")
    ] = 1.0

    def mix(self, inputs: Tensor, others: Tensor, share: float) -> tuple[Tensor, float]:
        sizes = inputs.shape[2 if inputs.ndim > 2 else 1 :]
        half = sqrt(1 - share) / 2
        box = [slice(None)] * (inputs.ndim - len(sizes))
        kept = 1.0
        for size in sizes:
            centre = random.randrange(size)  # noqa: S311  # nothing secret is made
            low = max(centre - int(size * half), 0)
            high = min(centre + int(size * half), size)
            box.append(slice(low, high))
            kept *= (high - low) / size
        mixed = inputs.clone()
        mixed[tuple(box)] = others[tuple(box)]
        return mixed, 1 - kept


TargetKind = Literal["keep", "pixels", "map"]
"""The change of a target when its image is resized."""


@dataclass(eq=False)
class Resize(Hook):
    """Resizes the images of each training batch by a factor that grows over the run.

    That is progressive resizing. Small images at first make iterations cheap; the network must
    accept any size, as with global pooling. The factor depends on the iteration alone, so a resume
    needs no state. Images are the first part of a batch, (examples, channels, …). They are
    interpolated bilinearly, with antialiasing; volumes and series linearly, without.

    `targets` sets the change of each further part of a batch. "keep" leaves it as it is, such as
    classes, or boxes in shares of the image. "pixels" scales places (examples, …, x and y in turn),
    such as boxes and key points; the middle of the first pixel is at 0.5. "map" resizes a tensor
    (examples, …, height, width) of the size of the image: classes, which are integers, by the
    nearest pixel, other numbers as the images. Left out, integers (examples,), such as classes, and
    texts are kept, and everything else is refused.

    Other batches are refused in the first iteration, since none is fetched before it; a dry run has
    one, too. Evaluations see the images as they are. Source: Howard's fast.ai courses, and Tan and
    Le, "EfficientNetV2" (2021).
    """

    phase = "early"  # what mixes images then mixes small ones
    reads: ClassVar[Slots] = {"before_train_iter": ("batch",)}
    writes: ClassVar[Slots] = {"before_train_iter": ("batch",)}

    scales: Annotated[Scales, Field(description="factors of the sides, each at its place")] = (
        (0, 0.5),
        ("80%", 1.0),
    )
    shape: Annotated[Curve, Field(description="the way from one factor to the next")] = "linear"
    multiple: Annotated[int, Field(ge=1, description="of which number each side is a multiple")] = 1
    targets: Annotated[
        tuple[TargetKind, ...] | None,
        Field(
            description="what becomes of each part of a batch behind the images",
            examples=[["pixels", "keep"]],
        ),
    ] = None

    def before_train(self, run: Run) -> None:
        self.places = at_iterations("scales", self.scales, run)

    def before_train_iter(self, run: Run, batch: Any) -> None:
        images = self._find_images(batch)
        kinds = self._find_target_kinds(batch)
        scale = value_at(run.iter, self.places, self.shape)
        sizes = [
            max(round(side * scale / self.multiple), 1) * self.multiple for side in images.shape[2:]
        ]
        for kind, target in zip(kinds, batch[1:], strict=True):
            self._check_target(kind, target, images)
        if sizes == [*images.shape[2:]]:
            return
        targets = [
            self._resize_target(kind, part, images, sizes)
            for kind, part in zip(kinds, batch[1:], strict=True)
        ]
        run.replace_batch(with_parts(batch, interpolated(images, sizes), *targets))

    def _find_images(self, batch: Any) -> Tensor:
        """Return the images of a batch. Raises UserError where it does not begin with any."""
        from torch import Tensor

        images = None
        if isinstance(batch, tuple | list) and batch:
            images = batch[0]
        if isinstance(images, Tensor) and images.ndim in INTERPOLATION_MODES:
            return images
        if images is None:
            first = batch
        else:
            first = images
        shape = ""
        if isinstance(images, Tensor):
            shape = f" of shape {(*images.shape,)}"
        wanted = f'hook "{self.name}" resizes (images, …) of shape (examples, channels, …)'
        message = f"{wanted}, and this batch begins with a {type(first).__name__}{shape}"
        raise UserError(Problem(message, hint=IN_THE_DATASET))

    def _find_target_kinds(self, batch: Any) -> tuple[TargetKind, ...]:
        """Return what becomes of each part behind the images.

        Raises UserError where nothing says it.
        """
        parts = batch[1:]
        if self.targets is None:
            for k, part in enumerate(parts, 1):
                if not _has_no_place(part):
                    raise self._make_unstated_error(k, part)
            return tuple("keep" for _ in parts)
        if len(self.targets) != len(parts):
            message = (
                f'hook "{self.name}" has targets = {[*self.targets]}, and a batch has {len(parts)}'
                " parts"
            )
            raise UserError(Problem(f"{message} behind the images"))
        return self.targets

    def _make_unstated_error(self, number: int, part: Any) -> UserError:
        shape = ""
        if hasattr(part, "dtype"):
            shape = f" of {part.dtype} {(*part.shape,)}"
        message = (
            f'hook "{self.name}" resizes images, and nothing says what becomes of part {number} of'
            " the batch"
        )
        hint = f'say it: targets = ["keep"], ["pixels"] or ["map"]; or {IN_THE_DATASET}'
        return UserError(Problem(f"{message}, a {type(part).__name__}{shape}", hint=hint))

    def _check_target(self, kind: TargetKind, target: Any, images: Tensor) -> None:
        """Raise UserError for a target that cannot be what the argument says."""
        from torch import Tensor

        if kind == "keep":
            return
        if isinstance(target, Tensor):
            shape = (*target.shape,)
        else:
            shape = ()
        if kind == "map":
            wanted = f"a tensor (examples, …, {', '.join(map(str, images.shape[2:]))})"
            fits = (
                shape[-len(images.shape[2:]) :] == images.shape[2:]
                and len(shape) >= images.ndim - 1
            )
        else:
            wanted = (
                "a floating-point tensor (examples, …, x and y in turn) beside images of two sides"
            )
            fits = (
                images.ndim == 4
                and len(shape) > 1
                and shape[-1] % 2 == 0
                and target.is_floating_point()
            )
        if not fits:
            if isinstance(target, Tensor):
                given = f"{target.dtype} {shape}"
            else:
                given = f"a {type(target).__name__}"
            message = (
                f'hook "{self.name}" needs {wanted} for a target that is "{kind}", and is given'
                f" {given}"
            )
            raise UserError(Problem(message, hint=IN_THE_DATASET))

    def _resize_target(
        self, kind: TargetKind, target: Any, images: Tensor, sizes: list[int]
    ) -> Any:
        """Return a target as it is beside images of other sizes."""
        if kind == "keep":
            return target
        if kind == "map":
            return interpolated_map(target, sizes)
        height, width = images.shape[2:]
        factors = target.new_tensor([sizes[1] / width, sizes[0] / height])
        return target * factors.repeat(target.shape[-1] // 2)


IN_THE_DATASET = "resize in the dataset, which knows the epoch by set_epoch"

INTERPOLATION_MODES = {3: "linear", 4: "bilinear", 5: "trilinear"}
"""How inputs of so many dimensions are interpolated."""


def _has_no_place(part: Any) -> bool:
    """Say whether a part of a batch is one integer an example, or texts.

    Such a part has no place in the image.
    """
    from torch import Tensor

    if isinstance(part, Tensor):
        return part.ndim == 1 and not part.is_floating_point() and not part.is_complex()
    return isinstance(part, list | tuple) and all(isinstance(item, str) for item in part)


def interpolated(images: Tensor, sizes: list[int]) -> Tensor:
    """Return images (examples, channels, …) of other sizes."""
    from torch.nn import functional

    return functional.interpolate(
        images, sizes, mode=INTERPOLATION_MODES[images.ndim], antialias=images.ndim == 4
    )


def interpolated_map(target: Tensor, sizes: list[int]) -> Tensor:
    """Return maps (examples, …, *sides) of other sizes.

    Integers, which are classes, are taken from the nearest pixel.
    """
    from torch.nn import functional

    sides = len(sizes)
    channels = target.reshape(len(target), -1, *target.shape[-sides:])
    if target.is_floating_point():
        result = interpolated(channels, sizes)
    else:
        result = functional.interpolate(channels.double(), sizes, mode="nearest-exact").to(
            target.dtype
        )
    return result.reshape(*target.shape[:-sides], *sizes)
