"""Predictions of the test data, written to a file; and test-time augmentation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, ClassVar, Literal

from pydantic import AfterValidator, Field

from hookflow.errors import Problem, UserError
from hookflow.events.rundir import of_rank, open_replacement
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.capabilities import HookCapabilities
from hookflow.hooks.tensors import read_output
from hookflow.numbers import strict_json

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hookflow.hooks.run import Run


class Predictions:
    """The rows of a pass over the data.

    `source` begins messages about wrong ones: "the task's outputs are".
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._batches: dict[str, list[Tensor]] = {}

    def add(self, predicted: Any) -> None:
        """Add the predictions of a batch. Raises UserError when these are no rows."""
        wrong = self._find_fault(predicted)
        if wrong:
            hint = "return a dict of tensors, each with a row for each example of the batch"
            raise UserError(Problem(f"{self._source} {wrong}", hint=hint))
        for name, rows in predicted.items():
            self._batches.setdefault(name, []).append(rows.detach().cpu())

    def _find_fault(self, predicted: Any) -> str:
        """Return what the predictions of a batch are, if they are no rows; "" where they are."""
        from torch import Tensor

        if not isinstance(predicted, Mapping):
            return f"a {type(predicted).__name__}"
        if not predicted:
            return "nothing"
        for name, rows in predicted.items():
            if not isinstance(rows, Tensor) or rows.ndim == 0:
                return f'"{name}", a {type(rows).__name__} without rows'
        lengths = {name: len(rows) for name, rows in predicted.items()}
        if len(set(lengths.values())) > 1:
            return " and ".join(f'"{name}" of {length} rows' for name, length in lengths.items())
        if self._batches and predicted.keys() != self._batches.keys():
            return f"{', '.join(predicted)}, and for a batch before {', '.join(self._batches)}"
        return ""

    def all(self) -> dict[str, Tensor]:
        """Return the rows of all batches, by name."""
        import torch

        return {name: torch.cat(batches) for name, batches in self._batches.items()}


def _write_npz(file: BinaryIO, rows: Mapping[str, Tensor]) -> None:
    import numpy as np

    np.savez(file, **{name: _array(tensor) for name, tensor in rows.items()})


def _write_jsonl(file: BinaryIO, rows: Mapping[str, Tensor]) -> None:
    columns = [_array(tensor).tolist() for tensor in rows.values()]
    for row in zip(*columns, strict=True):
        file.write(f"{strict_json(dict(zip(rows, row, strict=True)))}\n".encode())


def _array(tensor: Tensor) -> Any:
    import torch

    if tensor.dtype is torch.bfloat16:  # numpy has none
        return tensor.float().numpy()
    return tensor.numpy()


def _write_pt(file: BinaryIO, rows: Mapping[str, Tensor]) -> None:
    import torch

    torch.save(dict(rows), file)


WRITER_BY_SUFFIX: dict[str, Callable[[BinaryIO, Mapping[str, Tensor]], None]] = {
    ".npz": _write_npz,
    ".jsonl": _write_jsonl,
    ".pt": _write_pt,
}
"""The functions that write predictions, by suffix."""


def _check_suffix(file: str) -> str:
    if Path(file).suffix not in WRITER_BY_SUFFIX or Path(file).name != file:
        raise ValueError(
            f'"{file}" is no name of a file that ends in {", ".join(WRITER_BY_SUFFIX)}'
        )
    return file


@dataclass(eq=False)
class Predict(Hook):
    """Writes outputs of the task for every example of the test data to a file in the run directory.

    Each output is a tensor with a row for each example of the batch. A name that the outputs lack
    may be a key of the batch, such as the ids of the examples. Data with a `loader` add a column
    `index`, the place of an example in the dataset, unless an output of that name is written.

    Each rank writes the rows of its own shard, `predictions.rank1.npz`; of ranks that split layers
    among them, the first does. Each of several sets has a file, `predictions.ood.npz`. Predictions
    of a checkpoint for data without targets: `hookflow predict`.
    """

    capabilities = HookCapabilities(
        attach_blocker="it writes what a test predicts, and only hookflow's own loop has one"
    )

    reads: ClassVar[Slots] = {"after_test_iter": ("batch", "outputs")}

    outputs: Annotated[
        list[str],
        Field(min_length=1, description="outputs to write", examples=[["logits", "target"]]),
    ]
    file: Annotated[
        str, AfterValidator(_check_suffix), Field(description="its name: *.npz, *.jsonl or *.pt")
    ] = "predictions.npz"

    def __post_init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.rows = Predictions("the task's outputs are")
        self.indices: Sequence[Tensor] | None = None

    def before_test_epoch(self, run: Run) -> None:
        self._clear()
        data = run.data[run.split]
        if "index" not in self.outputs and hasattr(data, "indices"):
            self.indices = data.indices(0)

    def after_test_iter(self, batch: Any, batch_idx: int, outputs: Mapping[str, Any]) -> None:
        available: Mapping[str, Any] = outputs
        if isinstance(batch, Mapping):
            available = {**batch, **outputs}
        rows = {name: read_output(available, name, "predict") for name in self.outputs}
        if self.indices is not None:
            rows = {"index": self.indices[batch_idx], **rows}
        self.rows.add(rows)

    def after_test_epoch(self, run: Run) -> None:
        if not run.repeats_previous_rank:
            _, _, name_of_set = run.split.partition(".")
            file = run.dir / self.file
            if name_of_set:
                file = file.with_name(f"{file.stem}.{name_of_set}{file.suffix}")
            path = of_rank(file, run.rank)
            with open_replacement(path) as opened:
                WRITER_BY_SUFFIX[path.suffix](opened, self.rows.all())
            run.say(f"predictions are in {path.name}")
        self._clear()


Transform = Literal["hflip", "vflip", "rot90"]


OutputKind = Literal["scores", "map"]
"""The output of a network: numbers of the whole image, or numbers of each place in it."""


@dataclass(eq=False)
class TTA(Hook):
    """Averages the network's outputs over augmented views of each image in validation and test.

    Each transform makes views of each view before it, beside that itself: `hflip` and `vflip` a
    mirrored one, `rot90` three turned ones. So ["hflip", "vflip"] makes four. Images are (batch, …,
    height, width), and the network's only argument. A batch takes as many passes as there are
    views.

    An output (batch,) or (batch, numbers) is averaged as it is. It must have no place in the image:
    logits of classes have none, boxes and key points have one. Any other shape needs `output`: a
    "map" (batch, …, height, width) is turned back before it is averaged, "scores" are averaged as
    they are. The values of a map must have no direction, as those of a flow have.
    """

    reads: ClassVar[Slots] = dict.fromkeys(("around_val", "around_test"), ("model",))

    capabilities = HookCapabilities(
        attach_blocker=(
            "it replaces the forward pass of the network, which the loop may have compiled or"
            " wrapped"
        )
    )

    transforms: Annotated[
        list[Transform],
        Field(min_length=1, description="one after the other", examples=[["hflip", "vflip"]]),
    ]
    model: Annotated[
        str | None, Field(description="which of several models; the only one if left out")
    ] = None
    output: Annotated[
        OutputKind | None,
        Field(description="what the network returns, where that is more than numbers of an image"),
    ] = None

    def around_val(self, run: Run) -> Iterator[None]:
        if self.model is None:
            model: nn.Module = run.model
        else:
            model = run.models[self.model]
        outer = vars(model).get("forward")
        model.forward = average_views(model.forward, self.transforms, self.output)
        try:
            yield
        finally:
            if outer is None:
                del model.forward
            else:
                model.forward = outer

    around_test = around_val


def average_views(
    forward: Callable[..., Any], transforms: Sequence[Transform], kind: OutputKind | None
) -> Callable[[Tensor], Tensor]:
    """Return a forward pass that computes the mean of the outputs over all views of its images."""
    augmentations = list_views(transforms)

    def averaged(images: Tensor) -> Tensor:
        if images.ndim < 4:
            message = (
                "tta turns images (batch, channels, height, width), and is given"
                f" {(*images.shape,)}"
            )
            raise UserError(
                Problem(message, hint="the first argument of the network must be the images")
            )
        total: Any = None
        for view in augmentations:
            result = forward(turn_images(images, view))
            _check_output(result, kind)
            if kind == "map":
                result = turn_maps_back(result, view)
            if total is None:  # CUDA graphs write over their last output
                total = result.clone()
            else:
                total = total + result
        return total / len(augmentations)  # type: ignore[no-any-return]

    return averaged


def _check_output(result: Any, kind: OutputKind | None) -> None:
    """Raise UserError where an output cannot be averaged, or nothing says how."""
    if not hasattr(result, "mean"):
        message = (
            "tta averages outputs: the network must return one tensor, not a"
            f" {type(result).__name__}"
        )
        raise UserError(Problem(message))
    shape = (*result.shape,)
    if kind is None and result.ndim > 2:
        message = (
            f"the network returns {shape}, and nothing says to tta whether that has a place in the"
            " image"
        )
        hint = (
            'say it: output = "map" for (batch, …, height, width), which is turned back, or output'
            ' = "scores"'
        )
        raise UserError(Problem(message, hint=hint))
    if kind == "map" and result.ndim < 3:
        message = f"the network returns {shape}, and tta needs a map (batch, …, height, width)"
        raise UserError(Problem(message))


View = tuple[Transform | Literal["rot180", "rot270"], ...]
"""The changes of an image, one after the other."""

MADE_BY: dict[Transform, tuple[View, ...]] = {
    "hflip": (("hflip",),),
    "vflip": (("vflip",),),
    "rot90": (("rot90",), ("rot180",), ("rot270",)),
}
"""The views that each transform makes of a view."""


def list_views(transforms: Sequence[Transform]) -> list[View]:
    """Return all views of an image, itself first."""
    result: list[View] = [()]
    for transform in transforms:
        made = []
        for view in result:
            for further in MADE_BY[transform]:
                made.append((*view, *further))
        result = [*result, *made]
    return result


QUARTER_TURNS = {"rot90": 1, "rot180": 2, "rot270": 3}


def turn_images(images: Tensor, view: View) -> Tensor:
    """Return images (…, height, width) as a view shows them."""
    for step in view:
        images = _step(images, step, 1)
    return images


def turn_maps_back(maps: Tensor, view: View) -> Tensor:
    """Return maps (…, height, width) of a view as the image itself lies."""
    for step in reversed(view):
        maps = _step(maps, step, -1)
    return maps


def _step(images: Tensor, step: str, direction: int) -> Tensor:
    """Return images after one step, or before it where the direction is -1."""
    if step == "hflip":
        return images.flip(-1)
    if step == "vflip":
        return images.flip(-2)
    return images.rot90(direction * QUARTER_TURNS[step], (-2, -1))
