"""What one rank alone finds that is not finite concerns all: none of them takes the step, or the run ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hookflow.events.log import Tail
from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import load
from hookflow.runner.process.launch import prepare
from tests.conftest import records
from tests.distributed.several import carry_out, printed
from tests.runner.same import final_state

HERE = Path(__file__).parent
FSDP = 'distributed.strategy="fsdp"'
UPSET = 'task={use="tests.upsets:UpsetRank", args={batches=[2]}}'

TrainHere = Callable[..., int]


def clouds(folder: Path, *overrides: str) -> RunDir:
    loaded = load(HERE / "clouds.toml", ("run.max_epochs=1", "data.train.args.examples=40", UPSET, *overrides))
    run_dir = RunDir.create(folder, loaded.pipeline.run.name)
    prepare(loaded, compile_pipeline(loaded), run_dir, HERE)
    return run_dir


@pytest.mark.parametrize(
    "more",
    [
        pytest.param([], id="ddp"),
        pytest.param([FSDP], id="fsdp"),
        pytest.param(['run.precision="fp16"', FSDP], id="fsdp, fp16"),
    ],
)
def test_no_rank_takes_the_step(tmp_path: Path, train_here: TrainHere, more: list[str]) -> None:
    skip = ('run.on_nan="skip"', *more)
    alone, together = clouds(tmp_path, *skip), clouds(tmp_path, *skip)
    assert train_here(alone) == 0, "alone it is the last rank itself"
    assert carry_out(together, 2) == [0, 0], printed(together, 0)
    for rank in (0, 1):
        told = [str(record.get("text")) for record in Tail(together.events_of(rank)).read_all()]
        assert len([line for line in told if "takes no step" in line]) == 1
    left_out = [final_state(run_dir)["step_guard"]["left_out"] for run_dir in (alone, together)]  # type: ignore[index]
    assert left_out[0] == left_out[1] > 0
    weights, others = (final_state(run_dir)["model"] for run_dir in (alone, together))
    close = {"rtol": 1e-2, "atol": 1e-3} if "fp16" in str(more) else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(weights, others, **close)


def test_the_run_ends_with_the_words_of_the_rank_that_found_it(tmp_path: Path) -> None:
    run_dir = clouds(tmp_path)
    assert carry_out(run_dir, 2) == [1, 1]
    reason = str(records(run_dir, "end")[-1]["reason"])
    assert reason.startswith("rank 1: NonFiniteLossError: the loss is NaN in iteration 3")
