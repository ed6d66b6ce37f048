"""`hookflow fork`: a new run that begins with the state of a checkpoint, and may differ from the run that saved it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hookflow.cli import complete
from hookflow.cli.output import Only, Overrides, Shuffle, UIOption, Without
from hookflow.cli.resume import Changes, as_recorded
from hookflow.cli.run import Detach, InProcess, MaxRestarts, Nproc, RunsDir, Start, Test
from hookflow.errors import Problem, UserError
from hookflow.text import print_error

if TYPE_CHECKING:
    from hookflow.events.rundir import Parent, RunDir
    from hookflow.service.pipelines import Target

PARENT = "A run (its newest good checkpoint), RUN:CHECKPOINT such as cifar:best, or a checkpoint's folder."
FILE = "The pipeline of the fork; left out, the one that the checkpoint was saved with."


def fork(
    parent: Annotated[
        str, typer.Argument(metavar="RUN[:CHECKPOINT]", help=PARENT, show_default=False, autocompletion=complete.runs)
    ],
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help=FILE, show_default=False)] = None,
    set_: Overrides = None,
    without: Without = None,
    only: Only = None,
    shuffle: Shuffle = None,
    dir: RunsDir = None,  # noqa: A002  # the option's name
    ui: UIOption = "auto",
    test: Test = False,
    detach: Detach = False,
    in_process: InProcess = False,
    nproc: Nproc = None,
    max_restarts: MaxRestarts = 0,
) -> None:
    """Train a new run from the state of a checkpoint.

    Weights, optimizer, averages, random generators and the place in the data are the parent's. A fork may change what
    a resume refuses: the learning rate, other settings of the optimizer, the batch size, the length, hooks, data, the
    task.
    The parent is only read.

    Example: `hookflow fork cifar:best --set optimizer.args.lr=0.01 --set run.max_epochs=20`
    """
    changes = Changes(
        (*(set_ or ()), *("run.test=true",) * test), tuple(without or ()), tuple(only or ()), shuffle, dir
    )
    Start(ui, detach, in_process, nproc, max_restarts).train(lambda: forked(parent, file, changes))


def forked(named: str, file: Path | None, changes: Changes) -> RunDir:
    """Make the directory of a fork and show how it differs from its parent.

    Raises UserError when there is no such checkpoint, it cannot be used, or no iteration of the fork is left.
    """
    from hookflow.cli.difference_text import difference_lines
    from hookflow.cli.evaluate import find_checkpoint
    from hookflow.events.rundir import Parent
    from hookflow.graph.plan import difference
    from hookflow.runner.checkpoint.manifest import damage, read_manifest
    from hookflow.runner.checkpoint.resume_rules import recorded
    from hookflow.runner.process.launch import new_run
    from hookflow.service.pipelines import Target, valid_plan

    run_dir, checkpoint = find_checkpoint(named, changes.dir or Path("runs"))
    if wrong := damage(checkpoint, thorough=False):
        raise UserError(Problem(f"the checkpoint {checkpoint.name} of {run_dir.id} cannot be used: {wrong}"))
    manifest = read_manifest(checkpoint)
    parent = Parent(run_dir.id, checkpoint.name, manifest["it"], str(checkpoint.absolute()))
    then = Target(str(parent), *recorded(checkpoint), run_dir.base())
    if file is None:
        now = as_recorded(run_dir, checkpoint, changes)
    else:
        loaded = changes.load(file)
        now = Target(str(file), loaded, valid_plan(loaded, shuffle=changes.shuffle), file.parent)
    if result := difference((then.loaded.public, then.plan), (now.loaded.public, now.plan)):
        print_error("\n".join([*difference_lines(then, now, result), ""]))
    if not now.loaded.pipeline.run.test:
        _check_length(now, parent, manifest["ep"])
    runs = changes.dir or (run_dir.path.parent.parent if file is None else None)
    return new_run(now.loaded, now.plan, runs, base=now.base, parent=parent)


def _check_length(now: Target, parent: Parent, epochs: int) -> None:
    """Raise UserError where the fork would train no iteration."""
    for key, done in (("max_epochs", epochs), ("max_iters", parent.it)):
        length = getattr(now.loaded.pipeline.run, key)
        if length is not None and done >= length:
            message = f"nothing is left to train: {parent} has done {done}, and run.{key} is {length}"
            hint = f"--set run.{key}=N, or an earlier checkpoint"
            raise UserError(Problem(message, now.loaded.places.of(f"run.{key}"), hint))
