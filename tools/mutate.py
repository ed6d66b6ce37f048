"""Mutation testing: changes one operator at a time in a file, and runs its tests on the changed code.

A change that no test notices has survived: either a test is missing, or the change makes no difference. Each mutant
runs in a fork of this process, which has imported what takes long, and holds the changed module in memory alone: no
file is written. Processes that tests start run the code as it stands.

    make mutate                                              # a sample of each file of the table below
    make mutate ARGS="hookflow/graph/order.py --sample 1000" # all of one file
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.machinery
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUNNER, CLI = "tests/runner/", "tests/cli/"
TESTS = {
    "hookflow/graph/render": ["tests/graph/render", CLI + "test_graph.py"],
    "hookflow/graph": [
        *(
            f"tests/graph/test_{name}.py"
            for name in ("slots", "order", "nesting", "compile", "ambiguity", "precedence", "fuzz")
        ),
        "tests/graph/test_recorded_plan.py",
        *(CLI + f"test_{name}.py" for name in ("why_command", "diff_command", "check")),
    ],
    "hookflow/runner/checkpoint": [
        *(RUNNER + f"test_{name}.py" for name in ("nested", "weights", "snapshot", "checkpoint", "checkpoint_damage")),
        *(RUNNER + f"test_{name}.py" for name in ("checkpoint_saving", "last_checkpoint", "resume_changed", "resume")),
        *(CLI + f"test_{name}.py" for name in ("checkpoints_command", "resume_file")),
    ],
}
"""The tests of each folder."""
MORE = {
    "hookflow/graph/forecast.py": [RUNNER + "test_triggers_forecast.py", RUNNER + "test_forecast.py"],
    "hookflow/graph/slots.py": [CLI + "test_ranks_said.py"],
    "hookflow/graph/schedule.py": [
        "tests/graph/test_schedule.py",
        RUNNER + "test_triggers.py",
        RUNNER + "test_triggers_forecast.py",
    ],
    "hookflow/graph/points.py": [CLI + "test_points_command.py", RUNNER + "test_modes.py"],
}
"""Tests of some files beside those of their folder; they come first."""

OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutate"]
OPTIONS += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is imported before pytest begins

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.Break: ast.Continue,
    ast.Continue: ast.Break,
}
NAMES = {"any": "all", "all": "any", "min": "max", "max": "min"}


@dataclass(frozen=True)
class Mutant:
    """The change with this number in a file."""

    file: Path
    number: int
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


def changes(tree: ast.AST) -> Iterator[tuple[int, str, Callable[[], None]]]:
    """Yield the line of each change, what it does in words, and what makes it in this tree."""
    for node in _code(tree):
        line = getattr(node, "lineno", 0)
        for field, value in ast.iter_fields(node):
            for k, one in enumerate(value) if isinstance(value, list) else [(None, value)]:
                for what, other in _others(one):
                    yield getattr(one, "lineno", line), what, _putter(node, field, k, other)


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that are executed: no annotations, no decorators, nothing for type checkers."""
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ast.AST) and "TYPE_CHECKING" not in ast.dump(getattr(one, "test", one))[:80]:
                yield from _code(one)


def _others(one: object) -> Iterator[tuple[str, object]]:
    if (swap := SWAPS.get(type(one))) is not None:  # type: ignore[arg-type]
        yield f"{type(one).__name__} becomes {swap.__name__}", swap()
    match one:
        case ast.Constant(value=bool(value)):
            yield f"{value} becomes {not value}", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield f"{value} becomes {value + 1}", ast.Constant(value + 1)
        case ast.UnaryOp(op=ast.Not()):
            yield f"not {ast.unparse(one.operand)} loses its not", one.operand
        case ast.Name(id=name, ctx=ast.Load()) if name in NAMES:
            yield f"{name} becomes {NAMES[name]}", ast.Name(NAMES[name], ast.Load())
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield f"return {ast.unparse(value)[:60]} returns None", ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()):
            yield f"{ast.unparse(one)[:60]} is left out", ast.Pass()


def _putter(node: ast.AST, field: str, k: int | None, other: object) -> Callable[[], None]:
    def put() -> None:
        if k is None:
            setattr(node, field, other)
        else:
            getattr(node, field)[k] = other

    return put


def mutants(file: Path) -> list[Mutant]:
    found = changes(ast.parse(file.read_text("utf-8")))
    return [Mutant(file, number, line, what) for number, (line, what, _) in enumerate(found)]


class Finder(importlib.abc.MetaPathFinder):
    """Gives one module its changed code."""

    def __init__(self, mutant: Mutant) -> None:
        self.name = ".".join(mutant.file.with_suffix("").parts)
        tree = ast.parse(mutant.file.read_text("utf-8"))
        list(changes(tree))[mutant.number][2]()
        self.code = compile(ast.fix_missing_locations(tree), str(ROOT / mutant.file), "exec")

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)  # type: ignore[arg-type]
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module = lambda module: exec(self.code, module.__dict__)  # type: ignore[method-assign]  # noqa: S102  # the code of this project
        return spec


def tests_of(file: Path) -> list[str]:
    folder = next(folder for folder in TESTS if file.as_posix().startswith(f"{folder}/"))
    return [*MORE.get(file.as_posix(), ()), *TESTS[folder]]


def start(tests: list[str], mutant: Mutant | None, limit: float) -> int:
    """Run the tests in a fork, on the changed code; return its process id."""
    import pytest

    if pid := os.fork():
        return pid
    os.setsid()
    signal.alarm(int(limit))
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    if mutant is not None:
        sys.meta_path.insert(0, Finder(mutant))
    os._exit(pytest.main([*OPTIONS, *tests]))


def survivors(chosen: list[Mutant], jobs: int) -> Iterator[Mutant]:
    """Run the tests on each, so many at a time, and yield those that no test has noticed."""
    limits: dict[tuple[str, ...], float] = {}
    for mutant in chosen:
        tests = tests_of(mutant.file)
        if tuple(tests) not in limits:
            began = time.monotonic()
            if os.waitpid(start(tests, None, 1800), 0)[1]:
                raise SystemExit(f"without any change, these fail: {' '.join(tests)}")
            limits[tuple(tests)] = 60 + 5 * jobs * (time.monotonic() - began)
    running: dict[int, Mutant] = {}
    waiting = list(chosen)
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop()
            tests = tests_of(mutant.file)
            running[start(tests, mutant, limits[tuple(tests)])] = mutant
        pid, status = os.wait()
        if pid in running and (mutant := running.pop(pid)) and not status:
            yield mutant


def main() -> None:
    parser = argparse.ArgumentParser(description="Mutation testing of graph/ and runner/checkpoint/")
    parser.add_argument("files", nargs="*", type=Path, help="files to change; those of the table when left out")
    parser.add_argument("--sample", type=int, default=5, help="how many changes of each file are tried")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="how many at a time")
    given = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    import hypothesis
    import networkx  # noqa: F401  # what takes long is imported once, before the forks
    import pydantic  # noqa: F401
    import torch.utils.data  # noqa: F401
    import typer.testing  # noqa: F401

    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile(
        "mutate", deadline=None, suppress_health_check=slow, max_examples=25, derandomize=True, database=None
    )
    files = given.files or sorted(file for folder in TESTS for file in Path(folder).glob("*.py"))
    chosen = []
    for file in files:
        every = mutants(file)
        chosen += random.Random(f"{given.seed} {file}").sample(every, min(given.sample, len(every)))
    left = 0
    for mutant in survivors(chosen, given.jobs):
        print(f"survived: {mutant}", flush=True)
        left += 1
    print(f"{len(chosen) - left} of {len(chosen)} changes were noticed")


if __name__ == "__main__":
    main()
