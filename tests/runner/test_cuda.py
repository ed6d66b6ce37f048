"""What runs only on CUDA. Skipped where there is none."""

import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from hookflow.errors import Where
from hookflow.pipeline.schema import DistributedSection
from hookflow.runner.checkpoint.shards import with_contents, without_contents, write_shards
from hookflow.runner.checkpoint.store import _ChecksumWriter
from hookflow.runner.data.batches import prefetch
from hookflow.runner.device.cuda import device_thread
from hookflow.runner.distributed.fsdp import FSDPStrategy
from hookflow.runner.distributed.parallel import DDPStrategy, SeveralRanksStrategy
from hookflow.runner.state.host_copy import HostCopier, host_memory
from tests.conftest import TESTS, NewRun, Train, Trained, reason, records
from tests.distributed.clouds import Deep
from tests.distributed.conftest import (
    TrainBoth,
    assert_alike,
    new_clouds,  # noqa: F401
    ranks_trained,  # noqa: F401
    train_both,  # noqa: F401
)
from tests.distributed.several import carry_out, printed
from tests.runner.same import assert_same, assert_same_end, final_state, logged
from tests.support.overrides import NUMBERS, WATCHES

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs_cuda: there is no such device here"
)

CUDA = 'run.device="cuda"'
ON_DEVICE = (
    'data.train={use="./data_loaders.py:dataset", args={examples=64}, loader={batch_size=8,'
    " on_device=true}}"
)
FETCHED = (
    'data.train={use="./data_loaders.py:dataset", args={examples=64}, loader={batch_size=8,'
    " workers=1}}"
)


class CountsWaits:
    def before_train_iter(self, run: Any) -> None:
        if run.iter == 2:
            torch.cuda.set_sync_debug_mode("warn")

    def after_train_iter(self, run: Any) -> None:
        if run.iter == min(6, run.iters_per_epoch):
            torch.cuda.set_sync_debug_mode("default")


class LogsLate:
    """Logs a histogram of ones that a GPU computes after other work."""

    def after_train_iter(self, run: Any) -> None:
        values = torch.zeros(1 << 16, device=run.device)
        work = torch.ones(2048, 2048, device=run.device)
        for _ in range(20):
            work = work @ work * 0
        values += 1 + work[0, 0]
        run.log_histogram("late", values, bins=2)


class KeepsBatch:
    """Keeps a copy of a batch for one iteration more, reads it behind other work,
    and logs how it has changed.
    """

    def __init__(self) -> None:
        self.kept: Any = None

    def after_train_iter(self, run: Any, batch: Any) -> None:
        tensor = batch[0] if isinstance(batch, list | tuple) else batch
        if self.kept is not None:
            before, twin = self.kept
            work = torch.ones(2048, 2048, device=tensor.device)
            for _ in range(20):
                work = work @ work * 0
            changed = (before + work[0, 0] - twin).abs().max()
            self.kept = before = None  # its memory may be used again from here on
            run.log("kept", changed)
        self.kept = tensor, tensor.clone()


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_a_training_ends(trained: Trained, precision: str) -> None:
    run_dir = trained(CUDA, f'run.precision="{precision}"', ON_DEVICE)
    assert records(run_dir, "run")[0]["precision"] == precision
    assert str(records(run_dir, "run")[0]["device"]).startswith("cuda")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("data", [ON_DEVICE, FETCHED])
def test_a_resumed_run_ends_with_the_same_bits(
    resumes_alike: NewRun, precision: str, data: str
) -> None:
    run = (
        CUDA,
        data,
        "run.deterministic=true",
        f'run.precision="{precision}"',
        "hooks.throughput.enabled=false",
    )
    resumes_alike(*run, point="after_train_iter", at=11)


@pytest.fixture
def waits() -> Iterator[Callable[[], list[str]]]:
    """Collect the lines of hookflow at which the training thread has waited for CUDA,
    while PyTorch warns of it.
    """
    result: list[str] = []
    trainer = threading.current_thread()

    def note(message: Any, *about: Any, **more: Any) -> None:
        if "synchronizing CUDA operation" in str(message) and threading.current_thread() is trainer:
            ours = [
                frame
                for frame in traceback.extract_stack()[:-1]
                if "site-packages" not in frame.filename
            ]
            result.append(
                " < ".join(
                    f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(ours[-4:])
                )
            )

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
        (
            'run.precision="fp16"',
            "optimizer.args.fused=true",
            "hooks.ema.enabled=false",
            "hooks.checkpoint.after=[]",
        ),
        (
            'run.on_nan="skip"',
            "optimizer.args.fused=true",
            "hooks.ema.enabled=false",
            "hooks.checkpoint.after=[]",
        ),
    ],
)
def test_a_steady_iteration_waits_for_nothing(
    trained: Trained, waits: Callable[[], list[str]], data: str, more: tuple[str, ...]
) -> None:
    counts = 'hooks.counts={use="tests.runner.test_cuda:CountsWaits", phase="first"}'
    logs = 'hooks.logs={use="./logging_hooks.py:Logs"}'
    trained(CUDA, data, *more, counts, logs, "run.max_epochs=1")
    assert waits() == []


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("masked", [[], [4, 5, 6, 7]])
def test_weights_of_batches_are_not_waited_for(
    trained: Trained, waits: Callable[[], list[str]], masked: list[int], accumulate: int
) -> None:
    counts = 'hooks.counts={use="tests.runner.test_cuda:CountsWaits", phase="first"}'
    run = (
        CUDA,
        "run.max_iters=8",
        f"run.accumulate={accumulate}",
        f"data.train.args.masked={masked}",
        counts,
    )
    data = ("data.train.loader.batch_size=1", "data.train.loader.on_device=true")
    trained(
        *run,
        *data,
        "optimizer.args.fused=true",
        "hooks.log.enabled=false",
        pipeline=TESTS / "support" / "language_model.toml",
    )
    assert waits() == []


def test_a_loss_whose_gradients_are_finite_skips_its_step(trained: Trained) -> None:
    upset = 'task={use="./numeric_faults.py:Upset", args={batches=[2], kind="finite gradient"}}'
    more = ("optimizer.args.fused=true", "hooks.ema.enabled=false", "hooks.checkpoint.after=[]")
    run_dir = trained(CUDA, ON_DEVICE, upset, 'run.on_nan="skip"', "run.max_epochs=1", *more)
    assert [*logged(run_dir, "skipped_steps").values()] == [1.0]


def test_a_loss_that_is_not_finite_ends_the_run_soon(trained: Trained) -> None:
    run_dir = trained(
        CUDA, ON_DEVICE, 'task={use="./numeric_faults.py:Upset", args={batches=[2]}}', code=1
    )
    assert "the loss is NaN in iteration 3 (" in reason(run_dir)


def test_optimizers_that_decide_by_themselves_decide_alike(
    new_run: NewRun, train_here: Train
) -> None:
    upset = 'task={use="./numeric_faults.py:Upset", args={batches=[2, 4]}}'
    run = (
        CUDA,
        ON_DEVICE,
        upset,
        'run.on_nan="skip"',
        "run.deterministic=true",
        "optimizer.args.fused=true",
    )
    looks = 'hooks.looks={use="./numeric_faults.py:Looks"}'
    blind = new_run(*run, "hooks.ema.enabled=false", "hooks.checkpoint.after=[]")
    knowing = new_run(*run, "hooks.ema.enabled=false", "hooks.checkpoint.after=[]", looks)
    assert train_here(blind) == train_here(knowing) == 0, reason(blind)
    assert_same(*(final_state(run_dir)["model"] for run_dir in (blind, knowing)))


def test_a_full_memory_is_told_of_with_the_numbers(trained: Trained) -> None:
    run_dir = trained(
        CUDA, ON_DEVICE, 'hooks.full={use="./numeric_faults.py:Full", args={kind="cuda"}}', code=1
    )
    assert "GPU 0 has a total capacity" in reason(run_dir) and "batch_size = 4 (now 8)" in reason(
        run_dir
    )


def test_large_memory_for_a_copy_is_page_locked() -> None:
    assert host_memory(torch.ones(3 << 20, device="cuda")).is_pinned()


@pytest.mark.parametrize("compiled", ["true", "'reduce-overhead'"])
def test_a_compiled_network_trains(new_run: NewRun, train_here: Train, compiled: str) -> None:
    run_dir = new_run(
        CUDA, ON_DEVICE, f"run.compile={compiled}", "run.accumulate=2", "run.max_epochs=1"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert train_here(run_dir) == 0, reason(run_dir)


@pytest.mark.parametrize("more", [(), ("run.accumulate=2",)], ids=["plain", "accumulated"])
def test_phases_and_hooks_have_their_time_on_the_device(
    trained: Trained, more: tuple[str, ...]
) -> None:
    run_dir = trained(CUDA, ON_DEVICE, *more, "run.max_epochs=20")
    device = [frame["device"] for frame in records(run_dir, "frame") if "device" in frame]
    assert sum(each["iters"] for each in device) > 0
    assert sum(each["phases"]["forward"] for each in device) > 0
    assert (
        sum(each["ns"] for each in device)
        >= sum(sum(each["phases"].values()) for each in device) * 0.99
    )
    assert any(each["hooks"] for each in device)


@pytest.mark.parametrize("offload", ["true", '"process"'])
def test_an_offloaded_hook_sees_what_it_would_see_in_the_training_thread(
    trained: Trained, offload: str
) -> None:
    run = (CUDA, ON_DEVICE, "run.deterministic=true", "run.max_epochs=1")
    none, here = trained(*run), trained(*run, WATCHES % (0, "every=1"))
    beside = trained(*run, WATCHES % (0.003, f"offload={offload}, queue=3"))
    assert_same(final_state(none)["model"], final_state(beside)["model"])
    for name in NUMBERS:
        assert logged(here, name) == pytest.approx(logged(beside, name), rel=1e-12)
        assert len(logged(beside, name)) == 8


SHARED = ('run.device="cuda:0"', 'distributed.backend="gloo"')


@pytest.mark.parametrize(
    "more", [(), ("run.accumulate=4", "data.train.loader.workers=1"), ('run.precision="bf16"',)]
)
def test_two_ranks_that_share_a_gpu_train_as_one(
    train_both: TrainBoth,  # noqa: F811
    more: tuple[str, ...],
) -> None:
    one, other = train_both(*SHARED, *more)
    if "bf16" not in "".join(more):
        assert_alike(one, other, "model", "model_ema")


def test_two_ranks_that_share_a_gpu_resume_to_the_bit(new_clouds: NewRun, tmp_path: Path) -> None:  # noqa: F811
    strikes = 'hooks.strikes={use="./actors.py:strikes", points=["after_train_iter"], args={%s}}'
    args = f'rank=1, number={signal.SIGTERM}, mark="{tmp_path / "mark"}", at='
    alone, cut = (
        new_clouds(*SHARED, "run.deterministic=true", strikes % f"{args}{at}") for at in (10**6, 3)
    )
    assert carry_out(alone, 2) == [0, 0], printed(alone, 0)
    assert carry_out(cut, 2) == [143, 143], printed(cut, 0)
    assert carry_out(cut, 2, resume=True) == [0, 0], printed(cut, 0)
    assert_same_end(alone, cut)


@pytest.fixture
def one_rank() -> Iterator[None]:
    """Form a group of this process alone, by nccl."""
    device = torch.device("cuda", 0)
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=device)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.usefixtures("one_rank")
def test_a_group_by_nccl_trains_as_none(strategy: str, precision: str, tmp_path: Path) -> None:
    """Its shards are copied from the memory of the GPU, written and read."""
    device = torch.device("cuda", 0)
    inputs = torch.randn(16, 4, device=device)
    digesting = partial(_ChecksumWriter, abandoned=threading.Event())
    states = []
    for grouped in (False, True):
        torch.manual_seed(1)
        model: nn.Module = Deep().to(device)
        if strategy == "ddp":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        shares: SeveralRanksStrategy = DDPStrategy(DistributedSection())
        if strategy == "fsdp":
            shares = FSDPStrategy(
                DistributedSection(strategy="fsdp"), precision, lambda *text: None
            )
        if grouped:
            shares.parallelize(model, [model], device, lambda key: Where("p.toml"))
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
        autocast = strategy == "ddp" or not grouped
        for _ in range(3):
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast and precision == "bf16"):
                loss = model(inputs).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        if grouped and strategy == "fsdp":
            copy = HostCopier(shares.host_mesh).copy(state).state
            assert shares.host_group is not None
            files = write_shards(tmp_path / "shards", copy, shares.host_group, digesting)
            assert files
            state = with_contents(without_contents(copy), tmp_path / "shards", device, None)
        states.append(state["model"])
    for name, tensor in states[0].items():
        rtol, atol = (1e-5, 1e-6) if precision == "fp32" else (0.1, 0.03)
        torch.testing.assert_close(states[1][name].to(device), tensor, rtol=rtol, atol=atol)


def test_a_copy_for_a_checkpoint_is_that_of_its_moment() -> None:
    tensor = torch.zeros(64 << 20, device="cuda")
    copier = HostCopier()
    for k in range(3):
        tensor.fill_(k)
        copied = copier.copy({"tensor": tensor}, waits=k > 1)
        tensor.fill_(-1)
        copied.wait()
        inside = copied.state["tensor"]
        assert inside.is_pinned() and bool((inside == k).all())
        copier.give_back(copied)


def test_a_failed_lock_of_memory_is_not_blamed_on_the_next_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    like = torch.ones(3 << 20, device="cuda")
    locked = torch.empty_like(like, device="cpu")
    cudart = torch.cuda.cudart()
    assert int(cudart.cudaHostRegister(locked.data_ptr(), locked.nbytes, 0)) == 0
    usual = torch.empty_like
    calls: list[Any] = []

    def locked_at_first(*args: Any, **more: Any) -> torch.Tensor:
        calls.append(more)
        return locked if len(calls) == 1 else usual(*args, **more)

    monkeypatch.setattr(torch, "empty_like", locked_at_first)
    try:
        memory = host_memory(like)  # which cannot lock the same memory again
    finally:
        monkeypatch.undo()
        cudart.cudaHostUnregister(locked.data_ptr())
    assert memory.is_pinned()
    assert float((like + 1).sum()) == 2 * like.numel()


def test_what_an_offloaded_hook_computes_late_is_what_is_shown(trained: Trained) -> None:
    """Its image and its histogram are computed on a stream of its own, behind other work."""
    run_dir = trained(
        CUDA,
        ON_DEVICE,
        'hooks.late={use="tests.runner.test_cuda:LogsLate", offload=true}',
        "run.max_epochs=1",
    )
    histograms = [record["edges"] for record in records(run_dir, "histogram")]
    assert len(histograms) == 8
    assert all(edges[0] <= 1 <= edges[-1] and edges[0] > 0 for edges in histograms)  # type: ignore[index]


def test_an_offloaded_hook_may_keep_what_it_is_given(trained: Trained) -> None:
    """Its memory is not used again while the stream of the hook still reads it."""
    run_dir = trained(
        CUDA,
        ON_DEVICE,
        'hooks.keeps={use="tests.runner.test_cuda:KeepsBatch", offload=true}',
        "run.max_epochs=4",
    )
    values = logged(run_dir, "kept")
    assert values
    assert set(values.values()) == {0.0}


def test_a_sparse_batch_is_fetched_beside_the_step() -> None:
    """The memory of its parts is kept for the stream of the step."""
    sparse = torch.eye(64).to_sparse()
    context = SimpleNamespace(
        device=torch.device("cuda"), to_device=lambda batch: batch.to("cuda", non_blocking=True)
    )
    for moved in prefetch([sparse] * 8, context):  # type: ignore[arg-type]
        assert float(moved.to_dense().sum()) == 64


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs_cuda: it takes two GPUs")
def test_a_thread_allocates_on_the_gpu_of_its_maker() -> None:
    devices: list[int] = []
    with torch.cuda.device(1):
        torch.ones(1, device="cuda")
        thread = device_thread(
            lambda: devices.append(torch.ones(1, device="cuda").get_device()), "allocates"
        )
    thread.start()
    thread.join()
    assert devices == [1]
