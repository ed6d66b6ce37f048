"""`hookflow check`: say whether a pipeline is valid, and what it amounts to, without running anything."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hookflow.cli.options import Format, NoImport, Only, Overrides, PipelineFile, Shuffle, Without
from hookflow.cli.output import echo, echo_json
from hookflow.errors import UserError

if TYPE_CHECKING:
    from hookflow.cli.check_report import Findings


def check(
    pipeline: PipelineFile,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 on a warning or an ambiguous order.")] = False,
    format_: Annotated[
        Format, typer.Option("--format", "-f", help="Text for people, or JSON for editors.")
    ] = Format.text,
    set_: Overrides = None,
    without: Without = None,
    only: Only = None,
    shuffle: Shuffle = None,
    no_import: NoImport = False,
) -> None:
    """Say whether a pipeline is valid, and what it amounts to.

    Checked are its keys, its hooks with their arguments, order and triggers, and that all it names is there. The
    arguments of model, data and optimizer are checked by a run, before it fetches any data. Hooks are imported to be
    looked at, and with that their files run; `--no-import` reads their source instead, and says what it does not tell.

    Exits with 0 if the pipeline is valid and with 2 if it is not; with `--strict`, with 1 if it has warnings or an
    ambiguous order.
    """
    try:
        found = _look(pipeline, set_ or [], without or [], only or [], shuffle, imports=not no_import)
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


def _look(
    pipeline: Path, overrides: list[str], without: list[str], only: list[str], shuffle: int | None, *, imports: bool
) -> Findings:
    from hookflow.cli.check_report import Findings
    from hookflow.cli.pipelines import read_pipeline, valid_plan

    loaded = read_pipeline(pipeline, overrides, without=without, only=only, imports=imports)
    return Findings.of(loaded, valid_plan(loaded, shuffle=shuffle, imports=imports))
