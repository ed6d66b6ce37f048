"""Amounts of training in hooks' arguments, as iterations of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator

from hookflow.pipeline.units import parse_amount

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


def _counted(written: Any) -> Any:
    if isinstance(written, int) and not isinstance(written, bool) and written == 0:
        return written
    if parse_amount(written).unit == "s":
        raise ValueError(
            'must be iterations, epochs or a share of the run, not seconds; write 100, "100it", "2ep" or "10%"'
        )
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
