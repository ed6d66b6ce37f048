"""`log` with `window` and `mean`: held against plain means of the losses that the iterations had."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from hookflow.events.log import Tail
from hookflow.events.rundir import RunDir
from hookflow.graph.plan import Plan
from hookflow.hooks.tensors import EpochSums, Window, sum_dtype
from hookflow.runner.loop.evaluation import Means
from tests import own_tasks
from tests.conftest import TESTS, NewRun, Trained, records
from tests.distributed.several import carry_out

KEEPS = 'hooks.keeps={use="tests.hooks.test_log_means:Keeps"}'
CLOUDS = TESTS / "distributed" / "clouds.toml"
EPOCHS = "run.max_epochs=3"


class Keeps:
    """Records the loss of each iteration, and how many examples it is a mean over."""

    def after_train_iter(self, run: Any, outputs: Any) -> None:
        run.say(json.dumps([run.iter, run.epoch, float(outputs["loss"].detach()), run.batch_size]))


def log(args: str, more: str = "") -> str:
    return f"hooks.log={{use='log', args={{{args}}}{more}}}"


def kept(run_dir: RunDir, rank: int = 0) -> dict[int, tuple[int, float, int]]:
    log = Tail(run_dir.events_of(rank)).read_all()
    told = [json.loads(record["text"]) for record in log if record["k"] == "message" and record["source"] == "keeps"]
    return {it: (epoch, loss, size) for it, epoch, loss, size in told}


def logged(run_dir: RunDir, name: str) -> dict[Any, float]:
    return {r["it"]: r["v"][name] for r in records(run_dir, "scalars") if name in r["v"]}  # type: ignore[index, operator]


def mean(of: list[tuple[int, float, int]]) -> float:
    return sum(loss * size for _, loss, size in of) / sum(size for *_, size in of)


def window(losses: dict[int, tuple[int, float, int]], it: int, length: int) -> float:
    return mean([losses[k] for k in range(max(it - length, 0) + 1, it + 1)])


def assert_are_means(
    run_dir: RunDir, losses: dict[int, tuple[int, float, int]], length: int, rel: float = 1e-12
) -> None:
    """Compare the logged means over windows and epochs with plain means of the losses."""
    assert logged(run_dir, "loss") and len(logged(run_dir, "loss_epoch")) == len(
        {epoch for epoch, *_ in losses.values()}
    )
    for it, value in logged(run_dir, "loss").items():
        assert value == pytest.approx(window(losses, it, length), rel=rel)
    for epoch, value in enumerate(logged(run_dir, "loss_epoch").values()):
        assert value == pytest.approx(mean([loss for loss in losses.values() if loss[0] == epoch]), rel=rel)


@pytest.mark.parametrize(
    "batches",
    ["data.train.args={examples=47, batch_size=5, whole=true}", "run.accumulate=3"],
    ids=["a smaller last batch", "accumulated"],
)
def test_means_over_windows_and_epochs_are_plain_means_whenever_they_are_logged(trained: Trained, batches: str) -> None:
    run_dir = trained(KEEPS, EPOCHS, batches, log('window=4, mean="epoch"', ", every=3"))
    losses = kept(run_dir)
    assert list(logged(run_dir, "loss")) == [it for it in losses if it % 3 == 0]
    assert len({size for *_, size in losses.values()}) > 1
    assert_are_means(run_dir, losses, 4)


def test_it_is_bound_to_the_end_of_an_epoch_only_where_it_logs_there(new_run: NewRun) -> None:
    def bound(args: str) -> list[str]:
        plan = Plan.from_json(json.loads(new_run(log(args)).plan.read_text()))
        return [binding.point for binding in plan.bindings if binding.hook == "log"]

    assert bound("") == bound("window=3") == ["after_train_iter"]
    assert bound('mean="epoch"') == ["after_train_iter", "after_train_epoch"]


def test_ranks_log_the_means_over_all_their_examples(new_run: NewRun) -> None:
    run_dir = new_run(KEEPS, log('window=3, mean="epoch"'), "hooks.ema.enabled=false", pipeline=CLOUDS)
    assert carry_out(run_dir, 2) == [0, 0]
    first, second = kept(run_dir), kept(run_dir, rank=1)
    both = {it: (item[0], mean([item, second[it]]), item[2] + second[it][2]) for it, item in first.items()}
    assert {item[2] != second[it][2] for it, item in first.items()} == {True, False}
    assert_are_means(run_dir, both, 3, rel=1e-9)


def alternates(run: Any, batch: Any) -> dict[str, Any]:
    """A task whose outputs differ by iteration: `rare` comes once."""
    always = own_tasks.step(run, batch)
    names = [("odd", "even")[run.iter % 2], *(["rare"] if run.iter == 4 else [])]
    return {**always, **{name: torch.tensor(float(run.iter + 1)) for name in names if run.stage == "train"}}


def by_batch(run: Any, batch: Any) -> dict[str, Any]:
    """A task that returns the batch's index for every second batch."""
    always = own_tasks.step(run, batch)
    return always if run.batch_idx % 2 else {**always, "even": run.batch_idx}


ALTERNATES = 'task={use="tests.hooks.test_log_means:alternates"}'


@pytest.mark.parametrize(
    ("args", "trigger", "rare", "odd", "even"),
    [
        ("", "every=4", {8: 5}, {4: 3, 8: 7, 12: 11}, {4: 4, 8: 8, 12: 12}),
        ("", "every='1ep'", {5: 5}, {5: 5, 10: 9, 15: 15}, {5: 4, 10: 10, 15: 14}),
        ("window=3", "every=4", {8: 5}, {4: 2, 8: 6, 12: 10}, {4: 3, 8: 7, 12: 11}),
        ('window=3, mean="epoch"', "every=4", {8: 5}, {4: 2, 8: 6, 12: 10}, {4: 3, 8: 7, 12: 11}),
    ],
)
def test_an_output_of_some_iterations_is_logged_when_the_hook_fires_next(
    trained: Trained, args: str, trigger: str, rare: Any, odd: Any, even: Any
) -> None:
    run_dir = trained(EPOCHS, ALTERNATES, log(args, f", {trigger}"))
    assert [logged(run_dir, name) for name in ("rare", "odd", "even")] == [rare, odd, even]


def test_of_accumulated_batches_those_count_that_have_the_number(trained: Trained) -> None:
    task = 'task={use="tests.hooks.test_log_means:by_batch"}'
    assert logged(trained("run.max_epochs=1", "run.accumulate=5", log(""), task), "even") == {1: 2.0}


def test_a_window_that_was_loaded_goes_on_where_the_numbers_are_computed() -> None:
    before, after = Window(3), Window(3)
    before.add(1, {"loss": torch.tensor(2.0, dtype=torch.float64)}, 8)
    after.load_state_dict(before.state_dict())
    after.add(2, {"loss": torch.ones((), dtype=torch.float64, device="meta")}, 8)
    assert after.sums(["loss"])["loss"][0].device.type == after.state_dict()["loss"]["total"].device.type == "meta"
    epoch = EpochSums()
    epoch.load_state_dict({"epoch": 0, "sums": {"loss": [torch.tensor(2.0), 8]}})
    epoch.add(0, {"loss": torch.ones((), device="meta")}, 8)
    assert epoch.sums()["loss"][0].device.type == "meta"  # type: ignore[union-attr]


def test_a_long_sum_is_exact_to_seven_digits() -> None:
    of_pass, of_epoch, value = Means(exact=True), EpochSums(), torch.tensor(0.1)
    for _ in range(10_000):
        of_pass.add({"loss": value}, 7)
        of_epoch.add(0, {"loss": value}, 7)
    total, seen = of_epoch.sums()["loss"]
    assert of_pass.over_ranks(lambda sums: [sums, sums])["loss"] == pytest.approx(0.1, rel=1e-7)
    assert float(total) / seen == pytest.approx(0.1, rel=1e-7)


def test_mps_adds_up_in_float32() -> None:
    assert sum_dtype(torch.device("mps")) is torch.float32
    assert sum_dtype(torch.device("cuda")) is sum_dtype(torch.device("cpu")) is torch.float64
