"""Parent watchdog: a rank ends with its launcher. Nobody else would end it beside a run that has been resumed."""

from __future__ import annotations

import os
import threading
import time

from hookflow.runner.signals import Signals

PERIOD = 0.5
"""Seconds between looks."""


def watch_parent(signals: Signals) -> None:
    """From now on, end the run as SIGTERM does once the process that has started this one is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PERIOD)
        signals.terminate(f"the launcher (process {parent}) is gone")

    threading.Thread(target=watch, name="hookflow-watchdog", daemon=True).start()
