"""A process that stands by imports torch while the pipeline is checked, and trains or leaves."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from hookflow.runner.process.launch import Standby, start
from tests.conftest import NewRun, records, wait_for


@pytest.mark.usefixtures("interpreters")
def test_it_trains_the_run_that_it_is_sent(new_run: NewRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has printed before is in the output of the run."""
    (tmp_path / "sitecustomize.py").write_text("print('early')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run_dir = new_run("run.max_epochs=1", "hooks.print={use='builtins:print', args=['hello'], points=['before_run']}")
    with closing(Standby()) as standby:
        child = start(run_dir, standby=standby)
    assert child.wait() == 0
    assert records(run_dir, "end")
    assert run_dir.describe()["pid"] == child.pid
    assert run_dir.output.read_text() == "early\nhello\n"


def test_it_ends_where_the_pipeline_is_wrong() -> None:
    with closing(Standby()) as standby:
        process = psutil.Process(standby._process.pid)
        assert process.is_running()
    assert not process.is_running()


def test_it_leaves_with_its_parent() -> None:
    source = """
from hookflow.runner.process.launch import Standby
print(Standby()._process.pid, flush=True)
input()
"""
    parent = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    process = psutil.Process(int(parent.stdout.readline()))
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    wait_for(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
