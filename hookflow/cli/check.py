"""`hookflow check`: validate a pipeline and report its warnings."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hookflow.cli.options import Format, NoImport, Only, Overrides, PipelineFile, Shuffle, Without
from hookflow.cli.output import echo, echo_json, exits_after_traceback, warn, warn_of
from hookflow.errors import Problem, UserError

if TYPE_CHECKING:
    from hookflow.cli.observe_report import Report
    from hookflow.service.findings import Findings


def check(
    pipeline: PipelineFile,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 on a warning or an ambiguous order.")] = False,
    observe: Annotated[
        bool,
        typer.Option(
            "--observe",
            help="Train for a few iterations, watch what each hook reads and writes, and say what is not declared.",
        ),
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="With --observe: put the declarations that are missing into the file.")
    ] = False,
    commute: Annotated[
        bool,
        typer.Option(
            "--commute",
            help="Fire every pair of hooks that nothing orders both ways, in short runs: does their order matter?",
        ),
    ] = False,
    format_: Annotated[
        Format, typer.Option("--format", "-f", help="Text for people, or JSON for editors.")
    ] = Format.text,
    set_: Overrides = None,
    without: Without = None,
    only: Only = None,
    shuffle: Shuffle = None,
    no_import: NoImport = False,
) -> None:
    """Validate a pipeline, summarise it, and report its warnings.

    `check` validates the keys, the hooks with their arguments, order and triggers, and the names of all components. A
    run checks the arguments of the model, the data and the optimizer, before it fetches any data. Hooks are imported,
    so their files run; with `--no-import` none of them runs, and the hooks are listed.

    `--observe` trains in a temporary folder: two epochs of two iterations, with validations and one checkpoint. Each
    hook fires wherever it can, whatever its trigger. Later effects of a hook are not seen, nor are writes to files,
    globals or other things outside of the run.

    `--commute` repeats such a run from the same seed, each time with some pairs of hooks in the other order. It
    compares weights, gradients, optimizers, learning rates, random generators, metrics, logged scalars, checkpoints,
    attributes of hooks, and files in the run directory. Pairs that differ are named; ambiguous pairs
    without a difference are no longer reported. It takes about as many short runs as hooks fire at one point: at most
    200, or ten minutes.

    Exits with 0 if the pipeline is valid and with 2 if it is not; with `--strict`, with 1 if it has warnings, an
    ambiguous order, or a pair that differs.
    """
    if write and not observe:
        raise UserError(Problem("--write needs --observe: what is missing is what was seen"))
    if no_import and (observe or commute):
        raise UserError(Problem("--no-import runs nothing, --observe and --commute do"))
    try:
        imports = not no_import
        findings, seen = _look(
            pipeline, set_ or [], without or [], only or [], shuffle, observe=observe, imports=imports
        )
        if commute:
            findings = _tried(findings)
    except UserError as error:
        if format_ is Format.text:
            raise
        echo_json({"file": str(pipeline), "valid": False, "problems": error.to_json()})
        raise typer.Exit(2) from None
    if format_ is Format.json:
        echo_json(findings.to_json() | ({"observed": seen.to_json()} if seen else {}))
    else:
        width = shutil.get_terminal_size().columns
        echo(
            "\n".join([*findings.lines(width), *(seen.lines(findings.ambiguous, width, written=write) if seen else ())])
        )
    if seen and write:
        for line in seen.write():
            (echo if format_ is Format.text else warn)(line)
    if strict and (findings.doubtful or (seen and seen.doubtful)):
        raise typer.Exit(1)


def _look(
    pipeline: Path,
    overrides: list[str],
    without: list[str],
    only: list[str],
    shuffle: int | None,
    *,
    observe: bool,
    imports: bool,
) -> tuple[Findings, Report | None]:
    """Return what is found, and what was observed; then every pair is judged by what its hooks were seen to touch."""
    from hookflow.service.findings import Findings
    from hookflow.service.pipelines import read_pipeline, valid_plan

    loaded = read_pipeline(pipeline, overrides, without=without, only=only, imports=imports)
    plan = valid_plan(loaded, shuffle=shuffle, imports=imports)
    if not observe:
        return Findings.of(loaded, plan), None
    from hookflow.cli.observe_report import Report
    from hookflow.graph.observation import with_observed

    seen = Report.of(loaded, plan)
    return Findings.of(loaded, with_observed(plan, seen.observed.seen)), seen


def _tried(result: Findings) -> Findings:
    """Return the findings with what trials show of pairs that nothing orders."""
    from hookflow.trials.commute import commute

    with exits_after_traceback():
        return replace(result, commuted=commute(result.loaded, result.plan, result.loaded.source.parent, warn_of))
