"""The tutorial, as a newcomer runs it: its functions are called when and in the order that it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import hookflow, records
from tests.end_to_end.test_run import only_run

HELLO = Path(__file__).parents[2] / "pipelines" / "hello.toml"


def test_the_tutorial(tmp_path: Path) -> None:
    done = hookflow("run", str(HELLO), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    printed = [line.removeprefix("output     | ") for line in lines if line.startswith("output ")]
    assert printed[:4] == ["hello", "world", "  socks", "  shoes"]
    assert printed[-3:] == ["  shoes", "  socks", "goodbye"]
    between = printed[4:-3]
    assert between.count("two more epochs are done") == 2
    accuracies = [record["v"]["accuracy"] for record in records(only_run(tmp_path), "metrics")]  # type: ignore[index]
    assert between.count("that went well") == sum(accuracy > 0.9 for accuracy in accuracies) > 0
    assert any("SYNTHETIC" in line for line in lines[-8:])
    assert not done.stderr


def test_what_a_hook_prints_is_seen_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there when the process is killed a moment later."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    watchers = Path(__file__).parents[1] / "watchers.py"
    args = f'{{mark="{tmp_path / "mark"}", point="after_backward", at=3, number=9}}'
    strike = f'--set=hooks.strike={{use="{watchers}:Interrupts", args={args}, points=["after_backward"]}}'
    done = hookflow("run", str(HELLO), strike, "--ui=none", cwd=tmp_path)
    assert done.returncode != 0
    assert only_run(tmp_path).output.read_text().splitlines() == ["hello", "world", "  socks", "  shoes"]
