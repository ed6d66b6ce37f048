"""`csv`: the scalars of a run as a table of five columns."""

from __future__ import annotations

import csv
from itertools import islice
from pathlib import Path

from hookflow.writers.base import Writer

COLUMNS = ("iteration", "epoch", "time", "name", "value")


class CSVWriter(Writer):
    """A CSV file with a row for each scalar: iteration, epoch, time, name, value.

    Images, figures, texts and histograms have no place in it; they are in the run directory. A resumed run cuts the
    file off at the iteration it resumes from.
    """

    def __init__(self, dir: Path, file: str = "scalars.csv") -> None:  # noqa: A002 (what a pipeline file writes)
        self._path = dir / file
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._open()

    def _open(self) -> None:
        self._file = self._path.open("a", encoding="utf-8", newline="")
        self._rows = csv.writer(self._file, lineterminator="\n")
        if self._file.tell() == 0:
            self._rows.writerow(COLUMNS)
            self._file.flush()

    def write_scalar(self, name: str, value: float, iteration: int, epoch: int, time: float) -> None:
        self._rows.writerow((iteration, epoch, f"{time:.3f}", name, value))

    def resume_at(self, iteration: int) -> bool:
        """Write the file anew with what stands up to the iteration; a row that a kill has torn is left out."""
        self._file.close()
        aside = self._path.with_name(f"{self._path.name}.tmp")
        with self._path.open(encoding="utf-8", newline="") as old, aside.open("w", encoding="utf-8", newline="") as new:
            rows = csv.writer(new, lineterminator="\n")
            rows.writerow(COLUMNS)
            whole = (line for line in old if line.endswith("\n"))
            rows.writerows(row for row in islice(csv.reader(whole), 1, None) if int(row[0]) <= iteration)
        aside.replace(self._path)
        self._open()
        return True

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()
