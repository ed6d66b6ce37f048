"""Stands for the package trackio: the same public signatures, and runs that stay in memory."""

from pathlib import Path
from typing import Any

RUNS: dict[str, "Run"] = {}


class Image:
    def __init__(self, value: str | Path, caption: str | None = None) -> None:
        assert Path(value).is_file()
        self.value, self.caption = Path(value).read_bytes(), caption


class Markdown:
    def __init__(self, text: str = "") -> None:
        self.text = text


class Histogram:
    def __init__(
        self, sequence: Any = None, np_histogram: tuple[Any, Any] | None = None, num_bins: int = 64
    ) -> None:
        assert (sequence is None) != (np_histogram is None)
        self.np_histogram = np_histogram


class Run:
    def __init__(self, project: str, name: str) -> None:
        self.project, self.name, self.config = project, name, {}
        self.rows: list[tuple[int | None, dict[str, Any]]] = []
        self.finished = 0

    def log(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self.rows.append((step, metrics))

    def finish(self) -> None:
        self.finished += 1


def init(
    project: str,
    name: str | None = None,
    group: str | None = None,
    space_id: str | None = None,
    server_url: str | None = None,
    dataset_id: str | None = None,
    bucket_id: str | None = None,
    config: dict[str, Any] | None = None,
    resume: str = "never",
    settings: Any = None,
    private: bool | None = None,
    embed: bool = True,
    auto_log_gpu: bool | None = None,
    gpu_log_interval: float = 10.0,
) -> Run:
    assert name is not None
    if resume == "allow" and name in RUNS:
        return RUNS[name]
    assert name not in RUNS, "trackio gives it another name, with a warning"
    RUNS[name] = Run(project, name)
    return RUNS[name]
