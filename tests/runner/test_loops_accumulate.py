"""Accumulated gradients: a group of batches is worth one big batch, and one iteration."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookflow.events.rundir import RunDir
from tests.conftest import NewRun, Trained, records
from tests.golden_files import check_golden
from tests.runner.same import curve

PLAIN = 'model={use="./own_tasks.py:Plain"}'  # batch norm and dropout see the small batches
EACH = 'hooks.log.points=["after_train_iter"]'


def one_of(run_dir: RunDir, name: str) -> dict[tuple[object, object, str], float]:
    return {key: value for key, value in curve(run_dir).items() if key[-1] == name}


@pytest.mark.parametrize(
    ("examples", "batch", "accumulate", "big"),
    [(48, 4, 4, 16), (40, 4, 4, 16), (46, 5, 3, 15)],
    ids=["even", "last group incomplete", "last batch smaller too"],
)
def test_it_is_one_big_batch(trained: Trained, examples: int, batch: int, accumulate: int, big: int) -> None:
    data = "data.train.args={{examples={}, batch_size={}, whole=true}}".format
    small = trained(PLAIN, EACH, data(examples, batch), f"run.accumulate={accumulate}")
    large = trained(PLAIN, EACH, data(examples, big))
    assert curve(small).keys() == curve(large).keys()
    for name in ("loss", "grad_norm", "lr", "accuracy"):
        assert one_of(small, name) == pytest.approx(one_of(large, name), rel=2e-4), name
    assert records(small, "run")[0]["iters_per_epoch"] == records(large, "run")[0]["iters_per_epoch"]


def test_it_resumes_in_the_middle_of_an_epoch_to_the_bit(resumes_alike: NewRun) -> None:
    resumes_alike("run.accumulate=2", point="after_backward", at=4)


def test_the_trace(trained: Trained, tmp_path: Path) -> None:
    tracer = f'hooks.tracer={{use="./watchers.py:Tracer", phase="last", args={{file="{tmp_path / "trace"}"}}}}'
    off = [f"hooks.{hook}.enabled=false" for hook in ("checkpoint", "throughput", "log")]
    trained(tracer, *off, "data.train.args={examples=24}", "run.accumulate=2", "run.max_epochs=1")
    check_golden("trace_accumulate.txt", (tmp_path / "trace").read_text())


def test_a_skipped_batch_counts_for_nothing(trained: Trained) -> None:
    """The first of five batches is left out; the step is that of the other four, as one batch."""
    args = '{call="skip_batch", point="before_train_iter", at=0}'
    steers = f'hooks.steers={{use="./steerers.py:Steers", args={args}, writes=["control"]}}'
    small = trained(PLAIN, EACH, steers, "run.accumulate=5", "run.max_epochs=1")
    rest = trained(PLAIN, EACH, "run.max_epochs=1", "data.train.args={batch_size=32, begin=8, whole=true}")
    for name in ("loss", "grad_norm"):
        assert one_of(small, name) == pytest.approx(one_of(rest, name), rel=2e-4), name
