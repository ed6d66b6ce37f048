"""A hook that counts, in this process and in one that is killed."""

from collections.abc import Mapping
from typing import Any

from hookflow import Hook

SEEN: list[tuple[str, int, int]] = []


class Counts(Hook):
    """Count iterations, and keep the count in checkpoints."""

    def __init__(self) -> None:
        self.seen = 0

    def after_train_iter(self, run: Any) -> None:
        self.seen += 1
        SEEN.append(("counted", self.seen, run.epoch))

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seen = state["seen"]
