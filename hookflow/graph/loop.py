"""The rounds of the training loop: which points are passed again and again, and in what order within a round."""

from __future__ import annotations

from hookflow.graph.points import Points

ELSEWHERE = ("on_exception", "after_load_checkpoint", "before_save_checkpoint", "after_copy_checkpoint")
"""Points that fire at no one place of the loop; so do those of `Points` that something else comes to."""


class Loop:
    """Where in a round of the loop each point fires. A validation that is due after iterations has no one place."""

    def __init__(self, points: Points, validates_in_epoch: bool) -> None:
        names = [point.name for point in points]
        place = {name: k for k, name in enumerate(names)}
        ends = {
            "epoch": ("before_train_epoch", names[place["after_train"] - 1]),
            "iteration": ("before_train_iter", "after_train_iter"),
            "validation batch": ("before_val_iter", "after_val_iter"),
            "test batch": ("before_test_iter", "after_test_iter"),
        }
        self._rounds = {name: (place[first], place[last]) for name, (first, last) in ends.items()}
        validation = names[place["before_val"] : place["after_val"] + 1] if validates_in_epoch else []
        called = [point.name for point in points if point.kind in ("state", "log")]
        self._place = place | dict.fromkeys((*ELSEWHERE, *called, *validation), -1)

    def place(self, point: str) -> int:
        """Return the place of a point in one round; a negative number if it may fire anywhere."""
        return self._place[point]

    def within(self, point: str) -> tuple[str, ...]:
        """Return what the point is repeated with, from outside in."""
        place = self._place[point]
        return tuple(name for name, (first, last) in self._rounds.items() if first <= place <= last)

    def common(self, *points: str) -> str:
        """Return the innermost round that all points are in; empty where the run passes them once."""
        shared = [name for name in self.within(points[0]) if all(name in self.within(other) for other in points)]
        return shared[-1] if shared else ""
