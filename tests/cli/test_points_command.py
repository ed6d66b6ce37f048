"""`hookflow points`: every point, nested, with what it offers and who fires there."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hookflow.cli.app import app
from hookflow.graph.points import POINTS
from tests.conftest import TOY
from tests.golden_files import check_golden


def points(*arguments: str, columns: int = 80) -> str:
    environment = {"COLUMNS": str(columns)}
    result = CliRunner().invoke(app, ["explain", "points", *arguments], env=environment, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_list_is_golden_and_fits_a_small_terminal() -> None:
    drawn = points()
    assert max(map(len, drawn.splitlines())) <= 80
    check_golden("points.txt", drawn)


def test_every_point_has_a_line_of_its_own_where_there_is_room() -> None:
    lines = points(columns=180).splitlines()
    every = list(POINTS)
    for line, point in zip(lines[: len(every)], every, strict=True):
        assert line.split()[0] == point.name
        assert point.about in line
        assert len(line) - len(line.lstrip()) == 2 * point.depth
        assert all(argument in line for argument in point.offers[1:])


def test_a_pipelines_hooks_stand_at_their_points_in_their_order() -> None:
    lines = points(str(TOY), columns=140).splitlines()
    at = next(k for k, line in enumerate(lines) if line.strip().startswith("after_train_iter"))
    assert lines[at + 1].strip() == "▸ throughput → log (every 2)"
    val = next(k for k, line in enumerate(lines) if line.strip().startswith("after_val "))
    assert "exit ema → early_stop → checkpoint" in lines[val + 1]


def test_a_pipelines_own_points_are_among_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = '\n[points.after_dense]\nfollows = "after_train_iter"\noffers = ["count"]\nabout = "points were split"\n'
    (tmp_path / "p.toml").write_text(TOY.read_text() + own)
    (tmp_path / "toy.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert "      after_dense +  " in points("p.toml", columns=140)
    assert "points were split  [count]\n" in points("p.toml", columns=140)
