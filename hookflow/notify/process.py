"""The process that notifies: it watches a run to its end."""

import argparse
import json
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookflow.events.rundir import RunDir
from hookflow.notify.section import read_section
from hookflow.notify.sender import MessageSender
from hookflow.notify.watch import RunWatch
from hookflow.pipeline.schema import NotifySection
from hookflow.text import mask_streams, print_error

POLL_INTERVAL = 0.5
"""Seconds between looks at the logs."""

IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Signals that have no effect here: they are for the training, whose end is to be sent."""


def main() -> None:
    """Watch a run to its end; the exit code is 1 where a notification was not sent."""
    mask_streams()
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=lambda path: RunDir(Path(path)))
    parser.add_argument("section", type=json.loads)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--since", type=float, required=True)
    provided = parser.parse_args()
    for ignored in IGNORED_SIGNALS:
        signal.signal(ignored, lambda got, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED_SIGNALS)
    raise SystemExit(
        notify_until_end(provided.run_dir, provided.section, provided.pid, provided.since)
    )


def notify_until_end(run: RunDir, recorded: Mapping[str, Any], pid: int, since: float) -> int:
    """Send what is due until the attempt at the run is over; return 1 where something was not sent.

    Messages that were not sent are printed, into the output of the run, which viewers show live.
    """
    watch = RunWatch(run, NotifySection.model_validate(recorded).on, pid, since)
    try:
        sender = MessageSender(read_section(recorded), run)
    except Exception as error:  # a variable or a package that was there when the run was checked
        print_error(f"notify: nothing is sent: {error}")
        return 1
    has_failed = False
    while True:
        messages, is_over = watch.look()
        for message in messages:
            for reason in sender.send(message):
                has_failed = True
                print_error(f"notify: {reason}")
        if is_over:
            return int(has_failed)
        time.sleep(POLL_INTERVAL)
