"""What every test may lean on: a run of the toy pipeline, in this process or in one of its own."""

import gc
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer.main
from hypothesis import HealthCheck, settings

from hookflow import text
from hookflow.errors import Problem, UserError
from hookflow.events import run_lock
from hookflow.events.log import TailReader
from hookflow.events.packing import unpack
from hookflow.events.rundir import RunDir
from hookflow.graph.plan import Plan
from hookflow.graph.points import DEFAULT_POINTS, Points
from hookflow.hooks import compile as compiling
from hookflow.hooks.compile import compile_pipeline
from hookflow.hooks.inspect import Inspection
from hookflow.offload import hook_process
from hookflow.pipeline.load import parse
from hookflow.runner.attempt import main
from hookflow.runner.process import code_recorder, launch
from hookflow.runner.process.launch import prepare
from hookflow.runner.process.signals import handlers_put_back
from tests.processor import sitecustomize
from tests.support.limits import LIMIT
from tests.support.processes import Spawned, Training

TESTS = Path(__file__).parent
TOY = TESTS / "support" / "toy.toml"
TOY_FILES = ("toy.toml", "toy.py", "common_hooks.py")
"""What a test copies that wants the toy pipeline in a folder of its own."""
PROCESSOR = str(Path(sitecustomize.__file__).parent)
# What a CI, an ssh session or a launcher says here, and hookflow, Rich, Textual or torch would
# obey.
ELSEWHERE = re.compile(
    "CI|GITHUB_ACTIONS|LANG|LC_.*|(NO|FORCE)_COLOR|COLORTERM|TTY_.*|COLUMNS|LINES|SSH_.*|TEXTUAL.*|XDG_.*|"
    "PYTHONDONTWRITEBYTECODE|RANK|WORLD_SIZE|LOCAL_.*|MASTER_.*|TORCHELASTIC_.*|CUBLAS_.*"
)

TRACER = 'hooks.tracer={use="./common_hooks.py:Tracer", phase="last", args={file="%s"}}'
"""An override for a hook that writes each firing of a point into a file."""

_modules = 0
NewRun = Callable[..., RunDir]
Train = Callable[..., int]
Trained = Callable[..., RunDir]

# A busy machine is no mistake, and the same commit has the same result: `make test-long` draws anew
# each time.
settings.register_profile(
    "hookflow",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    max_examples=50,
)
settings.register_profile(
    "long", settings.get_profile("hookflow"), derandomize=False, max_examples=200
)
settings.load_profile("hookflow")


def circle(*run: str) -> str:
    """Return a small pipeline as TOML, with these lines in its `[run]`; more tables may follow."""
    lines = "\n".join(run)
    return f"""\
[run]
name = "p"
{lines}
[model]
use = "hookflow.zoo.circle:Net"
[optimizer]
use = "torch.optim:SGD"
[data.train]
use = "circle"
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bf16", choices=["on", "off"], help="whether the CPU computes in bf16, whatever it says"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let the processes that tests start ask the same processor as this one,
    and none the machine that they are on.
    """
    for name in filter(ELSEWHERE.fullmatch, list(os.environ)):
        del os.environ[name]
    home = tempfile.TemporaryDirectory(prefix="hookflow-home-")
    config.add_cleanup(home.cleanup)
    # The dashboard is as it comes, and keeps no snapshots for the user.
    for kind in ("CONFIG", "CACHE"):
        os.environ[f"XDG_{kind}_HOME"] = os.path.join(home.name, kind.lower())  # noqa: PTH118
    # To compile the tests, and hookflow in each process, takes half a minute.
    sys.dont_write_bytecode = False
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (PROCESSOR, os.environ.get("PYTHONPATH")))
    )
    os.environ["TZ"] = "UTC"  # times of day are drawn where the reader is
    time.tzset()
    os.environ["OMP_NUM_THREADS"] = "1"  # the threads of a small net wait for one another, and spin
    torch.set_num_threads(1)
    _patch_whole_suite()
    if has := config.getoption("--bf16"):
        os.environ[sitecustomize.VARIABLE] = has
    if config.getoption("-m") == "long":
        settings.load_profile("long")


def _patch_whole_suite() -> None:
    """Replace what costs a short training more than its iterations."""
    # An interpreter that imports torch takes seconds: trainings and hooks' processes are forked off
    # a server.
    for module in (launch, hook_process):
        module.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": Spawned})  # type: ignore[assignment]
    # What `pytest_runtest_setup` has frozen stays frozen: a training would unfreeze it at its end,
    main.collect_seldom = lambda: nullcontext(lambda: None)  # type: ignore[assignment]
    # and when it is built anew to go back to a checkpoint.
    main.gc = SimpleNamespace(**{**vars(gc), "unfreeze": lambda: None})  # type: ignore[assignment]
    # The source of each built-in hook would be parsed anew for each pipeline: a tenth of a short
    # training.
    compiling.Inspection = _inspected  # type: ignore[assignment,misc]
    # Each of thousands of runs would start git; those in a process of their own do.
    code_recorder.CodeRecorder._ask_git = lambda recorder: None  # type: ignore[method-assign]


@pytest.fixture(params=["on", "off"])
def bf16(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Test on a CPU that computes in bf16, and on one that does not, whatever `--bf16` says."""
    monkeypatch.setenv(sitecustomize.VARIABLE, request.param)
    return bool(request.param == "on")


_inspected_once = cache(Inspection)


def _inspected(hook: Any, points: Points) -> Inspection:
    """Inspect a built-in hook once, and any other each time."""
    built_in = points is DEFAULT_POINTS and str(getattr(hook, "__module__", "")).startswith(
        "hookflow."
    )
    return (_inspected_once if built_in else Inspection)(hook, points)


def pytest_runtest_setup() -> None:
    """Keep what has been imported out of every search for garbage:
    they took a fifth of the suite's time.
    """
    global _modules
    if len(sys.modules) > _modules + 50:
        _modules = len(sys.modules)
        gc.freeze()


@pytest.fixture
def interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trainings and the processes of hooks be interpreters that are started,
    as they are for a user.
    """
    for module in (launch, hook_process):
        monkeypatch.setattr(module, "subprocess", subprocess)


@pytest.fixture
def new_run(tmp_path: Path) -> NewRun:
    """Make the directory of a new run of a pipeline, with overrides, and some of its text swapped
    for other.

    Nothing is trained yet.
    """
    return partial(make_run, tmp_path)


def make_run(
    folder: Path, *overrides: str, swap: tuple[str, str] | None = None, pipeline: Path = TOY
) -> RunDir:
    text = pipeline.read_text()
    threads = "run.threads=1"  # two runs in a row must not fight for the processor
    loaded = parse(text.replace(*swap) if swap else text, pipeline, (threads, *overrides))
    run_dir = RunDir.create(folder / "runs", loaded.pipeline.run.name)
    prepare(loaded, compile_pipeline(loaded), run_dir, pipeline.parent)
    return run_dir


def train_toy(folder: Path, *overrides: str, **options: Any) -> RunDir:
    """Train the toy pipeline, or another one, in this process, below a folder;
    handlers of signals are put back.
    """
    from hookflow.runner.attempt.main import train

    run_dir = make_run(folder, *overrides, **options)
    with handlers_put_back():
        assert train(run_dir) == 0, reason(run_dir)
    return run_dir


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Train a run of these overrides once for all tests, which only read it:
    they compare others with it.
    """
    return cache(
        lambda *overrides, **options: train_toy(
            tmp_path_factory.mktemp("alone"), *overrides, **options
        )
    )


@pytest.fixture(scope="session")
def left_alone(undisturbed: Trained) -> RunDir:
    """A run of the toy pipeline that nothing disturbs."""
    return undisturbed()


def refusal(*overrides: str) -> Problem:
    """Return the one problem for which the toy pipeline with these overrides is
    refused before anything is built.
    """
    with pytest.raises(UserError) as refused:
        compile_pipeline(parse(TOY.read_text(), TOY, overrides))
    (problem,) = refused.value.problems
    return problem


@pytest.fixture(autouse=True)
def _nothing_masked() -> Iterator[None]:
    """Forget what the pipelines of a test have taken from the environment:
    it is masked in the whole process.
    """
    yield
    text.remove_masks([*text._values])


@pytest.fixture
def train_here() -> Iterator[Callable[..., int]]:
    """Train a run in this process and return its exit code;
    signal handlers are put back afterwards.
    """

    from hookflow.runner.attempt.main import train

    with handlers_put_back():
        yield train


def strikes(tmp_path: Path, number: int, *places: tuple[str, int], times: int = 1) -> list[str]:
    """Return overrides for hooks that send their own process a signal at these
    points and iterations, once each.
    """
    return [
        f'hooks.strike{k}={{use="tests.support.common_hooks:Interrupts", points=["{point}"], '
        f'args={{mark="{tmp_path / f"mark{k}"}", at={at}, number={number}, times={times}}}}}'
        for k, (point, at) in enumerate(places)
    ]


@pytest.fixture
def resumes_alike(
    undisturbed: Trained, new_run: NewRun, train_here: Train, tmp_path: Path
) -> NewRun:
    """Assert that a run which a signal ends at a point, and which is resumed,
    ends as the same run does in one go.
    """
    from tests.runner.same import assert_same_end

    def check(
        *overrides: str, point: str, at: int, number: int = signal.SIGTERM, **options: Any
    ) -> RunDir:
        # As one, which Slurm's signals are.
        times = 2 if number in (signal.SIGTERM, signal.SIGUSR1) else 1
        cut = new_run(*overrides, *strikes(tmp_path, number, (point, at), times=times), **options)
        if number == signal.SIGKILL:
            assert Training(cut).wait() == -number
        else:
            assert train_here(cut) == (130 if number == signal.SIGINT else 143), reason(cut)
        assert train_here(cut, resume=True) == 0, reason(cut)
        assert_same_end(undisturbed(*overrides, **options), cut)
        return cut

    return check


@pytest.fixture
def trained(new_run: NewRun, train_here: Train) -> Trained:
    """Train a new run in this process, and return its directory; `code` is the exit code."""

    def run(
        *overrides: str, code: int = 0, swap: tuple[str, str] | None = None, pipeline: Path = TOY
    ) -> RunDir:
        run_dir = new_run(*overrides, swap=swap, pipeline=pipeline)
        assert train_here(run_dir) == code, records(run_dir, "end")
        return run_dir

    return run


@pytest.fixture
def written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing depend on how long a disk takes:
    what is saved at a boundary is on the disk by the next one.
    """
    from hookflow.runner.state import checkpoint_manager as manager
    from hookflow.runner.state.checkpoint_manager import PendingCheckpoint, begin

    def begin_and_wait(saving: PendingCheckpoint, *how: Any) -> None:
        begin(saving, *how)
        assert saving.thread is not None
        saving.thread.join()

    monkeypatch.setattr(manager, "begin", begin_and_wait)


Done = subprocess.CompletedProcess[str]


def hookflow(*arguments: str, cwd: Path, code: int | None = None) -> Done:
    """Run the command line as a user would, in a directory of its own, and return what it printed;
    check its exit code.

    The process, and what it starts, is forked off a server that has imported torch.
    """
    with hookflow_begun(*arguments, cwd=cwd) as child:
        printed = child.communicate(timeout=LIMIT)
    return checked(Done(arguments, child.returncode, *printed), code)


def checked(done: Done, code: int | None) -> Done:
    assert code in (None, done.returncode), (done.args, done.stdout + done.stderr)
    return done


def hookflow_begun(*arguments: str, cwd: Path, **streams: Any) -> Spawned:
    """Begin to do that and return the process,
    whose output and errors are pipes of text unless `streams` are given.
    """
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    pipes = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    command = (sys.executable, "-m", "hookflow", *arguments)
    return Spawned(command, cwd=cwd, env=environment, **(streams or pipes))


# To build the command line takes longer than most of its commands.
_command_of = cache(typer.main.get_command)


def hookflow_here(*arguments: str, cwd: Path, code: int | None = None) -> Done:
    """Do the same in this process, which takes a second less: for commands that start no other.

    Afterwards locks are released, and signals are handled as before.
    """
    from hookflow.cli.app import main

    out, errors, ended = io.StringIO(), io.StringIO(), 0
    threshold, held = gc.get_threshold(), {*run_lock._held}
    with (
        handlers_put_back(),
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(out),
        redirect_stderr(errors),
    ):
        patch.chdir(cwd)
        patch.setenv("COLUMNS", "100")
        patch.setenv("NO_COLOR", "1")
        patch.setattr(sys, "argv", ["hookflow", *arguments])
        patch.setattr(typer.main, "get_command", _command_of)
        try:
            main()
        except SystemExit as left:
            ended = int(left.code or 0)
        finally:
            gc.set_threshold(*threshold)
            run_lock.release(tuple(run_lock._held - held))
            launch._KEPT_LOCKS.clear()
    return checked(Done(arguments, ended, out.getvalue(), errors.getvalue()), code)


def run_here(*arguments: str, cwd: Path, code: int | None = None) -> Done:
    """Train by `hookflow run` in this process."""
    return hookflow_here("run", *arguments, "--in-process", cwd=cwd, code=code)


def records(run_dir: RunDir, kind: str | None = None) -> list[dict[str, object]]:
    """Return the records of a run's event log, of one kind or all;
    of scalars one for each iteration.
    """
    everything = TailReader(run_dir.events).read_all()
    return [
        each
        for record in everything
        if kind is None or record["k"] == kind
        for each in rows(record)
    ]


def rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a record of scalars as records; any other record as it is."""
    return (
        [{"k": "scalars", **row._asdict()} for row in unpack(record)]
        if record["k"] == "scalars"
        else [record]
    )  # type: ignore[arg-type]


def messages(run_dir: RunDir, level: str | None = None) -> list[str]:
    """Return the texts of a run's messages, of one level or all."""
    return [
        str(r["text"]) for r in records(run_dir, "message") if level is None or r["level"] == level
    ]


def reason(run_dir: RunDir) -> str:
    """Return why a run has ended."""
    return str(records(run_dir, "end")[-1]["reason"])


def ended(run_dir: RunDir) -> tuple[object, object]:
    """Return the status and the exit code with which a run has ended."""
    end = records(run_dir, "end")[-1]
    return end["status"], end["exit"]


def firings(run_dir: RunDir) -> dict[tuple[str, str], int]:
    """Return how often each hook has fired at each point."""
    bindings = Plan.from_json(json.loads(run_dir.plan.read_text())).bindings
    counts: Counter[tuple[str, str]] = Counter()
    for frame in records(run_dir, "frame"):
        for id_, (fired, *_) in frame["hooks"].items():  # type: ignore[attr-defined]
            counts[bindings[int(id_)].hook, bindings[int(id_)].point] += fired
    return counts


def wait_for(condition: Callable[[], object], what: str = "the condition") -> None:
    """Look again and again until the condition holds;
    `what` is told when it does not within LIMIT seconds.
    """
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, f"waited {LIMIT} s in vain for {what}"
        time.sleep(0.02)
