"""Saving beside the training, with a disk that is slow or broken, in another folder,
and as copies at a URL.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hookflow.errors import UserError
from hookflow.events.deletion import BACK_LINK
from hookflow.events.records import TEXT_LIMIT
from hookflow.events.rundir import RunDir
from hookflow.runner.checkpoint import copies
from hookflow.runner.checkpoint.copies import CheckpointCopies
from hookflow.runner.checkpoint.manifest import (
    EXCEPTION,
    MANIFEST_FILE,
    find_damage,
    list_checkpoints,
    make_sealed_text,
    read_manifest,
)
from hookflow.runner.checkpoint.store import CheckpointStore, SavedCheckpoint, read
from hookflow.runner.state import checkpoint_manager as manager
from hookflow.runner.state.host_copy import LARGE_COPY_BYTES, HostCopier, host_memory
from hookflow.service.checkpoints import find_checkpoint
from tests.cli.conftest import refused
from tests.conftest import (
    TOY,
    TRACER,
    NewRun,
    Train,
    Trained,
    hookflow,
    hookflow_here,
    messages,
    reason,
    records,
    refusal,
    run_here,
    strikes,
    wait_for,
)
from tests.distributed.actors import asked_to_stop
from tests.hooks.stand_ins import OnCuda
from tests.runner.same import assert_same, assert_same_end, final_state
from tests.support.checkpoint_files import save
from tests.support.limits import LIMIT
from tests.support.overrides import EVERY_3
from tests.support.toy import Net


class Swaps:
    """Lets a checkpoint have zeros where the head's weights are."""

    def around_save_checkpoint(self, run: Any) -> Iterator[None]:
        weights = run.model.head.weight
        kept = weights.detach().clone()
        with torch.no_grad():
            weights.zero_()
            yield
            weights.copy_(kept)


class Keeps:
    """Keeps every state that it is told is safe,
    and says at the end whether they are still what is on the disk.
    """

    def __init__(self) -> None:
        self.kept: list[tuple[Any, Any]] = []

    def after_save_checkpoint(self, checkpoint: Any, path: Any) -> None:
        self.kept.append((checkpoint, path))

    def after_run(self, run: Any) -> None:
        same = [
            torch.equal(checkpoint["model"][name], tensor)
            for checkpoint, path in self.kept
            for name, tensor in torch.load(path / "model.pt", weights_only=True).items()
        ]
        run.say(
            "all are as they were written"
            if all(same) and len(self.kept) > 2
            else "some have changed"
        )


def at_manifest(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], None]) -> None:
    """Do something just before the last file of the checkpoint with this number is written."""
    written, seen = CheckpointStore._write_file, [0]

    def act_first(store: CheckpointStore, path: Path, *content: Any) -> Any:
        seen[0] += path.name == MANIFEST_FILE
        if path.name == MANIFEST_FILE and seen[0] == number:
            act()
        return written(store, path, *content)

    monkeypatch.setattr(CheckpointStore, "_write_file", act_first)


def test_no_training_waits_for_the_disk(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace"
    at_manifest(
        monkeypatch, 1, lambda: wait_for(lambda: "after_train_iter iter=8 " in trace.read_text())
    )
    trained(TRACER % trace)
    reported = [
        line for line in trace.read_text().splitlines() if line.startswith("after_save_checkpoint")
    ]
    assert 8 <= int(reported[0].split("iter=")[1].split()[0]) <= 10, (
        "behind the write, and before the next one begins"
    )
    assert reported[-1].startswith("after_save_checkpoint iter=15"), (
        "it has ended before the run does"
    )


def test_a_write_under_way_when_the_run_fails_is_reported(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the milliseconds for which the training has waited."""
    trace, clock = tmp_path / "trace", count(step=0.25)
    monkeypatch.setattr(manager, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    at_manifest(
        monkeypatch, 1, lambda: wait_for(lambda: "after_forward iter=5 " in trace.read_text())
    )
    run_dir = trained(
        TRACER % trace, 'hooks.raises={use="./common_hooks.py:Raises", args={at=5}}', code=1
    )
    assert [(record["it"], record["ms"]) for record in records(run_dir, "checkpoint")] == [
        (5, 250.0)
    ]


def interrupt_twice(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what sends two signals, and waits until the run waits for what is being written."""
    waited_for = Event()
    join = Thread.join

    def notice(thread: Thread, timeout: float | None = None) -> None:
        # Without one, it is known to have ended.
        if thread.name == "hookflow-checkpoint" and timeout is not None:
            waited_for.set()
        join(thread, timeout)

    def twice() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: asked_to_stop() is not None)
        os.kill(os.getpid(), signal.SIGINT)
        assert waited_for.wait(LIMIT)

    monkeypatch.setattr(Thread, "join", notice)
    monkeypatch.setattr(manager, "ABANDON_GRACE_SECONDS", LIMIT)
    return twice


def test_a_second_signal_calls_the_write_off(
    left_alone: RunDir, new_run: NewRun, train_here: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = new_run()
    at_manifest(monkeypatch, 2, interrupt_twice(monkeypatch))
    assert train_here(broken) == 143
    assert "SIGTERM received, then SIGINT" in reason(broken)
    assert [path.name for path in CheckpointStore(broken.checkpoints).all()] == ["it00000005"]
    assert not list(broken.checkpoints.glob(".*"))
    monkeypatch.undo()
    assert train_here(broken, resume=True) == 0
    assert_same_end(left_alone, broken)


def test_what_a_second_signal_comes_too_late_for_is_recorded(
    new_run: NewRun, train_here: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, save, twice = new_run(), CheckpointStore.save, interrupt_twice(monkeypatch)

    def then_interrupt(store: CheckpointStore, *what: Any) -> SavedCheckpoint:
        saved = save(store, *what)
        if saved.path.name == "it00000010":
            twice()
        return saved

    monkeypatch.setattr(CheckpointStore, "save", then_interrupt)
    assert train_here(run_dir) == 143
    there = [path.name for path in CheckpointStore(run_dir.checkpoints).all()]
    assert there == ["it00000010", "it00000005"]
    assert [Path(str(record["path"])).name for record in records(run_dir, "checkpoint")] == there[
        ::-1
    ]


def test_losing_the_terminal_harms_nothing(
    left_alone: RunDir, trained: Trained, tmp_path: Path
) -> None:
    other = trained(
        *strikes(tmp_path, signal.SIGHUP, ("after_backward", 6), ("before_save_checkpoint", 10))
    )
    assert_same_end(left_alone, other)


def test_what_stands_after_an_error_is_saved_apart(new_run: NewRun, train_here: Train) -> None:
    points = (
        'hooks.checkpoint.points=[{at="after_train_iter", every=3}, "after_val", "on_exception"]'
    )
    run_dir = new_run(
        points, 'hooks.raises={use="./common_hooks.py:Raises", args={at=7, megabytes=2}}'
    )
    for attempt in range(2):
        assert train_here(run_dir, resume=attempt > 0) == 1
        (apart,) = list_checkpoints(run_dir.checkpoints, EXCEPTION)
        assert find_damage(apart) == ""
        assert read_manifest(apart)["exception"].startswith("RuntimeError: ")
        assert (apart / MANIFEST_FILE).stat().st_size < 2 * TEXT_LIMIT
        assert "model" in read(apart)
        assert any(apart.name in text for text in messages(run_dir))
    assert any("resumed from it00000006" in text for text in messages(run_dir))


class CountsInPlace:
    """Counts validation batches in a tensor that is its state, and never copies it."""

    def __init__(self) -> None:
        self.batches = torch.zeros(1, dtype=torch.int64)

    def after_val_iter(self) -> None:
        self.batches += 1

    def after_val(self, run: Any) -> None:
        run.log("val_batches", float(self.batches))

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batches = state["batches"]


def test_what_a_validation_that_is_cut_short_has_changed_in_place_is_not_saved(
    resumes_alike: NewRun,
) -> None:
    resumes_alike(f'hooks.counts={{use="{__file__}:CountsInPlace"}}', point="after_val_iter", at=10)


class RaisesAtTheEnd:
    """Raises at the end of the second epoch, once it has written to the weights,
    or to the optimizer's state.
    """

    def __init__(self, how: str) -> None:
        self.how = how

    def after_train_epoch(self, run: Any) -> None:
        if run.epoch == 2:
            self._write(run)
            raise RuntimeError("as told")

    def _write(self, run: Any) -> None:
        weight = run.model.head.weight
        with torch.no_grad():
            if self.how == "in place":
                weight.zero_()
            elif self.how == "by data":
                weight.data.mul_(2)
            elif self.how == "by numpy":
                weight.numpy()[:] = 7
            elif self.how == "by another tensor":
                weight.data = torch.ones_like(weight)
            else:
                run.optimizer.state[weight]["momentum_buffer"].zero_()


@pytest.mark.parametrize(
    "how", ["in place", "by data", "by numpy", "by another tensor", "in the optimizer"]
)
def test_the_state_before_an_error_is_what_it_was_whatever_a_hook_has_written_to(
    trained: Trained, undisturbed: Trained, how: str
) -> None:
    """The weights are those of a run that ends there;
    some of these writes nothing but a copy would notice.
    """
    raises = f'hooks.raises={{use="{__file__}:RaisesAtTheEnd", args={{how="{how}"}}}}'
    run_dir = trained(raises, code=1)
    (apart,) = list_checkpoints(run_dir.checkpoints, EXCEPTION)
    saved, right = (
        read(apart),
        read(undisturbed("hooks.checkpoint.args.keep=3").checkpoints / "it00000010"),
    )
    assert saved["position"]["batch_idx"] == 5, "before the end of the epoch"
    for entry in ("model", "optimizer"):
        assert_same(saved[entry], right[entry])
    assert [text for text in messages(run_dir) if apart.name in text]


class Expanded(Net):
    """Has a buffer whose elements are one place in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((1,), 0.5).expand(3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs) * self.scale


def test_a_buffer_made_by_expand_is_trained_saved_and_resumed(resumes_alike: NewRun) -> None:
    resumes_alike(f'model.use="{__file__}:Expanded"', point="after_backward", at=7)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_jagged_tensor_is_read_by_a_process_that_has_made_none(tmp_path: Path) -> None:
    made = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    path = (
        CheckpointStore(tmp_path)
        .save({"model": {}, "hooks": {"x": made}}, ["last"], {"it": 1, "ep": 0})
        .path
    )
    reads = (
        "import sys; from pathlib import Path; from hookflow.runner.checkpoint.store import read; "
    )
    reads += "print([row.tolist() for row in read(Path(sys.argv[1]))['hooks']['x'].unbind()])"
    done = subprocess.run(
        [sys.executable, "-c", reads, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[0] == "[[1.0, 1.0], [1.0, 1.0, 1.0]]"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_without_one_shape_is_copied() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    copied = HostCopier().copy({"x": nested}).state["x"]
    assert [row.tolist() for row in copied.unbind()] == [[1.0, 1.0], [1.0, 1.0, 1.0]]


def test_the_newest_checkpoint_on_the_disk_counts_though_the_log_lacks_it(trained: Trained) -> None:
    run_dir = trained("run.max_epochs=1")
    assert run_dir.find_resume_iteration() == 5
    shutil.copytree(run_dir.checkpoints / "it00000005", run_dir.checkpoints / "it00000020")
    (run_dir.checkpoints / "it00000030").mkdir()  # without its manifest it is none
    assert run_dir.find_resume_iteration() == 20


def test_a_state_that_cannot_be_saved_after_an_error_does_not_hide_the_error(
    trained: Trained,
) -> None:
    raises = 'hooks.raises={use="./common_hooks.py:Raises", args={at=3}}'
    unstorable = (
        'hooks.fails={use="./common_hooks.py:Fails", args={place="2 iterations: state_dict"}}'
    )
    run_dir = trained("hooks.checkpoint.points=['on_exception']", raises, unstorable, code=1)
    assert "as told" in reason(run_dir)
    (failure,) = [
        text for text in messages(run_dir) if "no checkpoint could be saved after the error" in text
    ]
    assert "['fails']['kinds'] is a builtins.frozenset" in failure


def test_a_copy_shares_nothing_with_the_run_and_inside_what_is_shared_there() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    image = torch.randn(1, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    state = {
        "model": net.state_dict(),
        "again": dict(net.state_dict()),
        "image": image,
        "list": [(1, [2])],
    }
    copied = HostCopier().copy(state).state
    with torch.no_grad():
        net[0].weight.zero_()
    state["list"][0][1].append(3)
    assert copied["model"]["0.weight"].any()
    assert copied["model"]["0.weight"].data_ptr() == copied["again"]["0.weight"].data_ptr()
    assert copied["model"]._metadata == net.state_dict()._metadata  # type: ignore[attr-defined]
    assert copied["image"].stride() == image.stride()
    assert copied["list"] == [(1, [2])]
    sparse = torch.eye(2).to_sparse()
    copied = HostCopier().copy({"sparse": sparse}).state["sparse"]
    sparse._values().zero_()
    assert torch.equal(copied.to_dense(), torch.eye(2))


def test_a_copy_is_made_where_the_last_one_was() -> None:
    net, copier = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 3)), HostCopier()
    copier.prepare(net.parameters())
    (spare,) = copier._spare
    taken = {tensor.data_ptr() for tensors in spare.values() for tensor in tensors}
    assert len(taken) == 6
    for _ in range(3):
        copied = copier.copy({"model": net.state_dict()})
        assert {tensor.data_ptr() for tensor in copied.state["model"].values()} == taken
        copier.give_back(copied)
    net[0].weight.data = torch.ones(3, 2).T
    other = copier.copy({"model": net.state_dict(), "more": torch.ones(2, 2)}).state
    assert_same(other["model"], net.state_dict())
    assert len({tensor.data_ptr() for tensor in [*other["model"].values(), other["more"]]}) == 7


def test_memory_for_large_tensors_of_a_gpu_is_locked_by_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    locked: dict[int, int] = {}
    runtime = SimpleNamespace(
        cudaHostRegister=lambda place, size, flags: int(
            bool(locked.setdefault(place, size) != size)
        ),
        cudaHostUnregister=locked.pop,
    )
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    memory = host_memory(torch.empty(3, LARGE_COPY_BYTES, dtype=torch.uint8).as_subclass(OnCuda))
    assert locked == {memory.data_ptr(): 3 * LARGE_COPY_BYTES}
    del memory
    assert not locked
    assert not host_memory(torch.empty(3, LARGE_COPY_BYTES)).is_pinned()


def test_memory_for_the_first_copy_is_taken_in_the_training(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    monkeypatch.setattr(HostCopier, "prepare", lambda copy, tensors: taken.append(len(tensors)))
    trained("run.max_epochs=1")
    trained("run.max_epochs=1", "hooks.checkpoint.enabled=false")
    assert taken == [15], "six parameters, their momentum, and the buffers of a batch norm"


def test_who_is_given_the_copy_may_keep_it_and_what_is_swapped_for_a_save_is_back(
    left_alone: RunDir, trained: Trained
) -> None:
    run_dir = trained(
        EVERY_3,
        'hooks.keeps={use="tests.runner.test_checkpoint_saving:Keeps"}',
        "hooks.checkpoint.args.keep=9",
    )
    assert any("all are as they were written" in text for text in messages(run_dir))
    swapped = trained(EVERY_3, 'hooks.swaps={use="tests.runner.test_checkpoint_saving:Swaps"}')
    states: list[Any] = [final_state(run) for run in (left_alone, swapped)]
    assert states[0]["model"]["head.weight"].any()
    assert not states[1]["model"]["head.weight"].any()
    assert torch.equal(states[0]["model"]["head.bias"], states[1]["model"]["head.bias"]), (
        "it was trained as ever"
    )


SHORT = "data.train.args={examples=24}"
STOPS = (
    'hooks.stops={use="./common_hooks.py:Steers", args={call="stop", point="after_backward",'
    ' at=3}, writes=["control"]}'
)


@pytest.mark.parametrize(
    ("length", "overrides", "its"),
    [
        ("max_iters = 5", [SHORT], 5),
        ("max_iters = 2", [], 2),
        ("max_iters = 8", ["run.val_every=4", 'hooks.checkpoint.points=["after_val"]'], 8),
        (
            "max_epochs = 3",
            [SHORT, 'hooks.checkpoint.points=[{at="after_train_epoch", every="2ep"}]'],
            9,
        ),
        (
            "max_epochs = 3",
            ["hooks.checkpoint.points=['after_val']", "hooks.checkpoint.args={keep=1}"],
            15,
        ),
        ("max_epochs = 3", [STOPS], 4),
        ("max_epochs = 2", ["hooks.checkpoint.points=['on_exception']"], 10),
        ("max_iters = 1", ["hooks.checkpoint.points=['on_exception']"], 1),
    ],
)
def test_a_run_that_ends_in_order_has_its_last_iteration(
    trained: Trained, train_here: Train, length: str, overrides: list[str], its: int
) -> None:
    run_dir = trained(*overrides, swap=("max_epochs = 3", length))
    assert records(run_dir, "end")[-1]["it"] == final_state(run_dir)["position"]["iter"] == its  # type: ignore[index]
    assert all(record["names"].count("last") == 1 for record in records(run_dir, "checkpoint"))  # type: ignore[attr-defined]
    assert train_here(run_dir, resume=True) == 0
    assert f"resumed from it{its:08d}: iteration {its}" in " ".join(messages(run_dir))
    # There are more to do for one that a hook has stopped, and it does not go on either.
    if its != 4:
        assert any("nothing is left to do" in text for text in messages(run_dir))
    assert records(run_dir, "end")[-1]["it"] == its


@pytest.mark.parametrize(
    ("override", "its"),
    [
        ("hooks.checkpoint.enabled=false", 5),
        (STOPS.replace('point="after_backward", at=3', 'point="before_train", at=0'), 0),
    ],
)
def test_nothing_is_saved_where_nobody_saves_nor_before_the_first_iteration(
    trained: Trained, train_here: Train, override: str, its: int
) -> None:
    run_dir = trained(override, "run.max_epochs=1")
    assert records(run_dir, "end")[-1]["it"] == its
    assert not run_dir.checkpoints.exists()
    assert train_here(run_dir, resume=True) == 0
    assert any("starting at the beginning" in text for text in messages(run_dir))
    assert records(run_dir, "end")[-1]["it"] == its


@pytest.mark.parametrize(
    ("val_every", "expected"), [(1, {3: 3, 6: 6, 9: 9}), (5, {5: 5, 6: 5, 9: 9})]
)
def test_a_checkpoint_dates_its_metrics(
    trained: Trained, val_every: int, expected: dict[int, int]
) -> None:
    keep = "hooks.checkpoint.args.keep=9"
    run_dir = trained(
        EVERY_3, keep, f"run.val_every={val_every}", swap=("max_epochs = 3", "max_iters = 9")
    )
    manifests = map(read_manifest, CheckpointStore(run_dir.checkpoints).all())
    result = {
        manifest["it"]: manifest["metrics_it"] for manifest in manifests if manifest["metrics"]
    }
    assert {it: at for it, at in result.items() if it in expected} == expected


def test_keep_counts_after_a_signal_too_and_all_may_stay(trained: Trained, tmp_path: Path) -> None:
    run_dir = trained(
        "hooks.checkpoint.args={keep=1}",
        *strikes(tmp_path, signal.SIGTERM, ("after_backward", 7)),
        code=143,
    )
    (left,) = CheckpointStore(run_dir.checkpoints).all()
    assert left.name == "it00000008"
    run_dir = trained("hooks.checkpoint.args={keep='all'}", EVERY_3)
    assert [path.name for path in CheckpointStore(run_dir.checkpoints).all()] == [
        f"it{it:08}" for it in range(15, 0, -3)
    ]


class Compares:
    """Compares the weights at the end with those of the best checkpoint."""

    ranks = "zero"

    def after_run(self, run: Any) -> None:
        if run.is_temporary:
            return
        best = torch.load(run.dir / "checkpoints" / "best" / "model.pt", weights_only=True)
        mine = run.model.state_dict()
        run.say(
            f"as the best: {all(torch.equal(mine[name], value) for name, value in best.items())}"
        )


class SavesLate:
    """Requests a checkpoint after the test."""

    def after_test(self, run: Any) -> None:
        run.save_checkpoint("late")


WORSENS = (
    "optimizer.args.lr=0.9",
    'hooks.checkpoint.args.mode="min"',
    'hooks.checkpoint.args.monitor="accuracy"',
)
"""The first accuracy is the lowest, so that the best weights are not the last ones."""


ONLY_AFTER_VAL = 'hooks.checkpoint.points=["after_val"]'
TWO_HOOKS = (
    'hooks.second={use="checkpoint", points=["after_val"], args={monitor="none", mode="max"}}'
)
ONLY_LAST = "hooks.checkpoint.args={keep=1}"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((ONLY_AFTER_VAL,), [5, 10, 15]),
        ((ONLY_AFTER_VAL, 'run.val_every="4it"'), [4, 8, 12, 15]),
        ((ONLY_AFTER_VAL, ONLY_LAST), [5, 10, 15]),
        # Another point saves `last` already: after the first validation nothing is better.
        (('run.val_every="4it"',), [4, 5, 10, 15]),
        # Each hook looks at its own points alone.
        ((ONLY_LAST, 'run.val_every="4it"', TWO_HOOKS), [4, 5, 8, 10, 12, 15]),
        (("hooks.checkpoint.points=['on_exception']",), [15]),
    ],
)
def test_last_is_saved_at_each_validation_where_no_other_point_saves_it(
    trained: Trained, overrides: tuple[str, ...], expected: list[int]
) -> None:
    hook = f'hooks.equal={{use="{__file__}:MeasuresTheSame"}}'
    args = 'hooks.checkpoint.args={monitor="none", mode="max", keep=1}'
    run_dir = trained(hook, args, *overrides)
    saved = records(run_dir, "checkpoint")
    assert [record["it"] for record in saved] == expected
    assert all("last" in record["names"] for record in saved)  # type: ignore[operator]


class MeasuresTheSame:
    """Gives each validation the same metric, so that the first one stays the best."""

    writes = ("metrics.none",)

    def after_val(self, metrics: Any) -> None:
        metrics["none"] = 1.0


def test_the_best_weights_are_restored_for_the_test_and_what_follows(trained: Trained) -> None:
    hooks = (
        f'hooks.compares={{use="{__file__}:Compares"}}',
        f'hooks.late={{use="{__file__}:SavesLate"}}',
    )
    usual = trained(*hooks, *WORSENS, "run.test=true")
    restored = trained(*hooks, *WORSENS, "run.test=true", "hooks.checkpoint.args.restore_best=true")
    assert "as the best: False" in messages(usual) and "as the best: True" in messages(restored)
    assert_same(*(read(run_dir.checkpoints / "it00000015") for run_dir in (usual, restored)))
    best = restored.checkpoints / "best"
    assert any(f" best ({best.readlink()})" in text for text in messages(restored))
    done = hookflow_here("test", str(best), "--format", "json", cwd=restored.path, code=0)
    tested = records(restored, "metrics")[-1]
    assert tested["split"] == "test" and json.loads(done.stdout)["metrics"] == tested["v"], (
        "with the average's, too"
    )
    assert records(usual, "metrics")[-1]["v"] != tested["v"]
    assert any("no checkpoint is saved (late)" in text for text in messages(restored))
    assert [(run_dir.checkpoints / "late").exists() for run_dir in (usual, restored)] == [
        True,
        False,
    ]
    assert (
        "restore_best needs monitor" in refusal("hooks.checkpoint.args={restore_best=true}").message
    )


def in_folder(folder: Path, name: str = "checkpoint") -> str:
    return (
        f'hooks.{name}={{use="checkpoint", args={{monitor="accuracy", keep=2,'
        f' out_dir="{folder}"}}}}'
    )


def test_the_commands_find_them(trained: Trained, tmp_path: Path) -> None:
    run = trained(in_folder(tmp_path / "big"), "run.max_epochs=1")
    assert (
        "best"
        in hookflow_here("checkpoints", str(run.path), "--verify", cwd=tmp_path, code=0).stdout
    )
    for named in (
        f"{run.path}:best",
        str(run.checkpoints / "best"),
        str(run.checkpoints / "it00000005"),
    ):
        result, checkpoint = find_checkpoint(named, tmp_path / "runs")
        assert (result.path, checkpoint.resolve().name) == (run.path, "it00000005")
    there = tmp_path / "big/toy" / run.id
    assert there.stat().st_mode & 0o777 == 0o700, "as private as the run directory"
    result, _ = find_checkpoint(str(there / "best"), tmp_path / "runs")
    assert result.path.samefile(run.path)
    (there / BACK_LINK).unlink()
    apart, _ = find_checkpoint(str(there / "best"), tmp_path / "runs")
    assert (apart.id, apart.base()) == (run.id, run.base()), "it says of which run it is"
    facts = {
        key: value
        for key, value in read_manifest(there / "best").items()
        if key not in ("run", "sealed")
    }
    (there / "best" / "manifest.json").write_text(make_sealed_text(facts))
    with pytest.raises(UserError, match="is a checkpoint without its run"):
        find_checkpoint(str(there / "best"), tmp_path / "runs")


def test_two_folders_are_refused_before_the_training(trained: Trained, tmp_path: Path) -> None:
    run = trained(in_folder(tmp_path / "one"), in_folder(tmp_path / "two", "other"), code=2)
    assert "and out_dir says" in str(records(run, "end")[-1]["reason"])


def test_a_run_that_has_checkpoints_keeps_them_where_they_are(tmp_path: Path) -> None:
    here = tmp_path / "checkpoints"
    (here / "it00000005").mkdir(parents=True)
    with pytest.raises(UserError, match="keep out_dir as it was in a run that is resumed"):
        CheckpointStore(here).keep_in(tmp_path, Path("a/big"))
    assert not here.is_symlink()


def test_an_empty_folder_and_a_link_to_one_give_way(tmp_path: Path) -> None:
    here, big, bigger = tmp_path / "checkpoints", Path("a/big"), Path("b/bigger")
    here.mkdir()
    (tmp_path / bigger).mkdir(parents=True)
    for place in (big, big, bigger):
        CheckpointStore(here).keep_in(tmp_path, place)
        assert here.resolve() == tmp_path / place
    path = CheckpointStore(here).save({"model": {}}, ["last"], {"it": 1, "ep": 0}).path
    CheckpointStore(here).keep_in(tmp_path, bigger)
    assert (tmp_path / bigger / path.name).exists()


@pytest.mark.parametrize(("new", "relative"), [("there/toy", True), ("there/other", False)])
def test_a_run_that_was_moved_is_resumed_to_the_bit(
    left_alone: RunDir,
    trained: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new: str,
    relative: bool,
) -> None:
    """With a relative `out_dir` the folder of the checkpoints moves along."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    big = Path("big") if relative else tmp_path / "big"
    broken = trained(
        in_folder(big), *strikes(tmp_path, signal.SIGTERM, ("after_backward", 7)), code=143
    )
    assert broken.checkpoints.resolve() == big.absolute() / "toy" / broken.id
    moved = RunDir(tmp_path / new / broken.id)
    moved.path.parent.mkdir(parents=True)
    broken.path.rename(moved.path)
    if relative:
        home.rename(tmp_path / "home2")
        monkeypatch.chdir(tmp_path / "home2")
    run_here("--resume", str(moved.path), cwd=Path.cwd(), code=0)
    assert_same_end(left_alone, moved)
    there = {path.name for path in left_alone.checkpoints.iterdir()} | {BACK_LINK}
    assert {path.name for path in moved.checkpoints.iterdir()} == there
    assert not any(find_damage(path) for path in CheckpointStore(moved.checkpoints).all())
    assert {str(record["path"]) for record in records(moved, "checkpoint")} >= {
        "checkpoints/it00000015"
    }
    result, _ = find_checkpoint(str(moved.checkpoints.resolve() / "best"), tmp_path / "runs")
    assert result.path.samefile(moved.path)


def test_a_copy_of_a_run_does_not_write_into_its_checkpoints(
    trained: Trained, tmp_path: Path
) -> None:
    run = trained(in_folder(tmp_path / "big"), "run.max_epochs=1")
    copy = RunDir(shutil.copytree(run.path, tmp_path / "copies" / "toy" / run.id, symlinks=True))
    done = run_here("--resume", str(copy.path), "--set", "run.max_epochs=2", cwd=tmp_path, code=2)
    assert f"has the checkpoints of runs/toy/{run.id}" in done.stderr
    copy.checkpoints.unlink()
    shutil.copytree(run.checkpoints, copy.checkpoints, symlinks=True)
    sets = (
        "--set",
        "run.max_epochs=2",
        "--set",
        "hooks.checkpoint.args.out_dir=null",
        "--allow-changed-hooks",
    )
    run_here("--resume", str(copy.path), *sets, cwd=tmp_path, code=0)


def copying(place: str, more: str = "") -> str:
    return f'hooks.checkpoint.args={{monitor="accuracy", copy_to="{place}"{more}}}'


@pytest.mark.parametrize("scheme", ["", "file://"], ids=["a folder", "a URL"])
def test_each_checkpoint_is_there_by_its_names(
    trained: Trained, tmp_path: Path, scheme: str
) -> None:
    run_dir = trained(copying(f"{scheme}{tmp_path}/out/{{run}}/{{name}}", ", weights_only=true"))
    there = tmp_path / "out" / "toy"
    assert {path.name for path in there.iterdir()} == {"last", "best"}
    for name in ("last", "best"):
        assert not find_damage(there / name)
        assert_same(read(there / name), read(run_dir.checkpoints / name))
    assert not [*run_dir.checkpoints.glob(".*copy*")]


def test_a_copy_is_validated_forked_and_resumed_where_its_run_is_gone(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"{tmp_path}/out/it{{it}}"
    whole = trained(copying(place))
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(tmp_path / "runs")
    copy = tmp_path / "out" / "it10"
    done = hookflow_here("val", str(copy), cwd=tmp_path, code=0)
    assert f"toy {whole.id}" in done.stdout
    hookflow("fork", str(copy), "--set", "run.seed=5", "--ui=none", cwd=tmp_path, code=0)
    (fork,) = (tmp_path / "runs" / "toy").iterdir()
    assert records(RunDir(fork), "run")[0]["it"] == 10
    run_here("--resume", str(copy), "--ui=none", cwd=tmp_path, code=0)
    resumed = RunDir(tmp_path / "runs" / "toy" / whole.id)
    assert records(resumed, "run")[0]["it"] == 10
    assert_same(
        read(resumed.checkpoints / "last")["model"], read(tmp_path / "out" / "it15")["model"]
    )
    again = run_here("--resume", str(copy), "--ui=none", cwd=tmp_path, code=2)
    assert "--resume" in again.stderr


def test_a_place_is_named_after_what_a_checkpoint_has(trained: Trained, tmp_path: Path) -> None:
    trained(copying(f"{tmp_path}/out/ep={{ep}}-acc={{accuracy:.2f}}"))
    assert {path.name.partition("-")[0] for path in (tmp_path / "out").iterdir()} == {
        "ep=1",
        "ep=2",
        "ep=3",
    }
    assert not [path for path in (tmp_path / "out").iterdir() if "{" in path.name]


def test_what_fails_is_tried_again_and_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "RETRY_PAUSES_SECONDS", (0.01, 0.01))
    (tmp_path / "full").write_text("no folder")
    said: list[Any] = []
    store = CheckpointStore(tmp_path / "checkpoints")
    store.copies = CheckpointCopies(
        [(f"{tmp_path}/full/{{name}}", {"last"})], {}, lambda *line: said.append(line)
    )
    save(store, 1, "last")
    store.finish_copies()
    assert [line[1] for line in said] == ["warn"] * 3
    assert "could not be copied to" in said[0][0]
    assert "next try in 0.0" in said[0][0]  # less than the pause where the run has ended meanwhile
    assert "the copy is given up" in said[-1][0]
    (tmp_path / "full").unlink()
    save(store, 2, "last")
    store.finish_copies()
    assert read(tmp_path / "full" / "last")["more"] == [2]
    assert not store.clear_leftovers() and not [*store.folder.glob(".*copy*")]


def test_all_copies_of_a_run_that_ends_share_their_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[float] = []
    monkeypatch.setattr(
        copies, "time", SimpleNamespace(monotonic=lambda: sum(passed), sleep=passed.append)
    )
    (tmp_path / "full").write_text("no folder")
    said: list[str] = []
    out = CheckpointCopies(
        [(f"{tmp_path}/full/{k}", {"last"}) for k in range(4)],
        {},
        lambda text, level: said.append(text),
    )
    out._copy(tmp_path / ".it1", f"{tmp_path}/full/0")
    assert sum(passed) == sum(copies.RETRY_PAUSES_SECONDS), "while the run goes on"
    out.finish()
    for k in range(4):
        out._copy(tmp_path / ".it1", f"{tmp_path}/full/{k}")
    assert sum(passed) == 2 * sum(copies.RETRY_PAUSES_SECONDS)
    assert sum("given up" in text for text in said) == 5


def test_what_is_removed_meanwhile_is_copied_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    store.copies = CheckpointCopies([(f"{tmp_path}/out/{{it}}", {"last"})], {}, print)
    put = copies.put
    monkeypatch.setattr(copies, "put", lambda *where: (store.prune(1), put(*where)))
    paths = [save(store, it, "last") for it in (1, 2, 3)]
    store.finish_copies()
    assert not paths[0].exists()
    assert all(not find_damage(tmp_path / "out" / str(it)) for it in (1, 2, 3))


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (
            "/out/{iter}",
            (
                'copy_to has "{iter}": it takes run, id, name, it, ep, accuracy, and the metrics of'
                " monitor"
            ),
        ),
        ("/out/{accuracy:.2q}", "Unknown format code 'q'"),
        ("nowhere://out", "copy_to cannot use nowhere://: Protocol not known: nowhere"),
    ],
)
def test_a_mistake_is_reported_before_the_training(tmp_path: Path, place: str, why: str) -> None:
    shutil.copy(TOY, tmp_path / "toy.toml")
    assert why in refused("check", tmp_path / "toy.toml", "--set", copying(place))
