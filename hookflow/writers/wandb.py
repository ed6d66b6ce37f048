"""`wandb`: a run of Weights & Biases, offline unless asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Literal

from hookflow.writers.base import Writer

AXIS = "iteration"
"""The metric that charts have as their x axis: W&B's own step counts calls, and takes none that comes late."""


class WandbWriter(Writer):
    """A run of Weights & Biases, in files that `wandb sync` uploads, or with `mode = "online"` at once.

    `project` is the pipeline's name if left out. A resumed run goes on under the same id, and what was written before
    is not written again.
    """

    def __init__(
        self,
        dir: Path,  # noqa: A002 (what a pipeline file writes)
        run_name: str,
        run_id: str,
        project: str = "",
        entity: str | None = None,
        mode: Literal["offline", "online"] = "offline",
    ) -> None:
        import wandb

        self._wandb = wandb
        dir.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=project or run_name,
            entity=entity,
            id=run_id,
            name=run_id,
            dir=str(dir),
            mode=mode,
            resume="allow",
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("*", step_metric=AXIS)

    def write_scalar(self, name: str, value: float, iteration: int, epoch: int, time: float) -> None:
        self._run.log({AXIS: iteration, name: value})

    def write_image(self, name: str, file: Path, caption: str, iteration: int, epoch: int, time: float) -> None:
        self._run.log({AXIS: iteration, name: self._wandb.Image(str(file), caption=caption or None)})

    def write_text(self, name: str, text: str, iteration: int, epoch: int, time: float) -> None:
        self._run.log({AXIS: iteration, name: self._wandb.Html(f"<pre>{escape(text)}</pre>")})

    def write_histogram(
        self, name: str, edges: Sequence[float], counts: Sequence[int], iteration: int, epoch: int, time: float
    ) -> None:
        histogram = self._wandb.Histogram(np_histogram=(list(counts), list(edges)))
        self._run.log({AXIS: iteration, name: histogram})

    def write_config(self, config: Mapping[str, Any]) -> None:
        self._run.config.update(dict(config))

    def close(self) -> None:
        self._run.finish()
