"""The schedule of gradient accumulation: as a plain PyTorch loop has it, as one big batch, and resumed to the bit."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from hookflow.runner.process.launch import prepare
from tests import pytorch_hooks
from tests.conftest import TESTS, NewRun, records
from tests.runner.by_hand import assert_same_weights, weights
from tests.runner.same import assert_same_end
from tests.runner.test_resume import strikes

Train = Callable[..., int]

PIPELINE = """
run = { name = "accumulation", default_hooks = false, max_epochs = 4, threads = 1, device = "cpu" }
model.use = "tests.pytorch_hooks:Net"
task.use = "tests.pytorch_hooks:step"
optimizer = { use = "torch.optim:SGD", args = { lr = 0.5, momentum = 0.9 } }
data.train.use = "tests.pytorch_hooks:Batches"

[hooks.accumulation]
use = "accumulation_schedule"
args = { batches = [["1ep", 2], ["2ep", 3]] }
"""
OFF = [f"hooks.{name}.enabled=false" for name in ("schedule", "clip", "ema", "throughput", "early_stop")]
PLAIN = 'model={use="./own_tasks.py:Plain"}'  # batch norm and dropout see the small batches


def hook(batches: str) -> str:
    return f'hooks.accumulation={{use="accumulation_schedule", args={{batches={batches}}}}}'


def test_the_weights_are_those_of_a_plain_loop_to_the_bit(tmp_path: Path, train_here: Train) -> None:
    loaded = parse(PIPELINE, tmp_path / "accumulation.toml")
    run_dir = RunDir.create(tmp_path / "runs", "accumulation")
    prepare(loaded, compile_pipeline(loaded), run_dir, TESTS)
    assert train_here(run_dir) == 0, records(run_dir, "error")
    trained = pytorch_hooks.NETS[-1].state_dict()
    net = pytorch_hooks.Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    for groups in ([1, 1, 1], [2, 1], [3], [3]):
        batches = iter([*pytorch_hooks.Batches().epoch(0)])
        for size in groups:
            optimizer.zero_grad()
            for _ in range(size):
                inputs, target = next(batches)
                (torch.nn.functional.cross_entropy(net(inputs), target) / size).backward()
            optimizer.step()
    assert all(torch.equal(trained[name], weight) for name, weight in net.state_dict().items())


@pytest.mark.parametrize(
    ("examples", "lengths"), [(40, [24, 6]), (46, [30, 9])], ids=["even", "the last batch is smaller"]
)
def test_a_group_is_one_big_batch(new_run: NewRun, train_here: Train, examples: int, lengths: list[int]) -> None:
    """As `run.accumulate` makes it, with its last group incomplete."""
    data = f"data.train.args={{examples={examples}, batch_size=5, whole=true}}"
    scheduled, accumulated = (
        new_run(PLAIN, data, *OFF, hook("[[0, 4]]")),
        new_run(PLAIN, data, *OFF, "run.accumulate=4"),
    )
    assert train_here(scheduled) == train_here(accumulated) == 0
    for name, weight in weights(accumulated).items():
        torch.testing.assert_close(weights(scheduled)[name], weight, rtol=1e-5, atol=1e-6)
    assert [records(run_dir, "run")[0]["max_iters"] for run_dir in (scheduled, accumulated)] == lengths


def test_hooks_of_the_step_fire_once_for_all_batches_of_a_group(
    new_run: NewRun, train_here: Train, tmp_path: Path
) -> None:
    tracer = f'hooks.tracer={{use="./watchers.py:Tracer", args={{file="{tmp_path / "trace"}"}}}}'
    run_dir = new_run(*OFF, tracer, hook('[["1ep", 2], [11, 3]]'))
    assert train_here(run_dir) == 0
    lines = [line.split()[:2] for line in (tmp_path / "trace").read_text().splitlines()]
    stepped = [int(it.removeprefix("iter=")) for point, it in lines if point == "after_optimizer_step"]
    assert stepped == [0, 1, 2, 3, 4, 6, 8, 9, 11, 14], "the group that begins at 10 has two batches, the last three"
    assert len([line for line in lines if line[0] == "after_train_iter"]) == 15


@pytest.mark.parametrize("at", [6, 11, 12])
def test_a_run_that_ends_within_a_group_is_resumed_to_the_bit(
    new_run: NewRun, train_here: Train, tmp_path: Path, at: int
) -> None:
    schedule = hook('[["1ep", 2], ["2ep", 4]]')
    alone = new_run(schedule)
    broken = new_run(schedule, *strikes(tmp_path, signal.SIGTERM, ("after_backward", at)))
    assert train_here(alone) == 0
    assert train_here(broken) == 143
    assert train_here(broken, resume=True) == 0
    assert_same_end(alone, broken)


def test_a_step_that_another_hook_skips_drops_what_is_accumulated(new_run: NewRun, train_here: Train) -> None:
    """The next batch begins a group: of five, two are dropped, and the last three are one."""
    skips = 'hooks.skips={use="tests.photographs:SkipsOne", args={at=1}}'
    skipped = new_run(PLAIN, *OFF, skips, hook("[[0, 4]]"), "run.max_epochs=1")
    rest = new_run(PLAIN, *OFF, "run.max_epochs=1", "data.train.args={batch_size=24, begin=16}")
    assert train_here(skipped) == train_here(rest) == 0
    for name, weight in weights(rest).items():
        torch.testing.assert_close(weights(skipped)[name], weight, rtol=1e-5, atol=1e-6)


def test_one_batch_throughout_is_no_accumulation(new_run: NewRun, train_here: Train) -> None:
    one, none, two = new_run(hook("[[0, 1]]")), new_run(), new_run(hook("[[0, 2]]"))
    assert train_here(one) == train_here(none) == train_here(two) == 0
    assert_same_weights(one, none, but=two)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ((hook("[[0, 2]]"), "run.accumulate=2"), "both say on how many batches the optimizer steps"),
        ((hook('[["2ep", 2], [3, 4]]'),), "batches: positions must increase: 3 is iteration 3, the one before it 10"),
        ((hook("[[0, 2]]"), "task.use=tests.photographs:StepsEveryThird", *OFF), "this task steps it itself"),
    ],
)
def test_what_cannot_be_is_told_before_the_first_iteration(
    new_run: NewRun, train_here: Train, overrides: tuple[str, ...], said: str
) -> None:
    run_dir = new_run(*overrides)
    assert train_here(run_dir) == 2
    end = records(run_dir, "end")[-1]
    assert (end["it"], said in str(end["reason"])) == (0, True)


def test_a_task_cannot_ask_for_it(new_run: NewRun, train_here: Train) -> None:
    run_dir = new_run("task.use=./own_tasks.py:accumulates")
    assert train_here(run_dir) == 2
    assert "run.accumulate is for hooks" in str(records(run_dir, "end")[-1]["reason"])
