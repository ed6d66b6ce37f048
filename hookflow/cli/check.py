"""`hookflow check`: validate a pipeline and report its warnings."""

import shutil
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from hookflow.cli import options
from hookflow.cli.output import columns, echo, echo_json, exits_after_traceback, warn_of
from hookflow.errors import Problem, UserError
from hookflow.numbers import size

if TYPE_CHECKING:
    from hookflow.graph.plan import Plan
    from hookflow.pipeline.load import Loaded


OBSERVE = "Train a few iterations, and report what each hook reads and writes without declaring it."
WRITE = "With --observe: add the missing declarations to the file."
COMMUTE = "Fire every pair of unordered hooks both ways, in short runs, to see whether their order matters."
OFFLOAD = "Report which hooks may fire beside the training, and what keeps the others."


def check(
    pipeline: options.PipelineFile,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 on a warning or an ambiguous order.")] = False,
    observe: Annotated[bool, typer.Option("--observe", help=OBSERVE)] = False,
    write: Annotated[bool, typer.Option("--write", help=WRITE)] = False,
    commute: Annotated[bool, typer.Option("--commute", help=COMMUTE)] = False,
    offload: Annotated[bool, typer.Option("--offload", help=OFFLOAD)] = False,
    format_: options.FormatOption = "text",
    set_: options.Overrides = None,
    without: options.Without = None,
    only: options.Only = None,
    shuffle: options.Shuffle = None,
    no_import: options.NoImport = False,
) -> None:
    """Validate a pipeline, summarise it, and report its warnings.

    `check` validates the keys, the hooks with their arguments, order and triggers, and the names of all components.
    Of their arguments it validates names and plain types, where the source shows a signature. It builds nothing:
    `hookflow run --dry-run` does, and finds data without batches. Hooks are imported, so their files run; with
    `--no-import` none of them runs, and the hooks are listed.

    `--observe` trains in a temporary folder: two epochs of two iterations, with validations and one checkpoint. Each
    hook fires wherever it can, whatever its trigger. Later effects of a hook are not seen, nor are writes to files,
    globals or other things outside of the run.

    `--commute` repeats such a run from the same seed, each time with some pairs of hooks in the other order. It
    compares weights, gradients, optimizers, learning rates, random generators, metrics, logged scalars, checkpoints,
    attributes of hooks, and files in the run directory. Pairs that differ are named; ambiguous pairs
    without a difference are no longer reported. It takes about as many short runs as hooks fire at one point: at most
    200, or ten minutes.

    `--offload` lists the hooks: those that are offloaded, those that could be, and for each other one the slot, edge or
    line of its source that keeps it in the training thread. A short run in a temporary folder measures the copies that
    a firing needs: their bytes, and their time in the training thread. JSON is without them.

    Exits with 0 if the pipeline is valid and with 2 if it is not; with `--strict`, with 1 if it has warnings, an
    ambiguous order, or a pair that differs.
    """
    if write and not observe:
        raise UserError(Problem("--write needs --observe: what is missing is what was seen"))
    if format_ == "json" and (observe or commute):
        raise UserError(Problem("--format json is for editors, and --observe and --commute report in text"))
    if no_import and (observe or commute):
        raise UserError(Problem("--no-import runs nothing, --observe and --commute do"))
    from hookflow.service.findings import Findings, offloading
    from hookflow.service.pipelines import read_pipeline, valid_plan

    seen = None
    try:
        loaded = read_pipeline(pipeline, set_ or (), without=without or (), only=only or (), imports=not no_import)
        plan = valid_plan(loaded, shuffle=shuffle, imports=not no_import)
        if observe:
            from hookflow.cli.observe_report import Report
            from hookflow.graph.observation import with_observed

            seen = Report.of(loaded, plan)
            plan = with_observed(plan, seen.observed.seen)  # each pair is judged by what its hooks were seen to touch
        findings = Findings.of(loaded, plan, imports=not no_import)
        if commute:
            from hookflow.trials.commute import commute as fire_both_ways

            with exits_after_traceback():
                commuted = fire_both_ways(loaded, plan, loaded.source.parent, warn_of)
            findings = replace(findings, commuted=commuted)
    except UserError as error:
        if format_ == "text":
            raise
        echo_json({"file": str(pipeline), "valid": False, "problems": error.to_json()})
        raise typer.Exit(2) from None
    beside, tried = offloading(loaded, plan, imports=not no_import) if offload else ({}, plan)
    if format_ == "json":
        echo_json(findings.to_json() | ({"offload": beside} if offload else {}))
    else:
        width = shutil.get_terminal_size().columns
        lines = [*findings.lines(width), *(seen.lines(findings.ambiguous, width, written=write) if seen else ())]
        if offload:
            copied = {} if no_import else _copies(loaded, tried)
            rows = [(hook, copied.get(hook, ""), state) for hook, state in beside.items()]
            lines += ["", *columns([("hook", "copies", "beside the training"), *rows], "  ", width)]
        echo("\n".join(lines))
    if seen and write:
        for line in seen.write():
            echo(line)
    if strict and (findings.doubtful or (seen and seen.doubtful)):
        raise typer.Exit(1)


def _copies(loaded: "Loaded", plan: "Plan") -> dict[str, str]:
    """Return for each offloaded hook of a plan the bytes and the time of its copies, as a short run has them."""
    if not any(hook.queue for hook in plan.hooks):
        return {}
    from hookflow.trials.temporary_run import copies_made

    with exits_after_traceback(), redirect_stdout(sys.stderr):  # what hooks print is not of the report
        made = copies_made(loaded, plan, loaded.source.parent, warn_of)
    return {hook: f"{size(held)} in {ms:.2g} ms" for hook, (held, ms) in made.items()}
