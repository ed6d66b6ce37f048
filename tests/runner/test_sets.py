"""Several sets of validation and test data, each with a name, and with an interval of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import TRACER, NewRun, Trained, hookflow_here, messages, reason, records
from tests.runner.test_loops_steered import Clock
from tests.toy import Net, Points

ONE = '[data.val]\nuse = "./toy.py:Points"\nargs = { split = 1, examples = 16 }\n'
ONE_TEST = ONE.replace("data.val", "data.test").replace("split = 1", "split = 2")
SETS = (
    '[data.val.near]\nuse = "./toy.py:Points"\nargs = { split = 1, examples = 16 }\n'
    '[data.val.far]\nuse = "./toy.py:Points"\nargs = { split = 2, examples = 24 }\nval_every = "2ep"\n'
)
MONITORS = ("hooks.early_stop.args.monitor='near/accuracy'", "hooks.checkpoint.args.monitor='far/accuracy'")


def test_each_set_has_its_metrics_and_its_interval(trained: Trained, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    run_dir = trained(*MONITORS, TRACER % trace, swap=(ONE, SETS))
    metrics = [(record["it"], set(record["v"])) for record in records(run_dir, "metrics")]  # type: ignore[call-overload]
    near, far = {"near/loss", "near/accuracy"}, {"far/loss", "far/accuracy"}
    assert metrics == [(5, near), (10, near | far), (15, near | far)], "each at the end, too"
    points = [line.split()[0] for line in trace.read_text().splitlines()]
    assert (points.count("before_val"), points.count("before_val_epoch"), points.count("after_val")) == (3, 5, 3)


def test_time_is_up_for_a_set_alone(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock rings in the second and in the fourth iteration."""
    monkeypatch.setattr("hookflow.runner.loop.evaluation.Timer", Clock)
    hours = 'hooks.hours={use="tests.runner.test_loops_steered:Hours"}'
    by_time = SETS.replace('val_every = "2ep"', 'val_every = "10m"')
    run_dir = trained(*MONITORS, hours, "run.max_epochs=1", swap=(ONE, by_time))
    sets = [(r["it"], {name.split("/")[0] for name in r["v"]}) for r in records(run_dir, "metrics")]  # type: ignore[attr-defined]
    assert sets == [(2, {"far"}), (4, {"far"}), (5, {"near", "far"})]


def test_a_set_is_measured_as_if_it_were_alone(trained: Trained) -> None:
    alone = records(trained(), "metrics")[-1]["v"]
    among = records(trained(*MONITORS, swap=(ONE, SETS)), "metrics")[-1]["v"]
    assert {f"near/{name}": value for name, value in alone.items()}.items() <= among.items()  # type: ignore[attr-defined]


def test_a_set_is_measured_as_pytorch_measures_it(trained: Trained) -> None:
    run_dir = trained(*MONITORS, "hooks.ema.enabled=false", swap=(ONE, SETS))
    net = Net()
    net.load_state_dict(torch.load(run_dir.checkpoints / "last" / "model.pt", weights_only=True))
    inputs, targets = (
        torch.cat(part) for part in zip(*Points(0, torch.device("cpu"), split=2, examples=24).epoch(0), strict=True)
    )
    right = (net.eval()(inputs).argmax(dim=1) == targets).double().mean()
    metrics: Any = records(run_dir, "metrics")[-1]["v"]
    assert metrics["far/accuracy"] == float(right)


@pytest.mark.parametrize("at", [5, 10])
def test_a_validation_that_a_signal_has_cut_is_of_the_same_sets(resumes_alike: NewRun, at: int) -> None:
    resumes_alike(*MONITORS, point="after_val_iter", at=at, swap=(ONE, SETS))


def test_a_metric_is_that_of_a_set(trained: Trained) -> None:
    printed = reason(trained(swap=(ONE, SETS), code=2))
    assert '"checkpoint" reads the metric "accuracy", which the validation does not give' in printed
    assert "far/accuracy" in printed


def test_a_single_set_has_the_interval_of_the_run(trained: Trained) -> None:
    with pytest.raises(Exception, match="val_every is for one of several sets"):
        trained(swap=(ONE, ONE + 'val_every = "2ep"\n'))


def test_sets_are_tested_and_evaluated_by_name(trained: Trained, tmp_path: Path) -> None:
    sets = ONE_TEST.replace("data.test", "data.test.a") + ONE.replace("data.val", "data.test.b")
    run_dir = trained("run.test=true", swap=(ONE_TEST, sets))
    tested: Any = [record["v"] for record in records(run_dir, "metrics") if record["split"] == "test"]
    assert [*tested[0]] == ["a/loss", "a/accuracy", "b/loss", "b/accuracy"]
    found = hookflow_here("test", str(run_dir.path), "--format", "json", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert '"a/accuracy"' in found.stdout
    assert '"test.b"' in found.stdout
    assert not messages(run_dir, "error")
    refused = hookflow_here("predict", str(run_dir.path), "--split", "test", cwd=tmp_path)
    assert refused.returncode == 2
    assert "[data.test] has several sets" in refused.stderr
