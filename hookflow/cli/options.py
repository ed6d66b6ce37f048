"""The options and arguments that commands share, and the words that a shell offers for them.

The shell asks with every press, so a pipeline is read as plain TOML and nothing of it is checked.
An error offers no completions, since a shell has no place for a message.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hookflow.text import make_printable

Completion = tuple[str, str]
"""A word, and in a few words what it means (or nothing); zsh and fish show both."""

Completions = Callable[[typer.Context], Iterable[Completion]]


def _make_completion(completions: Completions) -> Callable[[typer.Context, str], list[Completion]]:
    """Return what a shell calls for completions.

    It returns the words that continue what is typed and that a terminal can show.
    """

    def complete(ctx: typer.Context, incomplete: str) -> list[Completion]:
        fitting = []
        with suppress(Exception):  # a file that is no TOML yet, a folder that may not be read
            for word, meaning in completions(ctx):
                if word.startswith(incomplete) and make_printable(word) == word:
                    fitting.append((word, make_printable(meaning)))
        return fitting

    return complete


@_make_completion
def complete_hooks(ctx: typer.Context) -> Iterator[Completion]:
    """Offer the hooks of the pipeline that the command line names."""
    for name, hook in _read_tables(ctx, "hooks").items():
        yield name, str(hook.get("use", ""))


@_make_completion
def complete_hooks_and_groups(ctx: typer.Context) -> Iterator[Completion]:
    """Offer the hooks of the pipeline that the command line names, and its groups."""
    for name, hook in _read_tables(ctx, "hooks").items():
        yield name, str(hook.get("use", ""))
    for name, group in _read_tables(ctx, "groups").items():
        members = [str(member) for member in group.get("hooks", ())]
        yield f"group:{name}", ", ".join(members)


@_make_completion
def complete_points(ctx: typer.Context) -> Iterator[Completion]:
    """Offer the points of every run, and the pipeline's own."""
    from hookflow.graph.points import STANDARD_POINTS

    for point in STANDARD_POINTS:
        yield point.name, point.about
    for name, table in _read_tables(ctx, "points").items():
        yield name, str(table.get("about", ""))


@_make_completion
def complete_runs(ctx: typer.Context) -> Iterator[Completion]:
    """Offer the ids of all runs, the newest first, and their names."""
    return _list_run_completions(Path(ctx.params.get("dir") or "runs"))


@_make_completion
def complete_files_and_runs(ctx: typer.Context) -> Iterator[Completion]:
    """Offer pipeline files and runs; where none of them fits, the shell goes on with files."""
    for folder in (Path(), Path("pipelines")):
        for path in sorted(folder.glob("*.toml")):
            yield str(path), ""
    yield from _list_run_completions(Path("runs"))


@_make_completion
def keys(ctx: typer.Context) -> Iterator[Completion]:
    """Offer the keys of the pipeline, ready for a value."""
    from hookflow.pipeline.source_map import flat

    for key, value in flat(_pipeline(ctx)):
        yield f"{key}=", f"now {value!r}"


def _list_run_completions(root: Path) -> Iterator[Completion]:
    from hookflow.events.rundir import all_runs

    runs = all_runs(root)
    for run in runs:
        yield run.id, run.path.parent.name
    for name in dict.fromkeys(run.path.parent.name for run in runs):  # each once
        yield name, "its newest run"


def _read_tables(ctx: typer.Context, name: str) -> dict[str, Any]:
    tables: dict[str, Any] = _pipeline(ctx).get(name, {})
    return tables


def _pipeline(ctx: typer.Context) -> dict[str, Any]:
    """Return the pipeline file of the command line so far, or the only one here, as plain TOML."""
    import tomli

    from hookflow.pipeline.layers import read
    from hookflow.service.pipelines import only_pipeline

    path = ctx.params.get("pipeline") or ctx.params.get("target")
    if not path:
        # Where an option is completed, click has left the arguments before it unread.
        for word in ctx.args:
            if word.endswith(".toml") and Path(word).is_file():
                path = word
                break
    return tomli.loads(read(Path(path or only_pipeline())))


SELECTION_PANEL = "Which hooks, in what order"
"""The panel of `--help` for what changes a pipeline from outside."""

Format = Literal["text", "json"]
"""How a command shows what it has found."""

UIKind = Literal["auto", "tui", "plain", "json", "none"]
"""How a run is shown."""

_ui = (
    "How to show it; auto: the dashboard on a terminal, else plain lines. plain has progress bars"
    " on a terminal."
)
UIOption = Annotated[UIKind, typer.Option(help=_ui)]


def argument(metavar: str, sentence: str, offered: Callable[..., Any] | None = None) -> Any:
    """Return the declaration of a positional argument; `offered` completes it."""
    return typer.Argument(
        metavar=metavar, help=sentence, show_default=False, autocompletion=offered
    )


def _make_hooks_option(sentence: str) -> Any:
    return typer.Option(
        metavar="HOOK",
        help=sentence,
        rich_help_panel=SELECTION_PANEL,
        autocompletion=complete_hooks_and_groups,
    )


FormatOption = Annotated[Format, typer.Option("--format", "-f", help="Output format.")]
PipelineFile = Annotated[Path, argument("FILE", "A pipeline file.")]
_overrides = "Override a key, e.g. run.seed=1. Repeatable."
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help=_overrides, autocompletion=keys),
]
_average = "Use the average that this hook keeps, such as ema; none: the weights themselves."
Average = Annotated[
    str | None, typer.Option("--average", metavar="HOOK", help=_average, show_default=False)
]
Without = Annotated[
    list[str] | None, _make_hooks_option("Switch a hook off, or group:NAME. Repeatable.")
]
Only = Annotated[
    list[str] | None,
    _make_hooks_option("Switch every other hook off; also group:NAME. Repeatable."),
]
_shuffle = "Use another order that the edges and phases allow, to find a missing edge."
Shuffle = Annotated[
    int | None, typer.Option(metavar="SEED", help=_shuffle, rich_help_panel=SELECTION_PANEL)
]
_file_or_run = argument(
    "FILE|RUN", "A pipeline file, or a run (its id, name or folder).", complete_files_and_runs
)
PipelineOrRun = Annotated[str, _file_or_run]
PipelineArgument = Annotated[str | None, _file_or_run]
_no_import = "Read the hooks' source and run none of it: for a file that you do not trust."
NoImport = Annotated[bool, typer.Option("--no-import", help=_no_import)]
_run = "A path, an id, a part of one, a name, or latest; the newest run if left out."
RunArgument = Annotated[str | None, argument("RUN", _run, complete_runs)]
_saved = (
    "A path, an id, a part of one, or a name (by default the newest run's): its newest run with a"
    " checkpoint."
)
RunWithCheckpoint = Annotated[str | None, argument("RUN", _saved, complete_runs)]
_watched = (
    "A path, an id, a part of one, a name, or latest. By default the newest run that trains, else"
    " the newest."
)
RunToWatch = Annotated[str | None, argument("RUN", _watched, complete_runs)]
RunName = Annotated[str, argument("RUN", "A path, an id, a part of one, or a name.", complete_runs)]
RunsFolder = Annotated[Path, typer.Option("--dir", metavar="DIR", help="The folder of runs.")]
