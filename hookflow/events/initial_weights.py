"""The weights that models of a run begin with.

They are those of a checkpoint of another run.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hookflow.events.rundir import RunDir


@dataclass(frozen=True, slots=True)
class WeightsSource:
    """Weights of a checkpoint of a run, as they were when another run started with them."""

    run: str
    """The id of the run."""
    name: str
    """The name of the run."""
    checkpoint: str
    it: int
    folder: str
    """The folder of the checkpoint."""
    entry: str
    """The file of the weights without its suffix: model, model_ema, …"""
    sha256: str
    """The checksum of that file; of weights in shards that of the checkpoint's manifest."""

    def __str__(self) -> str:
        return f"{self.name} {self.run}:{self.checkpoint}/{self.entry}"

    @property
    def path(self) -> Path:
        """The file of the weights; weights in shards have none."""
        return Path(self.folder) / f"{self.entry}.pt"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def weights_facts(sources: Mapping[str, WeightsSource]) -> dict[str, Any]:
    """Return what `run.json` says of the weights of models, by their names."""
    return {model: source.to_json() for model, source in sources.items()}


def read_recorded_weights(run: RunDir) -> dict[str, WeightsSource]:
    """Return the weights that the models of a run began with, by the models' names.

    Only those are returned that can be read.
    """
    result = {}
    for model, facts in run.describe().get("weights", {}).items():
        with suppress(TypeError, ValueError):
            source = WeightsSource(**facts)
            texts = (
                source.run,
                source.name,
                source.checkpoint,
                source.folder,
                source.entry,
                source.sha256,
            )
            if all(isinstance(text, str) for text in texts) and isinstance(source.it, int):
                result[str(model)] = source
    return result
