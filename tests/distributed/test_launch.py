"""`hookflow run --nproc`: an agent and its ranks, as real processes that are stopped, killed and started again."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hookflow.errors import UserError
from hookflow.events.log import Tail
from hookflow.events.run_lock import release
from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.monitor.plain import follow
from hookflow.pipeline.load import load
from hookflow.runner.distributed.failures import ChildExit
from hookflow.runner.process.launch import claim, prepare, start
from tests.conftest import hookflow, wait_for
from tests.limits import LIMIT

HERE = Path(__file__).parent
CLOUDS = HERE / "clouds.toml"
SLOW = 'hooks.slow={use="./launched.py:slow", points=["after_train_iter"]}'
Launch = Callable[..., tuple[RunDir, subprocess.Popen[bytes]]]


def dies(name: str, mark: Path, at: int) -> str:
    return f'hooks.{name}={{use="./launched.py:Dies", args={{rank=1, at={at}, mark="{mark}"}}}}'


def records(run_dir: RunDir, kind: str, rank: int = 0) -> list[dict[str, Any]]:
    return [record for record in Tail(run_dir.events_of(rank)).read_all() if record["k"] == kind]


def ranks_of(run_dir: RunDir) -> list[psutil.Process]:
    """Return the processes of the ranks that an agent has started."""
    agent = psutil.Process(run_dir.describe()["pid"])
    return sorted(agent.children(), key=lambda rank: int(rank.environ()["RANK"]))


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start a run of clouds on two ranks, with overrides."""
    agents = []

    def make(*overrides: str) -> tuple[RunDir, subprocess.Popen[bytes]]:
        loaded = load(CLOUDS, overrides)
        run_dir = RunDir.create(tmp_path / "runs", "clouds")
        prepare(loaded, compile_pipeline(loaded), run_dir, HERE)
        agents.append(start(run_dir, nproc=2))
        return run_dir, agents[-1]

    yield make
    for agent in agents:
        if agent.poll() is None:
            for process in (*psutil.Process(agent.pid).children(), agent):
                process.kill()
        agent.wait()


def test_a_killed_rank_ends_the_run_with_a_clear_word_and_the_run_is_resumed_and_restarted(tmp_path: Path) -> None:
    sets = [f"--set={dies(name, tmp_path / name, at)}" for name, at in (("once", 14), ("again", 20))]
    done = hookflow("run", str(CLOUDS), "--nproc=2", "--set=run.max_epochs=5", *sets, cwd=tmp_path)
    assert done.returncode == 137, done.stdout + done.stderr
    (run_dir,) = (RunDir(path.parent) for path in tmp_path.glob("runs/*/*/run.json"))
    reason = f"rank 1 was {run_dir.ended_by(-signal.SIGKILL)}; the others were ended"
    assert f"{reason}; resume with: hookflow run --resume {run_dir.id} --nproc 2" in done.stdout
    assert "Traceback" not in done.stdout, "that the others could not go on says nothing"
    assert [end["exit"] for end in records(run_dir, "end")] == [137]

    done = hookflow("run", "--resume", run_dir.id, "--nproc=2", "--max-restarts=1", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{reason}: restart 1 of 1, from the last checkpoint" in done.stdout
    starts = [record["resumed_from"] for record in records(run_dir, "run")]
    assert len(starts) == 3
    assert starts[0] is None
    assert all(starts[1:]), "each of the others goes on from a checkpoint"
    assert [end["exit"] for end in records(run_dir, "end")] == [137, 0], "a restart is no end"
    assert records(run_dir, "run", rank=1)[-1]["resumed_from"], "who is killed may lose what it has just recorded"
    assert records(run_dir, "end", rank=1)[-1]["status"] == "finished"
    assert run_dir.describe()["pid"] not in {record["pid"] for record in records(run_dir, "run")}, "the agent signs"


def test_ctrl_c_is_handed_on_and_all_end_together_with_a_checkpoint(launch: Launch) -> None:
    run_dir, agent = launch("run.max_epochs=500", SLOW)
    wait_for(lambda: bool(records(run_dir, "epoch")))
    agent.send_signal(signal.SIGINT)
    assert agent.wait(LIMIT) == 130
    (end,), (other,) = records(run_dir, "end"), records(run_dir, "end", rank=1)
    assert (end["exit"], end["status"]) == (130, "interrupted")
    assert end["it"] == other["it"] == records(run_dir, "checkpoint")[-1]["it"]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)]
)
def test_a_rank_that_ends_later_than_another_is_let_to(launch: Launch, number: signal.Signals, code: int) -> None:
    run_dir, agent = launch("run.max_epochs=500", SLOW, 'hooks.late={use="./launched.py:EndsLate"}')
    wait_for(lambda: bool(records(run_dir, "epoch")))
    agent.send_signal(number)
    assert agent.wait(LIMIT) == code
    assert [end["reason"] for end in records(run_dir, "end")] == [f"{number.name} received"]
    assert "at its end" in {said["text"] for said in records(run_dir, "message")}


def test_a_rank_that_has_ended_well_is_not_aborted_while_its_interpreter_goes_down(
    launch: Launch, tmp_path: Path
) -> None:
    run_dir, agent = launch(f'hooks.aborts={{use="./launched.py:Aborts", args={{marks="{tmp_path}"}}}}')
    assert agent.wait(LIMIT) == 0
    assert [end["status"] for end in records(run_dir, "end")] == ["finished"]
    assert {path.name for path in tmp_path.glob("[01]")} == {"0", "1"}, "what is registered for the exit is done"


def test_a_second_ctrl_c_waits_for_nothing(launch: Launch) -> None:
    run_dir, agent = launch('hooks.hangs={use="./launched.py:Hangs"}')
    wait_for(lambda: any(said["text"] == "hangs" for said in records(run_dir, "message")))
    agent.send_signal(signal.SIGINT)
    wait_for(lambda: any(said["text"] == "hears" for said in records(run_dir, "message")))
    agent.send_signal(signal.SIGINT)
    assert agent.wait(LIMIT) == 130
    assert "at once" in records(run_dir, "end")[-1]["reason"]
    assert any(said["text"].startswith("SIGINT received: ") for said in records(run_dir, "message"))


def test_ranks_do_not_outlive_their_agent_and_nobody_resumes_beside_them(launch: Launch) -> None:
    run_dir, agent = launch("run.max_epochs=500", SLOW)
    wait_for(lambda: bool(records(run_dir, "epoch")))
    ranks = ranks_of(run_dir)
    agent.kill()
    with pytest.raises(UserError, match="is already running"):
        claim(run_dir)
    child_exit = ChildExit(run_dir, agent)
    assert follow(run_dir, io.StringIO(), child_exit=child_exit) == 143, "what is shown waits for the ranks' own end"
    psutil.wait_procs(ranks, timeout=LIMIT)
    (end,) = records(run_dir, "end")
    assert (end["exit"], end["reason"]) == (143, f"the launcher (process {agent.pid}) is gone")
    assert records(run_dir, "checkpoint")[-1]["it"] == end["it"]
    claim(run_dir)


@pytest.mark.parametrize("seconds", [0.3, 1.0, 2.5])
def test_ranks_do_not_outlive_an_agent_that_is_killed_while_they_start(launch: Launch, seconds: float) -> None:
    run_dir, agent = launch("run.max_epochs=500", SLOW)
    time.sleep(seconds)
    agent.kill()

    def left() -> list[psutil.Process]:
        found = psutil.process_iter(["cmdline"])
        return [process for process in found if str(run_dir.path) in (process.info["cmdline"] or ())]

    agent.wait()
    wait_for(lambda: not left(), "the ranks to end")
    release(claim(run_dir))


def test_a_rank_ends_whose_launcher_was_gone_before_it_looked(tmp_path: Path) -> None:
    loaded = load(CLOUDS, ("run.max_epochs=100000",))
    run_dir = RunDir.create(tmp_path / "runs", "clouds")
    prepare(loaded, compile_pipeline(loaded), run_dir, HERE)
    gone = 4194305  # more than any system has
    command = [sys.executable, "-P", "-m", "hookflow.runner", str(run_dir.path), "--agent", f"--launcher={gone}"]
    subprocess.run(command, timeout=LIMIT, check=False)
    (end,) = records(run_dir, "end")
    assert str(end["reason"]).startswith(f"the launcher (process {gone}) is gone")


def test_what_one_rank_raises_is_told_by_its_name_and_once(launch: Launch) -> None:
    run_dir, agent = launch('hooks.raises={use="./launched.py:Raises", args={rank=1, at=3}}')
    assert agent.wait(LIMIT) == 1
    (end,) = records(run_dir, "end")
    assert (end["exit"], end["reason"]) == (1, "rank 1: ValueError: as told")
    assert not records(run_dir, "error"), "rank 0 has made no mistake"
    assert records(run_dir, "error", rank=1)[0]["hook"] == "raises"
    printed = run_dir.output.read_text()
    assert printed.startswith("rank 1:\nTraceback (most recent call last):")
    assert printed.count("Traceback") == 1


def test_who_waits_until_the_timeout_says_in_which_hook_and_where_the_other_is(launch: Launch) -> None:
    stays = 'hooks.hang={use="./launched.py:Stays"}'
    means = 'hooks.ozm={use="./launched.py:Means", args={seconds=2.0}, after=["hang"]}'
    run_dir, agent = launch(f"distributed.timeout={LIMIT}", stays, means)
    assert agent.wait(LIMIT) == 1
    waits, stuck = 'in hook "ozm" at after_train_iter', 'rank 1 is in hook "hang" at after_train_iter'
    (end,) = records(run_dir, "end")
    assert end["reason"] == f"rank 0: waited 2 s for the others, {waits}; {stuck}"
    assert records(run_dir, "error")[0]["hook"] == "ozm"
    assert "run.mean(1.0)" in run_dir.output.read_text(), "the line of the user's that has waited"


def test_a_mistake_that_all_ranks_find_is_told_once(tmp_path: Path) -> None:
    mistaken = '--set=model.weights="nowhere.pt"'
    done = hookflow("run", str(CLOUDS), "--nproc=2", "--max-restarts=3", mistaken, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("nowhere.pt") == 2, "the message, and the line of the file"
    assert "Traceback" not in done.stdout + done.stderr
    assert len(list(tmp_path.glob("runs/*/*/run.json"))) == 1
