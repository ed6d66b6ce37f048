"""Test-time augmentation: the network's outputs are averaged over several views of each image."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from hookflow.errors import Problem, UserError, nearest
from hookflow.hooks.base import Hook, Slots

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hookflow.hooks.run import Run


_SHIFT = re.compile(r"shift\((\d+)\)")


def _transform(written: str) -> str:
    if written not in VIEWS and not ((found := _SHIFT.fullmatch(written)) and int(found[1]) > 0):
        hint = nearest(written, (*VIEWS, "shift(2)")) or f"there are {', '.join(VIEWS)}, shift(N), e.g. shift(2)"
        raise ValueError(f'unknown transform "{written}"; {hint}')
    return written


class TTA(Hook):
    """Averages the network's outputs over augmented views of each image in validation and test.

    Each transform makes views of each view before it, beside that itself: `hflip` and `vflip` a mirrored one, `rot90`
    three turned ones, `shift(N)` two that are moved by N pixels along the diagonal, with reflected borders. So
    ["hflip", "shift(1)"] makes six. Images are (batch, channels, height, width), and the network's only argument; what
    it returns has no place in the image, as the logits of classes. A batch takes as many passes as there are views.
    """

    reads: ClassVar[Slots] = dict.fromkeys(("around_val", "around_test"), ("model",))

    def __init__(
        self,
        transforms: Annotated[
            list[Annotated[str, AfterValidator(_transform)]],
            Field(
                min_length=1,
                description="hflip, vflip, rot90 or shift(N), one after the other",
                examples=[["hflip", "shift(2)"]],
            ),
        ],
        model: Annotated[str | None, Field(description="which of several models; the only one if left out")] = None,
    ) -> None:
        self.transforms = transforms
        self.model = model

    def around_val(self, run: Run) -> Iterator[None]:
        model: nn.Module = run.model if self.model is None else run.models[self.model]
        outer = vars(model).get("forward")
        model.forward = averaging(model.forward, self.transforms)
        yield
        if outer is None:
            del model.forward
        else:
            model.forward = outer

    around_test = around_val


def averaging(forward: Callable[..., Any], transforms: Sequence[str]) -> Callable[[Tensor], Tensor]:
    """Return what computes the mean of the outputs over all views of its images."""

    def averaged(images: Tensor) -> Tensor:
        total: Any = None
        made = views(images, transforms)
        for view in made:
            output = forward(view)
            if not hasattr(output, "mean"):
                said = f"tta averages outputs: the network must return one tensor, not a {type(output).__name__}"
                raise UserError(Problem(said))
            total = output.clone() if total is None else total + output  # CUDA graphs write over their last output
        return total / len(made)  # type: ignore[no-any-return]

    return averaged


def views(images: Tensor, transforms: Sequence[str]) -> list[Tensor]:
    """Return all views of images, themselves first."""
    found = [images]
    for transform in transforms:
        found = [*found, *(view for image in found for view in _others(transform, image))]
    return found


def _others(transform: str, images: Tensor) -> list[Tensor]:
    return VIEWS[transform](images) if transform in VIEWS else _shifted(images, int(transform[6:-1]))


def _shifted(images: Tensor, by: int) -> list[Tensor]:
    """Return images moved by so many pixels down and to the right, and up and to the left."""
    from torch.nn.functional import pad

    padded = pad(images, (by, by, by, by), mode="reflect")
    height, width = images.shape[-2:]
    return [padded[..., :height, :width], padded[..., 2 * by :, 2 * by :]]


VIEWS: dict[str, Callable[[Tensor], list[Tensor]]] = {
    "hflip": lambda images: [images.flip(-1)],
    "vflip": lambda images: [images.flip(-2)],
    "rot90": lambda images: [images.rot90(turns, (-2, -1)) for turns in (1, 2, 3)],
}
