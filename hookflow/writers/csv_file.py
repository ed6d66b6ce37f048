"""`csv`: the scalars of a run as a table of five columns."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from hookflow.writers.base import Writer

COLUMNS = ("iteration", "epoch", "time", "name", "value")
LONGEST_ROW = 1 << 16
"""Bytes at the end of a file in which a torn row begins."""


class CSVWriter(Writer):
    """A CSV file with a row for each scalar: iteration, epoch, time, name, value.

    Images, figures, texts and histograms have no place in it; they are in the run directory. A resumed run cuts the
    file off at the iteration it resumes from.
    """

    def __init__(self, dir: Path, file: str = "scalars.csv") -> None:  # noqa: A002 (what a pipeline file writes)
        self._path = dir / file
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._open("a")

    def _open(self, mode: str) -> None:
        self._file = self._path.open(mode, encoding="utf-8", newline="")
        self._rows = csv.writer(self._file, lineterminator="\n")
        if self._file.tell() == 0:
            self._rows.writerow(COLUMNS)
            self._file.flush()

    def write_scalar(self, name: str, value: float, iteration: int, epoch: int, time: float) -> None:
        self._rows.writerow((iteration, epoch, f"{time:.3f}", name, value))

    def write_image(self, name: str, file: Path, caption: str, iteration: int, epoch: int, time: float) -> None: ...

    def write_text(self, name: str, text: str, iteration: int, epoch: int, time: float) -> None: ...

    def write_histogram(
        self, name: str, edges: Sequence[float], counts: Sequence[int], iteration: int, epoch: int, time: float
    ) -> None: ...

    def write_config(self, config: Mapping[str, Any]) -> None: ...

    def resume_at(self, iteration: int) -> bool:
        """Write the file anew with what stands up to the iteration; a row that a kill has torn is left out."""
        self._file.close()
        with self._path.open("r+b") as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(start := max(length - LONGEST_ROW, 0))
            file.truncate(start + file.read().rfind(b"\n") + 1)
        aside = self._path.with_name(f"{self._path.name}.tmp")
        with self._path.open(encoding="utf-8", newline="") as old, aside.open("w", encoding="utf-8", newline="") as new:
            rows = csv.writer(new, lineterminator="\n")
            rows.writerow(COLUMNS)
            rows.writerows(row for row in islice(csv.reader(old), 1, None) if int(row[0]) <= iteration)
        aside.replace(self._path)
        self._open("a")
        return True

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()
