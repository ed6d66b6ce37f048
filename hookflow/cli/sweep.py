"""`hookflow sweep`: try a pipeline with other values of some keys.

Trials run here side by side, or as an array of Slurm.
"""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hookflow.cli import options
from hookflow.cli.output import echo, write_file
from hookflow.errors import Problem, UserError, Where
from hookflow.numbers import format_count, format_plural
from hookflow.text import cut

if TYPE_CHECKING:
    from hookflow.sweep.search import SweepTrial
    from hookflow.sweep.sweep import Sweep

SLURM_HELP = "Write a script for Slurm, a task for each trial, and start nothing."
IN_PROCESS = (
    "Fork each trial from one process that has imported torch, on the CPU alone: "
    "the same bits, without the seconds of a start for each."
)
TARGET_HELP = (
    "A pipeline file with [sweep]; or a sweep that has begun: its id in `runs`, or its folder."
)


def sweep(
    target: Annotated[
        Path, options.argument("FILE|SWEEP", TARGET_HELP, options.complete_files_and_runs)
    ],
    set_: options.Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the newest sweep of FILE.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Trials side by side.")
    ] = None,
    trial: Annotated[
        int | None, typer.Option(min=0, metavar="K", help="Only trial K, counted from 0.")
    ] = None,
    in_process: Annotated[bool, typer.Option("--in-process", help=IN_PROCESS)] = False,
    slurm: Annotated[
        Path | None, typer.Option("--slurm", metavar="SCRIPT", help=SLURM_HELP)
    ] = None,
) -> None:
    """Train a pipeline once for each trial of its [sweep].

    Each trial is a run of its own, with the tag of the sweep. Ctrl+C ends those that train at their
    next safe point, with a checkpoint. `--resume` goes on: what has finished or was pruned is not
    trained again, what was interrupted resumes, what has failed starts anew. The exit code is 1 if
    a trial has failed or is not done, and that of the signal after Ctrl+C or SIGTERM.

    Example: `hookflow sweep pipelines/cifar.toml --jobs 2`
    """
    opened = _open_sweep(target, tuple(set_ or ()), resume)
    trials = format_count(opened.section.count, "trial")
    if trial is not None and trial >= opened.section.count:
        raise UserError(
            Problem(
                f"there is no trial {trial}", Where("--trial"), f"the sweep has {trials}, from 0"
            )
        )
    if in_process and slurm is not None:
        raise UserError(
            Problem(
                "a task of Slurm has a process of its own", Where("--in-process"), "leave it out"
            )
        )
    if in_process:
        from hookflow.sweep.executor import check_devices

        check_devices(opened)
    jobs = jobs or opened.section.jobs
    if slurm is not None:
        write_file(slurm, _make_slurm_script(opened, jobs))
        opened.begin()
        slurm.chmod(0o755)
        echo(f"{opened.id}: {trials}; start them with: sbatch {slurm}")
        return
    opened.begin()
    raise typer.Exit(_execute(opened, jobs, trial, in_process=in_process))


def _open_sweep(target: Path, overrides: tuple[str, ...], resume: bool) -> Sweep:
    from hookflow.sweep.sweep import Sweep

    if not target.exists():  # an id in the folder of runs
        for match in Path("runs").glob(f"*/{escape(target.name)}"):
            target = match
            break
    if (target / "sweep.json").is_file():
        if overrides:
            raise UserError(Problem("a sweep that has begun keeps its keys", Where("--set")))
        return Sweep.open(target.absolute())
    if resume:
        return Sweep.newest(target, overrides)
    return Sweep.create(target, overrides)


def _execute(opened: Sweep, jobs: int, trial: int | None, *, in_process: bool) -> int:
    """Execute the trials of a sweep, or one of them, print the table and return the exit code."""
    from hookflow.events.run_lock import release
    from hookflow.events.rundir import short
    from hookflow.sweep.executor import SweepExecutor

    executor = SweepExecutor(opened, jobs, _print_line, in_process=in_process)
    locks = opened.lock(shared=trial is not None)
    try:
        echo(f"{opened.id}: {format_count(opened.section.count, 'trial')}, {jobs} at a time")
        echo(f"  live: hookflow watch, or hookflow runs --filter '\"{opened.id}\" in tags'")
        numbers = range(opened.section.count) if trial is None else [trial]
        executor.execute(numbers)
    finally:
        release(locks)
    if trial is None:
        trials = opened.trials()
        echo("\n".join(["", *_table_lines(opened, trials)]))
        _print_groups(opened, trials)
    else:
        trials = [opened.trial(trial)]
    failed = [str(each.number) for each in trials if each.state == "failed"]
    num_left = sum(not each.done and each.state != "failed" for each in trials)
    go_on = f"hookflow sweep {short(opened.path)}"
    if failed:
        echo(
            f"failed: {format_plural(len(failed), 'trial')} {', '.join(failed)}; anew with: {go_on}"
        )
    if num_left:
        echo(f"not done: {format_count(num_left, 'trial')}; go on with: {go_on}")
    if executor.asked:
        return 130 if executor.asked[0] == signal.SIGINT else 143
    if failed or num_left:
        return 1
    return 0


def _print_line(line: str) -> None:
    echo(line)
    sys.stdout.flush()


def _table_lines(opened: Sweep, trials: Sequence[SweepTrial]) -> Iterator[str]:
    """Yield the runs of a sweep as `hookflow runs` lists them, the best first.

    A terminal cuts them.
    """
    from hookflow.cli.runs import table_lines
    from hookflow.monitor.index import Index
    from hookflow.monitor.selection import in_order_of

    rows = [row for row in Index(opened.folder).refresh() if opened.id in row.values["tags"]]
    if not rows:
        return
    key = f"best.{opened.section.metric}"
    value_by_run = {Path(trial.run).name: trial.value for trial in trials}
    # A run has another best where `mode` of the sweep is not that of its own hooks, or where the
    # name of the metric says none. A run that its trial has left for a new one has no value.
    rows = [replace(row, values={**row.values, key: value_by_run.get(row.id)}) for row in rows]
    order = key
    if opened.mode == "max":
        order = f"-{key}"
    rows = in_order_of(rows, order)
    keys = ["id", "note", key, *opened.section.searched, "status", "duration"]
    if any(row.values["data"] == "SYNTHETIC" for row in rows):
        keys.append("data")
    if any(row.values["status"] in ("failed", "refused", "lost") for row in rows):
        keys.append("reason")
    lines = table_lines([(None, rows)], keys, None)
    if not sys.stdout.isatty():
        yield from lines
        return
    width = shutil.get_terminal_size().columns
    for line in lines:
        yield cut(line, width)


def _print_groups(opened: Sweep, trials: Sequence[SweepTrial]) -> None:
    """Print the table of each cross-validation, and statistics of repeated settings.

    These are the mean ± the sample deviation.
    """
    from hookflow.cli.sweep_groups import cross_validation_lines, format_settings
    from hookflow.sweep.trial_groups import REPETITION_KEYS, group_trials

    section = opened.section
    if REPETITION_KEYS.isdisjoint(section.searched):
        return
    groups = group_trials(trials)
    if section.folds is not None:
        for group in groups:
            echo("\n".join(["", *cross_validation_lines(group, section.metric)]))
    if section.folds is None or len(groups) > 1:
        echo("\n".join(["", *format_settings(groups, section.metric, opened.mode)]))


def _make_slurm_script(opened: Sweep, jobs: int) -> str:
    """Return a script for sbatch: an array with a task for each trial."""
    at_once = ""
    if jobs > 1:
        at_once = f"%{jobs}"
    command = [sys.executable, "-P", "-m", "hookflow", "sweep", str(opened.path)]
    return f"""#!/bin/bash
#SBATCH --job-name={opened.loaded.pipeline.run.name}
#SBATCH --array=0-{opened.section.count - 1}{at_once}
#SBATCH --output={opened.path}/slurm-%a.txt
#SBATCH --requeue
# Add what a trial needs: --gres=gpu:1, --cpus-per-task, --mem, --time, --partition.
cd {shlex.quote(str(Path.cwd()))} || exit 1
exec {shlex.join(command)} --trial "$SLURM_ARRAY_TASK_ID"
"""
