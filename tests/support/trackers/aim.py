"""Stands for the package aim: the same public signatures, and runs that stay in memory."""

from pathlib import Path
from typing import Any

RUNS: dict[str, "Run"] = {}


class Image:
    def __init__(self, image: Any, caption: str = "", **of_pillow: Any) -> None:
        assert Path(image).is_file()
        self.value, self.caption = Path(image).read_bytes(), caption


class Text:
    def __init__(self, text: str) -> None:
        self.text = text


class Distribution:
    def __init__(self, samples: Any = None, bin_count: int = 64, *, hist: Any = None, bin_range: Any = None) -> None:
        assert samples is None and hist is not None and bin_range is not None
        self.hist, self.bin_range = hist, bin_range


class Run:
    def __new__(cls, run_hash: str | None = None, **options: Any) -> "Run":
        if run_hash is None:
            return super().__new__(cls)
        return RUNS[run_hash]  # aim raises MissingRunError where there is none

    def __init__(
        self,
        run_hash: str | None = None,
        *,
        repo: str | Path | None = None,
        read_only: bool = False,
        experiment: str | None = None,
        force_resume: bool = False,
        system_tracking_interval: float | None = 10.0,
        log_system_params: bool | None = False,
        capture_terminal_logs: bool | None = True,
    ) -> None:
        self.name = ""
        self.experiment = experiment
        self.repo = repo
        if run_hash is not None:
            return
        self.hash = f"hash{len(RUNS)}"
        self.rows: list[tuple[int | None, str | None, Any, int | None]] = []
        self.attributes: dict[str, Any] = {}
        self.closed = 0
        RUNS[self.hash] = self

    def track(
        self,
        value: Any,
        name: str | None = None,
        step: int | None = None,
        epoch: int | None = None,
        *,
        context: Any = None,
    ) -> None:
        self.rows.append((step, name, value, epoch))

    def __setitem__(self, key: str, value: Any) -> None:
        self.attributes[key] = value

    def close(self) -> None:
        self.closed += 1
