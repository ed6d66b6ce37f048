"""No text that a command prints controls the terminal: names, docstrings, values, metrics, paths, exceptions."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hookflow.cli.app import app
from hookflow.cli.output import STYLE
from hookflow.errors import UserError
from hookflow.events.log import Appender
from hookflow.events.rundir import RunDir
from hookflow.excerpt import CONTROL
from tests.conftest import hookflow, hookflow_here
from tests.monitor.fake_run import make

EVIL = "ev\x1b[2Jil\x1b]0;title\x07 \u202etxet\u2066 \x9b31m\u2028\x7f"
IN_TOML = json.dumps(EVIL).replace("\x7f", "\\u007f")
HOOKS = f"""
class Mine:
    {EVIL!r}

    reads = ("ev\\x1b[31mil",)

    def __init__(self, text: str = {EVIL!r}) -> None: ...

    def after_val(self, run): ...

    def after_opened(self, run): ...


def raises(run):
    error = ValueError({EVIL!r})
    error.add_note({EVIL!r})
    raise error
"""
PIPELINE = f"""\
[run]
name = "p"
max_epochs = 1
[model]
use = "hookflow.zoo.circle:Net"
[optimizer]
use = "torch.optim:SGD"
[data.train]
use = "circle"
[data.val]
use = "circle"
args = {{ split = "val" }}
[points.after_opened]
follows = "after_val"
about = {IN_TOML}
[hooks.mine]
use = "./mine.py:Mine"
args = {{ text = {IN_TOML} }}
when = "loss > value({IN_TOML.replace(chr(34), chr(39))})"
[hooks.print]
use = "builtins:print"
args = {{ sep = {IN_TOML} }}
points = ["after_val"]
writes = ["ev\\u001b[31mil"]
"""


SHOWS_LITTLE = ("check p.toml", "graph p.toml", *(f"graph p.toml -f {kind}" for kind in ("boxes", "dot", "mermaid")))
"""Commands that do not print it, or have a way of their own to write a control character."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a pipeline and a hook that quote what would control a terminal."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(HOOKS)
    (tmp_path / "p.toml").write_text(PIPELINE.replace("when = ", "# when = "))
    (tmp_path / "q.toml").write_text(PIPELINE.replace("text = ", "other = ").replace("when = ", "# when = "))
    return tmp_path


def harmless(printed: str) -> str:
    assert not CONTROL.search(printed.replace("\n", "")), printed
    return printed


@pytest.mark.parametrize(
    "arguments",
    [
        "check p.toml",
        "check q.toml",
        "graph p.toml",
        "graph p.toml -f boxes",
        "graph p.toml -f dot",
        "graph p.toml -f mermaid",
        "graph p.toml -f svg",
        "graph p.toml -f html",
        "graph p.toml -f json",
        "hooks -p p.toml",
        "hooks mine -p p.toml",
        "hooks ./mine.py:Mine",
        "explain hooks.mine.args.text -p p.toml",
        "points -p p.toml",
        "why print mine -p p.toml",
        "diff p.toml p2.toml",
    ],
)
def test_a_pipeline_that_quotes_it(arguments: str, here: Path) -> None:
    (here / "p2.toml").write_text((here / "p.toml").read_text().replace("sep = ", "end = "))
    done = CliRunner().invoke(app, arguments.split())
    told = str(done.exception) if isinstance(done.exception, UserError) else done.output
    assert "ev·[" in harmless(told) or "ev\\u001b[" in told or arguments in SHOWS_LITTLE, told


def test_a_run_whose_metrics_are_named_so(here: Path) -> None:
    run = make(here / "runs")
    stamp = {"t": 1.8e9, "it": 784, "ep": 8}
    log = Appender(run.events)
    log.append([{"k": "metrics", "split": "val", "v": {EVIL: 1.0}, "seconds": 1.0, **stamp}])
    log.append([{"k": "end", "status": "failed", "exit": 1, "reason": EVIL, "seconds": 1.0, **stamp}])
    log.close()
    folder = run.checkpoints / "it00000784"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"hookflow": EVIL, "version": 0, "files": {}}))
    named = here / "runs" / EVIL / run.id
    shutil.copytree(run.path, named, symlinks=True)
    for command in ("runs", "show", "checkpoints", "export", "export -f jsonl", "watch --ui plain", "watch --ui json"):
        for about in ([], [str(named)]) if command != "runs" else ([],):
            name, *options = command.split()
            harmless(CliRunner().invoke(app, [name, *about, *options]).output)


def test_an_exception_with_notes(here: Path) -> None:
    raising = "--set=hooks.raises={use='./mine.py:raises', points=['after_val']}"
    done = hookflow("run", "p.toml", raising, "--ui=plain", cwd=here)
    assert done.returncode == 1
    assert "ValueError" in harmless(done.stdout + done.stderr)
    run = RunDir(next((here / "runs" / "p").iterdir()))
    assert "ValueError" in harmless(hookflow_here("show", run.id, cwd=here).stdout)


def test_our_own_colours_alone_come_through() -> None:
    code = "from hookflow.cli.output import echo; echo('\\x1b[1mbold\\x1b[0m \\x1b[8mhidden', coloured=True)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\x1b[1mbold\x1b[0m ·[8mhidden\n"
    assert STYLE.findall(done.stdout) == ["\x1b[1m", "\x1b[0m"]
