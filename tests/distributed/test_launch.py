"""`hookflow run --nproc`: an agent and its ranks, as real processes that are stopped, killed and started again."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.monitor.plain import follow
from hookflow.runner.distributed.failures import ChildExit
from hookflow.runner.process.launch import claim
from tests.conftest import hookflow, wait_for
from tests.distributed.conftest import CLOUDS, NewClouds
from tests.distributed.several import messages_of, reason, records_of
from tests.limits import LIMIT
from tests.processes import Started

ENDLESS = ("run.max_epochs=500", 'hooks.slow={use="../watchers.py:slow", points=["after_train_iter"]}')
Launch = Callable[..., tuple[RunDir, Started]]


def dies(name: str, mark: Path, at: int) -> str:
    return f'hooks.{name}={{use="./actors.py:Strikes", args={{rank=1, at={at}, number=9, mark="{mark}"}}}}'


@pytest.fixture
def launch(new_clouds: NewClouds) -> Iterator[Launch]:
    """Start a run of clouds on two ranks, with overrides."""
    agents = []

    def make(*overrides: str) -> tuple[RunDir, Started]:
        run_dir = new_clouds(*overrides)
        agents.append(Started(run_dir, nproc=2))
        return run_dir, agents[-1]

    yield make
    for agent in agents:
        if agent.poll() is None:
            for process in (*psutil.Process(agent.pid).children(), agent):
                process.kill()
        agent.wait()


def test_a_killed_rank_restarts_the_run_and_ends_it_with_a_clear_word(tmp_path: Path) -> None:
    sets = [f"--set={dies(name, tmp_path / name, at)}" for name, at in (("once", 8), ("again", 11))]
    done = hookflow("run", str(CLOUDS), "--nproc=2", "--max-restarts=1", *sets, cwd=tmp_path)
    assert done.returncode == 137, done.stdout + done.stderr
    (run_dir,) = (RunDir(path.parent) for path in tmp_path.glob("runs/*/*/run.json"))
    killed = f"rank 1 was {run_dir.ended_by(-signal.SIGKILL)}; the others were ended"
    assert f"{killed}: restart 1 of 1, from the last checkpoint" in done.stdout
    assert f"{killed}; resume with: hookflow run --resume {run_dir.id} --nproc 2" in done.stdout
    assert "Traceback" not in done.stdout, "that the others could not go on says nothing"
    first, second = (record["resumed_from"] for record in records_of(run_dir, "run"))
    assert first is None
    assert second, "it goes on from a checkpoint"
    assert [end["exit"] for end in records_of(run_dir, "end")] == [137], "a restart is no end"
    assert run_dir.describe()["pid"] not in {record["pid"] for record in records_of(run_dir, "run")}, "the agent signs"


def test_ctrl_c_is_handed_on_and_all_end_together_with_a_checkpoint(launch: Launch, tmp_path: Path) -> None:
    """A rank that ends later than another is waited for, and none is aborted while its interpreter goes down."""
    aborts = f'hooks.aborts={{use="./actors.py:Aborts", args={{marks="{tmp_path}"}}}}'
    run_dir, agent = launch(*ENDLESS, 'hooks.late={use="./actors.py:EndsLate"}', aborts)
    wait_for(lambda: bool(records_of(run_dir, "epoch")))
    agent.send_signal(signal.SIGINT)
    assert agent.wait(LIMIT) == 130
    (end,), (other,) = records_of(run_dir, "end"), records_of(run_dir, "end", 1)
    assert (end["exit"], end["status"], end["reason"]) == (130, "interrupted", "SIGINT received")
    assert end["it"] == other["it"] == records_of(run_dir, "checkpoint")[-1]["it"]
    assert messages_of(run_dir, 0, "at its end")
    assert {path.name for path in tmp_path.glob("[01]")} == {"0", "1"}, "what is registered for the exit is done"


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
    agent.kill()
    with pytest.raises(UserError, match="is already running"):
        claim(run_dir)
    child_exit = ChildExit(run_dir, lambda: agent)
    assert follow(run_dir, io.StringIO(), child_exit=child_exit) == 143, "what is shown waits for the ranks' own end"
    psutil.wait_procs(ranks, timeout=LIMIT)
    (end,) = records_of(run_dir, "end")
    assert (end["exit"], end["reason"]) == (143, f"the launcher (process {agent.pid}) is gone")
    assert records_of(run_dir, "checkpoint")[-1]["it"] == end["it"]
    claim(run_dir)


def test_a_rank_ends_whose_launcher_was_gone_before_it_looked(new_clouds: NewClouds) -> None:
    run_dir = new_clouds("run.max_epochs=100000")
    gone = 4194305  # more than any system has
    command = [sys.executable, "-P", "-m", "hookflow.runner", str(run_dir.path), "--agent", f"--launcher={gone}"]
    subprocess.run(command, timeout=LIMIT, check=False)
    assert reason(run_dir).startswith(f"the launcher (process {gone}) is gone")


@pytest.mark.long
def test_a_mistake_that_all_ranks_find_is_told_once(tmp_path: Path) -> None:
    mistaken = '--set=model.weights="nowhere.pt"'
    done = hookflow("run", str(CLOUDS), "--nproc=2", "--max-restarts=3", mistaken, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("nowhere.pt") == 2, "the message, and the line of the file"
    assert "Traceback" not in done.stdout + done.stderr
    assert len(list(tmp_path.glob("runs/*/*/run.json"))) == 1
