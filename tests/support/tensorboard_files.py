"""What TensorBoard reads."""

from pathlib import Path
from typing import Any


def accumulated(folder: Path) -> Any:
    """Return all that TensorBoard reads in a folder."""
    from tensorboard.backend.event_processing import event_accumulator as events

    return events.EventAccumulator(
        str(folder), dict.fromkeys(events.DEFAULT_SIZE_GUIDANCE, 0)
    ).Reload()
