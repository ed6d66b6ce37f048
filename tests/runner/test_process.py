"""The training process, its start, its lock and its workers: nothing is left of it,
and nobody holds it up.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

import hookflow
from hookflow.errors import UserError
from hookflow.events.now import open_memory, read_num_iters
from hookflow.events.run_lock import release
from hookflow.events.rundir import RunDir, write_whole
from hookflow.runner.attempt import main, session
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.data import workers
from hookflow.runner.process.launch import StandbyProcess, claim, start
from hookflow.trials.commute import TrialRunner
from hookflow.trials.commute import trials as trials_of
from tests.conftest import TOY, NewRun, Train, Trained, messages, records, run_here, wait_for
from tests.runner.same import assert_same_end
from tests.support.overrides import over
from tests.support.process_hooks import ENDLESS
from tests.support.processes import Spawned, Training

ONE_EPOCH = "run.max_epochs=1"


class Truncates:
    def after_train_iter(self, run: Any) -> None:
        if run.iter == 3:
            with contextlib.suppress(OSError):  # it may not be possible at all
                os.truncate(run.dir / "now.bin", 0)


class Moves:
    def __init__(self, to: str) -> None:
        self.to = to

    def before_run(self) -> None:
        os.chdir(self.to)


def wait_forever() -> None:
    while True:
        time.sleep(0.05)


class LeavesThread:
    """Starts a thread that never ends, or one that ends a moment after the training.

    The process waits for the one less long than it does else, and for the other as long as a busy
    machine needs.
    """

    def __init__(self, seconds: float | None = None) -> None:
        session.THREAD_SETTLE_SECONDS, main.EXIT_GRACE_SECONDS = (
            (0.1, 0.1) if seconds is None else (ENDLESS, ENDLESS)
        )
        target, args = (wait_forever, ()) if seconds is None else (time.sleep, (seconds,))
        self.thread = threading.Thread(target=target, args=args, name="uploader")

    def after_run(self) -> None:
        self.thread.start()


class LeavesPool:
    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(2)

    def after_train_iter(self) -> None:
        self.pool.submit(os.getpid).result()


class LeavesChild:
    """Starts a child that does nothing for ten minutes, and writes its pid."""

    def __init__(self, mark: str, how: str) -> None:
        self.mark, self.how = Path(mark), how

    def after_train_iter(self, run: Any) -> None:
        if self.mark.exists():
            return
        if self.how == "spawned":  # which hands on every descriptor that may be
            child = os.posix_spawn("/bin/sleep", ["sleep", "600"], os.environ)
        elif not (child := os.fork()):
            time.sleep(600)
            os._exit(0)
        write_whole(self.mark, str(child))


IMPORTS = """
import os
try:
    os.kill(os.getpid(), number)
    os.kill(os.getpid(), number)
except BaseException:  # as C++ does with one that it does not expect
    os.abort()
"""


class ImportsTorch:
    """Imports a module of torch, within which the process gets a signal twice,
    and then builds for ever.
    """

    def __init__(self, number: int) -> None:
        exec(
            compile(IMPORTS, "torch/simulated.py", "exec"),
            {"__name__": "torch.simulated", "number": number},
        )
        wait_forever()

    def after_run(self) -> None:
        pass


class Cyclic:
    """Garbage that only a collection frees; it notes by which process."""

    def __init__(self, file: str) -> None:
        self.file, self.me = file, self

    def __del__(self) -> None:
        with Path(self.file).open("a") as file:
            print(os.getpid(), file=file)


def litters(file: str) -> None:
    Cyclic(file)


def disturber(name: str, **args: object) -> str:
    provided = ", ".join(f"{key}={value!r}" for key, value in args.items())
    return f'hooks.disturber={{use="tests.runner.test_process:{name}", args={{{provided}}}}}'


def test_a_hook_may_change_the_working_directory(
    new_run: NewRun, train_here: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path.cwd())  # afterwards the tests go on where they are
    run_dir = new_run(ONE_EPOCH, disturber("Moves", to=str(tmp_path)))
    relative = RunDir(Path(os.path.relpath(run_dir.path)))
    assert train_here(relative) == 0, records(run_dir, "end")
    assert (run_dir.checkpoints / "last").is_symlink()


def test_a_thread_that_never_ends_is_named_and_left(new_run: NewRun) -> None:
    run_dir = new_run(ONE_EPOCH, disturber("LeavesThread"))
    assert start(run_dir).wait() == 0
    (warning,) = messages(run_dir, "warn")
    assert '"uploader"' in warning
    assert records(run_dir, "end")[0]["status"] == "finished"
    assert warning in run_dir.output.read_text()


def test_threads_that_end_by_themselves_are_not_worth_a_word_nor_is_a_truncated_now_bin(
    new_run: NewRun,
) -> None:
    more = (
        disturber(name).replace("disturber=", f"{name}=") for name in ("LeavesPool", "Truncates")
    )
    run_dir = new_run(ONE_EPOCH, disturber("LeavesThread", seconds=0.2), *more)
    assert start(run_dir).wait() == 0
    assert messages(run_dir, "warn") == []


ALIVE: weakref.WeakSet[nn.Module] = weakref.WeakSet()


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Let nothing depend on when Python looks for garbage,
    nor on what other tests have left of it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize(
    ("data", "code"),
    [
        ("data.train.args.examples=40", 0),
        (over("Clouds", workers=2), 0),
        (over("Numbers", workers=2, batches=7), 0),
        ('hooks.bad={use="./common_hooks.py:Raises"}', 1),
    ],
    ids=["plain", "by workers", "a stream by workers", "a hook that raises"],
)
def test_no_file_stays_open(new_run: NewRun, train_here: Train, data: str, code: int) -> None:
    # What is opened once, as for libraries that are imported, stays.
    assert train_here(new_run(data)) == code
    before = psutil.Process().num_fds()
    assert train_here(new_run(data)) == code
    assert psutil.Process().num_fds() == before


class Net(nn.Linear):
    """Notes that it was made, and whether it is still there."""

    made = 0

    def __init__(self) -> None:
        super().__init__(4, 3)
        ALIVE.add(self)
        Net.made += 1

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs)


def pipeline(**more: Any) -> hookflow.Pipeline:
    run = {"threads": 1, "max_epochs": 1, **more}
    return hookflow.load({"extends": str(TOY), "run": run, "model": {"use": f"{__name__}:Net"}})


@pytest.mark.usefixtures("uncollected")
def test_no_model_stays(tmp_path: Path) -> None:
    for made in range(Net.made + 1, Net.made + 3):
        hookflow.train(pipeline(), "none", runs=tmp_path)
        assert (Net.made, len(ALIVE)) == (made, 0)


@pytest.mark.usefixtures("uncollected")
def test_the_models_of_trials_are_not_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    again = TrialRunner.again

    def counted(self: TrialRunner, *args: Any, **options: Any) -> Any:
        try:
            return again(self, *args, **options)
        finally:
            counts.append(len(ALIVE))

    monkeypatch.setattr(TrialRunner, "again", counted)
    loaded = pipeline()
    with trials_of(loaded.loaded, loaded.plan, Path.cwd(), lambda *said: None) as trials:
        for _ in range(4):
            trials.again(loaded.plan)
    assert len(counts) == 4
    assert 1 <= max(counts) <= 2, "that of this trial, and that which the data were made with"


@pytest.mark.usefixtures("interpreters")
def test_it_trains_the_run_that_it_is_sent(
    new_run: NewRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has printed before is in the output of the run,
    and a file that a hook leaves open is written.
    """
    (tmp_path / "sitecustomize.py").write_text("print('early')")
    (tmp_path / "noted.py").write_text(f"""
class Notes:
    def before_run(self, run):
        self.me, self.file = self, open({str(tmp_path / "notes")!r}, "w")
        print("hello", file=self.file)
""")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    printing = "hooks.print={use='builtins:print', args=['hello'], points=['before_run']}"
    run_dir = new_run("run.max_epochs=1", printing, f"hooks.notes.use='{tmp_path}/noted.py:Notes'")
    with closing(StandbyProcess()) as standby:
        child = start(run_dir, standby=standby)
    assert child.wait() == 0
    assert records(run_dir, "end")
    assert run_dir.describe()["pid"] == child.pid
    assert run_dir.output.read_text() == "early\nhello\n"
    assert (tmp_path / "notes").read_text() == "hello\n"


def test_a_standby_ends_where_the_pipeline_is_wrong_and_with_its_parent() -> None:
    with closing(StandbyProcess()) as standby:
        process = psutil.Process(standby._process.pid)
        assert process.is_running()
    assert not process.is_running()
    source = """
from hookflow.runner.process.launch import StandbyProcess
print(StandbyProcess()._process.pid, flush=True)
input()
"""
    parent = Spawned(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    process = psutil.Process(int(parent.stdout.readline()))
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    wait_for(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


@pytest.fixture
def endless(new_run: NewRun) -> RunDir:
    return new_run("run.max_epochs=100000")


def test_a_living_run_is_not_resumed_though_its_lock_was_removed(
    endless: RunDir, tmp_path: Path
) -> None:
    training = Training(endless, locked=True)
    wait_for(lambda: bool(records(endless, "checkpoint")))
    endless.lock.unlink()
    refused = run_here("--resume", str(endless.path), cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"the run {endless.id} is already running" in refused.stderr
    assert len(records(endless, "run")) == 1
    training.signal(signal.SIGTERM)
    assert training.wait() == 143, "it has noticed nothing"


def test_nor_where_the_file_system_knows_no_locks(
    endless: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*provided: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unknown)
    release(claim(endless))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        endless.sign_process(child.pid)
        with pytest.raises(UserError, match="is already running"):
            claim(endless)
        child.kill()
    release(claim(endless))


def test_a_process_that_lives_on_after_its_run_is_not_in_the_way(undisturbed: Trained) -> None:
    release(claim(undisturbed("run.max_epochs=1")))


@pytest.mark.parametrize("how", ["forked", "spawned"])
def test_a_child_that_outlives_the_training_does_not_hold_its_lock(
    new_run: NewRun, tmp_path: Path, how: str
) -> None:
    mark = tmp_path / "mark"
    leaves = (
        f'hooks.leaves={{use="tests.runner.test_process:LeavesChild", args={{mark="{mark}",'
        f' how="{how}"}}}}'
    )
    run_dir = new_run("run.max_epochs=100000", leaves)
    training = Training(run_dir, locked=True)
    wait_for(mark.exists)
    child = int(mark.read_text())
    training.signal(signal.SIGKILL)
    assert training.wait() == -signal.SIGKILL
    try:
        release(claim(run_dir))
        assert run_dir.life() == "gone"
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


def test_what_a_living_process_writes_is_left_alone(new_run: NewRun, train_here: Train) -> None:
    run_dir = new_run("run.max_epochs=1")
    run_dir.checkpoints.mkdir()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        living = run_dir.checkpoints / f".it00000003.{child.pid}"
        given_again = run_dir.checkpoints / f".it00000004.1.{child.pid}"
        dead = run_dir.checkpoints / ".it00000005.4194305"  # more than any system has
        own, gone = (
            run_dir.checkpoints / f".it00000006.{os.getpid()}",
            run_dir.checkpoints / ".it00000001.gone",
        )
        for path in (living, given_again, dead, own, gone):
            path.mkdir()
        os.utime(given_again, (1.0, 1.0))
        assert train_here(run_dir) == 0
        child.kill()
    assert [path for path in (living, given_again, dead, own, gone) if path.exists()] == [living]
    (reported,) = (
        record["text"]
        for record in records(run_dir, "message")
        if "left alone" in str(record["text"])
    )
    assert str(living.name) in str(reported)
    assert CheckpointStore(run_dir.checkpoints).clear_leftovers() == []


FORKED = "they are forked, which may hang"


DATA = ("Clouds", "Numbers")


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("", "Numbers"),
        ("forkserver", "Clouds"),
        pytest.param("", "Clouds", marks=pytest.mark.long),
        pytest.param("forkserver", "Numbers", marks=pytest.mark.long),
        *(
            pytest.param(method, name, marks=pytest.mark.long)
            for method in ("spawn", "fork")
            for name in DATA
        ),
    ],
)
def test_however_workers_start_no_bit_changes(
    undisturbed: Trained, new_run: NewRun, method: str, name: str
) -> None:
    chosen = {"multiprocessing_context": method} if method else {}
    run_dir = new_run(over(name, workers=1, **chosen))
    assert start(run_dir).wait() == 0
    assert_same_end(undisturbed(over(name, workers=1)), run_dir)
    assert not [
        text for text in messages(run_dir) if FORKED in text or "no checkpoint holds that" in text
    ]


def test_forked_workers_leave_the_garbage_to_the_training(trained: Trained, tmp_path: Path) -> None:
    """CUDA events in it, say, which cannot be freed in another process."""
    freed = tmp_path / "freed"
    litters = (
        'hooks.litters={use="tests.runner.test_process:litters",'
        ' points=["before_train"], args=["%s"]}'
    )
    gc.disable()
    trained(over("Collects", workers=2), litters % freed)
    gc.enable()
    gc.collect()
    assert freed.read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("Unpicklable", "TypeError: cannot pickle"),
        ("InPieces", "its 302 tensors are more than the 224 that a worker"),
    ],
)
def test_data_that_cannot_be_pickled_are_forked_with_a_warning(
    new_run: NewRun, data: str, why: str
) -> None:
    run_dir = new_run(over(data, workers=1))
    assert start(run_dir).wait() == 0
    (said,) = [text for text in messages(run_dir) if FORKED in text]
    assert said.startswith(f"{data} cannot be pickled ") and f"({why}" in said
    chosen = new_run(over(data, workers=1, multiprocessing_context="fork"))
    assert Training(chosen).wait() == 0
    assert not [text for text in messages(chosen) if FORKED in text]


def test_a_start_method_that_cannot_be_is_an_error_before_the_training(trained: Trained) -> None:
    (end,) = records(
        trained(over("Unpicklable", workers=1, multiprocessing_context="spawn"), code=2), "end"
    )
    assert "Unpicklable cannot be: TypeError" in str(end["reason"])
    assert "data.train.loader.multiprocessing_context" in str(end["reason"]) or "--set" in str(
        end["reason"]
    )


@pytest.mark.parametrize(
    ("small", "said"),
    [("shm", "its tensors .+ do not fit into"), ("memory", "2 copies of it .+ do not fit into")],
)
def test_too_big_data_are_forked(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, small: str, said: str
) -> None:
    class Spec:
        name = "hookflow.runner.__main__"

    class Full:
        free = available = 0

    monkeypatch.setattr("__main__.__spec__", Spec)
    if small == "shm":
        monkeypatch.setattr(workers.shutil, "disk_usage", lambda path: Full)
    else:
        monkeypatch.setattr(workers.psutil, "virtual_memory", lambda: Full)
    (text,) = [text for text in messages(trained(over("Clouds", workers=2))) if FORKED in text]
    assert re.match(f"Clouds is too big for workers that are not forked: {said}", text)


@pytest.mark.parametrize(
    ("split", "holds"),
    [
        ("train", "the GIL"),
        pytest.param("train", "nothing", marks=pytest.mark.long),
        pytest.param("val", "the GIL", marks=pytest.mark.long),
        pytest.param("val", "nothing", marks=pytest.mark.long),
    ],
)
def test_a_training_that_waits_for_a_hung_worker_leaves_at_the_first_signal(
    undisturbed: Trained, new_run: NewRun, tmp_path: Path, split: str, holds: str
) -> None:
    mark = tmp_path / "hangs"
    args = f'data.{split}.args={{mark="{mark}", gil={str(holds == "the GIL").lower()}}}'
    hasty = 'hooks.hasty={use="./process_hooks.py:Hasty"}'
    run_dir = new_run(over("HangsOnce", split, workers=1), args, "run.sanity=false", hasty)
    training = Training(run_dir)
    wait_for(mark.exists)
    training.signal(signal.SIGTERM)
    assert training.wait() == 143
    (end,) = records(run_dir, "end")
    assert end["reason"] == "SIGTERM received"
    (text,) = [text for text in messages(run_dir) if text.startswith("worker ")]
    named = (
        r"worker 0 of HangsOnce \(pid \d+\) did not leave within 0.5 s and was killed \(SIGKILL\):"
        r" it hung .*"
    )
    assert re.fullmatch(named, text)
    assert Training(run_dir, resume=True).wait() == 0
    assert_same_end(undisturbed(over("Clouds", split), "run.sanity=false"), run_dir)


class CountsVisits:
    """Counts each visit, in its state."""

    def __init__(self) -> None:
        self.visits = torch.zeros(2, dtype=torch.int64)

    def before_fetch(self) -> None:
        self.visits[0] += 1

    def after_backward(self) -> None:
        self.visits[1] += 1

    def state_dict(self) -> dict[str, Any]:
        return {"visits": self.visits}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.visits = state["visits"]


@pytest.mark.parametrize(
    ("overrides", "done"),
    [
        (("run.accumulate=2",), 1),
        (("run.accumulate=2", f'hooks.counts={{use="{__file__}:CountsVisits"}}'), 1),
        ((f'hooks.counts={{use="{__file__}:CountsVisits"}}',), 3),
    ],
    ids=["accumulated", "with a hook that counts", "behind before_fetch"],
)
def test_what_was_accumulated_when_a_worker_hangs_is_discarded(
    undisturbed: Trained, new_run: NewRun, tmp_path: Path, overrides: tuple[str, ...], done: int
) -> None:
    """The fourth batch hangs: the second one of an iteration of two.

    Batch norm and dropout have gone on by then.
    """
    mark = tmp_path / "hangs"
    args = f'data.train.args={{mark="{mark}", after=24}}'
    hasty = 'hooks.hasty={use="./process_hooks.py:Hasty"}'
    run_dir = new_run(over("HangsOnce", workers=1), args, "run.sanity=false", hasty, *overrides)
    training = Training(run_dir)
    wait_for(mark.exists)
    with open_memory(run_dir.find_now_path(0)) as memory:
        wait_for(lambda: read_num_iters(memory) == done)
    training.signal(signal.SIGTERM)
    assert training.wait() == 143
    assert CheckpointStore(run_dir.checkpoints).names()["last"].name == f"it{done:08d}"
    assert Training(run_dir, resume=True).wait() == 0
    assert_same_end(undisturbed(over("Clouds"), "run.sanity=false", *overrides), run_dir)


FIRST_BATCHES = {
    "a sampler with a state": (
        over("HangsInEpoch2", workers=1, sampler="./data_loaders.py:Rotates"),
        '{mark="%s"}',
    ),
    "a loader with a sampler with a state": (
        'data.train={use="./data_loaders.py:rotating"}',
        '{mark="%s"}',
    ),
    "a loader that shuffles": ('data.train={use="./data_loaders.py:shuffling"}', '{mark="%s"}'),
    "and keeps its workers": (
        'data.train={use="./data_loaders.py:shuffling"}',
        '{persistent=true, mark="%s"}',
    ),
}


@pytest.mark.parametrize(("data", "args"), FIRST_BATCHES.values(), ids=FIRST_BATCHES)
def test_where_the_first_batch_of_an_epoch_hangs_its_order_is_drawn_as_if_for_the_first_time(
    new_run: NewRun, tmp_path: Path, data: str, args: str
) -> None:
    mark, unhung = tmp_path / "hangs", tmp_path / "is there"
    unhung.touch()
    whole = new_run(data, f"data.train.args={args % unhung}", "run.sanity=false")
    assert Training(whole).wait() == 0, records(whole, "end")
    hasty = 'hooks.hasty={use="./process_hooks.py:Hasty"}'
    run_dir = new_run(data, f"data.train.args={args % mark}", "run.sanity=false", hasty)
    training = Training(run_dir)
    wait_for(mark.exists)
    training.signal(signal.SIGTERM)
    assert training.wait() == 143
    assert records(run_dir, "end")[-1]["it"] == 5
    assert Training(run_dir, resume=True).wait() == 0
    assert_same_end(whole, run_dir)


@pytest.mark.parametrize(
    "method", ["forkserver", "fork", pytest.param("spawn", marks=pytest.mark.long)]
)
def test_a_hung_worker_does_not_outlive_a_training_that_is_killed(
    new_run: NewRun, tmp_path: Path, method: str
) -> None:
    mark = tmp_path / "hangs"
    data = over("HangsOnce", workers=1, multiprocessing_context=method)
    training = start(new_run(data, f'data.train.args={{mark="{mark}", gil=true}}'))
    wait_for(mark.exists)
    whole = psutil.Process(training.pid).children(recursive=True)
    assert int(mark.read_text()) in {process.pid for process in whole}
    training.kill()
    assert training.wait() == -9
    wait_for(
        lambda: all(
            not child.is_running() or child.status() == psutil.STATUS_ZOMBIE for child in whole
        )
    )


@pytest.mark.usefixtures("interpreters")
def test_a_signal_to_the_whole_job_leaves_the_fork_server_and_its_workers_alone(
    new_run: NewRun,
) -> None:
    slow = 'hooks.slow={use="./common_hooks.py:slow", points=["after_backward"]}'
    run_dir = new_run(over("Clouds", workers=2), slow, swap=("max_epochs = 3", "max_epochs = 400"))
    training = start(run_dir)  # which starts a resource tracker of its own
    wait_for(lambda: bool(records(run_dir, "checkpoint")) or training.poll() is not None)
    helpers = psutil.Process(training.pid).children(recursive=True)
    assert len(helpers) == 4, "the resource tracker, the fork server and two workers"
    for helper in helpers:
        helper.terminate()
    saved = len(records(run_dir, "checkpoint"))
    wait_for(lambda: len(records(run_dir, "checkpoint")) > saved + 2 or training.poll() is not None)
    os.killpg(training.pid, signal.SIGTERM)
    assert training.wait() == 143
    assert run_dir.output.read_text() == ""
    (end,) = records(run_dir, "end")
    assert end["reason"] == "SIGTERM received"
    assert not [text for text in messages(run_dir) if "worker" in text and "share" not in text]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_while_torch_is_imported_ends_the_run_after_the_import(
    new_run: NewRun, number: int
) -> None:
    run_dir = new_run(disturber("ImportsTorch", number=int(number)))
    code = 130 if number == signal.SIGINT else 143
    assert Training(run_dir).wait() == code
    (end,) = records(run_dir, "end")
    assert (end["status"], end["exit"]) == ("interrupted", code)
