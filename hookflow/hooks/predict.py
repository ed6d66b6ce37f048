"""What a run has predicted of the test data, in a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from hookflow.errors import Problem, UserError, nearest_or_all
from hookflow.events.rundir import of_rank
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.predictions import WRITERS, Rows

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


def _known_ending(file: str) -> str:
    if Path(file).suffix not in WRITERS or Path(file).name != file:
        raise ValueError(f'"{file}" is no name of a file that ends in {", ".join(WRITERS)}')
    return file


class Predict(Hook):
    """Writes outputs of the task for every example of the test data to a file in the run directory.

    Each output is a tensor with a row for each example of the batch. Of several ranks each writes the rows of its own
    shard: `predictions.rank1.npz`. What a checkpoint predicts of data without targets: `hookflow predict`.
    """

    reads: ClassVar[Slots] = {"after_test_iter": ("outputs",)}

    def __init__(
        self,
        outputs: Annotated[
            list[str],
            Field(min_length=1, description="the outputs to write, by name", examples=[["logits", "target"]]),
        ],
        file: Annotated[
            str,
            AfterValidator(_known_ending),
            Field(description="its name, ending in .npz, .jsonl (a line an example) or .pt"),
        ] = "predictions.npz",
    ) -> None:
        self.outputs = outputs
        self.file = file
        self.rows = Rows("the task's outputs are")

    def before_test_epoch(self) -> None:
        self.rows = Rows("the task's outputs are")

    def after_test_iter(self, outputs: Mapping[str, Any]) -> None:
        for name in self.outputs:
            if name not in outputs:
                hint = nearest_or_all(name, outputs)
                raise UserError(Problem(f'the task\'s outputs have no "{name}"', hint=hint))
        self.rows.add({name: outputs[name] for name in self.outputs})

    def after_test_epoch(self, run: Run) -> None:
        path = of_rank(run.dir / self.file, run.rank)
        WRITERS[path.suffix](path, self.rows.all())
        run.say(f"predictions are in {path.name}")
        self.rows = Rows("the task's outputs are")
