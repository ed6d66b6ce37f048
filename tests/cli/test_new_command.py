"""`hookflow new`: what it writes passes `check` and trains at once, and writes over nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from hookflow.errors import UserError
from tests.cli.conftest import invoke
from tests.conftest import hookflow_here
from tests.limits import LIMIT
from tests.processes import Spawned

pytestmark = pytest.mark.usefixtures("here")


def new(*arguments: str) -> str:
    return invoke("new", *arguments)


def test_a_pipeline_passes_check_and_trains(here: Path) -> None:
    printed = new("pipeline", "spirals")
    assert printed.splitlines()[0] == "wrote spirals.py, spirals.toml"
    assert "hookflow run spirals.toml" in printed
    checked = hookflow_here("check", "spirals.toml", "--strict", cwd=here)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    own_task = "--set=task.use=./spirals.py:step"
    options = (own_task, "--set=run.max_epochs=3", "--set=run.threads=1", "--in-process")
    trained = hookflow_here("run", "spirals.toml", *options, cwd=here)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    shown = hookflow_here("show", cwd=here).stdout
    assert "finished" in shown
    accuracy = next(line.split()[2] for line in shown.splitlines() if line.split()[:1] == ["accuracy"])
    assert float(accuracy) > 0.9
    assert "best,last" in shown


@pytest.mark.parametrize("name", ["myCLASS", "NAME_of_it", "path", "simple_namespace"])
def test_a_name_that_the_template_has_too_names_one_class(here: Path, name: str) -> None:
    use = new("hook", name).partition('use = "')[2].partition('"')[0]
    (written,) = (node for node in ast.parse(Path(f"{name}.py").read_text()).body if isinstance(node, ast.ClassDef))
    imported = [
        (node.module, alias.name)
        for node in ast.parse(Path(f"test_{name}.py").read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert imported == [(name, written.name)]
    assert use == f"./{name}.py:{written.name}"


def test_a_hook_comes_with_a_pipeline_and_a_test_that_passes(here: Path) -> None:
    printed = new("hook", "weight_norm")
    assert printed.splitlines()[0] == "wrote weight_norm.py, weight_norm.toml, test_weight_norm.py"
    assert 'use = "./weight_norm.py:WeightNorm"' in printed
    checked = hookflow_here("check", "weight_norm.toml", "--strict", cwd=here)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_weight_norm.py"]
    with Spawned(command, cwd=here, stdout=subprocess.PIPE, text=True) as tested:
        printed, _ = tested.communicate(timeout=LIMIT)
    assert tested.returncode == 0, printed
    assert "2 passed" in printed


def test_nothing_is_overwritten(here: Path) -> None:
    (here / "kept").mkdir()  # a folder of that name hides nothing
    new("hook", "kept")
    before = {path.name: path.read_text() for path in here.glob("*.*")}
    (here / "kept.toml").unlink()
    with pytest.raises(UserError) as raised:
        new("pipeline", "kept")
    assert [str(problem.where) for problem in raised.value.problems] == ["kept.py"]
    del before["kept.toml"]
    assert {path.name: path.read_text() for path in here.glob("*.*")} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pipeline", "my-net"), '"my-net" cannot be a name'),
        (("pipeline", "../up"), '"../up" cannot be a name'),
        (("hook", "class"), '"class" cannot be a name'),
        (("pipeline", "random"), "would hide it"),
        (("hook", "torch"), "would hide it"),
        (("hook", "ema"), "a built-in hook"),
    ],
)
def test_a_name_that_cannot_be_one_is_refused(arguments: tuple[str, ...], message: str, here: Path) -> None:
    with pytest.raises(UserError, match=message):
        new(*arguments)
    assert not [*here.iterdir()]
