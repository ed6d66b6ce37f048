"""The progress of a piece of work within a hook, which the screens show as a bar."""

import time


class HookProgress:
    """How much of some work of a hook is done: `done` of `total`, which is 0 where it is unknown.

    `advance` counts; another thread records what has been counted, so that a call costs no more
    than an addition.
    """

    def __init__(self, hook: str, name: str, total: int | None = None) -> None:
        """Raises ValueError for a total below zero."""
        if total is not None and total < 0:
            raise ValueError(f'run.progress("{name}", total={total}): a total is 0 or more')
        self.hook = hook
        self.name = name
        self.total = total or 0
        self.done = 0
        self._recorded = 0
        self._began = time.monotonic()

    def advance(self, count: int = 1) -> None:
        """Note that so many more are done."""
        self.done += count

    @property
    def seconds(self) -> float:
        """The seconds since it began."""
        return round(time.monotonic() - self._began, 3)

    def has_moved(self) -> bool:
        """Return whether anything has been done since the last call."""
        moved = self.done != self._recorded
        self._recorded = self.done
        return moved
