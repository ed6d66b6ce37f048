"""The data of a user's own loop.

It says how many iterations there are, and yields no batch.
"""

from collections.abc import Iterator
from typing import Any

from hookflow.errors import Problem, UserError
from hookflow.events.records import DataInfo


class LoopData:
    """The training data or the validation data of a loop that fetches its batches itself.

    A run of unknown length has 0 batches. The length may change from one attempt to the next.
    """

    def __init__(self, split: str, batches: int, batch_size: int) -> None:
        self._split = split
        self._batches = batches
        self.info = DataInfo(
            name="the loop",
            examples=0,
            batches=batches,
            batch_size=batch_size,
            synthetic=False,
            note="",
        )

    def __len__(self) -> int:
        return self._batches

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Raise UserError: only the user's loop can fetch a batch."""
        message = (
            f'run.data["{self._split}"] has no batches: the loop is your own, and fetches them'
            " itself"
        )
        raise UserError(Problem(message))
