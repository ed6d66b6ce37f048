"""`check` finds a module exactly where `run` does: in the current folder neither of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import circle, hookflow

PIPELINE = circle("max_iters = 1", "threads = 1") + '[hooks.report]\nuse = "reports:Report"\n'


def test_check_and_run_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p.toml").write_text(PIPELINE)
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    (tmp_path / "reports.py").write_text("class Report:\n    def after_run(self): ...\n")
    missing = [hookflow(*command, cwd=tmp_path) for command in (("check", "p.toml"), ("run", "p.toml", "--ui=plain"))]
    assert [done.returncode for done in missing] == [2, 2]
    assert missing[0].stderr == missing[1].stderr
    assert 'there is no module "reports"\n' in missing[0].stderr
    (tmp_path / "json.py").unlink()
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    monkeypatch.setenv("PYTHONPATH", path)
    done = hookflow("run", "p.toml", "--ui=plain", cwd=tmp_path)  # which checks it first
    assert done.returncode == 0, done.stderr
