"""Every point fires, in the documented order, with the documented counters; see the golden files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookflow.graph.points import POINTS
from tests.conftest import NewRun
from tests.golden_files import check_golden

TRACER = 'hooks.tracer={use="./watchers.py:Tracer", phase="last", args={file="%s"}}'
SHORT = ("data.train.args={examples=16}", "data.val.args={examples=8,split=1}", "data.test.args={examples=8,split=2}")


@pytest.mark.parametrize(
    ("name", "length", "overrides"),
    [
        ("trace_epochs", "max_epochs = 2", ["run.test=true"]),
        ("trace_iterations", "max_iters = 5", ["run.val_every=2"]),
        ("trace_exception", "max_epochs = 2", ['hooks.raises={use="./watchers.py:Raises", args={at=3}}']),
    ],
)
def test_the_trace_is_golden(  # type: ignore[no-untyped-def]
    new_run: NewRun, train_here, tmp_path: Path, name: str, length: str, overrides: list[str]
) -> None:
    run_dir = new_run(TRACER % (tmp_path / "trace"), *SHORT, *overrides, swap=("max_epochs = 3", length))
    assert train_here(run_dir) == (1 if name == "trace_exception" else 0)
    check_golden(f"{name}.txt", (tmp_path / "trace").read_text())


def test_every_point_has_been_seen_to_fire() -> None:
    golden = Path(__file__).parent.parent / "golden"
    seen = {line.split()[0] for name in ("epochs", "exception") for line in open_lines(golden / f"trace_{name}.txt")}
    assert {point.name for point in POINTS} - seen == {"after_load_checkpoint"}, "seen when a run is resumed"


def open_lines(path: Path) -> list[str]:
    return path.read_text().splitlines()
