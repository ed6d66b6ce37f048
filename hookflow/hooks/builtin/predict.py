"""Predictions of the test data, written to a file; and test-time augmentation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, ClassVar, Literal

from pydantic import AfterValidator, Field

from hookflow.errors import Problem, UserError
from hookflow.events.rundir import of_rank, whole
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.tensors import output
from hookflow.numbers import strict_json

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hookflow.hooks.run import Run


class Predictions:
    """The rows of a pass over the data; `source` begins messages about wrong ones: "the task's outputs are"."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._batches: dict[str, list[Tensor]] = {}

    def add(self, predicted: Any) -> None:
        """Add the predictions of a batch. Raises UserError when these are no rows."""
        from torch import Tensor

        wrong = ""
        if not isinstance(predicted, Mapping):
            wrong = f"a {type(predicted).__name__}"
        elif not predicted:
            wrong = "nothing"
        elif no_rows := [name for name, rows in predicted.items() if not isinstance(rows, Tensor) or not rows.ndim]:
            wrong = f'"{no_rows[0]}", a {type(predicted[no_rows[0]]).__name__} without rows'
        elif len({len(rows) for rows in predicted.values()}) > 1:
            wrong = " and ".join(f'"{name}" of {len(rows)} rows' for name, rows in predicted.items())
        elif self._batches and predicted.keys() != self._batches.keys():
            wrong = f"{', '.join(predicted)}, and for a batch before {', '.join(self._batches)}"
        if wrong:
            hint = "return a dict of tensors, each with a row for each example of the batch"
            raise UserError(Problem(f"{self._source} {wrong}", hint=hint))
        for name, rows in predicted.items():
            self._batches.setdefault(name, []).append(rows.detach().cpu())

    def all(self) -> dict[str, Tensor]:
        """Return the rows of all batches, by name."""
        import torch

        return {name: torch.cat(batches) for name, batches in self._batches.items()}


def _npz(file: BinaryIO, rows: Mapping[str, Tensor]) -> None:
    import numpy as np

    np.savez(file, **{name: _array(tensor) for name, tensor in rows.items()})


def _jsonl(file: BinaryIO, rows: Mapping[str, Tensor]) -> None:
    columns = [_array(tensor).tolist() for tensor in rows.values()]
    for row in zip(*columns, strict=True):
        file.write(f"{strict_json(dict(zip(rows, row, strict=True)))}\n".encode())


def _array(tensor: Tensor) -> Any:
    import torch

    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()


def _pt(file: BinaryIO, rows: Mapping[str, Tensor]) -> None:
    import torch

    torch.save(dict(rows), file)


WRITERS: dict[str, Callable[[BinaryIO, Mapping[str, Tensor]], None]] = {".npz": _npz, ".jsonl": _jsonl, ".pt": _pt}
"""The functions that write predictions, by suffix."""


def _known_ending(file: str) -> str:
    if Path(file).suffix not in WRITERS or Path(file).name != file:
        raise ValueError(f'"{file}" is no name of a file that ends in {", ".join(WRITERS)}')
    return file


@dataclass(eq=False)
class Predict(Hook):
    """Writes outputs of the task for every example of the test data to a file in the run directory.

    Each output is a tensor with a row for each example of the batch. A name that the outputs lack may be a key of the
    batch, such as the ids of the examples. Each rank writes the rows of its own shard, `predictions.rank1.npz`; of
    ranks that split layers among them, the first does. Predictions of a checkpoint for data without targets:
    `hookflow predict`.
    """

    reads: ClassVar[Slots] = {"after_test_iter": ("batch", "outputs")}

    outputs: Annotated[list[str], Field(min_length=1, description="outputs to write", examples=[["logits", "target"]])]
    file: Annotated[str, AfterValidator(_known_ending), Field(description="its name: *.npz, *.jsonl or *.pt")] = (
        "predictions.npz"
    )

    def before_test_epoch(self) -> None:
        self.rows = Predictions("the task's outputs are")

    def __post_init__(self) -> None:
        self.before_test_epoch()

    def after_test_iter(self, batch: Any, outputs: Mapping[str, Any]) -> None:
        there = {**batch, **outputs} if isinstance(batch, Mapping) else outputs
        self.rows.add({name: output(there, name, "predict") for name in self.outputs})

    def after_test_epoch(self, run: Any) -> None:  # `repeats` is not of the public protocol
        if not run.repeats:
            path = of_rank(run.dir / self.file, run.rank)
            with whole(path) as file:
                WRITERS[path.suffix](file, self.rows.all())
            run.say(f"predictions are in {path.name}")
        self.before_test_epoch()


Transform = Literal["hflip", "vflip", "rot90"]


@dataclass(eq=False)
class TTA(Hook):
    """Averages the network's outputs over augmented views of each image in validation and test.

    Each transform makes views of each view before it, beside that itself: `hflip` and `vflip` a mirrored one, `rot90`
    three turned ones. So ["hflip", "vflip"] makes four. Images are (batch, channels, height, width), and the network's
    only argument; what it returns has no place in the image, as the logits of classes. A batch takes as many passes as
    there are views.
    """

    reads: ClassVar[Slots] = dict.fromkeys(("around_val", "around_test"), ("model",))

    transforms: Annotated[
        list[Transform], Field(min_length=1, description="one after the other", examples=[["hflip", "vflip"]])
    ]
    model: Annotated[str | None, Field(description="which of several models; the only one if left out")] = None

    def around_val(self, run: Run) -> Iterator[None]:
        model: nn.Module = run.model if self.model is None else run.models[self.model]
        outer = vars(model).get("forward")
        model.forward = averaging(model.forward, self.transforms)
        try:
            yield
        finally:
            if outer is None:
                del model.forward
            else:
                model.forward = outer

    around_test = around_val


def averaging(forward: Callable[..., Any], transforms: Sequence[Transform]) -> Callable[[Tensor], Tensor]:
    """Return a forward pass that computes the mean of the outputs over all views of its images."""

    def averaged(images: Tensor) -> Tensor:
        total: Any = None
        augmented = views(images, transforms)
        for view in augmented:
            result = forward(view)
            if not hasattr(result, "mean"):
                message = f"tta averages outputs: the network must return one tensor, not a {type(result).__name__}"
                raise UserError(Problem(message))
            total = result.clone() if total is None else total + result  # CUDA graphs write over their last output
        return total / len(augmented)  # type: ignore[no-any-return]

    return averaged


def views(images: Tensor, transforms: Sequence[Transform]) -> list[Tensor]:
    """Return all views of images, themselves first."""
    result = [images]
    for transform in transforms:
        result = [*result, *(other for image in result for other in VIEWS[transform](image))]
    return result


VIEWS: dict[Transform, Callable[[Tensor], list[Tensor]]] = {
    "hflip": lambda images: [images.flip(-1)],
    "vflip": lambda images: [images.flip(-2)],
    "rot90": lambda images: [images.rot90(turns, (-2, -1)) for turns in (1, 2, 3)],
}
