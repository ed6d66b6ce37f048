"""Every command explains itself and waits for no torch;
what the shell completes; `hookflow new`.
"""

import ast
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer.main

from hookflow import __version__
from hookflow.cli.app import app, main
from hookflow.cli.run import _choose_ui
from hookflow.errors import UserError
from hookflow.events.rundir import all_runs
from tests.cli.conftest import SMALL, called, invoke, refused
from tests.conftest import TOY, circle, hookflow, hookflow_here
from tests.monitor.fake_run import make
from tests.support.golden_files import check_cases
from tests.support.limits import LIMIT
from tests.support.processes import Spawned

COMMANDS = typer.main.get_group(app).commands

PIPELINE = SMALL + '[hooks.ema]\nuse = "ema"\n[hooks.log]\nuse = "log"\n'

ASKED = {
    "--help": [],
    "check": ["p.toml"],
    "graph": ["p.toml"],
    "why": ["ema", "log", "p.toml"],
    "compare": ["p.toml", "p.toml"],
    "explain": ["hooks.ema.args.decay"],
    "new": ["pipeline", "mine"],
    "runs": [],
}
"""What a command that only looks is asked; the others train, or play."""

WRONG = (
    dict.fromkeys(COMMANDS.keys() - {"runs"}, "wrong")
    | dict.fromkeys(("run", "check", "graph", "sweep"), "wrong.toml")
    | dict.fromkeys(("test", "fork", "predict"), "wrong:best")
    | {
        "why": "a b wrong.toml",
        "compare": "wrong.toml wrong.toml",
        "explain": "run.wrong",
        "new": "hook wrong-name",
        "rerun": "wrong --at=3",
    }
)
"""What a command is asked of a file or a run that is not there."""


def test_every_command_explains_itself_in_one_line_and_the_version_is_told() -> None:
    printed = invoke("--version")
    assert printed.startswith(f"hookflow {__version__} (Python 3.")
    assert version("torch") in printed
    lines = invoke("--help", columns=80).splitlines()
    assert len(lines) <= 46
    for name, command in COMMANDS.items():
        if command.hidden:
            continue
        first = inspect.cleandoc(command.help or "").partition("\n")[0]
        assert any(name in line.split() and first in line for line in lines), name
        assert first.endswith(".")
        assert all(getattr(parameter, "help", "") for parameter in command.params), (
            f"an option of {name} has no help"
        )
        assert first in " ".join(invoke(name, "--help", columns=80).split())


def test_output_that_nobody_reads_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m hookflow explain schema | head -1"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT
    )
    assert (done.stdout, done.stderr) == ("{\n", "")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", sorted(WRONG))
def test_what_is_not_there_is_told_in_words(name: str) -> None:
    done = hookflow_here(name, *WRONG[name].split(), cwd=Path.cwd())
    assert (done.returncode, done.stdout) == (2, "")
    assert "wrong" in done.stderr or "there are no runs" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("command", "hint"), [("run", "; did you mean --set run.max_epochs=…?"), ("runs", "")]
)
def test_an_unknown_option_that_is_a_key_of_run_is_pointed_to_it(command: str, hint: str) -> None:
    code, text = called(command, "--max-epochs", "3")
    assert code == 2
    assert re.search(rf"No such option: --max-epochs{re.escape(hint)} +│", text)


def test_they_wait_for_no_torch(tmp_path: Path) -> None:
    """None of them imports what the others did not, since one process calls all of them."""
    (tmp_path / "p.toml").write_text(PIPELINE)
    lines = [[name, *arguments] for name, arguments in ASKED.items()]
    lines.append(["check", "p.toml", "--no-import"])
    code = f"""
import sys
from hookflow.cli.app import main
for line in {lines!r}:
    sys.argv = ["hookflow", *line]
    try:
        main()
    except SystemExit as end:
        assert not end.code, line
    absent = ["torch", "textual", "numpy"]
    if line[0] == "--help":
        absent += ["pydantic", "networkx"]
    loaded = [name for name in absent if name in sys.modules]
    assert not loaded, (line, loaded)
"""
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )


def test_check_finds_a_module_where_run_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the current folder neither of them."""
    report = '[hooks.report]\nuse = "reports:Report"\n'
    (tmp_path / "p.toml").write_text(circle("max_iters = 1", "threads = 1") + report)
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    (tmp_path / "reports.py").write_text("class Report:\n    def after_run(self): ...\n")
    missing = [
        hookflow(*command, cwd=tmp_path)
        for command in (("check", "p.toml"), ("run", "p.toml", "--ui=plain"))
    ]
    assert [done.returncode for done in missing] == [2, 2]
    assert missing[0].stderr == missing[1].stderr
    assert 'there is no module "reports"\n' in missing[0].stderr
    (tmp_path / "json.py").unlink()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]]))
    hookflow("run", "p.toml", "--ui=plain", cwd=tmp_path, code=0)


@pytest.mark.parametrize(
    ("absent", "environment", "expected"),
    [
        (None, {"TERM": "xterm"}, "tui"),
        ("stdin", {"TERM": "xterm"}, "plain"),
        ("stdout", {"TERM": "xterm"}, "plain"),
        ("stderr", {"TERM": "xterm"}, "plain"),  # the dashboard is painted there
        (None, {"TERM": "dumb"}, "plain"),
        (None, {"TERM": "xterm", "CI": "true"}, "plain"),
    ],
)
def test_the_dashboard_needs_a_whole_terminal(
    monkeypatch: pytest.MonkeyPatch, absent: str | None, environment: dict[str, str], expected: str
) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(
            sys, name, SimpleNamespace(isatty=lambda terminal=name != absent: terminal)
        )
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    assert _choose_ui("auto") == expected
    assert _choose_ui("json") == "json"


def test_without_a_terminal_no_dashboard_waits_for_keys(here: Path) -> None:
    make(here / "runs", upto=60)
    for command in (
        ("watch", "cifar", "--replay"),
        ("watch", "--ui", "tui"),
        ("run", str(TOY), "--ui=tui"),
    ):
        assert "--ui plain" in refused(*command)
    assert len(all_runs(here / "runs")) == 1


COMPLETED = """\
[run]
name = "p"
default_hooks = false
max_iters = 10
[points.after_dense]
follows = "after_train_iter"
[hooks.ema]
use = "ema"
args = { decay = 0.9 }
[hooks.early]
use = "early_stop"
"""


Tab = Callable[[str], list[str]]


@pytest.fixture
def filled(here: Path) -> Path:
    """The current folder, with a pipeline and two runs."""
    (here / "p.toml").write_text(COMPLETED)
    (here / "other").mkdir()
    (here / "other/q.toml").write_text('[run]\n[hooks.only_here]\nuse = "ema"\n')
    for id_ in ("20260101-000000-aaaa", "20260102-000000-bbbb"):
        run = here / "runs" / "cifar" / id_
        run.mkdir(parents=True)
        (run / "run.json").write_text("{}")
    return here


@pytest.fixture
def tab(filled: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tab:
    """Return what bash is offered at the end of a line; nothing else may be printed."""

    def press(line: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["hookflow"])
        monkeypatch.setenv("_HOOKFLOW_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
        with pytest.raises(SystemExit) as end:
            main()
        message = capsys.readouterr()
        assert (end.value.code, message.err) == (0, "")
        return message.out.split()

    return press


OFFERED = {
    "hookflow wh": ["why"],
    "hookflow why e": ["ema", "early"],
    "hookflow why ema ea": ["early"],
    "hookflow why ema early --point after_de": ["after_dense"],
    "hookflow why ema early --point after_train_e": ["after_train_epoch"],
    "hookflow graph p.toml --without ea": ["early"],
    "hookflow run p.toml --only em": ["ema"],
    "hookflow run p.toml --set hooks.ema.args.": ["hooks.ema.args.decay="],
    "hookflow graph other/q.toml --hook ": ["only_here"],
    "hookflow graph --hook only": [],
    "hookflow check other/q.toml --without o": ["only_here"],
    "hookflow run other/q.toml --set hooks.": ["hooks.only_here.use="],
    "hookflow watch 2026": ["20260102-000000-bbbb", "20260101-000000-aaaa"],
    "hookflow watch --dir runs ci": ["cifar"],
    "hookflow stop ci": ["cifar"],
    "hookflow show 20260102": ["20260102-000000-bbbb"],
    "hookflow compare p": ["p.toml"],
    "hookflow compare p.toml ci": ["cifar"],
}


def test_tab_offers(tab: Tab) -> None:
    assert {line: tab(line) for line in OFFERED} == OFFERED


@pytest.mark.parametrize("text", ["[hooks.ema", "hooks = 3", '[hooks]\nema = "ema"'])
def test_a_pipeline_that_is_none_yet_offers_nothing_and_says_nothing(
    text: str, filled: Path, tab: Tab
) -> None:
    (filled / "p.toml").write_text(f"[run]\n{text}")
    assert tab("hookflow why -p p.toml e") == []
    assert tab("hookflow run p.toml --without e") == []
    assert tab("hookflow run missing.toml --without e") == []


pytestmark = pytest.mark.usefixtures("here")


def new(*arguments: str) -> str:
    return invoke("new", *arguments)


def test_a_pipeline_passes_check_and_trains(here: Path) -> None:
    printed = new("pipeline", "spirals")
    assert printed.splitlines()[0] == "wrote spirals.py, spirals.toml"
    assert "hookflow run spirals.toml" in printed
    hookflow_here("check", "spirals.toml", "--strict", cwd=here, code=0)
    own_task = "--set=task.use=./spirals.py:step"
    options = (own_task, "--set=run.max_epochs=3", "--set=run.threads=1", "--in-process")
    hookflow_here("run", "spirals.toml", *options, cwd=here, code=0)
    shown = hookflow_here("show", cwd=here).stdout
    assert "finished" in shown
    accuracy = next(
        line.split()[2] for line in shown.splitlines() if line.split()[:1] == ["accuracy"]
    )
    assert float(accuracy) > 0.9
    assert "best,last" in shown


@pytest.mark.parametrize("name", ["myCLASS", "NAME_of_it", "path", "simple_namespace"])
def test_a_name_that_the_template_has_too_names_one_class(here: Path, name: str) -> None:
    use = new("hook", name).partition('use = "')[2].partition('"')[0]
    (written,) = (
        node
        for node in ast.parse(Path(f"{name}.py").read_text()).body
        if isinstance(node, ast.ClassDef)
    )
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
    hookflow_here("check", "weight_norm.toml", "--strict", cwd=here, code=0)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "test_weight_norm.py",
    ]
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


NO_NAMES = (
    "pipeline my-net",
    "pipeline ../up",
    "hook class",
    "pipeline random",
    "hook torch",
    "hook ema",
)


def test_a_name_that_cannot_be_one_is_refused(here: Path) -> None:
    check_cases("new-mistakes.txt", {what: [refused("new", *what.split())] for what in NO_NAMES})
    assert not [*here.iterdir()]
