"""Runs tests on changed code, each change in a fork of its own.

The tests are collected once, by pytest in a process that has imported everything. There they run once as the code
stands, and coverage notes which test runs which lines. Then each change is tried in a fork of that process: the
functions get the changed code, and the tests that run its lines are run, the quickest first, until one fails. What
takes effect while a module is imported is tried in a new pytest, which imports the changed module.
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import accumulate, zip_longest
from pathlib import Path
from types import CodeType, FunctionType
from typing import IO, Any, TypeVar

import coverage
import pytest
from changes import Mutant

T = TypeVar("T")

MEMORY = 8 << 30
"""Bytes that a change may take: one that lets a list grow for ever would take all of the machine's."""

OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutate"]
OPTIONS += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is imported before pytest begins


def survivors(chosen: list[Mutant], tests: list[str], jobs: int, most: float) -> Iterator[tuple[Mutant, str]]:
    """Try each, so many at a time; yield those that no test has noticed, and what is to be said of them.

    Each gets so many seconds of tests at most, as they take without a change.
    """
    new: list[tuple[int, Callable[[], int], float]] = []
    for k, what, seconds in _from_server(chosen, tests, jobs, most):
        if what == IMPORTED:
            new.append((k, partial(_in_new_pytest, chosen[k], seconds), sum(seconds.values())))
        else:
            yield chosen[k], what
    for k, noticed in _forks(new, jobs):
        if not noticed:
            yield chosen[k], SURVIVED


def _from_server(
    chosen: list[Mutant], tests: list[str], jobs: int, most: float
) -> Iterator[tuple[int, str, dict[str, float]]]:
    """Start the process that collects the tests, and yield what it says of each change that no test has noticed."""
    there, here = os.pipe()
    with tempfile.TemporaryFile("w+") as output:
        if not (pid := os.fork()):
            os.close(there)
            _print_to(output)
            os._exit(pytest.main([*OPTIONS, *tests], plugins=[_Server(chosen, jobs, most, here)]))
        os.close(here)
        with os.fdopen(there) as answers:
            yield from map(json.loads, answers)
        if os.waitpid(pid, 0)[1]:
            output.seek(0)
            raise SystemExit(f"without any change, these fail: {' '.join(tests)}\n{output.read()}")


SURVIVED, UNREACHED, IMPORTED = "survived", "run by no test", "imported"


@dataclass
class _Server:
    """Takes the place of pytest's loop over the tests, once they are collected."""

    chosen: list[Mutant]
    jobs: int
    most: float
    """How many seconds of tests each change gets."""
    answers: int
    """The file descriptor that takes a line for each change that is not noticed here."""

    def pytest_load_initial_conftests(self) -> None:
        """Begin to measure before conftest.py imports what is to be measured."""
        files = [str(file.absolute()) for file in {mutant.file for mutant in self.chosen}]
        self.measured = coverage.Coverage(data_file=None, include=files, config_file=False, messages=False)
        self.measured.start()
        for module in {mutant.module for mutant in self.chosen}:
            import_module(module)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.measured.stop()
        reached = _reached(session, self.measured)
        functions = _functions({str(mutant.file.absolute()) for mutant in self.chosen})
        works: list[tuple[int, Callable[[], int], float]] = []
        with os.fdopen(self.answers, "w") as answers:
            for k, mutant in enumerate(self.chosen):
                tests = _quickest(reached.tests(mutant), self.most)
                changed = _changed(functions, mutant)
                if not changed or reached.at_import(mutant):
                    print(
                        json.dumps([k, IMPORTED, tests or _quickest(reached.seconds, self.most)]),
                        file=answers,
                        flush=True,
                    )
                elif not tests:
                    print(json.dumps([k, UNREACHED, {}]), file=answers, flush=True)
                else:
                    works.append((k, partial(_here, session, changed, tests, self.jobs), sum(tests.values())))
            for k, noticed in _forks(works, self.jobs):
                if not noticed:
                    print(json.dumps([k, SURVIVED, {}]), file=answers, flush=True)
        return True


@dataclass(frozen=True)
class _Reached:
    """What the tests take and run as the code stands."""

    seconds: dict[str, float]
    lines: dict[str, dict[str, list[int]]]
    """Those of each file that a test has run; that without a name is the import."""
    tracing: list[str]
    """The tests that trace lines themselves, which coverage cannot do then: they may have run any of a file."""

    def tests(self, mutant: Mutant) -> dict[str, float]:
        """Return the tests that run what is changed, with their seconds; what only an import runs, is the file."""
        of = self.lines.get(str(mutant.file.absolute()), {})
        every = self.tracing if mutant.lines else of
        ran = (test for test, run in of.items() if test in every or not set(mutant.lines).isdisjoint(run))
        return {test: self.seconds[test] for test in ran if test}

    def at_import(self, mutant: Mutant) -> bool:
        of = self.lines.get(str(mutant.file.absolute()), {})
        return not mutant.lines or not set(mutant.lines[1:] or mutant.lines).isdisjoint(of.get("", ()))


def _quickest(tests: Mapping[str, float], most: float) -> dict[str, float]:
    """Return the quickest tests, which take so many seconds together; one at least."""
    in_order = sorted(tests, key=tests.__getitem__)
    sums = accumulate(tests[test] for test in in_order)
    return {
        test: tests[test]
        for k, (test, so_far) in enumerate(zip(in_order, sums, strict=True))
        if not k or so_far <= most
    }


def _reached(session: pytest.Session, measured: coverage.Coverage) -> _Reached:
    """Run all tests in a fork, and return what they have run."""
    with tempfile.NamedTemporaryFile("w+") as file:

        def measure() -> int:
            watching = _Watching(measured)
            session.config.pluginmanager.register(watching)
            measured.start()
            watching.notice_tracing()
            failed = _run(session, session.items, lambda _: None)
            measured.stop()
            data = measured.get_data()
            lines: dict[str, dict[str, list[int]]] = {}
            for path in data.measured_files():
                for line, tests in data.contexts_by_lineno(path).items():
                    for test in tests:
                        lines.setdefault(path, {}).setdefault(test, []).append(line)
            json.dump([watching.seconds, lines, watching.tracing], file)
            file.flush()
            return failed

        for _, failed in _forks([(None, measure, 360)], 1):
            if failed:
                os._exit(1)
        file.seek(0)
        return _Reached(*json.load(file))


@dataclass
class _Watching:
    """Tells coverage which test runs, and keeps how long each took."""

    measured: coverage.Coverage
    seconds: dict[str, float] = field(default_factory=dict)
    tracing: list[str] = field(default_factory=list)

    def notice_tracing(self) -> None:
        settrace = sys.settrace

        def noticed(function: Any) -> None:
            if threading.current_thread() is threading.main_thread():
                self.tracing.append(self.now)
            settrace(function)

        sys.settrace = noticed

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.now = nodeid
        self.measured.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration
        if report.failed:
            print(report.longreprtext, flush=True)


def _run(session: pytest.Session, items: Sequence[pytest.Item], before: Callable[[pytest.Item], object]) -> int:
    """Run tests up to the first that fails, each after a call of `before`; return 1 then."""
    for item, following in zip_longest(items, items[1:]):
        before(item)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return 1
    return 0


def _here(
    session: pytest.Session, changed: list[tuple[FunctionType, CodeType]], tests: dict[str, float], jobs: int
) -> int:
    for function, code in changed:
        function.__code__ = code
    items = sorted((item for item in session.items if item.nodeid in tests), key=_by(tests))
    return _run(session, items, lambda item: signal.alarm(_limit(tests[item.nodeid], jobs)))


def _limit(seconds: float, jobs: int) -> int:
    """Return after how many seconds what takes so many is taken to hang."""
    return int(60 + 5 * jobs * seconds)


def _by(tests: Mapping[str, float]) -> Callable[[pytest.Item], float]:
    return lambda item: tests[item.nodeid]


def _functions(files: Collection[str]) -> dict[str, list[FunctionType]]:
    """Return the functions and methods of files: those that stand in no other function."""
    found: dict[str, list[FunctionType]] = {file: [] for file in files}
    for one in gc.get_objects():
        if type(one) is FunctionType and "<" not in one.__code__.co_qualname:
            found.get(one.__code__.co_filename, []).append(one)
    return found


def _changed(functions: Mapping[str, list[FunctionType]], mutant: Mutant) -> list[tuple[FunctionType, CodeType]]:
    """Return the functions that a change alters, with their new code; none where that is not all there is to it."""
    new = {(code.co_qualname, code.co_firstlineno): code for code in _codes(mutant.code())}
    changed = []
    for function in functions[str(mutant.file.absolute())]:
        code = new.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
        if code is not None and code != function.__code__:
            if code.co_freevars != function.__code__.co_freevars:
                return []
            changed.append((function, code))
    return changed


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _in_new_pytest(mutant: Mutant, tests: dict[str, float]) -> int:
    sys.meta_path.insert(0, _Finder(mutant))
    files = sorted({test.partition("::")[0] for test in tests})
    with Path(os.devnull).open("w") as nowhere:
        _print_to(nowhere)
        return pytest.main([*OPTIONS, *files], plugins=[_Chosen(tests)])


class _Finder(importlib.abc.MetaPathFinder):
    """Gives one module its changed code."""

    def __init__(self, mutant: Mutant) -> None:
        self.name = mutant.module
        self.code = mutant.code()

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)  # type: ignore[arg-type]
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module = lambda module: exec(self.code, module.__dict__)  # type: ignore[method-assign]  # noqa: S102  # the code of this project
        return spec


@dataclass
class _Chosen:
    """Lets the chosen tests alone run, the quickest first."""

    tests: dict[str, float]

    @pytest.hookimpl(trylast=True)  # after pytest has put them in an order of its own
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((item for item in items if item.nodeid in self.tests), key=_by(self.tests))


def _forks(works: Iterable[tuple[T, Callable[[], int], float]], jobs: int) -> Iterator[tuple[T, int]]:
    """Do each in a fork, so many at a time, and yield how it ended: 0 is well. What hangs is ended."""
    running: dict[int, tuple[T, str]] = {}

    def one_ended() -> tuple[T, int]:
        while True:
            pid, status = os.wait()
            if pid in running:
                of, folder = running.pop(pid)
                shutil.rmtree(folder, ignore_errors=True)
                return of, status

    for of, work, seconds in works:
        folder = tempfile.mkdtemp(prefix="mutate-")
        if not (pid := os.fork()):
            signal.alarm(_limit(seconds, jobs))
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            os.environ["PYTEST_DEBUG_TEMPROOT"] = folder  # what a test leaves goes with its process
            os.setsid()
            os._exit(work())
        running[pid] = of, folder
        if len(running) == jobs:
            yield one_ended()
    while running:
        yield one_ended()


def _print_to(file: IO[str]) -> None:
    """Let what this process prints go to a file."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    os.dup2(file.fileno(), sys.stdout.fileno())
    os.dup2(file.fileno(), sys.stderr.fileno())
