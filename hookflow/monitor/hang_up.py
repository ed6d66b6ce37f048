"""Ends a viewer whose terminal has gone. It would wait for that terminal, or ask it for keys without a rest."""

from __future__ import annotations

import os
import select
import signal
import threading


def exit_on_hang_up(terminal: int) -> None:
    """End this process as SIGHUP does, once the terminal with this file descriptor is closed on the other side.

    A signal is not sent to everybody who paints on a terminal, and may come too late: whoever paints waits by then.
    Nothing is done where it is no terminal.
    """
    if os.isatty(terminal):
        threading.Thread(target=_wait, args=(terminal,), name="hookflow-hang-up", daemon=True).start()


def _wait(terminal: int) -> None:
    poll = select.poll()
    poll.register(terminal, 0)  # for nothing but what is told in any case: that it has hung up
    if any(what & select.POLLHUP for _, what in poll.poll()):
        os._exit(128 + signal.SIGHUP)
