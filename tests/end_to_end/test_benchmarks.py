"""`make bench` and `make bench-check`: that they measure, and what they make of what they have measured."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from tests.limits import LIMIT
from tests.processes import Spawned

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ROW = "no hooks"


@pytest.fixture
def overhead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The script as a module; it keeps its ratios in a file of the test's own."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import overhead
    import ratios

    monkeypatch.setattr(ratios, "FILE", tmp_path / "ratios.json")
    return overhead


def table(overhead: Any, *ratios: float) -> Any:
    return {ROW: [overhead.Sandwich(100.0, 100.0 * ratio, 0.01, "µs") for ratio in ratios]}


def kept(overhead: Any, *ratios: float) -> None:
    rows = {name: overhead.Ratio.of(row) for name, row in table(overhead, *ratios).items()}
    overhead.ratios.write(rows, overhead.ratios.FILE)


@pytest.mark.parametrize(
    ("before", "now", "busy", "code", "message"),
    [
        ((1.04, 1.05, 1.06), (1.06, 1.05, 1.04), set(), 0, "of 1 rows 1 were compared, none slower"),
        ((1.04, 1.05, 1.06), (1.10, 1.09, 1.08), set(), 1, "no hooks: 1.050 -> 1.090 (+0.040, noise 0.020): slower"),
        ((1.04, 1.05, 1.06), (1.01, 1.02, 1.00), set(), 0, "no hooks: 1.050 -> 1.010 (-0.040, noise 0.020): faster"),
        ((1.04, 1.05, 1.06), (1.20, 1.09, 1.00), set(), 0, "of 1 rows 1 were compared, none slower"),
        ((1.04, 1.05, 1.06), (1.5, 1.51), {ROW}, 0, "not judged"),
        ((), (1.0,), set(), 2, "make bench ARGS=--write"),
    ],
    ids=["same", "slower", "faster", "wavering", "busy", "nothing kept"],
)
def test_a_ratio_has_moved_when_it_did_by_more_than_the_noise(
    overhead: Any, capsys: pytest.CaptureFixture[str], before: Any, now: Any, busy: set[str], code: int, message: str
) -> None:
    if before:
        kept(overhead, *before)
    assert overhead.check(table(overhead, *now), busy) == code
    assert message in capsys.readouterr().out


def test_ratios_of_another_machine_are_told(overhead: Any, capsys: pytest.CaptureFixture[str]) -> None:
    kept(overhead, 1.04, 1.05, 1.06)
    file = overhead.ratios.FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | {"machine": {**overhead.ratios.machine(), "torch": "1"}}))
    assert overhead.check(table(overhead, 1.05), set()) == 0
    assert "kept are of torch 1, this is" in capsys.readouterr().out
    overhead.ratios.write({"another row": overhead.Ratio(1.0, 1.0, 1.0)}, file)
    assert overhead.ratios.read(file)[1].keys() == {"another row"}


def test_the_usual_set_is_measured_between_two_loops_by_hand() -> None:
    source = "import cell, sys; sys.argv[1:] = ['hooks', 'usual', '1000']; cell.main()"
    with Spawned([sys.executable, "-c", source], cwd=BENCHMARKS, stdout=subprocess.PIPE, text=True) as child:
        printed, _ = child.communicate(timeout=LIMIT)
    assert child.returncode == 0, printed
    rows = json.loads(printed)
    assert rows.keys() == {"usual set", "usual set, while nothing is saved"}
    assert all(row["by_hand"] > 0 and row["hookflow"] > 0 for row in rows.values())


def test_every_set_of_hooks_that_is_measured_is_a_sound_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import by_hookflow

    for name, hooks in by_hookflow.HOOKS.items():
        plan = compile_pipeline(parse(by_hookflow.PIPELINE.replace("EPOCHS", "1") + hooks, by_hookflow.HERE))
        assert bool(plan.bindings) == (name != "none")
