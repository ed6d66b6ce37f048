"""Which face `hookflow run` chooses by itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hookflow.cli.run import UI, _chosen
from tests.conftest import hookflow_here
from tests.monitor.fake_run import make


class Stream:
    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(
    ("absent", "environment", "expected"),
    [
        (None, {"TERM": "xterm"}, "tui"),
        ("stdin", {"TERM": "xterm"}, "plain"),
        ("stdout", {"TERM": "xterm"}, "plain"),
        ("stderr", {"TERM": "xterm"}, "plain"),  # the dashboard is painted there
        (None, {"TERM": "dumb"}, "plain"),
        (None, {"TERM": "xterm", "CI": "true"}, "plain"),
    ],
)
def test_the_dashboard_needs_a_whole_terminal(
    monkeypatch: pytest.MonkeyPatch, absent: str | None, environment: dict[str, str], expected: UI
) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, Stream(name != absent))
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    assert _chosen("auto") == expected
    assert _chosen("json") == "json"


def test_a_replay_needs_one_too(tmp_path: Path) -> None:
    run = make(tmp_path / "runs", upto=60)
    done = hookflow_here("watch", "cifar", "--replay", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "a replay needs a terminal" in done.stderr
    assert f"hookflow watch {run.id} --ui plain" in done.stderr
