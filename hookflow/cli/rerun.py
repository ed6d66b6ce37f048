"""`hookflow rerun`: do iterations of a recorded run once more.

They are compared with the recording, and may have more hooks.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hookflow.cli import options
from hookflow.cli.output import check_writable, columns, echo, echo_json
from hookflow.cli.resume import PipelineChanges, as_recorded
from hookflow.errors import Problem, UserError, Where, first_few
from hookflow.numbers import format_count, number, one_line
from hookflow.text import print_error

if TYPE_CHECKING:
    from hookflow.events.recorded_code import RecordedCode
    from hookflow.events.rundir import Parent, RunDir
    from hookflow.hooks.spec import HookSpec
    from hookflow.pipeline.load import Loaded
    from hookflow.pipeline.schema import Pipeline
    from hookflow.rerun.comparison import Comparison
    from hookflow.service.pipelines import Target

PDB_HELP = "Stop in Python's debugger before iteration N."
BATCH_FILE_HELP = "Save the batch of iteration N there, by torch.save."
TRACE_HELP = "Record the K iterations as a timeline, for `hookflow export --format perfetto`."
CODE_HELP = "The code to run: as the run has recorded it, or as it is now."
WITH_HELP = (
    "A hook that watches, too: one of hookflow's by its name, or ./file.py:Name. Repeatable."
)
MAX_ROWS = 30
"""How many numbers of the added hooks are shown."""

MAX_ITERATIONS = 8
"""For how many iterations they are shown."""


def rerun(
    run: options.RunName,
    at: Annotated[int, typer.Option("--at", min=1, metavar="N", help="The iteration to look at.")],
    for_: Annotated[
        int, typer.Option("--for", min=1, metavar="K", help="How many iterations, from N on.")
    ] = 20,
    with_: Annotated[
        list[str] | None, typer.Option("--with", metavar="USE", help=WITH_HELP)
    ] = None,
    without: options.Without = None,
    set_: options.Overrides = None,
    save_batch: Annotated[
        Path | None, typer.Option("--save-batch", metavar="FILE", help=BATCH_FILE_HELP)
    ] = None,
    code: Annotated[
        Literal["recorded", "current"], typer.Option("--code", help=CODE_HELP)
    ] = "recorded",
    trace: Annotated[bool, typer.Option("--trace", help=TRACE_HELP)] = False,
    debug: Annotated[bool, typer.Option("--pdb", help=PDB_HELP)] = False,
    format_: options.FormatOption = "text",
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Do iterations of a run again, and compare what they log.

    It starts from the newest checkpoint before iteration N, or at the beginning, and ends K
    iterations later. More hooks may watch, and hooks may be left out to see what would have been.
    The run is only read: what the rerun records is in a folder of its own, whose name is printed. A
    run of several ranks is done again by as many.

    Where the code has changed since, the recorded code is run, in a copy of the project that links
    to all other files. With `--code current` the code is run as it is now, and named as a cause
    where numbers differ.

    Exits with 0 if every number is the recorded one, to the bit, with 1 if one is not.

    Example: `hookflow rerun cifar --at 1200 --with grad_norm --with ./probe.py:Probe`
    """
    from hookflow.events.log import event_log
    from hookflow.events.temporary_files import find_temporary_folder
    from hookflow.rerun.comparison import code_causes, compare
    from hookflow.runner.attempt.main import prepare_exit
    from hookflow.service.runs import find_run, scalar_rows

    prepare_exit()
    run_dir = find_run(run, dir)
    records = event_log(run_dir.events).read_all()
    done = _last_iteration(records)
    if at > done + 1:  # the next one may be that which has raised
        raise UserError(
            Problem(
                f"the run {run_dir.id} has done {format_count(done, 'iteration')}", Where("--at")
            )
        )
    end = at + for_ - 1
    parent = _before(run_dir, at)
    begin = 0
    if parent is not None:
        begin = parent.it
    world = _count_ranks(records, at)
    tools = _list_tool_overrides(at, for_, save_batch, trace=trace, debug=debug, world=world)
    folder = Path(tempfile.mkdtemp(prefix="hookflow-rerun-", dir=find_temporary_folder()))
    project = _choose_project(run_dir, at, folder, recorded=code == "recorded")
    changes = [*tools, *(set_ or ())]
    target, left_out = _target(
        run_dir, parent, end, with_ or (), tuple(without or ()), changes, project.base
    )
    again = _train_rerun(target, parent, world, folder, project)
    new_records = event_log(again.events).read_all()
    is_reduced = bool(without or left_out)
    result = compare(scalar_rows(records), scalar_rows(new_records), begin, end, without=is_reduced)
    reasons = list(_changed_facts(records, new_records, at))
    reasons += code_causes(run_dir, project.recorded, again, begin, min(end, done))
    reached = _last_iteration(new_records)
    falls_short = reached < min(end, done)
    if format_ == "json":
        facts = {
            "run": run_dir.id,
            "rerun": str(again.path),
            "reached": reached,
            "left_out": left_out,
            "causes": reasons,
        }
        echo_json({**facts, **asdict(result)})
    else:
        start = "the beginning"
        if parent is not None:
            start = parent.checkpoint
        is_changed = bool(with_ or without or set_)
        lines = _report(
            result, reasons, at, reached, f"{run_dir.id} from {start}", probes=is_changed
        )
        echo("\n".join(lines))
        if left_out:
            echo(f"  left out, since it writes outside the run: {', '.join(left_out)}")
        for error in _final_errors(new_records):
            echo(f"  it ended with {error}")
        if falls_short:
            echo(f"  it has ended early: the run has done {format_count(done, 'iteration')}")
        if trace:
            echo(_describe_trace(again))
        echo(f"the rerun: hookflow show {again.path}")
    raise typer.Exit(int(bool(result.unlike) or falls_short))


def _describe_trace(again: RunDir) -> str:
    """Return the command that exports the trace of a rerun, or that it has none."""
    if not any(again.traces.glob("*.json")):
        return "there is no trace: no iteration that was to be traced has ended"
    return (
        f"the trace, for ui.perfetto.dev: hookflow export {again.path} --format perfetto"
        " --out trace.json"
    )


def _final_errors(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the type and the first sentence of each error that was raised out of the loop."""
    for record in records:
        if record["k"] == "error" and record["action"] == "raise":
            sentence = one_line(record["text"]).partition(". ")[0]
            yield f"{record['type']}: {sentence}"


def _last_iteration(records: Sequence[Mapping[str, Any]]) -> int:
    """Return the iterations that a run has done; errors and scalars may be of the one under way."""
    iterations = [record["it"] for record in records if record["k"] not in ("error", "scalars")]
    return max(iterations, default=0)


def _changed_facts(
    records: Sequence[Mapping[str, Any]], new_records: Sequence[Mapping[str, Any]], at: int
) -> Iterator[str]:
    """Yield which facts of the machine differ from those of the attempt that did iteration `at`."""
    from hookflow.rerun.comparison import find_causes

    then = _find_attempt(records, at)
    now = next(record for record in new_records if record["k"] == "run")
    if then is not None:
        yield from find_causes(then, now)


def _find_attempt(records: Sequence[Mapping[str, Any]], it: int) -> Mapping[str, Any] | None:
    """Return the first record of the attempt that did an iteration.

    A fork or a resume may have had other ranks than the attempt that saved its checkpoint.
    """
    attempts = [record for record in records if record["k"] == "run" and record["it"] < it]
    if attempts:
        return attempts[-1]
    return None


def _count_ranks(records: Sequence[Mapping[str, Any]], it: int) -> int:
    """Return how many ranks did an iteration."""
    attempt = _find_attempt(records, it)
    if attempt is None:
        return 1
    return int(attempt["world"])


def _list_tool_overrides(
    at: int, iters: int, batch: Path | None, *, trace: bool, debug: bool, world: int
) -> Iterator[str]:
    """Yield overrides with the hooks that save a batch, stop in the debugger, and trace."""
    from hookflow.events.commands import MOST_TRACED
    from hookflow.rerun.rerun_hooks import BatchSaver, IterationDebugger, IterationTracer, override

    if batch is not None:
        check_writable(batch)
        yield override(BatchSaver, at=at, file=str(batch.absolute()))
    if debug:
        if world > 1 or not sys.stdin.isatty():
            raise UserError(
                Problem("--pdb needs a terminal, and a run of one process", Where("--pdb"))
            )
        yield override(IterationDebugger, at=at)
    if trace:
        if iters > MOST_TRACED:  # the stamps of all are kept until the last is over
            raise UserError(
                Problem(f"--trace records at most {MOST_TRACED:,} iterations", Where("--for"))
            )
        yield override(IterationTracer, at=at, iters=iters)


def _before(run_dir: RunDir, at: int) -> Parent | None:
    """Return the newest whole checkpoint before iteration `at`, or None.

    It may be the one that the run was forked from.
    """
    from hookflow.events.rundir import Parent
    from hookflow.runner.checkpoint.held import find_parent_checkpoint
    from hookflow.runner.checkpoint.manifest import find_damage, list_checkpoints, read_manifest

    for path in list_checkpoints(run_dir.checkpoints):
        if find_damage(path, thorough=False):
            continue
        iteration = read_manifest(path)["it"]
        if iteration < at:
            return Parent(run_dir.id, path.name, iteration, str(path.absolute()))
    forked = run_dir.parent()
    if forked is None:
        return None
    if forked.it >= at:
        raise UserError(
            Problem(
                f"iteration {at} is before {run_dir.id}: it is one of {forked.run}", Where("--at")
            )
        )
    start = find_parent_checkpoint(run_dir, forked)
    found_damage = find_damage(start, thorough=False)
    if found_damage:
        message = (
            f"iteration {at} would be done again from {forked}, where {run_dir.id} begins:"
            f" {found_damage}"
        )
        raise UserError(Problem(message, Where("--at")))
    return forked._replace(path=str(start.absolute()))


def _target(
    run_dir: RunDir,
    parent: Parent | None,
    end: int,
    with_: Iterable[str],
    without: tuple[str, ...],
    changes: Iterable[str],
    base: Path,
) -> tuple[Target, tuple[str, ...]]:
    """Return the recorded pipeline as a rerun needs it, and the hooks that are left out.

    It has the hooks that watch, an end, and `changes`. It writes nothing outside the rerun's
    folder. The pipeline's own files are relative to `base`.
    """
    from hookflow.pipeline.layers import Override
    from hookflow.pipeline.load import missing_objects
    from hookflow.rerun.rerun_hooks import HOOK_NAMES, RerunEnd, override
    from hookflow.runner.checkpoint.resume_rules import read_recorded

    folder = run_dir.path
    if parent is not None and parent.run == run_dir.id:
        folder = Path(parent.path)
    loaded, _ = read_recorded(folder)
    pipeline = loaded.public
    added: dict[str, Override] = {}
    for use in with_:
        name = _name_for(use, {*pipeline.hooks, HOOK_NAMES[RerunEnd], *added})
        added[name] = Override(f"hooks.{name}={_use(use)}", Where(f"--with {use}"))
    confinement = _make_confinement(loaded, base, without)
    # A hook may log a number one iteration late.
    overrides = (
        override(RerunEnd, at=end + 1),
        *_list_unthrottling_overrides(pipeline),
        *confinement.overrides,
        *changes,
    )
    dropped = (*without, *confinement.left_out)
    target = as_recorded(run_dir, folder, PipelineChanges(overrides, dropped), added.values(), base)
    missing = missing_objects(target.loaded)
    if missing:
        raise UserError(missing)
    return target, confinement.left_out


@dataclass(frozen=True, slots=True)
class RerunProject:
    """The code that a rerun runs.

    It has the folder that the pipeline's own files are relative to, and what was recorded.

    `copy` is the folder with the copy of the project where the recorded code is not the one on the
    disk.
    """

    base: Path
    recorded: RecordedCode | None
    copy: Path | None = None


def _choose_project(run_dir: RunDir, at: int, folder: Path, *, recorded: bool) -> RerunProject:
    """Return the project to run iteration `at` with.

    It is a copy in `folder` where the `recorded` code has changed since.
    """
    from hookflow.events.recorded_code import code_before, compare_code, name_changes
    from hookflow.events.rundir import short
    from hookflow.pipeline.load import load
    from hookflow.rerun.project_copy import ProjectCopy
    from hookflow.runner.process.code_recorder import project_root

    base = run_dir.base()
    code = code_before(run_dir, at)
    if code is None:
        print_error(f"the code of {run_dir.id} was not recorded: this runs the code as it is now")
        return RerunProject(base, None)
    # Loading the pipeline masks the values of the environment in the texts of the code, as the
    # record does.
    load(short(run_dir.pipeline), recorded=True)
    changes = compare_code(code, code.on_disk(project_root(base)))
    if not changes:
        return RerunProject(base, code)
    places = name_changes(changes)
    if not recorded:
        print_error(f"this runs the code as it is now, which is not that of {run_dir.id}: {places}")
        return RerunProject(base, code)
    print_error(f"this runs the code as {run_dir.id} has recorded it; changed since: {places}")
    top = folder / ".code"
    copy = ProjectCopy(code, base, Path(os.path.realpath(folder)) / top.name)
    try:
        copy.write()
    except OSError as error:
        raise UserError(
            Problem(f"the recorded code cannot be written to {top}: {error.strerror}")
        ) from None
    copy.import_first()
    return RerunProject(copy.find_place(Path(os.path.realpath(base))), code, top)


def _use(use: str) -> str:
    """Return the table of a hook that watches; a file is meant from the current folder."""
    from hookflow.pipeline.source_map import as_toml

    file, colon, name = use.rpartition(".py:")
    if colon:
        use = f"{Path(file).absolute()}{colon}{name}"
    return as_toml({"use": use})


def _name_for(use: str, names: set[str]) -> str:
    """Return a name for a hook that none of `names` is.

    It is that of its class, with a number if need be.
    """
    class_name = use.rpartition(":")[2].rpartition(".")[2].lower()
    name = class_name
    number = 1
    while name in names:
        number += 1
        name = f"{class_name}_{number}"
    return name


def _list_unthrottling_overrides(pipeline: Pipeline) -> Iterator[str]:
    """Yield the overrides by which a rerun skips no firing for its cost."""
    for name, hook in pipeline.hooks.items():
        if hook.over_budget != "warn":
            yield f'hooks.{name}.over_budget="warn"'


@dataclass(frozen=True, slots=True)
class RerunConfinement:
    """The measures that keep a rerun from writing outside its own folder.

    These are overrides, and hooks that are left out.
    """

    overrides: tuple[str, ...]
    left_out: tuple[str, ...]


def _make_confinement(recorded: Loaded, base: Path, without: Collection[str]) -> RerunConfinement:
    """Return the changes that keep a recorded pipeline from writing elsewhere.

    It then has no writers, notifications, or hooks that write elsewhere. The class of each hook
    decides, so that a subclass, and a class named by its path, count as what they are. The user's
    own files are relative to `base`; hooks in `without` are not looked at, nor are those that
    cannot be found, which compiling the pipeline reports.
    """
    from hookflow.hooks.spec import find_specs

    pipeline = recorded.public
    overrides = []
    left_out = []
    if pipeline.writers:
        overrides.append("writers=null")
    if pipeline.notify is not None:
        overrides.append("notify=null")
    for name, node in pipeline.hooks.items():
        if name in without or not node.enabled:
            continue
        try:
            spec = find_specs(recorded, [name], base)[name]
        except UserError:
            continue
        outside = spec.find_outside_arguments()
        if outside is None:
            left_out.append(name)
        elif outside:
            overrides += _without_arguments(spec, node.args, outside)
    return RerunConfinement(tuple(overrides), tuple(left_out))


def _without_arguments(
    spec: HookSpec, written: Mapping[str, Any] | Sequence[Any], outside: Collection[str]
) -> Iterator[str]:
    """Yield the override that takes arguments away from a hook, if it has any of them.

    `written` are its arguments with references as the file has them.
    """
    from hookflow.hooks.arguments import named_arguments
    from hookflow.pipeline.source_map import as_toml

    given = named_arguments(spec.make, written)
    kept = {key: value for key, value in given.items() if key not in outside}
    if kept.keys() != given.keys():
        yield f"hooks.{spec.name}.args={as_toml(kept)}"


def _train_rerun(
    target: Target, parent: Parent | None, world: int, folder: Path, project: RerunProject
) -> RunDir:
    """Train in this process, or by ranks, and return the directory of the rerun.

    The rerun may have raised as the run did. Exits with 2 after a user's mistake, and with 130 or
    143 after a signal.
    """
    from hookflow.runner.attempt.main import train
    from hookflow.runner.process.launch import claim, new_run, start
    from hookflow.service.runs import failure_report

    run_dir = new_run(target.loaded, target.plan, folder, base=target.base, parent=parent)
    if project.copy is not None:
        run_dir.sign(project_copy=str(project.copy))
    if world > 1:
        code = start(run_dir, nproc=world, notifies=False).wait()
    else:
        claim(run_dir)
        with redirect_stdout(sys.stderr):
            code = train(run_dir)
    if code == 2:
        print_error(failure_report(run_dir))
    if code in (2, 130, 143):
        raise typer.Exit(code)
    return run_dir


def _report(
    result: Comparison, why: Sequence[str], at: int, reached: int, named: str, *, probes: bool
) -> Iterator[str]:
    """Yield the lines on what is equal, the first number that differs, and added hooks' logs."""
    last = min(reached, result.end)
    if last > result.begin:
        yield f"iterations {result.begin + 1:,} to {last:,} of {named}"
    else:
        yield f"iteration {result.begin + 1:,} of {named}: it has not ended"
    names = f"{format_count(len(result.names), 'name')} ({first_few(result.names)})"
    if not result.compared:
        yield "  no number is recorded there that could be compared"
    elif not result.unlike:
        yield (
            f"  {format_count(result.compared, 'number')} of {names}: every one is as recorded, to"
            " the bit"
        )
    else:
        first = result.unlike[0]
        now = "nothing"
        if first.now is not None:
            now = repr(first.now)
        yield (
            f"  first difference in iteration {first.iter:,}: {first.name} was {first.recorded!r},"
            f" and is {now}"
        )
        yield (
            f"  {len(result.unlike):,} of {format_count(result.compared, 'number')} of {names}"
            " differ"
        )
        for cause in why:
            yield f"  {cause}"
        if probes:
            yield (
                "  hooks or keys are not those of the run: a rerun without that tells whether it"
                " made the difference"
            )
        elif not why:
            yield (
                "  a hook may read the clock, or a command have changed the run: hookflow show"
                " lists commands"
            )
    if result.measured:
        yield (
            f"  not compared, since a clock or the machine makes them: {', '.join(result.measured)}"
        )
    if result.silent:
        yield f"  not compared, since no hook of the rerun logs them: {', '.join(result.silent)}"
    yield from _format_added_numbers(result.more, at)


def _format_added_numbers(more: Mapping[str, Mapping[int, float]], at: int) -> Iterator[str]:
    """Yield a table of the numbers that the recording does not have, from iteration `at` on."""
    names = []
    iterations: set[int] = set()
    for name, values in more.items():
        new_iterations = {iteration for iteration in values if iteration >= at}
        if new_iterations:
            names.append(name)
            iterations |= new_iterations
    if not names:
        return
    shown = sorted(iterations)[:MAX_ITERATIONS]
    rows = [["iteration", *[str(iteration) for iteration in shown]]]
    for name in names[:MAX_ROWS]:
        row = [name]
        for iteration in shown:
            value = more[name].get(iteration)
            row.append("-" if value is None else number(value))
        rows.append(row)
    yield ""
    yield from columns(rows, "  ")
    if len(names) > MAX_ROWS or len(iterations) > MAX_ITERATIONS:
        yield (
            f"  of {format_count(len(names), 'number')} in"
            f" {format_count(len(iterations), 'iteration')}"
        )
