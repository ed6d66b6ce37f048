"""Options and arguments shared by several commands."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hookflow.cli import complete

SELECTION = "Which hooks, in what order"
"""The panel of `--help` for what changes a pipeline from outside."""


class Format(StrEnum):
    """How a command shows what it has found."""

    text = "text"
    json = "json"


class UI(StrEnum):
    """How a run is shown."""

    auto = "auto"
    tui = "tui"
    plain = "plain"
    json = "json"
    none = "none"


FormatOption = Annotated[Format, typer.Option("--format", "-f", help="How to show it.")]
PipelineFile = Annotated[Path, typer.Argument(help="A pipeline file.", metavar="FILE", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key, e.g. run.seed=1. Repeatable.",
        autocompletion=complete.keys,
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOOK",
        help="Switch a hook off. Repeatable.",
        rich_help_panel=SELECTION,
        autocompletion=complete.hooks,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOOK",
        help="Switch every other hook off. Repeatable.",
        rich_help_panel=SELECTION,
        autocompletion=complete.hooks,
    ),
]
Shuffle = Annotated[
    int | None,
    typer.Option(
        metavar="SEED",
        help="Take another order that edges and phases allow, to find a forgotten edge.",
        rich_help_panel=SELECTION,
    ),
]
_file_or_run = typer.Argument(
    metavar="FILE|RUN",
    help="A pipeline file, or a run (its id, name or folder).",
    show_default=False,
    autocompletion=complete.files_and_runs,
)
PipelineOrRun = Annotated[str, _file_or_run]
PipelineArgument = Annotated[str | None, _file_or_run]
NoImport = Annotated[
    bool,
    typer.Option("--no-import", help="Read the source of hooks and run none of it: for a file that you do not trust."),
]
RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="A path, an id, a part of one, a name, or latest; the newest run if left out.",
        show_default=False,
        autocompletion=complete.runs,
    ),
]
RunsFolder = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where the runs are.")]
