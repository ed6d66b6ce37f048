"""What the README and the tutorial show works as it stands there,
and so do the shipped pipelines.
"""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hookflow.cli.app import app
from hookflow.pipeline.registry import HOOKS
from tests.conftest import hookflow, hookflow_here, records, strikes
from tests.support.golden_files import check_cases
from tests.support.limits import LIMIT
from tests.support.processes import Spawned
from tests.support.run_results import only_run

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")


def block(marker: str) -> str:
    """Return the code block that begins with the marker."""
    (result,) = re.findall(rf"```\w+\n({re.escape(marker)}\n.*?)```", README, re.DOTALL)
    return str(result)


def test_the_pipeline_and_the_hook_run_as_they_stand(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(block("# mine.toml") + block("[hooks.weight_norm]"))
    (tmp_path / "net.py").write_text(block("# net.py"))
    (tmp_path / "norm.py").write_text(block("# norm.py"))
    done = hookflow_here("check", "mine.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = hookflow("run", "mine.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    run = only_run(tmp_path)
    logged = {name for record in records(run, "scalars") for name in record["v"]}  # type: ignore[attr-defined]
    assert {"loss", "lr", "grad_norm", "weight_norm"} <= logged
    assert records(run, "metrics")[-1]["v"]["accuracy"] > 0.9  # type: ignore[index]


def test_the_python_runs_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(block("# mine.toml"))
    (tmp_path / "net.py").write_text(block("# net.py"))
    command = [sys.executable, "-c", block("import hookflow")]
    with Spawned(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as child:
        _, errors = child.communicate(timeout=LIMIT)
    assert (child.returncode, errors) == (0, "")
    assert records(only_run(tmp_path), "end")[0]["status"] == "finished"


def test_the_data_can_be_shared_out_among_ranks_as_is_promised() -> None:
    data = tomllib.loads(block("# mine.toml"))["data"]
    assert all("loader" in split for split in data.values()), (
        "a DataLoader that is given ready-made cannot be"
    )


def test_every_hook_that_comes_with_it_is_listed() -> None:
    (listed,) = re.findall(r"^## Built-in hooks\n(.*?)^## ", README, re.MULTILINE | re.DOTALL)
    rows = [
        cell
        for row in re.findall(r"^\| \w+ \| (.*?) \|", listed, re.MULTILINE)
        for cell in re.findall(r"`(\w+)`", row)
    ]
    assert sorted(rows) == sorted(HOOKS.built_in)


def test_why_answers_as_it_is_printed() -> None:
    asked = [
        shlex.split(command)
        for command in re.findall(r"`hookflow (why [a-z]\S* [a-z][^`]*)`", README)
    ]
    assert asked
    for arguments in asked:
        done = hookflow_here(*arguments, cwd=Path(__file__).parents[2])
        assert done.returncode == 0, done.stderr
        assert f" fires before {arguments[2]}\n" in done.stdout


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


def test_what_a_hook_prints_is_seen_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there when the process is killed a moment later."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    kill = strikes(tmp_path, 9, ("after_backward", 3))[0]
    done = hookflow("run", str(HELLO), f"--set={kill}", "--ui=none", cwd=tmp_path)
    assert done.returncode != 0
    assert only_run(tmp_path).output.read_text().splitlines() == [
        "hello",
        "world",
        "  socks",
        "  shoes",
    ]


ROOT = Path(__file__).parents[2]
SHIPPED = sorted(path.stem for path in (ROOT / "pipelines").glob("*.toml"))


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments], env={"COLUMNS": "80"}, catch_exceptions=False)
    assert result.exit_code == 0, result.stdout
    return result.stdout


@pytest.mark.parametrize("name", SHIPPED)
def test_check_strict_has_nothing_to_say(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert "ambiguous" not in printed("check", "--strict", f"pipelines/{name}.toml")


# Whose plan is drawn with all that can be drawn.
def test_their_plans_are_golden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names = sorted({*SHIPPED} - {"cifar"})
    check_cases("plans.txt", {name: [printed("graph", f"pipelines/{name}.toml")] for name in names})
