"""What a person asks of a run, through its command log; the run answers with an `ack` in its event log."""

from __future__ import annotations

import getpass
import secrets
import time

from hookflow.events.log import Appender
from hookflow.events.records import Command, CommandRecord
from hookflow.events.rundir import RunDir


def send(run: RunDir, command: Command) -> str:
    """Ask the run for `command` and return the id that its answer will carry.

    Raises OSError when the run directory may not be written: who may write it may command the run, nobody else.
    """
    ask = secrets.token_hex(4)
    log = Appender(run.commands)
    try:
        log.append([CommandRecord(id=ask, cmd=command, t=time.time(), by=getpass.getuser())])
    finally:
        log.close()
    return ask
