"""The logged numbers of a run as rows. Of iterations trained twice, the later attempt counts."""

from __future__ import annotations

import re
from typing import NamedTuple

from hookflow.events.log import event_log
from hookflow.events.rundir import RunDir


class ScalarRow(NamedTuple):
    """A number by its name, the iterations and epochs that were done then, and the time (seconds since 1970)."""

    iter: int
    epoch: int
    time: float
    name: str
    value: float


def scalars(run_dir: RunDir) -> list[ScalarRow]:
    """Return what hooks have logged and validations have found, in the order of the run; of several ranks, rank 0's.

    Metrics are named "val/accuracy", "test/accuracy".
    """
    rows: dict[tuple[int, str], ScalarRow] = {}
    for record in event_log(run_dir.events).read_all():
        match record["k"]:
            case "run":  # what came after the checkpoint that an attempt resumes from is trained again
                named = re.match(r"it(\d+)", record["resumed_from"] or "")
                begin = int(named[1]) if named else 0
                rows = {key: row for key, row in rows.items() if row.iter <= begin}
            case "scalars" | "metrics":
                prefix = f"{record['split']}/" if record["k"] == "metrics" else ""
                for name, value in record["v"].items():
                    row = ScalarRow(record["it"], record["ep"], record["t"], f"{prefix}{name}", float(value))
                    rows.pop((row.iter, row.name), None)  # a validation that is done again stands where it was done
                    rows[row.iter, row.name] = row
    return list(rows.values())
