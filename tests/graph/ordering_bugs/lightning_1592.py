"""Lightning#1592: callbacks that depend on one another in a chain, in a list that says nothing of it."""

from __future__ import annotations

from typing import Any


class Best:
    """Keeps the best loss."""

    def __init__(self) -> None:
        self.loss = float("inf")

    def after_val(self, run: Any) -> None:
        self.loss = min(self.loss, run.metrics["loss"])


class Patience:
    """Counts the validations since the best one, which another hook knows."""

    def __init__(self) -> None:
        self.seen, self.waited = float("inf"), 0

    def after_val(self, run: Any) -> None:
        best = run.hooks["best"].loss
        self.waited = 0 if best < self.seen else self.waited + 1
        self.seen = best

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen, self.waited = state["seen"], state["waited"]
