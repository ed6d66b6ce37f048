"""`mlflow`: a run of MLflow, in a local folder or on a server."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hookflow.pipeline.source_map import flat
from hookflow.writers.base import Writer

PARAMETERS_AT_ONCE, PARAMETER_LENGTH = 100, 500
"""The limits of one call of MLflow, and of one value."""


class MLflowWriter(Writer):
    """A run of MLflow: scalars as metrics, the pipeline as parameters, all else as artifacts.

    `uri` is a folder or a tracking URI ("sqlite:///mlflow.db", "https://…"); left out, a folder in the run directory.
    `experiment` is the pipeline's name if left out. A resumed run goes on in the same run of MLflow, and what that has
    already is not written again.
    """

    def __init__(self, dir: Path, run_name: str, run_id: str, uri: str = "", experiment: str = "") -> None:  # noqa: A002 (what a pipeline file writes)
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._in_files = "://" not in uri
        if self._in_files:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 wants to be asked for its file format
            uri = (Path(uri) if uri else dir).absolute().as_uri()
        self._client, self._param = MlflowClient(tracking_uri=uri), Param
        name = experiment or run_name
        result = self._client.get_experiment_by_name(name)
        place = result.experiment_id if result else self._client.create_experiment(name)
        runs = self._client.search_runs([place], f"tags.`hookflow.run` = '{run_id}'")
        run = runs[0] if runs else self._client.create_run(place, run_name=run_id, tags={"hookflow.run": run_id})
        self._run = run.info.run_id
        self._metrics = set(run.data.metrics)
        """The metrics that MLflow has, by its names."""
        if runs:
            self._client.update_run(self._run, status="RUNNING")

    def write_scalar(self, name: str, value: float, iteration: int, epoch: int, time: float) -> None:
        metric = self._metric(_allowed(name))
        self._client.log_metric(self._run, metric, value, timestamp=round(time * 1000), step=iteration)
        self._metrics.add(metric)

    def _metric(self, name: str) -> str:
        """Return what a metric is called: in a folder it is a file, and `lr` cannot be beside `lr/0`."""
        if not self._in_files or name in self._metrics:
            return name
        if any(other.startswith(f"{name}/") for other in self._metrics):
            return f"{name}/value"
        used = next((other for other in self._metrics if name.startswith(f"{other}/")), None)
        return name if used is None else f"{used}.{name[len(used) + 1 :]}"

    def write_image(self, name: str, file: Path, caption: str, iteration: int, epoch: int, time: float) -> None:
        self._client.log_artifact(self._run, str(file), f"images/{_allowed(name)}")

    def write_text(self, name: str, text: str, iteration: int, epoch: int, time: float) -> None:
        self._client.log_text(self._run, text, f"texts/{_allowed(name)}/it{iteration:08}.txt")

    def write_histogram(
        self, name: str, edges: Sequence[float], counts: Sequence[int], iteration: int, epoch: int, time: float
    ) -> None:
        histogram = {"edges": list(edges), "counts": list(counts)}
        self._client.log_dict(self._run, histogram, f"histograms/{_allowed(name)}/it{iteration:08}.json")

    def write_config(self, config: Mapping[str, Any]) -> None:
        parameters = [self._param(_allowed(key), str(value)[:PARAMETER_LENGTH]) for key, value in flat(config)]
        for start in range(0, len(parameters), PARAMETERS_AT_ONCE):
            self._client.log_batch(self._run, params=parameters[start : start + PARAMETERS_AT_ONCE])

    def close(self) -> None:
        self._client.set_terminated(self._run)


def _allowed(name: str) -> str:
    return re.sub(r"[^\w\-. :/]", "_", name)
