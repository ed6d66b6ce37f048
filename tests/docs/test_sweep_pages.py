"""The pages about sweeps and Slurm: their files, commands and scripts work as they stand there."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import hookflow
from tests.conftest import hookflow as command

DOCS = Path(__file__).parents[2] / "docs"
PIPELINE = DOCS.parent / "pipelines" / "hello.toml"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline in an empty folder."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.toml"
    file.write_text(f'extends = "{PIPELINE}"\n[run]\nthreads = 1\nmax_epochs = 1\n[hooks.accuracy]\nuse = "accuracy"\n')
    return file


def test_the_tables_of_the_page_are_sweeps(mine: Path) -> None:
    head, tables = mine.read_text(), blocks("sweeps.md", "toml")
    for table in tables:
        mine.write_text(head + table)
        assert hookflow.load(mine).loaded.pipeline.sweep is not None
    mine.write_text(head + tables[0].replace("[0, 1, 2]", "[0]"))
    done = command("sweep", "mine.toml", cwd=mine.parent)
    assert done.returncode == 0, done
    assert len(hookflow.runs()) == 2


def test_a_study_of_optuna_trains_in_this_process(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    code, _ = blocks("sweeps.md", "python")
    Path("study.py").write_text(code)
    runpy.run_path("study.py")
    assert "{'lr': " in capsys.readouterr().out
    assert len({run.config["optimizer"]["args"]["lr"] for run in hookflow.runs()}) == 3


@pytest.mark.long
def test_trials_of_ray_train_and_report(mine: Path) -> None:
    pytest.importorskip("ray.tune", reason="needs ray[tune]")
    _, code = blocks("sweeps.md", "python")
    Path("study.py").write_text(code)
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AIR_NEW_OUTPUT": "0"}
    done = subprocess.run([sys.executable, "study.py"], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    trials = {run.config["optimizer"]["args"]["lr"]: run.best["accuracy"] for run in hookflow.runs()}
    assert len(trials) == 2
    assert f"{{'lr': {max(trials, key=trials.__getitem__)}}}" in done.stdout


def test_a_job_of_slurm_resumes_what_it_has_begun(mine: Path) -> None:
    """`srun` and `hookflow` are replaced by a script that prints the command; the rest is bash and the page."""
    job, several = blocks("slurm.md", "bash")
    Path("job.sh").write_text(job)
    tools = mine.parent / "tools"
    tools.mkdir()
    (tools / "srun").write_text('#!/bin/bash\necho "$@"\n')
    (tools / "srun").chmod(0o755)
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}

    def submitted() -> list[str]:
        return subprocess.check_output(["bash", "job.sh"], env=environment, text=True).split()

    first = submitted()
    assert first[:3] == ["hookflow", "run", "pipelines/cifar.toml"]
    done = command("run", "mine.toml", *first[3:], cwd=mine.parent)
    assert done.returncode == 0, done
    again = submitted()
    assert [word for word in again if word not in first] == ["--resume"]
    done = command("run", "mine.toml", *again[3:], cwd=mine.parent)
    assert "nothing is left to do" in done.stderr
    subprocess.run(["bash", "-n"], input=several, text=True, check=True, env=os.environ)
