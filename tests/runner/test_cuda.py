"""What runs only on CUDA. Skipped where there is none."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from hookflow.runner.checkpoint.manager import host_memory
from tests.conftest import NewRun, Train, Trained, reason, records
from tests.runner.same import final_state

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs_cuda: there is no such device here")

CUDA = 'run.device="cuda"'
ON_DEVICE = 'data.train={use="./loaders.py:dataset", args={examples=64}, loader={batch_size=8, on_device=true}}'
FETCHED = 'data.train={use="./loaders.py:dataset", args={examples=64}, loader={batch_size=8, workers=1}}'


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_a_training_ends(trained: Trained, precision: str) -> None:
    run_dir = trained(CUDA, f'run.precision="{precision}"', ON_DEVICE)
    assert records(run_dir, "run")[0]["precision"] == precision
    assert str(records(run_dir, "run")[0]["device"]).startswith("cuda")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("data", [ON_DEVICE, FETCHED])
def test_a_resumed_run_ends_with_the_same_bits(resumes_alike: NewRun, precision: str, data: str) -> None:
    run = (CUDA, data, "run.deterministic=true", f'run.precision="{precision}"', "hooks.throughput.enabled=false")
    resumes_alike(*run, point="after_train_iter", at=11)


@pytest.fixture
def waits() -> Iterator[Callable[[], list[str]]]:
    """Collect what PyTorch says of each wait of the training thread for CUDA, where it is told to warn of them."""
    result: list[str] = []
    trainer = threading.current_thread()

    def note(message: Any, *about: Any, **more: Any) -> None:
        if "synchronizing CUDA operation" in str(message) and threading.current_thread() is trainer:
            result.append(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        yield lambda: result
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("data", [ON_DEVICE, FETCHED])
@pytest.mark.parametrize(
    "more",
    [
        ('run.precision="fp32"',),
        ('run.precision="bf16"', "run.accumulate=2"),
        ('run.precision="fp16"', "optimizer.args.fused=true", "hooks.ema.enabled=false", "hooks.checkpoint.after=[]"),
        ('run.on_nan="skip"', "optimizer.args.fused=true", "hooks.ema.enabled=false", "hooks.checkpoint.after=[]"),
    ],
)
def test_a_steady_iteration_waits_for_nothing(
    trained: Trained, waits: Callable[[], list[str]], data: str, more: tuple[str, ...]
) -> None:
    counts = 'hooks.counts={use="./upsets.py:CountsWaits", phase="first"}'
    logs = 'hooks.logs={use="./loggers.py:Logs"}'
    trained(CUDA, data, *more, counts, logs, "run.max_epochs=1")
    assert waits() == []


def test_a_loss_that_is_not_finite_ends_the_run_soon(trained: Trained) -> None:
    run_dir = trained(CUDA, ON_DEVICE, 'task={use="./upsets.py:Upset", args={batches=[2]}}', code=1)
    assert "the loss is NaN in iteration 3 (" in reason(run_dir)


def test_optimizers_that_decide_by_themselves_decide_alike(new_run: NewRun, train_here: Train) -> None:
    upset = 'task={use="./upsets.py:Upset", args={batches=[2, 4]}}'
    run = (CUDA, ON_DEVICE, upset, 'run.on_nan="skip"', "run.deterministic=true", "optimizer.args.fused=true")
    looks = 'hooks.looks={use="./upsets.py:Looks"}'
    blind = new_run(*run, "hooks.ema.enabled=false", "hooks.checkpoint.after=[]")
    knowing = new_run(*run, "hooks.ema.enabled=false", "hooks.checkpoint.after=[]", looks)
    assert train_here(blind) == train_here(knowing) == 0, reason(blind)
    one, other = (final_state(run_dir)["model"] for run_dir in (blind, knowing))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())  # type: ignore[attr-defined, index]


def test_a_full_memory_is_told_of_with_the_numbers(trained: Trained) -> None:
    run_dir = trained(CUDA, ON_DEVICE, 'hooks.full={use="./upsets.py:Full", args={kind="cuda"}}', code=1)
    assert "GPU 0 has a total capacity" in reason(run_dir) and "batch_size = 4 (now 8)" in reason(run_dir)


def test_large_memory_for_a_copy_is_page_locked() -> None:
    assert host_memory(torch.ones(3 << 20, device="cuda")).is_pinned()


@pytest.mark.parametrize("compiled", ["true", "'reduce-overhead'"])
def test_a_compiled_network_trains(new_run: NewRun, train_here: Train, compiled: str) -> None:
    run_dir = new_run(CUDA, ON_DEVICE, f"run.compile={compiled}", "run.accumulate=2", "run.max_epochs=1")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert train_here(run_dir) == 0, reason(run_dir)


@pytest.mark.parametrize("more", [(), ("run.accumulate=2",)], ids=["plain", "accumulated"])
def test_phases_and_hooks_have_their_time_on_the_device(trained: Trained, more: tuple[str, ...]) -> None:
    run_dir = trained(CUDA, ON_DEVICE, *more, "run.max_epochs=20")
    device = [frame["device"] for frame in records(run_dir, "frame") if "device" in frame]
    assert sum(each["iters"] for each in device) > 0
    assert sum(each["phases"]["forward"] for each in device) > 0
    assert sum(each["ns"] for each in device) >= sum(sum(each["phases"].values()) for each in device) * 0.99
    assert any(each["hooks"] for each in device)
