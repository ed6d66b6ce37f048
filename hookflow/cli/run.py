"""The commands run and fork.

They train, with the live dashboard where there is a terminal and plain lines elsewhere.

A fork is a new run that begins with the state of a checkpoint, and may differ from the run that
saved it.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from hookflow.cli import options
from hookflow.cli.output import (
    FULL_DISK_ERRORS,
    check_terminal,
    columns,
    echo,
    exit_after_traceback,
    has_terminal,
    warn_of,
)
from hookflow.cli.preparation import prepare_in_child
from hookflow.cli.resume import PipelineChanges, as_recorded, prepare_resume
from hookflow.errors import Problem, UserError, Where
from hookflow.events.run_lock import exit_code
from hookflow.numbers import format_count, size
from hookflow.text import drop_unprinted, print_error

if TYPE_CHECKING:
    from hookflow.events.records import DataInfo, Layer
    from hookflow.events.rundir import Parent, RunDir
    from hookflow.graph.plan import Plan
    from hookflow.pipeline.by_epoch import EpochLengths
    from hookflow.pipeline.load import Loaded
    from hookflow.runner.distributed.failures import ChildExit
    from hookflow.service.pipelines import Target
    from hookflow.trials.temporary_run import DryRun

RESUME_HELP = (
    "Resume the newest run of FILE with the file as it is now, or the named run as recorded."
)
CHANGED_HOOKS_HELP = "With --resume: accept other hooks than the checkpoint's."
DRY_RUN_HELP = "Build everything and fire every point once; keep nothing."
OVERFIT_HELP = (
    "Train on the first N batches only, or a share of them (1%), to see whether the model can learn"
    " them."
)
NPROC_HELP = "Number of processes (ranks) that train together; auto: one per GPU."
STRICT_HELP = "With --resume: refuse to go on where the code has changed since the checkpoint."
STARTED_BY_TORCHRUN = "torchrun has started this process"
PARENT_HELP = (
    "A run (its newest good checkpoint), RUN:CHECKPOINT such as cifar:best, or a checkpoint's"
    " folder."
)
FORK_FILE_HELP = "The pipeline of the fork; left out, the one that the checkpoint was saved with."
RESTARTS_HELP = "Restart all ranks from the last checkpoint when one fails, up to K times."

DIR_HELP = "The folder of runs; overrides run.dir."
RunsDir = Annotated[Path | None, typer.Option("--dir", metavar="DIR", help=DIR_HELP)]
Test = Annotated[bool, typer.Option("--test", help="Run the test after training.")]
Detach = Annotated[bool, typer.Option("--detach", help="Start the run, print its id and return.")]
InProcess = Annotated[
    bool, typer.Option("--in-process", help="Train in this process, for a debugger.")
]
Nproc = Annotated[str | None, typer.Option(metavar="N|auto", help=NPROC_HELP, show_default=False)]
MaxRestarts = Annotated[int, typer.Option(min=0, metavar="K", help=RESTARTS_HELP)]


def run(
    target: options.PipelineArgument = None,
    set_: options.Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help=RESUME_HELP)] = False,
    allow_changed_hooks: Annotated[
        bool, typer.Option("--allow-changed-hooks", help=CHANGED_HOOKS_HELP)
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help=STRICT_HELP)] = False,
    without: options.Without = None,
    only: options.Only = None,
    shuffle: options.Shuffle = None,
    dir: RunsDir = None,  # noqa: A002  # the option's name
    ui: options.UIOption = "auto",
    test: Test = False,
    overfit: Annotated[str | None, typer.Option(metavar="N", help=OVERFIT_HELP)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY_RUN_HELP)] = False,
    detach: Detach = False,
    in_process: InProcess = False,
    nproc: Nproc = None,
    max_restarts: MaxRestarts = 0,
) -> None:
    """Train a pipeline, shown live.

    The training runs in its own process: it goes on when this terminal closes, and `hookflow watch`
    shows it again. Without the dashboard, Ctrl+C ends it at the next safe point, with a checkpoint,
    and a second Ctrl+C at once; in the dashboard it asks, and a second one leaves it training.
    `--resume` resumes from the checkpoint, and warns of each file of the code that has changed
    since; with `--strict` it refuses to go on then.

    Example: `hookflow run pipelines/cifar.toml --set run.max_epochs=2`
    """
    overrides = _list_overrides(set_, test)
    if overfit is not None:
        overrides.append(f"run.overfit={overfit}")  # a share stands for itself: it is no TOML
    changes = PipelineChanges(
        tuple(overrides), tuple(without or ()), tuple(only or ()), shuffle, dir
    )
    start = StartOptions(ui, detach, in_process, nproc, max_restarts)
    torchrun = start.by_torchrun
    if strict and not resume:
        hint = "hookflow check --strict refuses warnings of a pipeline"
        raise UserError(
            Problem("--strict compares the code with that of a checkpoint", Where("--resume"), hint)
        )
    if dry_run and not torchrun:
        start.reject_process_options(
            "--dry-run does everything once, in this process", {"--resume": resume}
        )
        _run_dry(*compiled(target, changes, warns=True))
        return

    def find() -> RunDir:
        if dry_run:
            _reject_options(STARTED_BY_TORCHRUN, {"--dry-run": dry_run})
        if resume:
            return prepare_resume(
                target, changes, allow_changed_hooks=allow_changed_hooks, strict=strict
            )
        from hookflow.runner.process.launch import new_run

        return new_run(*compiled(target, changes, warns=detach and not torchrun))

    start.train(find, resume=resume, allow_changed_hooks=allow_changed_hooks)


def fork(
    parent: Annotated[
        str, options.argument("RUN[:CHECKPOINT]", PARENT_HELP, options.complete_runs)
    ],
    file: Annotated[Path | None, options.argument("[FILE]", FORK_FILE_HELP)] = None,
    set_: options.Overrides = None,
    without: options.Without = None,
    only: options.Only = None,
    shuffle: options.Shuffle = None,
    dir: RunsDir = None,  # noqa: A002  # the option's name
    ui: options.UIOption = "auto",
    test: Test = False,
    detach: Detach = False,
    in_process: InProcess = False,
    nproc: Nproc = None,
    max_restarts: MaxRestarts = 0,
) -> None:
    """Train a new run from the state of a checkpoint.

    Weights, optimizer, averages, random generators and the place in the data are the parent's. A
    fork may change what a resume refuses: the learning rate, other settings of the optimizer, the
    batch size, the length, hooks, data, the task. The parent is only read.

    Example: `hookflow fork cifar:best --set optimizer.args.lr=0.01 --set run.max_epochs=20`
    """
    overrides = _list_overrides(set_, test)
    changes = PipelineChanges(
        tuple(overrides), tuple(without or ()), tuple(only or ()), shuffle, dir
    )
    start = StartOptions(ui, detach, in_process, nproc, max_restarts)
    start.train(lambda: make_fork(parent, file, changes))


def _list_overrides(set_: Sequence[str] | None, test: bool) -> list[str]:
    """Return the overrides of `--set`, and that of `--test`."""
    overrides = list(set_ or ())
    if test:
        overrides.append("run.test=true")
    return overrides


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How a run is started and shown: the options that the commands share which train."""

    ui: options.UIKind
    detach: bool
    in_process: bool
    nproc: str | None
    max_restarts: int

    @property
    def by_torchrun(self) -> bool:
        """Whether torchrun has started this process, as one of several ranks."""
        from hookflow.runner.distributed.rendezvous import is_started_by_torchrun

        return is_started_by_torchrun()

    def reject_process_options(self, why: str, others: Mapping[str, Any]) -> None:
        """Raise UserError for each given option that starts processes, or is of `others`."""
        flags = {
            "--detach": self.detach,
            "--in-process": self.in_process,
            "--nproc": self.nproc,
            "--max-restarts": self.max_restarts,
        }
        _reject_options(why, {**flags, **others})

    def train(
        self, find: Callable[[], RunDir], *, resume: bool = False, allow_changed_hooks: bool = False
    ) -> None:
        """Train the run that `find` returns, and exit with its exit code, unless it is detached."""
        if self.by_torchrun:
            self._train_as_rank(find, resume, allow_changed_hooks)
        _warn_of_slurm_tasks()
        if self.in_process:
            several = {"--nproc": self.nproc, "--max-restarts": self.max_restarts}
            _reject_options("--in-process is for a single process", several)
        ranks = self._num_ranks()
        if self.in_process:
            self._train_here(find, resume, allow_changed_hooks)
        from hookflow.runner.distributed.failures import ChildExit
        from hookflow.runner.process.launch import StandbyProcess, hand_on_signals, start

        flags = []
        if resume:
            flags.append("--resume")
        if allow_changed_hooks:
            flags.append("--allow-changed-hooks")
        pressed: list[int] = []

        def begin() -> subprocess.Popen[bytes]:
            child = start(
                run_dir, *flags, nproc=ranks, max_restarts=self.max_restarts, standby=standby
            )
            if not self.detach and _choose_ui(self.ui) != "tui":
                hand_on_signals(child, pressed)
            return child

        with nullcontext() if ranks else closing(StandbyProcess()) as standby:
            if not self.detach and _choose_ui(self.ui) == "tui":
                from hookflow.monitor import settings
                from hookflow.monitor.app import list_pages_of_actions

                # The settings are read before the run begins, since a mistake in them ends this
                # command.
                settings.load(list_pages_of_actions())
            if self.detach:
                run_dir = find()
                child = begin()
                echo(
                    f"{run_dir.id} is running (pid {child.pid}); see it with: hookflow watch"
                    f" {run_dir.id}"
                )
                return
            run_dir = prepare_in_child(find)
            child_exit = ChildExit(run_dir, begin)
            code = exit_code(_show_until_end(run_dir, child_exit, _choose_ui(self.ui), pressed))
        _exit(run_dir, code, shown=self.ui != "none", left=_choose_ui(self.ui) == "tui")

    def _num_ranks(self) -> int | None:
        """Return how many ranks train.

        It is None where the run is a single process without a launcher.
        """
        if self.nproc:
            return _number_of(self.nproc)
        if self.max_restarts:
            return 1
        return None

    def _train_here(
        self, find: Callable[[], RunDir], resume: bool, allow_changed_hooks: bool
    ) -> NoReturn:
        """Train in this process, and exit with the run's exit code."""
        from hookflow.runner.attempt.main import prepare_exit, train
        from hookflow.runner.process.launch import claim, start_notifying

        prepare_exit()
        run_dir = find()
        claim(run_dir)
        start_notifying(run_dir, os.getpid(), time.time())
        code = train(run_dir, resume=resume, allow_changed_hooks=allow_changed_hooks)
        _exit(run_dir, code, shown=False)

    def _train_as_rank(
        self, find: Callable[[], RunDir], resume: bool, allow_changed_hooks: bool
    ) -> NoReturn:
        from hookflow.cli.torchrun import train_as_rank

        def checked() -> RunDir:  # on rank 0, which tells the others
            self.reject_process_options(STARTED_BY_TORCHRUN, {"--ui=tui": self.ui == "tui"})
            return find()

        shown = self.ui
        if shown == "auto":
            shown = "plain"
        code = train_as_rank(checked, shown, resume=resume, allow_changed_hooks=allow_changed_hooks)
        raise typer.Exit(code)


def _warn_of_slurm_tasks() -> None:
    """Warn where Slurm has started this command several times: each would train a run."""
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
    if tasks > 1:
        started = f"Slurm has started {tasks} tasks, and each trains a run of its own"
        warn_of(
            f"{started}; for one run: srun --ntasks=1 hookflow run … --nproc {tasks}, or torchrun",
            "warn",
        )


def _exit(run_dir: RunDir, code: int, *, shown: bool, left: bool = False) -> NoReturn:
    """Exit with the code of a run.

    A mistake of the user's is printed, and any failure of a run that was not shown. Unless the run
    was `left`, it is over, and its last notification is awaited.
    """
    from hookflow.runner.process.launch import finish_notifying

    if not left:
        unsent = finish_notifying(run_dir)
        if unsent:
            print_error(unsent)
    if code == 2:
        from hookflow.service.runs import failure_report

        print_error(failure_report(run_dir))
    elif code and not shown:
        from hookflow.monitor.summary import print_summary

        with suppress(OSError):  # the exit code is the run's own
            print_summary(run_dir, sys.stderr)
    drop_unprinted()
    raise typer.Exit(code)


def compiled(
    target: str | None, changes: PipelineChanges, *, warns: bool = False
) -> tuple[Loaded, Plan]:
    """Return the pipeline of a file, and its plan.

    The warnings of the plan are printed if `warns` is true.
    """
    from hookflow.events.rundir import run_argument
    from hookflow.pipeline.layers import nearest_file
    from hookflow.service.pipelines import valid_plan
    from hookflow.service.runs import find_run

    if target is None:
        hint = "e.g. hookflow run pipelines/cifar.toml"
        raise UserError(Problem("name a pipeline file, or a run with --resume", hint=hint))
    path = Path(target)
    names_a_file = path.exists() or target.endswith(".toml")
    if path.is_dir() or not names_a_file:
        run_dir = find_run(target, changes.dir or Path("runs"), or_file=True)
        hint = nearest_file(path) or f"to resume it: hookflow run --resume {run_argument(run_dir)}"
        raise UserError(
            Problem(f"{target} is a run, and a new run begins with a pipeline file", hint=hint)
        )
    loaded = changes.load(path)
    plan = valid_plan(loaded, shuffle=changes.shuffle)
    if warns:
        for problem in plan.warnings:
            print_error(f"warning: {problem}")
    return loaded, plan


class _RemovedError(Exception):
    """The parent has removed the checkpoint that was chosen."""


FORK_TRIES = 10
"""How often a checkpoint is chosen for a fork.

The parent may remove the chosen one before the fork holds it.
"""


def make_fork(named: str, file: Path | None, changes: PipelineChanges) -> RunDir:
    """Make the directory of a fork, which holds the checkpoint.

    Shows how the fork differs from its parent. A parent that trains may remove the checkpoint
    meanwhile: then another one is chosen. Raises UserError when there is no such checkpoint, it
    cannot be used, or no iteration of the fork is left.
    """
    for _ in range(FORK_TRIES):
        with suppress(_RemovedError):
            return _make_fork_directory(named, file, changes)
    message = f"{named} removes its checkpoints more quickly than one can be read"
    raise UserError(
        Problem(message, hint="pause the run, or give its checkpoint hook a larger keep")
    )


def _make_fork_directory(named: str, file: Path | None, changes: PipelineChanges) -> RunDir:
    from hookflow.cli.evaluate import warn_of_line
    from hookflow.events.recorded_code import code_before, copy_code
    from hookflow.events.rundir import Parent
    from hookflow.runner.checkpoint.held import link_parent_checkpoint
    from hookflow.runner.checkpoint.manifest import DamagedError, read_manifest
    from hookflow.runner.process.launch import new_run
    from hookflow.service.checkpoints import find_checkpoint

    run_dir, checkpoint = find_checkpoint(named, changes.dir or Path("runs"), warn_of_line)
    try:
        manifest = read_manifest(checkpoint)
        parent = Parent(run_dir.id, checkpoint.name, manifest["it"], str(checkpoint.absolute()))
        now = _read_fork_target(run_dir, parent, file, changes)
    except (DamagedError, UserError):
        if checkpoint.exists():
            raise
        raise _RemovedError from None
    if not now.loaded.pipeline.run.test:
        _check_length(now, parent, manifest["ep"])
    runs = changes.dir
    # A fork lies beside its parent, unless its checkpoint is a copy outside of a run directory.
    if runs is None and file is None and run_dir.checkpoints.exists():
        runs = run_dir.path.parent.parent
    fork_dir = new_run(now.loaded, now.plan, runs, base=now.base, parent=parent)
    try:
        link_parent_checkpoint(fork_dir, parent)
    except OSError as error:
        shutil.rmtree(fork_dir.path)
        if checkpoint.exists():
            raise UserError(
                Problem(f"{parent} cannot be read: {error.strerror or error}")
            ) from None
        raise _RemovedError from None
    code = code_before(run_dir, parent.it)
    if code is not None:
        copy_code(code, fork_dir)
    return fork_dir


def _read_fork_target(
    run_dir: RunDir, parent: Parent, file: Path | None, changes: PipelineChanges
) -> Target:
    """Return a fork's pipeline, and show how it differs from that of the parent's checkpoint."""
    from hookflow.graph.plan import difference
    from hookflow.runner.checkpoint.resume_rules import read_recorded
    from hookflow.service.differences import difference_lines
    from hookflow.service.pipelines import Target, valid_plan

    checkpoint = Path(parent.path)
    then = Target(str(parent), *read_recorded(checkpoint), run_dir.base())
    if file is None:
        now = as_recorded(run_dir, checkpoint, changes)
    else:
        loaded = changes.load(file)
        plan = valid_plan(loaded, shuffle=changes.shuffle, begins=False)
        now = Target(str(file), loaded, plan, file.parent)
    result = difference((then.loaded.public, then.plan), (now.loaded.public, now.plan))
    if result:
        print_error("\n".join([*difference_lines(then, now, result), ""]))
    return now


def _check_length(now: Target, parent: Parent, epochs: int) -> None:
    """Raise UserError where the fork would train no iteration."""
    for key, done in (("max_epochs", epochs), ("max_iters", parent.it)):
        length = getattr(now.loaded.pipeline.run, key)
        if length is not None and done >= length:
            message = (
                f"nothing is left to train: {parent} has done {done}, and run.{key} is {length}"
            )
            hint = f"--set run.{key}=N, or an earlier checkpoint"
            raise UserError(Problem(message, now.loaded.places.of(f"run.{key}"), hint))


def _reject_options(why: str, flags: dict[str, Any]) -> None:
    """Raise UserError for each of the options that is given."""
    problems = []
    for option, value in flags.items():
        if value:
            problems.append(Problem(f"cannot be given here: {why}", Where(option)))
    if problems:
        raise UserError(problems)


def _number_of(nproc: str) -> int:
    """Return the number of ranks of `--nproc`.

    Raises UserError when it is no number, or auto without a GPU.
    """
    if nproc == "auto":
        import torch

        gpus = torch.cuda.device_count()
        if gpus == 0:
            raise UserError(
                Problem(
                    "auto is a rank for each GPU, and there is none", Where("--nproc"), "--nproc 2"
                )
            )
        return gpus
    if not nproc.isdecimal() or not int(nproc):
        raise UserError(
            Problem(
                f'"{nproc}" is neither a number of processes nor auto',
                Where("--nproc"),
                "--nproc 2",
            )
        )
    return int(nproc)


def _run_dry(loaded: Loaded, plan: Plan) -> None:
    """Execute a dry run and print its report.

    Exits with 1 when something raised, and with 130 after Ctrl-C.
    """
    from hookflow.trials.temporary_run import run_dry

    with exit_after_traceback():
        result = run_dry(loaded, plan, loaded.source.parent, warn_of)
    echo(f"{loaded.source}: dry run passed in {result.seconds:.1f} s; nothing was kept")
    for name, text in _list_dry_run_facts(loaded, plan, result):
        echo(f"  {name:<10} {text}")


def _list_dry_run_facts(loaded: Loaded, plan: Plan, result: DryRun) -> Iterator[tuple[str, str]]:
    """Yield what a dry run has found out, each with its label.

    A fact of several lines has the label at the first.
    """
    from hookflow.runner.distributed.parallel import class_of

    parts = result.parts
    name = " + ".join(class_of(model) for model in parts.models.values())
    params = sum(parameter.numel() for parameter in parts.model.parameters())
    yield "model", f"{name}, {params:,} parameters, on {result.device} in {parts.precision}"
    yield from _label_lines("layers", _format_layers(result.layers))
    for split, data in result.data.items():
        yield split, _describe_data(data)
    yield "length", _describe_length(loaded, parts.epoch_lengths)
    if parts.effective_batch:
        yield "step", parts.effective_batch
    points = {binding.point for binding in result.fired}
    yield (
        "fired",
        (
            f"{len(result.fired)} of {len(plan.bindings)} bindings, at"
            f" {format_count(len(points), 'point')}"
        ),
    )
    bindings_by_reason: dict[str, list[str]] = {}
    for silent in result.silent:
        bindings_by_reason.setdefault(silent.why, []).append(f"{silent.hook} at {silent.point}")
    silences = [
        f"{reason}: {', '.join(bindings)}" for reason, bindings in bindings_by_reason.items()
    ]
    yield from _label_lines("not fired", silences)
    yield "checkpoint", f"written and read back, {result.checkpoint:,} bytes"


def _label_lines(label: str, lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield lines, the first one with the label."""
    for line in lines:
        yield label, line
        label = ""


def _describe_data(data: DataInfo) -> str:
    text = f"{data['name']}, {format_count(data['batches'], 'batch')}"
    if data["synthetic"]:
        text = f"SYNTHETIC {text}"
    if data["batch_size"]:
        text += f" of {data['batch_size']:,}"
    return text


def _describe_length(loaded: Loaded, lengths: EpochLengths) -> str:
    """Return how many iterations the run has, and by which epochs."""
    from hookflow.runner.process.state import all_iterations

    run = loaded.pipeline.run
    epochs = run.epoch_limit or 0
    if run.is_endless:
        return f"no limit of epochs, the first of {format_count(lengths.at(0), 'iteration')}"
    total = format_count(all_iterations(epochs, run.max_iters, lengths), "iteration")
    if epochs == 0:
        return total
    changes = [
        f"{length:,} after {format_count(first, 'epoch')}" for first, length in lengths.stages[1:]
    ]
    each = ", ".join([format_count(lengths.at(0), "iteration"), *changes])
    return f"{format_count(epochs, 'epoch')} of {each}: {total}"


MAX_LAYERS = 40
"""How many layers are listed."""


def _format_layers(layers: Sequence[Layer]) -> list[str]:
    """Return a line for each of the first layers, and one for all of them."""
    from hookflow.monitor.summary import layer_rows

    lines = columns(list(layer_rows(layers[:MAX_LAYERS])))
    hidden = layers[MAX_LAYERS:]
    if hidden:
        parameters = sum(layer["parameters"] for layer in hidden)
        lines.append(f"and {len(hidden):,} more layers with {parameters:,} parameters")
    trainable = sum(layer["trainable"] for layer in layers)
    num_bytes = sum(layer["bytes"] for layer in layers)
    lines.append(f"{trainable:,} trainable parameters, {size(num_bytes)} of weights")
    return lines


def _choose_ui(ui: options.UIKind) -> options.UIKind:
    if ui == "tui":
        check_terminal()
    if ui != "auto":
        return ui
    if has_terminal() and not os.environ.get("CI"):
        return "tui"
    return "plain"


def _show_until_end(
    run_dir: RunDir, child_exit: ChildExit, ui: options.UIKind, pressed: Sized
) -> int:
    """Train and show the run until it ends, or the dashboard is left; return its exit code."""
    if ui == "tui":
        return _show_dashboard(run_dir, child_exit)
    if ui == "none":
        return child_exit.wait()
    from hookflow.monitor import plain
    from hookflow.monitor.progress_bars import can_show_bars

    try:
        if ui == "json":
            return plain.print_records(run_dir, sys.stdout, child_exit=child_exit)
        bars = can_show_bars(sys.stdout)
        interrupts = partial(len, pressed)
        return plain.print_run(
            run_dir, sys.stdout, child_exit=child_exit, interrupts=interrupts, bars=bars
        )
    except OSError as error:
        if error.errno not in (errno.EPIPE, *FULL_DISK_ERRORS):
            raise
        if error.errno in FULL_DISK_ERRORS:  # else the reader has gone, as after `| head`
            print_error(
                f"the lines of the run cannot be written: {error.strerror}; the training goes on"
            )
        drop_unprinted()
        return child_exit.wait()


def _show_dashboard(run_dir: RunDir, child_exit: ChildExit) -> int:
    from hookflow.events.rundir import run_argument
    from hookflow.monitor.app import MonitorApp, list_pages_of_actions
    from hookflow.monitor.settings import load
    from hookflow.monitor.summary import print_summary
    from hookflow.monitor.terminal import DashboardResult

    began = time.time()
    child_exit()
    app = MonitorApp(
        run_dir, since=began, child_exit=child_exit, preferences=load(list_pages_of_actions())
    )
    outcome = app.run()
    crashed = bool(app.return_code)
    if crashed and child_exit() is None:
        print_error(
            "the dashboard has crashed; the training goes on: hookflow watch"
            f" {run_argument(run_dir)}"
        )
    if not app.state.failed_to_start:
        print_summary(app.run_dir, sys.stdout)
    end = app.state.refused or app.state.end
    if outcome is DashboardResult.ENDED and end:
        return int(end["exit"])  # the process itself may still be on its way out
    return child_exit() or int(crashed)
