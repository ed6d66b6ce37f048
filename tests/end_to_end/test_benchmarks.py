"""`make bench` and `make bench-check`: that they measure,
and what they make of what they have measured.
"""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from tests.conftest import hookflow_here
from tests.support.limits import LIMIT
from tests.support.processes import Spawned

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
        (
            (1.04, 1.05, 1.06),
            (1.06, 1.05, 1.04),
            set(),
            0,
            "of 1 rows 1 were compared, none slower",
        ),
        (
            (1.04, 1.05, 1.06),
            (1.10, 1.09, 1.08),
            set(),
            1,
            "no hooks: 1.050 -> 1.090 (+0.040, noise 0.020): slower",
        ),
        (
            (1.04, 1.05, 1.06),
            (1.01, 1.02, 1.00),
            set(),
            0,
            "no hooks: 1.050 -> 1.010 (-0.040, noise 0.020): faster",
        ),
        (
            (1.04, 1.05, 1.06),
            (1.20, 1.09, 1.00),
            set(),
            0,
            "of 1 rows 1 were compared, none slower",
        ),
        ((1.04, 1.05, 1.06), (1.5, 1.51), {ROW}, 0, "not judged"),
        ((), (1.0,), set(), 2, "make bench ARGS=--write"),
    ],
    ids=["same", "slower", "faster", "wavering", "busy", "nothing kept"],
)
def test_a_ratio_has_moved_when_it_did_by_more_than_the_noise(
    overhead: Any,
    capsys: pytest.CaptureFixture[str],
    before: Any,
    now: Any,
    busy: set[str],
    code: int,
    message: str,
) -> None:
    if before:
        kept(overhead, *before)
    assert overhead.check(table(overhead, *now), busy) == code
    assert message in capsys.readouterr().out


def test_ratios_of_another_machine_are_told(
    overhead: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    kept(overhead, 1.04, 1.05, 1.06)
    file = overhead.ratios.FILE
    file.write_text(
        json.dumps(
            json.loads(file.read_text()) | {"machine": {**overhead.ratios.machine(), "torch": "1"}}
        )
    )
    assert overhead.check(table(overhead, 1.05), set()) == 0
    assert "kept are of torch 1, this is" in capsys.readouterr().out
    overhead.ratios.write({"another row": overhead.Ratio(1.0, 1.0, 1.0)}, file)
    assert overhead.ratios.read(file)[1].keys() == {"another row"}


DATA = (
    "import data; data.SETTINGS = {'val': data.Setting(batches=300, validation=True)}; sys.argv[1:]"
    " = ['data']"
)
USUAL = {"usual set", "usual set, while nothing is saved"}
SMALLEST = {
    "attached": "sys.argv[1:] = ['20']",
    "cell": "sys.argv[1:] = ['start']",
    "cifar": (
        "script.STEPS, script.GOAL = 1, 0.0; sys.argv[1:] = ['missing', 'run.max_epochs=2', "
        "'data.train.args.download=false', 'data.val.args.download=false', "
        "'data.train.args.limit=300', 'data.val.args.limit=300', 'data.train.args.batch_size=100']"
    ),
    "checkpoint": "script.ROUNDS, script.WIDTH = 1, 8",
    "cold_start": "script.ROUNDS = 1",
    "dashboard": "script.SETTLES, sys.argv[1:] = 0, ['--seconds', '2', '--megabytes', '1']",
    "gpu": "sys.argv[1:] = ['cpu']",
    "graph_scale": "script.SIZES = 10, 100",
    "offload": "sys.argv[1:] = ['--pairs', '1', '--rounds', '1']",
    "overhead": "sys.argv[1:] = ['--rows', 'none', '--rounds', '1', '--iterations', '1000']",
    "ranks": "script.WORLDS, sys.argv[1:] = (1, 2), ['1']",
    "rerun": "sys.argv[1:] = ['--reruns', '1', '--iters', '300']",
    "runs": "sys.argv[1:] = ['5']",
    "slow_writer": "script.ITERATIONS, sys.argv[1:] = 500, ['1']",
    "workers": "script.SHAPE = 64 * 202, 1, 1, 1",
}
"""What makes each script small before its `main` is called."""


@pytest.mark.parametrize(
    ("source", "rows"),
    [("sys.argv[1:] = 'hooks', 'usual', '1000'", USUAL), (DATA, {"val"})],
    ids=["usual", "data"],
)
def test_a_row_is_measured_between_two_loops_by_hand(source: str, rows: set[str]) -> None:
    command = [sys.executable, "-c", f"import cell, sys; {source}; cell.main()"]
    with Spawned(command, cwd=BENCHMARKS, stdout=subprocess.PIPE, text=True) as child:
        printed, _ = child.communicate(timeout=LIMIT)
    assert child.returncode == 0, printed
    measured = json.loads(printed)
    assert measured.keys() == rows
    assert all(row["by_hand"] > 0 and row["hookflow"] > 0 for row in measured.values())


@pytest.mark.parametrize("script", sorted(BENCHMARKS.glob("*.py")), ids=lambda script: script.stem)
def test_a_script_names_modules_hooks_and_commands_that_there_are(
    script: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names = runpy.run_path(str(script))
    assert script.stem in SMALLEST or not callable(names.get("main")), "SMALLEST has no line for it"
    pipeline = re.sub(r"= [A-Z]+\b", "= 1", names.get("PIPELINE", ""))
    if pipeline and "{{" not in pipeline:
        for name, hooks in names.get("HOOKS", {"": ""}).items():
            plan = compile_pipeline(parse(pipeline + hooks, script))
            assert bool(plan.bindings) == (name != "none")
    for command in names.get("COMMANDS", ()):
        hookflow_here(*command.replace("FILE", names["FILE"]).split(), cwd=tmp_path, code=0)


@pytest.mark.long
@pytest.mark.parametrize("name", SMALLEST)
def test_a_script_measures_at_its_smallest(name: str) -> None:
    source = f"import sys, {name} as script\n{SMALLEST[name]}\nsys.exit(script.main())"
    subprocess.run([sys.executable, "-c", source], cwd=BENCHMARKS, check=True, timeout=10 * LIMIT)
