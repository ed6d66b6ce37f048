"""Every point fires, in the documented order, with the documented counters; see the golden files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hookflow.graph import points
from hookflow.graph.points import POINTS
from tests.conftest import Train, Trained, strike
from tests.golden_files import FOLDER, check_golden
from tests.watchers import POINTS as WATCHED

pytestmark = pytest.mark.usefixtures("written_at_once")
TRACER = 'hooks.tracer={use="./watchers.py:%s", phase="last", args={file="%s"}}'
SHORT = ("data.train.args={examples=16}", "data.val.args={examples=8,split=1}", "data.test.args={examples=8,split=2}")
EPOCHS, ITERATIONS = "max_epochs = 2", "max_iters = 5"
OWN = (
    'points={before_grow={follows="after_optimizer_step"}, '
    'after_densify={follows="before_grow", offers=["count"]}, after_grow={follows="after_densify"}}'
)


@pytest.mark.parametrize(
    ("name", "length", "overrides"),
    [
        ("trace_epochs", EPOCHS, ["run.test=true"]),
        ("trace_iterations", ITERATIONS, ["run.val_every=2"]),
        ("trace_exception", EPOCHS, ['hooks.raises={use="./watchers.py:Raises", args={at=3}}']),
        ("trace_exception_in_module", EPOCHS, ['hooks.bad={use="./watchers.py:Fails", args={place="full_backward"}}']),
        ("trace_own", "max_epochs = 1", [OWN, 'hooks.densify={use="./watchers.py:Densifies"}']),
    ],
)
def test_the_trace_is_golden(trained: Trained, tmp_path: Path, name: str, length: str, overrides: list[str]) -> None:
    tracer = TRACER % ("OwnTracer" if name == "trace_own" else "Tracer", tmp_path / "trace")
    trained(tracer, *SHORT, *overrides, swap=("max_epochs = 3", length), code=1 if "exception" in name else 0)
    check_golden(f"{name}.txt", (tmp_path / "trace").read_text())


@pytest.mark.parametrize(
    ("name", "length", "point", "at"),
    [
        ("trace_resumed_epochs", EPOCHS, "after_backward", 2),
        ("trace_resumed_iterations", ITERATIONS, "after_val_iter", 3),
    ],
)
def test_the_trace_of_a_run_that_was_interrupted_is_golden(
    trained: Trained, train_here: Train, tmp_path: Path, name: str, length: str, point: str, at: int
) -> None:
    tracer = TRACER % ("Tracer", tmp_path / "trace")
    more = [strike(tmp_path, at, point), *(["run.val_every=3"] if length is ITERATIONS else [])]
    run_dir = trained(tracer, *SHORT, *more, swap=("max_epochs = 3", length), code=143)
    with (tmp_path / "trace").open("a") as file:
        file.write("--- resumed\n")
    assert train_here(run_dir, resume=True) == 0
    check_golden(f"{name}.txt", (tmp_path / "trace").read_text())


def trace(name: str) -> list[str]:
    return [line.split()[0] for line in (FOLDER / f"trace_{name}.txt").read_text().splitlines()]


def test_every_point_has_been_seen_to_fire() -> None:
    seen = {point for name in ("epochs", "exception", "resumed_epochs", "own", "predict_only") for point in trace(name)}
    assert seen - {"---"} == {point.name for point in WATCHED} | {"before_grow", "after_densify", "after_grow"}


def test_they_first_fire_in_the_order_in_which_they_are_listed() -> None:
    elsewhere = ("after_load_checkpoint", "on_exception", "on_log")
    listed = [point.name for point in WATCHED if point.name not in elsewhere and "predict" not in point.name]
    assert list(dict.fromkeys(trace("epochs"))) == listed


def test_the_drawing_of_the_loop_has_every_point() -> None:
    drawing = str(points.__doc__).partition("This is the loop")[2].partition("What the counters say")[0]
    drawn = re.findall(r"^ +((?:before|after|on)_\w+)", drawing, re.MULTILINE)
    assert drawn == [point.name for point in POINTS if point.kind in ("standard", "step", "log")]
