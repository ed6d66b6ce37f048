"""`torchrun … -m hookflow run`: every process is a rank of one run, and the first speaks for all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest
from torch.distributed import HashStore

from hookflow.cli import ranked
from hookflow.events.rundir import RunDir
from hookflow.runner.ranks import Ranks
from tests.distributed.several import free_port
from tests.distributed.test_launch import CLOUDS, dies, records

QUIET = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": "1"}


def torchrun(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=QUIET, stdout=pipe, stderr=pipe, text=True)


def only_run(folder: Path) -> RunDir:
    (identity,) = folder.glob("runs/*/*/run.json")
    return RunDir(identity.parent)


def test_ranks_that_torchrun_starts_again_go_on_in_the_run_of_before(tmp_path: Path) -> None:
    kill = f"--set={dies('once', tmp_path / 'once', 14)}"
    many = ("--standalone", "--nproc-per-node=2", "--max-restarts=1")
    with torchrun(tmp_path, *many, "-m", "hookflow", "run", str(CLOUDS), "--set=run.max_epochs=5", kill) as launcher:
        printed, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, printed + errors
    run_dir = only_run(tmp_path)
    first, second = records(run_dir, "run")
    assert (first["resumed_from"], second["resumed_from"] is not None) == (None, True)
    assert [end["exit"] for end in records(run_dir, "end")] == [0], "a restart is no end"
    assert printed.count("status=finished") == 1, "the first rank alone shows anything"
    assert "Traceback" not in printed + errors


def test_two_machines_see_one_run_directory(tmp_path: Path) -> None:
    meeting = (
        f"--rdzv-endpoint=localhost:{free_port()}",
        "--rdzv-backend=c10d",
        "--rdzv-id=two",
        "--local-addr=localhost",
    )
    command = ("--nnodes=2", "--nproc-per-node=1", *meeting, "-m", "hookflow", "run", str(CLOUDS), "--ui=json")
    with torchrun(tmp_path, *command) as one, torchrun(tmp_path, *command) as other:
        printed = [machine.communicate(timeout=120) for machine in (one, other)]
    assert [one.returncode, other.returncode] == [0, 0], printed
    first, second = sorted((said for said, _ in printed), key=len)
    assert not first, "the second rank shows nothing"
    run_dir = only_run(tmp_path)
    assert [record["exit"] for record in map(json.loads, second.splitlines()) if record["k"] == "end"] == [0]
    assert {records(run_dir, "run", rank)[0]["rank"] for rank in (0, 1)} == {0, 1}


def test_a_mistake_is_told_by_one_rank(tmp_path: Path) -> None:
    command = ("--standalone", "--nproc-per-node=2", "-m", "hookflow", "run", str(CLOUDS), "--detach", "--in-process")
    with torchrun(tmp_path, *command) as launcher:
        _, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 1
    for option in ("--detach", "--in-process"):
        assert errors.count(f"{option}: cannot be given here: torchrun has started this process") == 1
    assert not (tmp_path / "runs").exists()


def test_a_machine_that_does_not_see_the_run_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = RunDir.create(tmp_path, "clouds")
    run_dir.sign(id=run_dir.id)
    store = HashStore()
    monkeypatch.setattr(ranked.socket, "gethostname", lambda: "far")
    found: list[set[str]] = []
    elsewhere = RunDir(tmp_path / "elsewhere" / run_dir.id)
    far = Thread(target=lambda: found.append(ranked._blind(store, elsewhere, Ranks(1, 2, 0))))
    far.start()
    found.append(ranked._blind(store, run_dir, Ranks(0, 2, 0)))
    far.join()
    assert found == [{"far"}, {"far"}]


def test_a_restarted_rank_finds_the_run_of_its_own_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [RunDir(tmp_path / "clouds" / f"20260101-00000{k}-aaaa") for k in range(4)]
    launches = [["", "here 7 100"], ["mine", "there 9 100"], ["", "here 8 100"], ["theirs", "there 1 1"]]
    for run_dir, launch in zip(runs, launches, strict=True):
        run_dir.path.mkdir(parents=True)
        run_dir.sign(launch=launch)
    for identity, wanted in ((("", "here 7 100"), 0), (("mine", "elsewhere 3 3"), 1), (("", "here 8 100"), 2)):
        monkeypatch.setattr(ranked, "identity", lambda identity=identity: identity)
        assert ranked._of_this_launch(tmp_path) == runs[wanted]
    monkeypatch.setattr(ranked, "identity", lambda: ("", "here 7 101"))
    with pytest.raises(ranked.UserError, match=r"no run in .* is the one from before"):
        ranked._of_this_launch(tmp_path)
