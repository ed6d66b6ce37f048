"""What `--nproc` is told before anything starts."""

from __future__ import annotations

import os

import pytest

from hookflow.cli.run import _number_of


@pytest.mark.parametrize(
    ("cores", "wanted", "said"),
    [
        (2, "4", ""),
        (2, "5", "warning: 5 ranks share 2 cores\n"),
        (1, "100", "warning: 100 ranks share 1 core\n"),
    ],
)
def test_ranks_that_crowd_the_cores_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cores: int, wanted: str, said: str
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
    assert _number_of(wanted) == int(wanted)
    assert capsys.readouterr().err == said
