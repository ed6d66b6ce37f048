"""The rounds of the training loop: which points are passed again and again, and in what order within a round."""

from __future__ import annotations

from hookflow.graph.points import Points

ELSEWHERE = (
    "on_exception",
    "after_load_checkpoint",
    "before_save_checkpoint",
    "after_copy_checkpoint",
    "after_save_checkpoint",
)
"""Points that fire at no one place of the loop; so do those of `Points` that something else comes to."""

ROUNDS = {
    "epoch": ("before_train_epoch", "after_val"),
    "iteration": ("before_train_iter", "after_train_iter"),
    "validation batch": ("before_val_iter", "after_val_iter"),
    "test batch": ("before_test_iter", "after_test_iter"),
}
"""What the run repeats, from outside in: the first point and the last one of each."""


class Loop:
    """Where in a round of the loop each point fires. A validation that is due after iterations has no one place.

    Points of the pipeline's own are in the rounds of those that they follow.
    """

    def __init__(self, points: Points, validates_in_epoch: bool) -> None:
        row = {point.name: k for k, point in enumerate(points)}
        self._place: dict[str, int] = {}
        self._within: dict[str, tuple[str, ...]] = {}
        for name, k in row.items():
            point = points[name]
            if point.kind == "own":
                anywhere, within = self._place[point.follows] < 0, self._within[point.follows]
            else:
                irregular = validates_in_epoch and row["before_val"] <= k <= row["after_val"]
                anywhere = irregular or name in ELSEWHERE or point.kind in ("state", "log")
                within = tuple(of for of, (a, b) in ROUNDS.items() if row[a] <= k <= row[b] and not anywhere)
            self._place[name] = -1 if anywhere else k
            self._within[name] = within

    def place(self, point: str) -> int:
        """Return the place of a point in one round; a negative number if it may fire anywhere."""
        return self._place[point]

    def within(self, point: str) -> tuple[str, ...]:
        """Return what the point is repeated with, from outside in."""
        return self._within[point]

    def common(self, *points: str) -> str:
        """Return the innermost round that all points are in; empty where the run passes them once."""
        shared = [name for name in ROUNDS if all(name in self.within(point) for point in points)]
        return shared[-1] if shared else ""
