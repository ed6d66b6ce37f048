"""Prints a run whose training is the process that has started this one: `python -m hookflow.cli.printer RUN_DIR FACE`.

It has a process of its own, so that it takes nothing of the training's time, and ends when its standard input does.
"""

from __future__ import annotations

import select
import subprocess
import sys
from pathlib import Path
from typing import Literal

from hookflow.events.rundir import RunDir


def start_printer(run_dir: RunDir, face: Literal["plain", "json"]) -> subprocess.Popen[bytes]:
    """Start to print the run to where this process prints; it goes on until the `stdin` that it has is closed."""
    command = [sys.executable, "-P", "-m", "hookflow.cli.printer", str(run_dir.path), face]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # signals are not meant for it


def _main() -> None:
    from hookflow.monitor import jsonl, plain

    path, face = sys.argv[1:]
    follow = jsonl.follow if face == "json" else plain.follow

    def over() -> int | None:
        readable, _, _ = select.select([sys.stdin], [], [], 0)
        return 0 if readable else None  # nothing is ever written there: it is at its end

    try:
        follow(RunDir(Path(path)), sys.stdout, child_exit=over)
    except BrokenPipeError:  # the reader has gone
        sys.stderr.close()


if __name__ == "__main__":
    _main()
