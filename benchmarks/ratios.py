"""Ratios of hookflow's time to that of a loop by hand: their spread, the file that keeps them,
and what has moved.
"""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("ratios.json")
LEAST_NOISE = 0.01
"""Two ratios that differ by less are the same, however small the spread of each."""


@dataclass(frozen=True)
class Sandwich:
    """One measurement of hookflow between two by hand: see `benchmarks/cell.py`."""

    by_hand: float
    hookflow: float
    drift: float
    unit: str

    @property
    def ratio(self) -> float:
        return self.hookflow / self.by_hand

    @property
    def over(self) -> float:
        return self.hookflow - self.by_hand


@dataclass(frozen=True)
class Ratio:
    """The median of a row's ratios, the lowest and the highest."""

    ratio: float
    low: float
    high: float

    @classmethod
    def of(cls, sandwiches: list[Sandwich]) -> Ratio:
        ratios = [sandwich.ratio for sandwich in sandwiches]
        return cls(
            *(round(figure, 4) for figure in (statistics.median(ratios), min(ratios), max(ratios)))
        )

    def noise(self, other: Ratio) -> float:
        """Return by how much two of them may differ and yet be the same:
        half the spread of each, added.
        """
        return max(LEAST_NOISE, (self.high - self.low + other.high - other.low) / 2)


def machine() -> dict[str, str]:
    """Return what the ratios depend on beside hookflow."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.processor()
    return {"processor": processor, "python": platform.python_version(), "torch": version("torch")}


def read(file: Path) -> tuple[dict[str, str], dict[str, Ratio]]:
    """Return the machine and the rows of a file; raises FileNotFoundError."""
    kept = json.loads(file.read_text())
    return kept["machine"], {name: Ratio(**row) for name, row in kept["rows"].items()}


def write(rows: dict[str, Ratio], file: Path) -> None:
    """Write the rows down. Rows that were not measured stay if they are of the same machine."""
    here = machine()
    before = read(file) if file.exists() else (here, {})
    kept = before[1] if before[0] == here else {}
    whole: dict[str, Any] = {
        "machine": here,
        "rows": {name: asdict(row) for name, row in (kept | rows).items()},
    }
    file.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")


def moved(now: dict[str, Ratio], then: dict[str, Ratio]) -> Iterator[tuple[str, float, float]]:
    """Yield each row whose ratio has moved by more than the noise: its name, by how much, and the
    noise.

    Above zero is slower. Rows that only one of the two has are left out.
    """
    for name in now.keys() & then.keys():
        by, noise = now[name].ratio - then[name].ratio, now[name].noise(then[name])
        if abs(by) > noise:
            yield name, by, noise
