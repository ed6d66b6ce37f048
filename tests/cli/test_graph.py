"""`hookflow graph`: a pipeline drawn in each format, whole or one point of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hookflow.cli.app import app
from hookflow.errors import UserError
from hookflow.graph.plan import Plan
from tests.conftest import TOY
from tests.golden_files import check_golden


def graph(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["graph", str(TOY), *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_text_says_who_waits_for_whom_and_which_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = graph().split("\n")
    assert lines[0].startswith("toy: 8 hooks at ")
    assert any(line.endswith("late, every 2, after throughput (toy.toml:44)") for line in lines)


def test_the_shipped_pipelines_plan_is_golden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(Path(__file__).parents[2])
    drawn = CliRunner().invoke(app, ["graph", "pipelines/cifar.toml"], catch_exceptions=False).stdout
    check_golden("plan_cifar.txt", re.sub(r"(cifar\.toml):\d+", r"\1:LINE", drawn))


def test_one_point_is_drawn_alone() -> None:
    lines = graph("--point", "after_val").split("\n")
    assert lines[0] == "toy: 4 hooks at 1 point"
    assert [line.split()[-1] for line in lines if "around_val" in line] == ["exit"]


@pytest.mark.parametrize(
    ("point", "said"),
    [("after_vall", 'did you mean "after_val"?'), ("before_run", "hooks fire at after_load_checkpoint, ")],
)
def test_a_point_without_hooks_is_told(point: str, said: str) -> None:
    with pytest.raises(UserError, match=r"no hook fires|there is no point") as caught:
        graph("--point", point)
    assert said in str(caught.value)


def test_json_is_the_plan() -> None:
    whole = Plan.from_json(json.loads(graph("--format", "json")))
    assert [hook.name for hook in whole.hooks][:2] == ["accuracy", "clip"]
    one = Plan.from_json(json.loads(graph("--format", "json", "--point", "after_val")))
    assert one.bindings == whole.at("after_val")
    assert one.edges == whole.edges_at("after_val")


@pytest.mark.parametrize(("name", "begins"), [("mermaid", "flowchart TB\n"), ("dot", 'digraph "toy" {\n')])
def test_other_programs_formats_can_be_written_to_a_file(name: str, begins: str, tmp_path: Path) -> None:
    out = tmp_path / "drawn"
    assert graph("--format", name, "--out", str(out)) == ""
    assert out.read_text() == graph("--format", name)
    assert out.read_text().startswith(begins)


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        graph("--out", str(tmp_path / "no" / "such" / "folder"))
