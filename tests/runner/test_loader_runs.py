"""Whole runs, over datasets that are none of ours, too:
killed at any moment and resumed to the same bits.
"""

import gc
import multiprocessing
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.errors import UserError
from hookflow.runner.checkpoint.manifest import find_damage
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.data import workers
from hookflow.runner.data.workers import WorkerError, call_explaining_worker_errors
from tests.conftest import NewRun, Train, Trained, messages, reason, records, refusal, strikes
from tests.runner.same import assert_each_once, assert_same_end, logged
from tests.support.data_loaders import Rarest, dataset
from tests.support.kill_hooks import when_killed
from tests.support.overrides import EVERY_3, over
from tests.support.processes import Training
from tests.support.run_results import alike

DATA = {
    "fetched here": over("Clouds"),
    "by workers": over("Clouds", workers=2),
    "by a sampler": over("Clouds", sampler="./data_loaders.py:weighted"),
    "by a batch sampler": over(
        "Clouds", batch_size=None, batch_sampler="./data_loaders.py:Buckets"
    ),
    "by a sampler with a state": over("Counted", sampler="./data_loaders.py:Rarest"),
    "by a sampler with a state and workers": over(
        "Clouds", sampler="./data_loaders.py:Rotates", workers=1
    ),
    "by a batch sampler with a state": over(
        "Counted", batch_size=None, batch_sampler="tests.runner.test_loader_runs:RarestBatches"
    ),
    "on the device": over("Clouds", on_device=True, augment="./data_loaders.py:noisy"),
    "a stream": over("Numbers"),
    "a stream by workers": over("Numbers", workers=2, batches=7),
    "a stream with a place": over("NumbersWithPlace"),
}


class RarestBatches(Rarest):
    size = 8


class OwnLoader:
    """Shuffles batches by a generator of its own, and keeps its place: the protocol of torchdata,
    without torchdata.
    """

    def __init__(self, place: bool = True) -> None:
        self.data = dataset(40).tensors
        self.generator = torch.Generator().manual_seed(3)
        self.order = torch.empty(0, dtype=torch.int64)
        self.given, self.has_place, self.goes_on = 0, place, False

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[Any]:
        if not self.goes_on:
            self.order = torch.randperm(40, generator=self.generator)
            self.given = 0
        self.goes_on = False
        while self.given < len(self):
            rows = self.order[8 * self.given : 8 * self.given + 8]
            self.given += 1
            yield [part[rows] for part in self.data]

    def state_dict(self) -> dict[str, Any]:
        place = {"given": self.given, "order": self.order} if self.has_place else {}
        return {"generator": self.generator.get_state(), **place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])
        self.given, self.order, self.goes_on = state["given"], state["order"], True


@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
def test_killed_and_resumed_it_ends_with_the_same_bits(resumes_alike: NewRun, data: str) -> None:
    resumes_alike(data, EVERY_3, point="after_backward", at=8, number=signal.SIGKILL)


def test_workers_change_no_bit_of_a_run(new_run: NewRun, train_here: Train) -> None:
    runs = [new_run(over("Clouds", workers=count)) for count in (0, 4)]
    assert [train_here(run) for run in runs] == [0, 0]
    assert_same_end(*runs)
    assert any("workers share" in text for text in messages(runs[1])) == (
        len(os.sched_getaffinity(0)) < 4
    )


@pytest.mark.parametrize("at", [4, 7, 10])
def test_a_loader_with_the_protocol_of_torchdata_is_resumed_where_it_was(
    resumes_alike: NewRun, at: int
) -> None:
    cut = resumes_alike(
        'data.train={use="tests.runner.test_loader_runs:OwnLoader"}',
        EVERY_3,
        point="after_backward",
        at=at,
    )
    assert not [text for text in messages(cut) if "again" in text], "nothing is loaded twice"


def test_a_loader_whose_state_does_not_say_where_it_is_is_refused(trained: Trained) -> None:
    run_dir = trained(
        'data.train={use="tests.runner.test_loader_runs:OwnLoader", args={place=false}}', code=2
    )
    assert records(run_dir, "end")[-1]["it"] == 1
    assert "is the same after two batches" in reason(run_dir)


def test_batches_of_any_size_count_by_their_examples(trained: Trained) -> None:
    """In an accumulated step, in the means of a log and in those of a validation:
    as their union in one batch.
    """
    runs = []
    for merged, accumulate in ((2, 1), (1, 2)):
        buckets = f'{{use="./data_loaders.py:Buckets", args={{merged={merged}}}}}'
        data = (
            f'data.{split}={{use="./data_loaders.py:dataset", args.examples={count},'
            f" loader.batch_sampler={buckets}}}"
            for split, count in (("train", 30), ("val", 21))
        )
        plain = 'model={use="../distributed/clouds.py:Plain"}'
        runs.append(trained(*data, plain, f"run.accumulate={accumulate}"))
    alike(*runs, "val/loss", "accuracy")
    assert [
        record["data"]["train"]["batches"] for run in runs for record in records(run, "run")
    ] == [4, 8]


def test_workers_are_gone_after_a_stop_in_mid_epoch(
    resumes_alike: NewRun, capfd: pytest.CaptureFixture[str]
) -> None:
    resumes_alike(
        over("Clouds", workers=2), over("Clouds", "val", workers=1), point="after_backward", at=7
    )
    assert not multiprocessing.active_children()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_worker_begins_as_the_pipeline_says(trained: Trained, method: str) -> None:
    hook = f'hooks.seen={{use="{__file__}:Seen"}}'
    begins = {"worker_init_fn": "./data_loaders.py:begins", "multiprocessing_context": method}
    run_dir = trained(over("Begun", workers=2, **begins), hook, "run.max_epochs=1")
    assert [*logged(run_dir, "worker").values()] == [0.0, 1.0, 0.0, 1.0, 0.0]
    with pytest.raises(UserError, match="worker_init_fn is of workers, and workers is 0"):
        trained(over("Begun", worker_init_fn="./data_loaders.py:begins"))


class Seen:
    def after_train_iter(self, run: Any, batch: Any) -> None:
        run.log("worker", float(batch[0][0, 0]))


def test_an_error_in_a_data_set_is_shown_whole(trained: Trained) -> None:
    run_dir = trained(over("Breaks", workers=1), code=1)
    assert not multiprocessing.active_children()
    (error,) = records(run_dir, "error")
    assert "    raise error\nLookupError: no example 7\na note" in str(error["traceback"])
    assert records(run_dir, "run")[0]["data"]["train"]["note"] == "fetched by 1 worker"  # type: ignore[index]
    assert error["text"] == "worker 0: LookupError: no example 7"
    (end,) = records(run_dir, "end")
    assert end["reason"] == "WorkerError: worker 0: LookupError: no example 7"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(signal.SIGKILL, ": .+ use fewer workers, or smaller batches"), (signal.SIGUSR2, "")],
)
# PyTorch raises when SIGCHLD arrives, be it in the middle of a temporary file of its own, or of a
# finalizer.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_worker_that_died_of_a_signal_is_told_as_that(
    trained: Trained, number: signal.Signals, remedy: str
) -> None:
    run_dir = trained(over("Struck", workers=1), f"data.train.args.number={number.value}", code=1)
    # What is left of the worker's socket goes here, where no warning of it matters, and in no other
    # test.
    gc.collect()
    (end,) = records(run_dir, "end")
    said = rf"a DataLoader worker \(pid \d+\) was killed by {number.name} \(signal {number.value}\)"
    assert re.fullmatch(f"WorkerError: {said}{remedy}", str(end["reason"]))


class Fetching:
    """A loader's iterator whose worker breaks off; its exit code is known at the third query."""

    def __init__(self, message: str, code: int) -> None:
        self._message = message
        self._codes = iter([None, None, code])
        self._workers = [self]
        self.pid = 17

    @property
    def exitcode(self) -> int | None:
        return next(self._codes)

    def _try_get_data(self) -> None:
        raise ConnectionResetError(self._message)

    def killed(self) -> None:
        raise RuntimeError(f"DataLoader worker (pid 17) is killed by signal: {self._message}")

    def left(self) -> None:
        raise RuntimeError(
            "DataLoader worker (pid 17) exited unexpectedly with exit code 3. Details are lost"
        )


CUT_OFF = ("[Errno 104] reset", "Caught ConnectionResetError in pin memory thread for device 0")


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            Fetching("Bus error. It is possible that …", 0).killed,
            r"was killed by SIGBUS \(signal \d+\): .+ /dev/shm",
        ),
        (Fetching("Odd. ", 0).killed, "died of a signal: Odd$"),
        (Fetching("", 0).left, "ended with exit code 3$"),
        *(
            (Fetching(cut_off, code)._try_get_data, message)
            for cut_off in CUT_OFF
            for code, message in (
                (-11, r"was killed by SIGSEGV \(signal 11\): .+ with workers = 0"),
                (-signal.SIGRTMIN - 1, r"died of a signal: "),  # which has no name
                (3, r"ended with exit code 3$"),
            )
        ),
    ],
)
def test_the_death_of_a_worker_is_explained(train: Callable[[], None], message: str) -> None:
    with pytest.raises(WorkerError, match=rf"^a DataLoader worker \(pid 17\) {message}"):
        call_explaining_worker_errors(train)


def test_a_users_connection_error_is_unexplained_and_a_lost_worker_without_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of_the_user() -> None:
        raise ConnectionResetError("the user's own")

    with pytest.raises(ConnectionResetError):
        call_explaining_worker_errors(of_the_user)
    monkeypatch.setattr(workers, "EXIT_CODE_WAIT_SECONDS", 0.0)
    with pytest.raises(
        WorkerError, match=r"a DataLoader worker died without an exception: .+ out of memory"
    ):
        call_explaining_worker_errors(Fetching("reset", -9)._try_get_data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (over("Clouds", batch_size=0), "data.train.loader.batch_size must be at least 1, not 0"),
        (
            over("Clouds", shuffle=True, sampler="./data_loaders.py:Every"),
            "shuffle and a sampler both say the order",
        ),
        (over("Clouds", on_device=True, workers=2), "data on the device are fetched by no workers"),
        (over("Clouds", bach_size=2), "did you mean"),
        (
            'data.train={use="./data_loaders.py:Clouds", loader={shuffle=true}}',
            "the key batch_size is required, unless",
        ),
        (
            over("Clouds", batch_sampler="./data_loaders.py:Buckets"),
            "batch_size and a batch_sampler both say which",
        ),
    ],
)
def test_mistakes_of_the_file_are_told_before_anything_is_made(data: str, said: str) -> None:
    assert said in str(refusal(data))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ('data.train={use="./data_loaders.py:Numbers"}', "which is a dataset: add `loader`"),
        (
            'data.train={use="./data_loaders.py:Endless"}',
            "loader = { batch_size = 64, batches = 1000 }",
        ),
        (
            over("Endless"),
            "Endless has no length, so it is not known how many batches make an epoch",
        ),
        (over("Numbers", shuffle=True), "shuffle needs a dataset with __getitem__ and __len__"),
        (
            over("Numbers", batch_size=None, batch_sampler="./data_loaders.py:Buckets"),
            "batch_sampler needs a dataset with",
        ),
        (over("Numbers", on_device=True), "on_device needs a dataset with __getitem__ and __len__"),
        (over("Empty", batches=3), ": the stream Empty is empty"),
    ],
)
def test_mistakes_that_only_the_data_show_are_told_with_their_place(
    trained: Trained, data: str, said: str
) -> None:
    run_dir = trained(data, code=2)
    assert said in reason(run_dir)
    assert not records(run_dir, "error")


def test_mistakes_in_the_loaders_of_all_splits_are_told_at_once(trained: Trained) -> None:
    wrong = [over("Clouds", split, collate="./data_loaders.py:WIDTH") for split in ("train", "val")]
    assert reason(trained(*wrong, code=2)).count("collate must be ") == 2


def test_a_stream_without_a_place_says_that_it_loads_again(
    trained: Trained, train_here: Train, tmp_path: Path
) -> None:
    for name, says in (("Numbers", True), ("NumbersWithPlace", False)):
        (tmp_path / name).mkdir()
        run_dir = trained(
            over(name), *strikes(tmp_path / name, signal.SIGTERM, ("after_backward", 3)), code=143
        )
        assert train_here(run_dir, resume=True) == 0
        assert any("to find the place in the stream" in text for text in messages(run_dir)) == says


EVERYTHING = [  # beside what the toy pipeline has: clipping, an average, a schedule, accuracy
    'hooks.checkpoint.points=[{at="after_train_iter", every=3}, "after_val"]',
    'hooks.checkpoint.args={monitor={accuracy="max", loss="min"}, top=2, keep=2}',
    (
        'hooks.seen={use="./common_hooks.py:logs_iter", points=["after_train_iter"], when="loss >'
        ' 0.6", every=2}'
    ),
    'hooks.each={use="./kill_hooks.py:each", points=["after_train_iter"]}',
]
CHAINED = (
    'hooks.schedule={use="scheduler", args={chain=[{use="LinearLR", length="10%"},'
    ' {use="CosineAnnealingLR"}]}}'
)

SETUPS: dict[str, tuple[str, list[str]]] = {
    "epochs": ("max_epochs = {epochs}", []),
    "iterations": ("max_iters = {iters}", ["run.val_every=7", CHAINED]),
    "accumulated": (
        "max_epochs = {epochs}",
        ["run.accumulate=2", "optimizer.args.lr=0.3", CHAINED],
    ),
    "by workers": (
        "max_iters = {iters}",
        ["run.val_every=7", "run.accumulate=2", over("Clouds", workers=2)],
    ),
}
KINDS = {
    "a stream": [over("Numbers")],
    "a stream with a state, by workers": [over("NumbersWithPlace", workers=2)],
    "a stream that shuffles": [over("ShuffledInIter")],
    "a stream that shuffles, by workers": [
        over("ShuffledWithFirst", workers=2),
        "run.accumulate=2",
    ],
    "a task with a state": ['task.use="./own_tasks.py:Remembers"'],
}
"""What further kinds of data and task are killed in `make test-long`."""
CASES = [
    *((*SETUPS[setup], 1, 2) for setup in SETUPS),
    *(
        pytest.param(*SETUPS[setup], seed, 20, marks=pytest.mark.long)
        for setup in SETUPS
        for seed in (2, 3)
    ),
    *(
        pytest.param("max_epochs = {epochs}", KINDS[kind], 4, 20, marks=pytest.mark.long)
        for kind in KINDS
    ),
]


@pytest.mark.parametrize(("length", "setup", "seed", "kills"), CASES)
def test_killed_at_random_and_resumed(
    trained: Trained,
    new_run: NewRun,
    tmp_path: Path,
    length: str,
    setup: list[str],
    seed: int,
    kills: int,
) -> None:
    swap = ("max_epochs = 3", length.format(epochs=8 * kills, iters=45 * kills - 1))
    # Validations without progress: fewer where there are fewer.
    patience = kills * (4 if "epochs" in length else 2)
    early_stop = (
        f'hooks.early_stop.args={{monitor="loss", mode="min", patience={patience}, min_delta=0.02}}'
    )
    overrides = [*EVERYTHING, early_stop, *setup]
    alone = trained(*overrides, swap=swap)
    if (length, setup) in SETUPS.values():
        assert "has not improved" in str(records(alone, "end")[0]["reason"]), (
            "early stopping, too, is put to the test"
        )
    (tmp_path / "attempts").mkdir()
    args = f'{{folder="{tmp_path / "attempts"}", seed={seed}, kills={kills}}}'
    killed = new_run(
        *overrides, f'hooks.killer={{use="./kill_hooks.py:Killer", args={args}}}', swap=swap
    )
    codes = [Training(killed).wait()]
    while codes[-1] == -9:
        store = CheckpointStore(killed.checkpoints)
        assert not [path for path in store.all() if find_damage(path)], "whole or absent"
        codes.append(Training(killed, resume=True).wait())
    assert codes[-1] == 0
    assert len(codes) == kills + 1, "it was over before it had been killed so often"
    assert_same_end(alone, killed)
    assert_each_once(killed, "each", until=int(str(records(killed, "end")[-1]["it"])))
    print(f"killed {kills} times: {dict(when_killed(tmp_path / 'attempts'))}")
    named = [
        {name: path.name for name, path in CheckpointStore(run.checkpoints).names().items()}
        for run in (alone, killed)
    ]
    assert named[0] == named[1]
