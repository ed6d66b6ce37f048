"""A rerun from the dashboard: a process of its own does an iteration again, and its report is shown."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from textual.strip import Strip

from hookflow.events.rundir import RunDir
from hookflow.monitor.plain import Output
from hookflow.monitor.style import row, scrolled
from hookflow.monitor.view import Page, Scene
from hookflow.numbers import span
from hookflow.text import wrapped

WATCHED = ("--with", "grad_norm")
"""The hook that watches, too: most reruns are about a loss that leaps or is not finite."""

ENDS = {
    0: ("✓ done: every number is the recorded one, to the bit", "good"),
    1: ("▲ done: not every number is the recorded one", "warn"),
}


def as_typed(run: str, it: int) -> list[str]:
    """Return the command that does an iteration of a run again, as one types it."""
    return ["hookflow", "rerun", run, "--at", str(it), *WATCHED]


class Rerun:
    """A rerun in a process and session of its own, which goes on where the dashboard is left; it prints to a file.

    That file and the directory of the rerun are in a temporary folder, which stays until `remove`.
    """

    def __init__(self, run: RunDir, it: int) -> None:
        self.it = it
        self._command = as_typed(str(run.path), it)
        self._folder = tempfile.mkdtemp(prefix="hookflow-rerun-")
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
        self._began, self._took = time.monotonic(), 0.0
        self._output, self._printed = Output(self._path), list[str]()

    @property
    def over(self) -> bool:
        return self._process.poll() is not None

    def remove(self) -> None:
        """Remove the folder of a rerun that is over."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def report(self) -> list[tuple[str, str]]:
        """Return what it is, what it has printed so far, and how it ended: lines, each with a style."""
        over = self.over  # before the last look at what it has printed
        self._printed += self._output.read(last=over)
        if not over:
            self._took = time.monotonic() - self._began
        state = (f"● it runs: {span(self._took)}; it goes on where this page, or the dashboard, is left", "command")
        failed = (f"✗ it failed, with exit code {self._process.returncode}", "error")
        head = [(" ".join(self._command), "strong"), ENDS.get(self._process.returncode, failed) if over else state]
        return [*head, (f"its output is in {self._path}", "dim"), ("", ""), *((line, "") for line in self._printed)]


def page(scene: Scene, width: int, height: int) -> list[Strip]:
    """Return the report, each line in as many rows as its words take."""
    inner = width - 2
    lines = [(part, style) for line, style in scene.rerun for part in wrapped(line, max(inner - 2, 10))]
    body = [row(inner), *(row(inner, " ", (part, style)) for part, style in lines)]
    return scrolled("rerun", body, width, height, scene.view.scroll)


RERUN = Page("rerun", page, above="metrics")
