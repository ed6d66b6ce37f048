"""A rerun from the dashboard.

A process of its own does an iteration again, and its report is read.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from hookflow.events.rundir import RunDir
from hookflow.events.temporary_files import find_temporary_folder
from hookflow.monitor.printed_output import OutputReader
from hookflow.numbers import format_span

WATCHING_HOOK_OPTION = ("--with", "grad_norm")
"""The hook that watches, too: most reruns are about a loss that leaps or is not finite."""

EXIT_CODE_TEXTS = {
    0: ("✓ done: every number is the recorded one, to the bit", "good"),
    1: ("▲ done: not every number is the recorded one", "warn"),
}
"""The meaning of an exit code, and its style."""


def make_rerun_command(run: str, it: int) -> list[str]:
    """Return the command that does an iteration of a run again, as one types it."""
    return ["hookflow", "rerun", run, "--at", str(it), *WATCHING_HOOK_OPTION]


@dataclass(frozen=True, slots=True)
class ReportLine:
    """A line of a report, with the name of its style."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class RerunReport:
    """A rerun, its status, and its output so far."""

    lines: tuple[ReportLine, ...]
    is_over: bool


class RerunProcess:
    """A rerun in a process and session of its own.

    It goes on where the dashboard is left, and prints to a file. That file and the directory of the
    rerun are in a temporary folder, which stays until `remove`.
    """

    def __init__(self, run: RunDir, it: int) -> None:
        """Start it. Raises OSError."""
        self.it = it
        self._command = make_rerun_command(str(run.path), it)
        self._folder = tempfile.mkdtemp(prefix="hookflow-rerun-", dir=find_temporary_folder())
        self._path = Path(self._folder, "output.txt")
        with self._path.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "TMPDIR": self._folder},
            )
        self._began = time.monotonic()
        self._took = 0.0
        self._output = OutputReader(self._path)
        self._printed: list[str] = []

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def remove(self) -> None:
        """Remove the folder of a rerun that is over."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def read_report(self) -> RerunReport:
        """Read on what it has printed, and return all of it. One thread at a time may call this."""
        is_over = self.is_over  # before the last look at what it has printed
        self._printed += self._output.read(last=is_over)
        if not is_over:
            self._took = time.monotonic() - self._began
        lines = [
            ReportLine(" ".join(self._command), "strong"),
            self._state_line(is_over),
            ReportLine(f"its output is in {self._path}", "dim"),
            ReportLine(""),
        ]
        lines += [ReportLine(line) for line in self._printed]
        return RerunReport(tuple(lines), is_over)

    def _state_line(self, is_over: bool) -> ReportLine:
        if not is_over:
            text = (
                f"● it runs: {format_span(self._took)}; it goes on where this page, or the"
                " dashboard, is left"
            )
            return ReportLine(text, "command")
        code = self._process.returncode
        if code in EXIT_CODE_TEXTS:
            return ReportLine(*EXIT_CODE_TEXTS[code])
        return ReportLine(f"✗ it failed, with exit code {code}", "error")
