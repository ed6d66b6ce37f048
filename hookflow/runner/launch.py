"""Starting a run: its directory, and the training in a process of its own. Imports no torch."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from hookflow import __version__
from hookflow.events.rundir import RunDir, write_whole
from hookflow.graph.plan import Plan
from hookflow.pipeline.load import Loaded, dump
from hookflow.runner.control import SIGNALS


def prepare(loaded: Loaded, plan: Plan, run_dir: RunDir, base: Path) -> None:
    """Write down what will be run: the resolved pipeline, the plan, and who asked for it.

    `base` is the folder that the pipeline's own files are relative to.
    """
    write_whole(run_dir.pipeline, dump(loaded.pipeline))
    write_whole(run_dir.plan, json.dumps(plan.to_json(), indent=1))
    run_dir.sign(
        id=run_dir.id,
        name=loaded.pipeline.run.name,
        base=str(base.resolve()),
        source=str(loaded.source),
        overrides=list(loaded.overrides),
        argv=sys.argv,
        created=time.time(),
        hookflow=__version__,
    )


def start(run_dir: RunDir, *, resume: bool = False) -> subprocess.Popen[bytes]:
    """Start the training process in a session of its own, so that losing this terminal does it no harm.

    What it prints goes to the run's `output.log`. A signal that reaches it before it listens waits until it does.
    """
    command = [sys.executable, "-m", "hookflow.runner", str(run_dir.path), *(["--resume"] if resume else [])]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # which a child process inherits
    try:
        with run_dir.output.open("ab") as output:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
