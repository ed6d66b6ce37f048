"""`torchrun … -m hookflow run`: every process is a rank of one run, and the first speaks for all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest
from torch.distributed import HashStore, TCPStore

from hookflow.cli import torchrun as rank_commands
from hookflow.events.rundir import RunDir
from hookflow.runner.distributed.rendezvous import Ranks
from tests.conftest import hookflow_here
from tests.distributed.conftest import CLOUDS
from tests.distributed.several import records_of
from tests.distributed.test_launch import dies
from tests.limits import LIMIT

QUIET = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": "1"}


def torchrun(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=QUIET, stdout=pipe, stderr=pipe, text=True)


def test_the_ranks_of_two_machines_share_a_run_and_go_on_in_it_when_they_are_started_again(tmp_path: Path) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    endpoint = f"--rdzv-endpoint=127.0.0.1:{store.port}"
    meeting = ("--rdzv-backend=c10d", endpoint, "--rdzv-conf=is_host=0", "--rdzv-id=two")
    machines = ("--nnodes=2", "--nproc-per-node=1", "--local-addr=localhost", "--max-restarts=1", *meeting)
    options = ("--ui=json", f"--set={dies('once', tmp_path / 'once', 8)}")
    command = (*machines, "-m", "hookflow", "run", str(CLOUDS), *options)
    with torchrun(tmp_path, *command) as one, torchrun(tmp_path, *command) as other:
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
    assert {record["rank"] for record in shown if record["k"] == "run"} == {0}, "the first rank alone shows anything"
    assert len([record for record in shown if record["k"] == "end"]) == 1
    assert not any("Traceback" in errors for _, errors in printed)


def test_a_mistake_is_told_by_one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = HashStore()
    monkeypatch.setattr(rank_commands, "rendezvous", lambda ranks, seconds: talk)
    monkeypatch.setattr(rank_commands, "store", lambda seconds: HashStore())
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        done = hookflow_here("run", str(CLOUDS), "--detach", "--in-process", cwd=tmp_path)
        assert done.returncode == 2
        for option in ("--detach", "--in-process"):
            expected = f"{option}: cannot be given here: torchrun has started this process"
            assert done.stderr.count(expected) == (rank == 0)
    assert not (tmp_path / "runs").exists()


def test_a_machine_that_does_not_see_the_run_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = RunDir.create(tmp_path, "clouds")
    run_dir.sign(id=run_dir.id)
    store = HashStore()
    monkeypatch.setattr(rank_commands.socket, "gethostname", lambda: "far")
    result: list[set[str]] = []
    elsewhere = RunDir(tmp_path / "elsewhere" / run_dir.id)
    far = Thread(target=lambda: result.append(rank_commands._blind(store, elsewhere, Ranks(1, 2, 0))))
    far.start()
    result.append(rank_commands._blind(store, run_dir, Ranks(0, 2, 0)))
    far.join()
    assert result == [{"far"}, {"far"}]


def test_ranks_started_again_without_their_store_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_commands, "store", lambda seconds: HashStore())
    talk = HashStore()
    with pytest.raises(rank_commands.UserError, match="its store has forgotten of which run"):
        rank_commands._lead(talk, lambda: RunDir.create(tmp_path, "clouds"), restarted=True)
    assert json.loads(talk.get("run")) is None, "the others do not wait"
