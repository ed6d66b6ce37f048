"""Calls on the run that a hook makes and has not declared: told before anything runs, where the source is certain."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hookflow.hooks.compile import compile_pipeline
from tests.hooks.sources import USE, pipeline_with
from tests.hooks.test_troubles import plan

POINT = 'points = ["after_val"]'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def warnings(folder: Path, code: str, table: str = "") -> list[str]:
    """Return what is warned of the hook `It` of a file of this code."""
    result = compile_pipeline(pipeline_with(folder, code, table)).warnings
    return [re.sub(r"h\d+\.py", "FILE", problem.message) for problem in result]


def of_method(folder: Path, *lines: str, table: str = "") -> list[str]:
    """Return the lines of which is warned, of a class whose method at after_val begins in line 3."""
    body = "".join(f"        {line}\n" for line in lines)
    said = warnings(folder, f"\nclass It:\n    def after_val(self, run):\n{body}", table)
    return [line.partition("FILE:")[2].partition(")")[0] for line in said]


STOP = "run.skip_step()"


def test_a_call_is_reported_with_its_place_and_what_to_declare(tmp_path: Path) -> None:
    code = "class It:\n    writes = ('metrics',)\n    def after_val(self, run):\n        if run.epoch > 3:\n"
    (problem,) = compile_pipeline(pipeline_with(tmp_path, f"{code}            run.skip_step()\n")).warnings
    assert problem.message == (
        'hook "it" calls run.skip_step at after_val (h0.py:5) without declaring that it writes "control", '
        "which would end the run with an error"
    )
    assert problem.hint == 'declare it: writes = ["control", "metrics"] in [hooks.it], or in its class'
    assert problem.where is not None and problem.where.line == USE


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


BASE = f"class Base:\n    def after_val(self, run):\n        {STOP}\n    def end(self, run):\n        {STOP}\n"


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (f"def It(run):\n    {STOP}\n", 2),
        (f"It = lambda run: {STOP}\n", 1),
        (f"from functools import partial\ndef f(much, run):\n    {STOP}\nIt = partial(f, 1)\n", 3),
        (f"class It:\n    def __call__(self, run):\n        {STOP}\n", 3),
        (f"class Made:\n    def __call__(self, run):\n        {STOP}\nIt = Made()\n", 3),
        (f"class Made:\n    def do(self, run):\n        {STOP}\nIt = Made().do\n", 3),
        (f"class Made:\n    @staticmethod\n    def do(run):\n        {STOP}\nIt = Made.do\n", 4),
        (
            "from functools import wraps\ndef kept(f):\n    @wraps(f)\n    def w(*a, **k): return f(*a, **k)\n"
            f"    return w\n@kept\ndef It(run):\n    {STOP}\n",
            8,
        ),
        (f"class It:\n    def around_val(self, run):\n        yield\n        {STOP}\n", 4),
        (f"{BASE}class It(Base):\n    def after_val(self, run): self.end(run)\n", 5),
        (f"{BASE}class It(Base): pass\n", 3),
        *((f"def It(run):\n    {line}\n", 2) for line in (f"with run.x: {STOP}", f"[{STOP} for _ in ()]")),
        (f"def It(run):\n    {'-' * 1500}{STOP}\n", 2),
    ],
)
def test_where_a_call_is_found(tmp_path: Path, code: str, line: int) -> None:
    (message,) = warnings(tmp_path, code, POINT if "_val" not in code else "")
    assert "calls run.skip_step at " in message and f"(FILE:{line})" in message


HELPER = f"    def end(self, why, it, *, of=None):\n        {STOP.replace('run', 'it')}\n        of.skip_batch()\n"
STATIC = f"    @staticmethod\n    def end(why, it, of=None):\n        {STOP.replace('run', 'it')}\n"


@pytest.mark.parametrize(
    ("call", "helper", "calls"),
    [
        ("self.end(1, run)", HELPER, ["run.skip_step"]),
        ("self.end(1, it=run)", HELPER, ["run.skip_step"]),
        ("self.end(1, run, of=run)", HELPER, ["run.skip_step", "run.skip_batch"]),
        ("self.end(1, run)", STATIC, ["run.skip_step"]),
        ("self.end(run)", f"    def end(self, run): {STOP}; self.end(run)\n", ["run.skip_step"]),
        ("self.end(1, run.task)", HELPER, []),
        ("self.end(*run.x, run)", HELPER, []),
        ("self.other.end(1, run)", HELPER, []),
        ("self = run.task; self.end(1, run)", HELPER, []),
        ("self.end(1, run)", "    end = print\n", []),
    ],
)
def test_methods_that_a_call_gives_the_run_to(tmp_path: Path, call: str, helper: str, calls: list[str]) -> None:
    code = f"class It:\n    def after_val(self, run):\n        {call}\n{helper}"
    assert [line.split()[3] for line in warnings(tmp_path, code)] == calls


@pytest.mark.parametrize(
    "lines",
    [
        ("run = run.task", STOP),
        ("for run in run.tasks:", f"    {STOP}"),
        ("try: pass", "except E as run: pass", STOP),
        ("import run", STOP),
        ("def run(): pass", STOP),
        ("match run.x:", f"    case run: {STOP}"),
        ("def inside():", "    nonlocal run", STOP),
        (f"[{STOP} for run in ()]",),
        ("del run", STOP),
        (f"def later(): {STOP}",),
        (f"later = lambda: {STOP}",),
        (f"class Later: x = {STOP}",),
        ("self.run.skip_step()",),
        ("run.task.skip_step()",),
        ("skip = run.skip_step",),
        ("run.step_skipped()",),
    ],
    ids=lambda lines: lines[0],
)
def test_where_it_is_not_certain_nothing_is_reported(tmp_path: Path, lines: tuple[str, ...]) -> None:
    assert not of_method(tmp_path, *lines)


@pytest.mark.parametrize(
    ("code", "table"),
    [
        (f"from functools import partial\ndef f(run, metrics):\n    {STOP}\nIt = partial(f, print)\n", POINT),
        (f"run = print\nclass It:\n    def after_val(self, metrics): {STOP}\n", ""),
        (f"class It:\n    def after_val(self, run): {STOP}\n    def after_run(self): pass\n", 'points = ["after_run"]'),
        (f"exec(compile('class It:\\n  def after_val(self, run): {STOP}\\n', __file__, 'exec'))", ""),
        ("class It: after_val, after_run = lambda self, run: run.skip_step(), lambda self, run: 0", ""),
        ("It = print", POINT),
        (f"from pathlib import Path\nPath(__file__).unlink()\nclass It:\n    def after_val(self, run): {STOP}\n", ""),
    ],
)
def test_of_another_run_or_a_source_that_cannot_be_read_nothing_is_reported(
    tmp_path: Path, code: str, table: str
) -> None:
    assert warnings(tmp_path, code, table) == []


def test_the_built_in_hooks_declare_what_they_call() -> None:
    """As `test_troubles.py` shows: none of them is warned of. This one would be."""
    (said,) = plan(more='[hooks.spike_guard]\nuse = "spike_guard"\nwrites = []\n').warnings
    assert "calls run.skip_step" in said.message
