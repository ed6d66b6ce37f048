"""The options and arguments that commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hookflow.cli import complete

SELECTION = "Which hooks, in what order"
"""The panel of `--help` for what changes a pipeline from outside."""

Format = Literal["text", "json"]
"""How a command shows what it has found."""

UI = Literal["auto", "tui", "plain", "json", "none"]
"""How a run is shown."""

_ui = "How to show it; auto: the dashboard on a terminal, else plain lines. plain has progress bars on a terminal."
UIOption = Annotated[UI, typer.Option(help=_ui)]


def argument(metavar: str, sentence: str, offered: Callable[..., Any] | None = None) -> Any:
    """Return the declaration of a positional argument; `offered` completes it."""
    return typer.Argument(metavar=metavar, help=sentence, show_default=False, autocompletion=offered)


def _hooks_option(sentence: str) -> Any:
    return typer.Option(metavar="HOOK", help=sentence, rich_help_panel=SELECTION, autocompletion=complete.hooks)


FormatOption = Annotated[Format, typer.Option("--format", "-f", help="Output format.")]
PipelineFile = Annotated[Path, argument("FILE", "A pipeline file.")]
_overrides = "Override a key, e.g. run.seed=1. Repeatable."
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=_overrides, autocompletion=complete.keys)
]
Without = Annotated[list[str] | None, _hooks_option("Switch a hook off. Repeatable.")]
Only = Annotated[list[str] | None, _hooks_option("Switch every other hook off. Repeatable.")]
_shuffle = "Use another order that the edges and phases allow, to find a missing edge."
Shuffle = Annotated[int | None, typer.Option(metavar="SEED", help=_shuffle, rich_help_panel=SELECTION)]
_file_or_run = argument("FILE|RUN", "A pipeline file, or a run (its id, name or folder).", complete.files_and_runs)
PipelineOrRun = Annotated[str, _file_or_run]
PipelineArgument = Annotated[str | None, _file_or_run]
_no_import = "Read the hooks' source and run none of it: for a file that you do not trust."
NoImport = Annotated[bool, typer.Option("--no-import", help=_no_import)]
_run = "A path, an id, a part of one, a name, or latest; the newest run if left out."
RunArgument = Annotated[str | None, argument("RUN", _run, complete.runs)]
RunName = Annotated[str, argument("RUN", "A path, an id, a part of one, or a name.", complete.runs)]
RunsFolder = Annotated[Path, typer.Option("--dir", metavar="DIR", help="The folder of runs.")]
