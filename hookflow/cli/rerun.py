"""`hookflow rerun`: iterations of a recorded run once more, held against the recording, with more hooks."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hookflow.cli import options
from hookflow.cli.output import check_writable, columns, echo, echo_json
from hookflow.cli.resume import Changes, as_recorded
from hookflow.errors import Problem, UserError, Where, first_few
from hookflow.numbers import counted, number, one_line
from hookflow.text import print_error

if TYPE_CHECKING:
    from hookflow.events.rundir import Parent, RunDir
    from hookflow.pipeline.schema import Pipeline
    from hookflow.service.pipelines import Target
    from hookflow.service.rerun import Comparison

PDB = "Stop in Python's debugger before iteration N."
BATCH_FILE = "Save the batch of iteration N there, by torch.save."
TRACE = "Record the K iterations as a timeline, for `hookflow export --format perfetto`."
WITH = "A hook that watches, too: one of hookflow's by its name, or ./file.py:Name. Repeatable."
ROWS, COLUMNS = 30, 8
"""Numbers of the added hooks that are shown, and iterations."""


def rerun(
    run: options.RunName,
    at: Annotated[int, typer.Option("--at", min=1, metavar="N", help="The iteration to look at.")],
    for_: Annotated[int, typer.Option("--for", min=1, metavar="K", help="How many iterations, from N on.")] = 20,
    with_: Annotated[list[str] | None, typer.Option("--with", metavar="USE", help=WITH)] = None,
    without: options.Without = None,
    set_: options.Overrides = None,
    save_batch: Annotated[Path | None, typer.Option("--save-batch", metavar="FILE", help=BATCH_FILE)] = None,
    trace: Annotated[bool, typer.Option("--trace", help=TRACE)] = False,
    debug: Annotated[bool, typer.Option("--pdb", help=PDB)] = False,
    format_: options.FormatOption = "text",
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Do iterations of a run again, and compare what they log.

    It starts from the newest checkpoint before iteration N, or at the beginning, and ends K iterations later. More
    hooks may watch, and hooks may be left out to see what would have been. The run is only read: what the rerun records
    is in a folder of its own, whose name is printed. A run of several ranks is done again by as many.

    Exits with 0 if every number is the recorded one, to the bit, with 1 if one is not.

    Example: `hookflow rerun cifar --at 1200 --with grad_norm --with ./probe.py:Probe`
    """
    from hookflow.events.log import event_log
    from hookflow.runner.process.main import prepare_exit
    from hookflow.service.rerun import causes, compare
    from hookflow.service.runs import find_run, scalar_rows

    prepare_exit()
    run_dir = find_run(run, dir)
    records = event_log(run_dir.events).read_all()
    done = _done(records)
    if at > done + 1:  # the next one may be that which has raised
        raise UserError(Problem(f"the run {run_dir.id} has done {counted(done, 'iteration')}", Where("--at")))
    end = at + for_ - 1
    parent = _before(run_dir, at)
    begin = parent.it if parent else 0
    world = _world(parent, records)
    hooks = _tools(at, for_, save_batch, trace=trace, debug=debug, world=world)
    target, left_out = _target(run_dir, parent, end, with_ or (), tuple(without or ()), [*hooks, *(set_ or ())])
    again = _trained(target, parent, world)
    own = event_log(again.events).read_all()
    result = compare(scalar_rows(records), scalar_rows(own), begin, end, without=bool(without or left_out))
    beginnings = [record for record in records if record["k"] == "run" and record["it"] <= begin]
    now = next(record for record in own if record["k"] == "run")
    why = [*causes(beginnings[-1], now)] if beginnings else []
    reached = _done(own)
    falls_short = reached < min(end, done)
    if format_ == "json":
        facts = {"run": run_dir.id, "rerun": str(again.path), "reached": reached, "left_out": left_out, "causes": why}
        echo_json({**facts, **asdict(result)})
    else:
        named = f"{run_dir.id} from {parent.checkpoint if parent else 'the beginning'}"
        echo("\n".join(_report(result, why, at, reached, named, probes=bool(with_ or without or set_))))
        if left_out:
            echo(f"  left out, since it writes outside the run: {', '.join(left_out)}")
        for error in (record for record in own if record["k"] == "error" and record["action"] == "raise"):
            echo(f"  it ended with {error['type']}: {one_line(error['text']).partition('. ')[0]}")
        if falls_short:
            echo(f"  it has ended early: the run has done {counted(done, 'iteration')}")
        if trace:
            echo(f"the trace, for ui.perfetto.dev: hookflow export {again.path} --format perfetto --out trace.json")
        echo(f"the rerun: hookflow show {again.path}")
    raise typer.Exit(int(bool(result.unlike) or falls_short))


def _done(records: Sequence[Mapping[str, Any]]) -> int:
    """Return the iterations that a run has done; errors and scalars may be of the one under way."""
    return max((record["it"] for record in records if record["k"] not in ("error", "scalars")), default=0)


def _world(parent: Parent | None, records: Sequence[Mapping[str, Any]]) -> int:
    """Return how many ranks have trained from there on."""
    from hookflow.runner.checkpoint.manifest import read_manifest

    if parent:
        return int(read_manifest(Path(parent.path)).get("world", 1))
    return next((int(record["world"]) for record in records if record["k"] == "run"), 1)


def _tools(at: int, iters: int, batch: Path | None, *, trace: bool, debug: bool, world: int) -> Iterator[str]:
    """Yield overrides with the hooks that save a batch, stop in the debugger, and trace."""
    from hookflow.events.commands import MOST_TRACED
    from hookflow.service.rerun import Debugger, SaveBatch, Tracer, override

    if batch is not None:
        check_writable(batch)
        yield override(SaveBatch, at=at, file=str(batch.absolute()))
    if debug:
        if world > 1 or not sys.stdin.isatty():
            raise UserError(Problem("--pdb needs a terminal, and a run of one process", Where("--pdb")))
        yield override(Debugger, at=at)
    if trace:
        if iters > MOST_TRACED:  # the stamps of all are kept until the last is over
            raise UserError(Problem(f"--trace records at most {MOST_TRACED:,} iterations", Where("--for")))
        yield override(Tracer, at=at, iters=iters)


def _before(run_dir: RunDir, at: int) -> Parent | None:
    """Return the newest checkpoint before iteration `at` that is whole, or that the run was forked from; or None."""
    from hookflow.events.rundir import Parent
    from hookflow.runner.checkpoint.manifest import damage, list_checkpoints, read_manifest

    for path in list_checkpoints(run_dir.checkpoints):
        if not damage(path, thorough=False) and (manifest := read_manifest(path))["it"] < at:
            return Parent(run_dir.id, path.name, manifest["it"], str(path.absolute()))
    forked = run_dir.parent()
    if forked and forked.it >= at:
        raise UserError(Problem(f"iteration {at} is before {run_dir.id}: it is one of {forked.run}", Where("--at")))
    return forked


def _target(
    run_dir: RunDir,
    parent: Parent | None,
    end: int,
    with_: Iterable[str],
    without: tuple[str, ...],
    changes: Iterable[str],
) -> tuple[Target, tuple[str, ...]]:
    """Return the recorded pipeline with the hooks that watch, an end, and `changes`; and the hooks that are left out.

    It writes nothing outside the rerun's folder.
    """
    from hookflow.pipeline.layers import Override
    from hookflow.pipeline.load import missing_objects
    from hookflow.runner.checkpoint.resume_rules import recorded
    from hookflow.service.rerun import NAMES, End, override

    folder = run_dir.path if parent is None or parent.run != run_dir.id else Path(parent.path)
    pipeline = recorded(folder)[0].public
    added: dict[str, Override] = {}
    for use in with_:
        name = _name_for(use, {*pipeline.hooks, NAMES[End], *added})
        added[name] = Override(f"hooks.{name}={_use(use)}", Where(f"--with {use}"))
    confinement = _confine(pipeline, run_dir.base(), without)
    # a hook may log a number one iteration late
    overrides = (override(End, at=end + 1), *_unthrottle(pipeline), *confinement.overrides, *changes)
    dropped = (*without, *confinement.left_out)
    target = as_recorded(run_dir, folder, Changes(overrides, dropped), added.values())
    if missing := missing_objects(target.loaded):
        raise UserError(missing)
    return target, confinement.left_out


def _use(use: str) -> str:
    """Return the table of a hook that watches; a file is meant from the current folder."""
    from hookflow.pipeline.source_map import as_toml

    file, colon, name = use.rpartition(".py:")
    return as_toml({"use": f"{Path(file).absolute()}{colon}{name}" if colon else use})


def _name_for(use: str, names: set[str]) -> str:
    name = use.rpartition(":")[2].rpartition(".")[2].lower()
    return next(each for each in (name, *(f"{name}_{k}" for k in range(2, 1000))) if each not in names)


def _unthrottle(pipeline: Pipeline) -> Iterator[str]:
    """Yield the overrides by which a rerun skips no firing for its cost."""
    for name, hook in pipeline.hooks.items():
        if hook.over_budget != "warn":
            yield f'hooks.{name}.over_budget="warn"'


@dataclass(frozen=True, slots=True)
class Confinement:
    """What keeps a rerun from writing outside its own folder: overrides, and hooks that are left out."""

    overrides: tuple[str, ...]
    left_out: tuple[str, ...]


def _confine(pipeline: Pipeline, base: Path, without: Collection[str]) -> Confinement:
    """Return the changes after which a recorded pipeline has no writers, notifications, or hooks that write elsewhere.

    Each hook's class is asked, so that a subclass, and a class named by its path, count as what they are. The user's
    own files are relative to `base`; hooks in `without` are not looked at, nor are those that cannot be found, which
    compiling the pipeline reports.
    """
    from hookflow.hooks.inspect import outside_arguments
    from hookflow.hooks.registry import find_hook

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
            hook = find_hook(node.use, base, None)
        except UserError:
            continue
        outside = outside_arguments(hook)
        if outside is None:
            left_out.append(name)
        elif outside:
            overrides += _without_arguments(name, node.args, hook, outside)
    return Confinement(tuple(overrides), tuple(left_out))


def _without_arguments(
    name: str, args: Mapping[str, Any] | Sequence[Any], hook: Callable[..., Any], outside: Collection[str]
) -> Iterator[str]:
    """Yield the override that takes arguments away from a hook, if it has any of them."""
    from hookflow.hooks.arguments import first_names
    from hookflow.pipeline.source_map import as_toml

    named = args if isinstance(args, Mapping) else dict(zip(first_names(hook, len(args)), args, strict=False))
    kept = {key: value for key, value in named.items() if key not in outside}
    if kept.keys() != named.keys():
        yield f"hooks.{name}.args={as_toml(kept)}"


def _trained(target: Target, parent: Parent | None, world: int) -> RunDir:
    """Train in this process, or by ranks; return the directory of the rerun, which may have raised as the run did.

    Exits with 2 after a user's mistake, and with 130 or 143 after a signal.
    """
    from hookflow.runner.process.launch import claim, new_run, start
    from hookflow.runner.process.main import train
    from hookflow.service.runs import failure_report

    runs = Path(tempfile.mkdtemp(prefix="hookflow-rerun-"))
    run_dir = new_run(target.loaded, target.plan, runs, base=target.base, parent=parent)
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
    """Yield the lines on what is equal, on the first number that differs, and on what the added hooks have logged."""
    yield f"iterations {result.begin + 1:,} to {min(reached, result.end):,} of {named}"
    names = f"{counted(len(result.names), 'name')} ({first_few(result.names)})" if result.names else "no name"
    if not result.unlike:
        yield f"  {counted(result.compared, 'number')} of {names}: every one is as recorded, to the bit"
    else:
        first = result.unlike[0]
        now = "nothing" if first.now is None else repr(first.now)
        yield f"  first difference in iteration {first.iter:,}: {first.name} was {first.recorded!r}, and is {now}"
        yield f"  {len(result.unlike):,} of {counted(result.compared, 'number')} of {names} differ"
        yield from (f"  {cause}" for cause in why)
        if probes:
            yield "  hooks or keys are not those of the run: a rerun without that tells whether it made the difference"
        elif not why:
            yield "  a hook may read the clock, or a command have changed the run: hookflow show lists commands"
    if result.measured:
        yield f"  not compared, since a clock or the machine makes them: {', '.join(result.measured)}"
    if result.silent:
        yield f"  not compared, since no hook of the rerun logs them: {', '.join(result.silent)}"
    yield from _of_probes(result.more, at)


def _of_probes(more: Mapping[str, Mapping[int, float]], at: int) -> Iterator[str]:
    """Yield a table of the numbers that the recording does not have, from iteration `at` on."""
    names = [name for name, values in more.items() if any(it >= at for it in values)]
    its = sorted({it for name in names for it in more[name] if it >= at})
    if not names:
        return
    rows = [("iteration", *map(str, its[:COLUMNS]))]
    shown = ((name, more[name]) for name in names[:ROWS])
    rows += [(name, *(number(of[it]) if it in of else "-" for it in its[:COLUMNS])) for name, of in shown]
    yield ""
    yield from columns(rows, "  ")
    if len(names) > ROWS or len(its) > COLUMNS:
        yield f"  of {counted(len(names), 'number')} in {counted(len(its), 'iteration')}"
