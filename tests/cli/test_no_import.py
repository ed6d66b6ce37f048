"""`--no-import`: hooks are known by their source alone, nothing of which runs, and what it does not tell is said."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from hookflow.cli.app import app
from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.graph.points import POINTS
from hookflow.hooks.arguments import parameters_of
from hookflow.hooks.compile import compile_pipeline
from hookflow.hooks.inspect import methods, points_for, slots
from hookflow.hooks.registry import BUILT_IN
from hookflow.hooks.stand_in import Source, unknown_of
from hookflow.pipeline.load import load
from hookflow.pipeline.registry import installed
from hookflow.pipeline.use import module_file, parse_file, refer
from hookflow.runner.process.launch import prepare

TRAP = """\
import os, sys
from hookflow import Hook
from json.decoder import JSONDecodeError

def spring(*anything, **more):
    open({marker!r}, "a").close()
    return lambda thing: thing

class Meta(type):
    def __new__(*a, **k): return spring()
    def __prepare__(*a, **k): spring(); return {{}}
    def mro(cls): spring(); return super().mro()

class Descriptor:
    def __set_name__(self, owner, name): spring()
    def __get__(self, *a): spring()

class Base(Hook):
    def __init_subclass__(cls, **k): spring()
    def __class_getitem__(cls, key): spring(); return cls

class Mine(Base[int]):
    "Springs traps."
    spring()
    phase = "late"
    reads = ("model",)
    writes: set = spring() or {{"grads"}}
    trap = Descriptor()
    points = property(spring)

    def __new__(cls, *a, **k): spring(); return super().__new__(cls)

    def __init__(self, size: "spring()" = spring(), kind: list["spring()"] | spring() = 3, *, last: int = 3): spring()

    @spring()
    def after_train_iter(self, run, batch: spring() = spring()): spring()

    @classmethod
    def points_for(cls, args): spring()

    @classmethod
    def slot_keys(cls, args): return spring()

    @classmethod
    def check_arguments(cls, args): spring()

    def __getattr__(self, name): spring()

    def state_dict(self): spring()

    if spring():
        def after_val(self): ...

class Meant(Hook, metaclass=Meta):
    def after_val(self, run): spring()

@spring()
class Decorated(Hook):
    def after_val(self, run): spring()

def function(run, given: "spring()" = spring()): spring()

later = spring()

def __getattr__(name): spring()

spring()
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
[hooks.found]
use = "builtins:print"
points = ["after_val"]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder: a pipeline built on another one, whose files, package and plugin would make a `marker`."""
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
    (site / "trap-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: trap\nVersion: 1.0\n")
    (site / "trap-1.0.dist-info" / "entry_points.txt").write_text("[hookflow.hooks]\nsprung = trap_plugin:Mine\n")
    monkeypatch.syspath_prepend(site)
    installed.cache_clear()
    yield tmp_path
    installed.cache_clear()


def read(*arguments: str, exit_code: int = 0) -> str:
    """Run a command with `--no-import`, and return what it prints; nothing of the pipeline's code has run."""
    before = set(sys.modules)
    done = CliRunner().invoke(app, [*arguments, "--no-import"])
    if isinstance(done.exception, UserError):
        raise done.exception
    assert done.exit_code == exit_code, done.output
    assert not Path("marker").exists()
    assert not {name for name in set(sys.modules) - before if "trap" in name}
    return done.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "p.toml"),
        ("check", "p.toml", "-f", "json"),
        ("check", "p.toml", "--without=mine", "--set=hooks.found.points=['after_val_iter']", "--shuffle=1"),
        ("graph", "p.toml"),
        ("graph", "p.toml", "-f", "json"),
        ("graph", "p.toml", "--hook=found"),
        ("why", "mine", "found", "-p", "p.toml"),
        ("points", "-p", "p.toml"),
    ],
    ids=" ".join,
)
def test_nothing_of_the_pipelines_code_runs(arguments: tuple[str, ...], here: Path) -> None:
    assert "not imported" in read(*arguments)


def test_and_nothing_where_the_file_is_not_valid(here: Path) -> None:
    with pytest.raises(UserError) as caught:
        read("check", "p.toml", "--set=run.max_epochs='x'", "--set=hooks.mine.args.other=1")
    assert 'hook "mine": ./trap.py:Mine' not in str(caught.value)
    assert not (here / "marker").exists()


def test_the_traps_would_spring(here: Path) -> None:
    with pytest.raises(UserError):
        refer("./trap.py:Mine", here, None)
    assert (here / "marker").exists()


def test_it_takes_no_torch(here: Path) -> None:
    code = (
        "import sys; sys.argv = ['hookflow', 'check', 'p.toml', '--no-import'];"
        "from hookflow.cli.app import main; main(); assert 'torch' not in sys.modules"
    )
    path = os.pathsep.join([str(here / "site"), os.environ["PYTHONPATH"]])
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-P", "-c", code], env=environment, check=True, capture_output=True)
    assert not (here / "marker").exists()


def test_what_is_unknown_is_said(here: Path) -> None:
    told = json.loads(read("check", "p.toml", "-f", "json"))
    assert told["valid"]
    by_hook: dict[str, list[str]] = {}
    for problem in told["unknown"]:
        hook, _, said = problem["message"].partition('": ')
        assert problem["source"] == "p.toml"
        by_hook.setdefault(hook.removeprefix('hook "'), []).append(said.partition(" is not imported; ")[2])
    everything = "all of it is unknown"
    assert by_hook["later"] == [f"later is not defined there by one class or def: {everything}"]
    assert by_hook["found"] == [f"builtins has no source in Python: {everything}"]
    assert by_hook["decorated"] == ["Decorated is decorated by spring: its arguments are unknown"]
    assert by_hook["meant"] == ["Meant has metaclass = …, which may change it"]
    assert by_hook["mine"] == by_hook["offered"] == by_hook["packed"]
    assert set(by_hook["mine"]) >= {
        "writes is not a literal: unknown",
        "points is not a literal: unknown",
        "points_for is not called, so what it says is unknown",
        "after_train_iter is decorated by spring, so it may take other arguments",
        "__new__ is not called: its arguments are unknown",
    }
    assert "function" not in by_hook, "a plain function is known whole"
    text = read("check", "p.toml")
    assert text.startswith("p.toml is valid, as far as can be told without importing its hooks")
    assert '\nunknown: p.toml:20:1: hook "found": builtins:print is not imported; builtins has no source' in text


KNOWN = """\
from __future__ import annotations
import hookflow
from typing import Literal, Optional
from hookflow.hooks import base as b
from hookflow.hooks.builtin.averaging import EMA
from elsewhere import Other

SLOTS = ("model", "grads")

class Mine(hookflow.Hook):
    "Is known whole.\\n\\nWith more."
    phase: str = "late"
    after = ("log",)
    reads = SLOTS
    writes = {"after_train_iter": {"metrics.{kind}"}, "around_val": frozenset({"model"})}

    def __init__(self, size: int, kind: Literal["a", "b"] | None = "a", *more: int, ratio: Optional[float] = None): ...

    def after_train_iter(self, run, outputs=None, *, batch):
        self._help(run)

    def around_val(self, run):
        yield

    def _help(self, mine):
        mine.stop()

class Second(Mine):
    after_val = after_test = Mine.after_train_iter
    def before_train(self): ...

class Third(b.Hook):
    def after_val(self, run): ...
    after_test = after_val

class Average(EMA): ...

class Distant(Other):
    points = ("after_val", "after_run")
    reads = {"after_test": ("model",)}
    def after_val(self, run): ...
"""


@pytest.fixture
def known(here: Path) -> Path:
    (here / "known.py").write_text(KNOWN)
    text = PIPELINE.replace('"./trap.py:', '"torch.nn:').replace("Optimizer", "Linear").replace("Task", "Linear")
    text = text.replace("torch.nn:Data", "circle").replace("torch.nn:Net", "torch.nn:Linear")
    uses = {"mine": "Mine", "third": "Third", "average": "Average", "distant": "Distant"}
    args = {"mine": "args = { size = 1 }\n"}
    hooks = "".join(f'[hooks.{name}]\nuse = "./known.py:{use}"\n{args.get(name, "")}' for name, use in uses.items())
    (here / "p.toml").write_text(f'{text}[data.val]\nuse = "circle"\n{hooks}')
    return here


def test_what_the_source_says_is_known(known: Path) -> None:
    read("graph", "p.toml", "--out=plan.json")
    plan = json.loads((known / "plan.json").read_text())
    (mine,) = [hook for hook in plan["hooks"] if hook["name"] == "mine"]
    assert (mine["about"], mine["phase"]) == ("Is known whole.", "late")
    bound = {(one["hook"], one["point"]): one for one in plan["bindings"] if one["hook"] != "log"}
    assert {point for hook, point in bound if hook == "mine"} == {"after_train_iter", "before_val", "after_val"}
    assert bound["mine", "after_train_iter"]["takes"] == ["run", "outputs", "batch"]
    assert bound["mine", "after_train_iter"]["writes"] == ["metrics.a"]
    assert bound["mine", "before_val"]["reads"] == ["grads", "model"]
    assert {point for hook, point in bound if hook == "third"} == {"after_val", "after_test"}
    assert ("average", "after_optimizer_step") in bound
    assert [(hook, point) for hook, point in bound if hook == "distant"] == [("distant", "after_val")]


def test_what_is_wrong_with_it_is_found(known: Path) -> None:
    wrong = {
        "hooks.mine.args={}": 'hook "mine" needs the argument "size"',
        "hooks.mine.args.size='x'": '"size" must be an integer, not the string "x"',
        "hooks.mine.args.kind='c'": '"kind" must be one of "a", "b"',
        "hooks.mine.args.ratios=1.0": 'takes no argument "ratios"\n    did you mean "ratio"?',
        "hooks.mine.points=['after_epoch']": 'there is no point "after_epoch"',
        "hooks.third.points=['before_train']": 'hook "third" (./known.py:Third) has no method for before_train',
        "hooks.third.use='./known.py:Trird'": 'there is no "Trird" in ./known.py\n    did you mean "Third"?',
        "hooks.third.use='./now.py:Third'": 'there is no file "./now.py"',
        "hooks.third.use='nowhere.now:Third'": 'there is no module "nowhere"',
        "hooks.third.use='thrid'": 'there is nothing called "thrid"',
        "hooks.third.after=['mine']": "",
    }
    for override, said in wrong.items():
        if said:
            with pytest.raises(UserError) as caught:
                read("check", "p.toml", f"--set={override}")
            assert said in str(caught.value)
        else:
            read("check", "p.toml", f"--set={override}")
    place = f"known.py:{KNOWN.splitlines().index('        mine.stop()') + 1}"
    warned = f'hook "mine" calls run.stop at after_train_iter ({place}) without declaring that it writes "control"'
    assert warned in read("check", "p.toml")


def test_what_may_be_inherited_may_be_named(known: Path) -> None:
    told = read("graph", "p.toml", "--set=hooks.distant.points=['after_val', 'before_train']")
    assert "the base class Other of Distant is not read" in told
    assert re.search(r"before_train +average\n +distant\n", told)


def test_nothing_is_waited_for_that_is_no_file(known: Path) -> None:
    """Opened, each of these pipes would keep the command until somebody writes to it."""
    (known / "runs" / "p" / "1").mkdir(parents=True)
    for name in ("now.py", "base.toml", "runs/p/1/events.jsonl", "runs/p/1/pipeline.toml"):
        os.mkfifo(known / name)
    with pytest.raises(UserError, match=r'there is no file "./now.py"'):
        read("check", "p.toml", "--set=hooks.third.use='./now.py:Third'")
    assert "is valid" in read("check", "p.toml")
    (known / "p.toml").write_text('extends = "base.toml"')
    with pytest.raises(UserError, match=r'"base.toml" is not a file'):
        read("check", "p.toml")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("class Mine(:", "cannot be read: invalid syntax"),
        ("class Mine:\n    def after_val(self, run, run): ...", "cannot be read: duplicate argument 'run'"),
        ("class Mine(Mine): ...\n", "the base class Mine of Mine is not read"),
        ("class A(B): ...\nclass B(A): ...\nMine = A", "the base class B of A is not read"),
        ("Mine = Mine", "is not defined there by one class or def"),
        ("A = Mine\nMine = A", "is not defined there by one class or def"),
        ("class Mine: ...\nif x:\n    class Mine: ...", "is not defined there by one class or def"),
        ("import hookflow\nclass Mine(hookflow.Hook, hookflow.Hook): ...", "cannot be read: duplicate base class"),
        ("class Mine:\n    phase = 1\n    def after_val(self, run): ...", "Mine.phase must be one of"),
        (f"class Mine:\n    phase = 0x{'f' * 5000}\n    def after_val(self, run): ...", "phase is not a literal"),
        (f"class Mine:\n    def after_val(self, run, x={'+'.join('1' * 2000)}): ...", "valid"),
        (f"class Mine:\n    def after_val(self, run: {'|'.join(['int'] * 2500)}): ...", "cannot be read: "),
        (f"Mine = {'-' * 50_000}1", "cannot be read: "),
        (f"Mine = {'(' * 5_000}", "cannot be read: "),
        ("".join(f"class C{k}(C{k - 1}): ...\n" for k in range(3000)) + "Mine = C2999", "cannot be read: "),
        ("class Mine:\n    @staticmethod\n    def after_val(run): ...", "must be a plain method, which takes self"),
        ("class Mine:\n    after_val = 3", "must be a plain method, not a int"),
        ("# " + "x" * (5 << 20), "bytes, and no more than"),
        ("\0", "cannot be read: "),
    ],
    ids=range(19),
)
def test_odd_sources(known: Path, source: str, said: str) -> None:
    (known / "known.py").write_text(source)
    only = ("--without=third", "--without=average", "--without=distant", "--set=hooks.mine.args={}")
    try:
        told = read("check", "p.toml", *only)
    except UserError as error:
        told = str(error)
    assert said in told


def test_a_stand_in_says_what_the_class_says_or_that_it_does_not_know() -> None:
    """The source of every hook of ours, read in both ways."""
    for name, use in BUILT_IN.items():
        module, _, class_name = use.partition(":")
        file = module_file(module)
        assert file is not None
        real: Any = refer(use, Path(), None)
        read_: Any = Source(parse_file(file), file).stand_in(class_name)
        unknown = " ".join(unknown_of(read_))
        assert methods(read_, POINTS) == methods(real, POINTS), name
        named = [method.name for method in methods(real, POINTS)[0]]
        for kind in ("reads", "writes"):
            assert f"{kind} is not" in unknown or slots(read_, kind, named) == slots(real, kind, named), name
        assert [(p.name, p.kind) for p in parameters_of(read_)] == [(p.name, p.kind) for p in parameters_of(real)], name
        assert "points_for" in unknown or points_for(read_, {}) == points_for(real, {}), name


READING = {
    "stop": ["RUN"],
    "graph": ["RUN"],
    "why": ["mine", "function", "--pipeline", "RUN"],
    "diff": ["RUN", "RUN"],
    "explain": ["hooks.mine", "--pipeline", "RUN"],
    "points": ["--pipeline", "RUN"],
    "hooks": ["--pipeline", "RUN"],
    "watch": ["RUN", "--ui", "plain"],
    "show": ["RUN"],
    "export": ["RUN"],
    "replay": ["RUN"],
    "checkpoints": ["RUN"],
    "runs": [],
}
"""The commands that read a run, with arguments for one."""

OTHERS = {"new", "run", "val", "test", "predict", "check", "schema"}
"""Those that make or train something, or take a file alone."""


@pytest.mark.parametrize("command", READING)
def test_no_command_that_reads_a_run_imports_from_it(here: Path, command: str) -> None:
    loaded = load(here / "p.toml")
    plan = compile_pipeline(loaded, imports=False)
    run = RunDir.create(here / "runs", "p")
    prepare(loaded, plan, run, here)
    run.lock.touch()  # its process has ended: nobody waits for it
    for arguments in (READING[command], ["mine", *READING[command]]):
        if command == "hooks" or arguments is READING[command]:
            CliRunner().invoke(app, [command, *(run.id if word == "RUN" else word for word in arguments)])
    assert not (here / "marker").exists()


def test_every_command_is_known_to_read_a_run_or_not() -> None:
    assert {*READING, *OTHERS} == {*get_command(app).commands}  # type: ignore[attr-defined]


@pytest.mark.usefixtures("here")
def test_hooks_without_an_import_are_listed_by_their_source() -> None:
    listed = read("hooks", "--pipeline", "p.toml")
    assert "./trap.py:Mine" in listed
    assert "Springs traps." in listed
    assert "after_train_iter" in read("hooks", "mine", "--pipeline", "p.toml")
