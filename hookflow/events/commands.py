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
    """Send `command` to the run and return the id of its answer. Raises OSError without the right to write."""
    ask = secrets.token_hex(4)
    log = Appender(run.commands)
    try:
        log.append([CommandRecord(id=ask, cmd=command, t=time.time(), by=getpass.getuser())])
    finally:
        log.close()
    return ask


STEPS = ((signal.SIGTERM, 0.5), (signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0))
"""The signals and the seconds to wait after each. The second SIGTERM interrupts a hook or the wait for data."""

PERIOD = 0.1


def stop_now(run: RunDir, say: Callable[[str], None]) -> bool:
    """End the process of a run on this machine, with those that it has started; return whether it is gone.

    That is the process which `run.json` names, if it holds the lock: the file may be a copy, or of a run that is over.
    `say` receives each signal. Raises PermissionError for a process of another user.
    """
    for number, patience in STEPS:
        if run.life() != "alive":
            break
        pid = run.describe()["pid"]
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            try:
                holds_lock = holds(pid, run.path)
            except psutil.AccessDenied:
                raise PermissionError(1, f"process {pid} is another user's") from None
            if not holds_lock:
                say(f"process {pid}, which run.json names, does not hold the lock of this run: it is left alone")
                return False
            say(f"{number.name} sent to process {pid}")
            process = psutil.Process(pid)
            for child in process.children(recursive=True) if number == signal.SIGKILL else ():
                with contextlib.suppress(psutil.NoSuchProcess):  # no other process would end it
                    child.kill()
            process.send_signal(number)
        until = time.monotonic() + patience
        while run.life() == "alive" and time.monotonic() < until:
            time.sleep(PERIOD)
    gone = run.life() != "alive"
    say("the process has ended" if gone else "the process does not end, even by SIGKILL")
    return gone
