"""Calls on the run that a hook makes and has not declared: told before anything runs, where the source is certain."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import load, parse
from tests.hooks.test_inspect_troubles import HEAD
from tests.hooks.test_troubles import plan

POINT = 'points = ["after_val"]'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def warnings(folder: Path, code: str, table: str = "") -> list[str]:
    """Return what is warned of the hook `It` of a file of this code."""
    file = f"h{len(list(folder.iterdir()))}.py"  # a file is imported once
    (folder / file).write_text(code)
    pipeline = parse(f'{HEAD}[hooks.it]\nuse = "./{file}:It"\n{table}\n', folder / "p.toml")
    return [problem.message.replace(file, "FILE") for problem in compile_pipeline(pipeline).warnings]


def of_method(folder: Path, *lines: str, table: str = "", head: str = "", takes: str = "self, run") -> list[str]:
    """Return the lines of which is warned, of a class whose method at after_val begins in line 3."""
    body = "".join(f"        {line}\n" for line in lines)
    said = warnings(folder, f"{head}\nclass It:\n    def after_val({takes}):\n{body}", table)
    return [line.partition("FILE:")[2].partition(")")[0] for line in said]


STOP = "run.skip_step()"


def test_a_call_is_reported_with_its_place_and_what_to_declare(tmp_path: Path) -> None:
    """By check, for which the pipeline is valid all the same, and which does not import torch for it."""
    (tmp_path / "mine.py").write_text(
        "class It:\n    writes = ('metrics',)\n    def after_val(self, run):\n        if run.epoch > 3:\n"
        "            run.skip_step()\n"
    )
    (tmp_path / "p.toml").write_text(f'{HEAD}[hooks.it]\nuse = "./mine.py:It"\n')
    (problem,) = compile_pipeline(load(tmp_path / "p.toml")).warnings
    assert problem.message == (
        'hook "it" calls run.skip_step at after_val (mine.py:5) without declaring that it writes "control", '
        "which would end the run with an error"
    )
    assert problem.hint == 'declare it: writes = ["control", "metrics"] in [hooks.it], or in its class'
    assert problem.where is not None and problem.where.line == 7, "the hook's `use`"
    code = (
        "import sys; from hookflow.cli.app import main; sys.argv = ['hookflow', 'check', 'p.toml', '--strict']\n"
        "try: main()\nexcept SystemExit as end: assert end.code == 1\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=-1, text=True, check=True)
    assert "calls run.skip_step at after_val (mine.py:5)" in done.stdout


@pytest.mark.parametrize(
    ("call", "slot"),
    [("accumulate(1.0, step=True)", "control"), ("skip_batch()", "control"), ("replace_batch(1)", "batch")],
)
def test_each_call_has_its_slot(tmp_path: Path, call: str, slot: str) -> None:
    (message,) = warnings(tmp_path, f"def It(run): run.{call}\n", POINT)
    assert message.startswith(f'hook "it" calls run.{call.partition("(")[0]} at after_val (FILE:1) without declaring')
    assert f'it writes "{slot}"' in message


def test_each_call_is_reported_once(tmp_path: Path) -> None:
    code = f"class It:\n    def after_val(self, run):\n        {STOP}\n        {STOP}\n    after_run = after_val\n"
    assert len(warnings(tmp_path, code)) == 2


def test_a_declaration_in_the_class_or_the_file_or_of_one_method(tmp_path: Path) -> None:
    for table in ('writes = ["control"]', 'writes = ["control", "model"]'):
        assert not of_method(tmp_path, STOP, table=table)
        assert of_method(tmp_path, STOP, table=table.replace("control", "batch")) == ["4"]
    code = f"class It:\n    writes = ('control',)\n    def after_val(self, run): {STOP}\n"
    assert not warnings(tmp_path, code)
    assert warnings(tmp_path, code, "writes = []"), "the file says otherwise"
    by_method = code.replace("('control',)", "{'after_val': ('control',)}") + f"    def after_run(self, run): {STOP}\n"
    (message,) = warnings(tmp_path, by_method)
    assert "at after_run (FILE:4)" in message


class TestWhereItIsFound:
    @pytest.mark.parametrize(
        "code",
        [
            f"def It(run):\n    {STOP}\n",
            f"It = lambda run: {STOP}\n",
            f"from functools import partial\ndef f(much, run):\n    {STOP}\nIt = partial(f, 1)\n",
            f"class It:\n    def __call__(self, run):\n        {STOP}\n",
            f"class Made:\n    def __call__(self, run):\n        {STOP}\nIt = Made()\n",
            f"class Made:\n    def do(self, run):\n        {STOP}\nIt = Made().do\n",
            f"class Made:\n    @staticmethod\n    def do(run):\n        {STOP}\nIt = Made.do\n",
            "from functools import wraps\ndef kept(f):\n    @wraps(f)\n    def w(*a, **k): return f(*a, **k)\n"
            f"    return w\n@kept\ndef It(run):\n    {STOP}\n",
        ],
        ids=["function", "lambda", "partial", "class", "object", "method", "static", "decorated"],
    )
    def test_whatever_kind_of_hook(self, tmp_path: Path, code: str) -> None:
        line = code[: code.index("run.skip_step")].count("\n") + 1
        (said,) = warnings(tmp_path, code, POINT)
        assert f"run.skip_step at after_val (FILE:{line})" in said

    def test_an_inherited_method_in_the_file_of_its_own(self, tmp_path: Path) -> None:
        code = (
            "from hookflow.hooks.builtin.spike_guard import SpikeGuard\n"
            "class It(SpikeGuard):\n    writes = ('model',)\n"
        )
        (said,) = warnings(tmp_path, code)
        assert "spike_guard.py:" in said

    @pytest.mark.parametrize(
        "line", [f"with run.x: {STOP}", f"[{STOP} for _ in ()]", f"a = 1 and {STOP}", f"{'-' * 1500}{STOP}"]
    )
    def test_however_deep(self, tmp_path: Path, line: str) -> None:
        assert of_method(tmp_path, line) == ["4"]

    def test_in_an_around(self, tmp_path: Path) -> None:
        (said,) = warnings(tmp_path, f"class It:\n    def around_val(self, run):\n        yield\n        {STOP}\n")
        assert "FILE:4" in said


class TestMethodsThatACallHandsTheRunTo:
    HELPER = f"    def end(self, why, it, *, of=None):\n        {STOP.replace('run', 'it')}\n        of.skip_batch()\n"
    STATIC = f"    @staticmethod\n    def end(why, it, of=None):\n        {STOP.replace('run', 'it')}\n"

    def said(self, folder: Path, call: str, helper: str = HELPER) -> list[str]:
        """Return the calls that are found in `helper`."""
        code = f"class It:\n    def after_val(self, run):\n        {call}\n{helper}"
        return [line.split()[3] for line in warnings(folder, code)]

    def test_by_place_and_by_name(self, tmp_path: Path) -> None:
        assert self.said(tmp_path, "self.end(1, run)") == ["run.skip_step"]
        assert self.said(tmp_path, "self.end(1, it=run)") == ["run.skip_step"]
        assert self.said(tmp_path, "self.end(1, run, of=run)") == ["run.skip_step", "run.skip_batch"]
        assert self.said(tmp_path, "self.end(1, run)", self.STATIC) == ["run.skip_step"]
        assert not self.said(tmp_path, "self.end(1, run.task)")
        assert not self.said(tmp_path, "self.end(*run.x, run)")
        assert not self.said(tmp_path, "self.other.end(1, run)")
        assert not self.said(tmp_path, "self = run.task; self.end(1, run)")
        assert not self.said(tmp_path, "self.end(1, run)", "    end = print\n")

    def test_one_that_calls_itself(self, tmp_path: Path) -> None:
        assert self.said(tmp_path, "self.end(run)", f"    def end(self, run): {STOP}; self.end(run)\n") == [
            "run.skip_step"
        ]

    def test_of_a_base_class(self, tmp_path: Path) -> None:
        base = f"class Base:\n    def after_val(self, run):\n        {STOP}\n    def end(self, run):\n        {STOP}\n"
        for call, line in (("super().after_val(run)", 3), ("self.end(run)", 5)):
            (said,) = warnings(tmp_path, f"{base}class It(Base):\n    def after_val(self, run): {call}\n")
            assert f"FILE:{line}" in said


class TestWhereItIsNotCertain:
    @pytest.mark.parametrize(
        "lines",
        [
            ("run = run.task", STOP),
            ("for run in run.tasks:", f"    {STOP}"),
            ("with run.x as run:", f"    {STOP}"),
            ("try: pass", "except E as run: pass", STOP),
            ("import run", STOP),
            ("from a import b as run", STOP),
            ("def run(): pass", STOP),
            ("match run.x:", f"    case run: {STOP}"),
            ("if (run := 1): pass", STOP),
            ("def inside():", "    nonlocal run", STOP),
            (f"[{STOP} for run in ()]",),
            ("del run", STOP),
        ],
        ids=lambda lines: lines[0],
    )
    def test_the_name_is_given_to_something_else(self, tmp_path: Path, lines: tuple[str, ...]) -> None:
        assert not of_method(tmp_path, *lines)

    @pytest.mark.parametrize(
        "line",
        [
            f"def later(): {STOP}",
            f"later = lambda: {STOP}",
            f"class Later: x = {STOP}",
            "self.run.skip_step()",
            "run.task.skip_step()",
            "skip = run.skip_step",
            "getattr(run, 'skip_step')()",
            "run.step_skipped()",
            "skip_step()",
        ],
    )
    def test_it_is_called_by_nobody_knows_whom(self, tmp_path: Path, line: str) -> None:
        assert not of_method(tmp_path, line)

    def test_what_has_the_name_run_is_not_the_points(self, tmp_path: Path) -> None:
        code = f"from functools import partial\ndef f(run, metrics):\n    {STOP}\nIt = partial(f, print)\n"
        assert not warnings(tmp_path, code, POINT)
        assert not of_method(tmp_path, STOP, takes="self, metrics", head="run = print")

    def test_at_a_point_where_it_is_not_bound(self, tmp_path: Path) -> None:
        code = f"class It:\n    def after_val(self, run): {STOP}\n    def after_run(self): pass\n"
        assert not warnings(tmp_path, code, 'points = ["after_run"]')


class TestWhereTheSourceCannotBeRead:
    @pytest.mark.parametrize(
        "code",
        [
            f"exec('class It:\\n  def after_val(self, run): {STOP}\\n')",
            f"exec(compile('class It:\\n  def after_val(self, run): {STOP}\\n', 'gone.py', 'exec'))",
            f"exec(compile('class It:\\n  def after_val(self, run): {STOP}\\n', __file__, 'exec'))",
            "class It: after_val = eval('lambda self, run: run.skip_step()')",
            "class It: after_val, after_run = lambda self, run: run.skip_step(), lambda self, run: 0",
        ],
        ids=["exec", "no such file", "other source", "eval", "two in a line"],
    )
    def test_nothing_is_said(self, tmp_path: Path, code: str) -> None:
        assert warnings(tmp_path, code) == []

    def test_nor_of_what_is_not_written_in_python(self, tmp_path: Path) -> None:
        assert warnings(tmp_path, "It = print", POINT) == []
        assert warnings(tmp_path, "from functools import partial\nIt = partial(partial, print)", POINT) == []

    def test_nor_when_the_file_has_gone(self, tmp_path: Path) -> None:
        code = f"from pathlib import Path\nPath(__file__).unlink()\nclass It:\n    def after_val(self, run): {STOP}\n"
        assert warnings(tmp_path, code) == []


def test_a_source_that_python_warns_of_is_read_in_silence(tmp_path: Path) -> None:
    code = f'def It(run):\n    {STOP}\n    "\\d"\n'
    with pytest.warns((SyntaxWarning, DeprecationWarning)) as raised:
        assert len(warnings(tmp_path, code, POINT)) == 1
    assert len(raised) == 1, "on importing it"


def test_the_built_in_hooks_declare_what_they_call() -> None:
    """As `test_troubles.py` shows: none of them is warned of. This one would be."""
    (said,) = plan(more='[hooks.spike_guard]\nuse = "spike_guard"\nwrites = []\n').warnings
    assert "calls run.skip_step" in said.message
