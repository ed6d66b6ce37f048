"""What holds for every pipeline in `pipelines/`: `check --strict` has nothing to say, and its plan is golden."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hookflow.cli.app import app
from tests.golden_files import check_golden

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(path.stem for path in (ROOT / "pipelines").glob("*.toml"))


def hookflow(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments], env={"COLUMNS": "80"}, catch_exceptions=False)
    assert result.exit_code == 0, result.stdout
    return result.stdout


@pytest.mark.parametrize("name", SHIPPED)
def test_check_strict_has_nothing_to_say(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert "ambiguous" not in hookflow("check", "--strict", f"pipelines/{name}.toml")


@pytest.mark.parametrize("name", sorted({*SHIPPED} - {"cifar"}))  # whose plan is drawn with all that can be drawn
def test_its_plan_is_golden(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    check_golden(f"plan_{name}.txt", hookflow("graph", f"pipelines/{name}.toml"))
