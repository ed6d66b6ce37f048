"""Commands to a running training: the log of keys that a person presses, and how a process is ended."""

from __future__ import annotations

import contextlib
import getpass
import secrets
import signal
import time
from collections.abc import Callable

import psutil

from hookflow.events.log import Appender
from hookflow.events.records import Command, CommandRecord
from hookflow.events.run_lock import holds
from hookflow.events.rundir import RunDir


def send(run: RunDir, command: Command) -> str:
    """Ask the run for `command` and return the id that its answer will carry.

    Raises OSError when the run directory may not be written: only the owner of the file may send commands.
    """
    ask = secrets.token_hex(4)
    log = Appender(run.commands)
    try:
        log.append([CommandRecord(id=ask, cmd=command, t=time.time(), by=getpass.getuser())])
    finally:
        log.close()
    return ask


STEPS = ((signal.SIGTERM, 0.5), (signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0))
"""The signal, and the seconds to wait for an answer. The second SIGTERM interrupts a hook or the wait for
data; only SIGKILL ends what hangs outside of Python, and leaves no end record."""

PERIOD = 0.1


def stop_now(run: RunDir, say: Callable[[str], None]) -> bool:
    """End the process of a run on this machine, with those that it has started; return whether it is gone.

    That is the process which `run.json` names, if it holds the lock: the file may be a copy, or of a run that is over.
    `say` receives each signal. Raises PermissionError for a process of another user.
    """
    for number, patience in STEPS:
        if run.life() != "alive":
            break
        if not _holds(run):
            pid = run.describe()["pid"]
            say(f"process {pid}, which run.json names, does not hold the lock of this run: it is left alone")
            return False
        say(f"{number.name} sent to process {run.describe()['pid']}")
        _send(run, number)
        until = time.monotonic() + patience
        while run.life() == "alive" and time.monotonic() < until:
            time.sleep(PERIOD)
    gone = run.life() != "alive"
    say("the process has ended" if gone else "the process does not end, even by SIGKILL")
    return gone


def _holds(run: RunDir) -> bool:
    try:
        return holds(run.describe()["pid"], run.path)
    except psutil.NoSuchProcess:
        return True  # it has ended meanwhile
    except psutil.AccessDenied as error:
        raise PermissionError(1, f"process {error.pid} is another user's") from None


def _send(run: RunDir, number: signal.Signals) -> None:
    try:
        process = psutil.Process(run.describe()["pid"])
        if number == signal.SIGKILL:  # no other process would end them
            for child in process.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        process.send_signal(number)
    except psutil.NoSuchProcess:
        pass  # it has ended meanwhile
