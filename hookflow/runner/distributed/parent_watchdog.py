"""Parent watchdog: a rank ends with its launcher. Nobody else would end it beside a run that has been resumed."""

from __future__ import annotations

import os
import signal
import threading
import time

from hookflow.runner.signals import Signals

PERIOD = 0.5
"""Seconds between looks."""

START = 10.0
"""Seconds that a rank has to end whose training has not begun: it may wait in C++ for ranks that never come."""


def watch_parent(signals: Signals, launcher: int | None) -> None:
    """From now on, end the run as SIGTERM does once the process that has started this one is gone.

    That is the `launcher`, where it has given its pid: by now it may be gone, and another process be the parent.
    """
    parent = launcher or os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PERIOD)
        began = signals.graceful
        signals.terminate(f"the launcher (process {parent}) is gone")
        time.sleep(START)
        if not began:
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="hookflow-watchdog", daemon=True).start()
