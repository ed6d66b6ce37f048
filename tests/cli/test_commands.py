"""What holds for every command: it explains itself, it answers a wrong file in words, and it waits for no torch."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer.main

from hookflow import __version__
from hookflow.cli.app import app
from tests.cli.conftest import SMALL, invoke
from tests.conftest import hookflow_here
from tests.limits import LIMIT

COMMANDS = typer.main.get_group(app).commands

PIPELINE = SMALL + '[hooks.ema]\nuse = "ema"\n[hooks.log]\nuse = "log"\n'

ASKED = {
    "--help": [],
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


def test_the_version_is_told() -> None:
    told = invoke("--version")
    assert told.startswith(f"hookflow {__version__} (Python 3.")
    assert version("torch") in told


def test_help_is_one_screen_in_which_each_command_has_one_line() -> None:
    lines = invoke("--help", columns=80).splitlines()
    assert len(lines) <= 45
    for name, command in COMMANDS.items():
        first = inspect.cleandoc(command.help or "").partition("\n")[0]
        assert any(name in line.split() and first in line for line in lines), name


def test_output_that_nobody_reads_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m hookflow explain schema | head -1"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT)
    assert (done.stdout, done.stderr) == ("{\n", "")


def test_every_command_explains_itself() -> None:
    for name, command in COMMANDS.items():
        first = inspect.cleandoc(command.help or "").partition("\n")[0]
        assert first.endswith(".")
        assert len(first) <= 80
        assert all(getattr(parameter, "help", "") for parameter in command.params), f"an option of {name} is not told"
        assert first in " ".join(invoke(name, "--help", columns=80).split())


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"runs"}))
def test_what_is_not_there_is_told_in_words(name: str) -> None:
    done = hookflow_here(name, *WRONG[name], cwd=Path.cwd())
    assert (done.returncode, done.stdout) == (2, "")
    assert "wrong" in done.stderr or "there are no runs" in done.stderr
    assert "Traceback" not in done.stderr


def test_they_wait_for_no_torch(tmp_path: Path) -> None:
    """None of them imports what the others did not, since one process calls all of them."""
    (tmp_path / "p.toml").write_text(PIPELINE)
    code = (
        "import sys; from hookflow.cli.app import main\n"
        f"for line in {[*([name, *rest] for name, rest in ASKED.items()), ['check', 'p.toml', '--no-import']]!r}:\n"
        "    sys.argv = ['hookflow', *line]\n"
        "    try: main()\n"
        "    except SystemExit as end: assert not end.code, line\n"
        "    absent = ('torch', 'textual', 'numpy', 'networkx') + ('pydantic',) * (line[0] == '--help')\n"
        "    loaded = [name for name in absent if name in sys.modules]\n"
        "    assert not loaded, (line, loaded)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)


def test_every_command_is_asked() -> None:
    assert ASKED.keys() - {"--help"} | WRONG.keys() == COMMANDS.keys()
