"""What holds for every command: it explains itself, it answers a wrong file in words, and it waits for no torch."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from hookflow import __version__
from hookflow.cli.app import app, main
from tests.conftest import hookflow
from tests.limits import LIMIT

COMMANDS = typer.main.get_group(app).commands

PIPELINE = """\
[run]
name = "p"
default_hooks = false
max_iters = 10
[model]
use = "torch.nn:Flatten"
[optimizer]
use = "torch.optim:SGD"
[data.train]
use = "cifar10"
[hooks.ema]
use = "ema"
[hooks.log]
use = "log"
"""

ASKED = {
    "check": ["p.toml"],
    "graph": ["p.toml"],
    "why": ["ema", "log", "p.toml"],
    "diff": ["p.toml", "p.toml"],
    "explain": ["hooks.ema.args.decay"],
    "new": ["pipeline", "mine"],
    "runs": [],
}
"""What a command that only looks is asked; the others train, or play."""

WRONG = {
    "run": ["wrong.toml"],
    "check": ["wrong.toml"],
    "graph": ["wrong.toml"],
    "why": ["a", "b", "wrong.toml"],
    "diff": ["wrong.toml", "wrong.toml"],
    "explain": ["run.wrong"],
    "new": ["hook", "wrong-name"],
    "stop": ["wrong"],
    "show": ["wrong"],
    "export": ["wrong"],
    "watch": ["wrong"],
    "checkpoints": ["wrong"],
    "val": ["wrong"],
    "test": ["wrong:best"],
    "predict": ["wrong:best"],
}
"""What a command is asked of a file or a run that is not there."""


def test_the_version_is_told(tmp_path: Path) -> None:
    told = hookflow("--version", cwd=tmp_path)
    assert told.returncode == 0
    assert told.stdout.startswith(f"hookflow {__version__} (Python 3.")
    assert version("torch") in told.stdout


def test_help_is_one_screen_in_which_each_command_has_one_line() -> None:
    lines = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).stdout.splitlines()
    assert len(lines) <= 45
    for name, command in COMMANDS.items():
        first = inspect.cleandoc(command.help or "").partition("\n")[0]
        assert any(name in line.split() and first in line for line in lines), name


def test_output_that_nobody_reads_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m hookflow explain schema | head -1"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT)
    assert (done.stdout, done.stderr) == ("{\n", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_it_explains_itself(name: str) -> None:
    command = COMMANDS[name]
    first = inspect.cleandoc(command.help or "").partition("\n")[0]
    assert first.endswith(".")
    assert len(first) <= 80
    assert all(getattr(parameter, "help", "") for parameter in command.params), "an option says nothing of itself"
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "80"})
    assert shown.exit_code == 0
    assert first in " ".join(shown.stdout.split())


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"runs"}))
def test_what_is_not_there_is_told_in_words(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hookflow", name, *WRONG[name]])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr()
    assert (end.value.code, said.out) == (2, "")
    assert "wrong" in said.err or "there are no runs" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("name", [*ASKED, "--help"])
def test_it_waits_for_no_torch(name: str, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(PIPELINE)
    code = (
        "import sys; from hookflow.cli.app import main\n"
        f"sys.argv = ['hookflow', {name!r}, *{ASKED.get(name, [])!r}]\n"
        "try: main()\nexcept SystemExit as end: assert not end.code, end.code\n"
        "print([name for name in ('torch', 'textual', 'numpy') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout.endswith("[]\n")


def test_every_command_is_asked() -> None:
    assert ASKED.keys() | WRONG.keys() == COMMANDS.keys()
