"""Commands and trainings that start in no time: forked off a server that has imported torch, and
has not used it yet.

What a fresh interpreter has is given to each of them: its arguments, environment, folder, streams,
`__main__` and search path. What such a process starts by `python -m hookflow…` is forked off it in
turn.
"""

import atexit
import fcntl
import importlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import process, reduction
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from hookflow.events import commands
from hookflow.events.rundir import RunDir
from hookflow.monitor import feed
from hookflow.notify import process as notifying
from hookflow.offload import hook_thread
from hookflow.runner.attempt import main as attempts
from hookflow.runner.distributed import agent, failures
from hookflow.runner.logging import recorder
from hookflow.sweep import executor
from tests.processor.sitecustomize import VARIABLE
from tests.support.limits import LIMIT

ELASTIC = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
"""The module that starts the ranks of an agent; it has imported `Popen` by its name."""
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        "hookflow.cli.app",
        "hookflow.cli.resume",
        "hookflow.cli.run",
        "hookflow.runner.attempt.main",
        "hookflow.runner.attempt.attempt",
        "hookflow.monitor.app",
        "hookflow.hooks.builtin.averaging",
        "hookflow.hooks.builtin.log",
        "hookflow.zoo.tasks",
        "torch._dynamo",
        ELASTIC,
        "torch.distributed.checkpoint",
        "torch.distributed.fsdp",
        "torch.distributed.tensor",
        "torch.utils.serialization",
        "tests.support.processes",
        "tests.support.server_preload",
    ]
)
# Here and in the server: what hookflow looks at a few times a second, tests wait for.
SECONDS_IN_TESTS = (
    (agent, "POLL_PERIOD_SECONDS", 0.02),
    (attempts, "PARENT_CHECK_SECONDS", 0.02),
    (commands, "POLL_PERIOD_SECONDS", 0.02),
    (executor, "POLL_PERIOD_SECONDS", 0.02),
    (failures, "POLL_PERIOD_SECONDS", 0.02),
    (feed, "POLL_PERIOD_SECONDS", 0.02),
    (hook_thread, "SIGNAL_INTERVAL", 0.02),
    (notifying, "POLL_INTERVAL", 0.02),
    (recorder, "POLL_PERIOD_SECONDS", 0.02),
    (recorder, "QUICKEST", 0.1),
)
for module, name, seconds in SECONDS_IN_TESTS:
    assert hasattr(module, name), f"{module.__name__} has no {name} any more"
    setattr(module, name, seconds)
ROOT = str(Path(__file__).parents[2])
PYTHON = sys.executable
# In the server: by an interpreter that was just started.
_SEARCHED = [path for path in sys.path if path]
_IMPORTED = {*sys.modules}  # likewise
_MAIN = process.current_process()


def _run(options: Sequence[str]) -> None:
    """Do what `python OPTIONS` does, but for the start of the interpreter:
    `[-P] -m MODULE …` or `-c CODE …`.
    """
    wanted = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    safe = options[0] == "-P"
    first = [] if safe else [str(Path.cwd())]
    kind, name, *arguments = options[safe:]
    sys.path[:] = [*first, *(path for path in wanted if path not in _SEARCHED), *_SEARCHED]
    sys.argv = [kind if kind == "-c" else name, *arguments]
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc] # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # type: ignore[misc] # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(  # type: ignore[misc] # noqa: SIM115
        2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )
    subprocess.Popen = Forked  # type: ignore[misc]
    sys.modules[ELASTIC].Popen = Forked  # type: ignore[attr-defined]
    process._parent_process, process._children = None, set()  # type: ignore[attr-defined]
    process._current_process = _MAIN  # type: ignore[attr-defined]
    if kind == "-m":
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(name, vars(main))


def _end(run: Callable[[], None]) -> None:
    """Call `run`, and end this process as Python would."""
    code: Any = 0
    try:
        run()
    except SystemExit as ended:
        code = ended.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    with suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code & 0xFF)


class Forked(subprocess.Popen[Any]):
    """A process of hookflow that is forked off this one and not started; any other is started.

    It waits until this one asks how it is, or ends: an interpreter would not have started before
    that either.
    """

    _gate = -1

    def _execute_child(
        self, args: Any, program: Any, preexec_fn: Any, close_fds: Any, *more: Any
    ) -> None:
        pass_fds, cwd, env, _, _, _, *ends, _, _, _, _, _, new_session, _ = more
        read, write, out_read, out_write, error_read, error_write = ends
        executable, *options = (
            [args] if isinstance(args, str) else [os.fspath(part) for part in args]
        )
        options = options[options[:1] == ["-u"] :]
        module = options[options.index("-m") + 1] if "-m" in options[:2] else ""
        if executable != PYTHON or not module.startswith("hookflow") or preexec_fn or not close_fds:
            super()._execute_child(args, program, preexec_fn, close_fds, *more)  # type: ignore[misc]
            return
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        copies = {number: os.dup(number) for number in pass_fds}  # a fork closes the locks of a run
        opened, gate = os.pipe()
        self.pid = os.fork()
        self._child_created = True
        if self.pid:
            os.close(opened)
            self._gate = gate
            for copy in copies.values():
                os.close(copy)
            self._close_pipe_fds(read, write, out_read, out_write, error_read, error_write)  # type: ignore[attr-defined]
            return
        if new_session:
            os.setsid()
        for number, end in enumerate((read, out_write, error_write)):
            if end != -1:
                os.dup2(end, number)
        for number, copy in copies.items():
            os.dup2(copy, number)
        kept = {0, 1, 2, opened, *pass_fds}
        for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
            if number not in kept:
                with suppress(OSError):
                    os.close(number)
        if cwd is not None:
            os.chdir(cwd)
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        _forget()
        os.read(opened, 1)
        os.close(opened)
        _end(lambda: _run(options))

    def _open(self) -> None:
        if self._gate != -1:
            os.close(self._gate)
            self._gate = -1

    def poll(self) -> int | None:
        self._open()
        return super().poll()

    def communicate(self, *how: Any, **also: Any) -> tuple[Any, Any]:
        self._open()
        return super().communicate(*how, **also)

    def wait(self, timeout: float | None = None) -> int:
        self._open()
        return super().wait(timeout)


def _forget() -> None:
    """Forget what the process that this one is forked off knows from its own work."""
    from hookflow import text
    from hookflow.pipeline import use
    from hookflow.runner.process import launch

    own = (ROOT + "/hookflow", sys.prefix, sys.base_prefix)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if (
            name not in _IMPORTED
            and file
            and not file.startswith(own)
            and "site-packages" not in file
        ):
            del sys.modules[name]
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual)
    use._imported.clear()
    text.remove_masks([*text._values])
    launch._KEPT_LOCKS.clear()
    importlib.invalidate_caches()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # its temporary folders are not ours to remove


def _become(environment: Mapping[str, str], streams: Mapping[int, int]) -> None:
    """Take the environment and the streams of a process that was started; it may start others."""
    os.environ.clear()
    os.environ.update(environment)
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    for number, stream in streams.items():
        os.dup2(stream, number, inheritable=number < 3)
        os.close(stream)


class _Stream:
    """An open file of this process: a forked one gets a number of it that
    stands in the way of no other.
    """

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _taken, (reduction.DupFd(self.number),)


def _taken(stream: Any) -> int:
    number: int = stream.detach()
    far = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 500)
    os.close(number)
    return far


def _spawn(
    options: Sequence[str],
    cwd: str,
    environment: Mapping[str, str],
    streams: Any,
    session: bool,
    blocked: Any,
    told: Any,
) -> None:
    os.chdir(cwd)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    if session:
        os.setsid()
    _become(environment, streams)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.close(told)
    _end(lambda: _run(options))


class Spawned(subprocess.Popen[Any]):
    """A Python with `[-P] -m MODULE …` or `-c CODE …` that is forked off the
    server and not started; others are.
    """

    process: ForkServerProcess | None = None

    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, *more: Any
    ) -> None:
        pass_fds, cwd, env, _, _, _, *ends, _, _, _, _, _, session, _ = more
        if args[0] != PYTHON:
            super()._execute_child(args, executable, preexec_fn, close_fds, *more)  # type: ignore[misc]
            return
        own = dict(enumerate((ends[0], ends[3], ends[5])))
        streams = {number: _Stream(number if end == -1 else end) for number, end in own.items()}
        streams |= {number: _Stream(number) for number in pass_fds}
        environment = dict(os.environ if env is None else env)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        ready, told = os.pipe()
        how = environment, streams, session, blocked, _Stream(told)
        arguments = [*map(str, args[1:])], str(cwd or Path.cwd()), *how
        self.process = context.Process(target=_spawn, args=arguments, daemon=True)
        self.process.start()
        self.pid = self.process.pid  # type: ignore[assignment]
        self._child_created = True
        os.close(told)
        # Until it leads its session, and a signal to that cannot reach this process.
        os.read(ready, 1)
        os.close(ready)
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined]

    def _internal_poll(self, *how: Any, **also: Any) -> int | None:
        if self.process is None:
            return super()._internal_poll(*how, **also)  # type: ignore[misc,no-any-return]
        self.returncode = self.process.exitcode
        return self.returncode

    def _wait(self, timeout: float | None) -> int | None:
        if self.process is None:
            return super()._wait(timeout)  # type: ignore[misc,no-any-return]
        self.process.join(timeout)
        if self._internal_poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode


def _train(
    path: Path,
    output: str,
    locked: bool,
    options: Mapping[str, bool],
    environment: Mapping[str, str],
) -> None:
    from hookflow.runner.attempt.main import train
    from hookflow.runner.process.launch import hold

    os.environ.update(environment)
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # it may have workers
    run_dir = RunDir(path)
    if locked:
        hold(run_dir)
    printed = os.open(path / output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(printed, sys.stdout.fileno())
    os.dup2(printed, sys.stderr.fileno())
    os._exit(train(run_dir, **options))


class Training:
    """A process that does what `hookflow.runner.process.launch.start` starts; what it prints is in
    `output` of the run.

    It holds the lock of the run if it is `locked`. `options` are those of
    `hookflow.runner.attempt.main.train`.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        output: str = "output.log",
        locked: bool = False,
        environment: Mapping[str, str] = MappingProxyType({}),
        **options: bool,
    ) -> None:
        # The server has that of the test which started it.
        now = {VARIABLE: os.environ.get(VARIABLE, "")}
        args = run_dir.path, output, locked, options, {**now, **environment}
        self.process: ForkServerProcess = context.Process(target=_train, args=args, daemon=True)
        self.process.start()

    def wait(self, timeout: float = LIMIT) -> int:
        """Return the exit code, negative for a signal that killed it."""
        self.process.join(timeout)
        assert self.process.exitcode is not None, f"the training has not ended after {timeout} s"
        return self.process.exitcode

    @property
    def over(self) -> bool:
        return not self.process.is_alive()

    def signal(self, number: int) -> None:
        """Send a signal; it goes nowhere where the process has just ended,
        as with `Popen.send_signal`.
        """
        assert self.process.pid is not None
        with suppress(ProcessLookupError):  # the server may have heard of the end before we do
            os.kill(self.process.pid, number)
