"""What runs have left: their answers to commands, and their curves."""

from pathlib import Path
from typing import Any

import pytest

from hookflow.events.rundir import RunDir, all_runs
from tests.conftest import records
from tests.runner.same import curve


def only_run(folder: Path) -> RunDir:
    (run,) = all_runs(folder / "runs")
    return run


def alike(one: RunDir, other: RunDir, *names: str) -> None:
    first, second = (
        {key: value for key, value in curve(run).items() if key[-1] in names}
        for run in (one, other)
    )
    assert first
    assert second == pytest.approx(first, rel=1e-4, abs=1e-6)


def answers(run_dir: RunDir) -> list[tuple[Any, ...]]:
    return [
        (ack["it"], " ".join([ack["cmd"], *ack["args"]]), ack["ok"], ack["note"])
        for ack in records(run_dir, "ack")
    ]  # type: ignore[misc, list-item]
