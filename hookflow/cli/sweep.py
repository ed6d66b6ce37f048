"""`hookflow sweep`: try a pipeline with other values of some keys, here side by side or as an array of Slurm."""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hookflow.cli import options
from hookflow.cli.output import echo, write_file
from hookflow.errors import Problem, UserError, Where
from hookflow.numbers import counted, plural
from hookflow.text import cut

if TYPE_CHECKING:
    from hookflow.service.sweeps import Sweep

SLURM = "Write a script for Slurm, a task for each trial, and start nothing."
FILE = "A pipeline file with [sweep]; or a sweep that has begun: its id in `runs`, or its folder."


def sweep(
    target: Annotated[Path, options.argument("FILE|SWEEP", FILE, options.files_and_runs)],
    set_: options.Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the newest sweep of FILE.")] = False,
    jobs: Annotated[int | None, typer.Option(min=1, metavar="N", help="Trials side by side.")] = None,
    trial: Annotated[int | None, typer.Option(min=0, metavar="K", help="Only trial K, counted from 0.")] = None,
    slurm: Annotated[Path | None, typer.Option("--slurm", metavar="SCRIPT", help=SLURM)] = None,
) -> None:
    """Train a pipeline once for each trial of its [sweep].

    Each trial is a run of its own, with the tag of the sweep. Ctrl+C ends those that train at their next safe point,
    with a checkpoint. `--resume` goes on: what has finished or was pruned is not trained again, what was interrupted
    resumes, what has failed starts anew. The exit code is 1 if a trial has failed.

    Example: `hookflow sweep pipelines/cifar.toml --jobs 2`
    """
    chosen = _opened(target, tuple(set_ or ()), resume)
    trials = counted(chosen.section.count, "trial")
    if trial is not None and trial >= chosen.section.count:
        raise UserError(Problem(f"there is no trial {trial}", Where("--trial"), f"the sweep has {trials}, from 0"))
    if slurm is not None:
        write_file(slurm, _script(chosen, jobs))
        chosen.begin()
        slurm.chmod(0o755)
        echo(f"{chosen.id}: {trials}; start them with: sbatch {slurm}")
        return
    chosen.begin()
    raise typer.Exit(_execute(chosen, jobs or chosen.section.jobs, trial))


def _opened(target: Path, overrides: tuple[str, ...], resume: bool) -> Sweep:
    from hookflow.service.sweeps import Sweep

    if not target.exists():
        target = next(Path("runs").glob(f"*/{escape(target.name)}"), target)
    if (target / "sweep.json").is_file():
        if overrides:
            raise UserError(Problem("a sweep that has begun keeps its keys", Where("--set")))
        return Sweep.open(target.absolute())
    return Sweep.newest(target, overrides) if resume else Sweep.create(target, overrides)


def _execute(chosen: Sweep, jobs: int, trial: int | None) -> int:
    """Execute the trials of a sweep, or one of them, print the table and return the exit code."""
    from hookflow.events.run_lock import release
    from hookflow.events.rundir import short
    from hookflow.service.sweeps import Executor

    locks = chosen.lock(shared=trial is not None)
    try:
        echo(f"{chosen.id}: {counted(chosen.section.count, 'trial')}, {jobs} at a time")
        echo(f"  live: hookflow watch, or hookflow runs --filter '\"{chosen.id}\" in tags'")
        executor = Executor(chosen, jobs, _say)
        executor.execute(range(chosen.section.count) if trial is None else [trial])
    finally:
        release(locks)
    trials = chosen.trials() if trial is None else [chosen.trial(trial)]
    if trial is None:
        echo("\n".join(["", *_table(chosen)]))
    left = sum(not each.done and each.state != "failed" for each in trials)
    failed = [each for each in trials if each.state == "failed"]
    if failed:
        numbers = ", ".join(str(each.number) for each in failed)
        echo(f"failed: {plural(len(failed), 'trial')} {numbers}; anew with: hookflow sweep {short(chosen.path)}")
    if left:
        echo(f"not done: {counted(left, 'trial')}; go on with: hookflow sweep {short(chosen.path)}")
    if executor.asked:
        return 130 if executor.asked[0] == signal.SIGINT else 143
    return int(bool(failed or left))


def _say(line: str) -> None:
    echo(line)
    sys.stdout.flush()


def _table(chosen: Sweep) -> Iterator[str]:
    """Yield the runs of a sweep as `hookflow runs` lists them, the best first; a terminal cuts them."""
    from hookflow.cli.runs import table
    from hookflow.monitor.index import Index
    from hookflow.monitor.selection import in_order_of

    rows = [row for row in Index(chosen.folder).refresh() if chosen.id in row.values["tags"]]
    if not rows:
        return
    metric = chosen.section.metric
    key = f"best.{metric}" if any(row.get(f"best.{metric}") is not None for row in rows) else metric
    rows = in_order_of(rows, f"-{key}" if chosen.mode == "max" else key)
    more = ["data"] * any(row.values["data"] == "SYNTHETIC" for row in rows)
    more += ["reason"] * any(row.values["status"] in ("failed", "refused", "lost") for row in rows)
    keys = ["id", "note", key, *chosen.section.searched, "status", "duration", *more]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in table([(None, rows)], keys, None):
        yield cut(line, room) if room else line


def _script(chosen: Sweep, jobs: int | None) -> str:
    """Return a script for sbatch: an array with a task for each trial."""
    most = jobs or chosen.section.jobs
    at_once = f"%{most}" if most > 1 else ""
    command = [sys.executable, "-P", "-m", "hookflow", "sweep", str(chosen.path)]
    return f"""#!/bin/bash
#SBATCH --job-name={chosen.loaded.pipeline.run.name}
#SBATCH --array=0-{chosen.section.count - 1}{at_once}
#SBATCH --output={chosen.path}/slurm-%a.txt
#SBATCH --requeue
# Add what a trial needs: --gres=gpu:1, --cpus-per-task, --mem, --time, --partition.
cd {shlex.quote(str(Path.cwd()))} || exit 1
exec {shlex.join(command)} --trial "$SLURM_ARRAY_TASK_ID"
"""
