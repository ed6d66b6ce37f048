"""The entry of the training process: one attempt at a run, from its directory to an exit code.

Imports no torch before `train` handles signals, since that takes seconds.
"""

import argparse
import atexit
import faulthandler
import gc
import io
import json
import linecache
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from hookflow.events.now import STACK_DUMP_SIGNAL
from hookflow.events.run_lock import inherit
from hookflow.events.rundir import RunDir
from hookflow.runner.attempt.session import RunSession, find_unfinished_threads
from hookflow.runner.distributed.failures import choose_common_failure, is_peer_lost
from hookflow.runner.distributed.rendezvous import of_environment
from hookflow.runner.process.launch import hold
from hookflow.runner.process.open_files import close_open_files, flush_open_files
from hookflow.runner.process.signals import Rewind, SignalCollector, StopReason
from hookflow.runner.process.state import RunState
from hookflow.text import drop_unprinted, mask_streams, print_error

if TYPE_CHECKING:
    from hookflow.runner.attempt.attempt import TrainingAttempt
    from hookflow.runner.logging.recorder import EventRecorder

BUILD_GC_THRESHOLD = 5000
"""New objects after which Python collects garbage while a run is built; 700 else."""


@contextmanager
def collect_seldom() -> Iterator[Callable[[], None]]:
    """Raise Python's threshold of garbage collection.

    Once the yielded function is called, garbage among newer objects is collected as usual.
    """
    usual = gc.get_threshold()
    gc.set_threshold(BUILD_GC_THRESHOLD, *usual[1:])

    def collect() -> None:
        gc.freeze()
        gc.set_threshold(*usual)

    try:
        yield collect
    finally:
        gc.unfreeze()
        gc.set_threshold(*usual)


@contextmanager
def collect_between() -> Iterator[Callable[[], object]]:
    """Yield a function that collects garbage among objects that are newer than this call."""
    gc.freeze()
    try:
        yield collect_garbage
    finally:
        gc.unfreeze()


def collect_garbage() -> None:
    """Collect garbage, and lose nothing of files that are part of it."""
    flush_open_files()
    gc.collect()


PARENT_CHECK_SECONDS = 0.5
"""Seconds between the checks of the parent."""

STARTUP_GRACE_SECONDS = 10.0
"""Seconds that a rank has to end before its training has begun.

It may wait in C++ for ranks that never come.
"""


def watch_parent(signals: SignalCollector, launcher: int | None) -> None:
    """End the run as SIGTERM does once the parent process is gone.

    It is the `launcher`, where its pid is known.
    """
    parent = launcher or os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_CHECK_SECONDS)
        began = signals.graceful
        signals.terminate(f"the launcher (process {parent}) is gone")
        time.sleep(STARTUP_GRACE_SECONDS)
        if not began:
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="hookflow-watchdog", daemon=True).start()


def train(
    run_dir: RunDir,
    *,
    resume: bool = False,
    allow_changed_hooks: bool = False,
    agent: bool = False,
    launcher: int | None = None,
    restarts_left: int = 0,
    raises: bool = False,
) -> int:
    """Execute the run whose pipeline and plan are in `run_dir`; return the exit code.

    0: finished or stopped; 1: something raised; 2: the user's mistake; 130 (SIGINT) and 143
    (SIGTERM, SIGUSR1): interrupted. The log gets an `end` record, or `refused` where a resume has
    not read its checkpoint. It gets none where the `agent` that has started the ranks writes it,
    since this rank knows only that another is gone; nor after exit code 1 while the ranks are to be
    started again, `restarts_left` times.

    A rank ends with its parent, or its `launcher` (a pid). With `raises`, the error that has ended
    the run is raised once the log is closed, and its traceback is not printed.
    """
    ranks = of_environment()
    several = ranks.world > 1
    signs = ranks.first and not agent
    try:
        session = RunSession(run_dir, ranks, signs=signs, held=resume, prints_failure=not raises)
    except OSError as error:  # there is no log yet that could say so
        if raises:
            raise
        print_error(f"hookflow: the run directory cannot be written: {error}")
        return 1
    recorder = session.recorder
    signals = session.signals
    built = lost = False
    raised: BaseException | None = None
    try:
        signals.listen()
        if agent or several:
            hold(run_dir)
            watch_parent(signals, launcher)
        with collect_seldom() as collect, session.record_warnings():
            attempt = import_trainer()
            built = True
            make = partial(
                attempt, run_dir, recorder, signals, ranks, allow_changed_hooks=allow_changed_hooks
            )
            stop = _execute(make, recorder, signals, collect, resume=resume)
    except BaseException as error:
        signals.ignored = True  # set here and not by a call: at a call another signal might raise
        raised = error
        lost = built and several and is_peer_lost(raised)
        stop = own = session.find_stop_reason(raised, lost=lost)
        if built and several:
            stop = choose_common_failure(ranks, own, lost=lost)
            lost = lost and stop is own
    goes_on = (agent and lost) or bool(restarts_left and stop.exit == 1)
    session.close(stop, lost=lost, goes_on=goes_on)
    # Standard output may be closed, full, without a reader, or None.
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    if raised is None:
        # At another exit code the launcher would end ranks that are still at `after_run`.
        return 0 if agent else stop.exit
    if raises:
        raise raised
    return stop.exit


def _execute(
    make: Callable[..., "TrainingAttempt"],
    recorder: "EventRecorder",
    signals: SignalCollector,
    collect: Callable[[], None],
    *,
    resume: bool,
) -> StopReason:
    """Train to the end, building everything anew after each rewind; return why the run has ended.

    From the end on, signals are ignored: set here and not by a call, at which another one might
    raise.
    """
    back_to: Path | None = None
    while True:
        if back_to:
            gc.unfreeze()
            # The objects of a run refer to one another: uncollected, its network would stay beside
            # the new one.
            collect_garbage()
        try:
            stop = make(resume=resume, back_to=back_to).execute(collect)
            signals.ignored = True
            return stop
        except Rewind as rewind:
            resume = True
            back_to = rewind.path
            signals.state = RunState()
            recorder.detach_attempt()


EXIT_GRACE_SECONDS = 5.0
"""Seconds that a process waits for them once it is done, and again for its exit handlers."""


@cache
def prepare_exit() -> None:
    """Let this process, at its very end, write the files that hooks leave open.

    It does so after all other exit handlers. To be called before anything of the user's is
    imported, since the handler that is registered first is called last.
    """
    # Unfrozen, all that torch has imported would be searched for garbage at the exit, for 0.6 s.
    atexit.register(gc.freeze)
    atexit.register(close_open_files)


def leave(code: int, *, several: bool) -> None:
    """Ensure that the process ends with `code` once its caller is done.

    One of `several` ranks ends here and now.

    `prepare_exit` was called at the start of the process: what hooks have left open is written on
    each way out.

    A thread of a process group may still hold a tensor: one that is released while the interpreter
    goes down aborts the process, so the interpreter of a rank is not taken down. Threads that hooks
    have left running get EXIT_GRACE_SECONDS.
    """
    if not find_unfinished_threads():
        if several:
            _tidy_up()
            os._exit(code)
        collect_garbage()  # closes what hooks have left open
        return
    _exit_in_time(code)


def _exit_in_time(code: int) -> None:
    """Start threads that end this process with `code` EXIT_GRACE_SECONDS from now.

    They do nothing if the process is ending by itself then. Exit handlers get as many seconds
    again. Both threads start here: Python 3.12 and newer start none at the exit.
    """
    exiting = threading.Event()
    overdue = threading.Event()
    tidy = threading.Event()
    # Python calls this after it has joined threads, and before any handler that was registered
    # earlier.
    atexit.register(exiting.set)

    def tidy_up_if_overdue() -> None:
        overdue.wait()
        _tidy_up()
        tidy.set()

    def exit_if_overdue() -> None:
        if exiting.wait(EXIT_GRACE_SECONDS):
            return
        overdue.set()
        tidy.wait(EXIT_GRACE_SECONDS)
        os._exit(code)

    for function in (tidy_up_if_overdue, exit_if_overdue):
        threading.Thread(target=function, name="hookflow-exit", daemon=True).start()


def _tidy_up() -> None:
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


def import_trainer() -> "type[TrainingAttempt]":
    """Import what trains.

    The sources that torch's import leaves in Python's cache of lines, 3 MB, are forgotten.
    """
    import torch

    for file in [*linecache.cache]:
        if file.startswith(str(Path(torch.__file__).parent)):
            del linecache.cache[file]
    from hookflow.runner.attempt.attempt import TrainingAttempt

    return TrainingAttempt


def wait_for_run(descriptor: int) -> list[str]:
    """Import torch, wait for a run, and return the arguments of its training.

    This is the process of a `StandbyProcess`. The process leaves where its parent ends without
    sending a run. Until then its output is in a temporary file.
    """
    with suppress(Exception):  # raised again and reported where the training imports it
        import_trainer()

    with socket.socket(fileno=descriptor) as parent:
        message, descriptors, *_ = socket.recv_fds(parent, 1 << 20, 3)
    if not message:
        os._exit(0)
    sys.stdout.flush()
    sys.stderr.flush()
    output, *locks = descriptors
    with open(1, "rb", closefd=False) as early:
        early.seek(0)
        os.write(output, early.read())
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    arguments: list[str] = json.loads(message)
    return [*arguments, f"--locks={','.join(map(str, locks))}"]


def prepare_process() -> None:
    """Prepare the exit and streams of a training process, before it imports user code."""
    prepare_exit()
    mask_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The lines that a hook prints are seen at once, and not lost with the process.
        sys.stdout.reconfigure(line_buffering=True)


def main() -> None:
    """`python -m hookflow.runner RUN_DIR …`, which `hookflow run` starts.

    It starts the process itself, or by an agent that starts ranks.
    """
    prepare_process()
    standby = re.fullmatch(r"--standby=(\d+)", sys.argv[-1])
    execute(wait_for_run(int(standby[1])) if standby else sys.argv[1:])


def execute(arguments: Sequence[str]) -> NoReturn:
    """Train by the arguments of `python -m hookflow.runner`, and end this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=lambda path: RunDir(Path(path)))
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--allow-changed-hooks", action="store_true")
    parser.add_argument("--agent", action="store_true")
    parser.add_argument("--launcher", type=int)
    parser.add_argument("--restarts-left", type=int, default=0)
    parser.add_argument("--locks", type=inherit, default=argparse.SUPPRESS)
    provided = vars(parser.parse_args(arguments))
    provided.pop("locks", None)
    faulthandler.register(STACK_DUMP_SIGNAL, file=2, all_threads=False)
    code = train(**provided)
    drop_unprinted()
    leave(code, several=of_environment().world > 1)
    raise SystemExit(code)
