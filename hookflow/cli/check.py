"""`hookflow check`: say whether a pipeline is valid, and what it amounts to, without running anything."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hookflow.cli.options import Format, Only, Overrides, PipelineFile, Shuffle, Without
from hookflow.cli.output import echo, echo_json, exits_after_traceback, warn_of
from hookflow.errors import UserError

if TYPE_CHECKING:
    from hookflow.cli.check_report import Findings


def check(
    pipeline: PipelineFile,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 on a warning or an ambiguous order.")] = False,
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
) -> None:
    """Say whether a pipeline is valid, and what it amounts to.

    Checked are its keys, its hooks with their arguments, order and triggers, and that all it names is there. The
    arguments of model, data and optimizer are checked by a run, before it fetches any data.

    With `--commute` it is also run: two epochs of two iterations, with validations and a checkpoint, again and again
    from the same seed, each time with other hooks turned. Compared are weights, gradients, optimizers, learning rates,
    random generators, metrics, logged scalars, checkpoints, attributes of hooks, and files in the run directory. Pairs
    that differ are named; ambiguous pairs in which no difference is seen are no longer reported. Nothing is kept. It
    takes about as many short runs as hooks fire at one point, some more for each difference, and at most 200, or ten
    minutes. What does not fire in them, and what hooks change elsewhere (files, services), is not seen.

    Exits with 0 if the pipeline is valid and with 2 if it is not; with `--strict`, with 1 if it has warnings, an
    ambiguous order, or a pair that differs.
    """
    try:
        found = _look(pipeline, set_ or [], without or [], only or [], shuffle)
        if commute:
            found = _tried(found)
    except UserError as error:
        if format_ is Format.text:
            raise
        echo_json({"file": str(pipeline), "valid": False, "problems": error.to_json()})
        raise typer.Exit(2) from None
    if format_ is Format.json:
        echo_json(found.to_json())
    else:
        echo("\n".join(found.lines(shutil.get_terminal_size().columns)))
    if strict and found.doubtful:
        raise typer.Exit(1)


def _look(pipeline: Path, overrides: list[str], without: list[str], only: list[str], shuffle: int | None) -> Findings:
    from hookflow.cli.check_report import Findings
    from hookflow.cli.pipelines import read_pipeline, valid_plan

    loaded = read_pipeline(pipeline, overrides, without=without, only=only)
    return Findings.of(loaded, valid_plan(loaded, shuffle=shuffle))


def _tried(found: Findings) -> Findings:
    """Return the findings with what trials show of pairs that nothing orders."""
    from hookflow.runner.commute import commute

    with exits_after_traceback():
        return replace(found, commuted=commute(found.loaded, found.plan, found.loaded.source.parent, warn_of))
