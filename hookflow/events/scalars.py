"""What a run has logged, as rows: of a stretch that was trained twice, after a resume, the later attempt counts."""

from __future__ import annotations

import re
from typing import NamedTuple

from hookflow.events.log import Tail
from hookflow.events.records import Record
from hookflow.events.rundir import RunDir


class ScalarRow(NamedTuple):
    """A number, the iterations and epochs that were done when it was logged, and when that was (since 1970)."""

    iter: int
    epoch: int
    time: float
    name: str
    value: float


def scalars(run_dir: RunDir) -> list[ScalarRow]:
    """Return every number that hooks have logged, in the order of the run; metrics as "val/accuracy"."""
    rows: list[ScalarRow] = []
    for record in Tail[Record](run_dir.events).read_all():
        match record["k"]:
            case "run":
                begin = re.match(r"it(\d+)", record["resumed_from"] or "it0")
                rows = [row for row in rows if begin and row.iter <= int(begin[1])]
            case "scalars" | "metrics":
                prefix = f"{record['split']}/" if record["k"] == "metrics" else ""
                at = record["it"], record["ep"], record["t"]
                rows += [ScalarRow(*at, f"{prefix}{name}", float(value)) for name, value in record["v"].items()]
    return rows
