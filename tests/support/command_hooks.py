"""A hook that commands its own run as a user does,
and one that counts what earlier attempts have left.
"""

import time
from pathlib import Path
from typing import Any

from hookflow.events.commands import send
from hookflow.events.rundir import RunDir
from tests.support.limits import LIMIT


class Commander:
    """Sends commands after these iterations, each once in a run, and waits until the run has
    received them.

    A command is its words in one string, and is sent in an attempt that `mark` has not seen it in.
    Several at one iteration are sent in their order. It fires on all ranks, so that they agree
    right after it, and rank 0 sends.
    """

    writes = ("control",)
    phase = "last"

    def __init__(self, script: list[tuple[int, str]], mark: str) -> None:
        self.script, self.mark = script, Path(mark)

    def after_train_iter(self, run: Any) -> None:
        due = [
            (k, text)
            for k, (it, text) in enumerate(self.script)
            if it == run.iter and run.rank == 0
        ]
        signals, until = run._log._on_command.__self__, time.monotonic() + LIMIT
        for k, text in due:
            mark = self.mark.with_name(f"{self.mark.name}.{k}")
            if not mark.exists():
                mark.touch()
                name, *args = text.split(" ")
                id_ = send(RunDir(run.dir), name, *args)
                while all(command["id"] != id_ for command in signals.commands):
                    assert time.monotonic() < until, f"{text} was not received"
                    time.sleep(0.005)
