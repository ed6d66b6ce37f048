"""The training process: one attempt at a run, from its directory to its exit code.

Imports no torch before `train` listens for signals: that takes seconds, and nobody waits them out after Ctrl-C.
"""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.runner.control import Control, Stop
from hookflow.runner.ranks import of_environment
from hookflow.runner.recorder import Recorder


def train(run_dir: RunDir, *, resume: bool = False, allow_changed_hooks: bool = False) -> int:
    """Carry out the run whose pipeline and plan stand in `run_dir`; return the exit code.

    0: finished or stopped as asked; 1: something raised; 2: the user's mistake; 130 (SIGINT) and 143 (SIGTERM,
    SIGUSR1): interrupted. Whatever happens, the event log gets its `end` record.
    """
    began = time.perf_counter()
    run_dir.sign_process()
    control = Control()
    ranks = of_environment()
    recorder = Recorder(run_dir, control.ask, ranks.rank)
    recorder.start()
    try:
        control.listen()
        from hookflow.runner.attempt import carry_out

        stop = carry_out(run_dir, recorder, control, ranks, resume=resume, allow_changed_hooks=allow_changed_hooks)
    except BaseException as error:
        control.cover_ears()
        stop = _ended_by(error, control, recorder)
    control.cover_ears()
    seconds = time.perf_counter() - began
    recorder.put("end", status=stop.status, exit=stop.exit, reason=stop.reason, seconds=seconds)
    recorder.close()
    sys.stdout.flush()
    return stop.exit


def _ended_by(error: BaseException, control: Control, recorder: Recorder) -> Stop:
    """Return how a run ends that raised; what has not been told yet (a failing hook has) is told."""
    if isinstance(error, UserError):
        notes = (f"    {note}" for note in getattr(error, "__notes__", ()))  # which hook, if one has raised it
        return Stop("\n".join([str(error), *notes]), "failed", 2, save=False)
    if isinstance(error, KeyboardInterrupt):
        return Stop(str(error) or "interrupted", "interrupted", control.stop.exit if control.stop else 130, save=False)
    if recorder.told is not error:
        recorder.failure(error)
    return Stop(f"{type(error).__name__}: {error}", "failed", 1, save=False)


def main() -> None:
    """`python -m hookflow.runner RUN_DIR [--resume] [--allow-changed-hooks]`: what `hookflow run` starts."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what a hook prints is seen at once, and not lost with the process
    path, *options = sys.argv[1:]
    raise SystemExit(
        train(RunDir(Path(path)), resume="--resume" in options, allow_changed_hooks="--allow-changed-hooks" in options)
    )
