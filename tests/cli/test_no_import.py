"""`--no-import`: nothing of a stranger's pipeline runs; only the keys of the file are known,
and the output says so.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from hookflow.cli.app import app
from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import load
from hookflow.pipeline.registry import list_installed
from hookflow.pipeline.use import resolve_use
from hookflow.runner.process.launch import prepare
from tests.cli.conftest import refused

TRAP = """\
from hookflow import Hook

def spring(*anything, **more):
    open({marker!r}, "a").close()
    return lambda thing: thing

class Meta(type):
    def __prepare__(*a, **k): spring(); return {{}}

class Mine(Hook):
    "Springs traps."
    phase = "late"
    writes: set = spring() or {{"grads"}}
    points = property(spring)

    def __init__(self, size: "spring()" = spring(), *, last: int = 3): spring()

    @spring()
    def after_train_iter(self, run, batch: spring() = spring()): spring()

    @classmethod
    def check_arguments(cls, args): spring()

class Meant(Hook, metaclass=Meta):
    def after_val(self, run): spring()

@spring()
class Decorated(Hook):
    def after_val(self, run): spring()

def function(run, given: "spring()" = spring()): spring()

later = spring()

def __getattr__(name): spring()
"""
PIPELINE = """\
[run]
name = "p"
max_epochs = 1
[model]
use = "./trap.py:Net"
[optimizer]
use = "./trap.py:Optimizer"
[task]
use = "./trap.py:Task"
[data.train]
use = "./trap.py:Data"
"""
HOOKS = """\
[hooks.mine]
use = "./trap.py:Mine"
args = { size = 1, last = 2 }
[hooks.meant]
use = "./trap.py:Meant"
[hooks.decorated]
use = "./trap.py:Decorated"
[hooks.function]
use = "./trap.py:function"
points = ["after_val_iter"]
[hooks.later]
use = "./trap.py:later"
points = ["after_val"]
[hooks.offered]
use = "sprung"
[hooks.packed]
use = "trap_package.part:Mine"
[hooks.printer]
use = "builtins:print"
points = ["after_val"]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder: a pipeline built on another one, whose files,
    package and plugin would make a `marker`.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    trap = TRAP.format(marker=str(tmp_path / "marker"))
    (tmp_path / "base" / "more").mkdir(parents=True)
    (tmp_path / "base" / "base.toml").write_text(PIPELINE)
    (tmp_path / "base" / "trap.py").write_text(trap)
    (tmp_path / "trap.py").write_text(trap)
    (tmp_path / "p.toml").write_text(f'extends = "base/base.toml"\n{HOOKS}')
    site = tmp_path / "site"
    (site / "trap_package").mkdir(parents=True)
    for file in ("trap_package/__init__.py", "trap_package/part.py", "trap_plugin.py"):
        (site / file).write_text(trap)
    (site / "trap-1.0.dist-info").mkdir()
    (site / "trap-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: trap\nVersion: 1.0\n"
    )
    (site / "trap-1.0.dist-info" / "entry_points.txt").write_text(
        "[hookflow.hooks]\nsprung = trap_plugin:Mine\n"
    )
    monkeypatch.syspath_prepend(site)
    list_installed.cache_clear()
    yield tmp_path
    list_installed.cache_clear()


def read(*arguments: str) -> str:
    """Run a command with `--no-import`, and return what it prints;
    nothing of the pipeline's code has run.
    """
    before = set(sys.modules)
    done = CliRunner().invoke(app, [*arguments, "--no-import"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert not Path("marker").exists()
    assert not {name for name in set(sys.modules) - before if "trap" in name}
    return done.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "p.toml"),
        ("check", "p.toml", "-f", "json"),
        (
            "check",
            "p.toml",
            "--without=mine",
            "--set=hooks.printer.points=['after_val_iter']",
            "--shuffle=1",
        ),
        ("graph", "p.toml"),
        ("graph", "p.toml", "-f", "json"),
        ("graph", "p.toml", "--hook=printer"),
        ("why", "mine", "printer", "p.toml"),
        ("explain", "points", "p.toml"),
    ],
    ids=" ".join,
)
def test_nothing_of_the_pipelines_code_runs(arguments: tuple[str, ...], here: Path) -> None:
    assert "not imported" in read(*arguments)


def test_and_nothing_where_the_file_is_not_valid(here: Path) -> None:
    wrong = refused(
        "check",
        "p.toml",
        "--set=run.max_epochs='x'",
        "--set=hooks.mine.args.other=1",
        "--no-import",
    )
    assert 'hook "mine": ./trap.py:Mine' not in wrong
    assert not (here / "marker").exists()
    resolve_use("./trap.py:Mine", here, None)
    assert (here / "marker").exists(), "the traps would spring"


@pytest.mark.usefixtures("here")
def test_a_hook_that_is_not_imported_is_named() -> None:
    shown = json.loads(read("check", "p.toml", "-f", "json"))
    assert shown["valid"]
    assert {problem["source"] for problem in shown["unknown"]} == {"p.toml"}
    named = [problem["message"].split('"')[1] for problem in shown["unknown"]]
    assert named == [
        "mine",
        "meant",
        "decorated",
        "function",
        "later",
        "offered",
        "packed",
        "printer",
    ]
    text = read("check", "p.toml")
    assert text.startswith("p.toml is valid, as far as ")
    unknown = (
        'hook "printer": builtins:print is not imported: only the keys of this table are known'
    )
    assert f"\nunknown: p.toml:20:1: {unknown}" in text
    assert "./trap.py:Mine" in (listed := read("explain", "hooks", "p.toml"))
    assert "Springs traps." not in listed
    assert "Not imported." in read("explain", "mine", "p.toml")


KNOWN = """\
from hookflow.hooks.base import Hook

class Mine(Hook):
    def after_val(self, run): ...

def third(run): ...
"""


@pytest.fixture
def known(here: Path) -> Path:
    (here / "known.py").write_text(KNOWN)
    text = (
        PIPELINE.replace('"./trap.py:', '"torch.nn:')
        .replace("Optimizer", "Linear")
        .replace("Task", "Linear")
    )
    text = text.replace("torch.nn:Data", "circle").replace("torch.nn:Net", "torch.nn:Linear")
    mine = (
        '[hooks.mine]\nuse = "./known.py:Mine"\npoints = ["after_val", "before_val"]\nreads ='
        ' ["model"]\n'
    )
    third = '[hooks.third]\nuse = "./known.py:third"\npoints = ["after_val"]\nbefore = ["mine"]\n'
    ema = '[hooks.average]\nuse = "ema"\n'
    (here / "p.toml").write_text(f'{text}[data.val]\nuse = "circle"\n{mine}{third}{ema}')
    return here


def test_the_keys_of_the_file_are_known_and_what_is_wrong_with_them_is_found(known: Path) -> None:
    read("graph", "p.toml", "--out=plan.json")
    plan = json.loads((known / "plan.json").read_text())
    bound = {(binding["hook"], binding["point"]): binding for binding in plan["bindings"]}
    assert {point for hook, point in bound if hook == "mine"} == {"before_val", "after_val"}
    assert bound["mine", "after_val"]["reads"] == ["model"]
    assert ("average", "after_optimizer_step") in bound, "hookflow's own hooks are imported"
    assert {"third", "mine"} <= {
        hook for edge in plan["edges"] for hook in (edge["first"], edge["then"])
    }
    wrong = {
        "hooks.mine.points=['after_epoch']": 'there is no point "after_epoch"',
        "hooks.third.use='./known.py:Trird'": (
            'there is no "Trird" in ./known.py\n    did you mean "third"?'
        ),
        "hooks.third.use='./now.py:Third'": 'there is no file "./now.py"',
        "hooks.third.use='nowhere.now:Third'": 'there is no module "nowhere"',
        "hooks.third.use='thrid'": 'there is nothing called "thrid"',
        "hooks.average.args.decya=1.0": 'takes no argument "decya"\n    did you mean "decay"?',
    }
    for override, message in wrong.items():
        assert message in refused("check", "p.toml", f"--set={override}", "--no-import")
    (known / "runs" / "p" / "1").mkdir(parents=True)
    # opened, each of these pipes would keep the command until somebody writes to it
    for name in ("now.py", "base.toml", "runs/p/1/events.jsonl", "runs/p/1/pipeline.toml"):
        os.mkfifo(known / name)
    pipe = "--set=hooks.third.use='./now.py:Third'"
    assert 'there is no file "./now.py"' in refused("check", "p.toml", pipe, "--no-import")
    assert "is valid" in read("check", "p.toml")
    (known / "p.toml").write_text('extends = "base.toml"')
    assert '"base.toml" is not a file' in refused("check", "p.toml", "--no-import")


@pytest.mark.parametrize(
    "source",
    ["class Mine(:", "Mine = Mine", f"Mine = {'(' * 5_000}", "# " + "x" * (5 << 20), "\0"],
    ids=["no Python", "itself", "nested too deep", "too long", "a NUL"],
)
def test_odd_sources(known: Path, source: str) -> None:
    (known / "known.py").write_text(source)
    assert "is valid, as far as " in read("check", "p.toml", "--without=third")


SPRUNG = "__import__('pathlib').Path('marker').touch()"


@pytest.mark.parametrize(
    "annotation",
    [
        SPRUNG,
        f'"{SPRUNG}"',
        f'list["{SPRUNG}"]',
        f"Annotated[int, {SPRUNG}]",
        f"Annotated[int, Field(gt={SPRUNG})]",
        f"Literal[{SPRUNG}]",
        f"int | {SPRUNG}",
        f"(lambda: {SPRUNG})()",
        "Annotated[int, Field(pattern='(')]",
        "Literal[[]]",
        "dict[int]",
    ],
)
@pytest.mark.parametrize(
    "make", ["def Net({}): ...", "class Net:\n    def __init__(self, {}): ..."]
)
def test_no_annotation_is_evaluated(known: Path, make: str, annotation: str) -> None:
    (known / "net.py").write_text(make.format(f"size: {annotation} = {SPRUNG}"))
    model = ("--set=model.use='./net.py:Net'", "--set=model.args={ size = 3 }")
    assert "is valid" in read("check", "p.toml", *model)


@pytest.mark.parametrize(
    ("annotation", "value", "is_right"),
    [
        ("int", "3", True),
        ("int", "'x'", False),
        ("'int | None'", "'x'", False),
        ("Optional[list[int]]", "[1, 2]", True),
        ("Optional[list[int]]", "['x']", False),
        ("Union[int, str]", "'x'", True),
        ("tuple[float, ...]", "['x']", False),
        ("Literal['a', 'b']", "'a'", True),
        ("Literal['a', 'b']", "'c'", False),
        ("Annotated[int, Field(gt=0)]", "0", False),
        ("Annotated[int, Field(gt=0)]", "1", True),
        ("Tensor", "1.0", False),
        ("Path", "'x'", True),
    ],
)
def test_a_value_is_compared_with_what_the_source_shows(
    known: Path, annotation: str, value: str, is_right: bool
) -> None:
    (known / "net.py").write_text(
        f"class Net:\n    def __init__(self, first, size: {annotation}, *more, key=1): ..."
    )
    model = ("--set=model.use='./net.py:Net'", f"--set=model.args={{ first = 1, size = {value} }}")
    if is_right:
        assert "is valid" in read("check", "p.toml", *model)
    else:
        assert 'model: "size"' in refused("check", "p.toml", *model, "--no-import")


def test_a_definition_that_names_a_parameter_twice_is_no_crash(known: Path) -> None:
    (known / "net.py").write_text("def Net(size, size): ...")
    assert "is valid" in read(
        "check", "p.toml", "--set=model.use='./net.py:Net'", "--set=model.args={ size = 1 }"
    )


@pytest.mark.usefixtures("here")
def test_why_imports_no_hook_either(known: Path) -> None:
    (known / "known.py").write_text(f"{KNOWN}{SPRUNG}\n")
    third = "--set=hooks.third.before=[]"
    assert "mine" in read("why", "third", "mine", "p.toml", third)


READING = {
    **{name: ["RUN"] for name in ("stop", "ctl", "now", "graph", "show", "export", "checkpoints")},
    "why": ["mine", "function", "RUN"],
    "compare": ["RUN", "RUN"],
    "tag": ["RUN", "kept"],
    "rm": ["RUN", "--yes"],
    "prune": ["RUN", "--yes"],
    "explain": ["hooks.mine", "RUN"],
    "watch": ["RUN", "--ui", "plain"],
    "runs": [],
}
"""The commands that read a run, with arguments for one."""

OTHERS = {"new", "run", "fork", "rerun", "sweep", "val", "test", "predict", "check"}
"""Those that make or train something, or take a file alone."""


@pytest.mark.parametrize("command", READING)
def test_no_command_that_reads_a_run_imports_from_it(here: Path, command: str) -> None:
    loaded = load(here / "p.toml")
    plan = compile_pipeline(loaded, imports=False)
    run = RunDir.create(here / "runs", "p")
    prepare(loaded, plan, run, here)
    run.lock.touch()  # its process has ended: nobody waits for it
    for arguments in (
        READING[command],
        ["mine", "RUN"],
        ["points", "RUN"],
        ["hooks.mine.args.size", "RUN"],
    ):
        if command == "explain" or arguments is READING[command]:
            CliRunner().invoke(
                app, [command, *(run.id if word == "RUN" else word for word in arguments)]
            )
    assert not (here / "marker").exists()


def test_every_command_is_known_to_read_a_run_or_not() -> None:
    assert {*READING, *OTHERS} == {*get_command(app).commands}  # type: ignore[attr-defined]
