"""The stack of another process, as it is at this moment: where a run that stalls is."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

DUMP = signal.SIGUSR2
"""At this signal a training process writes the stack of its training thread into its output, wherever it is."""

PATIENCE, POLL = 2.0, 0.05
"""Seconds that the process has for that, and between looks."""


def stack(pid: int, output: Path) -> list[str]:
    """Return the frames of the training thread of a process, the innermost first; none where they cannot be had.

    They are those of py-spy where it is installed and allowed to look, else those that the process writes itself.
    """
    if spy := shutil.which("py-spy"):
        dumped = subprocess.run([spy, "dump", "--pid", f"{pid}"], capture_output=True, text=True, check=False)
        threads = dumped.stdout.split("\n\n") if dumped.returncode == 0 else ()
        if main := next((thread for thread in threads if '"MainThread"' in thread.partition("\n")[0]), ""):
            return [line.strip() for line in main.splitlines() if line.startswith(" ")]
    if not _is_handled(pid):
        return []
    with output.open("rb") as file:
        file.seek(0, os.SEEK_END)
        os.kill(pid, DUMP)
        text, until, grew = b"", time.monotonic() + PATIENCE, True
        while (grew or not text) and time.monotonic() < until:
            time.sleep(POLL)
            more = file.read()
            grew, text = bool(more), text + more
    frames = text.decode(errors="replace").rpartition("(most recent call first):\n")[2]
    return [line.strip() for line in frames.splitlines() if line.startswith("  File ")]


def _is_handled(pid: int) -> bool:
    """Return whether a process of this machine handles the signal, which would end it else."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # another system, or it has ended
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (DUMP - 1) & 1)
