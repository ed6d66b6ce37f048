"""The options and arguments that commands share, and the words that a shell offers for them.

The shell asks with every press, so a pipeline is read as plain TOML and nothing of it is checked. An error offers no
completions, since a shell has no place for a message.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hookflow.text import printable

Offer = tuple[str, str]
"""A word, and in a few words what it means (or nothing); zsh and fish show both."""


def _offering(offers: Callable[[typer.Context], Iterable[Offer]]) -> Callable[[typer.Context, str], list[Offer]]:
    """Return a completion: those of the offers that go on from what is typed, and that a terminal can show."""

    def complete(ctx: typer.Context, incomplete: str) -> list[Offer]:
        fitting = []
        with suppress(Exception):  # a file that is no TOML yet, a folder that may not be read
            for word, meaning in offers(ctx):
                if word.startswith(incomplete) and printable(word) == word:
                    fitting.append((word, printable(meaning)))
        return fitting

    return complete


@_offering
def hooks(ctx: typer.Context) -> Iterator[Offer]:
    """Offer the hooks of the pipeline that the command line names."""
    yield from ((name, str(hook.get("use", ""))) for name, hook in _tables(ctx, "hooks").items())


@_offering
def points(ctx: typer.Context) -> Iterator[Offer]:
    """Offer the points of every run, and the pipeline's own."""
    from hookflow.graph.points import STANDARD

    yield from ((point.name, point.about) for point in STANDARD)
    yield from ((name, str(point.get("about", ""))) for name, point in _tables(ctx, "points").items())


@_offering
def runs(ctx: typer.Context) -> Iterator[Offer]:
    """Offer the ids of all runs, the newest first, and their names."""
    return _runs(Path(ctx.params.get("dir") or "runs"))


@_offering
def files_and_runs(ctx: typer.Context) -> Iterator[Offer]:
    """Offer pipeline files and runs; where none of them fits, the shell goes on with files."""
    yield from ((str(path), "") for folder in (Path(), Path("pipelines")) for path in sorted(folder.glob("*.toml")))
    yield from _runs(Path("runs"))


@_offering
def keys(ctx: typer.Context) -> Iterator[Offer]:
    """Offer the keys of the pipeline, ready for a value."""
    from hookflow.pipeline.source_map import flat

    yield from ((f"{key}=", f"now {value!r}") for key, value in flat(_pipeline(ctx)))


def _runs(root: Path) -> Iterator[Offer]:
    from hookflow.events.rundir import all_runs

    runs = all_runs(root)
    yield from ((run.id, run.path.parent.name) for run in runs)
    yield from ((name, "its newest run") for name in dict.fromkeys(run.path.parent.name for run in runs))


def _tables(ctx: typer.Context, name: str) -> dict[str, Any]:
    tables: dict[str, Any] = _pipeline(ctx).get(name, {})
    return tables


def _pipeline(ctx: typer.Context) -> dict[str, Any]:
    """Return, as plain TOML, the pipeline file that the command line names so far, or else the only one here."""
    import tomli

    from hookflow.pipeline.layers import read
    from hookflow.service.pipelines import only_pipeline

    # where an option is completed, click has left the arguments before it unread
    unread = (word for word in ctx.args if word.endswith(".toml") and Path(word).is_file())
    named = ctx.params.get("pipeline") or ctx.params.get("target") or next(unread, None)
    return tomli.loads(read(Path(named or only_pipeline())))


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
    return typer.Option(metavar="HOOK", help=sentence, rich_help_panel=SELECTION, autocompletion=hooks)


FormatOption = Annotated[Format, typer.Option("--format", "-f", help="Output format.")]
PipelineFile = Annotated[Path, argument("FILE", "A pipeline file.")]
_overrides = "Override a key, e.g. run.seed=1. Repeatable."
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=_overrides, autocompletion=keys)
]
Without = Annotated[list[str] | None, _hooks_option("Switch a hook off. Repeatable.")]
Only = Annotated[list[str] | None, _hooks_option("Switch every other hook off. Repeatable.")]
_shuffle = "Use another order that the edges and phases allow, to find a missing edge."
Shuffle = Annotated[int | None, typer.Option(metavar="SEED", help=_shuffle, rich_help_panel=SELECTION)]
_file_or_run = argument("FILE|RUN", "A pipeline file, or a run (its id, name or folder).", files_and_runs)
PipelineOrRun = Annotated[str, _file_or_run]
PipelineArgument = Annotated[str | None, _file_or_run]
_no_import = "Read the hooks' source and run none of it: for a file that you do not trust."
NoImport = Annotated[bool, typer.Option("--no-import", help=_no_import)]
_run = "A path, an id, a part of one, a name, or latest; the newest run if left out."
RunArgument = Annotated[str | None, argument("RUN", _run, runs)]
_saved = "A path, an id, a part of one, or a name (by default the newest run's): its newest run with a checkpoint."
RunWithCheckpoint = Annotated[str | None, argument("RUN", _saved, runs)]
_watched = "A path, an id, a part of one, a name, or latest. By default the newest run that trains, else the newest."
RunToWatch = Annotated[str | None, argument("RUN", _watched, runs)]
RunName = Annotated[str, argument("RUN", "A path, an id, a part of one, or a name.", runs)]
RunsFolder = Annotated[Path, typer.Option("--dir", metavar="DIR", help="The folder of runs.")]
