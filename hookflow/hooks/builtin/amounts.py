"""Amounts of training in the arguments of hooks, and values in between two amounts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator

from hookflow.errors import Problem, UserError
from hookflow.pipeline.values import Unit, parse_amount

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


Value = TypeVar("Value")


PROGRESS: tuple[Unit, ...] = ("", "it", "ep", "%")
"""The units of how far the training is."""


def _counted(written: Any) -> Any:
    if isinstance(written, int) and not isinstance(written, bool) and written == 0:
        return written
    parse_amount(written, PROGRESS)
    return written


Progress = Annotated[int | str, BeforeValidator(_counted)]
"""How far the training is: 0, 100, "100it", "2ep", "10%" of the run; a bare number counts iterations."""


def iterations(progress: int | str, run: Run) -> int:
    """Return how many iterations of this run an amount is. Shares are rounded."""
    if progress == 0:
        return 0
    amount = parse_amount(progress)
    if amount.unit == "ep":
        return int(amount.value) * run.iters_per_epoch
    return round(run.max_iters * amount.value / 100) if amount.unit == "%" else int(amount.value)


def at_iterations(name: str, values: Sequence[tuple[int | str, Value]], run: Run) -> list[tuple[int, Value]]:
    """Return values with their places in iterations. Raises UserError when these do not follow one another."""
    places = [(iterations(at, run), value) for at, value in values]
    for (one, _), (other, _), (written, _) in zip(places, places[1:], values[1:], strict=False):
        if other <= one:
            said = f"{name}: positions must increase: {written} is iteration {other}, the one before it {one}"
            raise UserError(Problem(said))
    return places


Ease = Literal["cosine", "linear"]
"""The way from one value to the next."""


def eased(way: float, shape: Ease) -> float:
    """Return the share of the difference that is made when so much of the way is done, each from 0 to 1."""
    return way if shape == "linear" else (1 - math.cos(math.pi * way)) / 2
