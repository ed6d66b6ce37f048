"""Lightning#1464: the state of early stopping is saved before it is updated, and so lags one epoch behind."""

from __future__ import annotations

from typing import Any


class Stops:
    """Early stopping, with a state that a checkpoint is to keep."""

    def __init__(self, patience: int = 5) -> None:
        self.patience = patience
        self.best, self.waited = float("inf"), 0

    def after_val(self, run: Any) -> None:
        self.waited = 0 if run.metrics["loss"] < self.best else self.waited + 1
        self.best = min(self.best, run.metrics["loss"])

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.waited = state["best"], state["waited"]
