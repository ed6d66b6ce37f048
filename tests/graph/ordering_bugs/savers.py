"""Savers as other frameworks have them: each writes a file of its own in its turn, whatever comes after it."""

from __future__ import annotations

from typing import Any

import torch


class SavesWeights:
    """Saves the weights as they are when its turn comes."""

    def after_val(self, run: Any) -> None:
        self.save(run)

    def after_train_iter(self, run: Any) -> None:
        self.save(run)

    def save(self, run: Any) -> None:
        torch.save(run.model.state_dict(), run.dir / f"weights-{run.iter}.pt")


class SavesHooks:
    """Saves what the other hooks know when its turn comes."""

    def after_val(self, run: Any) -> None:
        states = {name: hook.state_dict() for name, hook in run.hooks.items() if hasattr(hook, "state_dict")}
        torch.save(states, run.dir / f"hooks-{run.epoch}.pt")
