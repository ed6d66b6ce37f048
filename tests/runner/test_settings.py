"""What PyTorch keeps for the whole process: set for a run, put back after it; deterministic algorithms alone."""

from __future__ import annotations

import os

import pytest
import torch

from hookflow.errors import UserError
from hookflow.runner.numerics.precision import CUBLAS
from tests.conftest import NewRun, Trained, messages, records

SEES = ('hooks.sees={use="./upsets.py:Settings"}', "run.max_epochs=1")


def now() -> tuple[object, ...]:
    cudnn = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    deterministic = torch.are_deterministic_algorithms_enabled(), os.environ.get(CUBLAS)
    return torch.get_num_threads(), *deterministic, *cudnn, *tf32


@pytest.mark.parametrize(
    ("keys", "seen"),
    [
        (["run.deterministic=true"], "threads 1, deterministic True True, benchmark False"),
        (["run.cudnn_benchmark=true"], "threads 1, deterministic False False, benchmark True"),
        (['run.precision="fp32"'], "tf32 False False"),
        (['run.precision="tf32"'], "tf32 True True"),
    ],
)
def test_they_are_set_for_a_run_and_put_back(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, keys: list[str], seen: str
) -> None:
    monkeypatch.delenv(CUBLAS, raising=False)
    before = now()
    run_dir = trained(*SEES, *keys)
    assert any(seen in line for line in messages(run_dir)), messages(run_dir)
    assert now() == before


def test_they_are_put_back_when_the_run_has_failed(trained: Trained) -> None:
    before = now()
    trained('hooks.raises={use="./watchers.py:Raises"}', "run.deterministic=true", code=1)
    assert now() == before


def test_a_deterministic_run_says_what_it_cannot_promise(trained: Trained) -> None:
    run_dir = trained("run.deterministic=true", "run.max_epochs=1")
    (line,) = (line for line in messages(run_dir) if line.startswith("deterministic:"))
    assert "this machine" in line and "version of PyTorch" in line and "your own code" in line


def test_an_operation_without_a_deterministic_form_is_named(trained: Trained) -> None:
    run_dir = trained("run.deterministic=true", 'task.use="./upsets.py:undecided"', code=1)
    reason = str(records(run_dir, "end")[0]["reason"])
    assert reason.startswith("NondeterministicError: put_ does not have a deterministic implementation. ")
    assert "run.deterministic" in reason and "warn_only" not in reason
    (error,) = records(run_dir, "error")
    assert "upsets.py" in str(error["traceback"]), "where it stands"
    trained('task.use="./upsets.py:undecided"', "run.max_epochs=1")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (("run.deterministic=true", "run.cudnn_benchmark=true"), "keep either deterministic or cudnn_benchmark"),
        (("run.deterministic=true", 'run.compile="max-autotune"'), "chooses kernels by their speed"),
    ],
)
def test_what_contradicts_it_is_the_users_mistake(new_run: NewRun, keys: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError, match=said):
        new_run(*keys)
