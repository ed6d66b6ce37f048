"""Who is said to have ended a run over several ranks, by what each of them has left behind."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from hookflow.errors import UserError
from hookflow.events import now
from hookflow.events.log import LogAppender, TailReader
from hookflow.events.rundir import RunDir
from hookflow.runner.distributed import agent, rendezvous
from hookflow.runner.distributed.failures import (
    ChildExit,
    describe_peer_loss,
    exit_status,
    is_peer_lost,
    is_timeout,
    write_end,
)
from hookflow.runner.distributed.rendezvous import RankLayout
from hookflow.runner.logging.recorder import EventRecorder
from hookflow.runner.process.signals import StopReason
from tests.conftest import hookflow_here


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path, "some")


def says(run_dir: RunDir, rank: int, code: int, reason: str, t: float = 10.0) -> None:
    status = {0: "finished", 1: "failed", 2: "failed"}.get(code, "interrupted")
    puts(
        run_dir,
        rank,
        {"k": "end", "status": status, "exit": code, "reason": reason, "seconds": 1},
        t=t,
    )


def puts(run_dir: RunDir, rank: int, *records: dict[str, object], t: float = 10.0) -> None:
    log = LogAppender(run_dir.find_events_path(rank))
    log.append([{"t": t, "it": 4, "ep": 1, **record} for record in records])
    log.close()


GONE = "; the others were ended"
INTERRUPTED = StopReason("SIGINT received", "interrupted", 130, save=False)


@pytest.mark.parametrize(
    ("asked", "expected", "failed", "code", "reason"),
    [
        (None, {0: 0, 1: 0}, {}, 0, "rank 0 says"),
        # The launcher has killed what did not end.
        (None, {0: 1}, {0: 1, 1: -signal.SIGKILL}, 1, "rank 0 says"),
        (None, {1: 1}, {0: -signal.SIGKILL, 1: 1}, 1, "rank 1 says"),
        (None, {0: 2, 1: 143}, {0: 2, 1: 143}, 2, "rank 0 says"),
        (None, {0: 143}, {1: -signal.SIGSEGV, 0: 143}, 139, f"rank 1 was killed by SIGSEGV{GONE}"),
        (None, {0: 130, 1: 130}, {0: 130, 1: -signal.SIGTERM}, 130, "rank 0 says"),
        (None, {0: 0}, {1: 7}, 1, "rank 1 ended with exit code 7 without a reason"),
        (None, {}, {}, 1, "rank 0 ended with exit code 0 without a reason"),
        # Rank 0 knows only that rank 1 is gone.
        (INTERRUPTED, {1: 130}, {0: 1, 1: 130}, 130, "rank 1 says"),
        (INTERRUPTED, {}, {0: 1, 1: 130}, 130, "SIGINT received"),
        (INTERRUPTED, {}, {0: -signal.SIGKILL, 1: 130}, 130, "SIGINT received"),  # by the launcher
        (INTERRUPTED, {1: 1}, {0: 130, 1: 1}, 1, "rank 1 says"),
        (INTERRUPTED, {}, {0: 1, 1: -signal.SIGSEGV}, 139, f"rank 1 was killed by SIGSEGV{GONE}"),
        (INTERRUPTED, {0: 0, 1: 0}, {}, 0, "rank 0 says"),
    ],
)
def test_why_a_run_has_ended(
    run_dir: RunDir,
    asked: StopReason | None,
    expected: dict[int, int],
    failed: dict[int, int],
    code: int,
    reason: str,
) -> None:
    """Also one that the user has interrupted."""
    says(run_dir, 0, 1, "an attempt before", t=1.0)
    for rank, exit_code in expected.items():
        says(run_dir, rank, exit_code, f"rank {rank} says")
    stop = exit_status(run_dir, 5.0, failed, asked)
    assert (stop.exit, stop.reason) == (code, reason)
    assert stop.may_be_restarted == (code in (1, 139)), (
        "neither the user nor a mistake of theirs has ended it"
    )


RAISED: dict[str, object] = {
    "k": "error",
    "type": "ValueError",
    "text": "as told",
    "action": "raise",
} | dict.fromkeys(("hook", "point", "traceback"), "")
TOLD: dict[str, object] = {
    "k": "message",
    "level": "error",
    "source": "hookflow",
    "text": "rank 1: in other words",
}


@pytest.mark.parametrize(
    ("left", "reason"),
    [
        ([RAISED], "rank 1: ValueError: as told"),
        ([RAISED, TOLD, {"k": "frame"}], "rank 1: in other words"),
        ([TOLD, RAISED], "rank 1: ValueError: as told"),
        ([RAISED | {"action": "disable"}], "rank 1 ended with exit code 1 without a reason"),
        ([TOLD | {"level": "warn"}], "rank 1 ended with exit code 1 without a reason"),
        ([RAISED | {"t": 1.0}], "rank 1 ended with exit code 1 without a reason"),
    ],
)
def test_a_rank_without_an_end_tells_of_a_failure(
    run_dir: RunDir, left: list[dict[str, object]], reason: str
) -> None:
    puts(run_dir, 1, *left)
    assert exit_status(run_dir, 5.0, {1: 1}).reason == reason
    if reason.endswith("as told"):
        assert exit_status(run_dir, 5.0, {0: 1, 1: -signal.SIGKILL}).reason == reason, (
            "though it was killed then"
        )


def test_of_ranks_that_were_killed_the_first_says_why(run_dir: RunDir) -> None:
    for rank in (0, 1):
        puts(run_dir, rank, TOLD | {"level": "info"}, t=40.0 - rank * 30)
    reason = exit_status(run_dir, 5.0, {0: -signal.SIGKILL, 1: -signal.SIGKILL}).reason
    assert reason.startswith("rank 1 was killed by SIGKILL"), (
        "rank 0 went on, until the launcher killed it"
    )


def test_a_process_that_ends_without_a_word_has_failed(run_dir: RunDir) -> None:
    puts(run_dir, 0, {"k": "run", "iters_per_epoch": 5}, {"k": "end", "exit": 0})
    shared = now.NowMemory(run_dir.now)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        child_exit = ChildExit(run_dir, lambda: child)
        puts(run_dir, 0, {"k": "run", "iters_per_epoch": 5}, {"k": "checkpoint", "it": 2})
        shared.iters[0] = 13
        assert child_exit() is None
        shared.close()
    assert (child.returncode, child_exit.wait(), child_exit()) == (0, 1, 1)
    end = TailReader(run_dir.events).read_all()[-1]
    assert (end["k"], end["exit"], end["it"], end["ep"]) == ("end", 1, 13, 2)
    assert end["reason"] == "exited with code 0 and no end record"


def test_an_end_is_written_where_there_is_none_that_says_so(run_dir: RunDir) -> None:
    killed = StopReason("rank 1 was killed", "failed", 1, save=False)
    says(run_dir, 0, 130, "SIGINT received")
    write_end(
        run_dir,
        5.0,
        StopReason("SIGINT received", "interrupted", 130, save=False),
        "go on",
        2.0,
        resumes=False,
    )
    write_end(run_dir, 5.0, killed, "hookflow run --resume", 2.0, resumes=False)
    ends = TailReader(run_dir.events).read_all()
    assert [record["exit"] for record in ends] == [130, 1]
    assert ends[-1]["reason"].startswith("rank 1 was killed; ")
    assert (ends[-1]["it"], ends[-1]["ep"]) == (4, 1), "where the run stood"
    (run_dir.checkpoints / "it00000004").mkdir(parents=True)
    says(run_dir, 0, 130, "SIGINT received")
    write_end(run_dir, 5.0, killed, "hookflow run --resume", 2.0, resumes=False)
    assert TailReader(run_dir.events).read_all()[-1]["reason"].startswith("rank 1 was killed; ")


def test_what_says_only_that_another_rank_is_gone() -> None:
    gone = RuntimeError(
        "[/somewhere/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:722. "
        "This is typically caused by a remote worker crashing."
    )
    assert is_peer_lost(gone)
    assert (
        describe_peer_loss(gone)
        == "another rank is gone: Connection closed by peer [127.0.0.1]:722"
    )
    assert is_peer_lost(torch.distributed.DistNetworkError("recv failed"))
    assert not is_peer_lost(RuntimeError("shapes do not fit"))
    assert not is_peer_lost(ValueError("Connection closed by peer"))


def test_who_waits_too_long_says_where_and_where_the_others_are(run_dir: RunDir) -> None:
    late = RuntimeError(
        "[/somewhere/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 8000ms for recv"
    )
    assert is_timeout(late)
    assert not is_peer_lost(late), "the other has not gone"
    run_dir.plan.write_text(
        json.dumps({"bindings": [{"hook": "hang", "point": "after_train_iter"}]})
    )
    places = {rank: now.NowMemory(run_dir.find_now_path(rank)) for rank in (1, 2)}
    places[1].ids[0] = 0
    says(run_dir, 2, 0, "some")
    recorder = EventRecorder(run_dir, lambda command: None, RankLayout(0, 3, 0))
    recorder.failure(late, hook="ozm", point="after_train_iter")
    recorder.flush()
    expected = (
        'waited 8 s for the others, in hook "ozm" at after_train_iter; '
        'rank 1 is in hook "hang" at after_train_iter, rank 2 is in no hook, at iteration 4'
    )
    assert recorder.why == expected
    (record,) = TailReader(run_dir.events).read_all()
    assert (record["k"], record["hook"], record["text"]) == ("error", "ozm", expected)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--nproc=0"], '"0" is neither a number of processes nor auto'),
        (["--nproc=2x"], '"2x" is neither a number of processes nor auto'),
        (["--nproc=auto"], "auto is a rank for each GPU, and there is none"),
        (
            ["--nproc=2", "--in-process"],
            "cannot be given here: --in-process is for a single process",
        ),
        (
            ["--max-restarts=1", "--in-process"],
            "cannot be given here: --in-process is for a single process",
        ),
    ],
)
def test_options_at_odds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    done = hookflow_here("run", "some.toml", *options, cwd=tmp_path, code=2)
    assert expected in done.stderr


@pytest.mark.parametrize(("tasks", "several"), [(None, False), ("1", False), ("2", True)])
def test_tasks_of_slurm_that_each_train_alone_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: str | None, several: bool
) -> None:
    if tasks:
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", tasks)
    done = hookflow_here("run", "some.toml", "--nproc=0", cwd=tmp_path)
    assert ("Slurm has started 2 tasks" in done.stderr) == several


def test_a_launcher_that_says_no_address_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(UserError, match="MASTER_ADDR expected, but not set"):
        rendezvous.store(1)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> torch.distributed.HashStore:
    """Return the store of ranks that have not met yet."""
    store = torch.distributed.HashStore()
    monkeypatch.setattr(rendezvous, "store", lambda seconds: store)
    monkeypatch.setattr(rendezvous, "joined", None)
    return store


def test_ranks_wait_for_each_other_without_being_deaf(shared: torch.distributed.HashStore) -> None:
    shared.set("arrived 1", "of an earlier start")

    def interrupt(number: int, frame: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(InterruptedError):
            rendezvous.join_ranks(RankLayout(0, 2, 0), 60)
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(RuntimeError, match="not all of the 2 ranks are there"):
        rendezvous.join_ranks(RankLayout(0, 2, 0), 0)
    assert rendezvous.joined is None


def test_a_rank_that_heeds_no_signal_is_killed_in_the_end(
    monkeypatch: pytest.MonkeyPatch, run_dir: RunDir
) -> None:
    sent: list[int] = []

    class Stuck:
        pid = 7
        send_signal = staticmethod(sent.append)

        def kill(self) -> None:
            sent.append(signal.SIGKILL)

        def children(self) -> "list[Stuck]":
            return [self]

    monkeypatch.setattr(agent.psutil, "Process", Stuck)
    monkeypatch.setattr(agent, "STOP_GRACE_SECONDS", 0)
    starter = agent.RankAgent(run_dir, 1, 0, [])
    starter._forward_signals()
    starter._on_signal(signal.SIGTERM, None)
    starter._on_signal(signal.SIGTERM, None)
    for _ in range(3):
        starter._forward_signals()
    assert sent == [signal.SIGTERM], "the first is waited for, however long that takes"
    starter._on_signal(signal.SIGINT, None)
    for _ in range(2):
        starter._forward_signals()
    assert sent == [signal.SIGTERM, signal.SIGINT, signal.SIGKILL]
