"""The command line in this process, and what it is called with: a folder, a small pipeline,
a run that has ended.
"""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hookflow.cli.app import app
from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from tests.conftest import TESTS, circle, hookflow_here, train_toy

SMALL = circle("default_hooks = false", "max_iters = 10").replace(
    "hookflow.zoo.circle:Net", "torch.nn:Flatten"
)
"""A pipeline without hooks, which nothing trains."""

HEAD = f"""\
# A pipeline of mine.
[run]
name = "mine"
max_epochs = 3
default_hooks = false
threads = 1
device = "cpu"
[model]
use = "{TESTS}/support/toy.py:Net"
[optimizer]
use = "torch.optim:SGD"
args = {{ lr = 0.1, momentum = 0.9 }}
[data.train]
use = "{TESTS}/support/toy.py:Points"
[data.val]
use = "{TESTS}/support/toy.py:Points"
args = {{ split = 1, examples = 16 }}
"""
"""A pipeline without hooks that trains quickly."""


def invoke(*arguments: object, code: int = 0, columns: int = 100) -> str:
    """Return what a command prints to stdout, and check its exit code. A UserError is raised."""
    environment = {"COLUMNS": str(columns)}
    result = CliRunner().invoke(
        app, [*map(str, arguments)], env=environment, catch_exceptions=False
    )
    assert result.exit_code == code, result.output
    return result.stdout


def refused(*arguments: object, columns: int = 100) -> str:
    """Return what a command line is refused with: each mistake, and its hint below it."""
    with pytest.raises(UserError) as raised:
        invoke(*arguments, columns=columns)
    return str(raised.value)


def called(*arguments: str) -> tuple[int, str]:
    """Return the exit code of a command line and all that it prints, which is no traceback."""
    done = hookflow_here(*arguments, cwd=Path.cwd())
    text = done.stdout + done.stderr
    assert "Traceback" not in text, (arguments, text)
    return done.returncode, text


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, an empty one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs with one of the toy pipeline: two epochs, a test,
    and a command in its log.
    """
    keeps = "hooks.checkpoint.args={monitor='accuracy', keep=2, top=2}"
    run = train_toy(tmp_path_factory.mktemp("trained"), "run.max_epochs=2", "run.test=true", keeps)
    run.commands.write_text('{"id":"01234567","cmd":"pause","t":1.0,"by":"me"}\n')
    return run.path.parents[1]


@pytest.fixture
def run(trained: Path, here: Path) -> RunDir:
    """A copy of the run that has ended, in the current folder."""
    shutil.copytree(trained, here / "runs", symlinks=True)
    return RunDir(next((here / "runs").glob("*/*")))
