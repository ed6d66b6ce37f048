"""`hookflow run --nproc` and torchrun: ranks as real processes that are stopped,
killed and started again.
"""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch.distributed import HashStore, TCPStore

from hookflow.cli import torchrun as rank_commands
from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.monitor.plain import print_run
from hookflow.runner.distributed.failures import ChildExit
from hookflow.runner.distributed.rendezvous import RankLayout
from hookflow.runner.process.launch import claim, start
from tests.conftest import hookflow, hookflow_here, reason, wait_for
from tests.distributed.conftest import CLOUDS, NewClouds, strikes
from tests.distributed.several import messages_of, records_of
from tests.support.limits import LIMIT
from tests.support.processes import Spawned

ENDLESS = (
    "run.max_epochs=500",
    'hooks.slow={use="../support/common_hooks.py:slow", points=["after_train_iter"]}',
)
Launch = Callable[..., tuple[RunDir, subprocess.Popen[bytes]]]


@pytest.fixture
def launch(new_clouds: NewClouds) -> Iterator[Launch]:
    """Start a run of clouds on two ranks, with overrides."""
    agents = []

    def make(*overrides: str) -> tuple[RunDir, subprocess.Popen[bytes]]:
        run_dir = new_clouds(*overrides)
        agents.append(start(run_dir, nproc=2))
        return run_dir, agents[-1]

    yield make
    for agent in agents:
        if agent.poll() is None:
            for process in (*psutil.Process(agent.pid).children(), agent):
                process.kill()
        agent.wait()


def test_a_killed_rank_restarts_the_run_and_ends_it_with_a_clear_word(tmp_path: Path) -> None:
    kill = signal.SIGKILL
    sets = [
        f"--set={strikes(tmp_path / name, at, kill, name)}"
        for name, at in (("once", 8), ("again", 11))
    ]
    done = hookflow(
        "run", str(CLOUDS), "--nproc=2", "--max-restarts=1", *sets, cwd=tmp_path, code=137
    )
    (run_dir,) = (RunDir(path.parent) for path in tmp_path.glob("runs/*/*/run.json"))
    killed = f"rank 1 was {run_dir.ended_by(-signal.SIGKILL)}; the others were ended"
    assert f"{killed}: restart 1 of 1, from the last checkpoint" in done.stdout
    assert f"{killed}; resume with: hookflow run --resume {run_dir.id} --nproc 2" in done.stdout
    assert "Traceback" not in done.stdout, "that the others could not go on says nothing"
    first, second = (record["resumed_from"] for record in records_of(run_dir, "run"))
    assert first is None
    assert second, "it goes on from a checkpoint"
    assert [end["exit"] for end in records_of(run_dir, "end")] == [137], "a restart is no end"
    assert run_dir.describe()["pid"] not in {
        record["pid"] for record in records_of(run_dir, "run")
    }, "the agent signs"


def test_ctrl_c_is_handed_on_and_all_end_together_with_a_checkpoint(
    launch: Launch, tmp_path: Path
) -> None:
    """A rank that ends later than another is waited for,
    and none is aborted while its interpreter goes down.
    """
    aborts = f'hooks.aborts={{use="./actors.py:Aborts", args={{marks="{tmp_path}"}}}}'
    run_dir, agent = launch(
        *ENDLESS, 'hooks.late={use="./actors.py:ends_late", points=["after_run"]}', aborts
    )
    wait_for(lambda: bool(records_of(run_dir, "epoch")))
    agent.send_signal(signal.SIGINT)
    assert agent.wait(LIMIT) == 130
    (end,), (other,) = records_of(run_dir, "end"), records_of(run_dir, "end", 1)
    assert (end["exit"], end["status"], end["reason"]) == (130, "interrupted", "SIGINT received")
    assert end["it"] == other["it"] == records_of(run_dir, "checkpoint")[-1]["it"]
    assert messages_of(run_dir, 0, "at its end")
    assert {path.name for path in tmp_path.glob("[01]")} == {"0", "1"}, (
        "what is registered for the exit is done"
    )


def test_a_second_ctrl_c_waits_for_nothing(launch: Launch) -> None:
    run_dir, agent = launch('hooks.hangs={use="./actors.py:Hangs"}')
    wait_for(lambda: messages_of(run_dir, 0, "hangs"))
    agent.send_signal(signal.SIGINT)
    wait_for(lambda: messages_of(run_dir, 0, "hears"))
    agent.send_signal(signal.SIGINT)
    assert agent.wait(LIMIT) == 130
    assert "at once" in reason(run_dir)
    assert messages_of(run_dir, 0, "SIGINT received: ")


def test_ranks_do_not_outlive_their_agent_and_nobody_resumes_beside_them(launch: Launch) -> None:
    run_dir, agent = launch(*ENDLESS)
    wait_for(lambda: bool(records_of(run_dir, "epoch")))
    ranks = psutil.Process(run_dir.describe()["pid"]).children()
    child_exit = ChildExit(run_dir, lambda: agent)  # before the end that it looks for
    agent.kill()
    with pytest.raises(UserError, match="is already running"):
        claim(run_dir)
    assert print_run(run_dir, io.StringIO(), child_exit=child_exit) == 143, (
        "what is shown waits for the ranks' own end"
    )
    psutil.wait_procs(ranks, timeout=LIMIT)
    (end,) = records_of(run_dir, "end")
    assert (end["exit"], end["reason"]) == (143, f"the launcher (process {agent.pid}) is gone")
    assert records_of(run_dir, "checkpoint")[-1]["it"] == end["it"]
    claim(run_dir)


def test_a_rank_ends_whose_launcher_was_gone_before_it_looked(new_clouds: NewClouds) -> None:
    run_dir = new_clouds("run.max_epochs=100000")
    gone = 4194305  # more than any system has
    command = [
        sys.executable,
        "-P",
        "-m",
        "hookflow.runner",
        str(run_dir.path),
        "--agent",
        f"--launcher={gone}",
    ]
    subprocess.run(command, timeout=LIMIT, check=False)
    assert reason(run_dir).startswith(f"the launcher (process {gone}) is gone")


QUIET = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}


@pytest.mark.parametrize("begin", [Spawned, pytest.param(subprocess.Popen, marks=pytest.mark.long)])
def test_the_ranks_of_two_machines_share_a_run_and_go_on_in_it_when_they_are_started_again(
    tmp_path: Path, begin: type[subprocess.Popen[str]]
) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    endpoint = f"--rdzv-endpoint=127.0.0.1:{store.port}"
    meeting = ("--rdzv-backend=c10d", endpoint, "--rdzv-conf=is_host=0", "--rdzv-id=two")
    machines = (
        "--nnodes=2",
        "--nproc-per-node=1",
        "--local-addr=localhost",
        "--max-restarts=1",
        *meeting,
    )
    options = ("--ui=json", f"--set={strikes(tmp_path / 'once', 8, signal.SIGKILL)}")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        *machines,
        "-m",
        "hookflow",
        "run",
        str(CLOUDS),
        *options,
    ]
    streams: Any = {
        "env": QUIET,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    with (
        begin(command, cwd=tmp_path, **streams) as one,
        Spawned(command, cwd=tmp_path, **streams) as other,
    ):
        printed = [machine.communicate(timeout=LIMIT) for machine in (one, other)]
    assert [one.returncode, other.returncode] == [0, 0], printed
    (run_dir,) = (RunDir(path.parent) for path in tmp_path.glob("runs/*/*/run.json"))
    for rank in (0, 1):
        first, second = records_of(run_dir, "run", rank)
        assert first["rank"] == second["rank"] == rank
        assert first["resumed_from"] is None
        assert second["resumed_from"] is not None
    assert [end["exit"] for end in records_of(run_dir, "end")] == [0], "a restart is no end"
    shown = [json.loads(line) for output, _ in printed for line in output.splitlines()]
    assert {record["rank"] for record in shown if record["k"] == "run"} == {0}, (
        "the first rank alone shows anything"
    )
    assert len([record for record in shown if record["k"] == "end"]) == 1
    assert not any("Traceback" in errors for _, errors in printed)


def test_under_torchrun_a_run_that_a_hook_has_ended_early_is_not_trained_on(
    ranks_trained: NewClouds, tmp_path: Path
) -> None:
    """As without torchrun: all ranks leave with 0, the first says why,
    and nothing of the run changes.
    """
    run_dir = ranks_trained(
        'hooks.ends={use="./actors.py:ends_early", points=["after_train_iter"], writes=["control"]}'
    )
    (end,) = records_of(run_dir, "end")
    assert (end["it"], end["status"]) == (4, "finished"), "there were more to do"
    logs = [run_dir.find_events_path(rank).read_bytes() for rank in (0, 1)]
    launcher = (
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "--local-addr=localhost",
    )
    command = [
        sys.executable,
        *launcher,
        "-m",
        "hookflow",
        "run",
        "--resume",
        str(run_dir.path),
        "--ui=json",
    ]
    streams: Any = {
        "env": QUIET,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    with Spawned(command, cwd=tmp_path, **streams) as torchrun:
        output, errors = torchrun.communicate(timeout=LIMIT)
    assert torchrun.returncode == 0, errors
    assert errors.count("nothing is left to do") == 1
    assert "it is good enough" in errors
    assert output == ""
    assert [run_dir.find_events_path(rank).read_bytes() for rank in (0, 1)] == logs


def test_a_mistake_is_told_by_one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = HashStore()
    monkeypatch.setattr(rank_commands, "join_ranks", lambda ranks, seconds: talk)
    monkeypatch.setattr(rank_commands, "store", lambda seconds: HashStore())
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        done = hookflow_here("run", str(CLOUDS), "--detach", "--in-process", cwd=tmp_path, code=2)
        for option in ("--detach", "--in-process"):
            expected = f"{option}: cannot be given here: torchrun has started this process"
            assert done.stderr.count(expected) == (rank == 0)
    assert not (tmp_path / "runs").exists()


def test_a_machine_without_the_run_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = RunDir.create(tmp_path, "clouds")
    run_dir.sign(id=run_dir.id)
    talk = HashStore()
    monkeypatch.setattr(rank_commands.socket, "gethostname", lambda: "far")
    monkeypatch.setattr(rank_commands, "join_ranks", lambda ranks, seconds: talk)
    monkeypatch.setattr(
        rank_commands, "_claim_run_dir", lambda *arguments, restarted: (run_dir, False)
    )
    options = {"resume": False, "allow_changed_hooks": False}
    talk.set("run", json.dumps({"path": str(tmp_path / "elsewhere"), "again": False}))
    talk.set("seen by 0", "")
    ranks = iter((RankLayout(1, 2, 0), RankLayout(0, 2, 0)))
    monkeypatch.setattr(rank_commands, "of_environment", lambda: next(ranks))
    assert rank_commands.train_as_rank(lambda: run_dir, "none", **options) == 2, (
        "the first rank says why"
    )
    with pytest.raises(UserError, match="cannot be seen on far"):
        rank_commands.train_as_rank(lambda: run_dir, "none", **options)


def test_ranks_started_again_without_their_store_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_commands, "store", lambda seconds: HashStore())
    talk = HashStore()
    with pytest.raises(rank_commands.UserError, match="its store has forgotten of which run"):
        rank_commands._claim_run_dir(
            talk, lambda: RunDir.create(tmp_path, "clouds"), restarted=True
        )
    assert json.loads(talk.get("run")) == {"exit": 2}, "the others do not wait"
